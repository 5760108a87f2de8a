//! Two hosts, two clocks: what can be said of one in terms of the other.
//!
//! A host is asked for its time; its answer was true at some moment between question and answer (Cristian
//! 1989). The quickest of several exchanges bounds it best. That is good enough to say when a window's last
//! packet arrived, and far too coarse for the latency of a packet, which is therefore not reported.

use weir_core::time::Nanos;
use weir_io::clock;

use crate::model::LabError;

/// Exchanges with each host; the quickest counts.
const EXCHANGES: usize = 8;

/// A host's clock less ours, and how far off that may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset {
    pub nanoseconds: i64,
    pub error: u64,
}

impl Offset {
    /// `ask` reads the host's clock.
    pub fn measure(mut ask: impl FnMut() -> Result<Nanos, LabError>) -> Result<Offset, LabError> {
        let mut exchange = || -> Result<Offset, LabError> {
            let asked = clock::now();
            let theirs = ask()?;
            Ok(Offset::of(asked, theirs, clock::now()))
        };
        let mut best: Offset = exchange()?;
        for _ in 1..EXCHANGES {
            let offset = exchange()?;
            if offset.error < best.error {
                best = offset;
            }
        }
        Ok(best)
    }

    fn of(asked: Nanos, theirs: Nanos, answered: Nanos) -> Offset {
        let half = answered.saturating_sub(asked) / 2;
        Offset { nanoseconds: theirs as i64 - (asked + half) as i64, error: half + 1 }
    }

    /// A moment of this host's clock, by `other`'s.
    pub fn translate(self, moment: Nanos, other: Offset) -> Nanos {
        (moment as i64 - self.nanoseconds + other.nanoseconds).max(0) as Nanos
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_translated_within_the_error() {
        // ours runs from 0, theirs is 1 s ahead, the way there takes 30 µs and the way back 10 µs
        let theirs = Offset::of(100_000, 1_000_130_000, 140_000);
        let ours = Offset { nanoseconds: 0, error: 0 };
        let moment = theirs.translate(1_000_500_000, ours);
        assert!(moment.abs_diff(500_000) <= theirs.error, "{moment} {theirs:?}");
        assert_eq!(ours.translate(5, ours), 5);
    }

    #[test]
    fn the_quickest_exchange_counts() {
        let mut slow = 0;
        let offset = Offset::measure(|| {
            slow += 1;
            if slow != 3 {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            Ok(clock::now() + 7_000_000_000)
        });
        let offset = offset.expect("asked");
        assert!(offset.nanoseconds.abs_diff(7_000_000_000) <= offset.error, "{offset:?}");
    }
}
