//! What operators may write, at smoke length: other inputs in each run.

use std::path::Path;

use weir::fuzz::FUZZ_TARGETS;
use weir_testing::fuzz::{Smoke, assert_targets, inputs};

/// Inputs a target gets: some seconds, unoptimised.
const INPUTS: usize = 5_000;

/// The examples, whole and table by table: a whole one that is changed is hardly ever a whole one.
fn examples() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).expect("examples/").map(|entry| entry.expect("readable").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "toml"));
    paths.sort();
    let mut seeds = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(path).expect("an example");
        let bare: Vec<&str> = text.lines().map(|line| line.split(" #").next().unwrap_or(line)).collect();
        let bare = bare.into_iter().filter(|line| !line.starts_with('#') && !line.is_empty());
        let text = bare.map(|line| format!("{}\n", line.trim_end())).collect::<String>();
        seeds.extend(
            text.split("\n[").map(|table| format!("[{}\n", table.trim_start_matches('[')).into_bytes()),
        );
        seeds.push(text.into_bytes());
    }
    seeds
}

fn seeds() -> Vec<Vec<u8>> {
    let texts = [
        "lan = \"000102030405060708090a0b0c0d0e0f10111213\"\nwan-in = \"00:01 02-03\"\n",
        "GET\n/v1/routes\nfor=10.1.0.1&from=2&limit=7\n",
        "GET\n/v1/sa\nmatch=w%C3%A4n&from=1&limit=all\n",
        "POST\n/v1/apply\ndry-run&file=a.toml&folder=/etc/weir\nname = \"x\"\n",
        "POST\n/v1/trace\n\n{\"port\": \"lan\", \"frame\": \"00 01 02ff\"}",
        "POST\n/v1/capture\n\n{\"reasons\": [\"no_route\"], \"rate\": 7, \"snap\": 60, \"end\": true}",
        "POST\n/v1/drain\n\n",
        r#"{"spd": "wan", "changes": [{"add": {"policy": {"name": "x", "action": "bypass"}, "before": "b"}}]}"#,
        r#"{"spd": "wan", "changes": [{"remove": {"name": "a"}}, {"replace": {"policy": {"name": "b",
            "protocol": "udp", "local_ports": [1, 2], "action": "discard"}}}]}"#,
        r#"{"spd": "wan", "changes": [{"add": {"policy": {"name": "p", "protocol": "icmp", "icmp": {"type": 8},
            "local": ["10.0.0.0/8", "fd00::/8"], "action": "bypass"}, "at": 2}}, {"remove": {"name": "p"}}]}"#,
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).chain(examples()).collect()
}

#[test]
fn nothing_that_is_written_is_fatal_or_taken_for_something_else() {
    Smoke { targets: FUZZ_TARGETS, seeds: seeds(), longest: 4096, inputs: inputs(INPUTS) }.run();
}

#[test]
fn every_fuzz_function_has_a_target_in_the_fuzz_workspace() {
    assert_targets(&[FUZZ_TARGETS], &[]);
}
