//! What changed between two configurations, frame by frame: who became dearer, by how much, how sure.
//!
//! ```text
//! recordings ─► tally (samples of each frame: own, inclusive; idle apart) ─► figures ─► tests ─► ranked frames
//!                                                     % of non-idle samples, or ns a packet ┘
//! ```
//!
//! A frame's *own* samples were taken in it, its *inclusive* ones in it or below it (once a stack, however
//! often it recurs). Own figures of all frames add up to the whole; inclusive ones overlap.
//!
//! Promises: frames are ranked by evidence, p values are corrected over all frames (Holm), new and vanished
//! frames are among them. Refuses: a comparison of two events, a rate without a packet.

mod evidence;
mod reconcile;
pub mod table;
mod tally;

use serde::{Deserialize, Serialize};

use super::import::Recording;
use super::rules::Rules;
use crate::model::LabError;
use crate::stats::{compare::ALPHA, holm};
use evidence::Estimate;
pub use evidence::Evidence;
pub use reconcile::Reconciliation;
use tally::Tally;

/// Recordings of one configuration, and what is known about its rate.
#[derive(Clone, Debug, Default)]
pub struct Side {
    pub recordings: Vec<Recording>,
    /// Packets a second during each recording, in their order; empty when unknown.
    pub pps: Vec<f64>,
    /// CPUs the recordings watch.
    pub cpus: usize,
}

/// What figures are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    PercentOfNonIdle,
    NsPerPacket,
}

/// One side in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Total {
    pub recordings: usize,
    pub samples: u64,
    pub idle: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// No sample of it before.
    New,
    /// No sample of it after.
    Vanished,
    Kept,
}

/// A figure before and after.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    pub before: f64,
    pub after: f64,
    pub change: f64,
    /// Ends of the change's 95 % interval.
    pub low: f64,
    pub high: f64,
    /// Change in standard errors, by which equal p values are ranked.
    pub t: f64,
    pub p: f64,
    /// Corrected over all frames.
    pub p_holm: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Frame {
    pub name: String,
    pub category: String,
    /// By inclusive samples.
    pub fate: Fate,
    pub own: Change,
    pub inclusive: Change,
}

impl Frame {
    /// Whether chance is ruled out for the frame's own figure.
    pub fn proven(&self) -> bool {
        self.own.p_holm <= ALPHA
    }
}

/// Everything that is said about a pair of configurations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Differential {
    pub event: String,
    pub unit: Unit,
    pub evidence: Evidence,
    pub before: Total,
    pub after: Total,
    /// Strongest evidence about own figures first.
    pub frames: Vec<Frame>,
    pub reconciliation: Reconciliation,
}

/// Compares `after` with `before`.
pub fn differential(before: &Side, after: &Side, rules: &Rules) -> Result<Differential, LabError> {
    let event = same_event(before, after)?;
    let unit = match (before.pps.is_empty(), after.pps.is_empty()) {
        (true, true) => Unit::PercentOfNonIdle,
        (false, false) => Unit::NsPerPacket,
        _ => return Err(LabError("packet rates: known for one side only; give both, or none".into())),
    };
    let tally = Tally::of(before, after, rules);
    let scale = [before, after].map(|side| scales(side, unit));
    let [before_scale, after_scale] = [scale[0].clone()?, scale[1].clone()?];
    let estimate = Estimate::new(&tally, [&before_scale, &after_scale], unit);
    let own = changes(&estimate, &tally, |f| &f.own);
    let inclusive = changes(&estimate, &tally, |f| &f.inclusive);
    let mut frames: Vec<Frame> = tally
        .frames
        .iter()
        .zip(own.into_iter().zip(inclusive))
        .map(|((name, counts), (own, inclusive))| Frame {
            name: name.clone(),
            category: counts.category.clone(),
            fate: counts.fate(),
            own,
            inclusive,
        })
        .collect();
    frames.sort_by(|a, b| a.own.p.total_cmp(&b.own.p).then(b.own.t.abs().total_cmp(&a.own.t.abs())));
    let reconciliation = Reconciliation::of(&frames, &tally, &estimate, [before, after], unit);
    let [before, after] = [0, 1].map(|side| tally.total(side));
    Ok(Differential { event, unit, evidence: estimate.evidence, before, after, frames, reconciliation })
}

fn same_event(before: &Side, after: &Side) -> Result<String, LabError> {
    let event = |side: &Side| side.recordings.first().and_then(|r| r.parts.first()).map(|p| p.event.clone());
    let (Some(first), Some(second)) = (event(before), event(after)) else {
        return Err(LabError("profiles: none on one side; give at least one before and one after".into()));
    };
    let all = || {
        before.recordings.iter().chain(&after.recordings).flat_map(|r| r.parts.iter().map(move |p| (r, p)))
    };
    match all().find(|(_, p)| p.event != first) {
        Some((recording, part)) => Err(LabError(format!(
            "{}: counts {}, {} counts {first}; profiles of one event can be compared",
            recording.source, part.event, before.recordings[0].source
        ))),
        None => Ok(second),
    }
}

/// Nanoseconds of all CPUs a packet has cost, one figure a recording; 100 % without rates.
fn scales(side: &Side, unit: Unit) -> Result<Vec<f64>, LabError> {
    let recordings = side.recordings.len();
    if unit == Unit::PercentOfNonIdle {
        return Ok(vec![100.0; recordings]);
    }
    let pps = match side.pps.as_slice() {
        [one] => vec![*one; recordings],
        many if many.len() == recordings => many.to_vec(),
        many => {
            return Err(LabError(format!(
                "packet rates: got {} for {recordings} profiles; give one, or one a profile",
                many.len()
            )));
        }
    };
    match pps.iter().find(|&&p| !(p > 0.0 && p.is_finite())) {
        Some(bad) => Err(LabError(format!("packet rate: got {bad}; a cost per packet needs packets"))),
        None => Ok(pps.iter().map(|p| side.cpus.max(1) as f64 * 1e9 / p).collect()),
    }
}

fn changes(
    estimate: &Estimate<'_>,
    tally: &Tally,
    which: impl Fn(&tally::Counts) -> &tally::Samples,
) -> Vec<Change> {
    let mut changes: Vec<Change> = tally.frames.values().map(|f| estimate.change(which(f))).collect();
    let p: Vec<f64> = changes.iter().map(|c| c.p).collect();
    for (change, p_holm) in changes.iter_mut().zip(holm::adjust(&p)) {
        change.p_holm = p_holm;
    }
    changes
}

#[cfg(test)]
mod tests;
