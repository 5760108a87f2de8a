//! A campaign on disk: every raw value as it arrives, and all that is derived from them.
//!
//! ```text
//! DIR/manifest.json                 machine, experiment, order, seed, sessions
//! DIR/raw/<configuration>.jsonl     one line a run, flushed to the disk before the next begins
//! DIR/raw/<configuration>.<n>.folded  a profiled run
//! DIR/raw/<configuration>.<metric>  one value a line, for ministat and friends
//! DIR/result.json                   derived: docs/result-json.md
//! DIR/runs.csv  DIR/comparisons.csv derived
//! DIR/report.md  DIR/report.html    derived
//! ```
//!
//! Promises: a crash loses at most the run under way; what is derived can be derived again; one process
//! writes to a campaign at a time. Refuses: to write over the evidence of another campaign, or into a
//! folder that is not one. docs/campaigns.md has the layout and what survives what.

pub mod read;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weir_io::lock::{self, Lock};

use crate::experiment::Metric;
use crate::model::{LabError, Misbehaviour, Sample};
pub use read::{Evidence, Runs, read_runs};

/// The format of a line of a raw file. Lines without a number are of format 1.
pub const FORMAT: u32 = 1;

/// One line of a raw file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    #[serde(default = "first_format")]
    pub format: u32,
    pub block: usize,
    pub order: usize,
    pub seed: u64,
    /// 0 until the campaign is resumed, then one more each time.
    #[serde(default)]
    pub session: usize,
    /// Milliseconds since 1970, UTC.
    pub started_unix_ms: u64,
    pub sample: Option<Sample>,
    /// Why there is no sample.
    pub error: Option<String>,
    /// Set when that is a finding about the system under test. Absent from runs of before it was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub misbehaviour: Option<Misbehaviour>,
}

pub fn first_format() -> u32 {
    1
}

/// The folder of one campaign, open for writing.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    _held: Lock,
}

impl Store {
    /// Makes `dir`. A campaign already there keeps its evidence: its folder is renamed, and the new name
    /// returned.
    pub fn create(dir: &Path) -> Result<(Store, Option<PathBuf>), LabError> {
        let failed =
            |e: std::io::Error| LabError::new(format!("{}: {e}; choose another --out", dir.display()));
        let mut moved = None;
        if dir.join("manifest.json").exists() {
            // held: a campaign under way would go on writing under the new name
            let _held = hold(dir)?;
            let kept = free_name(dir);
            fs::rename(dir, &kept).map_err(failed)?;
            moved = Some(kept);
        } else if fs::read_dir(dir).is_ok_and(|mut d| d.next().is_some()) && !unbegun(dir) {
            return Err(LabError::new(format!(
                "{}: holds files but no manifest.json, expected a new folder or an earlier campaign: choose another --out",
                dir.display()
            )));
        }
        fs::create_dir_all(dir.join("raw")).map_err(failed)?;
        Ok((Store { dir: dir.into(), _held: hold(dir)? }, moved))
    }

    /// Opens the folder of a campaign to add to it.
    pub fn open(dir: &Path) -> Result<Store, LabError> {
        Ok(Store { dir: dir.into(), _held: hold(dir)? })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Adds a run to its raw files and waits until the disk has it.
    pub fn append(&self, configuration: &str, metric: &Metric, run: &Run) -> Result<(), LabError> {
        let line =
            serde_json::to_string(run).map_err(|e| LabError::new(format!("run of {configuration}: {e}")))?;
        append_line(&self.dir.join("raw").join(format!("{configuration}.jsonl")), &line)?;
        match run.sample.as_ref().and_then(|s| metric.of(s)) {
            Some(value) => append_line(
                &self.dir.join("raw").join(format!("{configuration}.{}", metric.0)),
                &value.to_string(),
            ),
            None => Ok(()),
        }
    }

    /// Writes a derived file whole: a reader sees the old one or the new one, never half of one.
    pub fn write(&self, name: &str, text: &str) -> Result<(), LabError> {
        write_whole(&self.dir.join(name), text)
    }

    /// Makes every raw file end with a whole line: what a crash left of a line is cut off, a missing line
    /// end is added.
    pub fn mend(&self, evidence: &Evidence) -> Result<(), LabError> {
        for tail in &evidence.tails {
            let mend = || -> std::io::Result<()> {
                let mut file = OpenOptions::new().append(true).open(&tail.path)?;
                match tail.torn_bytes {
                    0 => file.write_all(b"\n")?,
                    _ => file.set_len(tail.whole_bytes)?,
                }
                file.sync_all()
            };
            mend().map_err(|e| LabError::new(format!("{}: {e}; make it writable", tail.path.display())))?;
        }
        Ok(())
    }
}

fn hold(dir: &Path) -> Result<Lock, LabError> {
    let shown = dir.display();
    lock::take(dir)
        .map_err(|e| LabError::new(format!("{shown}: {e}; name the folder a campaign was written to")))?
        .ok_or_else(|| {
            LabError::new(format!(
                "{shown}: a campaign is under way in it; wait for it, or choose another --out"
            ))
        })
}

/// Whether a crash before the first run left only what [`Store::create`] itself makes.
fn unbegun(dir: &Path) -> bool {
    let own = |e: &fs::DirEntry| e.file_name() == "raw" || e.file_name() == "manifest.json.half";
    let empty = fs::read_dir(dir.join("raw")).is_ok_and(|mut d| d.next().is_none());
    empty && fs::read_dir(dir).is_ok_and(|d| d.flatten().all(|e| own(&e)))
}

/// Files with one value a line that do not hold what the runs say (a crash fell between the two writes,
/// or a hand did) are written again; says which.
pub fn rebuild_plain_files(dir: &Path, metric: &Metric, runs: &Runs) -> Result<Vec<String>, LabError> {
    let mut rebuilt = Vec::new();
    for (name, runs) in runs {
        let values = runs.iter().filter_map(|r| metric.of(r.sample.as_ref()?));
        let expected: String = values.map(|f| format!("{f}\n")).collect();
        let path = dir.join("raw").join(format!("{name}.{}", metric.0));
        let found = fs::read(&path).unwrap_or_default();
        if found != expected.as_bytes() {
            write_whole(&path, &expected)?;
            rebuilt.push(format!("{}: did not hold what {name}.jsonl says; written again", path.display()));
        }
    }
    Ok(rebuilt)
}

/// The old file or the new one, whole, even after a power cut: written beside it, flushed, renamed over it,
/// and the folder flushed.
pub fn write_whole(path: &Path, text: &str) -> Result<(), LabError> {
    let mut half = path.as_os_str().to_owned();
    half.push(".half");
    let half = PathBuf::from(half);
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&half)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&half, path)?;
        sync_folder_of(path)
    };
    write().map_err(|e| LabError::new(format!("{}: {e}; free space or choose another --out", path.display())))
}

/// Adds a line and waits until the disk has it.
pub fn append_line(path: &Path, line: &str) -> Result<(), LabError> {
    let append = || -> std::io::Result<()> {
        let new = !path.exists();
        let mut file: File = OpenOptions::new().create(true).append(true).open(path)?;
        file.write_all(format!("{line}\n").as_bytes())?;
        file.sync_data()?;
        if new { sync_folder_of(path) } else { Ok(()) }
    };
    append()
        .map_err(|e| LabError::new(format!("{}: {e}; free space or choose another --out", path.display())))
}

/// A name is on the disk only when its folder is.
fn sync_folder_of(path: &Path) -> std::io::Result<()> {
    match path.parent().filter(|p| !p.as_os_str().is_empty()) {
        Some(folder) => File::open(folder)?.sync_all(),
        None => File::open(".")?.sync_all(),
    }
}

/// `DIR.1`, or the first number that is free.
pub fn free_name(dir: &Path) -> PathBuf {
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

#[cfg(test)]
mod tests;
