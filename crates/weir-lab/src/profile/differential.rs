//! What changed between two configurations, frame by frame: who became dearer, by how much, how sure.
//!
//! ```text
//! recordings ─► tally (samples of each frame: own, inclusive; idle apart) ─► values ─► tests ─► ranked frames
//!                                                     % of non-idle samples, or ns a packet ┘
//! ```
//!
//! A frame's *own* samples were taken in it, its *inclusive* ones in it or below it (once a stack, however
//! often it recurs). Own values of all frames add up to the whole; inclusive ones overlap.
//!
//! Promises: frames are ranked by evidence, p values are corrected over all frames (Holm), new and vanished
//! frames are among them. Refuses: a comparison of two events, a rate without a packet.

mod evidence;
pub mod flame;
mod reconcile;
pub mod table;
mod tally;

use serde::{Deserialize, Serialize};

use super::folded::CLOCK;
use super::import::Recording;
use super::rules::Rules;
use crate::model::LabError;
use evidence::Estimate;
pub use evidence::Evidence;
pub use reconcile::Reconciliation;
use tally::Tally;
use weir_stats::{compare::ALPHA, holm};

/// Recordings of one configuration, and what is known about its rate.
#[derive(Clone, Debug, Default)]
pub struct Side {
    pub recordings: Vec<Recording>,
    /// Packets a second during each recording, in their order; empty when unknown.
    pub pps: Vec<f64>,
    /// CPUs the recordings watch.
    pub cpus: usize,
}

impl Side {
    /// What is not given is taken from the recordings: rates when all of them name one, CPUs told apart, or as
    /// many as the samples of a clock would fill.
    pub fn of(recordings: Vec<Recording>, pps: Option<Vec<f64>>, cpus: Option<usize>) -> Side {
        let named: Vec<f64> = recordings.iter().map(|r| r.header.pps).filter(|&p| p > 0.0).collect();
        let pps = pps.unwrap_or(if named.len() == recordings.len() { named } else { Vec::new() });
        let mut side = Side { recordings, pps, cpus: 1 };
        let filled = |r: &Recording| side.sampled(r).map_or(r.parts.len(), |share| share.round() as usize);
        let seen = side.recordings.iter().map(filled).max().unwrap_or(1);
        side.cpus = cpus.unwrap_or(seen).max(1);
        side
    }

    /// What a packet costs on all CPUs at each recording's rate, idle included.
    fn whole(&self) -> Vec<f64> {
        self.pps.iter().map(|p| self.cpus.max(1) as f64 * 1e9 / p).collect()
    }

    /// Share of the CPUs' time that samples of a clock account for; `None` when their rate is not known.
    fn sampled(&self, recording: &Recording) -> Option<f64> {
        let header = &recording.header;
        let asked = header.frequency_hz as f64 * header.seconds * self.cpus.max(1) as f64;
        (header.event == CLOCK && asked > 0.0).then(|| recording.samples() as f64 / asked)
    }
}

/// What values are in.
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
pub enum Presence {
    /// No sample of it before.
    New,
    /// No sample of it after.
    Vanished,
    Kept,
}

/// A value before and after.
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
    /// What became of the frame, by inclusive samples.
    pub presence: Presence,
    pub own: Change,
    pub inclusive: Change,
}

impl Frame {
    /// Whether chance is ruled out for the frame's own value.
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
    /// Strongest evidence about own values first.
    pub frames: Vec<Frame>,
    pub reconciliation: Reconciliation,
}

/// Compares `after` with `before`.
pub fn differential(before: &Side, after: &Side, rules: &Rules) -> Result<Differential, LabError> {
    let event = same_event(before, after)?;
    let unit = unit(before, after)?;
    let tally = Tally::of(before, after, rules);
    let estimate = Estimate::new(&tally, [before, after].map(|side| scales(side, unit)), unit);
    let own = changes(&estimate, &tally, |f| &f.own);
    let inclusive = changes(&estimate, &tally, |f| &f.inclusive);
    let mut frames: Vec<Frame> = tally
        .frames
        .iter()
        .zip(own.into_iter().zip(inclusive))
        .map(|((name, counts), (own, inclusive))| Frame {
            name: name.clone(),
            category: counts.category.clone(),
            presence: counts.presence(),
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
        return Err(LabError::new(
            "profiles: none on one side; give at least one before and one after".into(),
        ));
    };
    let all = || {
        before.recordings.iter().chain(&after.recordings).flat_map(|r| r.parts.iter().map(move |p| (r, p)))
    };
    match all().find(|(_, p)| p.event != first) {
        Some((recording, part)) => Err(LabError::new(format!(
            "{}: counts {}, {} counts {first}; profiles of one event can be compared",
            recording.source, part.event, before.recordings[0].source
        ))),
        None => Ok(second),
    }
}

/// What the samples of each recording add up to: 100 %, or nanoseconds a packet.
fn scales(side: &Side, unit: Unit) -> Vec<f64> {
    match unit {
        Unit::PercentOfNonIdle => vec![100.0; side.recordings.len()],
        Unit::NsPerPacket => {
            let sampled = side.recordings.iter().map(|r| side.sampled(r).unwrap_or(1.0));
            side.whole().iter().zip(sampled).map(|(whole, sampled)| whole * sampled).collect()
        }
    }
}

/// Values are a cost per packet when both sides know their packets.
fn unit(before: &Side, after: &Side) -> Result<Unit, LabError> {
    for side in [before, after] {
        let (rates, recordings) = (side.pps.len(), side.recordings.len());
        if rates > 0 && rates != recordings {
            return Err(LabError::new(format!(
                "packet rates: got {rates} for {recordings} profiles; give one a profile"
            )));
        }
        if let Some(bad) = side.pps.iter().find(|&&p| !(p > 0.0 && p.is_finite())) {
            return Err(LabError::new(format!("packet rate: got {bad}; a cost per packet needs packets")));
        }
    }
    match (before.pps.is_empty(), after.pps.is_empty()) {
        (true, true) => Ok(Unit::PercentOfNonIdle),
        (false, false) => Ok(Unit::NsPerPacket),
        _ => Err(LabError::new("packet rates: known for one side only; give both, or none".into())),
    }
}

fn changes(
    estimate: &Estimate,
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
