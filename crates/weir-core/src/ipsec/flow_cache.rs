//! Flow caches: what an SPD answered for a flow before, one table a direction and family.

use std::sync::atomic::{AtomicU64, Ordering};

use super::spd::{LookupSpec, Way};

/// Buckets of a cache where nothing is said: about a million flows at a quarter full.
pub const BUCKETS: u32 = 4 << 20;
/// More would take 128 GiB for IPv6.
pub const BUCKETS_MAX: u32 = 1 << 31;

/// The caches of a gateway, and the epochs of everything they were told.
#[derive(Debug)]
pub struct FlowCaches {
    caches: [Option<FlowCache>; 4],
    epochs: AtomicU64,
}

/// One cache, shared by all workers.
#[derive(Debug)]
pub struct FlowCache {
    buckets: u32,
    occupied: AtomicU64,
}

impl Default for FlowCaches {
    /// Without any cache.
    fn default() -> FlowCaches {
        FlowCaches::new(&LookupSpec::default(), 0)
    }
}

impl FlowCaches {
    /// Takes all memory they will ever need. `secret` keys their hash: nobody else may know it.
    pub fn new(spec: &LookupSpec, _secret: u64) -> FlowCaches {
        let cache = |way: Way| {
            spec.buckets(way).map(|buckets| FlowCache {
                buckets: buckets.next_power_of_two(),
                occupied: AtomicU64::new(0),
            })
        };
        FlowCaches { caches: Way::ALL.map(cache), epochs: AtomicU64::new(0) }
    }

    pub fn get(&self, way: Way) -> Option<&FlowCache> {
        self.caches[way as usize].as_ref()
    }

    /// A number no rules had before: taking one for an SPD's rules makes all that was cached of them stale.
    pub fn next_epoch(&self) -> u64 {
        self.epochs.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Bytes that caches of `spec` take.
    pub fn memory(spec: &LookupSpec) -> u64 {
        Way::ALL.iter().filter_map(|&way| Some(FlowCache::bytes(way, spec.buckets(way)?))).sum()
    }
}

impl FlowCache {
    /// A power of two.
    pub fn buckets(&self) -> u32 {
        self.buckets
    }

    /// Buckets that hold a flow, of whatever epoch.
    pub fn occupied(&self) -> u64 {
        self.occupied.load(Ordering::Relaxed)
    }

    /// Bytes a cache of a way takes.
    pub fn bytes(way: Way, buckets: u32) -> u64 {
        u64::from(buckets).next_power_of_two() * if way.is_ipv4() { 32 } else { 64 }
    }
}
