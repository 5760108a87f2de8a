//! Route tables shaped like the Internet's, made from a number: the same seed gives the same table.
//!
//! What is kept of the real thing, because lookups feel it: how many prefixes of each length there are
//! (global tables as collectors saw them in 2025, rounded), that about half of them lie inside another
//! one, that an operator's more-specifics stand side by side, and that allocations fill a few regions from
//! the start. What is not: who owns what, and next hops, which are drawn evenly.
//!
//! One IPv4 route in two hundred is longer than /24, as an operator's own routes are.

use std::collections::HashSet;

use super::{Prefix4, Prefix6};
use crate::random::SplitMix64;

/// Routes of each prefix length, of 10,000.
const LENGTHS4: [(u8, u64); 24] = [
    (9, 1),
    (10, 1),
    (11, 1),
    (12, 3),
    (13, 6),
    (14, 12),
    (15, 21),
    (16, 138),
    (17, 85),
    (18, 140),
    (19, 250),
    (20, 450),
    (21, 535),
    (22, 1135),
    (23, 1040),
    (24, 6132),
    (25, 4),
    (26, 5),
    (27, 5),
    (28, 6),
    (29, 10),
    (30, 8),
    (31, 2),
    (32, 10),
];

const LENGTHS6: [(u8, u64); 26] = [
    (19, 1),
    (20, 6),
    (22, 3),
    (24, 12),
    (26, 8),
    (27, 6),
    (28, 45),
    (29, 440),
    (30, 70),
    (31, 40),
    (32, 1190),
    (33, 150),
    (34, 140),
    (35, 70),
    (36, 430),
    (38, 150),
    (40, 860),
    (42, 250),
    (44, 960),
    (45, 180),
    (46, 300),
    (47, 330),
    (48, 4269),
    (56, 30),
    (64, 40),
    (128, 20),
];

/// Where IPv6 allocations come from (IANA, "IPv6 Global Unicast Address Assignments"): the region's first
/// address, its length, and its share of 100.
const REGIONS6: [(u128, u8, u64); 6] = [
    (0x2001 << 112, 16, 8),
    (0x2400 << 112, 12, 27),
    (0x2600 << 112, 12, 22),
    (0x2800 << 112, 12, 10),
    (0x2a00 << 112, 12, 31),
    (0x2c00 << 112, 12, 2),
];

/// The region's step: allocations leave room to grow, a /29 in most of the world.
const STEP6: u8 = 29;

/// One region being filled from its start. Addresses are aligned to the top of 128 bits.
struct Region {
    next: u128,
    end: u128,
    share: u64,
}

/// What both families have in common; IPv4 addresses stand in the top 32 bits.
struct Maker {
    scatter: SplitMix64,
    regions: Vec<Region>,
    shares: u64,
    /// New prefixes start at multiples of this length or their own, whichever is shorter.
    step: u8,
    seen: HashSet<(u128, u8)>,
    made: Vec<(u128, u8)>,
}

impl Maker {
    fn new(seed: u64, regions: Vec<Region>, step: u8) -> Self {
        let shares = regions.iter().map(|region| region.share).sum();
        Maker {
            scatter: SplitMix64::new(seed),
            regions,
            shares,
            step,
            seen: HashSet::new(),
            made: Vec::new(),
        }
    }

    fn add(&mut self, bits: u128, len: u8) -> bool {
        let new = self.seen.insert((bits, len));
        if new {
            self.made.push((bits, len));
        }
        new
    }

    /// The next free block of a region drawn by share; `None` when that region is full.
    fn fresh(&mut self, len: u8) -> Option<u128> {
        let mut draw = self.scatter.below(self.shares);
        let region = self.regions.iter_mut().find(|region| {
            let here = draw < region.share;
            draw = draw.saturating_sub(region.share);
            here
        })?;
        let size = 1u128 << (128 - len.min(self.step));
        let first = region.next.next_multiple_of(size);
        if first >= region.end || region.end - first < size {
            return None;
        }
        region.next = first + size;
        Some(first)
    }

    /// Adds up to `limit` neighbours of length `len` inside a shorter prefix made before, and says how many.
    fn nested(&mut self, len: u8, shorter: usize, limit: usize) -> usize {
        let (parent, parent_len) = self.made[self.scatter.below(shorter as u64) as usize];
        // Operators number from the start: half of the runs begin in the first 16 places.
        let places = 1u128 << (len - parent_len).min(32);
        let places = if self.scatter.below(2) == 0 { places.min(16) } else { places };
        let start = u128::from(self.scatter.below(places as u64));
        let run = (1 + self.scatter.below(16) as usize).min(limit);
        let size = 1u128 << (128 - len);
        (0..run as u128)
            .map(|n| parent + (start + n) * size)
            .take_while(|&bits| len == 128 || (bits ^ parent) >> (128 - parent_len) == 0)
            .filter(|&bits| self.add(bits, len))
            .count()
    }

    /// Makes `count` prefixes of a length; returns how many it could.
    fn fill(&mut self, len: u8, count: usize) -> usize {
        let shorter = self.made.len();
        let (mut made, mut tries) = (0, 0);
        while made < count && tries < 20 * count {
            tries += 1;
            let nest = shorter > 0 && (len > 48 || self.scatter.below(100) < 30);
            let fresh = if nest { None } else { self.fresh(len) };
            made += match fresh {
                Some(bits) => usize::from(self.add(bits, len)),
                None if shorter > 0 => self.nested(len, shorter, count - made),
                None => 0,
            };
        }
        made
    }

    fn run(mut self, count: usize, lengths: &[(u8, u64)]) -> Vec<(u128, u8)> {
        let total: u64 = lengths.iter().map(|&(_, share)| share).sum();
        let mut wanted: Vec<_> =
            lengths.iter().map(|&(len, share)| (len, count * share as usize / total as usize)).collect();
        let rounding = count - wanted.iter().map(|&(_, n)| n).sum::<usize>();
        if let Some(most) = wanted
            .iter_mut()
            .max_by_key(|(len, _)| lengths.iter().find(|(l, _)| l == len).map(|&(_, share)| share))
        {
            most.1 += rounding;
        }
        for (len, n) in wanted {
            self.fill(len, n);
        }
        self.made
    }
}

/// `count` IPv4 routes with values 1…`values`, sorted. Holds up to about a million and a half.
pub fn routes4(count: usize, values: u32, seed: u64) -> Vec<(Prefix4, u32)> {
    // Unicast /8s without this-network, private and loopback.
    let regions = (1..=223u128)
        .filter(|octet| ![10, 127].contains(octet))
        .map(|octet| Region { next: octet << 120, end: (octet + 1) << 120, share: 1 })
        .collect();
    let made = Maker::new(seed, regions, 32).run(count, &LENGTHS4);
    let mut scatter = SplitMix64::new(!seed);
    let mut routes: Vec<_> = made
        .into_iter()
        .map(|(bits, len)| (Prefix4::from_bits((bits >> 96) as u32, len), value(&mut scatter, values)))
        .collect();
    routes.sort_unstable();
    routes
}

/// `count` IPv6 routes with values 1…`values`, sorted.
pub fn routes6(count: usize, values: u32, seed: u64) -> Vec<(Prefix6, u32)> {
    let regions = REGIONS6
        .iter()
        .map(|&(first, len, share)| Region { next: first, end: first + (1 << (128 - len)), share })
        .collect();
    let made = Maker::new(seed, regions, STEP6).run(count, &LENGTHS6);
    let mut scatter = SplitMix64::new(!seed);
    let mut routes: Vec<_> = made
        .into_iter()
        .map(|(bits, len)| (Prefix6::from_bits(bits, len), value(&mut scatter, values)))
        .collect();
    routes.sort_unstable();
    routes
}

fn value(scatter: &mut SplitMix64, values: u32) -> u32 {
    1 + scatter.below(u64::from(values)) as u32
}

/// Which covered destinations are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// Every route is as likely, then every address in it: long prefixes weigh as much as short ones.
    /// The even hand of a generator that aims at the table.
    ByRoute,
    /// Every covered address is as likely: short prefixes get nearly all.
    ByAddress,
}

/// `count` IPv4 destinations some route covers; none when there are no routes.
pub fn covered4(routes: &[(Prefix4, u32)], draw: Draw, count: usize, seed: u64) -> Vec<u32> {
    let picks = Picks::new(routes.iter().map(|(prefix, _)| f64::from(prefix.last() - prefix.bits()) + 1.0));
    let mut scatter = SplitMix64::new(seed);
    (0..if routes.is_empty() { 0 } else { count })
        .map(|_| {
            let prefix = routes[picks.pick(draw, &mut scatter)].0;
            prefix.bits() | (scatter.next_u64() as u32 & !Prefix4::mask(prefix.len()))
        })
        .collect()
}

/// `count` IPv6 destinations some route covers; none when there are no routes.
pub fn covered6(routes: &[(Prefix6, u32)], draw: Draw, count: usize, seed: u64) -> Vec<u128> {
    let picks = Picks::new(routes.iter().map(|(prefix, _)| 2f64.powi(128 - i32::from(prefix.len()))));
    let mut scatter = SplitMix64::new(seed);
    (0..if routes.is_empty() { 0 } else { count })
        .map(|_| {
            let prefix = routes[picks.pick(draw, &mut scatter)].0;
            prefix.bits() | (scatter.next_u128() & !Prefix6::mask(prefix.len()))
        })
        .collect()
}

/// Running sums of the routes' sizes. A nested route counts twice; that much unevenness is fine.
struct Picks(Vec<f64>);

impl Picks {
    fn new(sizes: impl Iterator<Item = f64>) -> Self {
        Picks(
            sizes
                .scan(0.0, |sum, size| {
                    *sum += size;
                    Some(*sum)
                })
                .collect(),
        )
    }

    fn pick(&self, draw: Draw, scatter: &mut SplitMix64) -> usize {
        match draw {
            Draw::ByRoute => scatter.below(self.0.len() as u64) as usize,
            Draw::ByAddress => {
                let all = self.0.last().copied().unwrap_or(0.0);
                let at = all * (scatter.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
                self.0.partition_point(|&sum| sum <= at).min(self.0.len() - 1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_the_size_asked_for_and_no_prefix_twice() {
        for count in [0, 1, 2, 1000, 20_000] {
            let mut v4: Vec<_> = routes4(count, 16, 1).into_iter().map(|(prefix, _)| prefix).collect();
            let mut v6: Vec<_> = routes6(count, 16, 1).into_iter().map(|(prefix, _)| prefix).collect();
            v4.dedup();
            v6.dedup();
            assert_eq!((v4.len(), v6.len()), (count, count));
        }
    }

    #[test]
    fn same_seed_gives_the_same_table_and_another_seed_another() {
        assert_eq!(routes6(1000, 16, 7), routes6(1000, 16, 7));
        assert_ne!(routes4(1000, 16, 7), routes4(1000, 16, 8));
    }

    #[test]
    fn most_routes_are_as_long_as_in_the_global_tables() {
        let share =
            |wanted: u8, lens: Vec<u8>| lens.iter().filter(|&&len| len == wanted).count() * 100 / lens.len();
        assert_eq!(share(24, routes4(10_000, 16, 1).iter().map(|(p, _)| p.len()).collect()), 61);
        assert_eq!(share(48, routes6(10_000, 16, 1).iter().map(|(p, _)| p.len()).collect()), 42);
    }

    #[test]
    fn destinations_are_covered() {
        let (v4, v6) = (routes4(1000, 16, 1), routes6(1000, 16, 1));
        for draw in [Draw::ByRoute, Draw::ByAddress] {
            for addr in covered4(&v4, draw, 1000, 3) {
                assert!(v4.iter().any(|(prefix, _)| prefix.contains(addr.into())));
            }
            for addr in covered6(&v6, draw, 1000, 3) {
                assert!(v6.iter().any(|(prefix, _)| prefix.contains(addr.into())));
            }
        }
        assert!(covered4(&[], Draw::ByRoute, 10, 1).is_empty());
    }
}
