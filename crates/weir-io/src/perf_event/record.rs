//! Records of a perf ring, as asked for by `attributes`.
//!
//! ```text
//! header  │ kind u32 │ misc u16 │ size u16 │                                     size includes the header
//! sample  │ ip u64 │ pid u32 │ tid u32 │ time u64 │ cpu u32 │ – u32 │ n u64 │ n × u64 call chain │ user state │
//! user state, when asked for: abi u64 │ registers, unless abi is 0 │ n u64 │ n bytes of stack, valid u64, unless n is 0 │
//! mmap2   │ pid u32 │ tid u32 │ addr u64 │ len u64 │ offset u64 │ 24 bytes │ prot u32 │ flags u32 │ path\0 │
//! comm    │ pid u32 │ tid u32 │ name\0 │          fork, exit │ pid │ ppid │ tid │ ptid u32 │ time u64 │
//! lost    │ id u64 │ n u64 │                     lost samples │ n u64 │
//! ```
//!
//! Promises: any bytes are read without panic; a damaged record ends the reading, one of an unknown kind is
//! passed over. Source: `enum perf_event_type` in Linux `include/uapi/linux/perf_event.h`.

const LOST: u32 = 2;
const COMM: u32 = 3;
const THROTTLE: u32 = 5;
const FORK: u32 = 7;
const SAMPLE: u32 = 9;
const MMAP2: u32 = 10;
const LOST_SAMPLES: u32 = 13;

/// Set in `misc` where the task was renamed by executing another program.
const MISC_COMM_EXEC: u16 = 1 << 13;
/// Bytes of kind, misc and size.
const HEADER: usize = 8;

/// Markers inside a call chain: what follows belongs to the kernel or the user.
const CONTEXT_FIRST: u64 = -4095i64 as u64;
const CONTEXT_KERNEL: u64 = -128i64 as u64;
const CONTEXT_USER: u64 = -512i64 as u64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    Sample(Sample<'a>),
    /// Executable memory of a process came to be.
    Mapped {
        pid: u32,
        start: u64,
        len: u64,
        offset: u64,
        path: &'a [u8],
    },
    /// A thread got a name; `executed`: by starting another program, so that its memory is new too.
    Named {
        pid: u32,
        tid: u32,
        executed: bool,
        name: &'a [u8],
    },
    /// A thread was started by another (of the same process, or as the first of a new one).
    Forked {
        pid: u32,
        tid: u32,
        parent: u32,
        parent_tid: u32,
    },
    /// The kernel had no room for so many records.
    Lost(u64),
    /// The kernel held sampling back, because it took too much time.
    Throttled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample<'a> {
    pub ip: u64,
    pub pid: u32,
    pub tid: u32,
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub time: u64,
    pub cpu: u32,
    /// What callers can be found from without frame pointers, when it was asked for.
    pub user: Option<UserState<'a>>,
    chain: &'a [u8],
}

/// Registers and stack of the user's side at the moment of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserState<'a> {
    /// Registers by DWARF's number, the instruction pointer as [`RETURN`]; 0 where not sampled.
    pub registers: [u64; RETURN + 1],
    /// The stack from its pointer upwards.
    pub stack: &'a [u8],
}

/// DWARF's numbers (System V ABI, AMD64 supplement, figure 3.36): stack pointer and return address.
pub const STACK_POINTER: usize = 7;
pub const RETURN: usize = 16;
/// (`enum perf_event_x86_regs`, DWARF) of the registers a callee keeps, stack and instruction pointer, in
/// the order the kernel writes them.
const SAMPLED: [(u32, usize); 8] =
    [(1, 3), (6, 6), (7, STACK_POINTER), (8, RETURN), (20, 12), (21, 13), (22, 14), (23, 15)];
/// `sample_regs_user`.
pub(super) const REGISTERS: u64 = {
    let (mut mask, mut i) = (0, 0);
    while i < SAMPLED.len() {
        mask |= 1 << SAMPLED[i].0;
        i += 1;
    }
    mask
};

/// The side whose code an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Kernel,
    User,
}

impl Sample<'_> {
    /// Addresses, innermost first: where it was, then to where each call returns.
    pub fn chain(&self) -> impl Iterator<Item = (Side, u64)> {
        // the hypervisor's and a guest's addresses mean nothing here
        let mut side = None;
        self.chain.chunks_exact(8).filter_map(move |word| {
            let address = u64::from_ne_bytes(word.try_into().ok()?);
            if address < CONTEXT_FIRST {
                return side.map(|side| (side, address));
            }
            side = match address {
                CONTEXT_KERNEL => Some(Side::Kernel),
                CONTEXT_USER => Some(Side::User),
                _ => None,
            };
            None
        })
    }
}

/// Every known record of `bytes`, up to the first damaged one.
pub fn records(bytes: &[u8]) -> impl Iterator<Item = Record<'_>> {
    let mut rest = Reader(bytes);
    std::iter::from_fn(move || {
        loop {
            let (kind, misc) = (rest.u32()?, rest.u16()?);
            let body = usize::from(rest.u16()?).checked_sub(HEADER)?;
            let body = Reader(rest.take(body)?);
            match record(kind, misc, body) {
                Some(record) => return Some(record),
                None if KNOWN.contains(&kind) => return None,
                None => {}
            }
        }
    })
}

const KNOWN: [u32; 7] = [LOST, COMM, THROTTLE, FORK, SAMPLE, MMAP2, LOST_SAMPLES];

fn record(kind: u32, misc: u16, mut body: Reader<'_>) -> Option<Record<'_>> {
    Some(match kind {
        SAMPLE => {
            let (ip, pid, tid, time) = (body.u64()?, body.u32()?, body.u32()?, body.u64()?);
            let (cpu, _) = (body.u32()?, body.u32()?);
            let n = usize::try_from(body.u64()?).ok()?;
            let chain = body.take(n.checked_mul(8)?)?;
            let user = if body.0.is_empty() { None } else { user_state(&mut body)? };
            Record::Sample(Sample { ip, pid, tid, time, cpu, user, chain })
        }
        MMAP2 => {
            let (pid, _) = (body.u32()?, body.u32()?);
            let (start, len, offset) = (body.u64()?, body.u64()?, body.u64()?);
            body.take(24 + 4 + 4)?;
            Record::Mapped { pid, start, len, offset, path: body.text() }
        }
        COMM => {
            let executed = misc & MISC_COMM_EXEC != 0;
            Record::Named { pid: body.u32()?, tid: body.u32()?, executed, name: body.text() }
        }
        FORK => {
            let [pid, parent, tid, parent_tid] = [body.u32()?, body.u32()?, body.u32()?, body.u32()?];
            Record::Forked { pid, tid, parent, parent_tid }
        }
        LOST => {
            body.u64()?;
            Record::Lost(body.u64()?)
        }
        LOST_SAMPLES => Record::Lost(body.u64()?),
        THROTTLE => Record::Throttled,
        _ => return None,
    })
}

/// Registers and stack; a kernel thread has none, which is no damage.
fn user_state<'a>(body: &mut Reader<'a>) -> Option<Option<UserState<'a>>> {
    let mut registers = [0; RETURN + 1];
    let abi = body.u64()?;
    if abi != 0 {
        for (_, dwarf) in SAMPLED {
            registers[dwarf] = body.u64()?;
        }
    }
    let copied = usize::try_from(body.u64()?).ok()?;
    let stack = body.take(copied)?;
    let valid = if copied == 0 { 0 } else { usize::try_from(body.u64()?).ok()? };
    Some((abi != 0).then_some(UserState { registers, stack: &stack[..valid.min(copied)] }))
}

/// Bytes that are eaten from the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2)?.try_into().ok().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_ne_bytes)
    }

    /// Reads a text up to the zero that ends it.
    fn text(&mut self) -> &'a [u8] {
        let end = self.0.iter().position(|&b| b == 0).unwrap_or(self.0.len());
        &self.0[..end]
    }
}
