//! What raw runs amount to: summaries, verdicts, warnings. The content of `result.json`.
//!
//! Promises: [`derive`] is pure in the manifest and the raw runs, so that `weir-lab report` recomputes
//! every printed value. docs/result-json.md describes each field.

mod answer;
pub mod answers;
pub mod bounds;
pub mod cliffs;
pub mod frames;
pub mod searched;
pub mod settings;
pub mod verify;
pub mod warnings;

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::diagnostic::Diagnostic;
use crate::experiment::metric::loss_percent;
use crate::experiment::{Experiment, Metric};
use crate::manifest::{self, Manifest};
use crate::model::{Configuration, LabError, Sample};
use crate::profile::profiled::{self, Profiled};
use crate::store::{self, Run, read::Runs};
use answers::Answered;
use cliffs::Sought;
use searched::Searched;
use settings::Settings;
use weir_stats::compare::{Pair, Rules, compare, mean_interval};
use weir_stats::paired::Series;
use weir_stats::search::LossLedger;
use weir_stats::{Comparison, Summary};

/// The format of `result.json`: raised when a field changes its meaning or goes away.
pub const FORMAT: u32 = 4;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    pub format: u32,
    pub name: String,
    pub title: String,
    pub question: String,
    /// One sentence, the first thing a reader sees.
    pub answer: String,
    pub metric: Metric,
    pub higher_is_better: bool,
    pub quick: bool,
    pub seed: u64,
    pub runs_planned: usize,
    pub runs_measured: usize,
    pub runs_failed: usize,
    /// Planned and never started: interrupted.
    pub runs_missing: usize,
    pub configurations: Vec<Outcome>,
    pub comparisons: Vec<Comparison>,
    /// Configurations compared with themselves, a family of their own.
    #[serde(default)]
    pub controls: Vec<Comparison>,
    /// Curves against a load, each looked at for a break.
    #[serde(default)]
    pub cliffs: Vec<Sought>,
    /// How it was measured, each sentence once.
    pub notes: Vec<Diagnostic>,
    pub warnings: Vec<Diagnostic>,
    pub skipped: Vec<Skipped>,
    /// What the experiment says of its values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<Answered>,
    /// The best modes of devices, where the experiment asks for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<Settings>,
}

/// One configuration's runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub configuration: Configuration,
    /// The metric, run by run in the order measured.
    #[serde(alias = "figures")]
    pub values: Vec<f64>,
    /// Place of each value's run in the campaign.
    pub order: Vec<usize>,
    /// Block of each value's run: what pairs it with the runs of other configurations.
    #[serde(default)]
    pub blocks: Vec<usize>,
    /// Session of each value's run: 0 until the campaign was resumed.
    #[serde(default)]
    pub sessions: Vec<usize>,
    /// When each value's run began, milliseconds since 1970.
    #[serde(default)]
    pub started_unix_ms: Vec<u64>,
    pub summary: Option<Summary>,
    /// 95 % interval of the mean.
    pub interval: Option<(f64, f64)>,
    pub pps: Option<Summary>,
    pub loss_percent: Option<Summary>,
    /// Every further value, by name.
    pub further: BTreeMap<String, Summary>,
    /// Nanoseconds, by percentile.
    pub latency_ns: BTreeMap<String, Summary>,
    /// Sums over all runs.
    pub ledger: LossLedger,
    pub unaccounted: i64,
    pub reordered: u64,
    pub duplicated: u64,
    /// What searches saw and found; none of runs of single trials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub searched: Option<Searched>,
    /// Share of the rate that generator and sink reach by themselves.
    #[serde(alias = "ceiling_share")]
    pub baseline_share: Option<f64>,
    /// What whoever measured said, each sentence once.
    pub notes: Vec<String>,
    /// Which of them say that something better was refused.
    #[serde(skip)]
    pub fallbacks: Vec<String>,
    /// Why runs failed, one sentence a run.
    pub failures: Vec<String>,
    /// Which of them are findings about the system under test.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub misbehaved: Vec<String>,
    /// Profiled runs, none of them among the values.
    #[serde(default)]
    pub profiles: Vec<Profiled>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    pub configuration: String,
    pub reason: String,
}

impl Results {
    pub fn outcome(&self, name: &str) -> Option<&Outcome> {
        self.configurations.iter().find(|o| o.configuration.name == name)
    }

    /// `result.json` as written.
    pub fn read(dir: &Path) -> Result<Results, LabError> {
        let path = dir.join("result.json");
        let shown = path.display();
        let text = std::fs::read_to_string(&path).map_err(|e| {
            LabError::new(format!("{shown}: {e}; `weir-lab report {}` derives it", dir.display()))
        })?;
        manifest::parse_versioned(&text, FORMAT).map_err(|why| {
            LabError::new(format!(
                "{shown}: not a result ({why}); `weir-lab report {}` derives it again",
                dir.display()
            ))
        })
    }

    /// Whether `name` is there only to be compared with itself.
    pub fn is_control(&self, name: &str) -> bool {
        self.controls.iter().any(|c| c.other == name)
    }
}

/// Reads manifest and raw files of `dir` and derives everything from them.
pub fn derive(dir: &Path) -> Result<(Manifest, Results), LabError> {
    derive_with_runs(dir).map(|(manifest, results, _)| (manifest, results))
}

/// The same with the runs, for those who derive more.
pub fn derive_with_runs(dir: &Path) -> Result<(Manifest, Results, Runs), LabError> {
    let manifest = Manifest::read(dir)?;
    let evidence = store::read_runs(dir, &manifest)?;
    let mut results = summarise(&manifest, &evidence.runs);
    for outcome in &mut results.configurations {
        outcome.profiles = profiled::read(dir, &outcome.configuration.name);
    }
    results.warnings.extend(warnings::of_sessions(&manifest, &evidence));
    results.warnings.extend(warnings::of_cpus(&evidence.runs));
    results.settings = settings::of(&manifest.experiment, manifest.seed, &results);
    results.answers = answers::of(&manifest.experiment, manifest.seed, &results, &evidence.runs);
    Ok((manifest, results, evidence.runs))
}

fn summarise(manifest: &Manifest, runs: &Runs) -> Results {
    let experiment = &manifest.experiment;
    let mut outcomes: Vec<Outcome> = experiment
        .configurations
        .iter()
        .filter(|p| !manifest.skipped.contains_key(&p.configuration.name))
        .map(|p| {
            let none = Vec::new();
            outcome_of(&p.configuration, runs.get(&p.configuration.name).unwrap_or(&none), &experiment.metric)
        })
        .collect();
    share_of_baseline(manifest, &mut outcomes);
    let compared =
        |pairs: &[_]| comparisons((experiment, manifest.seed), &experiment.metric, (&outcomes, runs), pairs);
    let controls = compared(&experiment.controls);
    let comparisons = compared(&experiment.pairs);
    let planned = outcomes.len() * experiment.runs;
    let measured = outcomes.iter().map(|o| o.pps.map_or(0, |s| s.n)).sum::<usize>();
    let failed = outcomes.iter().map(|o| o.failures.len()).sum::<usize>();
    let skipped = manifest.skipped.iter();
    let mut results = Results {
        format: FORMAT,
        name: experiment.name.clone(),
        title: experiment.title.clone(),
        question: experiment.question.clone(),
        answer: String::new(),
        metric: experiment.metric.clone(),
        higher_is_better: experiment.metric.higher_is_better(),
        quick: experiment.quick,
        seed: manifest.seed,
        runs_planned: planned,
        runs_measured: measured,
        runs_failed: failed,
        runs_missing: planned.saturating_sub(measured + failed),
        notes: warnings::notes(&outcomes),
        configurations: outcomes,
        comparisons,
        controls,
        cliffs: cliffs::of(experiment, runs),
        warnings: Vec::new(),
        skipped: skipped
            .map(|(name, reason)| Skipped { configuration: name.clone(), reason: reason.clone() })
            .collect(),
        answers: Vec::new(),
        settings: None,
    };
    results.warnings = warnings::of(manifest, &results);
    results.answer = answer::sentence(&results, experiment.pairs.len());
    results
}

fn outcome_of(configuration: &Configuration, runs: &[Run], metric: &Metric) -> Outcome {
    let samples: Vec<&Sample> = runs.iter().filter_map(|r| r.sample.as_ref()).collect();
    let measured = || runs.iter().filter_map(|r| Some((r, metric.of(r.sample.as_ref()?)?)));
    let values: Vec<f64> = measured().map(|(_, value)| value).collect();
    let over = |value: &dyn Fn(&Sample) -> Option<f64>| {
        Summary::of(&samples.iter().filter_map(|s| value(s)).collect::<Vec<f64>>())
    };
    let mut ledger = LossLedger::default();
    let mut notes: Vec<String> = Vec::new();
    for sample in &samples {
        ledger.add(&sample.ledger);
        notes.extend(sample.notes.iter().cloned());
    }
    notes.sort_unstable();
    notes.dedup();
    let fallbacks = samples.iter().flat_map(|s| warnings::fallbacks(s)).collect();
    let keys = |of: &dyn Fn(&Sample) -> Vec<String>| -> Vec<String> {
        let mut keys: Vec<String> = samples.iter().flat_map(|s| of(s)).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    };
    let further = keys(&|s| s.metrics.keys().cloned().collect())
        .into_iter()
        .filter_map(|k| Some((k.clone(), over(&|s| s.metrics.get(&k).copied())?)))
        .collect();
    let latency_ns = keys(&|s| s.latency_ns.keys().cloned().collect())
        .into_iter()
        .filter_map(|k| Some((k.clone(), over(&|s| s.latency_ns.get(&k).map(|&v| v as f64))?)))
        .collect();
    Outcome {
        configuration: configuration.clone(),
        summary: Summary::of(&values),
        interval: mean_interval(&values),
        values,
        order: measured().map(|(run, _)| run.order).collect(),
        blocks: measured().map(|(run, _)| run.block).collect(),
        sessions: measured().map(|(run, _)| run.session).collect(),
        started_unix_ms: measured().map(|(run, _)| run.started_unix_ms).collect(),
        pps: over(&|s| Some(s.pps)),
        loss_percent: over(&loss_percent),
        further,
        latency_ns,
        unaccounted: ledger.unaccounted(),
        ledger,
        reordered: samples.iter().map(|s| s.reordered).sum(),
        duplicated: samples.iter().map(|s| s.duplicated).sum(),
        searched: Searched::of(&samples),
        baseline_share: None,
        notes,
        fallbacks,
        failures: runs.iter().filter_map(|r| r.error.clone()).collect(),
        misbehaved: runs
            .iter()
            .filter(|r| r.misbehaviour.is_some())
            .filter_map(|r| r.error.clone())
            .collect(),
        profiles: Vec::new(),
    }
}

fn share_of_baseline(manifest: &Manifest, outcomes: &mut [Outcome]) {
    let rates: BTreeMap<String, f64> =
        outcomes.iter().filter_map(|o| Some((o.configuration.name.clone(), o.pps?.median))).collect();
    for outcome in outcomes {
        let baseline =
            manifest.experiment.baseline_of(&outcome.configuration).and_then(|c| rates.get(&c.name));
        outcome.baseline_share = match (baseline, outcome.pps) {
            (Some(&baseline), Some(own)) if baseline > 0.0 => Some(own.median / baseline),
            _ => None,
        };
    }
}

/// Every pair of which both sides ran, as one family.
fn comparisons(
    (experiment, seed): (&Experiment, u64),
    metric: &Metric,
    (outcomes, runs): (&[Outcome], &Runs),
    pairs: &[(String, String)],
) -> Vec<Comparison> {
    // runs of one block that an interrupt parted are no pair: a block is one only within a session
    let blocks: Vec<Vec<usize>> = outcomes
        .iter()
        .map(|o| o.blocks.iter().zip(&o.sessions).map(|(b, s)| b + s * experiment.runs).collect())
        .collect();
    let sliced = experiment.slicing().is_some();
    let rounds: Vec<Vec<Vec<f64>>> = outcomes
        .iter()
        .map(|o| runs.get(&o.configuration.name).map_or(Vec::new(), |runs| in_rounds(runs, sliced, metric)))
        .collect();
    let series = |name: &str| {
        let at = outcomes.iter().position(|o| o.configuration.name == name && !o.values.is_empty())?;
        let (name, values) = (&outcomes[at].configuration.name, &outcomes[at].values);
        Some(Series { name, values, blocks: &blocks[at], rounds: &rounds[at] })
    };
    let pairs: Vec<Pair<'_>> =
        pairs.iter().filter_map(|(a, b)| Some(Pair { reference: series(a)?, other: series(b)? })).collect();
    let Experiment { analysis, margin_percent, .. } = *experiment;
    compare(&pairs, Rules { analysis, margin_percent, seed })
}

/// The metric of every slice of each run that has a value; empty where runs are whole. One that is whole among
/// sliced ones is a round by itself.
fn in_rounds(runs: &[Run], sliced: bool, metric: &Metric) -> Vec<Vec<f64>> {
    let measured = runs.iter().filter_map(|r| r.sample.as_ref().filter(|s| metric.of(s).is_some()));
    let of = |sample: &Sample| {
        if sliced && sample.slices.is_empty() {
            return metric.of(sample).into_iter().collect();
        }
        let slices = sample.slices.iter().map(|s| metric.of(&s.sample()));
        slices.collect::<Option<Vec<f64>>>().unwrap_or_default()
    };
    let all: Vec<Vec<f64>> = measured.map(of).collect();
    if all.iter().all(Vec::is_empty) { Vec::new() } else { all }
}
