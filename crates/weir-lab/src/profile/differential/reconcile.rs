//! Whether the frames' changes add up to the change in throughput.

use serde::{Deserialize, Serialize};

use super::evidence::Estimate;
use super::tally::Tally;
use super::{Frame, Side, Unit};
use weir_stats::summary::mean;

/// `after − before = proven frames + other frames + idle + unexplained`, in the differential's unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reconciliation {
    /// Mean packets a second, when known.
    pub pps: Option<(f64, f64)>,
    /// What a packet costs on all CPUs, idle included; 100 % without rates.
    pub before: f64,
    pub after: f64,
    /// Σ own changes of frames beyond chance, and how many they are.
    pub proven: f64,
    pub proven_frames: usize,
    /// Σ own changes of all other frames.
    pub others: f64,
    /// Change of the idle share; absent when values are shares of non-idle samples.
    pub idle: Option<f64>,
    /// What no sample accounts for.
    pub unexplained: f64,
    /// Whether samples are known to be time: otherwise they are taken to cover it all, and `unexplained` is 0.
    pub sampled: bool,
}

impl Reconciliation {
    pub(super) fn of(
        frames: &[Frame],
        tally: &Tally,
        estimate: &Estimate,
        sides: [&Side; 2],
        unit: Unit,
    ) -> Self {
        let rates = unit == Unit::NsPerPacket;
        let [before, after] = if rates { sides.map(|side| mean(&side.whole())) } else { [100.0; 2] };
        let sum =
            |proven: bool| frames.iter().filter(|f| f.proven() == proven).map(|f| f.own.change).sum::<f64>();
        let (proven, others) = (sum(true), sum(false));
        let idle = rates.then(|| estimate.value(&tally.idle, 1) - estimate.value(&tally.idle, 0));
        let mut recordings = sides.into_iter().flat_map(|s| s.recordings.iter().map(move |r| s.sampled(r)));
        Reconciliation {
            sampled: recordings.all(|share| share.is_some()),
            pps: rates.then(|| (mean(&sides[0].pps), mean(&sides[1].pps))),
            before,
            after,
            proven,
            proven_frames: frames.iter().filter(|f| f.proven()).count(),
            others,
            idle,
            unexplained: after - before - proven - others - idle.unwrap_or(0.0),
        }
    }
}
