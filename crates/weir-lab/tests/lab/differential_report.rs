//! A campaign with profiles says in its reports what changed between the configurations it compares.

use std::io::Write;

use crate::common::program::{run, told};
use weir_io::perf_event::{Sampler, Target, Wish, own_thread};
use weir_testing::folder::Folder;

const LAB: &str = r#"
title = "Two families"
question = "What does IPv6 cost?"
metric = "pps"
runs = 2
warm_up = "20ms"
window = "150ms"
margin_percent = 5
profile = 2
pairs = [["memory-inet", "memory-inet6"]]

[[configuration]]
name = "memory-{family}"
topology = "memory"
family = ["inet", "inet6"]
routes = 10
flows = 16
frame = 64
"#;

fn lab(arguments: &[&str]) -> (bool, String, String) {
    told(&run(arguments))
}

#[test]
fn what_changed_between_a_compared_pair_is_in_both_reports_and_comes_again_by_command() {
    let name = "what_changed_between_a_compared_pair_is_in_both_reports";
    if let Err(e) =
        Sampler::start(&Target::Threads(vec![own_thread()]), Wish { frequency_hz: 97, stack_bytes: 0 })
    {
        let _ = writeln!(std::io::stderr(), "SKIP {name}: {e}");
        return;
    }
    let folder = Folder::new("differential");
    let (file, out) = (folder.write("x.toml", LAB), folder.0.join("out"));
    let shown = folder.at("out");
    let (done, _, said) = lab(&["run", &file, "--out", &shown]);
    assert!(done, "{said}");
    let read = |name: &str| std::fs::read_to_string(out.join(name)).expect("written");
    let (markdown, html) = (read("report.md"), read("report.html"));
    for expected in ["What changed: memory-inet6 against memory-inet", "reconciliation: ", "2 recordings"] {
        assert!(markdown.contains(expected), "{expected}\n{markdown}");
        assert!(html.contains(expected), "{expected}");
    }
    assert!(markdown.contains("| kind of work, % | memory-inet | memory-inet6 |"), "{markdown}");
    assert!(html.contains("framed new"), "the differential flame graph is there");
    let profile = |name: &str, n: usize| out.join(format!("raw/{name}.{n}.folded")).display().to_string();
    let (before, after) = (profile("memory-inet", 1), profile("memory-inet6", 1));
    let picture = folder.at("x.svg");
    let (done, table, said) = lab(&["profile", "diff", &before, "--against", &after, "--svg", &picture]);
    assert!(done && table.contains("ns a packet") && table.contains("unexplained"), "{said}{table}");
    assert!(std::fs::read_to_string(&picture).expect("drawn").starts_with("<svg xmlns"));
    let (done, table, said) = lab(&["profile", "breakdown", &before]);
    assert!(done && table.contains("relay/user code"), "{said}{table}");
    let (done, _, said) = lab(&["profile", "flame", &before, "-o", &picture]);
    assert!(done && std::fs::read_to_string(&picture).expect("drawn").contains("class=\"flame\""), "{said}");
}
