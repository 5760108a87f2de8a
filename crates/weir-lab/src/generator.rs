//! The generator: sends a workload's packets flat out or paced, and counts what it meant, built and sent.
//!
//! Promises: every packet carries its run's number, so what was sent in a window is known exactly wherever
//! it is counted. Pacing waits busily and sends what is due, never more than [`BURST`] at once; what a
//! paced generator could not send in time stays unsent and shows as intended − offered.
//!
//! Refuses: catching up. A generator that was held up and then hurries invents loss.

pub mod derp;
pub mod packet;
pub mod sealed;
pub mod xdp;

use std::io;
use std::time::Duration;

use weir_core::time::Nanos;

use weir_stats::search::Rate;

/// Packets offered at once when paced, at most. 32 at 1 Mpps is 32 µs: an eighth of a veth's ring of 256.
pub const BURST: u64 = 32;
/// Packets offered at once when flat out.
pub const FLAT_OUT_BATCH: u32 = 64;
/// How long a transmitter sends by itself while a receiver waits for its turn on the same CPU.
pub const TURN: Duration = Duration::from_millis(5);

/// Puts packets of one traffic stream on the wire, in order.
pub trait Transmitter: Send {
    /// Offers the next `want` packets, marked with `run` and the present time.
    fn transmit(&mut self, want: u32, run: u8) -> io::Result<Transmitted>;

    /// Starts the stream again: packet 0 of every flow is next, in the order of `seed`.
    fn restart(&mut self, plan: &TrafficSpec, seed: u64) -> io::Result<()>;

    /// Sends until `deadline`, keeping the plan's rate by itself; `None` from those who cannot.
    fn send_until(&mut self, _deadline: Nanos) -> io::Result<Option<Transmitted>> {
        Ok(None)
    }

    /// Whether a packet the wire refuses is missing from `sent`. If not, the wire's own counter has it.
    fn sees_refusals(&self) -> bool;

    /// How packets are sent (`af_packet`), for notes.
    fn name(&self) -> &'static str;
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transmitted {
    /// Packets built and tried.
    pub offered: u64,
    /// Packets the kernel took.
    pub sent: u64,
}

/// What one run sends.
#[derive(Clone, Copy, Debug)]
pub struct TrafficSpec {
    pub rate: Rate,
    pub window: Duration,
    pub run: u8,
}

/// What a run sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    pub intended: u64,
    pub counts: Transmitted,
    /// When the window began and how long it really took.
    pub began: Nanos,
    pub took: Nanos,
    /// Most packets the generator was ever behind its schedule.
    pub behind_max: u64,
}

/// One run in progress: call [`Generator::step`] until it says that nothing is left.
pub struct Generator<'a> {
    transmitter: &'a mut dyn Transmitter,
    plan: TrafficSpec,
    sent: Sent,
    /// Paced: packets that came due and were not sent.
    missed: u64,
    takes_turns: bool,
    by_itself: bool,
    /// The packets of a burst have left.
    burst_sent: bool,
}

impl<'a> Generator<'a> {
    /// `takes_turns`: whoever calls [`Generator::step`] has other work between two steps.
    pub fn new(
        transmitter: &'a mut dyn Transmitter,
        plan: TrafficSpec,
        takes_turns: bool,
        now: Nanos,
    ) -> Self {
        let sent = Sent { began: now, ..Sent::default() };
        Generator { transmitter, plan, sent, missed: 0, takes_turns, by_itself: false, burst_sent: false }
    }

    /// Sends what is due now; `false` when the window is over.
    pub fn step(&mut self, now: Nanos) -> io::Result<bool> {
        let elapsed = now.saturating_sub(self.sent.began);
        if let Rate::Burst(packets) = self.plan.rate {
            return self.burst(packets, elapsed);
        }
        if elapsed >= self.plan.window.as_nanos() as Nanos {
            // Whoever sends by itself stopped at the end, however late it says so.
            self.sent.took = if self.by_itself { self.plan.window.as_nanos() as Nanos } else { elapsed };
            return Ok(false);
        }
        let end = self.sent.began + self.plan.window.as_nanos() as Nanos;
        let turn = if self.takes_turns { now + TURN.as_nanos() as Nanos } else { end };
        if let Some(done) = self.transmitter.send_until(turn.min(end))? {
            self.by_itself = true;
            self.count(done);
            return Ok(true);
        }
        let want = self.due(elapsed);
        if want > 0 {
            let done = self.transmitter.transmit(want, self.plan.run)?;
            self.count(done);
        }
        Ok(true)
    }

    /// All in one call, so that nothing comes between two packets; the next step says how long it took.
    fn burst(&mut self, packets: u32, elapsed: Nanos) -> io::Result<bool> {
        if std::mem::replace(&mut self.burst_sent, true) {
            self.sent.took = elapsed;
            return Ok(false);
        }
        let done = self.transmitter.transmit(packets, self.plan.run)?;
        self.count(done);
        Ok(true)
    }

    fn count(&mut self, done: Transmitted) {
        self.sent.counts.offered += done.offered;
        self.sent.counts.sent += done.sent;
    }

    /// What the run sent so far.
    pub fn sent(&self) -> Sent {
        let offered = self.sent.counts.offered;
        let intended = match self.plan.rate {
            Rate::FlatOut => offered,
            Rate::Burst(packets) => u64::from(packets),
            Rate::Pps(rate) => scheduled(rate, self.plan.window.as_nanos() as Nanos).max(offered),
        };
        Sent { intended, ..self.sent }
    }

    fn due(&mut self, elapsed: Nanos) -> u32 {
        let Rate::Pps(rate) = self.plan.rate else { return FLAT_OUT_BATCH };
        let behind = scheduled(rate, elapsed).saturating_sub(self.sent.counts.offered + self.missed);
        self.sent.behind_max = self.sent.behind_max.max(behind);
        // Twice a burst may stand open: a send takes as long as it takes. What is older is not sent.
        self.missed += behind.saturating_sub(2 * BURST);
        behind.min(BURST) as u32
    }
}

/// Packets due after `elapsed` nanoseconds.
fn scheduled(rate: u64, elapsed: Nanos) -> u64 {
    (u128::from(rate) * u128::from(elapsed) / 1_000_000_000) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes everything, or all but every `refuse`th packet; keeps what it was asked for.
    struct Wire {
        calls: Vec<(u32, u8)>,
        refuse: Option<u64>,
        seen: u64,
    }

    impl Transmitter for Wire {
        fn transmit(&mut self, want: u32, run: u8) -> io::Result<Transmitted> {
            self.calls.push((want, run));
            let before = self.refuse.map_or(0, |n| self.seen / n);
            self.seen += u64::from(want);
            let refused = self.refuse.map_or(0, |n| self.seen / n) - before;
            Ok(Transmitted { offered: u64::from(want), sent: u64::from(want) - refused })
        }

        fn restart(&mut self, _: &TrafficSpec, _: u64) -> io::Result<()> {
            Ok(())
        }

        fn sees_refusals(&self) -> bool {
            true
        }

        fn name(&self) -> &'static str {
            "test"
        }
    }

    fn run(rate: Rate, refuse: Option<u64>, tick: Nanos, hold_up_at: Option<Nanos>) -> (Sent, Wire) {
        let mut wire = Wire { calls: Vec::new(), refuse, seen: 0 };
        let plan = TrafficSpec { rate, window: Duration::from_millis(100), run: 8 };
        let mut now = 5_000;
        let mut generator = Generator::new(&mut wire, plan, true, now);
        while generator.step(now).expect("the test wire never fails") {
            now += tick;
            if hold_up_at.is_some_and(|at| (at..at + tick).contains(&now)) {
                now += 20_000_000;
            }
        }
        (generator.sent(), wire)
    }

    #[test]
    fn paced_generator_sends_exactly_what_is_due() {
        let (sent, wire) = run(Rate::Pps(1_000_000), None, 1_000, None);
        assert_eq!((sent.intended, sent.counts.offered, sent.counts.sent), (100_000, 99_999, 99_999));
        assert!(wire.calls.iter().all(|c| c.0 == 1), "one packet a microsecond, no bursts");
    }

    #[test]
    fn held_up_generator_does_not_catch_up() {
        let (sent, wire) = run(Rate::Pps(1_000_000), None, 1_000, Some(50_000_000));
        assert!(sent.behind_max >= 20_000);
        let unsent = sent.intended - sent.counts.offered;
        assert!((19_900..20_000).contains(&unsent), "{unsent}");
        assert!(wire.calls.iter().all(|c| u64::from(c.0) <= BURST));
    }

    #[test]
    fn a_burst_is_one_call_of_exactly_its_packets() {
        let (sent, wire) = run(Rate::Burst(1000), Some(10), 5_000, None);
        assert_eq!((sent.intended, sent.counts.offered, sent.counts.sent), (1000, 1000, 900));
        assert_eq!((wire.calls.as_slice(), sent.took), (&[(1000, 8)][..], 5_000));
    }

    #[test]
    fn flat_out_intends_what_it_offers() {
        let (sent, wire) = run(Rate::FlatOut, Some(10), 100_000, None);
        assert_eq!(sent.intended, sent.counts.offered);
        assert_eq!(sent.counts.offered, wire.calls.len() as u64 * u64::from(FLAT_OUT_BATCH));
        assert!(wire.calls.iter().all(|c| c.1 == 8), "every packet carries its run");
        let refused = sent.counts.offered - sent.counts.sent;
        assert!(refused.abs_diff(sent.counts.offered / 10) <= 1);
    }
}
