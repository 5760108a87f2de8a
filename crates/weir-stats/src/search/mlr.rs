//! Several throughputs in one search: MLRsearch (RFC 9971).
//!
//! ```text
//! one short trial at the maximum ─► what came through is the first guess
//! goal by goal, strictest first:
//!   phase by phase, trials longer and bounds closer each time:
//!     decide the last phase's lower bound, then its upper bound,
//!     then step away from the guess by 1, 2, 4 … widths, and halve once both sides are known
//! ```
//!
//! Promises: every trial counts for every goal; the relevant bounds are the conservative ones (a smaller
//! upper bound outweighs a larger lower bound); at most [`TRIALS_MAX`] trials. Refuses: a result without
//! its verdict. The steps are this lab's own; classification is the RFC's.

use std::collections::BTreeMap;

use super::goal::{Class, Goal, GoalResult, Oddity, Seen, Verdict, classify, conditional_throughput};
use super::{Limits, Measurer, Rate};

/// Two goals of 21 trials a load and 20 loads each take 840.
pub const TRIALS_MAX: usize = 1000;
/// Trials for a later goal may undo an earlier one's bound: it is sought again, this often.
const ROUNDS: usize = 3;
/// Losses at one load further apart than this many widths are inconsistent: near a capacity a width of load
/// costs a width of loss, and the last phase but one still steps two widths at a time.
const APART_WIDTHS: f64 = 5.0;

/// Every load tried, with its trials.
type Loads = BTreeMap<u64, Vec<Seen>>;

/// Searches for all `goals` at once; one result a goal, in their order.
pub fn search<M: Measurer + ?Sized>(
    measurer: &mut M,
    goals: &[Goal],
    limits: Limits,
) -> Result<Vec<GoalResult>, M::Error> {
    let mut search = Search { measurer, limits, loads: Loads::new(), trials: 0 };
    let shortest = goals.iter().map(|g| g.initial_seconds).fold(f64::INFINITY, f64::min);
    let guess = search.first(shortest)?;
    let mut strictest_first: Vec<&Goal> = goals.iter().collect();
    strictest_first.sort_by(|a, b| a.loss_ratio.total_cmp(&b.loss_ratio));
    for _ in 0..ROUNDS {
        if goals.iter().all(|g| search.verdict(g) != Verdict::NotClosed) {
            break;
        }
        for goal in &strictest_first {
            search.pursue(goal, guess)?;
        }
    }
    Ok(goals.iter().map(|g| search.result(g)).collect())
}

struct Search<'a, M: ?Sized> {
    measurer: &'a mut M,
    limits: Limits,
    loads: Loads,
    trials: usize,
}

impl<M: Measurer + ?Sized> Search<'_, M> {
    /// What comes through at the maximum load.
    fn first(&mut self, seconds: f64) -> Result<u64, M::Error> {
        let max = self.limits.max_pps;
        self.trial(max, seconds, "first guess")?;
        let kept = self.loads[&max].last().map_or(0.0, |s| 1.0 - s.loss_ratio);
        Ok(((max as f64 * kept) as u64).clamp(self.limits.min_pps, max))
    }

    fn trial(&mut self, pps: u64, seconds: f64, purpose: &str) -> Result<(), M::Error> {
        let record = self.measurer.trial(Rate::Pps(pps), seconds, purpose)?;
        self.trials += 1;
        self.loads.entry(pps).or_default().push(Seen {
            seconds,
            loss_ratio: record.loss_ratio(),
            source_fell_behind: record.source_fell_behind(),
        });
        Ok(())
    }

    fn pursue(&mut self, goal: &Goal, guess: u64) -> Result<(), M::Error> {
        let mut hints = None;
        for phase in goal.phases() {
            let (lower, upper) = hints.unwrap_or_else(|| {
                let (lower, upper) = self.bounds(&phase);
                (lower.or(Some(guess)), upper)
            });
            self.narrow(&phase, lower, upper)?;
            hints = Some(self.bounds(&phase));
        }
        Ok(())
    }

    /// Makes trials until the bounds of `phase` are close, or an end of the range is reached.
    fn narrow(&mut self, phase: &Goal, lower: Option<u64>, upper: Option<u64>) -> Result<(), M::Error> {
        // on from the lower hint: the first upper one is the maximum, far away
        let mut last = match lower {
            Some(pps) => self.decide(phase, pps)?,
            None => Class::Upper,
        };
        let tells_more = lower.is_none() || last == Class::Lower;
        if let (true, Some(pps)) = (tells_more, upper)
            && self.decide(phase, pps)? == Class::Lower
        {
            last = Class::Lower;
        }
        let mut step = phase.width;
        while let Some(pps) = self.next(phase, last, step) {
            last = self.decide(phase, pps)?;
            step *= 2.0;
            if self.trials >= TRIALS_MAX {
                break;
            }
        }
        Ok(())
    }

    /// Repeats trials at one load until it is a bound.
    fn decide(&mut self, phase: &Goal, pps: u64) -> Result<Class, M::Error> {
        loop {
            let class = self.loads.get(&pps).map_or(Class::Undecided, |t| classify(phase, t));
            if class != Class::Undecided || self.trials >= TRIALS_MAX {
                return Ok(class);
            }
            let end = |bound: Option<u64>| bound.map_or("?".to_string(), |b| b.to_string());
            let (lower, upper) = self.bounds(phase);
            let purpose = format!("{} in {}..{}", phase.name, end(lower), end(upper));
            self.trial(pps, phase.final_seconds, &purpose)?;
        }
    }

    /// The load to decide next: away from the side just found, no further than the middle.
    fn next(&self, phase: &Goal, last: Class, step: f64) -> Option<u64> {
        let Limits { min_pps, max_pps } = self.limits;
        let (lower, upper) = self.bounds(phase);
        let nothing_left = match (lower, upper) {
            (Some(l), Some(u)) => phase.close(l, u),
            (None, Some(u)) => u <= min_pps,
            (Some(l), None) => l >= max_pps,
            (None, None) => false,
        };
        if nothing_left {
            return None;
        }
        let (low, high) = (lower.unwrap_or(min_pps) as f64, upper.unwrap_or(max_pps) as f64);
        let middle = (low * high).sqrt();
        let wanted = if last == Class::Lower {
            (low * (1.0 + step)).min(if upper.is_some() { middle } else { high })
        } else {
            (high * (1.0 - step.min(0.5))).max(if lower.is_some() { middle } else { low })
        };
        // a bound is never asked again: the next whole packet is
        let from = lower.map_or(min_pps, |l| l + 1);
        let to = upper.map_or(max_pps, |u| u - 1);
        Some((wanted.round() as u64).clamp(from, to.max(from)))
    }

    /// Relevant bounds: the smallest upper bound, and the largest lower bound below it.
    fn bounds(&self, goal: &Goal) -> (Option<u64>, Option<u64>) {
        let mut lower = None;
        for (&pps, trials) in &self.loads {
            match classify(goal, trials) {
                Class::Lower => lower = Some(pps),
                Class::Upper => return (lower, Some(pps)),
                Class::Undecided => {}
            }
        }
        (lower, None)
    }

    fn verdict(&self, goal: &Goal) -> Verdict {
        match self.bounds(goal) {
            (Some(l), Some(u)) if goal.close(l, u) => Verdict::Regular,
            (None, Some(u)) if u <= self.limits.min_pps => Verdict::NothingPasses,
            (Some(l), None) if l >= self.limits.max_pps => Verdict::NoUpperBound,
            _ => Verdict::NotClosed,
        }
    }

    fn result(&self, goal: &Goal) -> GoalResult {
        let (lower_pps, upper_pps) = self.bounds(goal);
        let conditional = |pps: u64| conditional_throughput(goal, pps as f64, &self.loads[&pps]);
        GoalResult {
            goal: goal.clone(),
            lower_pps,
            upper_pps,
            conditional_pps: lower_pps.map(conditional),
            verdict: self.verdict(goal),
            oddities: self.oddities(goal, upper_pps),
        }
    }

    fn oddities(&self, goal: &Goal, upper: Option<u64>) -> Vec<Oddity> {
        let mut found = Vec::new();
        let Some(upper_pps) = upper else { return self.inconsistent(goal).into_iter().collect() };
        let mut above = self.loads.range(upper_pps + 1..).rev();
        if let Some((&lower_pps, _)) = above.find(|(_, t)| classify(goal, t) == Class::Lower) {
            found.push(Oddity::LossInversion { upper_pps, lower_pps });
        }
        found.extend(self.inconsistent(goal));
        let lossy = |s: &&Seen| s.loss_ratio > goal.loss_ratio;
        if self.loads[&upper_pps].iter().filter(lossy).all(|s| s.source_fell_behind) {
            found.push(Oddity::SourceIsTheLimit { pps: upper_pps });
        }
        found
    }

    /// The load whose trials lie furthest apart, when they lie too far apart.
    fn inconsistent(&self, goal: &Goal) -> Option<Oddity> {
        let apart = goal.loss_ratio.max(goal.width) * APART_WIDTHS;
        let by_loss = |a: &&Seen, b: &&Seen| a.loss_ratio.total_cmp(&b.loss_ratio);
        let spread = |t: &[Seen]| Some((*t.iter().min_by(by_loss)?, *t.iter().max_by(by_loss)?));
        self.loads
            .iter()
            .filter_map(|(&pps, trials)| spread(trials).map(|(least, most)| (pps, least, most)))
            .filter(|(_, least, most)| {
                least.loss_ratio <= goal.loss_ratio && most.loss_ratio - least.loss_ratio > apart
            })
            .max_by(|a, b| (a.2.loss_ratio - a.1.loss_ratio).total_cmp(&(b.2.loss_ratio - b.1.loss_ratio)))
            .map(|(pps, least, most)| Oddity::Inconsistent {
                pps,
                least_loss: least.loss_ratio,
                least_seconds: least.seconds,
                most_loss: most.loss_ratio,
                most_seconds: most.seconds,
            })
    }
}
