//! Runs in slices: what is compared is measured in turn, adds up, survives a crash as a whole, and leaves the
//! machine alone in between.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};

use crate::common::program::{run, text};
use serde_json::Value;
use weir_lab::experiment::{Changes, Experiment};
use weir_lab::model::{Prepared, Trial};
use weir_lab::result::Results;
use weir_lab::store::Run;
use weir_lab::testbed::memory::MemoryTestbed;
use weir_testing::folder::Folder;

const FILE: &str = "\
title = \"Slices\"
question = \"Do they add up?\"
runs = 3
warm_up = \"4ms\"
window = \"12ms\"
slices = 4
analysis = \"rounds\"
control = true
compare = \"mode\"
[defaults]
flows = 20
routes = 10
[[configuration]]
name = \"{mode}-{direction}\"
ipsec = { mode = [\"route\", \"policy\"], direction = [\"out\", \"in\"], cipher = \"aes-gcm-128\" }
";
const NAMES: [&str; 6] =
    ["route-out", "policy-out", "route-out~again", "route-in", "policy-in", "route-in~again"];

fn measured(name: &str) -> Folder {
    let folder = Folder::new(name);
    let file = folder.write("slices.toml", FILE);
    let done = run(&["run", &file, "--seed", "7", "--out", &folder.at("out")]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    folder
}

fn runs(folder: &Folder, name: &str) -> Vec<Run> {
    let lines = folder.read(&format!("out/raw/{name}.jsonl"));
    lines.lines().map(|l| serde_json::from_str(l).expect("a run")).collect()
}

fn results(folder: &Folder) -> Results {
    Results::read(&folder.0.join("out")).expect("a result")
}

#[test]
fn runs_of_other_topologies_are_whole_beside_slices_and_are_compared_block_by_block() {
    let test = "runs_of_other_topologies_are_whole_beside_slices_and_are_compared_block_by_block";
    let folder = Folder::new("slices-mixed");
    let kernel = "[[configuration]]\nname = \"kernel{}\"\nsut = \"kernel\"\ntopology = \"netns\"\n";
    let both: String = ["-a", "-b"].map(|n| kernel.replace("{}", n)).concat();
    let pairs = "pairs = [[\"kernel-a\", \"kernel-b\"], [\"route-out\", \"policy-out\"]]\n";
    let text_of =
        FILE.replace("compare = \"mode\"\n", pairs).replace("12ms", "40ms").replace("control = true\n", "");
    let file = folder.write("mixed.toml", text_of + &both);
    let done = run(&["run", &file, "--seed", "7", "--out", &folder.at("out")]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let results = results(&folder);
    if let Some(skipped) = results.skipped.first() {
        let _ = writeln!(std::io::stderr(), "SKIP {test}: {}", skipped.reason);
        return;
    }
    let compared = |other: &str| results.comparisons.iter().find(|c| c.other == other).expect("a pair");
    assert_eq!(compared("kernel-b").rounds.as_ref().map(|r| r.blocks), Some(3), "a run is a round");
    assert!(compared("kernel-b").ratio.is_some() && compared("policy-out").ratio.is_some());
    let slices = |name: &str| runs(&folder, name)[0].sample.as_ref().expect("measured").slices.len();
    assert_eq!((slices("kernel-a"), slices("policy-out")), (0, 4));
}

#[test]
fn every_configuration_has_a_slice_in_every_round_and_their_sum_is_the_run() {
    let folder = measured("slices-sum");
    // (block, direction, round) → places taken
    let mut places: BTreeMap<(usize, bool, usize), Vec<usize>> = BTreeMap::new();
    for name in NAMES {
        let runs = runs(&folder, name);
        assert_eq!(runs.len(), 3, "{name}");
        for run in runs {
            let sample = run.sample.expect("measured");
            assert_eq!(sample.slices.len(), 4, "{name}");
            let delivered: u64 = sample.slices.iter().map(|s| s.ledger.delivered).sum();
            assert!(sample.slices.iter().all(|s| s.ledger.delivered > 0 && s.ledger.unaccounted() == 0));
            assert_eq!((sample.ledger.delivered, sample.ledger.unaccounted()), (delivered, 0), "{name}");
            assert!(sample.ledger.drops.is_empty(), "{name}: sequence numbers go on: {:?}", sample.ledger);
            assert!((sample.pps * sample.seconds / delivered as f64 - 1.0).abs() < 1e-9);
            assert!(sample.metrics["verified_packets"] > 0.0 && sample.metrics["aead_share_percent"] > 0.0);
            for slice in &sample.slices {
                let key = (run.block, name.contains("-in"), slice.round);
                places.entry(key).or_default().push(slice.place);
            }
        }
    }
    assert_eq!(places.len(), 3 * 2 * 4);
    for (round, mut taken) in places {
        taken.sort_unstable();
        assert_eq!(taken, [0, 1, 2], "{round:?}");
    }
}

#[test]
fn controls_and_pairs_are_judged_by_rounds_and_the_report_follows_from_the_raw_files() {
    let folder = measured("slices-report");
    let found = results(&folder);
    assert_eq!((found.controls.len(), found.comparisons.len(), found.runs_measured), (2, 2, 18));
    for c in found.controls.iter().chain(&found.comparisons) {
        let (rounds, ratio) = (c.rounds.as_ref().expect("three blocks"), c.ratio.expect("decided"));
        assert_eq!((rounds.blocks, ratio.ratio), (3, rounds.estimate), "{c:?}");
    }
    let report = folder.read("out/report.md");
    for said in ["12 ms window in 4 slices", "each by the median of its rounds", "in rounds [95 %]"] {
        assert!(report.contains(said), "{said}: {report}");
    }
    let page = folder.read("out/report.html");
    assert!(page.contains("<dt>slices a run</dt><dd>4</dd>"));
    let files = ["result.json", "report.md", "report.html", "runs.csv"].map(|f| format!("out/{f}"));
    let before = files.clone().map(|f| folder.read(&f));
    assert!(run(&["report", &folder.at("out")]).status.success());
    assert_eq!(files.map(|f| folder.read(&f)), before);
}

#[test]
fn groups_are_measured_one_after_the_other_in_every_block() {
    let folder = measured("slices-order");
    let manifest: Value = serde_json::from_str(&folder.read("out/manifest.json")).expect("JSON");
    for block in manifest["order"].as_array().expect("blocks") {
        let inbound: Vec<bool> = block
            .as_array()
            .expect("names")
            .iter()
            .map(|n| n.as_str().expect("a name").contains("-in"))
            .collect();
        assert!(
            inbound[..3].iter().all(|i| *i == inbound[0]) && inbound[3..].iter().all(|i| *i != inbound[0])
        );
    }
}

#[test]
fn a_group_cut_by_a_crash_is_measured_again_whole_and_said_and_nothing_else_is() {
    let folder = measured("slices-crash");
    // of the last group the run appended last is lost
    let lost = NAMES.iter().find(|n| runs(&folder, n).iter().any(|r| r.order == 17)).expect("the last run");
    let group = if lost.contains("-in") { &NAMES[3..] } else { &NAMES[..3] };
    let file = format!("out/raw/{lost}.jsonl");
    let kept: String = folder.read(&file).lines().take(2).map(|l| format!("{l}\n")).collect();
    folder.write(&file, kept);
    let done = run(&["run", "--resume", &folder.at("out")]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    for name in NAMES {
        let sessions: Vec<usize> = runs(&folder, name).iter().map(|r| r.session).collect();
        let expected: &[usize] = match (group.contains(&name), name == *lost) {
            (true, true) => &[0, 0, 1],
            (true, false) => &[0, 0, 0, 1],
            (false, _) => &[0, 0, 0],
        };
        assert_eq!(sessions, expected, "{name}");
    }
    let found = results(&folder);
    assert_eq!((found.runs_measured, found.runs_missing), (18, 0));
    assert!(found.comparisons.iter().all(|c| c.paired.as_ref().is_some_and(|p| p.blocks == 3)));
    let again = group.iter().find(|n| n != &lost).expect("two");
    let said = format!("{again}: cut in the middle of a block, run ");
    assert!(folder.read("out/report.md").contains(&said), "{said}");
    let plain = folder.read(&format!("out/raw/{again}.pps"));
    assert_eq!(plain.lines().count(), 3, "the plain file follows the runs that count");
    assert!(text(&run(&["run", "--resume", &folder.at("out")]).stderr).contains("every run is recorded"));
}

#[test]
fn a_run_that_is_not_the_sum_of_its_slices_is_refused_by_line() {
    let folder = measured("slices-forged");
    let file = "out/raw/route-in.jsonl";
    let mut lines: Vec<Value> =
        folder.read(file).lines().map(|l| serde_json::from_str(l).expect("a run")).collect();
    lines[1]["sample"]["slices"][2]["ledger"]["delivered"] = 1.into();
    folder.write(file, lines.iter().map(|l| format!("{l}\n")).collect::<String>());
    let said = text(&run(&["report", &folder.at("out")]).stderr);
    assert!(said.contains("route-in.jsonl:2") && said.contains("not the sum of its slices'"), "{said}");
}

#[test]
fn builds_take_turns_too_each_in_a_process_of_its_own() {
    let folder = Folder::new("slices-builds");
    let file = "title = \"t\"\nquestion = \"q\"\nruns = 2\nwarm_up = \"2ms\"\nwindow = \"6ms\"\nslices = 3\n\
                [defaults]\nflows = 10\nroutes = 4\nbuild = \"default\"\n\
                [[configuration]]\nfamily = [\"inet\", \"inet6\"]\n";
    let file = folder.write("x.toml", file);
    let done = run(&["run", &file, "--out", &folder.at("out")]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    for name in ["inet", "inet6"] {
        for run in runs(&folder, name) {
            let sample = run.sample.expect("measured");
            assert_eq!((sample.slices.len(), sample.ledger.unaccounted()), (3, 0));
            let own = sample.notes.iter().filter(|n| n.contains("in a process of its own")).count();
            assert_eq!(own, 1, "said once a run: {:?}", sample.notes);
        }
    }
}

#[test]
fn a_configuration_that_waits_for_its_slice_takes_no_processor_time() {
    let experiment = Experiment::parse("x", "x.toml", FILE, &Changes::default()).expect("valid");
    let mut testbed = MemoryTestbed::default();
    let all = experiment.configurations.iter().map(|p| &p.configuration);
    let mut ready: Vec<Box<dyn Prepared>> = all.map(|c| testbed.prepare(c).expect("ready")).collect();
    let (warm_up, window) = (Duration::from_millis(1), Duration::from_millis(3));
    for prepared in &mut ready {
        let slice = Trial { rate: weir_stats::search::Rate::FlatOut, warm_up, window, seed: 1 };
        assert!(prepared.slice(&slice).expect("a slice").ledger.delivered > 0);
    }
    let asleep = |used: &BTreeMap<String, (String, String)>| used.values().all(|(state, _)| state == "S");
    let patience = Instant::now() + Duration::from_secs(20);
    let mut before = workers();
    while !asleep(&before) && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(5));
        before = workers();
    }
    assert_eq!(before.len(), ready.len(), "a worker each");
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(workers(), before);
    drop(ready);
    assert!(workers().is_empty(), "they end with their configuration");
}

/// Thread → its state, and nanoseconds it ran (schedstat; its ticks where the kernel has none).
fn workers() -> BTreeMap<String, (String, String)> {
    let mut found = BTreeMap::new();
    for task in fs::read_dir("/proc/self/task").expect("Linux").flatten() {
        let read = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        if read("comm").trim() != "weir-lab-slices" {
            continue;
        }
        let stat = read("stat");
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        let ran = read("schedstat").split(' ').next().map_or(fields[11].to_string(), str::to_string);
        found.insert(task.file_name().to_string_lossy().into_owned(), (fields[0].to_string(), ran));
    }
    found
}
