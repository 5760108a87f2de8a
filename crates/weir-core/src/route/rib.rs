//! The routing information base: every route of one family, sorted, on the control side.
//!
//! A prefix sorts before everything it covers, so one in-order walk sees parents before children, and
//! the routes inside a prefix are one contiguous range.

use std::collections::BTreeMap;
use std::fmt;

use super::{Prefix4, Prefix6};

/// What a sorted table needs to know of a prefix.
pub trait Key: Copy + Ord + fmt::Debug {
    /// An address of the family.
    type Addr: Copy;

    /// The prefix that covers everything.
    const ALL: Self;

    fn length(self) -> u8;

    /// The host prefix of an address.
    fn host(addr: Self::Addr) -> Self;

    /// The same address cut to `len` bits; longer than the prefix itself changes nothing.
    fn cut(self, len: u8) -> Self;

    /// The prefix that sorts last of those inside.
    fn last_inside(self) -> Self;

    /// Leading bits the two addresses share.
    fn shared(self, other: Self) -> u8;

    fn covers(self, other: Self) -> bool {
        self.length() <= other.length() && self.shared(other) >= self.length()
    }
}

macro_rules! key {
    ($prefix:ty, $addr:ty, $len:literal) => {
        impl Key for $prefix {
            type Addr = $addr;

            const ALL: Self = <$prefix>::ALL;

            fn length(self) -> u8 {
                self.len()
            }

            fn host(addr: $addr) -> Self {
                <$prefix>::new(addr, $len)
            }

            fn cut(self, len: u8) -> Self {
                <$prefix>::from_bits(self.bits(), len.min(self.len()))
            }

            fn last_inside(self) -> Self {
                <$prefix>::from_bits(self.last(), $len)
            }

            fn shared(self, other: Self) -> u8 {
                (self.bits() ^ other.bits()).leading_zeros() as u8
            }
        }
    };
}

key!(Prefix4, std::net::Ipv4Addr, 32);
key!(Prefix6, std::net::Ipv6Addr, 128);

#[derive(Clone, Debug)]
pub struct Rib<P> {
    routes: BTreeMap<P, u32>,
}

impl<P> Default for Rib<P> {
    fn default() -> Self {
        Rib { routes: BTreeMap::new() }
    }
}

impl<P: Key> Rib<P> {
    pub fn insert(&mut self, prefix: P, value: u32) -> Option<u32> {
        self.routes.insert(prefix, value)
    }

    pub fn remove(&mut self, prefix: P) -> Option<u32> {
        self.routes.remove(&prefix)
    }

    pub fn get(&self, prefix: P) -> Option<u32> {
        self.routes.get(&prefix).copied()
    }

    pub fn len(&self) -> usize {
        self.routes.len()
    }

    pub fn clear(&mut self) {
        self.routes.clear();
    }

    /// Every route, a covering one before what it covers.
    pub fn iter(&self) -> impl Iterator<Item = (P, u32)> {
        self.routes.iter().map(|(&p, &v)| (p, v))
    }

    /// The routes inside `area`, itself included.
    pub fn inside(&self, area: P) -> impl Iterator<Item = (P, u32)> {
        self.routes.range(area..=area.last_inside()).map(|(&p, &v)| (p, v))
    }

    /// The longest route that covers `prefix`, itself included.
    ///
    /// Walks back from the place where `prefix` would stand. A predecessor that does not cover it leaves
    /// it at some bit; whatever does cover it and stands further back is no longer than the bits those
    /// two share, so each step skips a whole subtree.
    pub fn cover(&self, prefix: P) -> Option<(P, u32)> {
        let mut bound = prefix;
        loop {
            let (&candidate, &value) = self.routes.range(..=bound).next_back()?;
            if candidate.covers(prefix) {
                return Some((candidate, value));
            }
            bound = prefix.cut(candidate.shared(prefix));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix4 {
        match text.parse().expect(text) {
            super::super::Prefix::V4(p) => p,
            super::super::Prefix::V6(_) => unreachable!("the test writes IPv4"),
        }
    }

    #[test]
    fn longest_cover_is_found_behind_siblings_that_do_not_cover() {
        let mut rib = Rib::default();
        for (text, value) in
            [("10.0.0.0/8", 8), ("10.1.0.0/16", 16), ("10.1.1.0/24", 24), ("10.1.2.0/24", 25)]
        {
            rib.insert(prefix(text), value);
        }
        let cover = |text| rib.cover(prefix(text)).map(|(_, value)| value);
        assert_eq!(cover("10.1.3.0/24"), Some(16));
        assert_eq!(cover("10.2.0.0/16"), Some(8));
        assert_eq!(cover("10.1.2.0/24"), Some(25));
        assert_eq!(cover("10.0.0.0/7"), None);
        assert_eq!(cover("9.0.0.0/8"), None);
    }

    #[test]
    fn inside_is_the_prefix_and_all_it_covers_in_order() {
        let mut rib = Rib::default();
        for text in ["10.0.0.0/7", "10.0.0.0/8", "10.0.0.0/32", "10.255.255.255/32", "11.0.0.0/8"] {
            rib.insert(prefix(text), 1);
        }
        let inside: Vec<_> = rib.inside(prefix("10.0.0.0/8")).map(|(p, _)| p.to_string()).collect();
        assert_eq!(inside, ["10.0.0.0/8", "10.0.0.0/32", "10.255.255.255/32"]);
    }
}
