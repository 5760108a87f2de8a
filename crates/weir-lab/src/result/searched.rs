//! What the searches of a configuration amount to, over all its runs.
//!
//! ```text
//! trials of every run ─► sorted by load ─► loads within 5 % (or a sweep's steps) together ─► delivered, lost …
//! goals of every run  ─► bounds, conditional throughput, how often regular, what was odd
//! ```
//!
//! Promises: every trial at a rate that was not made again is in exactly one step; bursts have no rate. Refuses: to call a step a bound: those are the goals'.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::Sample;
use weir_stats::Summary;
use weir_stats::search::Rate;
use weir_stats::search::goal::{GoalResult, Verdict};
use weir_stats::search::{TrialRecord, sweep};

/// Loads less than this apart, relative to the least, are one step.
const STEP: f64 = 0.05;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Searched {
    /// Steps in ascending order of load.
    pub steps: Vec<LoadStep>,
    pub goals: Vec<GoalOutcome>,
    /// Trials in which the source fell behind, those made again included, of all.
    #[serde(default)]
    pub held_up: usize,
    /// Seconds of trials a run.
    pub seconds: Summary,
    pub trials: Summary,
}

/// Trials at nearly one load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadStep {
    pub trials: usize,
    /// Packets a second.
    pub offered_pps: f64,
    pub delivered_pps: Summary,
    pub loss_percent: Summary,
    /// The share of what was asked that the source did not offer; above half a percent it is part of the loss.
    #[serde(default)]
    pub shortfall_percent: Option<Summary>,
    /// Nanoseconds by percentile.
    pub latency_ns: BTreeMap<String, Summary>,
    pub cpu_percent: Option<Summary>,
}

/// One goal over all runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GoalOutcome {
    pub name: String,
    pub loss_percent: f64,
    pub exceed_percent: f64,
    pub width_percent: f64,
    pub final_seconds: f64,
    pub sum_seconds: f64,
    pub lower_pps: Option<Summary>,
    pub upper_pps: Option<Summary>,
    pub conditional_pps: Option<Summary>,
    /// Runs by verdict.
    pub verdicts: BTreeMap<String, usize>,
    /// Runs with an oddity, and the first one's.
    pub odd: usize,
    pub first_oddity: Option<String>,
}

impl Searched {
    /// `None` for runs of single trials.
    pub fn of(samples: &[&Sample]) -> Option<Searched> {
        let searches: Vec<&Sample> = samples.iter().filter(|s| !s.trials.is_empty()).copied().collect();
        let over =
            |of: &dyn Fn(&Sample) -> f64| Summary::of(&searches.iter().map(|s| of(s)).collect::<Vec<f64>>());
        let loads = |t: &&TrialRecord| !t.superseded && !matches!(t.rate, Rate::Burst(_));
        let kept = searches.iter().flat_map(|s| &s.trials).filter(loads);
        let mut trials: Vec<&TrialRecord> = kept.collect();
        trials.sort_by(|a, b| a.load_pps().total_cmp(&b.load_pps()));
        let mut steps: Vec<LoadStep> = by_loads(&trials).iter().filter_map(|t| LoadStep::of(t)).collect();
        steps.sort_by(|a, b| a.offered_pps.total_cmp(&b.offered_pps));
        let count = searches.first().map_or(0, |s| s.goals.len());
        Some(Searched {
            steps,
            goals: (0..count).filter_map(|i| GoalOutcome::of(&searches, i)).collect(),
            held_up: searches.iter().flat_map(|s| &s.trials).filter(|t| t.source_fell_behind()).count(),
            seconds: over(&|s| s.trials.iter().map(|t| t.seconds).sum())?,
            trials: over(&|s| s.trials.len() as f64)?,
        })
    }

    /// Shares of the PDR at which latency was measured, as values name them.
    pub fn shares(further: &BTreeMap<String, Summary>) -> Vec<String> {
        let mut shares: Vec<String> = further
            .keys()
            .filter_map(|k| k.strip_prefix("latency_")?.strip_suffix("_load_pps").map(str::to_string))
            .collect();
        let number = |s: &String| s.parse::<f64>().unwrap_or(f64::INFINITY);
        shares.sort_by(|a, b| number(a).total_cmp(&number(b)));
        shares
    }
}

/// Groups ascending loads into steps: a sweep's by its steps; of others a step begins with the first load too far above the
/// last one's beginning.
fn by_loads<'a>(trials: &[&'a TrialRecord]) -> Vec<Vec<&'a TrialRecord>> {
    let mut steps: Vec<Vec<&TrialRecord>> = Vec::new();
    for trial in trials {
        let swept = sweep::step_of(trial);
        let fits = |step: &&mut Vec<&TrialRecord>| match (swept, sweep::step_of(step[0])) {
            (None, None) => trial.load_pps() < step[0].load_pps() * (1.0 + STEP),
            (own, other) => own == other,
        };
        match steps.iter_mut().rev().find(fits) {
            Some(step) => step.push(trial),
            None => steps.push(vec![trial]),
        }
    }
    steps
}

impl LoadStep {
    fn of(trials: &[&TrialRecord]) -> Option<LoadStep> {
        let over = |of: &dyn Fn(&TrialRecord) -> Option<f64>| {
            Summary::of(&trials.iter().filter_map(|t| of(t)).collect::<Vec<f64>>())
        };
        let mut percentiles: Vec<&String> = trials.iter().flat_map(|t| t.latency_ns.keys()).collect();
        percentiles.sort_unstable();
        percentiles.dedup();
        let latency = |k: &String| over(&|t| t.latency_ns.get(k).map(|&ns| ns as f64));
        Some(LoadStep {
            trials: trials.len(),
            offered_pps: over(&|t| Some(t.load_pps()))?.median,
            delivered_pps: over(&|t| Some(t.pps))?,
            loss_percent: over(&|t| Some(t.loss_ratio() * 100.0))?,
            shortfall_percent: over(&|t| Some(t.shortfall() * 100.0)),
            latency_ns: percentiles.into_iter().filter_map(|k| Some((k.clone(), latency(k)?))).collect(),
            cpu_percent: over(&|t| t.cpu_percent),
        })
    }
}

impl GoalOutcome {
    fn of(searches: &[&Sample], i: usize) -> Option<GoalOutcome> {
        let results: Vec<&GoalResult> = searches.iter().filter_map(|s| s.goals.get(i)).collect();
        let goal = &results.first()?.goal;
        let over = |of: &dyn Fn(&GoalResult) -> Option<f64>| {
            Summary::of(&results.iter().filter_map(|r| of(r)).collect::<Vec<f64>>())
        };
        let mut verdicts: BTreeMap<String, usize> = BTreeMap::new();
        for r in &results {
            *verdicts.entry(r.verdict.sentence().into()).or_default() += 1;
        }
        let odd = || results.iter().filter(|r| !r.oddities.is_empty());
        Some(GoalOutcome {
            name: goal.name.clone(),
            loss_percent: goal.loss_ratio * 100.0,
            exceed_percent: goal.exceed_ratio * 100.0,
            width_percent: goal.width * 100.0,
            final_seconds: goal.final_seconds,
            sum_seconds: goal.sum_seconds,
            lower_pps: over(&|r| r.lower_pps.map(|p| p as f64)),
            upper_pps: over(&|r| r.upper_pps.map(|p| p as f64)),
            conditional_pps: over(&|r| r.conditional_pps),
            verdicts,
            odd: odd().count(),
            first_oddity: odd().next().map(|r| r.oddities[0].sentence()),
        })
    }

    /// Runs without a regular result.
    pub fn irregular(&self) -> usize {
        self.runs() - self.verdicts.get(Verdict::Regular.sentence()).copied().unwrap_or(0)
    }

    pub fn runs(&self) -> usize {
        self.verdicts.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_stats::search::simulate::{Shape, Simulated};
    use weir_stats::search::{Limits, Measurer, contest, mlr};

    /// Two runs against a cliff, kept as a sample keeps them.
    fn samples() -> Vec<Sample> {
        struct Kept(Simulated, Vec<TrialRecord>);
        impl Measurer for Kept {
            type Error = crate::model::LabError;

            fn trial(
                &mut self,
                rate: Rate,
                seconds: f64,
                purpose: &str,
            ) -> Result<TrialRecord, crate::model::LabError> {
                let record = self.0.trial(rate, seconds, purpose)?;
                self.1.push(record.clone());
                Ok(record)
            }
        }
        let run = |seed| {
            let mut kept = Kept(Simulated::new(Shape::Cliff { capacity: 5e5 }, 2e6, seed), Vec::new());
            let limits = Limits::new(1000, 1_000_000).expect("room");
            let goals = mlr::search(&mut kept, &contest::goal_sets()[1].1, limits).expect("simulated");
            Sample { goals, trials: kept.1, ..Sample::default() }
        };
        vec![run(1), run(2)]
    }

    #[test]
    fn every_trial_is_in_one_step_and_steps_ascend() {
        let samples = samples();
        let s = Searched::of(&samples.iter().collect::<Vec<_>>()).expect("searches");
        let trials: usize = samples.iter().map(|s| s.trials.len()).sum();
        assert_eq!(s.steps.iter().map(|s| s.trials).sum::<usize>(), trials);
        assert!(s.steps.windows(2).all(|w| w[0].offered_pps < w[1].offered_pps));
        let last = s.steps.last().expect("steps");
        assert!((last.loss_percent.median - 50.0).abs() < 0.1, "1 M offered, half of it carried: {last:?}");
    }

    #[test]
    fn a_sweep_has_a_step_for_each_of_its_rates_though_runs_differ_in_what_is_all() {
        let run = |whole: f64| {
            let mut sut = Simulated::new(Shape::Endless, 2e6, 1);
            let steps = [50.0, 51.0, 100.0].map(sweep::Step::Percent);
            let mut trials = sweep::search(&mut sut, &steps, whole, 1.0).expect("simulated");
            trials[0].superseded = true;
            Sample { trials, ..Sample::default() }
        };
        let samples = [run(1e6), run(5e5)];
        let s = Searched::of(&[&samples[0], &samples[1]]).expect("searches");
        let found: Vec<(usize, f64)> = s.steps.iter().map(|s| (s.trials, s.offered_pps)).collect();
        assert_eq!((found, s.held_up), (vec![(2, 382_500.0), (2, 750_000.0)], 0));
    }

    #[test]
    fn a_source_that_fell_behind_is_counted_and_its_share_told() {
        let mut sut = Simulated::new(Shape::Endless, 1e5, 1);
        let steps = [50_000, 200_000].map(sweep::Step::Pps);
        let trials = sweep::search(&mut sut, &steps, 1.0, 1.0).expect("simulated");
        let s = Searched::of(&[&Sample { trials, ..Sample::default() }]).expect("searches");
        let shares: Vec<f64> = s.steps.iter().filter_map(|s| Some(s.shortfall_percent?.median)).collect();
        assert_eq!((shares, s.held_up), (vec![0.0, 50.0], 1));
    }

    #[test]
    fn goals_are_summarised_and_single_trials_are_no_search() {
        let samples = samples();
        let s = Searched::of(&samples.iter().collect::<Vec<_>>()).expect("searches");
        let ndr = &s.goals[0];
        assert_eq!((ndr.name.as_str(), ndr.runs(), ndr.irregular(), ndr.odd), ("ndr", 2, 0, 0));
        assert!(ndr.lower_pps.expect("a bound").median <= 5e5);
        assert_eq!(Searched::of(&[&Sample::default()]), None);
    }

    #[test]
    fn shares_are_read_from_the_names_of_values_in_their_order() {
        let one = Summary::of(&[1.0]).expect("a value");
        let further = ["latency_90_load_pps", "latency_5.5_load_pps", "latency_50_load_pps", "pdr_pps"]
            .map(|k| (k.to_string(), one))
            .into();
        assert_eq!(Searched::shares(&further), ["5.5", "50", "90"]);
    }
}
