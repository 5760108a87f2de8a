//! Refusals carry as data what their sentences say.

use super::*;
use crate::experiment::Experiment;
use crate::model::Invalid;

fn refused(text: &str) -> Refused {
    Experiment::read("x", "x.toml", text, false).expect_err("refused")
}

const HEAD: &str = "title = \"t\"\nquestion = \"q\"\nruns = 2\nwarm_up = \"10ms\"\nwindow = \"100ms\"\n";

#[test]
fn a_refusal_names_file_line_column_key_and_remedy_as_data_and_as_a_sentence() {
    let found = refused(&format!("{HEAD}[[configuration]]\nname = \"a\"\nwake_up = \"busy-poll\"\n"));
    let location = found.location.clone().expect("it stands in the file");
    assert_eq!(
        (location.file.as_str(), location.position),
        ("x.toml", Some(Position { line: 6, column: 1 }))
    );
    let named = ExperimentError::Configuration {
        name: Some("a".into()),
        error: ConfigurationError::Invalid(Invalid::NoDevices),
    };
    assert_eq!(*found.error, named);
    assert_eq!(found.error.key().as_deref(), Some("configuration a"));
    assert_eq!(found.error.remedy().as_deref(), Some("remove them"));
    assert_eq!(
        found.to_string(),
        "x.toml:6:1: configuration a: `queues`, `wake_up`, `zero_copy`, `xdp`, `flow_offload`, `live_transmit`, `irq`, `nice` and `moderation` are of the topologies netns and ssh: remove them"
    );
}

#[test]
fn sentences_begin_with_the_key_once() {
    let [rounds, pairs] = ["analysis = \"rounds\"\n", "reference = \"z\"\n"]
        .map(|keys| refused(&format!("{HEAD}{keys}[[configuration]]\n")));
    assert_eq!(
        rounds.error.to_string(),
        "analysis = \"rounds\" compares slices, and runs are whole: give it `slices`"
    );
    assert_eq!(rounds.error.key().as_deref(), Some("analysis"));
    assert_eq!(pairs.to_string(), "x.toml:6:13: no configuration is named \"z\"; there are weir");
    assert_eq!(pairs.error.key().as_deref(), Some("reference"));
}

#[test]
fn a_text_that_is_no_toml_has_no_key_and_points_at_the_documentation() {
    let found = refused("[[configuration\n");
    assert_eq!(found.error.key(), None);
    assert!(found.to_string().starts_with("x.toml:1:"), "{found}");
    assert!(found.to_string().ends_with("; docs/experiments.md describes every key"), "{found}");
}
