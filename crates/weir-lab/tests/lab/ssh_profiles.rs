//! Profiled runs of the ssh topology against real sshd: what a host samples, and what it refuses.

use std::fs;
use std::io::Write as _;

use weir_io::perf_event::{Sampler, Target, Wish};
use weir_lab::profile::folded::{self, Header};
use weir_lab::profile::session::FREQUENCY_HZ;
use weir_lab::profile::{Profile, function};

use crate::ssh_hosts::room::{AHEAD, DEVICE, GENERATOR, Room};

/// The window of every run here.
const WINDOW_S: f64 = 0.3;

/// One measured run and one profiled run of each configuration; the SUT has all CPUs, or the first.
fn experiment(room: &Room, configurations: &[&str]) -> String {
    let every = format!("cpus = \"0-{}\"", cpus().len() - 1);
    let one = |name: &&str| {
        // by the offload most packets would pass its worker by
        let cpus = if *name == "weir" { "cpus = \"0\"\nflow_offload = \"off\"" } else { &every };
        format!("[[configuration]]\nname = \"{name}\"\nsut = \"{name}\"\n{cpus}\n")
    };
    let configurations: String = configurations.iter().map(one).collect();
    format!(
        "title = \"Hosts\"\nquestion = \"Where does the time go there?\"\nruns = 1\nprofile = 1\nwarm_up = \"100ms\"\n\
         window = \"{WINDOW_S}s\"\n[defaults]\ntopology = \"ssh\"\nflows = 24\nroutes = 10\nrate = \"flat-out\"\n{configurations}{}",
        room.hosts_table("")
    )
}

fn cpus() -> Vec<u32> {
    (0..std::thread::available_parallelism().map_or(1, |n| n.get() as u32)).collect()
}

/// A room on a machine whose CPUs can be sampled; else a line that says why there is none.
fn open(test: &str) -> Option<Room> {
    let wish = Wish { frequency_hz: 97, stack_bytes: 0 };
    if let Err(e) = Sampler::start(&Target::Cpus(cpus()), wish) {
        writeln!(std::io::stderr(), "SKIP {test}: {e}").expect("stderr is open");
        return None;
    }
    Room::open(test)
}

/// Runs the experiment and reads the profile of each configuration; its measured run is good.
fn run(room: &Room, configurations: &[&str]) -> Vec<(Header, Profile)> {
    room.run_well(&experiment(room, configurations));
    let read = |name: &&str| {
        let runs = room.runs(name);
        let measured = runs[0].as_ref().unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(runs.len(), 1, "a profiled run is not among the measured ones");
        assert!(measured["ledger"]["delivered"].as_u64().expect("a count") > 0, "{measured:#}");
        folded::read(name, &room.result(&format!("raw/{name}.1.folded"))).expect("folded")
    };
    configurations.iter().map(read).collect()
}

/// The samples are those of the window on so many CPUs, and the rate meanwhile is known.
fn assert_window_alone(header: &Header, cpus: usize) {
    let most = header.seconds * FREQUENCY_HZ as f64 * cpus as f64;
    // where idle CPUs count no cycles there are fewer
    assert!(header.samples > 20 && header.samples as f64 <= most + 10.0, "at most {most}: {header:?}");
    assert!(header.seconds >= WINDOW_S && header.packets > 0 && header.pps > 0.0, "{header:?}");
    assert_eq!(header.frequency_hz, u64::from(FREQUENCY_HZ), "{header:?}");
}

fn has_function(profile: &Profile, wanted: impl Fn(&str) -> bool) -> bool {
    profile.stacks.keys().flatten().any(|frame| wanted(frame))
}

#[test]
fn a_hosts_profile_names_weirs_worker_and_the_kernels_functions_and_the_report_draws_them() {
    let test = "a_hosts_profile_names_weirs_worker_and_the_kernels_functions_and_the_report_draws_them";
    let Some(room) = open(test) else { return };
    let before = room.settled();
    let profiles = run(&room, &["kernel", "weir"]);
    let [(kernel, in_kernel), (weir, in_weir)] = &profiles[..] else { panic!("{}", profiles.len()) };

    assert_window_alone(kernel, cpus().len());
    let forwards =
        |frame: &str| function(frame) != frame && frame.starts_with("ip_") && frame.ends_with("_[k]");
    assert!(has_function(in_kernel, forwards), "{}", in_kernel.folded());

    assert_window_alone(weir, 1);
    let at_work = |stack: &&Vec<String>| {
        stack[0] == "weir-worker" && stack.iter().any(|frame| frame.contains("weir_core::router"))
    };
    assert!(in_weir.stacks.keys().any(|stack| at_work(&stack)), "{}", in_weir.folded());
    // What the host lacks is said with its name; the lab's own machine was not sampled.
    let named = |note: &String| note.starts_with("device_under_test (root@10.99.2.2): ");
    assert!(weir.notes.iter().chain(&kernel.notes).all(named), "{:?} {:?}", weir.notes, kernel.notes);

    let html = room.result("report.html");
    assert_eq!(html.matches("<svg class=\"flame\"").count(), 3, "one of each, and their difference");
    assert!(html.contains("Where time goes") && html.contains("weir-worker"));
    let result = room.result("result.json");
    assert!(
        ["raw/kernel.1.folded", "raw/weir.1.folded"].iter().all(|file| result.contains(file)),
        "{result}"
    );
    room.assert_as_before(&before);
}

#[test]
fn the_window_is_told_by_the_clock_of_the_host_that_is_sampled() {
    let Some(mut room) = open("the_window_is_told_by_the_clock_of_the_host_that_is_sampled") else { return };
    // its XDP program would read the machine's clock, so it may load none
    let by_packet_socket = ["setpriv", "--bounding-set=-bpf,-sys_admin"];
    room.restart_under(GENERATOR, &[&AHEAD[..], &by_packet_socket].concat());
    let before = room.settled();
    let profiles = run(&room, &["kernel"]);
    assert_window_alone(&profiles[0].0, cpus().len());
    room.assert_as_before(&before);
}

/// A host whose root lacks rights, where the kernel asks for them.
fn restricted(test: &str, rights: &str) -> Option<Room> {
    let level = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    if level.trim().parse::<i32>().is_ok_and(|level| level < 2) {
        writeln!(std::io::stderr(), "SKIP {test}: kernel.perf_event_paranoid is {}", level.trim())
            .expect("open");
        return None;
    }
    let mut room = open(test)?;
    room.restart_under(DEVICE, &["setpriv", &format!("--bounding-set={rights}")]);
    Some(room)
}

#[test]
fn a_host_that_refuses_to_be_sampled_says_so_and_its_measured_runs_stay() {
    let test = "a_host_that_refuses_to_be_sampled_says_so_and_its_measured_runs_stay";
    let Some(room) = restricted(test, "-perfmon,-sys_admin") else { return };
    let before = room.settled();
    let profiles = run(&room, &["kernel"]);
    let (header, profile) = &profiles[0];
    assert_eq!((header.samples, profile.samples()), (0, 0));
    let [note] = &header.notes[..] else { panic!("{:?}", header.notes) };
    let expected = "not profiled: device_under_test (root@10.99.2.2): sample: perf_event_open: cpus [";
    assert!(note.starts_with(expected), "{note}");
    assert!(note.contains("denied") && note.contains("sysctl kernel.perf_event_paranoid=-1"), "{note}");
    assert!(room.result("report.html").contains(expected), "the report says it too");
    room.assert_as_before(&before);
}

#[test]
fn a_host_that_hides_its_kernels_names_is_named_in_the_notes() {
    let test = "a_host_that_hides_its_kernels_names_is_named_in_the_notes";
    let Some(room) = restricted(test, "-syslog") else { return };
    let before = room.settled();
    let profiles = run(&room, &["kernel"]);
    let (header, profile) = &profiles[0];
    assert_window_alone(header, cpus().len());
    let expected =
        "device_under_test (root@10.99.2.2): kernel functions have no names (/proc/kallsyms hides them)";
    assert!(header.notes.iter().any(|note| note.starts_with(expected)), "{:?}", header.notes);
    assert!(has_function(profile, |frame| frame == "[kernel]_[k]"), "{}", profile.folded());
    room.assert_as_before(&before);
}
