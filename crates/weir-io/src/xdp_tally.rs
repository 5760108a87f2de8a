//! A receiver that no packet leaves the kernel for: an XDP program judges test packets and drops them.
//!
//! ```text
//! device ─► mark? ours? ─► flow's next number and last 64 ─► delivered | reordered | duplicated ─► latency ─► drop
//! ```
//!
//! Promises: every frame is judged by itself, in the order the device received them, and counted once;
//! the time of arrival is read for each; nothing is queued, so nothing is lost between device and count.
//! Refuses: to be read while traffic flows (numbers of one moment are not consistent), and devices whose
//! queues are served by several CPUs at once (counters are not atomic).

use std::fmt;

use weir_xdp::layout::{TALLY_BUCKET_BITS, TALLY_BUCKETS, TallyFlow, TallyParams, TallyState};
use weir_xdp::{LoadError, Loaded, Memory, Settings, TALLY};

pub use weir_xdp::layout::{TALLY_FLOWS_MAX as FLOWS_MAX, TALLY_WINDOW as WINDOW};

use crate::bpf::attach::{AttachError, Attachment, XdpMode};

/// What a test packet looks like. All numbers in it are big-endian.
///
/// ```text
/// at:  magic u16 | run u8 | flow u24 | sequence u32 | sent u64, CLOCK_MONOTONIC ns
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// EtherType, and where the byte of the IP protocol is.
    pub ethertype: u16,
    pub protocol_at: u16,
    pub protocol: u8,
    pub mark_at: u16,
    pub magic: [u8; 2],
}

/// What arrived since the last start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// First with its number.
    pub delivered: u64,
    /// Seen before.
    pub duplicated: u64,
    /// Packets that came after a higher number of their flow.
    pub reordered: u64,
    /// Reordered packets too late to be told from duplicates.
    pub beyond_memory: u64,
    /// Packets of other runs, and what is no test packet.
    pub foreign: u64,
    /// When the last was delivered.
    pub last_ns: u64,
}

/// Why there is no tally.
#[derive(Debug)]
pub enum TallyError {
    Flows(u32),
    Load(LoadError),
    Attach(AttachError),
}

impl fmt::Display for TallyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TallyError::Flows(got) => write!(f, "tally: {got} flows, expected 1 to {FLOWS_MAX}"),
            TallyError::Load(error) => error.fmt(f),
            TallyError::Attach(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for TallyError {}

impl From<LoadError> for TallyError {
    fn from(error: LoadError) -> Self {
        TallyError::Load(error)
    }
}

/// The middle of a latency bucket.
fn middle(index: u32) -> u64 {
    let bits = TALLY_BUCKET_BITS;
    let (power, rest) = (index >> bits, u64::from(index & ((1 << bits) - 1)));
    if power == 0 {
        return rest;
    }
    let width = 1u64 << (power - 1);
    ((1 << bits) + rest) * width + width / 2
}

/// Bytes of all flows, and of all latency buckets.
const FLOWS_SIZE: usize = FLOWS_MAX as usize * TallyFlow::SIZE;
const LATENCY_SIZE: usize = TALLY_BUCKETS as usize * 8;

/// The program, attached.
#[derive(Debug)]
pub struct Tally {
    attachment: Option<Attachment>,
    program: Loaded,
    state: Memory<{ TallyState::SIZE }>,
    flows: Memory<FLOWS_SIZE>,
    latency: Memory<LATENCY_SIZE>,
}

impl Tally {
    /// Takes everything `interface` receives from now on.
    pub fn attach(interface: &str, ifindex: u32, layout: Layout, flows: u32) -> Result<Tally, TallyError> {
        let mut tally = Self::load(layout, flows)?;
        let modes = [XdpMode::Native, XdpMode::Generic];
        let attachment = Attachment::new(interface, ifindex, &mut tally.program, &modes);
        tally.attachment = Some(attachment.map_err(TallyError::Attach)?);
        Ok(tally)
    }

    fn load(layout: Layout, flows: u32) -> Result<Tally, TallyError> {
        if flows == 0 || flows > FLOWS_MAX {
            return Err(TallyError::Flows(flows));
        }
        let params = TallyParams {
            ethertype: layout.ethertype.to_be_bytes(),
            magic: layout.magic,
            protocol_at: layout.protocol_at,
            mark_at: layout.mark_at,
            protocol: layout.protocol.into(),
            flows,
        };
        let constants: [(&str, &[u8]); 1] = [("tally_params", &params.to_bytes())];
        let mut program = TALLY.load(Settings { constants: &constants, ..Settings::default() })?;
        Ok(Tally {
            state: program.maps.memory(".bss.tally")?,
            flows: program.maps.memory(".bss.tally_flow")?,
            latency: program.maps.memory(".bss.tally_lat")?,
            program,
            attachment: None,
        })
    }

    pub fn mode(&self) -> XdpMode {
        self.attachment.as_ref().map_or(XdpMode::Native, |attachment| attachment.mode)
    }

    /// Forgets everything; counts packets of `run` from now on. No traffic may flow.
    pub fn start(&mut self, run: u8) -> Result<(), TallyError> {
        self.flows.clear()?;
        self.latency.clear()?;
        let state = TallyState { run, ..TallyState::default() };
        Ok(self.state.write(&state.to_bytes())?)
    }

    pub fn counts(&self) -> Result<Counts, TallyError> {
        let TallyState { delivered, duplicated, reordered, beyond_memory, foreign, last_ns, .. } =
            TallyState::from_bytes(&self.state.read()?);
        Ok(Counts { delivered, duplicated, reordered, beyond_memory, foreign, last_ns })
    }

    /// One-way latencies: (nanoseconds, how many), ascending.
    pub fn latencies(&self) -> Result<Vec<(u64, u64)>, TallyError> {
        let value = self.latency.read()?;
        let (words, _) = value.as_chunks::<8>();
        let counts = words.iter().map(|w| u64::from_ne_bytes(*w));
        Ok((0..).map(middle).zip(counts).filter(|(_, n)| *n > 0).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};
    use std::io::Write;

    use weir_core::random::SplitMix64;
    use weir_core::wire::build;
    use weir_xdp::Action;

    use super::*;

    const RUN: u8 = 0x12;
    const MAGIC: [u8; 2] = [0x57, 0x1f];
    const LAYOUT: Layout =
        Layout { ethertype: 0x0800, protocol_at: 23, protocol: 17, mark_at: 42, magic: MAGIC };

    /// `None`, after saying so, where programs cannot be loaded.
    fn loaded(test: &str, flows: u32) -> Option<Tally> {
        match Tally::load(LAYOUT, flows) {
            Ok(mut tally) => {
                tally.start(RUN).expect("memory is written");
                Some(tally)
            }
            Err(TallyError::Load(error)) if error.is_permission() => {
                let _ = writeln!(std::io::stderr(), "SKIP {test}: bpf programs need root ({error})");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn packet(run: u8, flow: u32, sequence: u32, sent: u64) -> Vec<u8> {
        let mut mark = MAGIC.to_vec();
        mark.push(run);
        mark.extend(&flow.to_be_bytes()[1..]);
        mark.extend(sequence.to_be_bytes());
        mark.extend(sent.to_be_bytes());
        build::Frame::ipv4([10, 0, 0, 1].into(), [10, 1, 0, 1].into()).udp(1, 9, &mark)
    }

    fn changed(mut frame: Vec<u8>, at: usize) -> Vec<u8> {
        frame[at] ^= 1;
        frame
    }

    /// What one more packet changes: delivered, duplicated, reordered, beyond memory, foreign.
    fn change(tally: &Tally, before: &mut Counts, frame: &[u8]) -> [u64; 5] {
        let run = tally.program.run(frame, 1).expect("runs");
        assert_eq!(run.action, Action::Drop, "whatever it is, nobody else gets it");
        assert_eq!(run.frame, frame, "nothing is written");
        let now = tally.counts().expect("readable");
        let old = std::mem::replace(before, now);
        [
            now.delivered - old.delivered,
            now.duplicated - old.duplicated,
            now.reordered - old.reordered,
            now.beyond_memory - old.beyond_memory,
            now.foreign - old.foreign,
        ]
    }

    #[test]
    fn every_branch_of_the_program_is_reached_and_counts_as_described() {
        let Some(tally) = loaded("every_branch_of_the_program_is_reached", 4) else { return };
        let (delivered, duplicated, reordered) = ([1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [1, 0, 1, 0, 0]);
        let (beyond, foreign) = ([1, 0, 1, 1, 0], [0, 0, 0, 0, 1]);
        let now = crate::clock::now();
        let good = |flow, sequence| packet(RUN, flow, sequence, now);
        let cases = [
            ("an Ethernet header alone", good(0, 0)[..14].to_vec(), foreign),
            ("a byte less than a mark", good(0, 0)[..59].to_vec(), foreign),
            ("another EtherType", changed(good(0, 0), 13), foreign),
            ("another protocol", changed(good(0, 0), 23), foreign),
            ("another magic", changed(good(0, 0), 42), foreign),
            ("another run", packet(RUN + 1, 0, 0, now), foreign),
            ("a flow too many", good(4, 0), foreign),
            ("a flow too many by its highest byte", good(0x10000, 0), foreign),
            ("the first of a flow", good(3, 0), delivered),
            ("the same again", good(3, 0), duplicated),
            ("far enough ahead that one bit is left", good(3, 63), delivered),
            ("which one still knows", good(3, 0), duplicated),
            ("its neighbour, late", good(3, 1), reordered),
            ("and again", good(3, 1), duplicated),
            ("further than the window", good(3, 63 + 64), delivered),
            ("the number before", good(3, 63 + 63), reordered),
            ("the oldest that is remembered", good(3, 64), reordered),
            ("older than that", good(3, 63), beyond),
            ("older, and again: nobody can tell", good(3, 63), beyond),
            ("the highest number there is", good(3, i32::MAX as u32 + 63), delivered),
            ("another flow", good(2, u32::MAX), reordered),
            ("a number after the last", good(1, 0), delivered),
            ("sent in the future", packet(RUN, 1, 1, u64::MAX), delivered),
            ("sent at the beginning of time", packet(RUN, 1, 2, 0), delivered),
        ];
        let mut before = tally.counts().expect("readable");
        let mut reached: HashMap<[u64; 5], u32> = HashMap::new();
        for (what, frame, expected) in &cases {
            assert_eq!(change(&tally, &mut before, frame), *expected, "{what}");
            *reached.entry(*expected).or_default() += 1;
        }
        let of = |counts| reached.get(&counts).copied().unwrap_or(0);
        assert_eq!([delivered, duplicated, reordered, beyond, foreign].map(of), [7, 3, 4, 2, 8]);
        let latencies = tally.latencies().expect("readable");
        assert_eq!(latencies.first(), Some(&(0, 1)), "never negative");
        let total: u64 = latencies.iter().map(|l| l.1).sum();
        assert_eq!(total, before.delivered, "a latency for each delivered packet");
        let uptime = crate::clock::now().min(middle(TALLY_BUCKETS - 1));
        assert!(latencies.last().is_some_and(|l| l.0 >= uptime / 100 * 98), "{latencies:?}");
        assert!(before.last_ns >= now && before.last_ns <= crate::clock::now());
    }

    /// All numbers a flow ever had, and the highest.
    #[derive(Default)]
    struct Remembered {
        seen: HashSet<i64>,
        highest: Option<i64>,
    }

    impl Remembered {
        /// Counts as the description of [`Counts`] says, without the program.
        fn classify(&mut self, number: i64) -> [u64; 5] {
            let behind = self.highest.map_or(-1, |highest| highest - number);
            let known = self.seen.contains(&number);
            self.seen.insert(number);
            self.highest = self.highest.max(Some(number));
            match behind {
                ..0 => [1, 0, 0, 0, 0],
                64.. => [1, 0, 1, 1, 0],
                _ if known => [0, 1, 0, 0, 0],
                _ => [1, 0, 1, 0, 0],
            }
        }
    }

    #[test]
    fn random_arrivals_are_judged_as_described() {
        const PACKETS: usize = 100_000;
        const FLOWS: u32 = 7;
        let Some(tally) = loaded("random_arrivals_are_judged_as_described", FLOWS) else { return };
        let mut random = SplitMix64::new(29);
        let mut flows: HashMap<u32, (Remembered, i64)> = HashMap::new();
        let mut before = tally.counts().expect("readable");
        for n in 0..PACKETS {
            let roll = random.next_u64();
            let (flow, step) = ((roll >> 32) as u32 % FLOWS, roll as u32);
            let (remembered, next) = flows.entry(flow).or_default();
            // Mostly the next one; else some way ahead, or behind.
            let number = match step % 16 {
                0..9 => *next,
                9..11 => *next + i64::from(step >> 8) % 100,
                _ => (*next - i64::from(step >> 8) % 100).max(0),
            };
            *next = (*next).max(number + 1);
            let frame = packet(RUN, flow, number as u32, crate::clock::now());
            let expected = remembered.classify(number);
            assert_eq!(change(&tally, &mut before, &frame), expected, "packet {n}: {number} of flow {flow}");
        }
        let Counts { delivered, duplicated, reordered, beyond_memory, foreign, .. } = before;
        assert_eq!(delivered + duplicated, PACKETS as u64);
        assert!(duplicated.min(reordered).min(beyond_memory) > 1000 && foreign == 0, "{before:?}");
    }

    #[test]
    fn what_the_verifier_refuses_is_said_in_its_last_words() {
        if loaded("what_the_verifier_refuses_is_said_in_its_last_words", 1).is_none() {
            return;
        }
        // Behind the mark, which is all the program compared with the frame's end.
        let error = Tally::load(Layout { protocol_at: 200, ..LAYOUT }, 1).expect_err("refused").to_string();
        let words = "bpf program weir_tally: Permission denied (os error 13); the verifier's last words:\n";
        assert!(error.starts_with(words), "{error}");
        assert!(error.contains("invalid access to packet, off=200 size=1"), "{error}");
        assert!(error.lines().count() <= 13, "{error}");
    }

    #[test]
    fn the_program_stays_small() {
        let Some(tally) = loaded("the_program_stays_small", 1) else { return };
        let (instructions, stack) = tally.program.size().expect("known");
        let _ =
            writeln!(std::io::stderr(), "weir_tally: {instructions} instructions, {stack} bytes of stack");
        assert!((50..250).contains(&instructions) && stack < 64);
    }

    #[test]
    fn buckets_follow_each_other_and_hold_their_middle() {
        let mut last = None;
        for index in 0..TALLY_BUCKETS {
            let middle = middle(index);
            assert!(last < Some(middle), "bucket {index}");
            last = Some(middle);
            // The program's arithmetic.
            let exponent = middle.max(1).ilog2();
            let back = match exponent.checked_sub(TALLY_BUCKET_BITS) {
                None => middle as u32,
                Some(e) => (e << TALLY_BUCKET_BITS) + (middle >> e) as u32,
            };
            assert_eq!(back, index);
        }
        assert_eq!(TALLY_BUCKETS, 1856);
        assert!(middle(TALLY_BUCKETS - 1) < 1 << 34);
    }
}
