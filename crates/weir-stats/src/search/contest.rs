//! What the searches find on SUTs whose capacity is known, and what it costs, beside plain bisection.
//!
//! Promises: every value follows from the number of seeds; errors are those of the relevant lower bound,
//! relative to the nearest load that would be right. Refuses: to average over verdicts: how often a search was
//! irregular or found its SUT odd is in the table.

use super::goal::{Goal, GoalResult, Verdict};
use super::simulate::{Shape, Simulated};
use super::{Limits, Refusal, bisect, mlr};
use crate::Summary;

/// Where every simulated search may look.
pub const LIMITS: Limits = Limits { min_pps: 1000, max_pps: 2_000_000 };
/// What the source of every simulated SUT can offer: more than is ever asked.
const SOURCE_PPS: f64 = 4e6;

/// SUTs by name. Capacities are no round values, so that no search meets them by its own steps.
pub const SUTS: [(&str, Shape); 10] = [
    ("sharp cliff", Shape::Cliff { capacity: 843_217.0 }),
    ("low cliff", Shape::Cliff { capacity: 12_345.0 }),
    ("soft knee", Shape::Knee { start: 611_803.0, capacity: 914_571.0, lost: 0.05 }),
    ("livelock", Shape::Livelock { capacity: 843_217.0, floor: 250_000.0 }),
    ("noise, 1 s of 20", Shape::Noise { capacity: 843_217.0, every: 20.0, lost: 0.02 }),
    ("bimodal, 7 s turns", Shape::Bimodal { slow: 602_111.0, fast: 843_217.0, period: 7.0 }),
    ("queue of 50,000", Shape::Queue { capacity: 843_217.0, queue: 50_000.0 }),
    ("drift, −10 % an hour", Shape::Drift { capacity: 843_217.0, per_hour: 0.1 }),
    ("carries nothing", Shape::Dead),
    ("never loses", Shape::Endless),
];

/// RFC 2544's own goal, 60 s, and the pair of goals the field's continuous tests use: 1 s trials, 21 s a
/// load, half of them may exceed.
pub fn goal_sets() -> [(&'static str, Vec<Goal>); 2] {
    let continuous = |name: &str, loss_ratio| Goal {
        name: name.into(),
        loss_ratio,
        exceed_ratio: 0.5,
        initial_seconds: 1.0,
        final_seconds: 1.0,
        sum_seconds: 21.0,
        width: 0.005,
    };
    [
        ("RFC 2544, 60 s", vec![Goal::rfc2544(60.0, 0.005)]),
        ("NDR and PDR, 21 × 1 s", vec![continuous("ndr", 0.0), continuous("pdr", 0.005)]),
    ]
}

/// One search's values over all seeds.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// Relative errors of the lower bound, percent, signed; empty where none was found or is wanted.
    pub errors: Vec<f64>,
    pub seconds: Summary,
    pub trials: Summary,
    pub regular: usize,
    pub odd: usize,
    /// The last seed's verdict.
    pub verdict: Verdict,
}

/// A row of the table.
#[derive(Clone, Debug)]
pub struct Row {
    pub sut: &'static str,
    pub goals: &'static str,
    pub goal: String,
    /// The truth for MLRsearch; bisection's longer trials may have another.
    pub truth: (f64, f64),
    pub mlr: Score,
    pub bisection: Score,
}

/// Every SUT and goal set, `seeds` times. Seconds and trials are those of the whole set, which bisection
/// searches goal by goal.
pub fn rows(seeds: u64) -> Result<Vec<Row>, Refusal> {
    let mut rows = Vec::new();
    for (set, goals) in goal_sets() {
        for (sut, shape) in SUTS {
            rows.extend(of_sut(sut, shape, set, &goals, seeds)?);
        }
    }
    Ok(rows)
}

/// One search: its result a goal, its seconds and its trials.
struct Run {
    results: Vec<GoalResult>,
    seconds: f64,
    trials: usize,
}

pub fn of_sut(
    sut: &'static str,
    shape: Shape,
    set: &'static str,
    goals: &[Goal],
    seeds: u64,
) -> Result<Vec<Row>, Refusal> {
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    for seed in 0..seeds.max(1) {
        let mut simulated = Simulated::new(shape, SOURCE_PPS, seed);
        let results = mlr::search(&mut simulated, goals, LIMITS)?;
        ours.push(Run { results, seconds: simulated.clock, trials: simulated.trials });
        let mut simulated = Simulated::new(shape, SOURCE_PPS, seed);
        let results: Result<Vec<GoalResult>, Refusal> =
            goals.iter().map(|g| bisect::search(&mut simulated, g, LIMITS)).collect();
        plain.push(Run { results: results?, seconds: simulated.clock, trials: simulated.trials });
    }
    let row = |(i, goal): (usize, &Goal)| {
        let end = |runs: &[Run]| runs.iter().map(|r| r.seconds).fold(0.0, f64::max);
        let truth = shape.truth(goal, LIMITS, end(&ours));
        let one_trial = Goal { final_seconds: goal.sum_seconds, ..goal.clone() };
        let bisected = shape.truth(&one_trial, LIMITS, end(&plain));
        Row {
            sut,
            goals: set,
            goal: goal.name.clone(),
            truth,
            mlr: score(&ours, i, truth),
            bisection: score(&plain, i, bisected),
        }
    };
    Ok(goals.iter().enumerate().map(row).collect())
}

fn score(runs: &[Run], goal: usize, (least, most): (f64, f64)) -> Score {
    let results = || runs.iter().map(|r| &r.results[goal]);
    let error = |r: &GoalResult| {
        let lower = r.lower_pps? as f64;
        let right = lower.clamp(least, most);
        (right > 1.0).then(|| (lower / right - 1.0) * 100.0)
    };
    let summary = |of: &dyn Fn(&Run) -> f64| {
        let values: Vec<f64> = runs.iter().map(of).collect();
        let none = Summary { n: 0, min: 0.0, max: 0.0, median: 0.0, mean: 0.0, sd: None };
        Summary::of(&values).unwrap_or(none)
    };
    Score {
        errors: results().filter_map(error).collect(),
        seconds: summary(&|r| r.seconds),
        trials: summary(&|r| r.trials as f64),
        regular: results().filter(|r| r.verdict == Verdict::Regular).count(),
        odd: results().filter(|r| !r.oddities.is_empty()).count(),
        verdict: results().next_back().map_or(Verdict::NotClosed, |r| r.verdict),
    }
}

impl Score {
    /// The error furthest from zero.
    pub fn worst_error(&self) -> Option<f64> {
        self.errors.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs()))
    }

    /// `−0.31 (−0.49)`: median and worst error in percent.
    fn errors_said(&self) -> String {
        match (Summary::of(&self.errors), self.worst_error()) {
            (Some(s), Some(worst)) => format!("{} ({})", percent(s.median), percent(worst)),
            _ => "–".into(),
        }
    }

    fn verdict_said(&self, seeds: u64) -> String {
        let verdict = match (self.verdict, self.regular as u64) {
            (_, regular) if regular == seeds => "regular".to_string(),
            (_, regular) if regular > 0 => format!("regular in {regular} of {seeds}"),
            (Verdict::NothingPasses, _) => "not even the minimum passes".into(),
            (Verdict::NoUpperBound, _) => "upper bound unknown".into(),
            (_, _) => "bounds did not close".into(),
        };
        if self.odd == 0 { verdict } else { format!("{verdict}, odd in {}", self.odd) }
    }
}

/// `+0.21`, `−0.21`, `0.00`.
fn percent(value: f64) -> String {
    let text = format!("{value:+.2}");
    if text.ends_with("0.00") && value.abs() < 1.0 { "0.00".into() } else { text.replace('-', "−") }
}

/// The table of docs/search.md, in Markdown.
pub fn table(rows: &[Row], seeds: u64) -> String {
    let mut out = String::from(
        "| SUT | goals | goal | truth, pps | error of MLRsearch, % median (worst) | s | trials | says | \
         error of bisection | s | trials |\n|---|---|---|--:|--:|--:|--:|---|--:|--:|--:|\n",
    );
    for row in rows {
        let (least, most) = row.truth;
        let truth = if most - least < 1.0 { format!("{most:.0}") } else { format!("{least:.0}–{most:.0}") };
        let verdict = row.mlr.verdict_said(seeds);
        out += &format!(
            "| {} | {} | {} | {truth} | {} | {:.0} | {:.0} | {verdict} | {} | {:.0} | {:.0} |\n",
            row.sut,
            row.goals,
            row.goal,
            row.mlr.errors_said(),
            row.mlr.seconds.median,
            row.mlr.trials.median,
            row.bisection.errors_said(),
            row.bisection.seconds.median,
            row.bisection.trials.median,
        );
    }
    out
}

#[cfg(test)]
mod tests;
