//! Raw files read back: every line checked against the manifest's order before a value is derived from it.
//!
//! Promises: a file cut short anywhere yields every whole run before the cut, and says what was left out.
//! Refuses, with file and line: newer formats, lines that are no run, values that cannot be (negative,
//! not finite), runs of another slot or measured twice, files of configurations the manifest lacks.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{FORMAT, Run, first_format};
use crate::manifest::{Manifest, NotReadable};
use crate::model::{LabError, Sample, slices};

/// Raw runs by configuration, in the order measured.
pub type Runs = BTreeMap<String, Vec<Run>>;

/// What the raw files of a campaign hold.
#[derive(Debug, Default)]
pub struct Evidence {
    /// The last word on every slot.
    pub runs: Runs,
    /// Files that do not end with a whole line.
    pub tails: Vec<Tail>,
    /// Configuration and order of runs that failed and were measured again in a later session.
    pub repeated: Vec<(String, usize)>,
    /// The same of runs in slices that did not fail: one measured in turn with them was missing.
    pub with_others: Vec<(String, usize)>,
}

/// The end of a file that a crash left without a line end.
#[derive(Debug, PartialEq, Eq)]
pub struct Tail {
    pub configuration: String,
    pub path: PathBuf,
    pub whole_bytes: u64,
    /// Bytes of the line cut short; 0 when only the line end is missing.
    pub torn_bytes: u64,
}

impl Evidence {
    /// What was left out, one sentence a file.
    pub fn left_out(&self) -> impl Iterator<Item = String> + '_ {
        self.tails.iter().filter(|t| t.torn_bytes > 0).map(|t| {
            format!(
                "{}: the last run was cut short while it was written; its {} bytes are left out",
                t.configuration, t.torn_bytes
            )
        })
    }
}

/// Reads and checks every raw file of `dir`.
pub fn read_runs(dir: &Path, manifest: &Manifest) -> Result<Evidence, LabError> {
    let raw = dir.join("raw");
    let slots = Slots::of(manifest);
    refuse_unknown(&raw, manifest)?;
    let mut evidence = Evidence::default();
    let mut seeds = BTreeMap::new();
    for planned in &manifest.experiment.configurations {
        let name = &planned.configuration.name;
        let path = raw.join(format!("{name}.jsonl"));
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            Err(e) => return Err(LabError::new(format!("{}: {e}; make it readable", path.display()))),
        };
        let file = File { name, path, slots: &slots };
        file.read(&bytes, &mut evidence, &mut seeds)?;
    }
    Ok(evidence)
}

/// Which configuration runs where: order → (block, configuration).
struct Slots<'a> {
    by_order: Vec<(usize, &'a str)>,
    sessions: usize,
    /// Runs in slices are measured again with those they are compared with.
    sliced: bool,
}

impl Slots<'_> {
    fn of(manifest: &Manifest) -> Slots<'_> {
        let blocks = manifest.order.iter().enumerate();
        Slots {
            by_order: blocks.flat_map(|(i, names)| names.iter().map(move |n| (i, n.as_str()))).collect(),
            sessions: manifest.resumed.len() + 1,
            sliced: manifest.experiment.slicing().is_some(),
        }
    }
}

/// One raw file being read.
struct File<'a> {
    name: &'a str,
    path: PathBuf,
    slots: &'a Slots<'a>,
}

impl File<'_> {
    fn read(
        &self,
        bytes: &[u8],
        evidence: &mut Evidence,
        seeds: &mut BTreeMap<usize, u64>,
    ) -> Result<(), LabError> {
        let mut runs: Vec<(usize, Run)> = Vec::new();
        let mut whole_bytes = 0;
        for (i, line) in bytes.split_inclusive(|&b| b == b'\n').enumerate() {
            let ended = line.ends_with(b"\n");
            let torn_bytes = match parse(line) {
                Ok(run) => {
                    self.take(i + 1, run, &mut runs, evidence, seeds)?;
                    0
                }
                // what a crash cut off is no JSON; a whole object behind the last line end is refused as any
                Err(_) if !ended && serde_json::from_slice::<IgnoredAny>(line).is_err() => line.len() as u64,
                Err(why) => return Err(self.refuse(i + 1, &why)),
            };
            if !ended {
                let (configuration, path) = (self.name.to_string(), self.path.clone());
                evidence.tails.push(Tail { configuration, path, whole_bytes, torn_bytes });
            }
            whole_bytes += line.len() as u64;
        }
        evidence.runs.insert(self.name.into(), runs.into_iter().map(|(_, run)| run).collect());
        Ok(())
    }

    /// Checks a run against its slot; one that failed, or is in slices, may be followed by another of a later
    /// session.
    fn take(
        &self,
        line: usize,
        run: Run,
        runs: &mut Vec<(usize, Run)>,
        evidence: &mut Evidence,
        seeds: &mut BTreeMap<usize, u64>,
    ) -> Result<(), LabError> {
        self.check(&run).map_err(|why| self.refuse(line, &why))?;
        let seed = *seeds.entry(run.block).or_insert(run.seed);
        if seed != run.seed {
            let why = format!("seed {}, but other runs of block {} have {seed}", run.seed, run.block);
            return Err(self.refuse(line, &why));
        }
        if let Some(at) = runs.iter().position(|(_, earlier)| earlier.order == run.order) {
            let (first, earlier) = &runs[at];
            let settled = earlier.error.is_none() && !self.slots.sliced;
            if settled || earlier.session >= run.session {
                let why = format!("order {} is already in line {first}", run.order);
                return Err(self.refuse(line, &why));
            }
            let list = match earlier.error {
                Some(_) => &mut evidence.repeated,
                None => &mut evidence.with_others,
            };
            list.push((self.name.into(), run.order));
            runs.remove(at);
        }
        runs.push((line, run));
        Ok(())
    }

    fn check<'b>(&'b self, run: &'b Run) -> Result<(), NoRun<'b>> {
        let Some(&(block, name)) = self.slots.by_order.get(run.order) else {
            return Err(NoRun::Order { got: run.order, below: self.slots.by_order.len() });
        };
        if name != self.name {
            return Err(NoRun::OfAnother { order: run.order, its: name, not: self.name });
        }
        if block != run.block {
            return Err(NoRun::Block { got: run.block, expected: block, order: run.order });
        }
        if run.session >= self.slots.sessions {
            return Err(NoRun::Session { got: run.session, below: self.slots.sessions });
        }
        match (&run.sample, &run.error) {
            (Some(sample), None) => impossible(sample).map_or(Ok(()), |why| Err(NoRun::Impossible(why))),
            (None, Some(_)) => Ok(()),
            _ => Err(NoRun::BothOrNeither),
        }
    }

    fn refuse(&self, line: usize, why: &dyn fmt::Display) -> LabError {
        LabError::new(format!(
            "{}:{line}: not a run of this campaign ({why}); restore the file or remove the line",
            self.path.display()
        ))
    }
}

/// Why a line is no run of its campaign.
enum NoRun<'a> {
    Order { got: usize, below: usize },
    OfAnother { order: usize, its: &'a str, not: &'a str },
    Block { got: usize, expected: usize, order: usize },
    Session { got: usize, below: usize },
    Impossible(String),
    BothOrNeither,
}

impl fmt::Display for NoRun<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoRun::Order { got, below } => write!(f, "order {got}, expected below {below}"),
            NoRun::OfAnother { order, its, not } => {
                write!(f, "order {order} is {its}'s in manifest.json, not {not}'s")
            }
            NoRun::Block { got, expected, order } => {
                write!(f, "block {got}, expected {expected} for order {order}")
            }
            NoRun::Session { got, below } => {
                write!(f, "session {got}, expected below {below} by manifest.json")
            }
            NoRun::Impossible(why) => f.write_str(why),
            NoRun::BothOrNeither => f.write_str("both sample and error, or neither; expected one of them"),
        }
    }
}

/// The value of a sample that no measurement can yield.
pub fn impossible(sample: &Sample) -> Option<String> {
    if !(sample.seconds.is_finite() && sample.seconds > 0.0) {
        return Some(format!("seconds {}, expected more than 0", sample.seconds));
    }
    if !(sample.pps.is_finite() && sample.pps >= 0.0) {
        return Some(format!("pps {}, expected 0 or more", sample.pps));
    }
    if let Some((name, value)) = sample.metrics.iter().find(|(_, f)| !f.is_finite()) {
        return Some(format!("{name} {value}, expected a finite number"));
    }
    slices::contradiction(sample)
}

/// A line as a run; the error says why it is none.
fn parse(line: &[u8]) -> Result<Run, NotReadable> {
    #[derive(Deserialize)]
    struct Probe {
        #[serde(default = "first_format")]
        format: u32,
    }
    let text = std::str::from_utf8(line).map_err(|_| NotReadable::NoText)?;
    let unreadable = |e| NotReadable::json(e, text);
    let format = serde_json::from_str::<Probe>(text).map_err(unreadable)?.format;
    if !(1..=FORMAT).contains(&format) {
        return Err(NotReadable::Format { format, newest: FORMAT });
    }
    serde_json::from_str(text).map_err(unreadable)
}

/// Raw files no configuration of the manifest accounts for. `<configuration>.<more>.jsonl` is one's own.
fn refuse_unknown(raw: &Path, manifest: &Manifest) -> Result<(), LabError> {
    let known = |stem: &str| {
        manifest.experiment.configurations.iter().any(|p| {
            stem.strip_prefix(p.configuration.name.as_str())
                .is_some_and(|r| r.is_empty() || r.starts_with('.'))
        })
    };
    let mut files: Vec<PathBuf> =
        fs::read_dir(raw).into_iter().flatten().flatten().map(|e| e.path()).collect();
    files.sort();
    for path in files.iter().filter(|p| p.extension().is_some_and(|e| e == "jsonl")) {
        let stem = path.file_stem().map_or(String::new(), |s| s.to_string_lossy().into_owned());
        if !known(&stem) {
            return Err(LabError::new(format!(
                "{}: manifest.json has no configuration {stem}; move the file away, or restore the manifest it belongs to",
                path.display()
            )));
        }
    }
    Ok(())
}
