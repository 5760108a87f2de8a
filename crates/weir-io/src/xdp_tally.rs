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

use crate::bpf::asm::{Alu, Asm, AsmError, Cond, Helper, Label, Program, Reg::*, Size};
use crate::bpf::attach::{AttachError, Attachment, XdpMode};
use crate::bpf::object::{BpfError, LoadedProgram, Map, MapKind};

/// Flows of one tally: 2^16 × 16 B = 1 MiB.
pub const FLOWS_MAX: u32 = 1 << 16;

/// Numbers each flow remembers.
pub const WINDOW: u32 = 64;

/// What a test packet looks like. All numbers in it are big-endian.
///
/// ```text
/// at:  magic u16 | run u16 | flow u16 | sequence u32 | sent u64, CLOCK_MONOTONIC ns
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

/// Bytes of a mark.
const MARK: i32 = 18;

/// What arrived since the last start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// First with its number.
    pub delivered: u64,
    /// Seen before.
    pub duplicated: u64,
    /// After a higher number of its flow.
    pub reordered: u64,
    /// Of these, too late to be told from duplicates.
    pub beyond_memory: u64,
    /// Of other runs, or no test packets.
    pub foreign: u64,
    /// When the last was delivered.
    pub last_ns: u64,
}

/// Why there is no tally.
#[derive(Debug)]
pub enum TallyError {
    Flows(u32),
    Bpf(BpfError),
    Attach(AttachError),
}

impl fmt::Display for TallyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TallyError::Flows(got) => write!(f, "tally: {got} flows, expected 1 to {FLOWS_MAX}"),
            TallyError::Bpf(error) => error.fmt(f),
            TallyError::Attach(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for TallyError {}

impl From<BpfError> for TallyError {
    fn from(error: BpfError) -> Self {
        TallyError::Bpf(error)
    }
}

/// The program's memory besides flows and latencies.
mod state {
    /// The run, as it is on the wire.
    pub const RUN: i16 = 0;
    pub const DELIVERED: i16 = 8;
    pub const DUPLICATED: i16 = 16;
    pub const REORDERED: i16 = 24;
    pub const BEYOND: i16 = 32;
    pub const FOREIGN: i16 = 40;
    pub const LAST_NS: i16 = 48;
    pub const SIZE: usize = 56;
}

/// One flow: the number after its highest, and one bit for each of the [`WINDOW`] before that, the
/// nearest lowest.
mod flow {
    pub const NEXT: i16 = 0;
    pub const SEEN: i16 = 8;
    pub const SIZE_SHIFT: i32 = 4;
}

/// Latency buckets: 64 to each power of two (1.6 % wide), exact below 64 ns, up to 2^34 ns = 17 s.
mod bucket {
    pub const BITS: u32 = 6;
    pub const EXPONENTS: u32 = 34;
    pub const COUNT: u32 = (EXPONENTS - BITS + 1) << BITS;

    /// The middle of a bucket.
    pub fn middle(index: u32) -> u64 {
        let (power, rest) = (index >> BITS, u64::from(index & ((1 << BITS) - 1)));
        if power == 0 {
            return rest;
        }
        let width = 1u64 << (power - 1);
        ((1 << BITS) + rest) * width + width / 2
    }
}

const ZERO: [u8; 4] = 0u32.to_ne_bytes();

/// The program, attached.
#[derive(Debug)]
pub struct Tally {
    // Detached first.
    attachment: Attachment,
    _program: LoadedProgram,
    state: Map,
    flows: Map,
    latency: Map,
    flow_count: u32,
}

impl Tally {
    /// Takes everything `interface` receives from now on.
    pub fn attach(interface: &str, ifindex: u32, layout: Layout, flows: u32) -> Result<Tally, TallyError> {
        if flows == 0 || flows > FLOWS_MAX {
            return Err(TallyError::Flows(flows));
        }
        let maps = Maps {
            state: Map::new("weir_tally", MapKind::Array, 4, state::SIZE, 1)?,
            flows: Map::new("weir_tally_flow", MapKind::Array, 4, (flows as usize) << flow::SIZE_SHIFT, 1)?,
            latency: Map::new("weir_tally_lat", MapKind::Array, 4, bucket::COUNT as usize * 8, 1)?,
        };
        let program = maps.assemble(layout, flows).map_err(BpfError::from)?;
        let program = LoadedProgram::load("weir_tally", &program)?;
        let attachment = Attachment::new(interface, ifindex, &program, &[XdpMode::Native, XdpMode::Generic])
            .map_err(TallyError::Attach)?;
        let Maps { state, flows: flow_map, latency } = maps;
        Ok(Tally { attachment, _program: program, state, flows: flow_map, latency, flow_count: flows })
    }

    pub fn mode(&self) -> XdpMode {
        self.attachment.mode
    }

    /// Forgets everything; counts packets of `run` from now on. No traffic may flow.
    pub fn start(&self, run: u16) -> Result<(), TallyError> {
        let mut value = [0; state::SIZE];
        value[state::RUN as usize..][..2].copy_from_slice(&run.to_be_bytes());
        self.flows.update(&ZERO, &vec![0; (self.flow_count as usize) << flow::SIZE_SHIFT])?;
        self.latency.update(&ZERO, &vec![0; bucket::COUNT as usize * 8])?;
        Ok(self.state.update(&ZERO, &value)?)
    }

    pub fn counts(&self) -> Result<Counts, TallyError> {
        let mut value = [0; state::SIZE];
        self.state.read(&ZERO, &mut value)?;
        let at = |at: i16| value[at as usize..][..8].try_into().map_or(0, u64::from_ne_bytes);
        Ok(Counts {
            delivered: at(state::DELIVERED),
            duplicated: at(state::DUPLICATED),
            reordered: at(state::REORDERED),
            beyond_memory: at(state::BEYOND),
            foreign: at(state::FOREIGN),
            last_ns: at(state::LAST_NS),
        })
    }

    /// One-way latencies: (nanoseconds, how many), ascending.
    pub fn latencies(&self) -> Result<Vec<(u64, u64)>, TallyError> {
        let mut value = vec![0; bucket::COUNT as usize * 8];
        self.latency.read(&ZERO, &mut value)?;
        let (words, _) = value.as_chunks::<8>();
        let counts = words.iter().map(|w| u64::from_ne_bytes(*w));
        Ok((0..).map(bucket::middle).zip(counts).filter(|(_, n)| *n > 0).collect())
    }
}

struct Maps {
    state: Map,
    flows: Map,
    latency: Map,
}

/// `sent` waits here while the clock is read.
const SENT_SAVED: i16 = -8;

impl Maps {
    /// `R6` sequence, `R7` flow, `R8` now, `R9` state.
    fn assemble(&self, layout: Layout, flows: u32) -> Result<Program, AsmError> {
        let mut a = Asm::new();
        let (foreign, done) = (a.label("foreign"), a.label("done"));
        a.map_value(R9, &self.state, 0);
        read_mark(&mut a, layout, flows, foreign);
        a.call(Helper::KtimeGetNs);
        a.mov(R8, R0);
        self.judge(&mut a, done);
        self.record_latency(&mut a, done);
        a.bind(foreign);
        count(&mut a, state::FOREIGN);
        a.bind(done);
        const XDP_DROP: i32 = 1;
        a.mov(R0, XDP_DROP);
        a.exit();
        a.finish()
    }

    /// Falls through when the packet is delivered.
    fn judge(&self, a: &mut Asm, done: Label) {
        let (behind, forget, remember) = (a.label("behind"), a.label("forget"), a.label("remember"));
        let (late, seen, deliver) = (a.label("late"), a.label("seen"), a.label("deliver"));
        a.map_value(R1, &self.flows, 0);
        a.alu(Alu::Lsh, R7, flow::SIZE_SHIFT);
        a.add(R1, R7);
        a.load(Size::U32, R2, R1, flow::NEXT);
        a.load(Size::U64, R3, R1, flow::SEEN);
        a.mov(R4, R6);
        a.alu32(Alu::Sub, R4, R2);
        a.jump_if(Cond::Greater, R4, i32::MAX, behind);
        a.note("the highest of its flow: shift the window");
        a.jump_if(Cond::GreaterOrEqual, R4, WINDOW as i32 - 1, forget);
        a.add(R4, 1);
        a.alu(Alu::Lsh, R3, R4);
        a.jump(remember);
        a.bind(forget);
        a.mov(R3, 0);
        a.bind(remember);
        a.alu(Alu::Or, R3, 1);
        a.store(Size::U64, R1, flow::SEEN, R3);
        a.mov(R4, R6);
        a.alu32(Alu::Add, R4, 1);
        a.store(Size::U32, R1, flow::NEXT, R4);
        a.jump(deliver);
        a.bind(behind);
        a.note("its bit is its distance from the highest");
        a.alu32(Alu::Sub, R2, 1);
        a.alu32(Alu::Sub, R2, R6);
        a.jump_if(Cond::GreaterOrEqual, R2, WINDOW as i32, late);
        a.mov(R4, 1);
        a.alu(Alu::Lsh, R4, R2);
        a.jump_if(Cond::AnyBit, R3, R4, seen);
        a.alu(Alu::Or, R3, R4);
        a.store(Size::U64, R1, flow::SEEN, R3);
        count(a, state::REORDERED);
        a.jump(deliver);
        a.bind(seen);
        count(a, state::DUPLICATED);
        a.jump(done);
        a.bind(late);
        count(a, state::BEYOND);
        count(a, state::REORDERED);
        a.bind(deliver);
        count(a, state::DELIVERED);
        a.store(Size::U64, R9, state::LAST_NS, R8);
    }

    fn record_latency(&self, a: &mut Asm, done: Label) {
        let (positive, small, index) = (a.label("positive"), a.label("small"), a.label("index"));
        a.load(Size::U64, R1, R10, SENT_SAVED);
        a.jump_if(Cond::GreaterOrEqual, R8, R1, positive);
        a.mov(R1, R8);
        a.bind(positive);
        a.alu(Alu::Sub, R8, R1);
        a.mov(R1, R8);
        a.jump_if(Cond::Less, R8, 1 << bucket::BITS, small);
        a.note("R2 = exponent of the leading bit");
        a.mov(R2, 0);
        a.mov(R3, R8);
        for step in [32, 16, 8, 4, 2, 1] {
            let skip = a.label("skip");
            a.mov(R4, R3);
            a.alu(Alu::Rsh, R4, step);
            a.jump_if(Cond::Equal, R4, 0, skip);
            a.mov(R3, R4);
            a.add(R2, step);
            a.bind(skip);
        }
        a.note("R1 = (exponent - 6) × 64 + leading 7 bits: 64…127 in the first power of two");
        a.alu(Alu::Sub, R2, bucket::BITS as i32);
        a.alu(Alu::Rsh, R1, R2);
        a.alu(Alu::Lsh, R2, bucket::BITS as i32);
        a.add(R1, R2);
        a.bind(small);
        a.jump_if(Cond::Less, R1, bucket::COUNT as i32, index);
        a.mov(R1, bucket::COUNT as i32 - 1);
        a.bind(index);
        a.alu(Alu::Lsh, R1, 3);
        a.map_value(R2, &self.latency, 0);
        a.add(R2, R1);
        a.load(Size::U64, R3, R2, 0);
        a.add(R3, 1);
        a.store(Size::U64, R2, 0, R3);
        a.jump(done);
    }
}

/// `R6` = sequence, `R7` = flow, the time sent on the stack; or jumps to `foreign`.
fn read_mark(a: &mut Asm, layout: Layout, flows: u32, foreign: Label) {
    const MD_DATA: i16 = 0;
    const MD_DATA_END: i16 = 4;
    let mark = layout.mark_at as i16;
    a.load(Size::U32, R2, R1, MD_DATA);
    a.load(Size::U32, R3, R1, MD_DATA_END);
    a.mov(R4, R2);
    a.add(R4, i32::from(layout.mark_at) + MARK);
    a.jump_if(Cond::Greater, R4, R3, foreign);
    let wire = |bytes: [u8; 2]| i32::from(u16::from_ne_bytes(bytes));
    a.load(Size::U16, R4, R2, 12);
    a.jump_if(Cond::NotEqual, R4, wire(layout.ethertype.to_be_bytes()), foreign);
    a.load(Size::U8, R4, R2, layout.protocol_at as i16);
    a.jump_if(Cond::NotEqual, R4, i32::from(layout.protocol), foreign);
    a.load(Size::U16, R4, R2, mark);
    a.jump_if(Cond::NotEqual, R4, wire(layout.magic), foreign);
    a.load(Size::U16, R4, R2, mark + 2);
    a.load(Size::U16, R5, R9, state::RUN);
    a.jump_if(Cond::NotEqual, R4, R5, foreign);
    a.load(Size::U16, R7, R2, mark + 4);
    a.to_be(R7, 16);
    a.jump_if(Cond::GreaterOrEqual, R7, flows as i32, foreign);
    a.load(Size::U32, R6, R2, mark + 6);
    a.to_be(R6, 32);
    a.load(Size::U64, R4, R2, mark + 10);
    a.to_be(R4, 64);
    a.store(Size::U64, R10, SENT_SAVED, R4);
}

/// Adds one to a counter of the state; uses `R5`.
fn count(a: &mut Asm, at: i16) {
    a.load(Size::U64, R5, R9, at);
    a.add(R5, 1);
    a.store(Size::U64, R9, at, R5);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_and_hold_their_middle() {
        let mut last = None;
        for index in 0..bucket::COUNT {
            let middle = bucket::middle(index);
            assert!(last < Some(middle), "bucket {index}");
            last = Some(middle);
            // The program's arithmetic.
            let exponent = middle.max(1).ilog2();
            let back = match exponent.checked_sub(bucket::BITS) {
                None => middle as u32,
                Some(e) => (e << bucket::BITS) + (middle >> e) as u32,
            };
            assert_eq!(back, index);
        }
        assert_eq!(bucket::COUNT, 1856);
        assert!(bucket::middle(bucket::COUNT - 1) < 1 << 34);
    }
}
