//! What the profiled runs of a campaign say in a sentence: frames that changed, shares of kinds of work.

use super::{Outcome, Results};
use crate::profile::breakdown::breakdown;
use crate::profile::differential::{Frame, Side, differential, table};
use crate::profile::import::{Form, Recording};
use crate::profile::rules::Rules;

/// Profiled runs with samples.
pub fn recordings(outcome: &Outcome) -> Vec<Recording> {
    let sampled = outcome.profiles.iter().filter(|p| !p.profile.stacks.is_empty());
    sampled
        .map(|p| Recording {
            source: p.file.clone(),
            form: Form::Folded,
            parts: vec![p.profile.clone()],
            header: p.header.clone(),
        })
        .collect()
}

/// A compared pair's frames beyond chance with what they changed, dearest first, as a sentence has them; `None`
/// without profiles on both sides.
pub fn named(results: &Results, reference: &str, other: &str, limit: usize) -> Option<String> {
    let side = |name: &str| results.outcome(name).map(recordings).filter(|r| !r.is_empty());
    let (before, after) = side(reference).zip(side(other))?;
    let rules = Rules::load(None).ok()?;
    let found = differential(&Side::of(before, None, None), &Side::of(after, None, None), &rules).ok()?;
    let mut proven: Vec<&Frame> = found.frames.iter().filter(|f| f.proven()).collect();
    proven.sort_by(|a, b| b.own.change.abs().total_cmp(&a.own.change.abs()));
    let unit = found.unit.label();
    let frames: Vec<String> = proven.iter().take(limit).map(|f| table::sentence(f, unit)).collect();
    Some(match (frames.is_empty(), proven.len().saturating_sub(limit)) {
        (true, _) => "no frame beyond chance".into(),
        (false, 0) => frames.join(", "),
        (false, more) => format!("{} and {more} more", frames.join(", ")),
    })
}

/// Percent of a configuration's work that is of a kind; `None` without a profile.
pub fn share(results: &Results, name: &str, kind: &str) -> Option<String> {
    let recordings = results.outcome(name).map(recordings).filter(|r| !r.is_empty())?;
    let found = breakdown(&recordings, &Rules::load(None).ok()?).ok()?;
    let share = found.categories.iter().find(|s| s.category == kind)?.percent_of_work?;
    Some(format!("{share:.1} %"))
}
