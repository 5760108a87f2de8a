//! SUTs whose capacity is known, on a clock that only trials move: what searches are tested on.
//!
//! ```text
//! offered = min(rate, source) × seconds ─► lost = what the shape loses of it at this time ─► TrialRecord
//! ```
//!
//! Promises: the same seed gives the same trials; packets are whole. Refuses: latency.

use std::collections::BTreeMap;

use super::goal::Goal;
use super::{Limits, LossLedger, Measurer, Rate, Refusal, TrialRecord};
use crate::random::Random;

/// How a simulated SUT loses packets. Rates are packets a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// Carries everything up to `capacity`, and that much of anything above.
    Cliff { capacity: f64 },
    /// Loses nothing up to `start`, then a share growing with the square to `lost` at `capacity`; a cliff there.
    Knee { start: f64, capacity: f64, lost: f64 },
    /// Carries everything up to `capacity`; above it, a packet more is a packet less until `floor` (receive
    /// livelock).
    Livelock { capacity: f64, floor: f64 },
    /// A cliff, and in one second of `every` a burst of loss of this share at any load.
    Noise { capacity: f64, every: f64, lost: f64 },
    /// A cliff that is at `fast` for `period` seconds, then at `slow`, by turns.
    Bimodal { slow: f64, fast: f64, period: f64 },
    /// A cliff behind a queue of `queue` packets: short overloads pass.
    Queue { capacity: f64, queue: f64 },
    /// A cliff that comes down by this share of `capacity` each hour.
    Drift { capacity: f64, per_hour: f64 },
    /// Carries nothing.
    Dead,
    /// Loses nothing at any load.
    Endless,
}

impl Shape {
    /// Packets lost on average of `load` packets a second for `seconds` from `now` on, noise left out.
    fn lost(&self, load: f64, now: f64, seconds: f64) -> f64 {
        let above = |capacity: f64| (load - capacity).max(0.0) * seconds;
        match *self {
            Shape::Cliff { capacity } | Shape::Noise { capacity, .. } => above(capacity),
            Shape::Livelock { capacity, floor } => {
                let carried = if load > capacity { (2.0 * capacity - load).max(floor) } else { load };
                (load - carried) * seconds
            }
            Shape::Queue { capacity, queue } => (above(capacity) - queue).max(0.0),
            Shape::Knee { start, capacity, lost } => {
                let into = ((load.min(capacity) - start) / (capacity - start)).max(0.0);
                let carried = load.min(capacity);
                carried * seconds * into * into * lost + above(capacity)
            }
            Shape::Bimodal { slow, fast, period } => {
                let slowly = seconds_in_odd_turns(now, seconds, period);
                (load - fast).max(0.0) * (seconds - slowly) + (load - slow).max(0.0) * slowly
            }
            Shape::Drift { capacity, per_hour } => above(drifted(capacity, per_hour, now + seconds / 2.0)),
            Shape::Dead => load * seconds,
            Shape::Endless => 0.0,
        }
    }

    /// The least and the greatest load that a search for `goal` lasting until `end` may rightly call its
    /// lower bound; equal where the SUT has one capacity.
    pub fn truth(&self, goal: &Goal, limits: Limits, end: f64) -> (f64, f64) {
        let at = |shape: Shape, now: f64| shape.greatest_load(goal, limits, now);
        match *self {
            Shape::Bimodal { slow, fast, .. } => {
                (at(Shape::Cliff { capacity: slow }, 0.0), at(Shape::Cliff { capacity: fast }, 0.0))
            }
            Shape::Drift { .. } => (at(*self, end), at(*self, 0.0)),
            shape => (at(shape, 0.0), at(shape, 0.0)),
        }
    }

    /// Found by halving, without noise, in trials of the goal's final length.
    fn greatest_load(&self, goal: &Goal, limits: Limits, now: f64) -> f64 {
        let passes = |load: f64| {
            let seconds = goal.final_seconds;
            // whole packets: less than one lost is none
            self.lost(load, now, seconds).floor() <= goal.loss_ratio * load * seconds
        };
        let (mut low, mut high) = (0.0, limits.max_pps as f64);
        if passes(high) {
            return high;
        }
        for _ in 0..60 {
            let middle = (low + high) / 2.0;
            if passes(middle) { low = middle } else { high = middle }
        }
        low
    }
}

fn drifted(capacity: f64, per_hour: f64, now: f64) -> f64 {
    capacity * (1.0 - per_hour * now / 3600.0).max(0.0)
}

/// Counts, of `seconds` from `now` on, those in the 2nd, 4th … turn of `period` seconds.
fn seconds_in_odd_turns(now: f64, seconds: f64, period: f64) -> f64 {
    let until = |t: f64| {
        let (whole, part) = ((t / (2.0 * period)).floor(), t % (2.0 * period));
        whole * period + (part - period).max(0.0)
    };
    until(now + seconds) - until(now)
}

/// A simulated SUT under load.
#[derive(Clone, Debug)]
pub struct Simulated {
    pub shape: Shape,
    /// What the source can offer at most.
    pub source_pps: f64,
    /// Seconds of trials so far.
    pub clock: f64,
    pub trials: usize,
    random: Random,
}

impl Simulated {
    pub fn new(shape: Shape, source_pps: f64, seed: u64) -> Simulated {
        Simulated { shape, source_pps, clock: 0.0, trials: 0, random: Random::for_part(seed, "simulate") }
    }

    /// Packets lost to bursts of noise.
    fn noise(&mut self, load: f64, seconds: f64) -> f64 {
        let Shape::Noise { every, lost, .. } = self.shape else { return 0.0 };
        let mut left = seconds;
        let mut packets = 0.0;
        while left > 0.0 {
            let part = left.min(1.0);
            if self.chance() < part / every {
                packets += load * part * lost;
            }
            left -= 1.0;
        }
        packets
    }

    fn chance(&mut self) -> f64 {
        (self.random.draw() >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl Measurer for Simulated {
    type Error = Refusal;

    fn trial(&mut self, rate: Rate, seconds: f64, purpose: &str) -> Result<TrialRecord, Refusal> {
        let wanted = match rate {
            Rate::FlatOut | Rate::Burst(_) => self.source_pps,
            Rate::Pps(pps) => pps as f64,
        };
        let seconds = match rate {
            Rate::Burst(packets) => f64::from(packets) / self.source_pps,
            _ => seconds,
        };
        let load = wanted.min(self.source_pps);
        let offered = (load * seconds).round() as u64;
        let lost = self.shape.lost(load, self.clock, seconds) + self.noise(load, seconds);
        let delivered = offered - (lost.floor() as u64).min(offered);
        self.clock += seconds;
        self.trials += 1;
        let intended = (wanted * seconds).round() as u64;
        Ok(TrialRecord {
            purpose: purpose.into(),
            rate,
            seconds,
            pps: delivered as f64 / seconds,
            ledger: LossLedger { intended, offered, sent: offered, delivered, ..LossLedger::default() },
            latency_ns: BTreeMap::new(),
            cpu_percent: None,
            superseded: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_of_a_bimodal_sut_are_counted_across_their_ends() {
        assert_eq!(seconds_in_odd_turns(0.0, 10.0, 5.0), 5.0);
        assert_eq!(seconds_in_odd_turns(4.0, 2.0, 5.0), 1.0);
        assert_eq!(seconds_in_odd_turns(9.0, 2.0, 5.0), 1.0);
        assert_eq!(seconds_in_odd_turns(5.0, 5.0, 5.0), 5.0);
    }

    #[test]
    fn truth_is_the_load_that_just_meets_the_goal() {
        let limits = Limits::new(1000, 2_000_000).expect("room");
        let goal = |loss_ratio| Goal { loss_ratio, ..Goal::rfc2544(1.0, 0.005) };
        let (low, high) = Shape::Cliff { capacity: 1e6 }.truth(&goal(0.0), limits, 0.0);
        assert_eq!(low, high);
        assert!((low - 1_000_001.0).abs() < 1.0, "{low}: less than a packet lost is none");
        let (pdr, _) = Shape::Cliff { capacity: 1e6 }.truth(&goal(0.005), limits, 0.0);
        assert!((pdr - 1e6 / 0.995).abs() < 2.0, "{pdr}");
        assert_eq!(Shape::Endless.truth(&goal(0.0), limits, 0.0), (2e6, 2e6));
        assert!(Shape::Dead.truth(&goal(0.005), limits, 0.0).1 < 1.1);
    }

    #[test]
    fn packets_are_conserved_and_the_clock_moves_with_trials() {
        let mut sut = Simulated::new(Shape::Noise { capacity: 1e5, every: 2.0, lost: 0.1 }, 1.5e5, 1);
        for rate in [Rate::FlatOut, Rate::Pps(200_000), Rate::Pps(1)] {
            let l = sut.trial(rate, 2.5, "").expect("simulated").ledger;
            assert!(l.delivered <= l.offered && l.offered <= l.intended, "{l:?}");
        }
        assert_eq!((sut.clock, sut.trials), (7.5, 3));
    }
}
