//! Results of hyperfine and criterion.rs, in the forms their documentation gives, as a user compares them.

use std::fs;
use std::process::Output;

use serde_json::Value;
use weir_testing::folder::Folder;

use crate::common::program::{run, told};

/// What `hyperfine --export-json` writes of these commands.
fn hyperfine(commands: &[(&str, &[f64], &[i32])]) -> String {
    let one = |(command, times, codes): &(&str, &[f64], &[i32])| {
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        serde_json::json!({
            "command": command, "mean": mean, "stddev": 0.01, "median": mean, "user": 0.1, "system": 0.02,
            "min": times[0], "max": times[0], "times": times,
            "memory_usage_byte": times.iter().map(|_| 3_600_000).collect::<Vec<_>>(), "exit_codes": codes,
        })
    };
    serde_json::json!({ "results": commands.iter().map(one).collect::<Vec<_>>() }).to_string()
}

const OLD: [f64; 5] = [0.100, 0.102, 0.101, 0.099, 0.098];
const NEW: [f64; 5] = [0.120, 0.123, 0.121, 0.118, 0.118];

fn compare(folder: &Folder, arguments: &[&str]) -> Output {
    let paths: Vec<String> = arguments
        .iter()
        .map(|a| match a.starts_with("--") || a.parse::<f64>().is_ok() {
            true => a.to_string(),
            false => folder.0.join(a).display().to_string(),
        })
        .collect();
    let words = std::iter::once("compare").chain(paths.iter().map(String::as_str)).collect::<Vec<_>>();
    run(&words)
}

#[test]
fn files_of_hyperfine_are_compared_command_by_command() {
    let folder = Folder::new("hyperfine");
    let zeros = [0; 5];
    let old = hyperfine(&[("sort a", &OLD, &zeros), ("only old", &OLD, &zeros)]);
    let new = hyperfine(&[("sort a", &NEW, &zeros), ("only new", &OLD, &[0, 0, 1, 0, 2])]);
    fs::write(folder.0.join("old.json"), old).expect("space");
    fs::write(folder.0.join("new.json"), new).expect("space");
    let (ok, said, errors) = told(&compare(&folder, &["old.json", "new.json"]));
    assert!(ok, "{errors}");
    let said = said.replace(&folder.0.display().to_string(), "DIR");
    // t = 20/s, both variances known: 0.0001 is far above it; 120.0 ms / 100.0 ms is the ratio
    let expected = "reference  DIR/old.json\n\
        ! DIR/new.json: \"only new\": 2 of 5 runs failed\n\
        against    DIR/new.json\n\n";
    assert!(said.starts_with(expected), "{said}");
    let row = said.lines().find(|l| l.starts_with("sort a ")).expect("a row");
    let cells: Vec<&str> = row.split("  ").map(str::trim).filter(|c| !c.is_empty()).collect();
    assert_eq!(
        (cells[0], cells[1], cells[2], cells[6]),
        ("sort a", "100.0 ms", "120.0 ms", "slower"),
        "{row}"
    );
    assert!(cells[3].starts_with("1.200 [1.1") && cells[4] == "< 0.0001", "{row}");
    assert!(said.contains("not compared  only old: is in DIR/old.json alone"), "{said}");
    let failing = compare(&folder, &["--fail-if-worse", "old.json", "new.json"]);
    assert_eq!(failing.status.code(), Some(1));
    let faster = compare(&folder, &["--fail-if-worse", "new.json", "old.json"]);
    assert_eq!(faster.status.code(), Some(0));
}

#[test]
fn commands_of_one_file_are_compared_with_its_first() {
    let folder = Folder::new("hyperfine-one");
    let zeros = [0; 5];
    let near = OLD.map(|t| t * 1.0001);
    let all = hyperfine(&[("a", &OLD, &zeros), ("b", &NEW, &zeros), ("c", &near, &zeros)]);
    fs::write(folder.0.join("all.json"), all).expect("space");
    let output = compare(&folder, &["--json", "--margin", "20", "all.json"]);
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((document["tool"].as_str(), document["reference"].as_str()), (Some("hyperfine"), Some("a")));
    let rows = document["others"][0]["rows"].as_array().expect("rows");
    let verdicts: Vec<_> = rows.iter().map(|r| r["comparison"]["verdict"].as_str().expect("one")).collect();
    assert_eq!(verdicts, ["different", "equivalent"]);
    assert!((rows[0]["new"]["mean"].as_f64().expect("a mean") - 0.12).abs() < 1e-9, "{document:#}");
}

/// A measurement as criterion keeps it: nanoseconds of ever more iterations.
fn criterion(folder: &Folder, benchmark: &str, baseline: &str, ns: &[f64]) {
    let place = folder.0.join("criterion").join(benchmark.replace(' ', "_")).join(baseline);
    fs::create_dir_all(&place).expect("space");
    let iters: Vec<f64> = (1..=ns.len()).map(|n| (n * 100) as f64).collect();
    let times: Vec<f64> = iters.iter().zip(ns).map(|(n, ns)| n * ns).collect();
    let sample = serde_json::json!({"sampling_mode": "Linear", "iters": iters, "times": times});
    fs::write(place.join("sample.json"), sample.to_string()).expect("space");
    let named = serde_json::json!({
        "group_id": benchmark, "function_id": null, "value_str": null, "throughput": null,
        "full_id": benchmark, "directory_name": benchmark, "title": benchmark,
    });
    fs::write(place.join("benchmark.json"), named.to_string()).expect("space");
    fs::write(place.join("estimates.json"), "{}").expect("space");
}

#[test]
fn baselines_of_criterion_are_compared_by_the_full_name_of_each_benchmark() {
    let folder = Folder::new("criterion");
    criterion(&folder, "parse/short", "main", &[10.0, 10.1, 9.9, 10.05, 9.95]);
    criterion(&folder, "parse/short", "new", &[8.0, 8.1, 7.9, 8.05, 7.95]);
    criterion(&folder, "look up", "new", &[1e6; 5]);
    let (ok, said, errors) = told(&compare(&folder, &["criterion@main", "criterion"]));
    assert!(ok, "{errors}");
    let row = said.lines().find(|l| l.starts_with("parse/short ")).unwrap_or_else(|| panic!("{said}"));
    let cells: Vec<&str> = row.split("  ").map(str::trim).filter(|c| !c.is_empty()).collect();
    assert_eq!((cells[1], cells[2], cells[6]), ("10.00 ns", "8.000 ns", "faster"), "{row}");
    assert!(said.contains("not compared  look up: is in "), "{said}");
    let (ok, _, errors) = told(&compare(&folder, &["criterion@mian", "criterion"]));
    assert!(!ok && errors.contains("no benchmark has a measurement \"mian\""), "{errors}");
}

#[test]
fn what_cannot_be_compared_is_refused_with_the_remedy() {
    let folder = Folder::new("imports-refused");
    let zeros = [0; 5];
    let write = |name: &str, text: &str| fs::write(folder.0.join(name), text).expect("space");
    write("good.json", &hyperfine(&[("a", &OLD, &zeros)]));
    write("other.json", &hyperfine(&[("b", &OLD, &zeros)]));
    write("twice.json", &hyperfine(&[("a", &OLD, &zeros), ("a", &NEW, &zeros)]));
    write("bare.json", "{\"results\": [{\"command\": \"a\", \"mean\": 0.1}]}");
    write("zero.json", &hyperfine(&[("a", &[0.1, 0.0], &zeros)]));
    write("no.json", "[1]");
    criterion(&folder, "a", "new", &[1.0, 1.1]);
    for (arguments, expected) in [
        (["good.json", "twice.json"], "two benchmarks are called \"a\""),
        (["good.json", "bare.json"], "\"a\" has no times of single runs"),
        (["good.json", "zero.json"], "got a time of 0"),
        (["good.json", "no.json"], "expected what `hyperfine --export-json` or criterion writes"),
        (["good.json", "other.json"], "no benchmark is in two of them"),
        (["good.json", "criterion"], "results of several tools"),
        (["good.json", "nothing-there"], "results of several tools"),
        (["--ministat", "twice.json"], "two benchmarks are called"),
    ] {
        let (ok, _, errors) = told(&compare(&folder, &arguments));
        assert!(
            !ok && errors.contains(expected),
            "{arguments:?}\n  got      {errors}\n  expected {expected}"
        );
    }
    let (ok, _, errors) = told(&compare(&folder, &["good.json"]));
    assert!(!ok && errors.contains("no benchmark is in two of them"), "{errors}");
    let (ok, _, errors) = told(&compare(&folder, &["nothing-there"]));
    assert!(!ok && errors.contains("one campaign alone"), "{errors}");
}
