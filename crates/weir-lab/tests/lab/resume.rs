//! Campaigns interrupted in every way and taken up again; campaigns repeated from their manifest.

use std::fs;
use std::ops::Deref;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::program::{SMALL, lab, text};
use serde_json::Value;
use weir_lab::result::Results;
use weir_testing::folder::Folder;

/// A folder in which campaigns are run by the program.
struct Campaign {
    folder: Folder,
}

impl Deref for Campaign {
    type Target = Folder;

    fn deref(&self) -> &Folder {
        &self.folder
    }
}

impl Campaign {
    fn new(name: &str) -> Campaign {
        Campaign { folder: Folder::new(name) }
    }

    /// Makes a folder with a finished campaign in `out`, from `small.toml` and seed 7.
    fn measured(name: &str) -> Campaign {
        let folder = Campaign::new(name);
        folder.write("small.toml", SMALL);
        let done = folder.lab(&["run", "@small.toml", "--seed", "7", "--out", "@out"]);
        assert!(done.status.success(), "{}", text(&done.stderr));
        folder
    }

    /// Runs the program; arguments that begin with `@` are inside the folder.
    fn lab(&self, arguments: &[&str]) -> Output {
        let path = |a: &&str| match a.strip_prefix('@') {
            Some(name) => self.at(name),
            None => a.to_string(),
        };
        lab().args(arguments.iter().map(path)).output().expect("the program starts")
    }

    fn json(&self, file: &str) -> Value {
        serde_json::from_str(&self.read(file)).expect("JSON")
    }

    fn results(&self, dir: &str) -> Results {
        Results::read(&self.0.join(dir)).expect("a result")
    }

    /// (order, seed) of every run recorded, by order.
    fn recorded(&self, dir: &str) -> Vec<(u64, u64)> {
        let lines: Vec<String> = NAMES.iter().map(|n| self.read(&format!("{dir}/raw/{n}.jsonl"))).collect();
        let mut runs: Vec<(u64, u64)> = lines
            .iter()
            .flat_map(|t| t.lines())
            .map(|l| serde_json::from_str::<Value>(l).expect("a run"))
            .map(|r| (r["order"].as_u64().expect("order"), r["seed"].as_u64().expect("seed")))
            .collect();
        runs.sort_unstable();
        runs
    }

    /// Leaves of `out` what a crash before the run at `order` would: later lines gone, derived files too.
    fn crash_before(&self, order: u64) {
        for name in NAMES {
            let file = format!("out/raw/{name}.jsonl");
            let run = |l: &str| serde_json::from_str::<Value>(l).expect("a run")["order"].as_u64();
            let text = self.read(&file);
            let kept = text.lines().filter(|l| run(l) < Some(order)).map(|l| format!("{l}\n"));
            self.write(&file, kept.collect::<String>());
        }
        for derived in ["result.json", "report.md", "report.html"] {
            fs::remove_file(self.0.join("out").join(derived)).expect("there");
        }
    }
}

const NAMES: [&str; 4] = ["inet", "inet6", "baseline-inet", "baseline-inet6"];

#[test]
fn a_crash_in_the_middle_of_a_block_and_of_a_line_is_resumed_to_the_same_schedule() {
    let folder = Campaign::measured("crash");
    let whole = folder.recorded("out");
    assert_eq!(whole.len(), 12);
    // order 4 is inet6 in block 2, order 5 inet in the same
    folder.crash_before(5);
    let torn = folder.read("out/raw/inet.jsonl") + "{\"format\":1,\"blo";
    folder.write("out/raw/inet.jsonl", &torn);
    let done = folder.lab(&["run", "--resume", "@out"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_eq!(folder.recorded("out"), whole, "the same slots with the same seeds");
    let results = folder.results("out");
    assert_eq!((results.runs_measured, results.runs_missing), (12, 0));
    // block 2 of 3 is split; a pair parted by the interrupt is none
    assert_eq!(results.comparisons[0].paired.as_ref().expect("blocks").blocks, 2);
    let manifest = folder.json("out/manifest.json");
    assert_eq!(manifest["resumed"][0]["runs_before"], 5);
    assert!(
        manifest["resumed"][0]["left_out"][0].as_str().expect("said").contains("its 16 bytes are left out")
    );
    let report = folder.read("out/report.md");
    for said in
        ["interrupted and resumed: measured in 2 sessions, block 2 has runs of two", "16 bytes are left out"]
    {
        assert!(report.contains(said), "{said}: {report}");
    }
    assert!(report.contains("## Sessions") && report.contains(" ‖ "), "{report}");
    let page = folder.read("out/report.html");
    assert!(page.contains("class=\"session\"") && page.contains("session 2, "), "no line between sessions");
    // the plain files follow
    assert_eq!(folder.read("out/raw/inet.pps").lines().count(), 3);
}

#[test]
fn kill_minus_nine_loses_at_most_the_run_under_way() {
    let folder = Campaign::new("kill");
    folder.write("long.toml", SMALL.replace("runs = 3", "runs = 10").replace("5ms", "15ms"));
    let out = folder.0.join("out");
    let mut child = lab()
        .args(["run", &folder.0.join("long.toml").to_string_lossy(), "--out", &out.to_string_lossy()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let patience = Instant::now() + Duration::from_secs(60);
    while fs::read_to_string(out.join("raw/inet.jsonl")).map_or(0, |t| t.lines().count()) < 2 {
        assert!(Instant::now() < patience, "no run arrived");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().expect("ours");
    child.wait().expect("ours");
    let done = folder.lab(&["run", "@long.toml", "--resume", "@out"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let results = folder.results("out");
    assert_eq!((results.runs_measured, results.runs_missing, results.runs_failed), (40, 0, 0));
    let orders: Vec<u64> = folder.recorded("out").iter().map(|r| r.0).collect();
    assert_eq!(orders, (0..40).collect::<Vec<u64>>());
}

#[test]
fn a_changed_machine_or_build_is_refused_and_with_force_recorded_and_said() {
    let folder = Campaign::measured("changed");
    folder.crash_before(9);
    let mut manifest = folder.json("out/manifest.json");
    manifest["machine"]["kernel"] = "2.6.32".into();
    manifest["build"]["commit"] = "0123456789ab".into();
    folder.write("out/manifest.json", manifest.to_string());
    let refused = folder.lab(&["run", "--resume", "@out"]);
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1));
    assert!(said.contains("kernel: \"2.6.32\" → ") && said.contains("commit: \"0123456789ab\" → "), "{said}");
    assert!(said.contains("--force to go on"), "{said}");
    assert_eq!(folder.recorded("out").len(), 9, "nothing was measured");
    let done = folder.lab(&["run", "--resume", "@out", "--force"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_eq!(folder.json("out/manifest.json")["resumed"][0]["changes"].as_array().expect("list").len(), 2);
    assert!(folder.read("out/report.md").contains("between sessions changed: commit: "));
}

#[test]
fn a_file_that_changed_since_is_not_the_interrupted_experiment() {
    let folder = Campaign::measured("file");
    folder.crash_before(9);
    folder.write("small.toml", SMALL.replace("5ms", "6ms"));
    let refused = folder.lab(&["run", "@small.toml", "--resume", "@out"]);
    let said = text(&refused.stderr);
    assert!(
        said.contains("its experiment differs from the file's in window_ms; `weir-lab run --resume"),
        "{said}"
    );
    assert_eq!(folder.recorded("out").len(), 9);
}

#[test]
fn an_order_that_does_not_follow_from_the_seed_is_not_resumed() {
    let folder = Campaign::measured("order");
    folder.crash_before(9);
    let mut manifest = folder.json("out/manifest.json");
    manifest["seed"] = 8.into();
    folder.write("out/manifest.json", manifest.to_string());
    let said = text(&folder.lab(&["run", "--resume", "@out"]).stderr);
    assert!(said.contains("its order does not follow from its seed 8"), "{said}");
}

#[test]
fn a_failed_run_stays_unless_it_is_asked_for_again_and_then_both_are_kept() {
    let folder = Campaign::measured("failed");
    let file = folder.read("out/raw/inet.jsonl");
    let first: Value = serde_json::from_str(file.lines().next().expect("a run")).expect("a run");
    let mut failed = first.clone();
    (failed["sample"], failed["error"]) = (Value::Null, "host down".into());
    folder.write(
        "out/raw/inet.jsonl",
        file.replacen(file.lines().next().expect("a run"), &failed.to_string(), 1),
    );
    assert!(folder.lab(&["run", "--resume", "@out"]).status.success());
    let results = folder.results("out");
    assert_eq!((results.runs_measured, results.runs_failed), (11, 1));
    assert_eq!(folder.read("out/raw/inet.pps").lines().count(), 2, "the plain file follows the runs");
    assert!(folder.lab(&["run", "--resume", "@out", "--retry-failed"]).status.success());
    let results = folder.results("out");
    assert_eq!((results.runs_measured, results.runs_failed, results.runs_missing), (12, 0, 0));
    let raw = folder.read("out/raw/inet.jsonl");
    assert_eq!((raw.lines().count(), raw.contains("host down")), (4, true));
    let said = format!("inet: run {} failed and were measured again in a later session", first["order"]);
    assert!(folder.read("out/report.md").contains(&said), "{said}");
}

#[test]
fn a_finished_campaign_is_only_reported_and_reports_are_the_same_to_the_byte() {
    let folder = Campaign::measured("finished");
    folder.crash_before(5);
    assert!(folder.lab(&["run", "--resume", "@out"]).status.success());
    let files =
        ["manifest.json", "result.json", "report.md", "report.html", "raw/inet.jsonl", "raw/inet.pps"];
    let all = || files.map(|f| folder.read(&format!("out/{f}")));
    let before = all();
    let done = folder.lab(&["run", "--resume", "@out"]);
    assert!(text(&done.stderr).contains("every run is recorded"), "{}", text(&done.stderr));
    assert!(folder.lab(&["report", "@out"]).status.success());
    assert_eq!(all(), before);
}

#[test]
fn every_report_follows_from_the_manifest_and_the_raw_lines_alone() {
    let folder = Campaign::measured("alone");
    folder.crash_before(5);
    assert!(folder.lab(&["run", "--resume", "@out"]).status.success());
    fs::create_dir_all(folder.0.join("elsewhere/raw")).expect("space");
    folder.write("elsewhere/manifest.json", folder.read("out/manifest.json"));
    for name in NAMES {
        let file = format!("raw/{name}.jsonl");
        folder.write(&format!("elsewhere/{file}"), folder.read(&format!("out/{file}")));
    }
    assert!(folder.lab(&["report", "@elsewhere"]).status.success());
    let mut derived = 0;
    for entry in fs::read_dir(folder.0.join("out")).expect("there").flatten().filter(|e| e.path().is_file()) {
        let name = entry.file_name().to_string_lossy().into_owned();
        assert_eq!(folder.read(&format!("elsewhere/{name}")), folder.read(&format!("out/{name}")), "{name}");
        derived += 1;
    }
    assert!(derived >= 4, "manifest, result and two reports");
    for name in NAMES {
        let file = format!("raw/{name}.pps");
        assert_eq!(folder.read(&format!("elsewhere/{file}")), folder.read(&format!("out/{file}")));
    }
}

#[test]
fn a_result_of_a_newer_format_or_cut_short_is_refused_with_its_remedy() {
    let folder = Campaign::measured("result");
    let text = folder.read("out/result.json");
    for (damaged, why) in [
        (text.replacen("\"format\": ", "\"format\": 99", 1), "expected 1 to "),
        (text[..text.len() / 2].to_string(), "cut short at line "),
    ] {
        folder.write("out/result.json", &damaged);
        let said = Results::read(&folder.0.join("out")).expect_err("damaged").said;
        assert!(said.contains(why) && said.contains("`weir-lab report "), "{said}");
    }
    assert!(folder.lab(&["report", "@out"]).status.success());
    assert_eq!(folder.read("out/result.json"), text);
}

#[test]
fn a_rerun_repeats_configurations_order_and_traffic_and_a_new_seed_only_configurations() {
    let folder = Campaign::measured("rerun");
    let done = folder.lab(&["run", "--again", "@out"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(text(&done.stderr).contains("next: weir-lab compare "), "{}", text(&done.stderr));
    assert_eq!(folder.recorded("out.1"), folder.recorded("out"));
    let (first, again) = (folder.json("out/manifest.json"), folder.json("out.1/manifest.json"));
    assert_eq!((&again["order"], &again["experiment"]), (&first["order"], &first["experiment"]));
    assert_eq!(again["repeats"]["seed"], 7);
    assert_eq!(again["repeats"]["started_unix_ms"], first["started_unix_ms"]);
    let done = folder.lab(&["run", "--again", "@out", "--seed", "8", "--out", "@other"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let other = folder.json("other/manifest.json");
    assert_eq!(other["experiment"], first["experiment"]);
    assert!(other["order"] != first["order"] && other["seed"] == 8);
}

#[test]
fn of_several_campaigns_only_what_is_missing_at_this_commit_is_measured() {
    let folder = Campaign::new("several");
    folder.write("small.toml", SMALL);
    folder.write("other.toml", SMALL);
    let whole = |files: &[&str]| {
        let done = folder.lab(&[&["run"], files, &["--into", "@runs", "--missing"]].concat());
        assert!(done.status.success(), "{}", text(&done.stderr));
        text(&done.stderr)
    };
    whole(&["@small.toml"]);
    let dirs: Vec<_> =
        fs::read_dir(folder.0.join("runs")).expect("made").flatten().map(|e| e.file_name()).collect();
    let [small] = dirs.as_slice() else { panic!("one campaign: {dirs:?}") };
    let small = format!("runs/{}", small.to_string_lossy());
    let before = folder.recorded(&small);
    let cut = format!("{small}/raw/{}.jsonl", NAMES[0]);
    let lines = folder.read(&cut);
    let (kept, last) = lines.trim_end().rsplit_once('\n').expect("several runs");
    folder.write(&cut, format!("{kept}\n"));

    let said = whole(&["@small.toml", "@other.toml"]);
    assert!(said.contains("small: ") && said.contains(" is of this commit"), "{said}");
    assert_eq!(folder.recorded(&small), before, "the run that was missing is there again");
    assert_ne!(
        folder.read(&cut).trim_end().rsplit_once('\n').expect("several runs").1,
        last,
        "measured anew"
    );
    let all = || fs::read_dir(folder.0.join("runs")).expect("made").count();
    assert_eq!(all(), 2, "of the other one there was none");
    let raw = folder.read(&cut);
    let said = whole(&["@small.toml", "@other.toml"]);
    assert!(said.contains("every run is recorded"), "{said}");
    assert_eq!((folder.read(&cut), all()), (raw, 2), "nothing is measured twice");

    folder.write("small.toml", SMALL.replace("flows = 20", "flows = 21"));
    let said = whole(&["@small.toml"]);
    assert!(said.contains("; small is measured anew"), "{said}");
    let said = whole(&["@small.toml"]);
    assert!(said.contains("every run is recorded"), "the newest is gone on with: {said}");
}
