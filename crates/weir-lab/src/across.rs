//! Several campaigns beside each other: what was measured, when, and what differs between them.
//!
//! ```text
//! DIR … manifest.json + raw/ ─► Campaign ─┬─► versus: one against others, configuration by configuration
//!       or result.json                    └─► history: all of one experiment, in time order
//! ```
//!
//! Promises: values come from the raw runs where they are, checked as any report checks them; every known
//! difference between two campaigns is named. Refuses: to call values of two campaigns interleaved.

pub mod history;
pub mod imported;
pub mod trend;
pub mod versus;

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::campaign::{builds, machines, other_machines};
use crate::experiment::Metric;
use crate::machine::utc;
use crate::manifest::Manifest;
use crate::model::{Configuration, LabError};
use crate::result::Results;
use crate::store::read_runs;

/// Folders below the one asked for: `runs/2026/november/demo` is three.
const DEEPEST: usize = 6;

/// One campaign's values.
#[derive(Clone, Debug)]
pub struct Campaign {
    pub dir: PathBuf,
    /// Absent where only a `result.json` is left: then neither time nor machine is known.
    pub manifest: Option<Manifest>,
    /// The experiment's.
    pub name: String,
    pub metric: Metric,
    pub quick: bool,
    pub seed: u64,
    pub measured: Vec<Measured>,
}

/// The metric of one configuration, run by run.
#[derive(Clone, Debug)]
pub struct Measured {
    pub configuration: Configuration,
    pub values: Vec<f64>,
}

impl Campaign {
    /// The campaign in `dir`: from its raw runs, or from `result.json` where those are gone.
    pub fn open(dir: &Path) -> Result<Campaign, LabError> {
        let has = |name: &str| dir.join(name).exists();
        match (has("manifest.json"), has("raw"), has("result.json")) {
            (true, true, _) => Campaign::of_raw_runs(dir),
            (manifest, _, true) => {
                let manifest = if manifest { Some(Manifest::read(dir)?) } else { None };
                Ok(Campaign::of_results(dir, manifest, Results::read(dir)?))
            }
            _ => Err(LabError::new(format!(
                "{}: neither manifest.json with raw/ nor result.json; name the folder a campaign was written to",
                dir.display()
            ))),
        }
    }

    fn of_raw_runs(dir: &Path) -> Result<Campaign, LabError> {
        let manifest = Manifest::read(dir)?;
        let runs = read_runs(dir, &manifest)?.runs;
        let experiment = &manifest.experiment;
        let measured = experiment.configurations.iter().filter_map(|p| {
            let samples = runs.get(&p.configuration.name)?.iter().filter_map(|r| r.sample.as_ref());
            let values: Vec<f64> = samples.filter_map(|s| experiment.metric.of(s)).collect();
            (!values.is_empty()).then(|| Measured { configuration: p.configuration.clone(), values })
        });
        Ok(Campaign {
            dir: dir.into(),
            name: experiment.name.clone(),
            metric: experiment.metric.clone(),
            quick: experiment.quick,
            seed: manifest.seed,
            measured: measured.collect(),
            manifest: Some(manifest),
        })
    }

    fn of_results(dir: &Path, manifest: Option<Manifest>, results: Results) -> Campaign {
        let outcomes = results.configurations.into_iter().filter(|o| !o.values.is_empty());
        Campaign {
            dir: dir.into(),
            manifest,
            name: results.name,
            metric: results.metric,
            quick: results.quick,
            seed: results.seed,
            measured: outcomes
                .map(|o| Measured { configuration: o.configuration, values: o.values })
                .collect(),
        }
    }

    pub fn started_unix_ms(&self) -> Option<u64> {
        self.manifest.as_ref().map(|m| m.started_unix_ms)
    }

    pub fn measured(&self, configuration: &str) -> Option<&Measured> {
        self.measured.iter().find(|m| m.configuration.name == configuration)
    }

    /// Whether both have the same runs: one is a copied folder.
    pub fn same_as(&self, other: &Campaign) -> bool {
        self.name == other.name
            && self.seed == other.seed
            && self.started_unix_ms().is_some()
            && self.started_unix_ms() == other.started_unix_ms()
    }
}

/// A campaign by what a reader knows it by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Label {
    pub folder: String,
    pub started_unix_ms: Option<u64>,
    pub commit: Option<String>,
    pub kernel: Option<String>,
}

impl Label {
    pub fn of(campaign: &Campaign) -> Label {
        let manifest = campaign.manifest.as_ref();
        Label {
            folder: campaign.dir.display().to_string(),
            started_unix_ms: campaign.started_unix_ms(),
            commit: manifest.map(|m| m.build.commit.clone()).filter(|c| !c.is_empty()),
            kernel: manifest.map(|m| m.machine.kernel.clone()),
        }
    }

    /// `2026-01-31 23:59:59 UTC, kernel 6.1, commit 0123456789ab`.
    pub fn facts(&self) -> String {
        let facts = [
            Some(self.started_unix_ms.map_or("time unknown (no manifest.json)".into(), utc)),
            self.kernel.as_ref().map(|k| format!("kernel {k}")),
            self.commit.as_ref().map(|c| format!("commit {}", c.get(..12).unwrap_or(c))),
        ];
        facts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// What differs between two campaigns beside their values: build, machine, experiment. Each with both
/// values.
pub fn differences(then: &Campaign, now: &Campaign) -> Vec<String> {
    let (Some(a), Some(b)) = (&then.manifest, &now.manifest) else {
        let without = if then.manifest.is_none() { then } else { now };
        return vec![format!("machine and build: unknown, {} has no manifest.json", without.dir.display())];
    };
    let mut found = builds(&a.build, &b.build);
    found.extend(machines(&a.machine, &b.machine));
    found.extend(other_machines(&a.machines, &b.machines));
    found.extend(settings(a, b));
    found
}

/// Every value of the experiment that is no name, sentence or list of configurations: those are compared
/// one by one where their values are.
fn settings(then: &Manifest, now: &Manifest) -> Vec<String> {
    const ELSEWHERE: [&str; 6] = ["name", "title", "question", "configurations", "pairs", "controls"];
    let value = |m: &Manifest| serde_json::to_value(&m.experiment).unwrap_or_default();
    let (a, b) = (value(then), value(now));
    let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else { return Vec::new() };
    let keys = a.keys().chain(b.keys().filter(|k| !a.contains_key(*k)));
    let absent = serde_json::Value::Null;
    keys.filter(|k| !ELSEWHERE.contains(&k.as_str()))
        .map(|k| (k, a.get(k).unwrap_or(&absent), b.get(k).unwrap_or(&absent)))
        .filter(|(_, a, b)| a != b)
        .map(|(k, a, b)| format!("experiment, {k}: {a} → {b}"))
        .collect()
}

/// Every campaign under `root`, earliest first; and what was left out, one sentence each.
pub fn find(root: &Path) -> Result<(Vec<Campaign>, Vec<String>), LabError> {
    let (mut found, mut left_out) = (Vec::new(), Vec::new());
    std::fs::read_dir(root)
        .map_err(|e| LabError::new(format!("{}: {e}; name a folder that holds campaigns", root.display())))?;
    descend(root, DEEPEST, &mut found, &mut left_out);
    found.sort_by(|a: &Campaign, b| (a.started_unix_ms(), &a.dir).cmp(&(b.started_unix_ms(), &b.dir)));
    let mut kept: Vec<Campaign> = Vec::new();
    for campaign in found {
        match kept.iter().find(|k| k.same_as(&campaign)) {
            Some(first) => left_out.push(format!(
                "{}: a copy of {}, counted once",
                campaign.dir.display(),
                first.dir.display()
            )),
            None => kept.push(campaign),
        }
    }
    Ok((kept, left_out))
}

fn descend(dir: &Path, deeper: usize, found: &mut Vec<Campaign>, left_out: &mut Vec<String>) {
    if dir.join("manifest.json").exists() || dir.join("result.json").exists() {
        match Campaign::open(dir) {
            Ok(campaign) if campaign.manifest.is_some() => found.push(campaign),
            Ok(_) => left_out.push(format!("{}: no manifest.json, so its time is unknown", dir.display())),
            Err(e) => left_out.push(e.said),
        }
        return;
    }
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    let mut folders: Vec<PathBuf> = entries
        .flatten()
        // not behind links: a loop of them has no end
        .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
        .map(|e| e.path())
        .collect();
    folders.sort();
    for folder in folders {
        match deeper {
            0 => {
                left_out.push(format!("{}: deeper than {DEEPEST} folders; name it itself", folder.display()))
            }
            _ => descend(&folder, deeper - 1, found, left_out),
        }
    }
}
