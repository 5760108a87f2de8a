//! What is counted by hand in documents, counted again: lines of pieces that a library could replace, errors that are a text.

use std::fs;

use crate::{assert_clean, files, is_test, root, without_tests};

/// How far a number in ARCHITECTURE.md may be from what is counted, in lines.
const NEAR: usize = 25;
/// Signatures in `src` whose error is a text; they only get fewer.
const TEXT_ERRORS: usize = 7;

/// Lines of a file, or of all files of a folder, without tests.
fn lines(path: &str) -> usize {
    let all = files(path, "");
    let one = || fs::read_to_string(root().join(path)).ok().map(|text| (path.to_string(), text));
    let all = if all.is_empty() { one().into_iter().collect() } else { all };
    let counted = all.iter().filter(|(path, _)| !path.ends_with("/tests.rs"));
    counted.map(|(_, text)| without_tests(text).lines().count()).sum()
}

/// A path of the table: of weir-lab, or of the crate it begins with.
fn place(path: &str) -> String {
    if path.starts_with("weir") { format!("crates/{path}") } else { format!("crates/weir-lab/src/{path}") }
}

#[test]
fn pieces_that_a_library_could_replace_are_as_long_as_is_said() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let table = text.split("\n| piece | lines |").nth(1).expect("the table of pieces");
    let mut complaints = Vec::new();
    let mut rows = 0;
    for row in table.lines().skip(2).take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let said: usize = cells[1].parse().expect("a number of lines");
        let paths = cells[0].split('`').skip(1).step_by(2);
        let found: usize = paths.map(|path| lines(&place(path))).sum();
        if found.abs_diff(said) > NEAR {
            complaints
                .push(format!("ARCHITECTURE.md says {said} lines of `{}`, counted are {found}", cells[0]));
        }
        rows += 1;
    }
    assert!(rows > 8, "the table of pieces was not understood");
    assert_clean(complaints);
}

/// The places where a signature's error is a `String`.
fn text_errors(path: &str, text: &str) -> Vec<String> {
    let is_one = |line: &str| {
        let code = line.split("//").next().unwrap_or_default();
        code.contains("-> Result<") && code.trim_end_matches([' ', '{', '}', ';']).ends_with(", String>")
    };
    let lines = (1..).zip(without_tests(text).lines());
    lines.filter(|(_, line)| is_one(line)).map(|(number, _)| format!("{path}:{number}")).collect()
}

#[test]
fn errors_are_types() {
    let sources = files("crates", ".rs");
    let sources = sources.iter().filter(|(path, _)| !is_test(path) && path.contains("/src/"));
    let found: Vec<String> = sources.flat_map(|(path, text)| text_errors(path, text)).collect();
    let more = "an error is an enum with blame and remedy as data";
    assert!(found.len() <= TEXT_ERRORS, "{} > {TEXT_ERRORS}, {more}:\n{}", found.len(), found.join("\n"));
    assert!(found.len() == TEXT_ERRORS, "{} are left: lower TEXT_ERRORS", found.len());
    let one = "fn a() -> Result<(), String> {}\n// -> Result<(), String>\nfn b() -> Result<String, E> {}\n";
    assert_eq!(text_errors("a.rs", one), ["a.rs:1"]);
}
