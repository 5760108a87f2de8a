//! Rate sweep: loss and latency at each of a list of rates (RFC 2544 sections 26.2 and 26.3).
//!
//! ```text
//! MRR (flat out) ─► 10 %, 20 % … of it, lowest first ─► a trial each ─► throughput against loss
//! ```
//!
//! Promises: rates in ascending order, so that what one overload leaves behind burdens no lower rate.
//! Refuses: a value for what was not loaded.

use serde::{Deserialize, Serialize};

use super::{Measurer, Rate, TrialRecord};

/// How the purpose of a sweep's trials begins.
const SWEEP: &str = "sweep at ";

/// The step a trial was made for (`50 % of flat out`), if a sweep made it.
pub fn step_of(trial: &TrialRecord) -> Option<&str> {
    trial.purpose.strip_prefix(SWEEP)
}

/// A load, absolute or relative to what comes through flat out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    Pps(u64),
    /// Percent of a rate known only at run time.
    Percent(f64),
}

impl Step {
    /// Packets a second, at least one.
    pub fn pps(self, whole_pps: f64) -> u64 {
        match self {
            Step::Pps(pps) => pps,
            Step::Percent(percent) => ((whole_pps * percent / 100.0).round() as u64).max(1),
        }
    }

    /// What a trial at this step is for: the same in every run.
    fn purpose(self) -> String {
        match self {
            Step::Pps(pps) => format!("{SWEEP}{pps} pps"),
            Step::Percent(percent) => format!("{SWEEP}{percent} % of flat out"),
        }
    }
}

/// One trial a step; `whole_pps` is what percentages are of.
pub fn search<M: Measurer + ?Sized>(
    measurer: &mut M,
    steps: &[Step],
    whole_pps: f64,
    seconds: f64,
) -> Result<Vec<TrialRecord>, M::Error> {
    let mut rates: Vec<(u64, Step)> = steps.iter().map(|s| (s.pps(whole_pps), *s)).collect();
    rates.sort_by_key(|(pps, _)| *pps);
    rates.dedup_by_key(|(pps, _)| *pps);
    let trial = |(pps, step): (u64, Step)| measurer.trial(Rate::Pps(pps), seconds, &step.purpose());
    rates.into_iter().map(trial).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::simulate::{Shape, Simulated};

    #[test]
    fn loss_begins_where_the_sut_ends() {
        let mut sut = Simulated::new(Shape::Cliff { capacity: 1e6 }, 4e6, 1);
        let steps = [Step::Percent(200.0), Step::Percent(50.0), Step::Pps(1_000_000), Step::Percent(100.0)];
        let records = search(&mut sut, &steps, 1e6, 1.0).expect("simulated");
        let table: Vec<(u64, u64)> =
            records.iter().map(|r| (r.load_pps() as u64, (r.loss_ratio() * 1000.0) as u64)).collect();
        assert_eq!(table, [(500_000, 0), (1_000_000, 0), (2_000_000, 500)]);
        let steps: Vec<Option<&str>> = records.iter().map(step_of).collect();
        assert_eq!(steps, [Some("50 % of flat out"), Some("1000000 pps"), Some("200 % of flat out")]);
    }

    #[test]
    fn a_percentage_of_next_to_nothing_is_still_a_packet() {
        assert_eq!(Step::Percent(1.0).pps(3.0), 1);
    }
}
