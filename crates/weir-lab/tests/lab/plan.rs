//! `weir-lab plan` as a user runs it: a pilot's files in, runs and time out.

use std::path::Path;

use crate::common::program::{run, text};
use weir_testing::folder::Folder;

#[test]
fn a_campaign_is_planned_paired_and_unpaired_with_the_time_it_takes() {
    let folder = Folder::new("campaign");
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../labs/demo.toml");
    let out = folder.at("pilot");
    let shipped = shipped.to_string_lossy();
    let pilot = run(&["run", &shipped, "--quick", "--seed", "1", "--out", &out, "--only", "memory-*"]);
    assert!(pilot.status.success(), "{}", text(&pilot.stderr));
    let plan = run(&["plan", &out, "--effect", "3", "--configurations", "5", "--json"]);
    assert!(plan.status.success(), "{}", text(&plan.stderr));
    let json: serde_json::Value = serde_json::from_slice(&plan.stdout).expect("JSON");
    assert_eq!((&json["configurations"], &json["comparisons"]), (&5.into(), &4.into()));
    assert_eq!(json["pilot"]["blocks"], 3);
    assert!(
        json["pilot"]["within_blocks"]["upper_percent"].as_f64()
            > json["pilot"]["within_blocks"]["percent"].as_f64()
    );
    assert!(json["seconds_a_run"].as_f64().expect("six runs") > 0.0);
    assert!(json["advice"]["effect_percent"] == 3.0 && json["advice"]["analysis"].is_string());
    let said = text(&run(&["plan", &out]).stdout);
    assert!(
        said.contains("within a block") && said.contains("declare `analysis = ")
            || said.contains("out of reach"),
        "{said}"
    );
}

#[test]
fn runs_that_are_measured_in_slices_take_their_time_too() {
    let folder = Folder::new("sliced");
    let experiment =
        crate::common::program::SMALL.replace("window = \"5ms\"", "window = \"20ms\"\nslices = 4");
    let file = folder.write("x.toml", experiment.replace("baseline = true\n", ""));
    let out = folder.at("pilot");
    let pilot = run(&["run", &file, "--seed", "1", "--out", &out]);
    assert!(pilot.status.success(), "{}", text(&pilot.stderr));
    let plan = run(&["plan", &out, "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&plan.stdout).expect("JSON");
    // At least its window; the runs of a block begin together.
    assert!(json["seconds_a_run"].as_f64().expect("six runs") >= 0.02, "{json}");
}

#[test]
fn files_of_values_are_planned_without_pairing() {
    let folder = Folder::new("files");
    let a = folder.write("a.pps", "100\n101\n99\n100\n102\n98\n");
    let b = folder.write("b.pps", "# later\n200\n202\n198\n201\n199\n");
    let plan = run(&["plan", &a, &b]);
    let said = text(&plan.stdout);
    // deviations of 1.414 % and 0.791 % pool to 1.18 %; power.t.test(delta = 1, sd = 1.1803): n = 22.9
    assert!(said.contains("of a run      1.18 %"), "{said}");
    assert!(said.lines().any(|l| l.starts_with("1 %") && l.contains(" 23 ")), "{said}");
    assert!(said.contains("pairing is not planned"), "{said}");
}

#[test]
fn what_is_no_pilot_is_refused_with_the_remedy() {
    let folder = Folder::new("refused");
    let single = folder.write("single.pps", "100\n");
    let words = folder.write("words.pps", "100\nmany\n");
    let cases = [
        (vec!["plan", &single], "run a pilot of five"),
        (vec!["plan", &words], "words.pps:2: got \"many\", expected a value a line"),
        (vec!["plan", "/nonexistent/x"], "name a campaign's folder or a file of values"),
        (vec!["plan", &single, "--effect", "100"], "expected a number above 0 and below 100"),
    ];
    for (arguments, expected) in cases {
        let output = run(&arguments);
        assert!(
            !output.status.success() && text(&output.stderr).contains(expected),
            "{}",
            text(&output.stderr)
        );
    }
    let folder_of_values = folder.at("");
    let output = run(&["plan", &folder_of_values, &single]);
    assert!(text(&output.stderr).contains("plan from one at a time"), "{}", text(&output.stderr));
}
