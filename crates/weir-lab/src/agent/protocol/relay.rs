//! What lab and agents say to each other of a relay on a host and its clients on another.
//!
//! ```text
//! device under test   start · counters · watch · memory · ended
//! generator           connect · run · hold · release · invite · visit
//! ```

use serde::{Deserialize, Serialize};
use weir_core::time::Nanos;

use super::Interface;
use crate::generator::derp::pairs::{Outcome, PairTraffic};
use crate::generator::derp::stalled;
use crate::generator::derp::tally::Tally;
use crate::generator::derp::visits::Stay;
use crate::model::Configuration;
use crate::sut::relay::Ticks;

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "do", content = "with", rename_all = "kebab-case")]
pub enum RelayRequest {
    /// Starts the relay, on the address of this interface → [`RelayStarted`].
    Start(Box<RelayEnd>),
    /// What it dropped so far → [`super::Counted`], without CPU time.
    Counters,
    /// CPU time of a window that opens after so long → [`Watched`].
    Watch { after_ns: Nanos, window_ns: Nanos },
    /// Memory of its process → bytes.
    Memory,
    /// What it said, if it ended by itself → `Option<LabError>`.
    Ended,
    /// Waits until the relay can be reached, and connects the clients that its load has → [`ClientsReady`].
    Connect { end: Box<RelayEnd>, within_ms: u64 },
    /// One window of the pairs, drained → [`PairsRan`].
    Run(PairTraffic),
    /// Connects so many silent clients → nanoseconds that it took.
    Hold { seed: u64, count: u64 },
    /// The silent clients leave → ().
    Release,
    /// Makes the keys of clients that will connect and leave → ().
    Invite(Stay),
    /// They do → [`crate::generator::derp::visits::Connected`].
    Visit,
}

/// One end of the wire between the relay and its clients.
#[derive(Debug, Serialize, Deserialize)]
pub struct RelayEnd {
    pub configuration: Configuration,
    pub interface: Interface,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RelayStarted {
    pub notes: Vec<String>,
    /// Which of the notes say that something better was refused.
    pub fallbacks: Vec<String>,
    /// The relay's CPUs.
    pub cpus: Vec<u32>,
    /// CPUs of the host.
    pub machine: usize,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClientsReady {
    pub notes: Vec<String>,
    pub fallbacks: Vec<String>,
    /// The CPU they work on.
    pub cpu: u32,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Watched {
    pub opened: Ticks,
    pub closed: Ticks,
}

/// What pairs of clients found, by the generator's clock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PairsRan {
    pub intended: u64,
    pub offered: u64,
    pub sent: u64,
    pub began: Nanos,
    pub ended: Nanos,
    pub idle: Nanos,
    pub late_max: Nanos,
    pub group: u64,
    pub stalled: stalled::Count,
    pub disconnected: usize,
    pub delivered: u64,
    pub arrived: u64,
    pub bytes: u64,
    pub reordered: u64,
    pub duplicated: u64,
    pub corrupted: u64,
    pub foreign: u64,
    pub last_arrival: Nanos,
    /// (nanoseconds, packets).
    pub latencies: Vec<(u64, u64)>,
}

impl From<Outcome> for PairsRan {
    fn from(came: Outcome) -> PairsRan {
        let tally = came.tally;
        let recorded = tally.latency.iter_recorded();
        PairsRan {
            latencies: recorded.map(|v| (v.value_iterated_to(), v.count_at_value())).collect(),
            intended: came.intended,
            offered: came.offered,
            sent: came.sent,
            began: came.began,
            ended: came.ended,
            idle: came.idle,
            late_max: came.late_max,
            group: came.group,
            stalled: came.stalled,
            disconnected: came.disconnected,
            delivered: tally.delivered,
            arrived: tally.arrived,
            bytes: tally.bytes,
            reordered: tally.reordered,
            duplicated: tally.duplicated,
            corrupted: tally.corrupted,
            foreign: tally.foreign,
            last_arrival: tally.last_arrival,
        }
    }
}

impl From<PairsRan> for Outcome {
    fn from(ran: PairsRan) -> Outcome {
        let mut tally = Tally {
            delivered: ran.delivered,
            arrived: ran.arrived,
            bytes: ran.bytes,
            reordered: ran.reordered,
            duplicated: ran.duplicated,
            corrupted: ran.corrupted,
            foreign: ran.foreign,
            last_arrival: ran.last_arrival,
            ..Tally::new()
        };
        for (nanoseconds, packets) in ran.latencies {
            tally.latency.saturating_record_n(nanoseconds, packets);
        }
        Outcome {
            tally,
            intended: ran.intended,
            offered: ran.offered,
            sent: ran.sent,
            began: ran.began,
            ended: ran.ended,
            idle: ran.idle,
            late_max: ran.late_max,
            group: ran.group,
            stalled: ran.stalled,
            disconnected: ran.disconnected,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::derp::packet::Mark;
    use crate::generator::derp::tally::Course;

    #[test]
    fn what_pairs_found_is_the_same_on_the_other_side() {
        let mut tally = Tally { open: true, corrupted: 2, ..Tally::new() };
        let mut course = Course::default();
        course.next = 9;
        for (sequence, now) in [(0, 50), (2, 70_000), (1, 80_000)] {
            tally.arrival(&mut course, Mark { run: 1, pair: 0, sequence, due: 10 }, 1400, now);
        }
        let came = Outcome {
            tally,
            intended: 10,
            offered: 9,
            sent: 8,
            began: 1,
            ended: 100_000,
            idle: 5,
            late_max: 6,
            group: 7,
            stalled: stalled::Count { intended: 4, offered: 3, sent: 2, received: 1 },
            disconnected: 1,
        };
        let said = serde_json::to_string(&PairsRan::from(came)).expect("plain data");
        let ran: PairsRan = serde_json::from_str(&said).expect("our own");
        let again = PairsRan::from(Outcome::from(ran.clone()));
        assert_eq!(format!("{again:?}"), format!("{ran:?}"));
        assert_eq!((ran.delivered, ran.arrived, ran.bytes, ran.reordered), (3, 3, 4200, 1));
        assert_eq!((ran.intended, ran.offered, ran.sent, ran.corrupted), (10, 9, 8, 2));
        assert_eq!(ran.latencies.iter().map(|(_, packets)| packets).sum::<u64>(), 3);
    }
}
