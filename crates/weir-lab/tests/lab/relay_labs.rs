//! The shipped experiments of relays run as they are, with their smoke values, as far as the machine has what they
//! need; what it has not is skipped by name.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use crate::common::program::{run, text};
use weir_lab::result::Results;
use weir_testing::folder::Folder;

/// Runs a lab's configurations that match; `None` when nothing of it can run here.
fn measured(test: &str, lab: &str, only: &str) -> Option<(Folder, Results)> {
    let folder = Folder::absent(test);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../labs/{lab}.toml"));
    let (file, out) = (file.to_string_lossy(), folder.0.to_string_lossy());
    let output = run(&["run", &file, "--quick", "--seed", "1", "--out", &out, "--only", only]);
    let said = text(&output.stderr);
    let result = std::fs::read_to_string(folder.0.join("result.json"));
    let Ok(result) = result else {
        let lacks = ["run as root", "no such program", "has no TLS", "install Debian's valgrind"];
        assert!(lacks.iter().any(|lack| said.contains(lack)), "{lab}: {said}");
        let _ = writeln!(std::io::stderr(), "SKIP {test}: {}", said.lines().last().unwrap_or_default());
        return None;
    };
    assert!(output.status.success(), "{lab}: {said}");
    let results: Results = serde_json::from_str(&result).expect("a result");
    assert_eq!((results.runs_failed, results.runs_missing), (0, 0), "{lab}: {said}");
    if !results.skipped.is_empty() {
        let absent = results.skipped.iter().find(|skipped| skipped.reason.contains("no such program"));
        let absent = absent.unwrap_or_else(|| panic!("{lab}: {said}"));
        let _ = writeln!(std::io::stderr(), "SKIP {test}: {}", absent.reason);
        return None;
    }
    Some((folder, results))
}

#[test]
fn derper_is_measured_beside_the_generator_alone() {
    let test = "derper_is_measured_beside_the_generator_alone";
    let Some((folder, results)) = measured(test, "relay", "derper-*-closed-10") else { return };
    for tls in ["off", "user"] {
        let derper = results.outcome(&format!("derper-{tls}-closed-10")).expect("it ran");
        assert!(derper.summary.is_some_and(|mbps| mbps.median > 0.0), "{derper:?}");
        assert!(derper.baseline_share.is_some_and(|share| share > 0.0));
        assert_eq!(derper.further["corrupted_packets"].median, 0.0);
        assert!(derper.latency_ns.contains_key("p99"));
    }
    let (report, page) = (folder.read("report.md"), folder.read("report.html"));
    assert!(report.contains("## Relays") && report.contains("CPU s/GB"), "{report}");
    assert!(page.contains("CPU s/GB"));
}

#[test]
fn silent_clients_and_those_that_leave_have_values_of_their_own() {
    let test = "silent_clients_and_those_that_leave_have_values_of_their_own";
    for (lab, value) in [("relay-idle", "memory_bytes_per_client"), ("relay-connects", "connects_per_second")]
    {
        let Some((_, results)) = measured(&format!("{test}-{lab}"), lab, "derper-*") else { return };
        assert_eq!(results.metric.0, value);
        for outcome in &results.configurations {
            assert!(outcome.summary.is_some(), "{lab}: {}", outcome.configuration.name);
        }
    }
}

#[test]
fn a_sweep_has_every_rate_in_its_trials() {
    let Some((_, results)) = measured("a_sweep_has_every_rate_in_its_trials", "relay-rates", "derper-off")
    else {
        return;
    };
    let searched = results.outcome("derper-off").and_then(|o| o.searched.as_ref()).expect("a sweep");
    assert!(!format!("{searched:?}").is_empty());
}

#[test]
fn caches_of_a_relay_are_simulated_packet_by_packet() {
    let test = "caches_of_a_relay_are_simulated_packet_by_packet";
    let Some((folder, results)) = measured(test, "question-relay", "weir-simulated-1") else { return };
    let outcome = results.outcome("weir-simulated-1").expect("it ran");
    let value = |name: &str| outcome.further[&format!("simulated_{name}_per_packet")].median;
    // A packet is received, looked up and sent: not in fewer, and not with a miss at every reference.
    assert!(value("instructions") > 50.0 && value("data_references") > 20.0, "{outcome:?}");
    assert!(value("d1_misses") < value("data_references"), "{outcome:?}");
    assert!(outcome.summary.is_none(), "a simulation carries nothing a second");
    assert!(folder.read("report.md").contains("Simulated (callgrind)"));
}

#[test]
fn kernel_tls_carries_packets_beside_the_other_ways_in_the_second_kernel() {
    let test = "kernel_tls_carries_packets_beside_the_other_ways_in_the_second_kernel";
    let folder = Folder::absent(test);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let file = root.join("labs/relay-ktls.toml");
    let mut there = Command::new(root.join("scripts/second-kernel"));
    there.arg(env!("CARGO_BIN_EXE_weir-lab")).arg("run").arg(file).arg("--out").arg(&folder.0);
    there.args(["--quick", "--seed", "1", "--only", "off-10", "user-10", "kernel-10"]);
    let output = there.output().expect("a shell");
    let said = text(&output.stdout) + &text(&output.stderr);
    let lack = said.lines().find(|l| l.contains("SKIP") || l.contains("build it: cargo build"));
    if let Some(lack) = lack {
        let _ = writeln!(std::io::stderr(), "SKIP {test}: {lack}");
        return;
    }
    assert!(output.status.success(), "{said}");
    let results: Results = serde_json::from_str(&folder.read("result.json")).expect("a result");
    for tls in ["off", "user", "kernel"] {
        let outcome = results.outcome(&format!("{tls}-10")).expect("it ran");
        assert!(outcome.summary.as_ref().is_some_and(|mbps| mbps.median > 0.0), "{tls}: {said}");
        assert_eq!(outcome.further["corrupted_packets"].median, 0.0, "{tls}");
    }
}
