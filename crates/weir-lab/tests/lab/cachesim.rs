//! The simulated cache, on the program itself.

use std::io::Write;

use crate::common::program::{lab, told};
use weir_lab::cachesim::{self, PerPacket};
use weir_testing::folder::Folder;

const LAB: &str = r#"
title = "Two tables"
question = "Does a table that does not fit miss more?"
metric = "pps"
runs = 3
warm_up = "1ms"
window = "10ms"
margin_percent = 5

[[configuration]]
name = "flows-{flows}"
routes = 2
flows = [16, 4096]
frame = 64
"#;

fn run(folder: &Folder, more: &[&str]) -> (bool, String, String) {
    let file = folder.write("two-tables.toml", LAB);
    told(&lab().args(["profile", "cachesim"]).arg(file).args(more).output().expect("the program starts"))
}

#[test]
fn flows_that_do_not_fit_the_first_level_miss_it() {
    if let Err(lacks) = cachesim::valgrind() {
        let _ = writeln!(std::io::stderr(), "SKIP flows_that_do_not_fit_the_first_level_miss_it: {lacks}");
        return;
    }
    let folder = Folder::new("cachesim");
    // 16 templates of 64 bytes fit into 32 KiB, 4096 do not
    let arguments = ["--packets", "4096", "--d1", "32768,8,64", "--ll", "4194304,16,64", "--json"];
    let (done, json, said) = run(&folder, &arguments);
    assert!(done, "{said}");
    let all: Vec<PerPacket> = serde_json::from_str(&json).expect("json");
    let [few, many] = all.as_slice() else { panic!("two configurations: {json}") };
    assert!(few.instructions > 50.0 && few.data_references > 10.0, "{few:?}");
    assert!(many.d1_misses > few.d1_misses + 0.9, "a template a packet is fetched: {few:?} {many:?}");
    assert!(many.caches.iter().any(|c| c.contains("32768 B, 64 B, 8-way")), "{many:?}");
}

#[test]
fn the_inside_passes_packets_without_valgrind() {
    let folder = Folder::new("cachesim-inside");
    let (done, out, said) = run(&folder, &["--inside", "flows-16", "--packets", "500"]);
    assert!(done && out.is_empty(), "{said}");
    let (done, _, said) = run(&folder, &["--inside", "flows-17", "--packets", "500"]);
    assert!(!done && said.contains("flows-17: no configuration of that name"), "{said}");
}
