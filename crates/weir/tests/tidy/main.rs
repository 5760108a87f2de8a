//! The tree keeps its own rules: lengths, banned calls, fenced unsafe, living links.
//!
//! Limits only ratchet. What exceeds one today stands in an exception list with its exact figure:
//! when it shrinks, the test asks for the lower figure; when it grows, the test fails.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

mod counts;
mod cycles;
mod imports;
mod tokens;
mod walks;
mod words;

/// Lines of a file before its tests begin.
const FILE_LINES: usize = 600;
/// Lines of a function, signature and closing brace included.
const FUNCTION_LINES: usize = 70;

/// (file, lines) above [`FILE_LINES`].
const LONG_FILES: &[(&str, usize)] = &[];
/// (file: function, lines) above [`FUNCTION_LINES`].
const LONG_FUNCTIONS: &[(&str, usize)] = &[];

/// (where it must not stand, text, what to write instead). Tests are exempt.
const BANNED: &[(&str, &str, &str)] = &[
    ("crates/weir-core/src", "Instant::now", "take `now: Nanos` as a parameter: the core reads no clock"),
    ("crates/weir-core/src", "SystemTime", "take `now: Nanos` as a parameter: the core reads no clock"),
    ("crates/weir-core/src", "std::thread", "the core starts no thread; the worker lives in crates/weir"),
    ("crates/weir-core/src", "println!", "return a value; printing belongs to crates/weir"),
    (
        "crates",
        ".unwrap()",
        "name the invariant with `expect`, or return an error when the outside can cause it",
    ),
    ("crates", "todo!", "finish it, or refuse it with an error that says so"),
    ("crates", "unimplemented!", "finish it, or refuse it with an error that says so"),
    ("crates", "dbg!", "use `tracing`"),
    ("crates", "process::exit", "return from `main`, so that guards remove what they made"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace root exists")
}

/// Folders of what builds and fuzzing leave, which are not kept.
const LEFT_BEHIND: [&str; 5] = ["target", ".git", "out", "corpus", "artifacts"];

/// Every tracked-looking file below `dir` with this ending, as (path relative to the root, text).
fn files(dir: &str, ending: &str) -> Vec<(String, String)> {
    let root = root();
    let mut found = Vec::new();
    let mut open = vec![root.join(dir)];
    while let Some(dir) = open.pop() {
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if path.is_dir() {
                if !LEFT_BEHIND.contains(&name.as_str()) {
                    open.push(path);
                }
            } else if name.ends_with(ending) {
                let relative =
                    path.strip_prefix(&root).expect("below the root").to_string_lossy().into_owned();
                found.push((relative, fs::read_to_string(&path).unwrap_or_default()));
            }
        }
    }
    found.sort();
    found
}

/// The part of a source file above its test module.
fn without_tests(text: &str) -> &str {
    text.find("\n#[cfg(test)]\n").map_or(text, |at| &text[..at])
}

/// The rules name what they ban.
fn is_tidy(path: &str) -> bool {
    path.starts_with("crates/weir/tests/tidy/")
}

fn is_test(path: &str) -> bool {
    path.contains("/tests/") || path.contains("/benches/") || path.contains("/examples/")
}

/// (name, lines) of each function; relies on rustfmt putting the closing brace under `fn`.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let indent = &line[..line.len() - code.len()];
        let Some(at) = code.find("fn ") else { continue };
        let modifiers = ["pub", "const", "async", "unsafe", "extern", "\"C\"", "(crate)", "(super)", "(in"];
        if !code[..at].split_whitespace().all(|w| modifiers.iter().any(|m| w.starts_with(m))) {
            continue;
        }
        let name: String = code[at + 3..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let closing = format!("{indent}}}");
        if let Some(length) = lines[start..].iter().position(|l| *l == closing) {
            found.push((name, length + 1));
        }
    }
    found
}

/// Compares what is over a limit with the list of known exceptions.
fn ratchet(what: &str, limit: usize, found: BTreeMap<String, usize>, known: &[(&str, usize)]) -> Vec<String> {
    let known: BTreeMap<&str, usize> = known.iter().copied().collect();
    let mut complaints = Vec::new();
    for (name, &lines) in &found {
        match known.get(name.as_str()) {
            None => complaints.push(format!(
                "{what} {name} has {lines} lines, at most {limit}: split it where it has a joint"
            )),
            Some(&was) if lines > was => {
                complaints.push(format!("{what} {name} grew from {was} to {lines} lines"))
            }
            Some(&was) if lines < was => complaints
                .push(format!("{what} {name} shrank to {lines} lines: lower its exception from {was}")),
            Some(_) => {}
        }
    }
    let gone = known.keys().filter(|name| !found.contains_key(**name));
    complaints
        .extend(gone.map(|name| format!("{what} {name} is within {limit} lines: remove its exception")));
    complaints
}

fn assert_clean(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn files_and_functions_stay_short() {
    let mut long_files = BTreeMap::new();
    let mut long_functions = BTreeMap::new();
    for (path, text) in files("crates", ".rs").iter().filter(|(path, _)| !is_test(path)) {
        let body = without_tests(text);
        let lines = body.lines().count();
        if lines > FILE_LINES {
            long_files.insert(path.clone(), lines);
        }
        for (name, lines) in functions(body).into_iter().filter(|f| f.1 > FUNCTION_LINES) {
            long_functions.insert(format!("{path}: {name}"), lines);
        }
    }
    let mut complaints = ratchet("file", FILE_LINES, long_files, LONG_FILES);
    complaints.extend(ratchet("function", FUNCTION_LINES, long_functions, LONG_FUNCTIONS));
    assert_clean(complaints);
}

#[test]
fn every_file_says_what_it_promises() {
    let silent = files("crates", ".rs").into_iter().filter(|(_, text)| !text.starts_with("//!"));
    assert_clean(silent.map(|(path, _)| format!("{path} does not open with a `//!` line")).collect());
}

#[test]
fn banned_calls_stay_out() {
    let mut complaints = Vec::new();
    for (path, text) in files("crates", ".rs").iter().filter(|(path, _)| !is_test(path)) {
        for (number, line) in without_tests(text).lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            for (place, banned, instead) in BANNED {
                if path.starts_with(place) && code.contains(banned) {
                    complaints.push(format!("{path}:{}: `{banned}`: {instead}", number + 1));
                }
            }
        }
    }
    assert_clean(complaints);
}

#[test]
fn skipped_tests_are_seen() {
    // The harness hides what a passing test prints by macro, and the count of skipped tests with it.
    let hidden = concat!("eprintln!(\"", "SKIP");
    let bad = files("crates", ".rs").into_iter().filter(|(_, text)| text.contains(hidden));
    assert_clean(
        bad.map(|(path, _)| format!("{path}: write SKIP lines by `writeln!(std::io::stderr(), …)`"))
            .collect(),
    );
}

/// Where a program is loaded one map takes another's place, which the library that loads it has no call for.
const LOADER: (&str, usize) = ("crates/weir-xdp/src/map.rs", 1);

#[test]
fn unsafe_stays_in_weir_io() {
    let mut complaints = Vec::new();
    for (path, text) in files("crates", ".rs") {
        if path.starts_with("crates/weir-io/") || is_tidy(&path) {
            continue;
        }
        let mut allowed = if path == LOADER.0 { LOADER.1 } else { 0 };
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if ["unsafe {", "unsafe fn", "unsafe impl"].iter().any(|u| code.contains(u)) {
                if allowed > 0 {
                    allowed -= 1;
                    continue;
                }
                complaints.push(format!("{path}:{}: unsafe code belongs to crates/weir-io", number + 1));
            }
        }
    }
    assert_clean(complaints);
}

/// The build of the XDP programs reads the tables that the library shares with C.
const BUILD: &str = "crates/weir-xdp/build.rs";

#[test]
fn files_are_shared_as_modules() {
    let mut complaints = Vec::new();
    for (path, text) in files("crates", ".rs") {
        if path == BUILD || is_tidy(&path) {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            for (way, instead) in
                [("#[path", "declare a module"), ("allow(dead_code", "remove what is not used")]
            {
                if line.split("//").next().unwrap_or_default().contains(way) {
                    complaints.push(format!("{path}:{}: `{way}`: {instead}", number + 1));
                }
            }
        }
    }
    assert_clean(complaints);
}

#[test]
fn notes_to_self_do_not_land() {
    let mut complaints = Vec::new();
    let texts = ["crates", "labs", "docs", "examples", "fuzz", "packaging"];
    for (path, text) in texts.iter().flat_map(|dir| files(dir, "")).filter(|(path, _)| !is_tidy(path)) {
        for (number, line) in text.lines().enumerate() {
            for note in ["TODO", "FIXME", "XXX", "HACK", "#[ignore"] {
                if line.contains(note) {
                    complaints.push(format!("{path}:{}: {note}", number + 1));
                }
            }
        }
    }
    assert_clean(complaints);
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut complaints = Vec::new();
    for (path, text) in files("", ".md") {
        let here = root().join(&path);
        let here = here.parent().expect("a file has a folder");
        for piece in text.split("](").skip(1) {
            let target = piece.split(')').next().unwrap_or_default();
            let file = target.split('#').next().unwrap_or_default();
            if !file.is_empty() && !file.contains("://") && !here.join(file).exists() {
                complaints.push(format!("{path}: the link to {target} leads nowhere"));
            }
        }
    }
    assert_clean(complaints);
}

/// Every package of the workspace has one version, which is this one's.
#[test]
fn changelog_and_images_have_the_version_that_is_built() {
    let version = env!("CARGO_PKG_VERSION");
    let read = |path: &str| fs::read_to_string(root().join(path)).expect(path);
    let changelog = read("CHANGELOG.md");
    let newest = changelog.lines().find_map(|line| line.strip_prefix("## ")).expect("a heading");
    assert_eq!(newest.split(' ').next(), Some(version), "the newest heading of CHANGELOG.md");
    for path in ["docs/packages.md", "packaging/oci/headscale/compose.yaml"] {
        let text = read(path);
        let tags: Vec<&str> = text.split("localhost/weir-relay:").skip(1).collect();
        assert!(!tags.is_empty(), "{path} names no image");
        let other = tags.iter().find(|tag| !tag.starts_with(version));
        assert!(other.is_none(), "{path}: an image of another version than {version}");
    }
}

#[test]
fn every_dependency_has_its_reason() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("the workspace manifest");
    let reasons = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let named = |line: &str| line.split_once(" = ").map(|(name, _)| name.to_string());
    let section = manifest.split("[workspace.dependencies]").nth(1).and_then(|s| s.split("\n[").next());
    let dependencies: Vec<String> = section.unwrap_or_default().lines().filter_map(named).collect();
    assert!(dependencies.len() > 5, "the manifest was not understood");
    let manifests: String = files("crates", "Cargo.toml").into_iter().map(|(_, text)| text).collect();
    let mut complaints = Vec::new();
    for name in dependencies.iter().filter(|name| !name.starts_with("weir-")) {
        if !reasons.contains(&format!("{name},")) && !reasons.contains(&format!("{name} |")) {
            complaints.push(format!("ARCHITECTURE.md does not say what {name} is for"));
        }
        if !manifests.contains(&format!("\n{name}.workspace")) {
            complaints.push(format!("Cargo.toml names {name}, which no crate uses: remove it"));
        }
    }
    assert_clean(complaints);
}

/// What a crate's production build must not ask of weir-core: synthetic tables are the lab's, test material is tests'.
#[test]
fn production_builds_leave_out_synthetic_data_and_test_material() {
    let mut complaints = Vec::new();
    let manifests = files("crates", "Cargo.toml");
    assert!(manifests.len() >= 4, "the manifests were not found");
    for (path, text) in manifests {
        let section = text.split("\n[dependencies]\n").nth(1).and_then(|rest| rest.split("\n[").next());
        let dependencies = section.unwrap_or_default();
        for feature in ["synthetic", "testing"] {
            let is_labs = feature == "synthetic" && path.starts_with("crates/weir-lab/");
            if dependencies.contains(&format!("\"{feature}\"")) && !is_labs {
                complaints.push(format!("{path}: feature `{feature}`: ask for it under [dev-dependencies]"));
            }
        }
    }
    assert_clean(complaints);
}

#[test]
fn a_long_function_would_be_seen() {
    let body = "    let _x = 1;\n".repeat(FUNCTION_LINES);
    let text = format!("pub(crate) fn long() {{\n{body}}}\n\nfn short() {{\n}}\n");
    assert_eq!(functions(&text), [("long".to_string(), FUNCTION_LINES + 2), ("short".to_string(), 2)]);
}
