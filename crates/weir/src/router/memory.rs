//! Memory: how much this machine has to give, whether flow caches fit into it, and how many routes.
//!
//! Refuses, before anything is made: caches that would take more than is available. The kernel would promise the
//! memory and end some process when packets come to use it.

use std::fmt;
use std::fs;
use std::path::Path;

use weir_core::ipsec::flow_cache::FlowCache;
use weir_core::ipsec::spd::{LookupSpec, Way};
use weir_core::state::amount;

use crate::config::Config;
use crate::config::source::Excerpt;
use crate::router::control_group;

/// What a prefix of the kernel's takes here at most: 1.2 million took 414 MiB, 362 B each (docs/control.md).
const ROUTE_BYTES: u64 = 512;
/// What ports, workers and everything else take.
const OTHERS: u64 = 128 << 20;
/// Prefixes there is room for in any case.
const ROUTES_LEAST: u64 = 10_000;

/// How many prefixes of the kernel's there is room for: half of what is available, the other half is everybody else's.
pub fn routes() -> usize {
    let available = [available(), of_group()].into_iter().flatten().min();
    available.map_or(usize::MAX, routes_in)
}

fn routes_in(available: u64) -> usize {
    let routes = available.saturating_sub(OTHERS) / 2 / ROUTE_BYTES;
    usize::try_from(routes.max(ROUTES_LEAST)).unwrap_or(usize::MAX)
}

/// What the groups this process is in (`MemoryMax=` of systemd) have left.
fn of_group() -> Option<u64> {
    let path = control_group::own()?;
    let root = Path::new(control_group::ROOT);
    let groups = Path::new(&path).ancestors().map(|group| root.join(group));
    groups.filter_map(|group| left_in(&group)).min()
}

fn left_in(group: &Path) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    // Without a limit it is a word.
    Some(number("memory.max")?.saturating_sub(number("memory.current")?))
}

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
    fn half_of_what_is_left_is_for_routes() {
        assert_eq!(routes_in(0), 10_000);
        assert_eq!(routes_in((128 << 20) + (1 << 30)), 1 << 20, "a full table needs 1.1 GiB");
    }

    #[test]
    fn a_group_with_a_limit_says_what_is_left() {
        let group = std::env::temp_dir().join(format!("weir-memory-{}", std::process::id()));
        fs::create_dir_all(&group).expect("a folder");
        fs::write(group.join("memory.max"), "max\n").expect("a file");
        fs::write(group.join("memory.current"), "4096\n").expect("a file");
        assert_eq!(left_in(&group), None);
        fs::write(group.join("memory.max"), "1048576\n").expect("a file");
        assert_eq!(left_in(&group), Some((1 << 20) - 4096));
        fs::remove_dir_all(&group).expect("ours");
    }

    #[test]
    fn this_machine_says_what_it_has() {
        assert!(available().is_some_and(|bytes| bytes > 1 << 20));
    }
}
