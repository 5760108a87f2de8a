//! Campaigns as a user runs them: the program, a file, a folder, and what is in it afterwards.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::program::{SMALL, lab, run, text};
use weir_lab::campaign::{self, CampaignSpec};
use weir_lab::experiment::{Changes, Experiment};
use weir_lab::result::{Results, derive};
use weir_testing::folder::Folder;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn small() -> Experiment {
    Experiment::parse("small", "small.toml", SMALL, &Changes::default()).expect("valid")
}

fn measured(folder: &Folder, stop: &std::sync::atomic::AtomicBool) -> Results {
    let argv = vec!["weir-lab".into()];
    let plan =
        CampaignSpec { experiment: small(), seed: 7, dir: &folder.0, argv, repeats: None, stop, whole: None };
    campaign::run(plan).expect("memory needs nothing").results
}

#[test]
fn a_priority_programs_do_not_have_is_in_the_manifest_and_warned_about() {
    let folder = Folder::absent("priority");
    measured(&folder, &false.into());
    let path = folder.0.join("manifest.json");
    let text = fs::read_to_string(&path).expect("written");
    let mut manifest: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert!(manifest["machine"]["priority"]["nice"].is_i64(), "{}", manifest["machine"]);
    let mut warnings = |group: i64| {
        manifest["machine"]["priority"] = serde_json::json!({"nice": 0, "group_nice": group, "policy": 0});
        fs::write(&path, manifest.to_string()).expect("space");
        let (_, results) = derive(&folder.0).expect("a campaign");
        results.warnings.iter().filter(|w| w.finding.contains("scheduling priority")).count()
    };
    assert_eq!((warnings(0), warnings(-15), warnings(5)), (0, 1, 1));
}

#[test]
fn every_shipped_experiment_is_valid_and_has_smoke_values() {
    let mut count = 0;
    for entry in fs::read_dir(root().join("labs")).expect("labs").flatten() {
        let path = entry.path();
        let text = fs::read_to_string(&path).expect("readable");
        assert!(text.contains("[quick]"), "{} has no smoke values", path.display());
        let full = Experiment::load(&path, &Changes::default()).unwrap_or_else(|e| panic!("{e}"));
        let quick = Experiment::load(&path, &Changes { quick: true, ..Changes::default() })
            .unwrap_or_else(|e| panic!("{e}"));
        assert!(!full.pairs.is_empty() && !quick.pairs.is_empty(), "{} compares nothing", path.display());
        assert!(quick.window_ms < full.window_ms && quick.warm_up_ms < full.warm_up_ms);
        count += 1;
    }
    assert!(count >= 5);
}

#[test]
fn every_experiment_runs_in_memory_with_its_smoke_values() {
    for lab in ["demo", "forwarding-frame-size", "forwarding-flows", "route-table-size", "question-placement"]
    {
        let folder = Folder::absent(&format!("quick-{lab}"));
        let file = root().join(format!("labs/{lab}.toml"));
        let pattern = if lab == "route-table-size" { "inet*" } else { "memory-*" };
        let out = folder.0.to_string_lossy().into_owned();
        let file = file.to_string_lossy().into_owned();
        let output = run(&["run", &file, "--quick", "--seed", "1", "--out", &out, "--only", pattern]);
        assert!(output.status.success(), "{lab}: {}", text(&output.stderr));
        let results: Results = serde_json::from_str(&folder.read("result.json")).expect("a result");
        assert_eq!((results.runs_failed, results.runs_missing), (0, 0), "{lab}");
        assert!(results.runs_measured > 0, "{lab}");
        let page = folder.read("report.html");
        assert!(page.contains("<svg"), "{lab} has no plot");
        let mut ids: Vec<&str> =
            page.split("<section id=\"").skip(1).filter_map(|s| s.split('"').next()).collect();
        ids.sort_unstable();
        assert!(ids.windows(2).all(|w| w[0] != w[1]), "{lab}: a link has two targets: {ids:?}");
    }
}

#[test]
fn the_folder_holds_raw_runs_manifest_result_and_reports() {
    let folder = Folder::absent("folder");
    let results = measured(&folder, &false.into());
    assert_eq!((results.runs_planned, results.runs_measured), (12, 12));
    assert_eq!(folder.read("raw/inet.jsonl").lines().count(), 3);
    assert_eq!(folder.read("raw/inet6.pps").lines().count(), 3);
    let json: serde_json::Value = serde_json::from_str(&folder.read("result.json")).expect("JSON");
    assert_eq!(json["format"], 4);
    assert_eq!(json["configurations"][0]["blocks"], serde_json::json!([0, 1, 2]));
    assert_eq!(json["comparisons"][0]["paired"]["blocks"], 3);
    assert_eq!(json["configurations"][0]["values"].as_array().expect("values").len(), 3);
    let report = folder.read("report.md");
    assert!(report.starts_with("# Small\n\n**"), "the answer comes first");
    assert!(report.contains("x inet.pps\n+ inet6.pps\n+---"), "a ministat block is in the report");
    let runs = folder.read("runs.csv");
    assert_eq!(runs.split_terminator("\r\n").count(), 1 + 12, "a record a run:\n{runs}");
    let comparisons = folder.read("comparisons.csv");
    assert_eq!(comparisons.split_terminator("\r\n").count(), 1 + results.comparisons.len());
    for table in [runs, comparisons] {
        // every second part lies between quotes: its commas separate nothing
        let fields =
            |record: &str| record.split('"').step_by(2).map(|p| p.matches(',').count()).sum::<usize>();
        let fields: Vec<usize> = table.split_terminator("\r\n").map(fields).collect();
        assert!(fields.iter().all(|&n| n == fields[0]), "records of unequal length: {fields:?}\n{table}");
    }
    let html = folder.read("report.html");
    // each run is a point that says its value, by configuration and over time
    assert_eq!(html.matches("<title>inet6, run ").count(), 6);
    assert!(html.len() < 1 << 20, "{} bytes", html.len());
    assert!(!html.contains("http://") && !html.contains("https://"), "the page loads nothing");
    let manifest: serde_json::Value = serde_json::from_str(&folder.read("manifest.json")).expect("JSON");
    assert_eq!(manifest["seed"], 7);
    assert_eq!(manifest["order"].as_array().expect("blocks").len(), 3);
}

const DERIVED: [&str; 5] = ["result.json", "runs.csv", "comparisons.csv", "report.md", "report.html"];

#[test]
fn what_was_written_is_what_raw_runs_derive_to() {
    let folder = Folder::absent("derive");
    let results = measured(&folder, &false.into());
    let (_, derived) = derive(&folder.0).expect("a campaign");
    assert!(derived == results, "derived again, the results differ");
    let written: Results = serde_json::from_str(&folder.read("result.json")).expect("a result");
    assert!(written == results, "read back, the results differ");
    let before = DERIVED.map(|f| folder.read(f));
    let output = run(&["report", &folder.0.to_string_lossy()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(DERIVED.map(|f| folder.read(f)), before);
}

#[test]
fn a_set_stop_flag_measures_nothing_more_and_still_reports() {
    let folder = Folder::absent("stop");
    let results = measured(&folder, &true.into());
    assert_eq!((results.runs_measured, results.runs_missing), (0, 12));
    assert!(folder.read("report.md").contains("interrupted: 12 of 12 runs were not measured"));
}

#[test]
fn ctrl_c_keeps_what_was_measured() {
    let folder = Folder::new("ctrl-c");
    let file = folder.0.join("long.toml");
    fs::write(&file, SMALL.replace("runs = 3", "runs = 2000").replace("5ms", "20ms")).expect("space");
    let out = folder.0.join("out");
    let mut child = lab()
        .args(["run", &file.to_string_lossy(), "--out", &out.to_string_lossy()])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let raw = out.join("raw/inet.jsonl");
    let patience = Instant::now() + Duration::from_secs(60);
    while fs::read_to_string(&raw).map_or(0, |t| t.lines().count()) < 3 {
        assert!(Instant::now() < patience, "no run arrived");
        std::thread::sleep(Duration::from_millis(20));
    }
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill");
    assert!(killed.success());
    let code = child.wait().expect("it ends").code();
    assert_eq!(code, Some(130));
    let results: Results =
        serde_json::from_str(&fs::read_to_string(out.join("result.json")).expect("written"))
            .expect("a result");
    assert!(results.runs_measured >= 3 && results.runs_missing > 0);
    assert_eq!(results.runs_measured + results.runs_missing, results.runs_planned);
    assert!(out.join("report.html").exists());
}

#[test]
fn the_same_seed_gives_the_same_order() {
    let order = |name: &str| {
        let folder = Folder::absent(name);
        measured(&folder, &true.into());
        let manifest: serde_json::Value = serde_json::from_str(&folder.read("manifest.json")).expect("JSON");
        manifest["order"].clone()
    };
    assert_eq!(order("order-a"), order("order-b"));
}

#[test]
fn mistakes_are_one_sentence_with_the_place_and_the_remedy() {
    let folder = Folder::new("mistakes");
    let file = folder.0.join("bad.toml");
    fs::write(&file, SMALL.replace("flows = 20", "flows = -1")).expect("space");
    let output = run(&["run", &file.to_string_lossy()]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("bad.toml:9:9: got -1, expected a number of flows from 1 to 4194304"), "{said}");
    let output = run(&["report", &folder.0.to_string_lossy()]);
    assert!(text(&output.stderr).contains("name the folder a campaign was written to"));
}

#[test]
fn doctor_and_list_answer_and_leave() {
    let doctor = run(&["doctor", "--json"]);
    assert!(doctor.status.success());
    let findings: serde_json::Value = serde_json::from_slice(&doctor.stdout).expect("JSON");
    assert!(findings.as_array().expect("findings").len() >= 10);
    let list = run(&["run", "--list", &root().join("labs").to_string_lossy()]);
    assert!(list.status.success(), "{}", text(&list.stdout));
    assert!(text(&list.stdout).contains("demo.toml"));
}
