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
//! # use weir_io::xdp_gen::{Generator, Layout, Slot};
//! # fn example(ifindex: u32, slots: Vec<Slot>) -> Result<(), Box<dyn std::error::Error>> {
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

use weir_core::time::Nanos;

use crate::bpf::asm::{Alu, Asm, AsmError, Cond, Helper, Label, Program, Reg::*, Size};
use crate::bpf::attach::{Attachment, XdpMode};
use crate::bpf::object::{BpfError, LoadedProgram, Map, MapKind};

/// Bytes at the front of a frame that each packet writes anew: Ethernet, VLAN tag, IPv6, UDP and an
/// 18-byte mark are 84.
pub const HEAD_MAX: usize = 96;

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
pub struct Slot {
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
    Slots { got: usize },
    Head { got: usize, first: usize },
    Length { got: u16, head: usize },
    Field { name: &'static str, at: u16, head: usize },
    Bpf(BpfError),
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
            GeneratorError::Bpf(error) => error.fmt(f),
            GeneratorError::Run(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                write!(f, "generator: {error}; live frames need Linux 5.18")
            }
            GeneratorError::Run(error) => write!(f, "generator: {error}"),
        }
    }
}

impl std::error::Error for GeneratorError {}

impl From<BpfError> for GeneratorError {
    fn from(error: BpfError) -> Self {
        GeneratorError::Bpf(error)
    }
}

/// Behind the head in each slot: how much shorter than the longest frame (`i64`, at most 0), first
/// sequence number (`u32`), sum of the checksum field's complement (`u32`).
const SLOT_TAIL: usize = 16;

/// The program's memory, one value of 48 bytes.
mod state {
    pub const CURSOR: i16 = 0;
    pub const ROUND: i16 = 4;
    pub const SENT: i16 = 8;
    pub const NEXT_NS: i16 = 16;
    /// 0: flat out.
    pub const INTERVAL_NS: i16 = 24;
    pub const LAG_NS: i16 = 32;
    /// Nothing is sent from here on.
    pub const UNTIL_NS: i16 = 40;
    pub const SIZE: usize = 48;
}

/// A loaded program with its table of slots. One thread drives it.
#[derive(Debug)]
pub struct Generator {
    _kept: Option<Attachment>,
    program: LoadedProgram,
    state: Map,
    _table: Map,
    longest: Vec<u8>,
    /// Frames between two flushes.
    batch: u32,
}

impl Generator {
    /// Sends out of interface `ifindex`. After each round over the slots every sequence number is
    /// `stride` higher.
    pub fn new(ifindex: u32, layout: Layout, slots: &[Slot], stride: u32) -> Result<Self, GeneratorError> {
        let head = check(&layout, slots)?;
        let longest = slots.iter().map(|s| s.len).max().unwrap_or(0);
        let plan = Plan {
            ifindex,
            layout,
            stride,
            slots: slots.len(),
            head,
            stored: head.next_multiple_of(8),
            same_length: slots.iter().all(|s| s.len == longest),
        };
        let table = Map::new("weir_gen_slots", MapKind::Array, 4, plan.slot_bytes() * slots.len(), 1)?;
        table.update(&0u32.to_ne_bytes(), &plan.table(slots, longest))?;
        let state = Map::new("weir_gen_state", MapKind::Array, 4, state::SIZE, 1)?;
        let program = plan.assemble(&table, &state).map_err(BpfError::from)?;
        let program = LoadedProgram::load("weir_gen", &program)?;
        let _kept = keep(&program);
        let generator = Generator {
            _kept,
            program,
            state,
            _table: table,
            longest: vec![0; longest as usize],
            batch: LIVE_BATCH,
        };
        let mut value = [0; state::SIZE];
        put(&mut value, state::UNTIL_NS, u64::MAX);
        generator.write_state(&value)?;
        Ok(generator)
    }

    /// Packets a second from now on; `None` is flat out. Call it between runs only.
    pub fn pace(&mut self, packets_per_second: Option<f64>) -> Result<(), GeneratorError> {
        // After a pause up to 64 packets (one batch) or 100 µs are caught up at once.
        const CATCH_UP_PACKETS: f64 = 64.0;
        const CATCH_UP_NS: f64 = 100_000.0;
        let interval = packets_per_second.map_or(0.0, |rate| INTERVAL_ONE * 1e9 / rate.max(1e-3));
        let lag = (interval / INTERVAL_ONE * CATCH_UP_PACKETS).max(CATCH_UP_NS) * INTERVAL_ONE;
        let mut value = self.read_state()?;
        put(&mut value, state::NEXT_NS, (crate::clock::now() as f64 * INTERVAL_ONE) as u64);
        put(&mut value, state::INTERVAL_NS, interval as u64);
        put(&mut value, state::LAG_NS, lag as u64);
        self.batch = if packets_per_second.is_some() { LIVE_BATCH_PACED } else { LIVE_BATCH };
        self.write_state(&value)
    }

    /// Sends until `deadline` ([`crate::clock::now`]). A signal ends it early, without an error.
    pub fn run_until(&mut self, deadline: Nanos) -> Result<(), GeneratorError> {
        self.set_until(deadline)?;
        let mut times = RUNS_TO_LEARN;
        while let Some(each) = self.call(times)? {
            let left = deadline.saturating_sub(crate::clock::now());
            if left == 0 {
                break;
            }
            let due = left / u64::from(each.max(1));
            times = u32::try_from(due + due / MARGIN + 1).unwrap_or(u32::MAX);
        }
        self.set_until(Nanos::MAX)
    }

    fn set_until(&self, deadline: Nanos) -> Result<(), GeneratorError> {
        let mut value = self.read_state()?;
        put(&mut value, state::UNTIL_NS, deadline);
        self.write_state(&value)
    }

    /// Runs the program `times` times; flat out each is a frame, paced each is a frame or a look at
    /// the clock. `false` when a signal ended it early.
    pub fn run(&mut self, times: u32) -> Result<bool, GeneratorError> {
        Ok(self.call(times)?.is_some())
    }

    /// The mean time of a run, ns; `None` after a signal.
    fn call(&mut self, times: u32) -> Result<Option<u32>, GeneratorError> {
        match self.program.run_live(&self.longest, times, self.batch) {
            Ok(each) => Ok(Some(each)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(GeneratorError::Run(error)),
        }
    }

    /// Frames handed to the device so far. What a full device dropped is in its own counters.
    pub fn sent(&self) -> Result<u64, GeneratorError> {
        let value = self.read_state()?;
        let at = state::SENT as usize;
        Ok(value[at..at + 8].try_into().map_or(0, u64::from_ne_bytes))
    }

    fn write_state(&self, value: &[u8; state::SIZE]) -> Result<(), GeneratorError> {
        Ok(self.state.update(&0u32.to_ne_bytes(), value)?)
    }

    fn read_state(&self) -> Result<[u8; state::SIZE], GeneratorError> {
        let mut value = [0; state::SIZE];
        self.state.read(&0u32.to_ne_bytes(), &mut value)?;
        Ok(value)
    }
}

/// Attaches the program to the loopback of the calling thread's namespace, where no frame ever meets it.
///
/// The kernel enters a program that it is about to run many times into its XDP dispatcher and takes it
/// out afterwards, and waits each time until no CPU uses the old one (10 ms). A program that is attached
/// somewhere is in the dispatcher already, so calls follow each other within microseconds.
fn keep(program: &LoadedProgram) -> Option<Attachment> {
    let index = crate::netlink::link("lo").ok()??.index;
    Attachment::new("lo", index, program, &[XdpMode::Generic]).ok()
}

/// Times are kept in 1/16 ns, so that 3 Mpps is 333.3 ns and not 333: 2^60 ns are 36 years of uptime.
const INTERVAL_ONE: f64 = 16.0;
const INTERVAL_SHIFT: i32 = 4;

fn put(value: &mut [u8], at: i16, number: u64) {
    value[at as usize..at as usize + 8].copy_from_slice(&number.to_ne_bytes());
}

fn check(layout: &Layout, slots: &[Slot]) -> Result<usize, GeneratorError> {
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

/// What the program is made for.
struct Plan {
    ifindex: u32,
    layout: Layout,
    stride: u32,
    slots: usize,
    head: usize,
    stored: usize,
    same_length: bool,
}

impl Plan {
    fn slot_bytes(&self) -> usize {
        self.stored + SLOT_TAIL
    }

    fn table(&self, slots: &[Slot], longest: u16) -> Vec<u8> {
        let mut table = Vec::with_capacity(slots.len() * self.slot_bytes());
        for slot in slots {
            let start = table.len();
            table.extend(&slot.head);
            table.resize(start + self.stored, 0);
            table.extend((i64::from(slot.len) - i64::from(longest)).to_ne_bytes());
            table.extend(slot.sequence.to_ne_bytes());
            let sum = self.layout.checksum.map_or(0, |at| {
                let at = at as usize;
                !u16::from_ne_bytes([slot.head[at], slot.head[at + 1]])
            });
            table.extend(u32::from(sum).to_ne_bytes());
        }
        table
    }

    /// `R6` context, `R7` time, `R8` slot, `R9` state.
    fn assemble(&self, table: &Map, memory: &Map) -> Result<Program, AsmError> {
        const XDP_DROP: i32 = 1;
        let mut a = Asm::new();
        let drop = a.label("drop");
        a.mov(R6, R1);
        a.map_value(R9, memory, 0);
        self.wait(&mut a, drop);
        self.choose_slot(&mut a, table, drop);
        if !self.same_length {
            a.mov(R1, R6);
            a.load(Size::U64, R2, R8, self.stored as i16);
            a.call(Helper::XdpAdjustTail);
            a.jump_if(Cond::NotEqual, R0, 0, drop);
        }
        self.write(&mut a, drop);
        a.load(Size::U64, R1, R9, state::SENT);
        a.add(R1, 1);
        a.store(Size::U64, R9, state::SENT, R1);
        a.mov(R1, self.ifindex as i32);
        a.mov(R2, 0);
        a.call(Helper::Redirect);
        a.exit();
        a.bind(drop);
        a.mov(R0, XDP_DROP);
        a.exit();
        a.finish()
    }

    /// `R7` = now; drops the frame when the next packet is not due.
    fn wait(&self, a: &mut Asm, drop: Label) {
        let (flat_out, in_time) = (a.label("flat_out"), a.label("in_time"));
        a.load(Size::U64, R8, R9, state::INTERVAL_NS);
        a.call(Helper::KtimeGetNs);
        a.mov(R7, R0);
        a.load(Size::U64, R1, R9, state::UNTIL_NS);
        a.jump_if(Cond::GreaterOrEqual, R0, R1, drop);
        a.jump_if(Cond::Equal, R8, 0, flat_out);
        a.alu(Alu::Lsh, R0, INTERVAL_SHIFT);
        a.load(Size::U64, R1, R9, state::NEXT_NS);
        a.jump_if(Cond::Less, R0, R1, drop);
        a.note("too far behind: catch up no more than the lag");
        a.mov(R2, R0);
        a.alu(Alu::Sub, R2, R1);
        a.load(Size::U64, R3, R9, state::LAG_NS);
        a.jump_if(Cond::LessOrEqual, R2, R3, in_time);
        a.mov(R1, R0);
        a.alu(Alu::Sub, R1, R3);
        a.bind(in_time);
        a.add(R1, R8);
        a.store(Size::U64, R9, state::NEXT_NS, R1);
        a.bind(flat_out);
    }

    /// `R8` = this packet's slot; moves the cursor on.
    fn choose_slot(&self, a: &mut Asm, table: &Map, drop: Label) {
        let same_round = a.label("same_round");
        a.load(Size::U32, R1, R9, state::CURSOR);
        a.jump_if(Cond::GreaterOrEqual, R1, self.slots as i32, drop);
        a.load(Size::U32, R5, R9, state::ROUND);
        a.mov(R2, R1);
        a.add(R2, 1);
        a.jump_if(Cond::Less, R2, self.slots as i32, same_round);
        a.mov(R2, 0);
        a.mov(R3, R5);
        a.alu32(Alu::Add, R3, self.stride as i32);
        a.store(Size::U32, R9, state::ROUND, R3);
        a.bind(same_round);
        a.store(Size::U32, R9, state::CURSOR, R2);
        a.store(Size::U64, R10, ROUND_SAVED, R5);
        a.alu(Alu::Mul, R1, self.slot_bytes() as i32);
        a.map_value(R8, table, 0);
        a.add(R8, R1);
    }

    /// Copies the head and stamps it.
    fn write(&self, a: &mut Asm, drop: Label) {
        const MD_DATA: i16 = 0;
        const MD_DATA_END: i16 = 4;
        a.load(Size::U32, R2, R6, MD_DATA);
        a.load(Size::U32, R3, R6, MD_DATA_END);
        a.mov(R4, R2);
        a.add(R4, self.head as i32);
        a.jump_if(Cond::Greater, R4, R3, drop);
        let mut at = 0;
        while at < self.head {
            let (size, step) = match self.head - at {
                8.. => (Size::U64, 8),
                4.. => (Size::U32, 4),
                _ => (Size::U16, 2),
            };
            a.load(size, R4, R8, at as i16);
            a.store(size, R2, at as i16, R4);
            at += step;
        }
        a.load(Size::U32, R5, R8, (self.stored + 12) as i16);
        if let Some(at) = self.layout.sequence {
            a.note("sequence number");
            a.load(Size::U32, R4, R8, (self.stored + 8) as i16);
            a.load(Size::U64, R3, R10, ROUND_SAVED);
            a.alu32(Alu::Add, R4, R3);
            a.to_be(R4, 32);
            a.store(Size::U32, R2, at as i16, R4);
            add_words(a, 2);
        }
        if let Some(at) = self.layout.time {
            a.note("time");
            a.mov(R4, R7);
            a.to_be(R4, 64);
            a.store(Size::U64, R2, at as i16, R4);
            add_words(a, 4);
        }
        if let Some(at) = self.layout.checksum {
            a.note("RFC 1071: fold twice, complement; RFC 768: zero is sent as ones");
            let not_zero = a.label("not_zero");
            for _ in 0..2 {
                a.mov(R3, R5);
                a.alu(Alu::Rsh, R3, 16);
                a.alu(Alu::And, R5, 0xffff);
                a.add(R5, R3);
            }
            a.alu(Alu::Xor, R5, 0xffff);
            a.jump_if(Cond::NotEqual, R5, 0, not_zero);
            a.mov(R5, 0xffff);
            a.bind(not_zero);
            a.store(Size::U16, R2, at as i16, R5);
        }
    }
}

/// Where this packet's round waits on the stack.
const ROUND_SAVED: i16 = -8;

/// `R5 += ` the 16-bit words of `R4`; `R4` and `R3` are lost.
fn add_words(a: &mut Asm, words: usize) {
    for word in 0..words {
        if word > 0 {
            a.alu(Alu::Rsh, R4, 16);
        }
        a.mov(R3, R4);
        a.alu(Alu::And, R3, 0xffff);
        a.add(R5, R3);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(head: usize, len: u16) -> Slot {
        Slot { head: vec![0; head], len, sequence: 0 }
    }

    #[test]
    fn what_does_not_fit_is_refused_before_the_kernel_is_asked() {
        let none = Layout::default();
        let refusal =
            |layout: Layout, slots: &[Slot]| check(&layout, slots).expect_err("refused").to_string();
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
        let slots = [
            Slot { head: vec![1, 2, 0x12, 0x34, 5, 6], len: 60, sequence: 7 },
            Slot { head: vec![0; 6], len: 100, sequence: 8 },
        ];
        let plan = Plan { ifindex: 1, layout, stride: 1, slots: 2, head: 6, stored: 8, same_length: false };
        let table = plan.table(&slots, 100);
        assert_eq!(table.len(), 2 * plan.slot_bytes());
        assert_eq!(&table[..8], &[1, 2, 0x12, 0x34, 5, 6, 0, 0]);
        assert_eq!(table[8..16], (-40i64).to_ne_bytes());
        assert_eq!(table[16..20], 7u32.to_ne_bytes());
        assert_eq!(table[20..24], u32::from(!u16::from_ne_bytes([0x12, 0x34])).to_ne_bytes());
        assert_eq!(table[32..40], 0i64.to_ne_bytes());
    }
}
