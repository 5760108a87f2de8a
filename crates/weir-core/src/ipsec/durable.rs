//! What of an SA must outlive the process that used it, as workers see it (RFC 4303 3.3.3 and 3.4.3: a number
//! is used once in the life of a key, not in that of a process).
//!
//! ```text
//!            workers count here             they may go this far     on disk
//! Counters   sequence ──────────────────►│  Lease::sequence    ≤  reserved
//! 64 B, may  packets                     │  ask ─ half of what is left ─► more is asked for
//! be mapped  bytes
//! ```
//!
//! Promises: what workers count lies in one cache line that may be memory of a file, so that a process that
//! dies between two instructions has left what it used; nobody numbers or accepts beyond what the lease
//! says is on disk (`loom/` runs this file in every order of several workers' accesses). Costs: a few loads a batch, no more stores than an SA without it. Refuses nothing where
//! nothing is kept: such a lease has no end.

use std::ops::Deref;

use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::atomic::{AtomicBool, AtomicU64};

/// Which record it belongs to: a digest of keys, direction and SPI.
pub type Identity = [u8; 32];

/// What packets use up: one cache line, all of it plain words, so that it can lie in a mapped file.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Counters {
    identity: [AtomicU64; 4],
    /// Outbound: the last sequence number given out. Inbound: the highest that was authentic.
    pub sequence: AtomicU64,
    pub packets: AtomicU64,
    /// Bytes of inner packets.
    pub bytes: AtomicU64,
    /// 1 once the others are those of an SA.
    in_use: AtomicU64,
}

/// Bytes of [`Counters`] in a file.
pub const COUNTERS_LEN: usize = 64;

/// How much of something an SA has used, or may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    pub sequence: u64,
    pub packets: u64,
    pub bytes: u64,
}

impl Amounts {
    pub const UNLIMITED: Amounts = Amounts { sequence: u64::MAX, packets: u64::MAX, bytes: u64::MAX };

    /// The larger of each.
    #[must_use]
    pub fn max(self, other: Amounts) -> Amounts {
        Amounts {
            sequence: self.sequence.max(other.sequence),
            packets: self.packets.max(other.packets),
            bytes: self.bytes.max(other.bytes),
        }
    }
}

impl Counters {
    /// Counters that begin at `used` and belong to no SA yet.
    pub fn of(used: Amounts) -> Counters {
        Counters {
            sequence: used.sequence.into(),
            packets: used.packets.into(),
            bytes: used.bytes.into(),
            ..Counters::default()
        }
    }

    /// The counters as a file has them.
    pub fn file_bytes(&self) -> [u8; COUNTERS_LEN] {
        let all = self.identity.iter().chain([&self.sequence, &self.packets, &self.bytes, &self.in_use]);
        let mut bytes = [0; COUNTERS_LEN];
        for (into, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(all) {
            *into = word.load(Relaxed).to_ne_bytes();
        }
        bytes
    }

    /// Makes them those of an SA that has used so much.
    pub fn begin(&self, identity: &Identity, used: Amounts) {
        for (word, bytes) in self.identity.iter().zip(identity.as_chunks::<8>().0) {
            word.store(u64::from_le_bytes(*bytes), Relaxed);
        }
        self.sequence.store(used.sequence, Relaxed);
        self.packets.store(used.packets, Relaxed);
        self.bytes.store(used.bytes, Relaxed);
        // After the others: a process that dies here has not used it.
        self.in_use.store(1, Release);
    }

    /// The first of `n` sequence numbers that are now the caller's, and how many of them there are: none beyond `limit`.
    #[inline]
    pub fn take_sequence(&self, limit: u64, n: u64) -> (u64, u64) {
        if self.sequence.load(Relaxed) >= limit {
            return (0, 0);
        }
        let last = self.sequence.fetch_add(n, Relaxed);
        (last.wrapping_add(1), limit.saturating_sub(last).min(n))
    }

    pub fn amounts(&self) -> Amounts {
        Amounts {
            sequence: self.sequence.load(Relaxed),
            packets: self.packets.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
        }
    }

    /// What a process that is no more left in a file; `None` where it was no SA's.
    pub fn read(bytes: &[u8; COUNTERS_LEN]) -> Option<(Identity, Amounts)> {
        let word = |n: usize| {
            let at: [u8; 8] = std::array::from_fn(|i| bytes[n * 8 + i]);
            u64::from_ne_bytes(at)
        };
        let mut identity = Identity::default();
        for (n, chunk) in identity.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *chunk = word(n).to_le_bytes();
        }
        let used = Amounts { sequence: word(4), packets: word(5), bytes: word(6) };
        (word(7) == 1).then_some((identity, used))
    }
}

/// Counters of its own, or a file's.
#[derive(Debug)]
pub enum Cell {
    Own(Box<Counters>),
    Mapped(&'static Counters),
}

impl Default for Cell {
    fn default() -> Cell {
        Cell::Own(Box::default())
    }
}

impl Deref for Cell {
    type Target = Counters;

    #[inline(always)]
    fn deref(&self) -> &Counters {
        match self {
            Cell::Own(own) => own,
            Cell::Mapped(mapped) => mapped,
        }
    }
}

/// How far an SA may go until more is reserved for it on disk.
#[derive(Debug)]
pub struct Lease {
    limit: Atomics,
    /// Where more is asked for.
    ask: Atomics,
    asked: AtomicBool,
    /// The highest authentic number that was refused because it lay beyond the limit.
    wanted: AtomicU64,
}

#[derive(Debug)]
struct Atomics {
    sequence: AtomicU64,
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl Atomics {
    fn new(of: Amounts) -> Atomics {
        Atomics {
            sequence: AtomicU64::new(of.sequence),
            packets: AtomicU64::new(of.packets),
            bytes: AtomicU64::new(of.bytes),
        }
    }

    /// Whoever reads one of them sees what was done before: what it allows is on disk.
    fn set(&self, to: Amounts) {
        self.sequence.store(to.sequence, Release);
        self.packets.store(to.packets, Release);
        self.bytes.store(to.bytes, Release);
    }
}

impl Default for Lease {
    /// A lease without end, for SAs whose counters are not kept.
    fn default() -> Lease {
        Lease::new(Amounts::UNLIMITED)
    }
}

impl Lease {
    pub fn new(limit: Amounts) -> Lease {
        Lease {
            limit: Atomics::new(limit),
            ask: Atomics::new(Amounts::UNLIMITED),
            asked: AtomicBool::new(false),
            wanted: AtomicU64::new(0),
        }
    }

    #[inline]
    pub fn sequence(&self) -> u64 {
        self.limit.sequence.load(Acquire)
    }

    #[inline]
    pub fn packets(&self) -> u64 {
        self.limit.packets.load(Acquire)
    }

    #[inline]
    pub fn bytes(&self) -> u64 {
        self.limit.bytes.load(Acquire)
    }

    /// The number was authentic and beyond the limit.
    #[cold]
    pub fn want(&self, sequence: u64) {
        self.wanted.fetch_max(sequence, Relaxed);
    }

    pub fn wanted(&self) -> u64 {
        self.wanted.load(Relaxed)
    }

    /// Whether it is time to ask for more, and nobody has.
    #[inline]
    pub fn is_due(&self, used: &Counters) -> bool {
        let due = used.sequence.load(Relaxed) >= self.ask.sequence.load(Relaxed)
            || used.packets.load(Relaxed) >= self.ask.packets.load(Relaxed)
            || used.bytes.load(Relaxed) >= self.ask.bytes.load(Relaxed)
            || self.wanted.load(Relaxed) > self.limit.sequence.load(Relaxed);
        due && !self.asked.swap(true, Relaxed)
    }

    /// Extends the lease to `limit`, which is on disk now.
    pub fn grant(&self, limit: Amounts, ask: Amounts) {
        self.limit.set(limit);
        self.ask.set(ask);
        self.asked.store(false, Relaxed);
    }

    /// Less may be used from now on. Who reads the limit of sequence numbers without the lock of the replay
    /// window must not be given less.
    pub fn lower_sequence(&self, limit: u64) {
        self.limit.sequence.fetch_min(limit, Relaxed);
        self.ask.sequence.fetch_min(limit, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_one_cache_line_and_read_back_from_its_bytes() {
        assert_eq!((size_of::<Counters>(), align_of::<Counters>()), (COUNTERS_LEN, 64));
        let counters = Counters::default();
        let used = Amounts { sequence: 7, packets: 5, bytes: 1 << 40 };
        assert_eq!(Counters::read(&counters.file_bytes()), None);
        let identity: Identity = std::array::from_fn(|i| i as u8);
        counters.begin(&identity, used);
        assert_eq!(Counters::read(&counters.file_bytes()), Some((identity, used)));
    }

    #[test]
    fn more_is_asked_for_once_a_grant() {
        let (lease, used) = (Lease::new(Amounts::default()), Counters::default());
        assert!(!lease.is_due(&used), "before the first grant there is nothing to ask");
        let half = Amounts { sequence: 50, ..Amounts::UNLIMITED };
        lease.grant(Amounts { sequence: 100, ..Amounts::UNLIMITED }, half);
        used.sequence.store(49, Relaxed);
        assert!(!lease.is_due(&used));
        used.sequence.store(50, Relaxed);
        assert!(lease.is_due(&used) && !lease.is_due(&used));
        lease.grant(Amounts { sequence: 150, ..Amounts::UNLIMITED }, Amounts { sequence: 100, ..half });
        assert!(!lease.is_due(&used));
        lease.want(151);
        assert!(lease.is_due(&used), "an authentic number beyond the limit");
    }
}
