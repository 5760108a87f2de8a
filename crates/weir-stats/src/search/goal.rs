//! What a throughput search is to find, and what a set of trials says about one load (RFC 9971, sections
//! 4.6 to 4.8 and its appendices on load classification and conditional throughput).
//!
//! ```text
//! trials at one load ─► full-length / short × low-loss / high-loss, seconds each
//!   at worst  every second missing up to the duration sum is high-loss ─► still within exceed: lower bound
//!   at best   none of them is                                          ─► beyond exceed:       upper bound
//! ```
//!
//! Promises: classification depends on the trials at that load only, in no order. Refuses: nothing; loads
//! that are neither are undecided.

use serde::{Deserialize, Serialize};

/// Seconds that do not count when sums are compared: trials of 0.1 s do not add up exactly.
const HAIR: f64 = 1e-9;
/// Trials grow by at most this factor from one phase to the next: 1 s to 60 s takes four phases.
const GROWTH: f64 = 4.0;

/// RFC 9971's search goal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Goal {
    /// How values are named (`ndr`).
    pub name: String,
    /// A trial that loses more is high-loss.
    pub loss_ratio: f64,
    /// Share of the seconds at one load that may be high-loss.
    pub exceed_ratio: f64,
    pub initial_seconds: f64,
    pub final_seconds: f64,
    pub sum_seconds: f64,
    /// Bounds this close together, relative to the upper, end the search.
    pub width: f64,
}

impl Goal {
    /// RFC 2544, section 24, as a goal: one lossless trial of `seconds`.
    pub fn rfc2544(seconds: f64, width: f64) -> Goal {
        Goal {
            name: "ndr".into(),
            loss_ratio: 0.0,
            exceed_ratio: 0.0,
            initial_seconds: seconds / 60.0,
            final_seconds: seconds,
            sum_seconds: seconds,
            width,
        }
    }

    /// The same goal with short trials and wide bounds first, itself last.
    pub fn phases(&self) -> Vec<Goal> {
        let growths = (self.final_seconds / self.initial_seconds).ln() / GROWTH.ln();
        let steps = (growths - HAIR).ceil().max(0.0) as i32;
        let mut phases = Vec::new();
        for step in 0..=steps {
            let seconds = if step == steps {
                self.final_seconds
            } else {
                self.initial_seconds
                    * (self.final_seconds / self.initial_seconds).powf(f64::from(step) / f64::from(steps))
            };
            phases.push(Goal { final_seconds: seconds, sum_seconds: seconds, ..self.clone() });
        }
        if self.sum_seconds > self.final_seconds * (1.0 + HAIR) {
            phases.push(self.clone());
        }
        let last = phases.len() - 1;
        for (i, phase) in phases.iter_mut().enumerate() {
            phase.width = (self.width * 2f64.powi((last - i) as i32)).min(0.5);
        }
        phases
    }

    /// Whether two loads are as close as this goal wants them; neighbours in whole packets always are.
    pub fn close(&self, lower: u64, upper: u64) -> bool {
        upper - lower <= 1 || (upper - lower) as f64 <= self.width * upper as f64 * (1.0 + HAIR)
    }
}

/// What one trial at a load counts as.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    pub seconds: f64,
    pub loss_ratio: f64,
    /// The loss is the source's: it offered less than it was asked.
    pub source_fell_behind: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Meets the goal, whatever the missing seconds would bring.
    Lower,
    /// Misses it, whatever they would bring.
    Upper,
    Undecided,
}

/// Seconds of trials at one load, by length and loss.
struct Sums {
    full_low: f64,
    full_high: f64,
    short_low: f64,
    short_high: f64,
}

impl Sums {
    fn of(goal: &Goal, trials: &[Seen]) -> Sums {
        let sum = |full: bool, high: bool| {
            trials
                .iter()
                .filter(|t| is_full(goal, t) == full && (t.loss_ratio > goal.loss_ratio) == high)
                .map(|t| t.seconds)
                .sum()
        };
        Sums {
            full_low: sum(true, false),
            full_high: sum(true, true),
            short_low: sum(false, false),
            short_high: sum(false, true),
        }
    }
}

fn is_full(goal: &Goal, trial: &Seen) -> bool {
    trial.seconds >= goal.final_seconds - HAIR
}

/// Which bound of `goal` a load is, by all trials made at it.
pub fn classify(goal: &Goal, trials: &[Seen]) -> Class {
    let s = Sums::of(goal, trials);
    // short low-loss trials excuse short high-loss ones in the proportion the goal tolerates
    let excused = s.short_low * goal.exceed_ratio / (1.0 - goal.exceed_ratio);
    let high = s.full_high + (s.short_high - excused).max(0.0);
    let whole = (s.full_low + high).max(goal.sum_seconds);
    let tolerated = whole * goal.exceed_ratio + HAIR;
    if whole - s.full_low <= tolerated {
        Class::Lower
    } else if high > tolerated {
        Class::Upper
    } else {
        Class::Undecided
    }
}

/// The forwarding rate typical of a lower bound: that of the full-length trial at the goal's quantile of loss.
pub fn conditional_throughput(goal: &Goal, load_pps: f64, trials: &[Seen]) -> f64 {
    let mut full: Vec<&Seen> = trials.iter().filter(|t| is_full(goal, t)).collect();
    full.sort_by(|a, b| a.loss_ratio.total_cmp(&b.loss_ratio));
    let seconds: f64 = full.iter().map(|t| t.seconds).sum();
    let mut remaining = seconds.max(goal.sum_seconds) * (1.0 - goal.exceed_ratio);
    let mut loss = 1.0;
    for (i, trial) in full.iter().enumerate() {
        if i > 0 && remaining <= HAIR {
            break;
        }
        loss = trial.loss_ratio;
        remaining -= trial.seconds;
    }
    // seconds nobody measured would have lost everything
    load_pps * (1.0 - if remaining > HAIR { 1.0 } else { loss })
}

/// What a search says of one goal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GoalResult {
    pub goal: Goal,
    /// RFC 9971's relevant lower bound: the largest lower bound below the relevant upper bound.
    pub lower_pps: Option<u64>,
    /// The smallest upper bound.
    pub upper_pps: Option<u64>,
    /// Conditional throughput at the relevant lower bound.
    pub conditional_pps: Option<f64>,
    pub verdict: Verdict,
    pub oddities: Vec<Oddity>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Both bounds are known, as close as the goal wants.
    Regular,
    /// The minimum load is an upper bound.
    NothingPasses,
    /// The maximum load is a lower bound.
    NoUpperBound,
    /// The search ran out of trials before the bounds were close.
    NotClosed,
}

impl Verdict {
    pub fn sentence(self) -> &'static str {
        match self {
            Verdict::Regular => "regular",
            Verdict::NothingPasses => "irregular: not even the minimum load passes",
            Verdict::NoUpperBound => "irregular: the maximum load passes, the upper bound is unknown",
            Verdict::NotClosed => "irregular: the bounds did not close within the trials allowed",
        }
    }
}

/// What does not fit a SUT with one capacity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Oddity {
    /// A larger load meets the goal while a smaller one misses it.
    LossInversion { upper_pps: u64, lower_pps: u64 },
    /// Trials at one load lost shares further apart than widths of load can explain. When the longer lost more,
    /// a queue filled or the SUT tired; otherwise it changes its mind.
    Inconsistent { pps: u64, least_loss: f64, least_seconds: f64, most_loss: f64, most_seconds: f64 },
    /// The source, not the SUT, fell behind at the upper bound.
    SourceIsTheLimit { pps: u64 },
}

impl Oddity {
    pub fn sentence(&self) -> String {
        match self {
            Oddity::LossInversion { upper_pps, lower_pps } => {
                format!("{lower_pps} pps passes although {upper_pps} pps, a smaller load, does not")
            }
            Oddity::Inconsistent { pps, least_loss, least_seconds, most_loss, most_seconds } => format!(
                "trials at {pps} pps are inconsistent: {:.3} % lost in {least_seconds:.3} s, \
                 {:.3} % in {most_seconds:.3} s",
                least_loss * 100.0,
                most_loss * 100.0
            ),
            Oddity::SourceIsTheLimit { pps } => {
                format!("at the upper bound, {pps} pps, the source fell behind: the SUT may carry more")
            }
        }
    }
}

#[cfg(test)]
mod tests;
