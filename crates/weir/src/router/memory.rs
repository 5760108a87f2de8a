//! Memory: how much this machine has to give, whether flow caches fit into it.
//!
//! Refuses, before anything is made: caches that would take more than is available. The kernel would promise the
//! memory and end some process when packets come to use it.

use std::fmt;
use std::fs;

use weir_core::ipsec::flow_cache::FlowCache;
use weir_core::ipsec::spd::{LookupSpec, Way};
use weir_core::state::amount;

use crate::config::Config;
use crate::config::source::Excerpt;

/// What a file's caches are held against: bytes that can be had without swapping, as the kernel estimates them.
pub fn available() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Flow caches that do not fit into this machine, at the option that asks for the largest of them.
#[derive(Debug)]
pub struct CachesTooLarge {
    at: Excerpt,
    wanted: u64,
    available: u64,
}

impl fmt::Display for CachesTooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.at.render(format_args!(
            "ipsec: new spd flow caches would take {}, and this machine has {} available; write fewer buckets, or switch a cache off",
            amount(self.wanted),
            amount(self.available)
        )))
    }
}

impl std::error::Error for CachesTooLarge {}

/// Whether the caches `config` asks for can be made here beside those that run, or why not.
pub fn fits(config: &Config, running: &LookupSpec) -> Result<(), CachesTooLarge> {
    available().and_then(|available| too_much(config, running, available)).map_or(Ok(()), Err)
}

/// Why the caches `config` asks for cannot be made beside those that run, in `available` bytes: pointing at the
/// largest of them.
pub fn too_much(config: &Config, running: &LookupSpec, available: u64) -> Option<CachesTooLarge> {
    let spec = config.lookup();
    let new = Way::ALL.into_iter().filter_map(|way| {
        let buckets = spec.buckets(way).filter(|_| spec.buckets(way) != running.buckets(way))?;
        Some((FlowCache::bytes(way, buckets), way))
    });
    let new: Vec<(u64, Way)> = new.collect();
    let wanted = new.iter().fold(0, |sum: u64, cache| sum.saturating_add(cache.0));
    let &(_, largest) = new.iter().max_by_key(|cache| cache.0).filter(|_| wanted > available)?;
    Some(CachesTooLarge { at: config.excerpt(config.ipsec.lookup.span(largest)), wanted, available })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_says_what_it_has() {
        assert!(available().is_some_and(|bytes| bytes > 1 << 20));
    }
}
