//! What came back of each pair's packets.
//!
//! Packets of one pair travel on two TCP connections, so they arrive in order; a number that is skipped is lost
//! unless it comes after all. Every packet of a run counts as delivered, also when it comes after the window; the
//! delivered rate is of those that came while the window was open.

use hdrhistogram::Histogram;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use weir_core::time::Nanos;

use super::packet::Mark;

/// Up to a minute, to three digits.
const LATENCY_MAX: u64 = 60_000_000_000;

/// Numbers of one pair.
#[derive(Clone, Debug, Default)]
pub struct Course {
    /// Next to be sent, next expected.
    pub next: u64,
    pub expected: u64,
    /// Which of the 64 before `expected` have come.
    seen: u64,
    /// Given up: a closed loop does not wait for them.
    pub forgiven: u64,
    pub arrived_at: Nanos,
}

impl Course {
    /// Packets under way, as far as is known.
    pub fn under_way(&self) -> u64 {
        self.next - self.expected.max(self.forgiven)
    }
}

#[derive(Serialize, Deserialize)]
pub struct Tally {
    #[serde(with = "recorded")]
    pub latency: Histogram<u64>,
    /// Packets delivered in the window and after it.
    pub delivered: u64,
    /// Packets that arrived while the window was open.
    pub arrived: u64,
    pub bytes: u64,
    pub reordered: u64,
    pub duplicated: u64,
    /// Frames whose mark, length or fill was not what was sent.
    pub corrupted: u64,
    /// Packets of a run before this one.
    pub foreign: u64,
    pub last_arrival: Nanos,
    #[serde(skip)]
    pub open: bool,
}

fn latencies() -> Histogram<u64> {
    Histogram::new_with_max(LATENCY_MAX, 3).expect("bounds that hdrhistogram takes")
}

/// A histogram as (nanoseconds, packets).
mod recorded {
    use super::*;

    pub fn serialize<S: Serializer>(latency: &Histogram<u64>, into: S) -> Result<S::Ok, S::Error> {
        let recorded = latency.iter_recorded();
        into.collect_seq(recorded.map(|v| (v.value_iterated_to(), v.count_at_value())))
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Histogram<u64>, D::Error> {
        let mut latency = latencies();
        for (nanoseconds, packets) in Vec::<(u64, u64)>::deserialize(from)? {
            latency.saturating_record_n(nanoseconds, packets);
        }
        Ok(latency)
    }
}

impl Tally {
    pub fn new() -> Tally {
        Tally {
            latency: latencies(),
            delivered: 0,
            arrived: 0,
            bytes: 0,
            reordered: 0,
            duplicated: 0,
            corrupted: 0,
            foreign: 0,
            last_arrival: 0,
            open: false,
        }
    }

    /// One packet of a pair.
    #[inline]
    pub fn arrival(&mut self, course: &mut Course, mark: Mark, length: usize, now: Nanos) {
        let n = mark.sequence;
        if n >= course.next {
            self.corrupted += 1;
            return;
        }
        if n >= course.expected {
            let gap = n - course.expected + 1;
            course.seen = if gap < 64 { course.seen << gap | 1 } else { 1 };
            course.expected = n + 1;
        } else {
            let bit = 1u64.checked_shl((course.expected - 1 - n) as u32).unwrap_or(0);
            if bit == 0 || course.seen & bit != 0 {
                self.duplicated += 1;
                return;
            }
            course.seen |= bit;
            self.reordered += 1;
        }
        course.arrived_at = now;
        self.last_arrival = now;
        if self.open {
            self.arrived += 1;
            self.bytes += length as u64;
        }
        self.delivered += 1;
        // longer ones count as the longest
        self.latency.saturating_record(now.saturating_sub(mark.due));
    }
}

impl Default for Tally {
    fn default() -> Self {
        Tally::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tallied(numbers: &[u64]) -> (Tally, Course) {
        let mut tally = Tally { open: true, ..Tally::new() };
        let mut course = Course { next: 100, ..Course::default() };
        for &sequence in numbers {
            tally.arrival(&mut course, Mark { run: 1, pair: 0, sequence, due: 10 }, 1400, 50);
        }
        (tally, course)
    }

    #[test]
    fn packets_after_the_window_are_delivered_but_in_no_rate() {
        let (mut tally, mut course) = tallied(&[0, 1, 2]);
        tally.open = false;
        tally.arrival(&mut course, Mark { run: 1, pair: 0, sequence: 3, due: 10 }, 1400, 60);
        assert_eq!((tally.arrived, tally.bytes, tally.delivered), (3, 4200, 4));
        assert_eq!((course.under_way(), tally.latency.len(), tally.latency.max()), (96, 4, 50));
    }

    #[test]
    fn late_and_repeated_packets_are_told_apart() {
        let (tally, _) = tallied(&[2, 5, 3, 3, 5, 4]);
        assert_eq!((tally.delivered, tally.reordered, tally.duplicated), (4, 2, 2));
    }

    #[test]
    fn a_number_that_was_never_sent_is_damage() {
        let (tally, _) = tallied(&[100]);
        assert_eq!((tally.corrupted, tally.delivered), (1, 0));
    }
}
