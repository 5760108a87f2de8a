//! Throughput searches: which rate a SUT carries, found by loading it again and again.
//!
//! ```text
//! search (pure) ── rate, seconds ─► Measurer ─► TrialRecord ── loss ratio ─► search ─► bounds, oddities
//!                                   a prepared SUT, or a simulated one on a virtual clock
//! ```
//!
//! Promises: a search asks for whole packets a second between its limits and ends; what it could not find
//! is said by name ([`goal::Verdict`]), never guessed. Refuses: to know what it loads, so that every search
//! is tested on SUTs whose capacity is known (docs/search.md has the table).
//!
//! Sources: RFC 9971 (MLRsearch, draft-ietf-bmwg-mlrsearch), RFC 2544 section 26, RFC 9004 (back-to-back),
//! RFC 8219 section 7.2 (latency), and the equilibrium method as netbenches' generator logs show it.

pub mod bisect;
pub mod burst;
pub mod contest;
pub mod equilibrium;
pub mod goal;
mod load;
pub mod mlr;
pub mod simulate;
pub mod sweep;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

pub use load::{LossLedger, Rate};

/// A source that falls behind by less than this share of what was asked is taken as it is: the load moves by
/// less than searches resolve by default. Beyond it what was not offered counts as lost, as RFC 9971
/// recommends for severe deviations of the offered from the intended load.
pub const SHORTFALL: f64 = 0.005;

/// Loads a SUT and tells what came.
pub trait Measurer {
    /// Why a trial could not be made; a search's own refusals become one, too.
    type Error: From<Refusal>;

    /// One trial; `seconds` is without meaning for a burst. `purpose` says what the search wants to know (`ndr in 600000..640000`).
    fn trial(&mut self, rate: Rate, seconds: f64, purpose: &str) -> Result<TrialRecord, Self::Error>;
}

/// One trial of a search, raw: what was asked and what came.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialRecord {
    pub purpose: String,
    pub rate: Rate,
    /// Length asked for; of a burst, how long it took.
    pub seconds: f64,
    /// Delivered packets a second.
    pub pps: f64,
    pub ledger: LossLedger,
    /// Nanoseconds by percentile, as in a sample.
    pub latency_ns: BTreeMap<String, u64>,
    /// Share of the time the SUT's CPUs were busy, where the testbed can tell.
    pub cpu_percent: Option<f64>,
    /// Made again because the source was held up; searches and tables pass over it.
    #[serde(default)]
    pub superseded: bool,
}

impl TrialRecord {
    /// Packets a second asked for; when flat out, what the source offered.
    pub fn load_pps(&self) -> f64 {
        match self.rate {
            Rate::Pps(pps) => pps as f64,
            Rate::FlatOut | Rate::Burst(_) => self.ledger.offered as f64 / self.seconds,
        }
    }

    /// Share of what was asked that the source did not offer.
    pub fn shortfall(&self) -> f64 {
        let l = &self.ledger;
        1.0 - l.offered.min(l.intended) as f64 / l.intended.max(1) as f64
    }

    /// Whether the source fell behind by more than [`SHORTFALL`].
    pub fn source_fell_behind(&self) -> bool {
        self.ledger.intended > 0 && self.shortfall() > SHORTFALL
    }

    /// RFC 9971's trial loss ratio: 1 − delivered / offered, or / intended when the source fell behind. A
    /// trial in which nothing was to be sent lost everything: it shows nothing to build on.
    pub fn loss_ratio(&self) -> f64 {
        let l = &self.ledger;
        let expected = if self.source_fell_behind() { l.intended } else { l.offered };
        match expected {
            0 => 1.0,
            n => (1.0 - l.delivered as f64 / n as f64).clamp(0.0, 1.0),
        }
    }
}

/// The least and the greatest rate a search may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    pub min_pps: u64,
    pub max_pps: u64,
}

impl Limits {
    /// Takes limits of at least one packet a second, with room between the ends.
    pub fn new(min_pps: u64, max_pps: u64) -> Result<Limits, Refusal> {
        if min_pps == 0 || max_pps <= min_pps {
            return Err(Refusal::Limits { min_pps, max_pps });
        }
        Ok(Limits { min_pps, max_pps })
    }
}

/// Why a search does not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The limits leave no room, or none above 0.
    Limits { min_pps: u64, max_pps: u64 },
    /// The line is too slow for steps of whole Mb/s.
    Line { mbps: u64 },
    /// No repeat of the longest burst was asked for.
    NoRepeats,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Limits { min_pps, max_pps } => write!(
                f,
                "search: limits {min_pps} to {max_pps} packets a second, expected a minimum above 0 and a \
                 maximum above it: lower `min_pps` or raise `max_pps`"
            ),
            Refusal::Line { mbps } => write!(
                f,
                "equilibrium: the source offers {mbps} Mb/s, expected at least 4 to step by whole Mb/s: use \
                 larger frames or `method = \"ndr-pdr\"`"
            ),
            Refusal::NoRepeats => {
                f.write_str("back-to-back: no repeats, expected at least one: raise `repeats`")
            }
        }
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(intended: u64, offered: u64, delivered: u64) -> TrialRecord {
        TrialRecord {
            purpose: String::new(),
            rate: Rate::Pps(intended),
            seconds: 1.0,
            pps: delivered as f64,
            ledger: LossLedger { intended, offered, sent: offered, delivered, ..LossLedger::default() },
            latency_ns: BTreeMap::new(),
            cpu_percent: None,
            superseded: false,
        }
    }

    #[test]
    fn a_source_slightly_behind_is_no_loss_and_one_far_behind_is() {
        assert_eq!(record(1000, 1000, 990).loss_ratio(), 1.0 - 990.0 / 1000.0);
        assert_eq!(record(1000, 996, 996).loss_ratio(), 0.0);
        assert_eq!(record(1000, 900, 900).loss_ratio(), 1.0 - 0.9);
        assert!(record(1000, 900, 900).source_fell_behind());
    }

    #[test]
    fn nothing_sent_is_everything_lost_and_duplicates_never_make_a_loss_negative() {
        assert_eq!(record(0, 0, 0).loss_ratio(), 1.0);
        assert_eq!(record(10, 10, 12).loss_ratio(), 0.0);
    }

    #[test]
    fn limits_without_room_are_refused_with_the_remedy() {
        assert!(Limits::new(1, 2).is_ok());
        for (min, max) in [(0, 5), (5, 5), (6, 5)] {
            assert!(Limits::new(min, max).expect_err("refused").to_string().contains("raise `max_pps`"));
        }
    }
}
