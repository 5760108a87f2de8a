//! The receiver: what arrived of a run, packet by packet.
//!
//! Promises: each flow is judged by its own numbers. A packet is *delivered* when it is the first with
//! its number, *duplicated* when that number was seen before, *reordered* when a higher number of its flow
//! came first (RFC 4737, 3.4). Latency is one-way, from the time in the packet to the time its batch was
//! taken from the kernel, both `CLOCK_MONOTONIC`.
//!
//! Refuses: to remember for ever. A packet later than [`WINDOW`] numbers (more with fewer flows) cannot be
//! told from a duplicate; it is counted as delivered, reordered and `beyond_memory`, and the report says so.

pub mod packet;
pub mod xdp;

use std::io;

use hdrhistogram::Histogram;
use weir_core::time::Nanos;

use crate::model::{Configuration, Family};
use crate::workload::Mark;
use crate::workload::sa::{SAS_MAX, Sealed};

/// Numbers a flow remembers at least: one machine word.
pub const WINDOW: u32 = 64;
/// Numbers all flows together remember: 2¹⁷ bits are 16 KiB, half of a small L1.
const MEMORY: u32 = 1 << 17;
/// Longest latency told apart, 10 s; what takes longer counts as this.
const LATENCY_MAX_NS: u64 = 10_000_000_000;

/// What test packets look like where they arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Plain packets of so many flows, each with its mark.
    Marked { family: Family, flows: u32 },
    /// ESP: an SA stands for a flow, its sequence number for the packet's. No run and no time can be read: what comes later than
    /// the silence that ends a run counts in the next. After 2³¹ packets of one SA all of its packets count as reordered.
    Sealed(Sealed),
}

impl Form {
    pub fn of(c: &Configuration) -> Form {
        match c.ipsec().filter(|p| p.seals()) {
            Some(p) => Form::Sealed(Sealed::of(&p)),
            None => Form::Marked { family: c.workload.family, flows: c.workload.flows },
        }
    }

    /// How many flows a tally tells apart.
    pub fn flows(self) -> u32 {
        match self {
            Form::Marked { flows, .. } => flows,
            Form::Sealed(_) => SAS_MAX,
        }
    }
}

/// Takes arrived packets off the wire.
pub trait Collector: Send {
    /// Forgets what came before; packets of `run` count from now on.
    fn start(&mut self, run: u8) -> io::Result<()>;

    /// Counts every waiting packet, up to a batch. Called while packets are being sent.
    fn collect(&mut self, tally: &mut Tally) -> io::Result<()>;

    /// Collects as `collect` does, and brings the counts up to date. Called when nothing is sent any more.
    fn update(&mut self, tally: &mut Tally) -> io::Result<()> {
        self.collect(tally)
    }

    /// Completes the tally when nothing comes any more.
    fn finish(&mut self, tally: &mut Tally) -> io::Result<()> {
        self.update(tally)
    }

    /// Frames that reached the receiver and were lost there since the last call.
    fn lost(&mut self) -> io::Result<u64>;

    /// Whether packets are counted where they arrive, so that no thread need collect them.
    fn in_kernel(&self) -> bool {
        false
    }

    /// How packets are received (`af_packet`), for notes.
    fn name(&self) -> String;
}

/// What arrived of one run.
#[derive(Clone, Debug)]
pub struct Tally {
    run: u8,
    /// The number after the highest seen, by flow.
    next: Vec<u32>,
    /// One bit for each of a flow's last numbers, at `number % (64 × words)`.
    seen: Vec<u64>,
    words: usize,
    pub delivered: u64,
    pub duplicated: u64,
    pub reordered: u64,
    /// Reordered packets too late to be told from duplicates.
    pub beyond_memory: u64,
    /// Packets of other runs, and frames that are no test packets.
    pub foreign: u64,
    /// When the last batch with a delivered packet was taken from the kernel.
    pub last_arrival: Nanos,
    pub latency: Histogram<u64>,
}

impl Tally {
    pub fn new(run: u8, flows: u32) -> Self {
        let words = (MEMORY / WINDOW / flows.max(1)).max(1).next_power_of_two() as usize;
        Tally {
            run,
            next: vec![0; flows as usize],
            seen: vec![0; flows as usize * words],
            words,
            delivered: 0,
            duplicated: 0,
            reordered: 0,
            beyond_memory: 0,
            foreign: 0,
            last_arrival: 0,
            latency: Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).expect("the bounds are constants"),
        }
    }

    /// Counts one frame taken from the wire at `now`.
    #[inline]
    pub fn frame(&mut self, frame: &[u8], now: Nanos) {
        match Mark::read(frame) {
            Some(mark) if mark.run == self.run && (mark.flow as usize) < self.next.len() => {
                self.mark(mark, now)
            }
            _ => self.foreign += 1,
        }
    }

    /// Counts one sealed frame taken from the wire at `now`.
    #[inline]
    pub fn sealed(&mut self, sealed: Sealed, frame: &[u8], now: Nanos) {
        match sealed.read(frame) {
            Some((flow, sequence)) if (flow as usize) < self.next.len() => {
                self.mark(Mark { run: self.run, flow, sequence, sent_ns: now }, now)
            }
            _ => self.foreign += 1,
        }
    }

    fn mark(&mut self, mark: Mark, now: Nanos) {
        let flow = mark.flow as usize;
        let memory = (self.words * 64) as u32;
        let seen = &mut self.seen[flow * self.words..(flow + 1) * self.words];
        let bit = |number: u32| ((number % memory / 64) as usize, 1u64 << (number % 64));
        let next = self.next[flow];
        let ahead = mark.sequence.wrapping_sub(next) as i32;
        if ahead >= 0 {
            // Forget the numbers whose places are taken by those up to this one.
            if ahead as u32 >= memory {
                seen.fill(0);
            } else {
                for number in 0..ahead as u32 {
                    let (word, mask) = bit(next.wrapping_add(number));
                    seen[word] &= !mask;
                }
            }
            self.next[flow] = mark.sequence.wrapping_add(1);
        } else {
            let (word, mask) = bit(mark.sequence);
            if ahead < -(memory as i64) as i32 {
                self.beyond_memory += 1;
                self.reordered += 1;
                return self.deliver(mark, now);
            }
            if seen[word] & mask != 0 {
                self.duplicated += 1;
                return;
            }
            self.reordered += 1;
        }
        let (word, mask) = bit(mark.sequence);
        seen[word] |= mask;
        self.deliver(mark, now);
    }

    #[inline]
    fn deliver(&mut self, mark: Mark, now: Nanos) {
        self.delivered += 1;
        self.last_arrival = now;
        self.latency.saturating_record(now.saturating_sub(mark.sent_ns).max(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Family, FrameSize, Workload};
    use crate::workload::{Link, Traffic};
    use weir_stats::search::Rate;

    const RUN: u8 = 3;

    /// Frames of a healthy run: `rounds` packets of each of `flows` flows.
    fn frames(family: Family, flows: u32, rounds: u32) -> Vec<Vec<u8>> {
        let workload = Workload { family, frame: FrameSize::Fixed(64), flows, rate: Rate::FlatOut };
        let link = Link { source: [0; 6], destination: [0; 6] };
        let traffic = Traffic::new(&workload, 1, link).expect("a valid workload");
        let mut stream = traffic.stream(5);
        (0..flows * rounds).map(|n| traffic.frame(stream.advance(), RUN, u64::from(n) * 1000)).collect()
    }

    fn tally<'a>(flows: u32, frames: impl IntoIterator<Item = &'a Vec<u8>>) -> Tally {
        let mut tally = Tally::new(RUN, flows);
        for (n, frame) in frames.into_iter().enumerate() {
            tally.frame(frame, n as u64 * 1000 + 500);
        }
        tally
    }

    fn verdict(t: &Tally) -> (u64, u64, u64) {
        (t.delivered, t.duplicated, t.reordered)
    }

    #[test]
    fn healthy_wire_delivers_everything_in_order() {
        for family in [Family::Inet, Family::Inet6] {
            let t = tally(10, &frames(family, 10, 100));
            assert_eq!(verdict(&t), (1000, 0, 0));
            assert_eq!(t.latency.value_at_quantile(0.5), 500);
        }
    }

    #[test]
    fn lost_packets_are_missing_and_nothing_else() {
        let frames = frames(Family::Inet, 10, 100);
        let kept: Vec<_> = frames.iter().enumerate().filter(|(n, _)| n % 7 != 0).map(|(_, f)| f).collect();
        let t = tally(10, kept.iter().copied());
        assert_eq!(verdict(&t), (kept.len() as u64, 0, 0));
    }

    #[test]
    fn each_duplicate_is_counted_once_and_delivered_once() {
        let frames = frames(Family::Inet6, 10, 100);
        let twice = frames.iter().enumerate().flat_map(|(n, f)| vec![f; if n % 5 == 0 { 3 } else { 1 }]);
        assert_eq!(verdict(&tally(10, twice)), (1000, 400, 0));
    }

    #[test]
    fn late_packets_are_reordered_and_a_late_duplicate_is_a_duplicate() {
        let mut frames = frames(Family::Inet, 1, 100);
        let late = frames.remove(10);
        frames.insert(40, late.clone());
        frames.push(late);
        assert_eq!(verdict(&tally(1, &frames)), (100, 1, 1));
    }

    #[test]
    fn order_between_flows_does_not_matter() {
        let mut frames = frames(Family::Inet, 10, 20);
        frames.sort_by_key(|f| Mark::read(f).map(|m| (m.flow, m.sequence)));
        assert_eq!(verdict(&tally(10, &frames)), (200, 0, 0));
    }

    #[test]
    fn gaps_larger_than_the_memory_forget_everything_before_them() {
        let flows = MEMORY / WINDOW;
        let mut t = Tally::new(RUN, flows);
        let mark = |sequence| Mark { run: RUN, flow: 0, sequence, sent_ns: 0 };
        for sequence in [0, 1, 1000, 1000, 999, 2] {
            t.mark(mark(sequence), 1);
        }
        assert_eq!(verdict(&t), (5, 1, 2));
        assert_eq!(t.beyond_memory, 1);
    }

    #[test]
    fn sealed_packets_are_judged_by_their_sequence_numbers() {
        let sealed = Sealed { outer: Family::Inet, destination: [2, 1] };
        let frame = |spi: u32, sequence: u32| {
            let mut frame = vec![0; 60];
            (frame[12], frame[23]) = (8, 50);
            frame[32..34].copy_from_slice(&sealed.destination);
            frame[34..38].copy_from_slice(&spi.to_be_bytes());
            frame[38..42].copy_from_slice(&sequence.to_be_bytes());
            frame
        };
        let mut t = Tally::new(RUN, Form::Sealed(sealed).flows());
        // the first number of a run is any
        for (spi, sequence) in [(0, 500), (0, 501), (1, 9), (0, 503), (0, 502), (0, 501), (SAS_MAX, 1)] {
            t.sealed(sealed, &frame(crate::workload::sa::FIRST_SPI + spi, sequence), 1);
        }
        assert_eq!((verdict(&t), t.foreign), ((5, 1, 1), 1));
    }

    #[test]
    fn other_runs_and_other_traffic_are_not_counted() {
        let mut t = Tally::new(RUN + 1, 10);
        for frame in frames(Family::Inet, 10, 1) {
            t.frame(&frame, 0);
        }
        t.frame(&[0xff; 60], 0);
        assert_eq!((t.delivered, t.foreign), (0, 11));
    }
}
