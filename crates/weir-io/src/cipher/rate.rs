//! How fast a cipher is by itself, with packets as a worker has them: the raw rate to hold a whole path against.
//!
//! Packets lie in distinct buffers as large as a worker's frames, more of them than the first-level cache
//! holds, and are sealed and opened in a worker's batches. A rate is the median of rounds, so that a
//! moment in which the CPU was elsewhere does not count.

use std::time::Duration;

use weir_core::ipsec::{Cipher, Ciphers, Encryption, Job, Keys, Secret, Suite};

use crate::clock;

/// Packets in a call, as in the pipeline.
pub const BATCH: usize = 32;
/// Buffers that are used in turn.
pub const BUFFERS: usize = 64;
/// Bytes of a buffer; of a larger packet, the next multiple.
pub const BUFFER: usize = 2048;

/// Ethernet and IPv4 headers before the SPI.
const OUTER: usize = 14 + 20;
const PAGE: usize = 4096;

const NS_PER_S: f64 = 1e9;
const SPI: u32 = 0x100;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Seal,
    Open,
}

/// Time a packet took, the median of rounds.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    pub payload_len: usize,
    pub ns_per_packet: f64,
    /// Clocks of the time-stamp counter, where there is one.
    pub clocks_per_packet: Option<f64>,
}

impl Rate {
    pub fn packets_per_second(&self) -> f64 {
        NS_PER_S / self.ns_per_packet
    }

    /// Payload bits: what is inside the tunnel.
    pub fn bits_per_second(&self) -> f64 {
        self.packets_per_second() * (8 * self.payload_len) as f64
    }
}

/// Keys for measuring: all bytes the same.
pub fn keys(suite: Suite) -> Keys {
    let encryption = suite.encryption().key_len() + suite.encryption().salt_len();
    let integrity = suite.integrity().map_or(0, |i| i.key_len());
    Keys { encryption: Secret::new(vec![0x5a; encryption]), integrity: Secret::new(vec![0xa5; integrity]) }
}

/// The raw rate of `ciphers` for payloads of `payload_len` bytes, measured for about `time`. `None` when
/// they have no such cipher or a packet does not come back as it was sealed.
pub fn raw_rate(
    ciphers: &dyn Ciphers,
    suite: Suite,
    payload_len: usize,
    direction: Direction,
    time: Duration,
) -> Option<Rate> {
    let cipher = ciphers.cipher(suite, false, &keys(suite)).ok()?;
    let mut testbed = Testbed::new(suite, payload_len, BUFFERS);
    let end = clock::now() + time.as_nanos() as u64;
    let (mut ns, mut clocks) = (Vec::new(), Vec::new());
    while ns.is_empty() || clock::now() < end {
        let round = testbed.round(&*cipher, direction)?;
        ns.push(round.ns);
        clocks.extend(round.clocks);
    }
    let per_packet = |mut rounds: Vec<u64>| {
        rounds.sort_unstable();
        rounds.get(rounds.len() / 2).map(|&median| median as f64 / BUFFERS as f64)
    };
    Some(Rate { payload_len, ns_per_packet: per_packet(ns)?, clocks_per_packet: per_packet(clocks) })
}

/// Packets of one length in their buffers, each behind the room of an Ethernet and an IPv4 header.
pub struct Testbed {
    memory: Vec<u8>,
    /// Where the first buffer begins: on a page, as a worker's do.
    start: usize,
    buffers: usize,
    buffer: usize,
    packet: usize,
    sequence: u64,
}

/// What one turn through all buffers took.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    pub ns: u64,
    pub clocks: Option<u64>,
}

impl Testbed {
    pub fn new(suite: Suite, payload_len: usize, buffers: usize) -> Testbed {
        let packet = payload_len + suite.overhead(payload_len);
        let buffer = (OUTER + packet).next_multiple_of(BUFFER);
        let memory = vec![0x42; PAGE + buffers * buffer];
        let start = memory.as_ptr().addr().next_multiple_of(PAGE) - memory.as_ptr().addr();
        Testbed { memory, start, buffers, buffer, packet, sequence: 0 }
    }

    /// Seals or opens every buffer's packet once; before it is opened, it is sealed off the clock.
    pub fn round(&mut self, cipher: &dyn Cipher, direction: Direction) -> Option<Round> {
        let mut jobs = Vec::with_capacity(self.buffers);
        let memory = self.memory.get_mut(self.start..)?;
        for buffer in memory.chunks_exact_mut(self.buffer).take(self.buffers) {
            self.sequence += 1;
            let packet = buffer.get_mut(OUTER..OUTER + self.packet)?;
            packet[..4].copy_from_slice(&SPI.to_be_bytes());
            packet[4..8].copy_from_slice(&(self.sequence as u32).to_be_bytes());
            jobs.push(Job { packet, sequence: self.sequence, authentic: false });
        }
        if direction == Direction::Open {
            cipher.seal(&mut jobs);
        }
        let (ns, clocks) = (clock::now(), clock::ticks());
        for batch in jobs.chunks_mut(BATCH) {
            match direction {
                Direction::Seal => cipher.seal(batch),
                Direction::Open => cipher.open(batch),
            }
        }
        let ended = clock::ticks();
        let ns = clock::now() - ns;
        let intact = direction == Direction::Seal || jobs.iter().all(|job| job.authentic);
        intact.then_some(Round { ns, clocks: clocks.zip(ended).map(|(from, to)| to.saturating_sub(from)) })
    }
}

/// The suites a table of rates has: each encryption once, with a SHA-2 where it needs integrity.
pub fn usual_suites() -> Vec<Suite> {
    let mut suites = Suite::all();
    suites.retain(|suite| {
        let sha2 = weir_core::ipsec::Integrity::HmacSha256_128;
        suite.integrity().is_none_or(|integrity| integrity == sha2 || suite.encryption() == Encryption::Null)
    });
    suites
}
