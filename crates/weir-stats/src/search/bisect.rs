//! Plain bisection, as RFC 2544 section 26.1 is commonly run: what other searches are measured against.
//!
//! Promises: every trial is as long as the goal's duration sum; bounds as close as the goal wants. Refuses:
//! second thoughts: one trial decides a load for ever.

use super::goal::{Class, Goal, GoalResult, Seen, Verdict};
use super::{Limits, Measurer, Rate};

/// One goal, one trial a load.
pub fn search<M: Measurer + ?Sized>(
    measurer: &mut M,
    goal: &Goal,
    limits: Limits,
) -> Result<GoalResult, M::Error> {
    let mut pass = |pps: u64| {
        let record = measurer.trial(Rate::Pps(pps), goal.sum_seconds, "bisection")?;
        let seen = Seen {
            seconds: goal.sum_seconds,
            loss_ratio: record.loss_ratio(),
            source_fell_behind: record.source_fell_behind(),
        };
        let class = if seen.loss_ratio > goal.loss_ratio { Class::Upper } else { Class::Lower };
        Ok::<_, M::Error>((class, pps as f64 * (1.0 - seen.loss_ratio)))
    };
    let result = |lower_pps, upper_pps, conditional_pps, verdict| GoalResult {
        goal: goal.clone(),
        lower_pps,
        upper_pps,
        conditional_pps,
        verdict,
        oddities: Vec::new(),
    };
    let (class, forwarded) = pass(limits.max_pps)?;
    if class == Class::Lower {
        return Ok(result(Some(limits.max_pps), None, Some(forwarded), Verdict::NoUpperBound));
    }
    let (class, mut forwarded) = pass(limits.min_pps)?;
    if class == Class::Upper {
        return Ok(result(None, Some(limits.min_pps), None, Verdict::NothingPasses));
    }
    let (mut lower, mut upper) = (limits.min_pps, limits.max_pps);
    while !goal.close(lower, upper) {
        let middle = lower.midpoint(upper);
        match pass(middle)? {
            (Class::Lower, came) => (lower, forwarded) = (middle, came),
            _ => upper = middle,
        }
    }
    Ok(result(Some(lower), Some(upper), Some(forwarded), Verdict::Regular))
}
