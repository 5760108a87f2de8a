//! Experiments to start from: what `weir-lab new` writes is whole, runs as it is, and is never written over.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Output;

use crate::common::program::{lab, text, told};
use weir_lab::experiment::{Changes, Experiment};
use weir_lab::result::Results;
use weir_testing::folder::Folder;

const KINDS: [&str; 6] = ["forwarding", "build", "ipsec", "spd", "relay", "command"];

fn run_in(folder: &Folder, arguments: &[&str]) -> Output {
    lab().current_dir(&folder.0).args(arguments).output().expect("the program starts")
}

/// The result of the file's smoke values, run by `program`; or what it said.
fn quick(folder: &Folder, program: &Path, file: &str) -> Result<Results, String> {
    let mut command = std::process::Command::new(program);
    let arguments = ["run", file, "--quick", "--seed", "1", "--out", "out"];
    let output = command.current_dir(&folder.0).args(arguments).output().expect("the program starts");
    if !output.status.success() {
        return Err(text(&output.stdout) + &text(&output.stderr));
    }
    Ok(serde_json::from_str(&folder.read("out/result.json")).expect("a result"))
}

/// Two configurations and a control were measured whole.
fn assert_measured(results: &Results) {
    assert_eq!((results.runs_failed, results.runs_missing), (0, 0), "{results:?}");
    for name in ["a", "b", "a~again"] {
        assert!(results.outcome(name).is_some_and(|o| o.summary.is_some()), "{name}: {results:?}");
    }
}

#[test]
fn every_kind_is_an_experiment_with_a_control_a_margin_and_smoke_values() {
    for kind in KINDS {
        let folder = Folder::new(&format!("new-whole-{kind}"));
        let (well, said, errors) = told(&run_in(&folder, &["new", "mine", "--kind", kind]));
        assert!(well, "{kind}: {errors}");
        for next in ["weir-lab run mine.toml --quick", "weir-lab run mine.toml", "weir-lab plan out/mine"] {
            assert!(said.contains(next), "{kind}: {said}");
        }
        let written = folder.read("mine.toml");
        assert!(!written.contains('@') || kind == "command", "{kind}: a place was not filled in");
        let file = folder.0.join("mine.toml");
        let full = Experiment::load(&file, &Changes::default()).unwrap_or_else(|e| panic!("{kind}: {e}"));
        let changes = Changes { quick: true, ..Changes::default() };
        let quick = Experiment::load(&file, &changes).unwrap_or_else(|e| panic!("{kind}: {e}"));
        assert!(quick.length() * 10 < full.length(), "{kind}: {:?}", quick.length());
        assert!(full.margin_percent >= 1.0, "{kind}");
        assert!(full.controls.iter().any(|(a, again)| a == "a" && again == "a~again"), "{kind}");
        assert!(full.pairs.contains(&("a".into(), "b".into())), "{kind}: {:?}", full.pairs);
    }
}

#[test]
fn kinds_of_memory_run_as_they_are_written() {
    for kind in ["forwarding", "ipsec", "spd"] {
        let folder = Folder::new(&format!("new-runs-{kind}"));
        assert!(run_in(&folder, &["new", "mine.toml", "--kind", kind]).status.success());
        let results = quick(&folder, Path::new(env!("CARGO_BIN_EXE_weir-lab")), "mine.toml");
        assert_measured(&results.unwrap_or_else(|said| panic!("{kind}: {said}")));
    }
}

#[test]
fn two_builds_are_compared_as_the_file_says() {
    let folder = Folder::new("new-builds");
    assert!(run_in(&folder, &["new", "mine", "--kind", "build"]).status.success());
    // The second build is looked for in the folder beside the first's.
    let programs = ["target/release/weir-lab", "target/native/release/weir-lab"].map(|p| folder.0.join(p));
    for program in &programs {
        fs::create_dir_all(program.parent().expect("a file has a folder")).expect("space");
        weir_testing::process::copy(env!("CARGO_BIN_EXE_weir-lab"), program);
    }
    let results = quick(&folder, &programs[0], "mine.toml").unwrap_or_else(|said| panic!("{said}"));
    assert_measured(&results);
    fs::remove_file(&programs[1]).expect("it is there");
    let said = quick(&folder, &programs[0], "mine.toml").map(|r| r.answer).unwrap_or_else(|said| said);
    assert!(!said.is_empty());
    assert!(folder.read("out/report.md").contains("build native"), "what is missing is not named");
}

#[test]
fn relays_are_compared_as_the_file_says() {
    let test = "relays_are_compared_as_the_file_says";
    let folder = Folder::new("new-relay");
    assert!(run_in(&folder, &["new", "mine", "--kind", "relay"]).status.success());
    match quick(&folder, Path::new(env!("CARGO_BIN_EXE_weir-lab")), "mine.toml") {
        Ok(results)
            if results.skipped.is_empty() && results.configurations.iter().all(|o| o.summary.is_some()) =>
        {
            assert_measured(&results)
        }
        other => {
            let report = folder.read("out/report.md");
            let lacks = ["run as root", "no such program"].iter().any(|lack| report.contains(lack));
            assert!(lacks, "{other:?}\n{report}");
            writeln!(std::io::stderr(), "SKIP {test}: needs root, derper and weir").expect("stderr is open");
        }
    }
}

#[test]
fn nothing_is_written_over_and_a_wrong_name_is_told() {
    let folder = Folder::new("new-refuses");
    folder.write("mine.toml", "precious");
    for (name, why) in [
        ("mine", "mine.toml: exists already and is kept; choose another name"),
        ("mine.toml", "mine.toml: exists already"),
        ("nowhere/mine", "nowhere/mine.toml: its folder does not exist"),
        ("my lab", "my lab: expected a name of letters, digits"),
        ("..", "..: expected a name"),
    ] {
        let (well, _, errors) = told(&run_in(&folder, &["new", name]));
        assert!(!well && errors.contains(why), "{name}: {errors}");
    }
    assert_eq!(folder.read("mine.toml"), "precious");
    assert_eq!(fs::read_dir(&folder.0).expect("a folder").count(), 1);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let folder = Folder::new("new-pipe");
    for kind in KINDS {
        assert!(run_in(&folder, &["new", kind, "--kind", kind]).status.success());
    }
    folder.write("document.md", "<!-- answers later -->\n<!-- end of answers -->\n");
    folder.write("runs/readme", "no campaign yet");
    let documents = ["report", "--documents", "document.md"];
    for arguments in [["run", "--list", "."].as_slice(), &["doctor"], &documents] {
        let mut command = lab();
        command.current_dir(&folder.0).args(arguments);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    }
}
