//! What a killed lab leaves is gone, or removed by the next start.

use crate::common::testbeds::one_at_a_time;
use std::fs;
use std::io::Write as _;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use weir_lab::model::configuration::PlacementKeys;
use weir_lab::model::{Configuration, Family, FrameSize, Keys, Sut, Topology, Trial, Workload};
use weir_lab::netns::residue;
use weir_lab::testbed::Testbeds;
use weir_stats::search::Rate;

/// Set for the process that plays the lab to be killed: the SUT it holds.
const VICTIM: &str = "WEIR_LAB_TEST_VICTIM";
const READY: &str = "the testbed is deployed";

fn configuration(sut: Sut) -> Configuration {
    Configuration::try_from(Keys {
        firewall: None,
        connection_packets: None,
        name: "victim".into(),
        sut,
        topology: Topology::Netns,
        workload: Workload {
            family: Family::Inet,
            frame: FrameSize::Fixed(64),
            flows: 10,
            rate: Rate::Pps(1000),
        },
        routes: 2,
        placement: PlacementKeys::default(),
        ipsec: None,
        build: None,
        relay: None,
    })
    .expect("valid")
}

/// Is not a test by itself: the process that is killed, when it is asked to be.
#[test]
fn victim_holds_a_testbed_until_it_is_killed() {
    let Some(sut) = std::env::var_os(VICTIM) else { return };
    let sut = if sut == "weir" { Sut::Weir } else { Sut::Kernel };
    let mut testbeds = Testbeds::default();
    let _prepared = testbeds.prepare(&configuration(sut)).expect("the testbed is deployed");
    println!("\n{READY}");
    std::thread::sleep(Duration::from_secs(120));
}

fn victim(sut: &str) -> Child {
    let mut child = Command::new(std::env::current_exe().expect("our own path"))
        .args(["--exact", "netns_residue::victim_holds_a_testbed_until_it_is_killed", "--nocapture"])
        .env(VICTIM, sut)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("our own program starts");
    let stdout = child.stdout.take().expect("piped");
    let deployed = BufReader::new(stdout).lines().map_while(Result::ok).any(|line| line == READY);
    assert!(deployed, "the victim ended before its testbed was deployed");
    child
}

/// Kernel threads of devices that a process made: their names carry its id.
fn receptions_of(process: u32) -> usize {
    let mark = format!("-{process:x}-");
    let Ok(entries) = fs::read_dir("/proc") else { return 0 };
    let comm = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
    entries.flatten().map(comm).filter(|c| c.starts_with("napi/") && c.contains(&mark)).count()
}

fn folders_of(process: u32) -> usize {
    let prefix = format!("weir-lab-{process}-");
    let entries = fs::read_dir(std::env::temp_dir()).expect("a temp dir");
    entries.flatten().filter(|e| e.file_name().to_string_lossy().starts_with(&prefix)).count()
}

fn within_ten_seconds(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn killed_lab_leaves_nothing(test: &str, sut: &str, kind: Sut) {
    if let Some(missing) = Testbeds::default().missing(&configuration(kind)) {
        writeln!(std::io::stderr(), "SKIP {test}: {missing}").expect("stderr is open");
        return;
    }
    let mut child = victim(sut);
    let process = child.id();
    assert!(receptions_of(process) > 0, "the veth ends have threads");
    child.kill().and_then(|()| child.wait()).expect("our child");
    within_ten_seconds("its veth pairs are gone", || receptions_of(process) == 0);
    residue::sweep();
    assert_eq!(folders_of(process), 0, "its folders are gone");
}

#[test]
fn lab_killed_with_the_kernel_as_sut_leaves_nothing() {
    let name = "lab_killed_with_the_kernel_as_sut_leaves_nothing";
    killed_lab_leaves_nothing(name, "kernel", Sut::Kernel);
}

#[test]
fn lab_killed_with_weir_as_sut_leaves_nothing() {
    let name = "lab_killed_with_weir_as_sut_leaves_nothing";
    killed_lab_leaves_nothing(name, "weir", Sut::Weir);
}

#[test]
fn dropped_testbed_leaves_nothing_and_two_labs_run_beside_each_other() {
    let name = "dropped_testbed_leaves_nothing_and_two_labs_run_beside_each_other";
    let configuration = configuration(Sut::Kernel);
    let _alone = one_at_a_time();
    let mut own = Testbeds::default();
    if let Some(missing) = own.missing(&configuration) {
        writeln!(std::io::stderr(), "SKIP {name}: {missing}").expect("stderr is open");
        return;
    }
    let mut other = victim("kernel");
    let mut prepared = own.prepare(&configuration).expect("beside the other lab");
    let short = Duration::from_millis(20);
    let trial = Trial { rate: configuration.workload.rate, warm_up: short, window: short * 5, seed: 1 };
    let sample = prepared.run(&trial).expect("the run ends");
    assert!(sample.ledger.delivered > 0, "{sample:#?}");
    assert!(receptions_of(other.id()) > 0, "the other lab is still there");
    drop(prepared);
    other.kill().and_then(|()| other.wait()).expect("our child");
    within_ten_seconds("the other lab is gone", || receptions_of(other.id()) == 0);
    assert_eq!(folders_of(std::process::id()), 0);
}
