//! A campaign on disk: every raw figure as it arrives, and all that is derived from them.
//!
//! ```text
//! DIR/manifest.json                 machine, experiment, order, seed
//! DIR/raw/<configuration>.jsonl     one line a run, flushed to the disk before the next begins
//! DIR/raw/<configuration>.<metric>  one figure a line, for ministat and friends
//! DIR/result.json                   derived: docs/result-json.md
//! DIR/report.md  DIR/report.html    derived
//! ```
//!
//! Promises: a crash loses at most the run under way; what is derived can be derived again. Refuses: to
//! write over the evidence of another campaign, or into a folder that is not one.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::experiment::Metric;
use crate::model::{LabError, Sample};

/// One line of a raw file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub block: usize,
    pub order: usize,
    pub seed: u64,
    /// Milliseconds since 1970, UTC.
    pub started_unix_ms: u64,
    pub sample: Option<Sample>,
    /// Why there is no sample.
    pub error: Option<String>,
}

/// The folder of one campaign, open for writing.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
}

impl Store {
    /// Makes `dir`. A campaign already there keeps its evidence: its folder is renamed, and the new name
    /// returned.
    pub fn create(dir: &Path) -> Result<(Store, Option<PathBuf>), LabError> {
        let failed = |e: std::io::Error| LabError(format!("{}: {e}; choose another --out", dir.display()));
        let mut moved = None;
        if dir.join("manifest.json").exists() {
            let kept = free_name(dir);
            fs::rename(dir, &kept).map_err(failed)?;
            moved = Some(kept);
        } else if fs::read_dir(dir).is_ok_and(|mut d| d.next().is_some()) {
            return Err(LabError(format!(
                "{}: holds files but no manifest.json, expected a new folder or an earlier campaign: choose another --out",
                dir.display()
            )));
        }
        fs::create_dir_all(dir.join("raw")).map_err(failed)?;
        Ok((Store { dir: dir.into() }, moved))
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Adds a run to its raw files and waits until the disk has it.
    pub fn append(&self, configuration: &str, metric: &Metric, run: &Run) -> Result<(), LabError> {
        let line =
            serde_json::to_string(run).map_err(|e| LabError(format!("run of {configuration}: {e}")))?;
        append_line(&self.dir.join("raw").join(format!("{configuration}.jsonl")), &line)?;
        match run.sample.as_ref().and_then(|s| metric.of(s)) {
            Some(figure) => append_line(
                &self.dir.join("raw").join(format!("{configuration}.{}", metric.0)),
                &figure.to_string(),
            ),
            None => Ok(()),
        }
    }

    /// Writes a derived file whole: a reader sees the old one or the new one, never half of one.
    pub fn write(&self, name: &str, text: &str) -> Result<(), LabError> {
        write_whole(&self.dir.join(name), text)
    }
}

pub fn write_whole(path: &Path, text: &str) -> Result<(), LabError> {
    let failed =
        |e: std::io::Error| LabError(format!("{}: {e}; free space or choose another --out", path.display()));
    let mut half = path.as_os_str().to_owned();
    half.push(".half");
    let half = PathBuf::from(half);
    fs::write(&half, text).map_err(failed)?;
    fs::rename(&half, path).map_err(failed)
}

fn append_line(path: &Path, line: &str) -> Result<(), LabError> {
    let append = || -> std::io::Result<()> {
        let mut file: File = OpenOptions::new().create(true).append(true).open(path)?;
        file.write_all(format!("{line}\n").as_bytes())?;
        file.sync_data()
    };
    append().map_err(|e| LabError(format!("{}: {e}; free space or choose another --out", path.display())))
}

/// `DIR.1`, or the first number that is free.
fn free_name(dir: &Path) -> PathBuf {
    let mut n = 1;
    loop {
        let mut name = dir.as_os_str().to_owned();
        name.push(format!(".{n}"));
        let path = PathBuf::from(name);
        if !path.exists() {
            return path;
        }
        n += 1;
    }
}

/// Raw runs by configuration, in the order measured.
pub type Runs = BTreeMap<String, Vec<Run>>;

/// Every raw run, and what is to be said of the files: a last line cut short by a crash is left out.
pub fn read_runs(dir: &Path, names: &[String]) -> Result<(Runs, Vec<String>), LabError> {
    let mut all = BTreeMap::new();
    let mut doubts = Vec::new();
    for name in names {
        let path = dir.join("raw").join(format!("{name}.jsonl"));
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let mut runs: Vec<Run> = Vec::new();
        let lines: Vec<&str> = text.lines().collect();
        for (i, line) in lines.iter().enumerate() {
            match serde_json::from_str(line) {
                Ok(run) => runs.push(run),
                Err(_) if i + 1 == lines.len() && !text.ends_with('\n') => {
                    doubts.push(format!(
                        "{name}: the last run was cut short while it was written; it is left out"
                    ));
                }
                Err(e) => {
                    return Err(LabError(format!(
                        "{}:{}: not a run ({e}); restore the file or remove the line",
                        path.display(),
                        i + 1
                    )));
                }
            }
        }
        all.insert(name.clone(), runs);
    }
    Ok((all, doubts))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of its own for each test, removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let dir = std::env::temp_dir().join(format!("weir-lab-store-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            Folder(dir)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn run(order: usize, pps: f64) -> Run {
        let sample = Sample { pps, seconds: 1.0, ..Sample::default() };
        Run { block: order, order, seed: 1, started_unix_ms: 2, sample: Some(sample), error: None }
    }

    fn pps() -> Metric {
        Metric("pps".into())
    }

    #[test]
    fn runs_come_back_as_they_were_measured() {
        let folder = Folder::new("back");
        let (store, moved) = Store::create(&folder.0).expect("a new folder");
        assert_eq!(moved, None);
        store.append("a", &pps(), &run(0, 1.25)).expect("space");
        store.append("a", &pps(), &run(3, 2e7)).expect("space");
        let (runs, doubts) = read_runs(&folder.0, &["a".into(), "never-ran".into()]).expect("valid");
        assert_eq!(runs["a"], [run(0, 1.25), run(3, 2e7)]);
        assert!(doubts.is_empty() && !runs.contains_key("never-ran"));
        assert_eq!(fs::read_to_string(folder.0.join("raw/a.pps")).expect("written"), "1.25\n20000000\n");
    }

    #[test]
    fn a_line_cut_short_by_a_crash_is_left_out_and_said() {
        let folder = Folder::new("cut");
        let (store, _) = Store::create(&folder.0).expect("a new folder");
        store.append("a", &pps(), &run(0, 1.0)).expect("space");
        let path = folder.0.join("raw/a.jsonl");
        let mut text = fs::read_to_string(&path).expect("written");
        text.push_str("{\"block\":1,\"or");
        fs::write(&path, text).expect("space");
        let (runs, doubts) = read_runs(&folder.0, &["a".into()]).expect("the rest is valid");
        assert_eq!((runs["a"].len(), doubts.len()), (1, 1));
        assert!(doubts[0].contains("left out"), "{doubts:?}");
    }

    #[test]
    fn a_damaged_line_inside_is_refused_with_its_number() {
        let folder = Folder::new("damaged");
        let (_, _) = Store::create(&folder.0).expect("a new folder");
        fs::write(folder.0.join("raw/a.jsonl"), "nonsense\n").expect("space");
        let error = read_runs(&folder.0, &["a".into()]).expect_err("damaged");
        assert!(error.0.contains("a.jsonl:1: not a run"), "{error}");
    }

    #[test]
    fn earlier_evidence_is_renamed_and_foreign_folders_are_refused() {
        let folder = Folder::new("earlier");
        let (store, _) = Store::create(&folder.0).expect("a new folder");
        store.write("manifest.json", "{}").expect("space");
        let (_, moved) = Store::create(&folder.0).expect("an earlier campaign");
        let kept = Folder(moved.expect("renamed"));
        assert!(kept.0.join("manifest.json").exists());
        fs::remove_dir_all(folder.0.join("raw")).expect("there");
        fs::write(folder.0.join("letter.txt"), "mine").expect("space");
        let error = Store::create(&folder.0).expect_err("not ours");
        assert!(error.0.contains("choose another --out"), "{error}");
    }
}
