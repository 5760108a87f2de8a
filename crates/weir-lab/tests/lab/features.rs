//! docs/features.md claims nothing without a test: each *yes* of the lab's own column links to tests that
//! exist under the name they are given.

use std::fs;
use std::path::{Path, PathBuf};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// The cells of each row of every table, heading and rule lines left out.
fn rows(text: &str) -> Vec<Vec<String>> {
    let row = |line: &str| -> Vec<String> {
        line.trim().trim_matches('|').split('|').map(|cell| cell.trim().to_string()).collect()
    };
    let lines: Vec<&str> = text.lines().collect();
    let ruled = |i: usize| lines.get(i).is_some_and(|l| l.starts_with("|---") || l.starts_with("|:--"));
    (0..lines.len())
        .filter(|&i| lines[i].starts_with('|') && !ruled(i) && !ruled(i + 1))
        .map(|i| row(lines[i]))
        .collect()
}

/// `[`name`](path)` as (name, path).
fn links(cell: &str) -> Vec<(&str, &str)> {
    cell.split("[`")
        .skip(1)
        .filter_map(|rest| {
            let (name, rest) = rest.split_once("`](")?;
            Some((name, rest.split_once(')')?.0))
        })
        .collect()
}

/// Whether the file has a test of that name: a function with the attribute, or one that a macro of the file's makes a
/// test of each peer (`both! { name: …; }`).
fn has_test(source: &str, name: &str) -> bool {
    let Some(at) = source.find(&format!("fn {name}(")) else { return false };
    let before = &source[..at];
    let attributed = before.rfind("#[test]").is_some_and(|found| found > before.rfind("\n}").unwrap_or(0));
    let mut listed = source.lines().skip_while(|line| !MACROS.contains(line)).take_while(|line| *line != "}");
    attributed
        || listed
            .any(|line| line.trim() == format!("{name};") || line.trim().starts_with(&format!("{name}: [")))
}

/// Each line begins a list of tests.
const MACROS: [&str; 2] = ["both! {", "behaviours! {"];

#[test]
fn what_is_no_test_is_seen_to_be_none() {
    let source = "both! {\n    one: [\"x\"];\n}\nfn one(kind: Kind) {\n}\nfn two(kind: Kind) {\n}\n#[test]\nfn three() {\n}\n\
                  fn four() {\n}\nbehaviours! {\n    five;\n}\n";
    let found = ["one", "two", "three", "four", "five"].map(|name| has_test(source, name));
    assert_eq!(found, [true, false, true, false, false]);
}

#[test]
fn every_yes_of_the_feature_table_links_to_a_test_that_exists() {
    let text = fs::read_to_string(docs().join("features.md")).expect("the document is in the tree");
    let rows = rows(&text);
    assert!(rows.len() >= 30, "the table has {} rows", rows.len());
    for row in rows {
        let (feature, own) = (&row[0], &row[1]);
        if own.starts_with("no") {
            continue;
        }
        assert!(own.starts_with("yes") || own.starts_with("part"), "{feature}: {own}");
        let links = links(own);
        assert!(!links.is_empty(), "{feature}: a yes needs a test: {own}");
        for (name, path) in links {
            let source =
                fs::read_to_string(docs().join(path)).unwrap_or_else(|e| panic!("{feature}: {path}: {e}"));
            assert!(has_test(&source, name), "{feature}: no test {name} in {path}");
        }
    }
}

#[test]
fn every_tool_has_a_word_in_every_row() {
    let text = fs::read_to_string(docs().join("features.md")).expect("the document is in the tree");
    // Each part compares with tools of its own.
    for part in text.split("\n## ") {
        let rows = rows(part);
        let tools =
            part.lines().find(|line| line.starts_with("| |")).map_or(0, |head| head.split('|').count() - 2);
        for row in rows {
            assert_eq!(row.len(), tools, "{row:?}");
            assert!(row.iter().all(|cell| !cell.is_empty()), "an empty cell: {row:?}");
        }
    }
}
