//! Searches as a user runs them: in memory, with smoke values, from file to report.

use crate::common::program::{run, text};
use weir_lab::result::Results;
use weir_testing::folder::Folder;

/// Runs an experiment with this `method` in memory; its results and its report.
fn measured(name: &str, method: &str) -> (Results, String, String) {
    let folder = Folder::new(name);
    let experiment = format!(
        "title = \"t\"\nquestion = \"q?\"\nruns = 2\nwarm_up = \"1ms\"\nwindow = \"10ms\"\n{method}\n\
         [[configuration]]\nname = \"sut\"\nflows = 20\nroutes = 10\n[quick]\nruns = 2\nwindow = \"10ms\"\n"
    );
    let (file, out) = (folder.write("search.toml", experiment), folder.at("out"));
    let output = run(&["run", &file, "--quick", "--seed", "1", "--out", &out]);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    let read = |file: &str| folder.read(&format!("out/{file}"));
    let results: Results = serde_json::from_str(&read("result.json")).expect("a result");
    assert_eq!((results.runs_measured, results.runs_failed), (2, 0), "{said}");
    (results, read("report.md"), said)
}

#[test]
fn a_search_for_ndr_and_pdr_is_reported_trial_by_trial() {
    let (results, report, said) = measured("ndr", "method = \"ndr-pdr\"");
    let searched = results.configurations[0].searched.as_ref().expect("searched");
    assert_eq!(searched.goals.iter().map(|g| g.name.as_str()).collect::<Vec<_>>(), ["ndr", "pdr"]);
    assert!(searched.goals.iter().all(|g| g.runs() == 2));
    let trials: usize = searched.steps.iter().map(|s| s.trials).sum();
    assert!(trials >= 2 * 2, "flat out and a first guess in each run, at least: {trials}");
    for heading in ["## NDR and PDR", "## Throughput against loss"] {
        assert!(report.contains(heading), "{heading} is missing");
    }
    assert!(said.contains("sut trial 1: ") && said.contains("· first guess"), "progress a trial: {said}");
}

#[test]
fn a_sweep_visits_every_rate_in_every_run() {
    let (results, report, _) =
        measured("sweep", "[method]\nkind = \"sweep\"\nrates = [2_000, 20_000, 200_000]");
    let searched = results.configurations[0].searched.as_ref().expect("searched");
    for rate in [2_000.0, 20_000.0, 200_000.0] {
        let step = searched.steps.iter().find(|s| s.offered_pps == rate);
        assert!(step.is_some_and(|s| s.trials >= 2), "{rate} pps in both runs");
    }
    assert!(!report.contains("## NDR and PDR"), "a sweep has no goals");
}

#[test]
fn an_equilibrium_is_a_value_in_megabits() {
    let (results, _, said) = measured("equilibrium", "[method]\nkind = \"equilibrium\"\nline_mbps = 40");
    assert_eq!(results.metric.0, "equilibrium_mbps");
    assert!(results.configurations[0].values.iter().all(|f| (0.0..=41.0).contains(f)));
    assert!(said.contains("Estimated Equilibrium Ethernet throughput= "), "{said}");
}
