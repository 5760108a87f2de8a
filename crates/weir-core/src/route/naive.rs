//! The reference: every prefix in a sorted map, a lookup that tries every length.
//!
//! Slow and obviously right; the fast tables are tested against it.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::{NO_ROUTE, Prefix4, Prefix6};

/// Longest-prefix match by trial, for either family.
#[derive(Clone, Debug, Default)]
pub struct Naive {
    v4: BTreeMap<Prefix4, u32>,
    v6: BTreeMap<Prefix6, u32>,
}

impl Naive {
    pub fn insert4(&mut self, prefix: Prefix4, value: u32) -> Option<u32> {
        self.v4.insert(prefix, value)
    }

    pub fn remove4(&mut self, prefix: Prefix4) -> Option<u32> {
        self.v4.remove(&prefix)
    }

    pub fn lookup4(&self, addr: Ipv4Addr) -> u32 {
        let hit = (0..=32).rev().find_map(|len| self.v4.get(&Prefix4::new(addr, len)));
        hit.copied().unwrap_or(NO_ROUTE)
    }

    pub fn insert6(&mut self, prefix: Prefix6, value: u32) -> Option<u32> {
        self.v6.insert(prefix, value)
    }

    pub fn remove6(&mut self, prefix: Prefix6) -> Option<u32> {
        self.v6.remove(&prefix)
    }

    pub fn lookup6(&self, addr: Ipv6Addr) -> u32 {
        let hit = (0..=128).rev().find_map(|len| self.v6.get(&Prefix6::new(addr, len)));
        hit.copied().unwrap_or(NO_ROUTE)
    }
}
