//! Builds of the lab against each other: each in a process of its own, and one that is not there is named.

use std::process::Output;

use crate::common::program::{run, text};
use weir_testing::folder::Folder;

/// The campaign of an experiment with these configurations, in `out` of the folder.
fn measure(folder: &Folder, configurations: &str) -> Output {
    let head = "title = \"t\"\nquestion = \"q\"\nruns = 2\nwarm_up = \"1ms\"\nwindow = \"5ms\"\n\
                [defaults]\nflows = 10\nroutes = 4\n";
    let file = folder.write("x.toml", format!("{head}{configurations}"));
    run(&["run", &file, "--out", &folder.at("out")])
}

#[test]
fn a_build_runs_in_a_process_of_its_own_and_says_what_is_in_it() {
    let folder = Folder::new("builds-own");
    let output = measure(
        &folder,
        "[[configuration]]\nname = \"own\"\nbuild = \"default\"\n[[configuration]]\nname = \"beside\"\n\
         build = \"default\"\nipsec = { mode = \"route\", direction = \"out\", cipher = \"aes-gcm-128\" }\n",
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    let result = folder.read("out/result.json");
    let result: serde_json::Value = serde_json::from_str(&result).expect("JSON");
    assert_eq!(result["runs_measured"], 4, "{result}");
    for configuration in result["configurations"].as_array().expect("two") {
        let notes = configuration["notes"].to_string();
        assert!(notes.contains("in a process of its own, build default, features: "), "{notes}");
        assert_eq!(configuration["unaccounted"], 0);
    }
    let manifest = folder.read("out/manifest.json");
    assert!(manifest.contains("weir-lab of build default"), "{manifest}");
}

#[test]
fn a_build_that_is_not_there_is_skipped_with_the_remedy() {
    let folder = Folder::new("builds-none");
    let output = measure(&folder, "[[configuration]]\nname = \"none\"\nbuild = \"no-such\"\n");
    let said = text(&output.stderr);
    assert!(said.contains("build no-such: there is no weir-lab in target/no-such"), "{said}");
    assert!(said.contains("make build-no-such"), "{said}");
    let report = folder.read("out/report.md");
    assert!(report.contains("no-such"), "{report}");
}
