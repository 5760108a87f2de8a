//! The A/A control at small size: its structure and what it says. Whether values differ is the machine's
//! business; that identical things are called different in one campaign of twenty is simulated elsewhere.

use std::fs;

use weir_lab::campaign::{self, CampaignSpec};
use weir_lab::diagnostic::Kind;
use weir_lab::experiment::{Changes, Experiment};
use weir_lab::result::{Results, derive};
use weir_stats::Verdict;
use weir_testing::folder::Folder;

const BODY: &str = "\
title = \"Control\"
question = \"Does the lab tell identical things apart?\"
runs = 5
warm_up = \"1ms\"
window = \"4ms\"
baseline = true
analysis = \"paired\"
[[configuration]]
family = [\"inet\", \"inet6\"]
flows = 20
routes = 10
";

fn measured(folder: &Folder) -> Results {
    let changes = Changes { control: true, ..Changes::default() };
    let experiment = Experiment::parse("control", "control.toml", BODY, &changes).expect("valid");
    let argv = vec!["weir-lab".into()];
    let plan = CampaignSpec {
        experiment,
        seed: 3,
        dir: &folder.0,
        argv,
        repeats: None,
        stop: &false.into(),
        whole: None,
    };
    campaign::run(plan).expect("memory needs nothing").results
}

#[test]
fn the_reference_runs_twice_a_block_and_is_compared_with_itself() {
    let folder = Folder::absent("twice");
    let results = measured(&folder);
    let names: Vec<&str> = results.configurations.iter().map(|o| o.configuration.name.as_str()).collect();
    assert_eq!(names, ["inet", "inet6", "inet~again", "baseline-inet", "baseline-inet6"]);
    let (own, again) = (results.outcome("inet").expect("ran"), results.outcome("inet~again").expect("ran"));
    assert_eq!((&own.blocks, own.blocks.len()), (&again.blocks, 5));
    assert_ne!(own.order, again.order, "two runs a block, not one counted twice");
    let mut renamed = again.configuration.clone();
    renamed.name = "inet".into();
    assert_eq!(renamed, own.configuration, "identical but for the name");

    let [control] = results.controls.as_slice() else { panic!("{:?}", results.controls) };
    assert_eq!((control.reference.as_str(), control.other.as_str()), ("inet", "inet~again"));
    assert_eq!(control.paired.as_ref().expect("shared blocks").blocks, 5);
    assert!(control.detectable_percent.expect("spread") > 0.0);
    let pairs: Vec<&str> = results.comparisons.iter().map(|c| c.other.as_str()).collect();
    assert_eq!(pairs, ["inet6"], "a control takes no share of the error of the pairs");
}

#[test]
fn both_reports_say_what_identical_things_differ_by_and_warn_of_what_they_must() {
    let folder = Folder::absent("said");
    let results = measured(&folder);
    let differs = results.controls[0].verdict == Verdict::Different;
    let warned = results.warnings.iter().any(|w| w.kind == Kind::ControlDiffers);
    assert_eq!(differs, warned);
    for (report, heading) in [("report.md", "## Control"), ("report.html", "<h2>Control</h2>")] {
        let text = fs::read_to_string(folder.0.join(report)).expect("written");
        assert!(text.contains(heading) && text.contains("Between identical things"), "{report}");
    }
    let (_, derived) = derive(&folder.0).expect("a campaign");
    assert!(derived == results, "derived again, the results differ");
}

#[test]
fn a_control_that_differs_from_itself_is_warned_about_with_its_size() {
    let folder = Folder::absent("differs");
    measured(&folder);
    // the second of the two runs a block, made three times as fast
    let raw = folder.0.join("raw/inet~again.jsonl");
    let own = fs::read_to_string(folder.0.join("raw/inet.jsonl")).expect("written");
    let value = |line: &str| -> f64 {
        let run: serde_json::Value = serde_json::from_str(line).expect("a run");
        run["sample"]["pps"].as_f64().expect("measured")
    };
    let again = fs::read_to_string(&raw).expect("written");
    let faster: String = again
        .lines()
        .zip(own.lines())
        .enumerate()
        .map(|(i, (line, own))| {
            let mut run: serde_json::Value = serde_json::from_str(line).expect("a run");
            run["sample"]["pps"] = (value(own) * (3.0 + 0.01 * i as f64)).into();
            format!("{run}\n")
        })
        .collect();
    fs::write(&raw, faster).expect("space");
    let (_, results) = derive(&folder.0).expect("a campaign");
    let found = results.warnings.iter().find(|w| w.kind == Kind::ControlDiffers).expect("said");
    assert_eq!(found.subject, ["inet"]);
    let value = |key: &str| found.data[key].as_f64().expect("a number");
    let (percent, p) = (value("percent"), value("p"));
    assert!((percent - 202.0).abs() < 1.0 && p < 1e-4, "{percent} {p}");
}
