//! A generator that makes no socket buffer: the kernel runs a small XDP program on live frames.
//!
//! ```text
//! bpf(PROG_TEST_RUN, live frames) ─► write head, sequence, time, checksum ─► redirect ─► device
//! ```
//!
//! Promises: frames leave in the order of the slots, round after round; each carries its number, the
//! time it was sent and a checksum that covers both; what was sent is counted; a rate is kept frame
//! by frame, with a bounded catch-up after the thread was away. Refuses: devices without
//! `ndo_xdp_xmit`, and (by the kernel) a veth whose peer has neither an XDP program nor GRO: there
//! frames are dropped by the device, and its `tx_dropped` says so.
//!
//! How to use it, from a thread that is in the generator's network namespace and stays there:
//!
//! ```no_run
//! # use weir_io::xdp_gen::{FrameTemplate, Generator, Layout};
//! # fn example(ifindex: u32, slots: Vec<FrameTemplate>) -> Result<(), Box<dyn std::error::Error>> {
//! let layout = Layout { sequence: Some(48), time: Some(52), checksum: Some(40) };
//! let mut generator = Generator::new(ifindex, layout, &slots, 1)?;
//! generator.pace(Some(1_000_000.0))?; // packets a second; None: flat out
//! generator.run_until(weir_io::clock::now() + 5_000_000_000)?; // five seconds; blocks
//! println!("{} frames offered", generator.sent()?);
//! # Ok(()) }
//! ```
//!
//! Each call into the kernel makes and unmakes a page pool; where the program cannot be kept attached (see
//! `keep`) it also sleeps some 20 ms. So `run_until` is two calls, a short one to learn what a frame costs
//! and one for the rest. For a few frames use [`Generator::run`].

use std::fmt;
use std::io;
use std::sync::atomic::Ordering;

use weir_core::time::Nanos;

use weir_xdp::layout::{
    GENERATE_HEAD_MAX, GENERATE_NONE, GENERATE_TIME_SHIFT, GenerateParams, GenerateSlot, GenerateState,
};
use weir_xdp::{GENERATE, LoadError, Loaded, Memory, Settings};

use crate::bpf::attach::{Attachment, XdpMode};
use crate::bpf::words::SharedWords;

/// Bytes at the front of a frame that each packet writes anew: Ethernet, VLAN tag, IPv6, UDP and an
/// 18-byte mark are 84.
pub const HEAD_MAX: usize = GENERATE_HEAD_MAX as usize;

/// Slots of one generator: 2^18 × 112 B = 28 MiB.
pub const SLOTS_MAX: usize = 1 << 18;

/// The longest frame: a page less XDP's headroom and the kernel's own tail (320).
pub const FRAME_MAX: usize = 4096 - 256 - 320;

/// Frames between two flushes to the device: one receive poll of the other end. The kernel takes up to 256,
/// but a veth's ring has 256 slots, and a burst of that many overflows it while the receiver still wakes up.
const LIVE_BATCH: u32 = 64;

/// The same when paced: a packet waits for the flush, so 16 looks at the clock (1 µs) are the most it is
/// late by.
const LIVE_BATCH_PACED: u32 = 16;
/// Runs in the first call of [`Generator::run_until`], which shows how long one takes: 2 to 40 ms.
const RUNS_TO_LEARN: u32 = 1 << 16;
/// A call that was meant to last until the deadline runs a 64th longer rather than end before it:
/// nothing is sent after the deadline, but a second call would leave a gap.
const MARGIN: u64 = 64;

/// Where the program writes, counted from the start of the Ethernet header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// A `u32`, big-endian.
    pub sequence: Option<u16>,
    /// A `u64`, big-endian: `CLOCK_MONOTONIC` in nanoseconds.
    pub time: Option<u16>,
    /// A UDP or TCP checksum, correct in every slot while sequence and time are zero. Both
    /// must lie at even distances from it.
    pub checksum: Option<u16>,
}

/// One packet of a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameTemplate {
    /// The front of the frame, with every field of the layout inside it; the rest is zero.
    /// All slots of a generator have heads of the same length, even, at most [`HEAD_MAX`].
    pub head: Vec<u8>,
    /// Length of the frame without FCS.
    pub len: u16,
    /// Its sequence number in the first round.
    pub sequence: u32,
}

/// Why there is no generator.
#[derive(Debug)]
pub enum GeneratorError {
    Slots {
        got: usize,
    },
    Head {
        got: usize,
        first: usize,
    },
    Length {
        got: u16,
        head: usize,
    },
    Field {
        name: &'static str,
        at: u16,
        head: usize,
    },
    Load(LoadError),
    /// The table of slots is not in our memory.
    Table(io::Error),
    Run(io::Error),
}

impl fmt::Display for GeneratorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GeneratorError::Slots { got } => {
                write!(f, "generator: {got} slots, expected 1 to {SLOTS_MAX}; use fewer flows")
            }
            GeneratorError::Head { got, first } => write!(
                f,
                "generator: a head of {got} bytes, expected {first} as in the first slot, even and at most {HEAD_MAX}"
            ),
            GeneratorError::Length { got, head } => {
                write!(f, "generator: a frame of {got} bytes, expected {head} (its head) to {FRAME_MAX}")
            }
            GeneratorError::Field { name, at, head } => {
                write!(
                    f,
                    "generator: {name} at byte {at}, expected an even offset inside the head of {head} bytes"
                )
            }
            GeneratorError::Load(error) => error.fmt(f),
            GeneratorError::Run(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                write!(f, "generator: {error}; live frames need Linux 5.18")
            }
            GeneratorError::Table(error) => write!(f, "generator: its table of slots: {error}"),
            GeneratorError::Run(error) => write!(f, "generator: {error}"),
        }
    }
}

impl std::error::Error for GeneratorError {}

impl From<LoadError> for GeneratorError {
    fn from(error: LoadError) -> Self {
        GeneratorError::Load(error)
    }
}

/// A loaded program with its table of slots. One thread drives it.
#[derive(Debug)]
pub struct Generator {
    /// What keeps the program in the kernel's dispatcher.
    _kept: Option<Attachment>,
    program: Loaded,
    state: Memory<{ GenerateState::SIZE }>,
    longest: Vec<u8>,
    /// Frames between two flushes.
    batch: u32,
}

impl Generator {
    /// Sends out of interface `ifindex`. After each round over the slots every sequence number is
    /// `stride` higher.
    pub fn new(
        ifindex: u32,
        layout: Layout,
        slots: &[FrameTemplate],
        stride: u32,
    ) -> Result<Self, GeneratorError> {
        let head = check(&layout, slots)?;
        let longest = slots.iter().map(|s| s.len).max().unwrap_or(0);
        let at = |field: Option<u16>| field.unwrap_or(GENERATE_NONE as u16);
        let params = GenerateParams {
            ifindex,
            stride,
            slots: slots.len() as u32,
            head: head as u16,
            sequence_at: at(layout.sequence),
            time_at: at(layout.time),
            checksum_at: at(layout.checksum),
            adjust: slots.iter().any(|s| s.len != longest).into(),
        };
        let sizes = [(SLOTS, params.slots)];
        let constants: [(&str, &[u8]); 1] = [("generate_params", &params.to_bytes())];
        let mut program = GENERATE.load(Settings { constants: &constants, entries: &sizes, shared: &[] })?;
        let table = SharedWords::of(program.maps.array_fd(SLOTS)?, slots.len() * GenerateSlot::SIZE)
            .map_err(GeneratorError::Table)?;
        let words = slots.iter().flat_map(|slot| words(&stored(&layout, slot, longest)));
        words.enumerate().for_each(|(at, word)| table.word(at).store(word, Ordering::Relaxed));
        let mut state = program.maps.memory(".bss.weir_gen")?;
        state.write(&GenerateState { until_ns: Nanos::MAX, ..GenerateState::default() }.to_bytes())?;
        let kept = keep(&mut program);
        Ok(Generator { _kept: kept, program, state, longest: vec![0; longest.into()], batch: LIVE_BATCH })
    }

    /// Packets a second from now on; `None` is flat out. Call it between runs only.
    pub fn pace(&mut self, packets_per_second: Option<f64>) -> Result<(), GeneratorError> {
        // After a pause up to 64 packets (one batch) or 100 µs are caught up at once.
        const CATCH_UP_PACKETS: f64 = 64.0;
        const CATCH_UP_NS: f64 = 100_000.0;
        let interval = packets_per_second.map_or(0.0, |rate| NANOSECOND * 1e9 / rate.max(1e-3));
        let lag = (interval * CATCH_UP_PACKETS).max(CATCH_UP_NS * NANOSECOND);
        self.batch = if packets_per_second.is_some() { LIVE_BATCH_PACED } else { LIVE_BATCH };
        self.change(|state| {
            state.next = (crate::clock::now() as f64 * NANOSECOND) as u64;
            state.interval = interval as u64;
            state.lag = lag as u64;
        })
    }

    /// Sends until `deadline` ([`crate::clock::now`]). A signal ends it early, without an error.
    pub fn run_until(&mut self, deadline: Nanos) -> Result<(), GeneratorError> {
        self.change(|state| state.until_ns = deadline)?;
        let mut times = RUNS_TO_LEARN;
        while let Some(each) = self.call(times)? {
            let left = deadline.saturating_sub(crate::clock::now());
            if left == 0 {
                break;
            }
            let due = left / u64::from(each.max(1));
            times = u32::try_from(due + due / MARGIN + 1).unwrap_or(u32::MAX);
        }
        self.change(|state| state.until_ns = Nanos::MAX)
    }

    /// Runs the program `times` times; flat out each is a frame, paced each is a frame or a look at
    /// the clock. `false` when a signal ended it early.
    pub fn run(&mut self, times: u32) -> Result<bool, GeneratorError> {
        Ok(self.call(times)?.is_some())
    }

    /// The mean time of a run, ns; `None` after a signal.
    fn call(&mut self, times: u32) -> Result<Option<u32>, GeneratorError> {
        match self.program.run_live(&self.longest, times, self.batch).map_err(LoadError::into_io) {
            Ok(each) => Ok(Some(each.as_nanos() as u32)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(GeneratorError::Run(error)),
        }
    }

    /// Frames handed to the device so far. What a full device dropped is in its own counters.
    pub fn sent(&self) -> Result<u64, GeneratorError> {
        Ok(self.state()?.sent)
    }

    fn state(&self) -> Result<GenerateState, GeneratorError> {
        Ok(GenerateState::from_bytes(&self.state.read()?))
    }

    /// Changes the program's memory; only while it does not run, because it writes the same memory.
    fn change(&mut self, change: impl FnOnce(&mut GenerateState)) -> Result<(), GeneratorError> {
        let mut state = self.state()?;
        change(&mut state);
        Ok(self.state.write(&state.to_bytes())?)
    }
}

/// Attaches the program to the loopback of the calling thread's namespace, where no frame ever meets it.
///
/// The kernel enters a program that it is about to run many times into its XDP dispatcher and takes it
/// out afterwards, and waits each time until no CPU uses the old one (10 ms). A program that is attached
/// somewhere is in the dispatcher already, so calls follow each other within microseconds.
fn keep(program: &mut Loaded) -> Option<Attachment> {
    let lo = crate::netlink::link("lo").ok()??;
    // Where it is taken (by another generator, say) this one is slow at every call, and as right.
    Attachment::new("lo", lo.index, program, &[XdpMode::Generic]).ok()
}

/// The map of slots.
const SLOTS: &str = "weir_gen_slots";

/// What the program's times are counted in, times a nanosecond.
const NANOSECOND: f64 = (1 << GENERATE_TIME_SHIFT) as f64;

fn check(layout: &Layout, slots: &[FrameTemplate]) -> Result<usize, GeneratorError> {
    if slots.is_empty() || slots.len() > SLOTS_MAX {
        return Err(GeneratorError::Slots { got: slots.len() });
    }
    let head = slots[0].head.len();
    for slot in slots {
        let got = slot.head.len();
        if got != head || head % 2 == 1 || head > HEAD_MAX || head == 0 {
            return Err(GeneratorError::Head { got, first: head });
        }
        if (slot.len as usize) < head || slot.len as usize > FRAME_MAX {
            return Err(GeneratorError::Length { got: slot.len, head });
        }
    }
    let fields =
        [("sequence", layout.sequence, 4), ("time", layout.time, 8), ("checksum", layout.checksum, 2)];
    for (name, at, size) in fields {
        if let Some(at) = at.filter(|&at| at % 2 == 1 || at as usize + size > head) {
            return Err(GeneratorError::Field { name, at, head });
        }
    }
    Ok(head)
}

/// A slot as the program reads it.
fn stored(layout: &Layout, slot: &FrameTemplate, longest: u16) -> GenerateSlot {
    let mut head = [0; HEAD_MAX];
    head[..slot.head.len()].copy_from_slice(&slot.head);
    let sum = layout.checksum.map_or(0, |at| {
        let at = usize::from(at);
        !u16::from_ne_bytes([slot.head[at], slot.head[at + 1]])
    });
    let shorter = i32::from(slot.len) - i32::from(longest);
    GenerateSlot { head, shorter, sequence: slot.sequence, sum: sum.into(), pad: 0 }
}

fn words(slot: &GenerateSlot) -> impl Iterator<Item = u64> + use<> {
    const WORDS: usize = GenerateSlot::SIZE / 8;
    let bytes = slot.to_bytes();
    (0..WORDS).map(move |at| bytes[8 * at..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word)))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use weir_core::random::SplitMix64;
    use weir_xdp::Action;

    use super::*;

    fn slot(head: usize, len: u16) -> FrameTemplate {
        FrameTemplate { head: vec![0; head], len, sequence: 0 }
    }

    #[test]
    fn what_does_not_fit_is_refused_before_the_kernel_is_asked() {
        let none = Layout::default();
        let refusal =
            |layout: Layout, slots: &[FrameTemplate]| check(&layout, slots).expect_err("refused").to_string();
        assert_eq!(refusal(none, &[]), "generator: 0 slots, expected 1 to 262144; use fewer flows");
        assert_eq!(
            refusal(none, &[slot(60, 60), slot(62, 62)]),
            "generator: a head of 62 bytes, expected 60 as in the first slot, even and at most 96"
        );
        assert_eq!(
            refusal(none, &[slot(60, 59)]),
            "generator: a frame of 59 bytes, expected 60 (its head) to 3520"
        );
        let late = Layout { time: Some(54), ..none };
        assert_eq!(
            refusal(late, &[slot(60, 60)]),
            "generator: time at byte 54, expected an even offset inside the head of 60 bytes"
        );
        let odd = Layout { sequence: Some(41), ..none };
        assert!(check(&odd, &[slot(60, 60)]).is_err());
        assert_eq!(check(&Layout { sequence: Some(56), ..none }, &[slot(60, 60)]).ok(), Some(60));
    }

    #[test]
    fn a_slot_carries_length_number_and_the_sum_of_its_checksum() {
        let layout = Layout { checksum: Some(2), ..Layout::default() };
        let slot = FrameTemplate { head: vec![1, 2, 0x12, 0x34, 5, 6], len: 60, sequence: 7 };
        let stored = stored(&layout, &slot, 100);
        assert_eq!(&stored.head[..8], &[1, 2, 0x12, 0x34, 5, 6, 0, 0]);
        assert_eq!((stored.shorter, stored.sequence), (-40, 7));
        assert_eq!(stored.sum, u32::from(!u16::from_ne_bytes([0x12, 0x34])));
        let bytes: Vec<u8> = words(&stored).flat_map(u64::to_ne_bytes).collect();
        assert_eq!(bytes, stored.to_bytes());
    }

    const ALL: Layout = Layout { sequence: Some(42), time: Some(46), checksum: Some(40) };

    /// `None`, after saying so, where programs cannot be loaded.
    fn loaded(test: &str, layout: Layout, slots: &[FrameTemplate], stride: u32) -> Option<Generator> {
        match Generator::new(LOOPBACK, layout, slots, stride) {
            Ok(generator) => Some(generator),
            Err(GeneratorError::Load(error)) if error.is_permission() => {
                let _ = writeln!(io::stderr(), "SKIP {test}: bpf programs need root ({error})");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    const LOOPBACK: u32 = 1;

    fn random_slot(random: &mut SplitMix64, head: usize, len: u16) -> FrameTemplate {
        let head = (0..head).map(|_| random.next_u64() as u8).collect();
        FrameTemplate { head, len, sequence: random.next_u64() as u32 }
    }

    /// What the program should make of zeros, by RFC 1071 word by word. The time is taken from `got`.
    fn expected(layout: &Layout, slot: &FrameTemplate, round: u32, got: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; slot.len.into()];
        frame[..slot.head.len()].copy_from_slice(&slot.head);
        let mut sum = layout.checksum.map_or(0, |at| {
            let at = usize::from(at);
            u32::from(!u16::from_be_bytes([frame[at], frame[at + 1]]))
        });
        let mut write = |at: u16, bytes: &[u8]| {
            frame[usize::from(at)..][..bytes.len()].copy_from_slice(bytes);
            sum += bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum::<u32>();
        };
        if let Some(at) = layout.sequence {
            write(at, &slot.sequence.wrapping_add(round).to_be_bytes());
        }
        if let Some(at) = layout.time {
            write(at, &got[usize::from(at)..][..8]);
        }
        if let Some(at) = layout.checksum {
            while sum > 0xffff {
                sum = (sum & 0xffff) + (sum >> 16);
            }
            let check = if sum == 0xffff { 0xffff } else { !(sum as u16) };
            frame[usize::from(at)..][..2].copy_from_slice(&check.to_be_bytes());
        }
        frame
    }

    #[test]
    fn random_frames_of_every_head_length_are_written_as_described() {
        const FRAMES: u32 = 100_000;
        let test = "random_frames_of_every_head_length_are_written_as_described";
        let mut random = SplitMix64::new(29);
        let lengths: Vec<usize> = (2..=HEAD_MAX).step_by(2).collect();
        let each = FRAMES / lengths.len() as u32 + 1;
        for head in lengths {
            // Every field, where the head has room for it; behind each other in every order.
            let mut at = 0;
            let mut field = |size: usize| {
                let fits = at + size <= head;
                at += if fits { size } else { 0 };
                fits.then(|| (at - size) as u16)
            };
            let layout = match head % 3 {
                0 => Layout { sequence: field(4), time: field(8), checksum: field(2) },
                1 => Layout { time: field(8), checksum: field(2), sequence: field(4) },
                _ => Layout { checksum: field(2), sequence: None, time: field(8) },
            };
            let len = head.max(14) as u16 + random.below(40) as u16;
            let slots: Vec<FrameTemplate> = (0..3).map(|_| random_slot(&mut random, head, len)).collect();
            let Some(generator) = loaded(test, layout, &slots, 5) else { return };
            let mut last = crate::clock::now();
            for n in 0..each {
                let run = generator.program.run(&generator.longest, 1).expect("runs");
                let (slot, round) = (&slots[n as usize % 3], 5 * (n / 3));
                assert_eq!(run.action, Action::Redirect, "head {head}, frame {n}");
                assert_eq!(run.frame, expected(&layout, slot, round, &run.frame), "head {head}, frame {n}");
                if let Some(at) = layout.time {
                    let time = run.frame[usize::from(at)..].first_chunk().map(|t| u64::from_be_bytes(*t));
                    let time = time.expect("eight bytes");
                    assert!(time >= last && time <= crate::clock::now());
                    last = time;
                }
            }
            assert_eq!(generator.sent().expect("readable"), u64::from(each));
        }
    }

    #[test]
    fn every_branch_of_the_program_is_reached() {
        let test = "every_branch_of_the_program_is_reached";
        let slots = [slot(60, 64), slot(60, 80)];
        let Some(mut generator) = loaded(test, ALL, &slots, 2) else { return };
        let day = 86_400_000_000_000 << GENERATE_TIME_SHIFT;
        let now = || crate::clock::now() << GENERATE_TIME_SHIFT;
        let flat = GenerateState { until_ns: Nanos::MAX, ..GenerateState::default() };
        let second = 1_000_000_000 << GENERATE_TIME_SHIFT;
        let paced = GenerateState { interval: second, lag: 3 * second, ..flat };
        let (long, short) = (vec![0; 80], vec![0; 59]);
        let (sent, dropped) = (Action::Redirect, Action::Drop);
        // What it is, the state before, the frame given; then what is done, cursor, round, length.
        let cases = [
            ("flat out", flat, &long, sent, (1, 0, 64)),
            ("the last of a round", GenerateState { cursor: 1, ..flat }, &long, sent, (0, 2, 80)),
            ("no such slot", GenerateState { cursor: 2, ..flat }, &long, dropped, (2, 0, 80)),
            ("after the end", GenerateState { until_ns: 1, ..flat }, &long, dropped, (0, 0, 80)),
            ("not due", GenerateState { next: now() + day, ..paced }, &long, dropped, (0, 0, 80)),
            ("due", GenerateState { next: now() - 1, ..paced }, &long, sent, (1, 0, 64)),
            ("long due", GenerateState { next: 0, ..paced }, &long, sent, (1, 0, 64)),
            ("no room for the head", GenerateState { cursor: 1, ..flat }, &short, dropped, (1, 0, 59)),
        ];
        let mut count = [0, 0];
        for (what, before, frame, action, (cursor, round, len)) in cases {
            generator.change(|state| *state = before).expect("written");
            let run = generator.program.run(frame, 1).expect("runs");
            let after = generator.state().expect("readable");
            assert_eq!((run.action, run.frame.len()), (action, len), "{what}");
            assert_eq!((after.cursor, after.round), (cursor, round), "{what}");
            assert_eq!(after.sent, u64::from(action == sent), "{what}");
            count[usize::from(action == sent)] += 1;
            match what {
                "due" => assert_eq!(after.next, before.next + second),
                // Three seconds are caught up, of which one is over now.
                "long due" => assert!(now() - after.next < 2 * second + second / 10, "{after:?}"),
                _ => assert_eq!(after.next, before.next, "{what}"),
            }
        }
        assert_eq!(count, [4, 4]);
        // RFC 768: a checksum that comes to zero is sent as ones.
        let sums = Layout { checksum: Some(40), ..Layout::default() };
        let Some(generator) = loaded(test, sums, &[slot(60, 60)], 1) else { return };
        let run = generator.program.run(&[0; 60], 1).expect("runs");
        assert_eq!(run.frame[40..42], [0xff, 0xff]);
    }

    #[test]
    fn calls_of_a_kept_generator_follow_each_other_without_a_pause() {
        let test = "calls_of_a_kept_generator_follow_each_other_without_a_pause";
        // Loopback of a namespace of its own is nobody else's.
        let thread = std::thread::spawn(move || {
            if let Err(error) = crate::netns::enter_new() {
                let _ = writeln!(io::stderr(), "SKIP {test}: no network namespace of its own ({error})");
                return;
            }
            let Some(mut generator) = loaded(test, Layout::default(), &[slot(60, 60)], 1) else { return };
            let begin = std::time::Instant::now();
            (0..20).for_each(|_| assert!(generator.run(2).expect("runs")));
            let took = begin.elapsed();
            // A program that is attached nowhere waits some 20 ms a call.
            assert!(took.as_millis() < 200, "{took:?} for 20 calls");
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }

    #[test]
    fn the_program_is_as_small_as_its_frames_allow() {
        let test = "the_program_is_as_small_as_its_frames_allow";
        let mut sizes = Vec::new();
        for (what, layout, head) in [("head 60, all fields", ALL, 60), ("head 2", Layout::default(), 2)] {
            let Some(generator) = loaded(test, layout, &[slot(head, 60)], 1) else { return };
            let (instructions, stack) = generator.program.size().expect("known");
            let _ = writeln!(
                io::stderr(),
                "weir_generate ({what}): {instructions} instructions, {stack} bytes of stack"
            );
            assert!(stack < 64);
            sizes.push(instructions);
        }
        assert!(sizes[1] + 40 < sizes[0] && sizes[0] < 250, "what the constants rule out is gone: {sizes:?}");
    }
}
