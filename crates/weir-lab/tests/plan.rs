//! `weir-lab plan` as a user runs it: a pilot's files in, runs and time out.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder of its own for each test, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let dir = std::env::temp_dir().join(format!("weir-lab-plan-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("a folder");
        Folder(dir)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).expect("space");
        path.to_string_lossy().into_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn lab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weir-lab")).args(arguments).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_campaign_is_planned_paired_and_unpaired_with_the_time_it_takes() {
    let folder = Folder::new("campaign");
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../labs/demo.toml");
    let out = folder.0.join("pilot").to_string_lossy().into_owned();
    let shipped = shipped.to_string_lossy();
    let run = lab(&["run", &shipped, "--quick", "--seed", "1", "--out", &out, "--only", "memory-*"]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let plan = lab(&["plan", &out, "--effect", "3", "--configurations", "5", "--json"]);
    assert!(plan.status.success(), "{}", text(&plan.stderr));
    let json: serde_json::Value = serde_json::from_slice(&plan.stdout).expect("JSON");
    assert_eq!((&json["configurations"], &json["comparisons"]), (&5.into(), &4.into()));
    assert_eq!(json["pilot"]["blocks"], 3);
    assert!(
        json["pilot"]["within_blocks"]["upper_percent"].as_f64()
            > json["pilot"]["within_blocks"]["percent"].as_f64()
    );
    assert!(json["seconds_a_run"].as_f64().expect("six runs") > 0.0);
    assert!(json["advice"]["effect_percent"] == 3.0 && json["advice"]["analysis"].is_string());
    let said = text(&lab(&["plan", &out]).stdout);
    assert!(
        said.contains("within a block") && said.contains("declare `analysis = ")
            || said.contains("out of reach"),
        "{said}"
    );
}

#[test]
fn files_of_figures_are_planned_without_pairing() {
    let folder = Folder::new("files");
    let a = folder.write("a.pps", "100\n101\n99\n100\n102\n98\n");
    let b = folder.write("b.pps", "# later\n200\n202\n198\n201\n199\n");
    let plan = lab(&["plan", &a, &b]);
    let said = text(&plan.stdout);
    // deviations of 1.414 % and 0.791 % pool to 1.18 %; power.t.test(delta = 1, sd = 1.1803): n = 22.9
    assert!(said.contains("of a run      1.18 %"), "{said}");
    assert!(said.lines().any(|l| l.starts_with("1 %") && l.contains(" 23 ")), "{said}");
    assert!(said.contains("pairing is not planned"), "{said}");
}

#[test]
fn what_is_no_pilot_is_refused_with_the_remedy() {
    let folder = Folder::new("refused");
    let single = folder.write("single.pps", "100\n");
    let words = folder.write("words.pps", "100\nmany\n");
    let cases = [
        (vec!["plan", &single], "run a pilot of five"),
        (vec!["plan", &words], "words.pps:2: got \"many\", expected a figure a line"),
        (vec!["plan", "/nonexistent/x"], "name a campaign's folder or a file of figures"),
        (vec!["plan", &single, "--effect", "100"], "expected a number above 0 and below 100"),
    ];
    for (arguments, expected) in cases {
        let output = lab(&arguments);
        assert!(
            !output.status.success() && text(&output.stderr).contains(expected),
            "{}",
            text(&output.stderr)
        );
    }
    let folder_of_figures = folder.0.to_string_lossy().into_owned();
    let output = lab(&["plan", &folder_of_figures, &single]);
    assert!(text(&output.stderr).contains("plan from one at a time"), "{}", text(&output.stderr));
}
