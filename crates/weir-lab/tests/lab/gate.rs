//! `weir-lab gate` as a CI job runs it: exit codes, the line, the folder, and trees that are gone afterwards.

use std::path::Path;
use std::process::Command;

use crate::common::program::{run, text, told};
use weir_testing::folder::Folder;

/// A program whose runs print `mpps` around `level`: 0.3 % of spread, no two runs in a row alike, and the same over and
/// over, so that the answer is always the same.
fn program(folder: &Folder, name: &str, level: f64) -> String {
    let count = folder.at(&format!("{name}.count"));
    let script = format!(
        "n=$(cat '{count}' 2>/dev/null || echo 0); n=$((n + 1)); echo $n > '{count}'\n\
         set -- 3 0 5 1 4 2 6; shift $((n * 3 % 7)); \n\
         awk -v d=\"$1\" 'BEGIN {{ printf \"sent 9, mpps %.6f\\n\", {level} * (1 + d / 1000) }}'\n"
    );
    folder.write(name, script)
}

fn gate(folder: &Folder, candidate: f64, more: &[&str]) -> (Option<i32>, String, String) {
    let (old, new) = (program(folder, "old", 10.0), program(folder, "new", candidate));
    let out = folder.at("gate");
    let mut arguments = vec!["gate", "--value", "mpps", "--seed", "1", "--out", &out];
    arguments.extend(more);
    arguments.extend(["--", "sh", &old, "--", "sh", &new]);
    let output = run(&arguments);
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn worse_better_and_not_shown_have_their_exit_codes_and_their_line() {
    let cases = [
        (9.0, Some(1), "gate: worse: mpps candidate/baseline 0.9"),
        (10.0, Some(0), "gate: equivalent or better: mpps candidate/baseline 1.0"),
        (11.0, Some(0), "gate: equivalent or better: mpps candidate/baseline 1.1"),
        (9.82, Some(2), "gate: underpowered: mpps candidate/baseline 0.98"),
    ];
    for (candidate, code, line) in cases {
        let folder = Folder::new("gate-codes");
        let (got, said, progress) = gate(&folder, candidate, &["--blocks", "8"]);
        assert_eq!(got, code, "{candidate}: {said}{progress}");
        assert!(said.starts_with(line) && said.lines().count() == 1, "{said}");
        assert!(said.contains("margin 2 %") && said.trim_end().ends_with("report.html"), "{said}");
    }
}

#[test]
fn less_is_better_where_it_is_told() {
    let folder = Folder::new("gate-lower");
    let (code, said, _) = gate(&folder, 9.0, &["--lower"]);
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn the_folder_holds_values_and_a_report_that_verify_accepts_and_an_earlier_one_is_kept() {
    let folder = Folder::new("gate-folder");
    for _ in 0..2 {
        assert_eq!(gate(&folder, 10.0, &[]).0, Some(0));
    }
    assert!(folder.0.join("gate.1/gate.json").exists(), "the first is kept");
    let values = |side: &str| {
        let file = folder.0.join("gate/raw").join(format!("{side}.mpps"));
        std::fs::read_to_string(file)
            .expect("values")
            .lines()
            .map(str::parse)
            .collect::<Result<Vec<f64>, _>>()
    };
    for side in ["baseline", "baseline~again", "candidate"] {
        assert_eq!(values(side).expect("numbers").len(), 6, "{side}: decided at the first look");
    }
    let plan = std::fs::read_to_string(folder.0.join("gate/gate.json")).expect("the plan");
    let plan: serde_json::Value = serde_json::from_str(&plan).expect("JSON");
    assert_eq!((&plan["question"]["margin_percent"], &plan["seed"]), (&2.0.into(), &1.into()));
    let page = std::fs::read_to_string(folder.0.join("gate/report.html")).expect("the page");
    assert!(page.contains("<svg") && page.contains("equivalent or better"));
    let (verified, said, _) = told(&run(&["verify", &folder.at("gate")]));
    assert!(verified && said.contains("1 "), "{said}");
}

#[test]
fn what_cannot_be_judged_is_refused_with_the_remedy_and_a_code_of_its_own() {
    let folder = Folder::new("gate-refused");
    let full = folder.at("full");
    std::fs::create_dir(&full).expect("a folder");
    folder.write("full/x", "x");
    let out = folder.at("gate");
    let cases: [(&[&str], &str); 7] = [
        (&["--", "true"], "1 command, expected two: `weir-lab gate -- BASELINE -- CANDIDATE`"),
        (&["--", "true", "--", "--", "true"], "an empty command"),
        (&["--", "true", "--", "false"], "candidate: `false` failed (exit status: 1); it said nothing"),
        (&["--value", "mpps", "--", "true", "--", "true"], "printed no `mpps`"),
        (&["--base", "HEAD", "--", "true", "--", "true"], "2 commands with --base, expected one"),
        (&["--base", "nowhere", "--repository", "/", "--", "true"], "nowhere: not a revision of /"),
        (&["--out", &full, "--", "true", "--", "true"], "holds files but no gate.json"),
    ];
    for (arguments, expected) in cases {
        let out = if arguments.contains(&"--out") { vec![] } else { vec!["--out", out.as_str()] };
        let output = run(&[&["gate"], out.as_slice(), arguments].concat());
        assert_eq!(output.status.code(), Some(3), "{arguments:?}");
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
    assert_eq!(run(&["gate", "--margin", "0", "--", "true", "--", "true"]).status.code(), Some(2), "usage");
}

fn git(folder: &Path, arguments: &[&str]) -> String {
    let identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"];
    let output = Command::new("git").arg("-C").arg(folder).args(identity).args(arguments).output();
    let output = output.expect("git is there");
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn two_revisions_are_prepared_compared_and_taken_away() {
    let folder = Folder::new("gate-revisions");
    let repository = folder.0.join("repository");
    std::fs::create_dir(&repository).expect("a folder");
    git(&repository, &["init", "--quiet"]);
    for level in ["10.0", "9.0"] {
        std::fs::write(repository.join("level"), level).expect("a file");
        git(&repository, &["add", "level"]);
        git(&repository, &["commit", "--quiet", "--message", level]);
    }
    let (out, shown) = (folder.at("gate"), repository.to_string_lossy().into_owned());
    let prepare = "echo mpps $(cat level) > built";
    let arguments =
        ["gate", "--base", "HEAD~1", "--repository", &shown, "--prepare", prepare, "--value", "mpps"];
    let output = run(&[&arguments[..], &["--out", &out, "--", "cat", "built"]].concat());
    let (said, progress) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{said}{progress}");
    assert!(said.contains("candidate/baseline 0.9000 [0.9000, 0.9000]"), "{said}");
    assert!(progress.contains("candidate: prepared in"), "{progress}");
    assert_eq!(git(&repository, &["worktree", "list"]).lines().count(), 1, "the trees are gone");
    assert!(!folder.0.join("gate/trees").exists());
    let plan = std::fs::read_to_string(folder.0.join("gate/gate.json")).expect("the plan");
    let commit = git(&repository, &["rev-parse", "HEAD~1"]);
    assert!(plan.contains(commit.trim()), "{plan}");
}
