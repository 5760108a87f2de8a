//! The shipped experiments of IPsec run as they are, with their smoke values.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use crate::common::program::{run, text};
use weir_lab::result::{Outcome, Results};
use weir_testing::folder::Folder;

fn measured(lab: &str) -> (Folder, Results) {
    only(lab, &["*"])
}

fn only(lab: &str, patterns: &[&str]) -> (Folder, Results) {
    let folder = Folder::absent(lab);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../labs/{lab}.toml"));
    let (file, out) = (file.to_string_lossy(), folder.0.to_string_lossy());
    let fixed = ["run", &file, "--quick", "--seed", "1", "--out", &out, "--only"];
    let output = run(&[&fixed, patterns].concat());
    assert!(output.status.success(), "{lab}: {}", text(&output.stderr));
    let results: Results = serde_json::from_str(&folder.read("result.json")).expect("a result");
    assert_eq!((results.runs_failed, results.runs_missing), (0, 0), "{lab}");
    assert!(results.configurations.iter().all(|o| o.unaccounted == 0 && o.ledger.drops.is_empty()), "{lab}");
    (folder, results)
}

#[test]
fn ciphers_have_their_plot_and_stand_beside_the_cipher_alone() {
    let (folder, results) = only("question-ciphers", &["*-policy", "*-route"]); // gateways need root
    assert_eq!(results.configurations.len(), 42, "21 ciphers, two modes");
    // policies against tunnels, and each cipher with the one that protects nothing
    assert_eq!((results.comparisons.len(), results.metric.0.as_str()), (21 + 20, "mbps"));
    for outcome in &results.configurations {
        let further = |name: &str| outcome.further[name].median;
        let (pps, aead) = (outcome.pps.expect("measured").median, further("aead_pps"));
        assert!(further("verified_packets") > 0.0, "{}", outcome.configuration.name);
        assert!(pps > 0.0 && aead > 0.0);
        // 542 bytes of plain frame, as the field counts them
        let mbps = outcome.summary.expect("measured").median;
        assert!((mbps / (pps * 542.0 * 8.0 / 1e6) - 1.0).abs() < 1e-9, "{mbps} {pps}");
    }
    let (page, report) = (folder.read("report.html"), folder.read("report.md"));
    assert!(page.contains("megabits delivered a second by cipher, in memory"), "no plot by cipher");
    assert!(page.contains("95 % interval of the mean"), "no intervals");
    assert!(report.contains("| aes-cbc-256+hmac-sha1-96 | "), "no row a cipher in the answer");
    assert!(report.contains("## Beside the cipher alone") && page.contains("Beside the cipher alone"));
}

#[test]
fn sizes_modes_and_policies_run_in_both_directions() {
    for lab in ["ipsec-sizes", "ipsec-modes", "ipsec-policies", "ipsec-one-sa"] {
        let (_, results) = measured(lab);
        for way in ["out", "in"] {
            let named = |o: &&Outcome| o.configuration.name.contains(way);
            assert!(results.configurations.iter().any(|o| named(&o)), "{lab}: {way}");
        }
        assert!(!results.comparisons.is_empty(), "{lab}");
    }
}

/// A mean of slices, each of which is 100 to the last bit or nearly.
fn assert_all(percent: f64, what: &str) {
    assert!((percent - 100.0).abs() < 1e-9, "{what}: {percent}");
}

#[test]
fn unused_ipsec_is_measured_in_processes_and_the_build_without_is_named_if_it_is_not_there() {
    let (folder, results) = measured("question-unused-ipsec");
    let beside = results.outcome("spd-inet").expect("it ran");
    assert_all(beside.further["spd_outside_percent"].median, "every packet asks, and none is any rule's");
    assert!(beside.notes.iter().any(|n| n.contains("in a process of its own")), "{:?}", beside.notes);
    let without = results.skipped.iter().find(|s| s.configuration == "without-inet");
    match without {
        Some(skipped) => assert!(skipped.reason.contains("make build-without-ipsec"), "{skipped:?}"),
        None => assert!(folder.read("report.md").contains("features: none")),
    }
}

#[test]
fn depth_of_the_match_has_its_table_and_every_lookup_answers() {
    let (folder, results) = measured("spd-depth");
    assert_eq!(results.configurations.len(), 90, "five ways, three lookups, six indexes");
    let report = folder.read("report.md");
    for said in [
        "**null, in then bypass, inet, 94 B**",
        "**aes-gcm-128, out, inet, 94 B**",
        "With the cache, index 1000",
    ] {
        assert!(report.contains(said), "{said}\n{report}");
    }
    let share = |name: &str, who: &str| {
        let outcome = results.outcome(name).expect("it ran");
        outcome.further.get(&format!("spd_{who}_percent")).map_or(0.0, |s| s.median)
    };
    let all = |name: &str, who: &str| assert_all(share(name, who), &format!("{name}: {who}"));
    all("null-in-linear-1000", "scanned");
    all("null-in-classifier-1000", "classified");
    assert!(share("gcm-out-cache-1000", "hit") > 0.0, "twenty flows in 4,096 buckets");
}

#[test]
fn both_directions_and_families_have_their_table_of_the_published_indexes() {
    let (folder, results) = measured("question-spd");
    assert_eq!(results.configurations.len(), 48, "two directions, two families, three lookups, four indexes");
    let report = folder.read("report.md");
    assert_eq!(report.matches("| index | baseline | optimised | classifier |").count(), 4, "{report}");
    assert!(report.contains("**With the flow cache, index 1000 against index 2: IPv4 in "), "{report}");
}

#[test]
fn flows_churn_and_attacks_run_in_both_families_and_lose_nothing() {
    let (_, flows) = measured("spd-flows");
    assert!(flows.configurations.iter().any(|o| o.configuration.workload.flows == 1 << 22));
    let (_, churn) = measured("spd-churn");
    let changed = churn.outcome("inet6-in-100").expect("it ran");
    assert!(changed.further.contains_key("updates"), "{:?}", changed.further);
    let (folder, attack) = measured("spd-attack");
    assert_eq!(attack.configurations.len(), 36);
    assert!(folder.read("report.md").contains("## SPD lookup sources"));
}

/// In the second kernel, which takes SAs of ESP whatever the machine's own does; speed means nothing there.
#[test]
fn strongswans_keys_carry_tcp_and_udp_by_weirs_esp_its_own_and_the_kernels_in_the_second_kernel() {
    let test = "strongswans_keys_carry_tcp_and_udp_by_weirs_esp_its_own_and_the_kernels_in_the_second_kernel";
    let folder = Folder::absent(test);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let lab = std::fs::read_to_string(root.join("labs/ipsec-strongswan-keys.toml")).expect("it is there");
    // That kernel has no sockets of AF_XDP.
    let lab = lab.replace("\nflows = 4\n", "\nflows = 4\nport = \"af_packet\"\n");
    let file = folder.0.with_extension("toml");
    std::fs::write(&file, &lab).expect("written");
    let mut there = Command::new(root.join("scripts/second-kernel"));
    there.arg(env!("CARGO_BIN_EXE_weir-lab")).arg("run").arg(&file);
    there.arg("--out").arg(&folder.0).args(["--quick", "--seed", "1", "--only", "*-tcp", "*-udp-2000pps"]);
    let output = there.output().expect("a shell");
    std::fs::remove_file(&file).expect("it was written");
    let said = text(&output.stdout) + &text(&output.stderr);
    let lacks = |line: &&str| {
        ["SKIP", "build it: cargo build", "is not there: "].iter().any(|lack| line.contains(lack))
    };
    if let Some(lack) = said.lines().find(lacks) {
        let _ = writeln!(std::io::stderr(), "SKIP {test}: {lack}");
        return;
    }
    assert!(output.status.success(), "{said}");
    let results: Results = serde_json::from_str(&folder.read("result.json")).expect("a result");
    assert_eq!((results.runs_failed, results.runs_missing), (0, 0), "{said}");
    for sut in ["strongswan", "weir-strongswan", "weir", "strongswan-kernel", "kernel-xfrm"] {
        for load in ["tcp", "udp-2000pps"] {
            let name = format!("{sut}-{load}");
            let outcome = results.outcome(&name).unwrap_or_else(|| panic!("{name}: {said}"));
            assert!(outcome.summary.as_ref().is_some_and(|mbps| mbps.median > 0.0), "{name}: {said}");
        }
    }
}
