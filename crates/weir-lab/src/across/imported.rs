//! Results of other benchmarking tools beside each other: hyperfine's and criterion.rs's.
//!
//! ```text
//! FILE.json            hyperfine --export-json: a benchmark a command, its times
//! DIR, DIR@BASELINE    criterion's folder: a benchmark for each …/BASELINE/sample.json (without one: new)
//! ```
//!
//! Promises: every value is one the tool measured, in seconds; verdicts are those of campaigns. Refuses: files of which the
//! single values are gone, two benchmarks of one name, and a comparison of one tool with another.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weir_stats::compare::{Analysis, Comparison, Pair, Rules, compare};
use weir_stats::paired::Series;
use weir_stats::{Summary, Verdict};

/// Folders between criterion's and a benchmark's: group, function, parameter, and one to spare.
const DEEPEST: usize = 6;
/// What criterion calls the newest measurement.
const NEWEST: &str = "new";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tool {
    Hyperfine,
    Criterion,
}

/// Benchmarks of one measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    pub source: String,
    pub tool: Tool,
    pub benchmarks: Vec<Benchmark>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Benchmark {
    pub name: String,
    /// Times, in seconds.
    pub seconds: Vec<f64>,
    /// Runs whose program failed; their times are among the values.
    pub failed: usize,
}

/// Why there is nothing to compare.
#[derive(Debug)]
pub enum ImportError {
    Unread {
        path: PathBuf,
        error: std::io::Error,
    },
    Json {
        path: PathBuf,
        error: serde_json::Error,
    },
    /// A benchmark without its single values.
    NoValues {
        path: PathBuf,
        name: String,
    },
    /// A time that is none.
    NoTime {
        path: PathBuf,
        name: String,
        got: f64,
    },
    SameName {
        path: PathBuf,
        name: String,
    },
    NoBaseline {
        path: PathBuf,
        baseline: String,
    },
    Mixed,
    NothingShared,
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ImportError::Unread { path, error } => write!(f, "{}: {error}", path.display()),
            ImportError::Json { path, error } => write!(
                f,
                "{}: {error}; expected what `hyperfine --export-json` or criterion writes",
                path.display()
            ),
            ImportError::NoValues { path, name } => write!(
                f,
                "{}: \"{name}\" has no times of single runs: export it again (`hyperfine --export-json`)",
                path.display()
            ),
            ImportError::NoTime { path, name, got } => {
                write!(f, "{}: \"{name}\": got a time of {got}, expected seconds above 0", path.display())
            }
            ImportError::SameName { path, name } => write!(
                f,
                "{}: two benchmarks are called \"{name}\": name them apart (`hyperfine --command-name`)",
                path.display()
            ),
            ImportError::NoBaseline { path, baseline } => write!(
                f,
                "{}: no benchmark has a measurement \"{baseline}\"; `cargo bench -- --save-baseline {baseline}` \
                 makes one",
                path.display()
            ),
            ImportError::Mixed => f.write_str(
                "results of several tools: compare campaigns with campaigns, hyperfine's files or criterion's \
                 folders with their like",
            ),
            ImportError::NothingShared => f.write_str(
                "no benchmark is in two of them: names have to be the same (`hyperfine --command-name`)",
            ),
        }
    }
}

impl std::error::Error for ImportError {}

/// What hyperfine exports, as far as it is used.
#[derive(Deserialize)]
struct Export {
    results: Vec<Timed>,
}

#[derive(Deserialize)]
struct Timed {
    command: String,
    #[serde(default)]
    times: Vec<f64>,
    #[serde(default)]
    exit_codes: Vec<Option<i32>>,
}

/// What criterion keeps of a measurement: iterations and nanoseconds of each sample.
#[derive(Deserialize)]
struct Sampled {
    iters: Vec<f64>,
    times: Vec<f64>,
}

#[derive(Deserialize)]
struct Named {
    full_id: String,
}

impl Imported {
    /// What another tool left at `path`; `None` where no tool known here did.
    pub fn open(path: &Path) -> Result<Option<Imported>, ImportError> {
        if path.is_file() {
            return Imported::of_hyperfine(path).map(Some);
        }
        let text = path.to_string_lossy();
        let (folder, baseline) = match text.rsplit_once('@') {
            Some((folder, baseline)) if !path.exists() => (Path::new(folder), baseline),
            _ => (path, NEWEST),
        };
        let is_campaign = ["manifest.json", "result.json"].iter().any(|name| folder.join(name).exists());
        if is_campaign || !folder.is_dir() {
            return Ok(None);
        }
        Imported::of_criterion(folder, baseline, path)
    }

    fn of_hyperfine(path: &Path) -> Result<Imported, ImportError> {
        let export: Export = read(path)?;
        let benchmarks = export.results.into_iter().map(|timed| Benchmark {
            failed: timed.exit_codes.iter().filter(|code| **code != Some(0)).count(),
            name: timed.command,
            seconds: timed.times,
        });
        Imported {
            source: path.display().to_string(),
            tool: Tool::Hyperfine,
            benchmarks: benchmarks.collect(),
        }
        .checked(path)
    }

    fn of_criterion(folder: &Path, baseline: &str, path: &Path) -> Result<Option<Imported>, ImportError> {
        let mut found = BTreeSet::new();
        let mut is_criterions = false;
        measurements(folder, DEEPEST, &mut |measurement| {
            is_criterions = true;
            if measurement.file_name().is_some_and(|name| name == baseline) {
                found.insert(measurement.to_path_buf());
            }
        });
        if found.is_empty() {
            let missing = ImportError::NoBaseline { path: folder.into(), baseline: baseline.into() };
            return if is_criterions { Err(missing) } else { Ok(None) };
        }
        let mut benchmarks = Vec::new();
        for measurement in found {
            let sampled: Sampled = read(&measurement.join("sample.json"))?;
            let named: Result<Named, _> = read(&measurement.join("benchmark.json"));
            let place = measurement.parent().and_then(|p| p.strip_prefix(folder).ok());
            let place = place.map_or(String::new(), |p| p.display().to_string());
            let name = named.map_or(place, |named| named.full_id);
            let seconds = sampled.times.iter().zip(&sampled.iters).map(|(ns, n)| ns / n / 1e9).collect();
            benchmarks.push(Benchmark { name, seconds, failed: 0 });
        }
        let imported = Imported { source: path.display().to_string(), tool: Tool::Criterion, benchmarks };
        imported.checked(path).map(Some)
    }

    fn checked(self, path: &Path) -> Result<Imported, ImportError> {
        let mut names = BTreeSet::new();
        for Benchmark { name, seconds, .. } in &self.benchmarks {
            let (path, name) = (path.to_path_buf(), name.clone());
            if seconds.is_empty() {
                return Err(ImportError::NoValues { path, name });
            }
            if let Some(&got) = seconds.iter().find(|s| !(s.is_finite() && **s > 0.0)) {
                return Err(ImportError::NoTime { path, name, got });
            }
            if !names.insert(name.clone()) {
                return Err(ImportError::SameName { path, name });
            }
        }
        Ok(self)
    }

    fn benchmark(&self, name: &str) -> Option<&Benchmark> {
        self.benchmarks.iter().find(|b| b.name == name)
    }
}

fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T, ImportError> {
    let bytes = fs::read(path).map_err(|error| ImportError::Unread { path: path.into(), error })?;
    serde_json::from_slice(&bytes).map_err(|error| ImportError::Json { path: path.into(), error })
}

/// Folders below `folder` that hold a sample of criterion's.
fn measurements(folder: &Path, deeper: usize, each: &mut dyn FnMut(&Path)) {
    if folder.join("sample.json").is_file() {
        return each(folder);
    }
    if deeper > 0 {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()).filter(|path| path.is_dir()) {
            measurements(&path, deeper - 1, each);
        }
    }
}

/// One measurement, or the first command of one, against others.
#[derive(Debug, Serialize)]
pub struct Against {
    pub tool: Tool,
    pub reference: String,
    pub margin_percent: f64,
    pub others: Vec<Other>,
    /// Runs of one did not take turns with those of the other.
    pub interleaved: bool,
    pub cautions: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct Other {
    pub source: String,
    pub rows: Vec<Row>,
    pub not_compared: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct Row {
    pub benchmark: String,
    /// In seconds.
    pub old: Summary,
    pub new: Summary,
    pub comparison: Comparison,
}

impl Row {
    /// Whether it is slower by more than the margin, as far as is shown.
    pub fn is_worse(&self) -> bool {
        let c = &self.comparison;
        let small = c.p_equivalence_holm.is_some_and(|p| p <= weir_stats::compare::ALPHA);
        c.verdict == Verdict::Different && !small && self.new.mean > self.old.mean
    }
}

/// Compares by name; the commands of a single file with its first one.
pub fn against(all: &[Imported], margin_percent: f64) -> Result<Against, ImportError> {
    let (Some(first), false) = (all.first(), all.iter().any(|i| i.tool != all[0].tool)) else {
        return Err(ImportError::Mixed);
    };
    let mut pairs: Vec<(usize, &Benchmark, &Benchmark)> = Vec::new();
    let mut others: Vec<Other> = Vec::new();
    if let ([alone], Some(reference)) = (all, first.benchmarks.first()) {
        others.push(Other { source: alone.source.clone(), rows: Vec::new(), not_compared: Vec::new() });
        pairs.extend(alone.benchmarks.iter().skip(1).map(|other| (0, reference, other)));
    }
    for (n, other) in all.iter().skip(1).enumerate() {
        let shared = first.benchmarks.iter().filter_map(|b| Some((n, b, other.benchmark(&b.name)?)));
        pairs.extend(shared);
        let lacks = |of: &Imported, name: &str| format!("{name}: is in {} alone", of.source);
        let old = first.benchmarks.iter().filter(|b| other.benchmark(&b.name).is_none());
        let new = other.benchmarks.iter().filter(|b| first.benchmark(&b.name).is_none());
        let not_compared = old.map(|b| lacks(first, &b.name)).chain(new.map(|b| lacks(other, &b.name)));
        others.push(Other {
            source: other.source.clone(),
            rows: Vec::new(),
            not_compared: not_compared.collect(),
        });
    }
    if pairs.is_empty() {
        return Err(ImportError::NothingShared);
    }
    let series: Vec<Pair<'_>> = pairs
        .iter()
        .map(|(_, old, new)| Pair {
            reference: Series::of(&old.name, &old.seconds),
            other: Series::of(&new.name, &new.seconds),
        })
        .collect();
    let rules = Rules { analysis: Analysis::Welch, margin_percent, seed: 1 };
    for ((n, old, new), comparison) in pairs.into_iter().zip(compare(&series, rules)) {
        let summaries = Summary::of(&old.seconds).zip(Summary::of(&new.seconds));
        if let Some((before, after)) = summaries {
            others[n].rows.push(Row { benchmark: new.name.clone(), old: before, new: after, comparison });
        }
    }
    let failed = |i: &Imported, b: &Benchmark| {
        (b.failed > 0)
            .then(|| format!("{}: \"{}\": {} of {} runs failed", i.source, b.name, b.failed, b.seconds.len()))
    };
    let cautions = all.iter().flat_map(|i| i.benchmarks.iter().filter_map(move |b| failed(i, b))).collect();
    let reference = match all {
        [_] => first.benchmarks[0].name.clone(),
        _ => first.source.clone(),
    };
    Ok(Against { tool: first.tool, reference, margin_percent, others, interleaved: false, cautions })
}
