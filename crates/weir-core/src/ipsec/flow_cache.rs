//! Flow caches: what an SPD answered for a flow before, one table a direction and family.
//!
//! Promises: an answer is only given for the very question it was learnt from: the same direction and family
//! (a table of their own), SPD, epoch of its rules, addresses, protocol, and ports, ICMP type or the lack of
//! them. All memory is taken at the start. Any number of workers ask and teach at once; none waits. Refuses
//! to remember what another worker is about to write to the same bucket, and rules without an epoch.
//!
//! ```text
//!            63        32 31         0
//! IPv4  32 B │ sequence  │ answer    │   odd while a worker writes; answer: policy, or none
//!            │ epoch                 │
//!            │ source    │ dest.     │
//!            │ ports     │ SPD │p│k  │   p: protocol, k: none, opaque, ports, ICMP; 0 in an empty bucket
//! IPv6  64 B   the same, with two words for each address and one to spare
//! ```
//!
//! Direct-mapped: a flow has one bucket, and takes it from whoever had it. Nothing ages: an epoch makes all that
//! was learnt before it stale at once. A stale answer counts again once [`RuleSet::holds`](super::spd::RuleSet::holds)
//! says so, and is then of the epoch of now; other buckets are taken over as flows come by.

mod hash;
mod key;
mod table;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::spd::{LookupSpec, Way};
use hash::Secret;
pub(crate) use key::{Key, Key4, Key6, Words};
pub(crate) use table::{Bucket, Probe, Table, Table4, Table6};
use table::{Bucket4, Bucket6};

const _: () = assert!(size_of::<Bucket4>() == 32 && size_of::<Bucket6>() == 64);

/// Buckets of a cache where nothing is said: about a million flows at a quarter full.
pub const BUCKETS: u32 = 4 << 20;
/// More would take 128 GiB for IPv6.
pub const BUCKETS_MAX: u32 = 1 << 31;

/// The epoch of rules that nothing is remembered of.
pub const NO_EPOCH: u64 = 0;

/// The caches of a gateway, and the epochs of everything they were told.
pub struct FlowCaches {
    caches: [Option<FlowCache>; 4],
    /// The last one given.
    epochs: AtomicU64,
    secret: u64,
}

/// One cache, shared by all workers.
#[derive(Debug)]
pub struct FlowCache(Family);

enum Family {
    V4(Table4),
    V6(Table6),
}

impl Default for FlowCaches {
    /// No cache in any direction or family.
    fn default() -> FlowCaches {
        FlowCaches::new(&LookupSpec::default(), 0)
    }
}

impl FlowCaches {
    /// Takes all memory they will ever need. `secret` keys their hash: nobody else may know it.
    pub fn new(spec: &LookupSpec, secret: u64) -> FlowCaches {
        let cache = |way: Way| spec.buckets(way).map(|buckets| FlowCache::new(way, buckets, secret));
        FlowCaches { caches: Way::ALL.map(cache), epochs: AtomicU64::new(NO_EPOCH), secret }
    }

    /// Counts epochs on as if `last` had been given already.
    #[must_use]
    pub fn after_epoch(self, last: u64) -> FlowCaches {
        FlowCaches { epochs: AtomicU64::new(last), ..self }
    }

    /// Empty caches of the same sizes that begin with the first epoch again. Rules that are asked about with them
    /// need new epochs, all of them: those of before are given a second time.
    #[must_use]
    pub fn renewed(&self) -> FlowCaches {
        let caches = Way::ALL.map(|way| self.get(way).map(FlowCache::buckets));
        let spec = LookupSpec { caches, ..LookupSpec::default() };
        FlowCaches::new(&spec, hash::derive(self.secret, u64::MAX))
    }

    pub fn get(&self, way: Way) -> Option<&FlowCache> {
        self.caches[way as usize].as_ref()
    }

    /// Epochs not given yet.
    pub fn epochs_left(&self) -> u64 {
        u64::MAX - self.epochs.load(Ordering::Relaxed)
    }

    /// A number no rules had before: taking one for an SPD's rules makes all that was cached of them stale.
    /// [`NO_EPOCH`] once there are none left (2^64 − 1 were given): rules that get it are answered rightly, but
    /// never by a cache. Control goes on with [`FlowCaches::renewed`] before it comes to that.
    pub fn next_epoch(&self) -> u64 {
        let next = |last: u64| last.checked_add(1);
        let last = self.epochs.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        last.map_or(NO_EPOCH, |last| last + 1)
    }

    /// Bytes that caches of `spec` take.
    pub fn memory(spec: &LookupSpec) -> u64 {
        Way::ALL.iter().filter_map(|&way| Some(FlowCache::bytes(way, spec.buckets(way)?))).sum()
    }

    #[inline]
    pub(crate) fn table4(&self, way: Way) -> Option<&Table4> {
        match self.get(way)?.0 {
            Family::V4(ref table) => Some(table),
            Family::V6(_) => None,
        }
    }

    #[inline]
    pub(crate) fn table6(&self, way: Way) -> Option<&Table6> {
        match self.get(way)?.0 {
            Family::V4(_) => None,
            Family::V6(ref table) => Some(table),
        }
    }
}

impl FlowCache {
    fn new(way: Way, buckets: u32, secret: u64) -> FlowCache {
        let buckets = rounded(buckets);
        let secret = Secret::new(hash::derive(secret, way as u64));
        FlowCache(match way.is_ipv4() {
            true => Family::V4(Table::new(buckets, secret)),
            false => Family::V6(Table::new(buckets, secret)),
        })
    }

    /// A power of two.
    pub fn buckets(&self) -> u32 {
        let buckets = match &self.0 {
            Family::V4(table) => table.buckets(),
            Family::V6(table) => table.buckets(),
        };
        u32::try_from(buckets).unwrap_or(BUCKETS_MAX)
    }

    /// Buckets that hold a flow, of whatever epoch.
    pub fn occupied(&self) -> u64 {
        match &self.0 {
            Family::V4(table) => table.occupied(),
            Family::V6(table) => table.occupied(),
        }
    }

    /// Bytes its buckets take.
    pub fn memory(&self) -> u64 {
        match &self.0 {
            Family::V4(table) => table.memory(),
            Family::V6(table) => table.memory(),
        }
    }

    /// Bytes a cache of a way takes.
    pub fn bytes(way: Way, buckets: u32) -> u64 {
        u64::from(rounded(buckets)) * if way.is_ipv4() { 32 } else { 64 }
    }
}

impl fmt::Debug for FlowCaches {
    /// Writes everything but the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlowCaches")
            .field("caches", &self.caches)
            .field("epochs", &self.epochs)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Family::V4(table) => write!(f, "{} buckets for IPv4", table.buckets()),
            Family::V6(table) => write!(f, "{} buckets for IPv6", table.buckets()),
        }
    }
}

/// Rounds up to a power of two.
fn rounded(buckets: u32) -> u32 {
    buckets.min(BUCKETS_MAX).next_power_of_two()
}
