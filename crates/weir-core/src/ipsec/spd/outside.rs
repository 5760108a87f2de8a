//! What no rule can match, by addresses alone: worked out once, when rules are published, and asked about whole
//! batches before any rule is.
//!
//! Promises: a packet outside is matched by none of the rules before the first one for everything ([`Outside::rest`]); of
//! packets that are not, nothing is said. A set of rules that changes has none until it is worked out anew. Refuses
//! (`None`) lists of more than [`RULES_MAX`] rules, which take longer than a change of one rule may, and those of which
//! nothing can be outside.
//!
//! ```text
//! rules' sources       ├──┤      ├─────┤  ├┤     ► ranges, the closest made one until they are few
//! rules' destinations        ├┤        ├──┤      ► the same
//! outside: a source in none of the former, or a destination in none of the latter
//! ```

use super::PolicyIndex;
use super::lanes::Laned;
use super::scan::{Ordered, Rule};

/// Ranges of a kind: each costs a comparison a packet.
const RANGES_MAX: usize = 8;
/// Rules looked at: sorting their ranges takes about 10 µs.
const RULES_MAX: usize = 256;

/// Addresses as they are compared: an IPv6 address by its upper half, in which networks differ.
pub(super) trait Coarse: Laned + Ord {
    type Key: Key;
    fn key(self) -> Self::Key;
}

pub(super) trait Key: Copy + Ord + std::fmt::Debug {
    const LAST: Self;
    fn minus(self, other: Self) -> Self;
    fn zero() -> Self;
}

impl Coarse for u32 {
    type Key = u32;

    #[inline(always)]
    fn key(self) -> u32 {
        self
    }
}

impl Coarse for u128 {
    type Key = u64;

    #[inline(always)]
    fn key(self) -> u64 {
        (self >> 64) as u64
    }
}

impl Key for u32 {
    const LAST: u32 = u32::MAX;

    #[inline(always)]
    fn minus(self, other: u32) -> u32 {
        self.wrapping_sub(other)
    }

    fn zero() -> u32 {
        0
    }
}

impl Key for u64 {
    const LAST: u64 = u64::MAX;

    #[inline(always)]
    fn minus(self, other: u64) -> u64 {
        self.wrapping_sub(other)
    }

    fn zero() -> u64 {
        0
    }
}

/// What is outside of a family's rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outside<K> {
    sources: Ranges<K>,
    destinations: Ranges<K>,
    /// The policy of the first rule for everything: what packets outside get.
    pub rest: Option<PolicyIndex>,
}

/// Ranges as first address and length, of which the first `count` are.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ranges<K> {
    of: [(K, K); RANGES_MAX],
    count: usize,
}

impl<K: Key> Outside<K> {
    pub fn new<A: Coarse<Key = K>>(rules: &Ordered<A>, is_everything: fn(&Rule<A>) -> bool) -> Option<Self> {
        let (mut sources, mut destinations, mut rest) = (Vec::new(), Vec::new(), None);
        for (number, rule) in rules.iter().enumerate() {
            if is_everything(rule) {
                rest = Some(rule.policy);
                break;
            }
            if number == RULES_MAX {
                return None;
            }
            if rule.source.0 <= rule.source.1 && rule.destination.0 <= rule.destination.1 {
                sources.push((rule.source.0.key(), rule.source.1.key()));
                destinations.push((rule.destination.0.key(), rule.destination.1.key()));
            }
        }
        // One rule for everything in front is asked about a batch without it.
        if rest.is_some() && sources.is_empty() {
            return None;
        }
        let (sources, destinations) = (Ranges::new(sources), Ranges::new(destinations));
        let says_nothing = sources.is_all() && destinations.is_all();
        (!says_nothing).then_some(Outside { sources, destinations, rest })
    }

    /// Whether packets to each of `destinations` are outside, wherever they come from.
    #[inline]
    pub fn has_all_to<A: Coarse<Key = K>>(&self, destinations: &[A]) -> bool {
        self.destinations.have_none(destinations)
    }

    #[inline(always)]
    pub fn has(&self, source: K, destination: K) -> bool {
        !(self.destinations.have(destination) && self.sources.have(source))
    }
}

impl<K: Key> Ranges<K> {
    /// The fewest ranges that cover all of `ranges`, or the most there may be, which cover more.
    fn new(mut ranges: Vec<(K, K)>) -> Ranges<K> {
        ranges.sort_unstable();
        let mut joined: Vec<(K, K)> = Vec::new();
        for (first, last) in ranges {
            match joined.last_mut() {
                Some(before) if first <= before.1 => before.1 = before.1.max(last),
                _ => joined.push((first, last)),
            }
        }
        while joined.len() > RANGES_MAX {
            let gap = |n: &usize| joined[n + 1].0.minus(joined[*n].1);
            let Some(closest) = (0..joined.len() - 1).min_by_key(gap) else { break };
            let (_, last) = joined.remove(closest + 1);
            joined[closest].1 = last;
        }
        let mut of = [(K::zero(), K::zero()); RANGES_MAX];
        for (range, (first, last)) in of.iter_mut().zip(&joined) {
            *range = (*first, last.minus(*first));
        }
        Ranges { of, count: joined.len() }
    }

    fn is_all(&self) -> bool {
        self.count > 0 && self.of[0] == (K::zero(), K::LAST)
    }

    #[inline(always)]
    fn used(&self) -> &[(K, K)] {
        &self.of[..self.count.min(RANGES_MAX)]
    }

    #[inline(always)]
    fn have(&self, key: K) -> bool {
        self.used().iter().any(|&(first, len)| key.minus(first) <= len)
    }

    /// A range at a time, so that many addresses are compared at once.
    #[inline(always)]
    fn have_none<A: Coarse<Key = K>>(&self, addresses: &[A]) -> bool {
        self.used().iter().all(|&(first, len)| {
            let mut inside = 0u32;
            for address in addresses {
                inside |= u32::from(address.key().minus(first) <= len);
            }
            inside == 0
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipsec::spd::{AddressRange, RuleSet, Selector};
    use crate::random::SplitMix64;

    fn of(ranges: &[(u32, u32)]) -> Ranges<u32> {
        Ranges::new(ranges.to_vec())
    }

    #[test]
    fn ranges_cover_what_they_were_made_of_and_join_across_the_smallest_gaps() {
        let ranges = of(&[(40, 50), (10, 20), (15, 30), (u32::MAX, u32::MAX)]);
        assert_eq!(ranges.used(), [(10, 20), (40, 10), (u32::MAX, 0)]);
        let many: Vec<_> = (0..12).map(|n| (n * n * 100, n * n * 100 + 5)).collect();
        let ranges = of(&many);
        assert_eq!(ranges.used().len(), RANGES_MAX);
        assert_eq!(ranges.used()[0], (0, 1605), "the first five are the closest");
        assert!(many.iter().all(|&(first, last)| ranges.have(first) && ranges.have(last)));
        assert!(ranges.have(1000) && !ranges.have(2000) && !ranges.have(12_106));
    }

    #[test]
    fn one_address_inside_is_found_wherever_it_stands() {
        let ranges = of(&[(1000, 1999), (5000, 5000)]);
        for (len, value) in (1..=70).flat_map(|len| [(len, 1000), (len, 1999), (len, 5000)]) {
            for at in 0..len {
                let mut addresses = vec![2000u32; len];
                assert!(ranges.have_none(&addresses));
                addresses[at] = value;
                assert!(!ranges.have_none(&addresses), "{value} at {at} of {len}");
            }
        }
        assert!(ranges.have_none::<u32>(&[]));
    }

    #[test]
    fn nothing_is_outside_where_a_rule_is_for_every_address_and_all_is_where_there_is_no_rule() {
        let any = Selector::within(AddressRange::ANY_V4);
        let tcp = Selector { protocol: Some(6), ..any };
        let set =
            |rules: &[Selector]| RuleSet::new(rules.iter().map(|&rule| (rule, PolicyIndex(7))).collect());
        assert_eq!(set(&[tcp]).outside(&[1, 2], &[]), None);
        assert_eq!(set(&[tcp, any]).outside(&[1, 2], &[]), None);
        assert_eq!(set(&[any]).outside(&[1, 2], &[]), None, "the first rule's affair");
        assert_eq!(set(&[]).outside(&[1, 2], &[3]), Some(None));
    }

    #[test]
    fn a_long_list_is_not_looked_at() {
        let host = |n: u32| {
            let one = AddressRange { first: std::net::Ipv4Addr::from(n).into(), ..AddressRange::ANY_V4 };
            Selector {
                destination: AddressRange { last: one.first, ..one },
                ..Selector::within(AddressRange::ANY_V4)
            }
        };
        let set = |count: u32| RuleSet::new((1..=count).map(|n| (host(n), PolicyIndex(n))).collect());
        assert_eq!(set(RULES_MAX as u32).outside(&[9999], &[]), Some(None));
        assert_eq!(set(RULES_MAX as u32).outside(&[9999, 256], &[]), None);
        assert_eq!(set(RULES_MAX as u32 + 1).outside(&[9999], &[]), None);
    }

    #[test]
    fn a_change_of_rules_takes_what_was_worked_out_away() {
        let any = Selector::within(AddressRange::ANY_V4);
        let mut set = RuleSet::new(Vec::new());
        assert_eq!(set.outside(&[1], &[]), Some(None));
        set.insert(1, &any, PolicyIndex(0));
        assert_eq!(set.outside(&[1], &[]), None);
        assert!(set.remove(1, &any, PolicyIndex(0)));
        assert_eq!(set.outside(&[1], &[]), None, "not worked out anew");
        set.compile();
        assert_eq!(set.outside(&[1], &[]), Some(None));
    }

    #[test]
    fn random_ranges_have_every_address_of_every_one_they_were_made_of() {
        let mut random = SplitMix64::new(3);
        for _ in 0..500 {
            let count = random.below(20) as usize;
            let ranges: Vec<(u32, u32)> = (0..count)
                .map(|_| {
                    let first = random.below(1 << 32) as u32;
                    let bits = random.below(32);
                    (first, first.saturating_add(random.below(1 << bits) as u32))
                })
                .collect();
            let made = of(&ranges);
            for &(first, last) in &ranges {
                for key in [first, last, first + (last - first) / 2] {
                    assert!(made.have(key) && !made.have_none(&[key]));
                }
            }
            if ranges.len() <= RANGES_MAX {
                let key = random.below(1 << 32) as u32;
                let truly = ranges.iter().any(|&(first, last)| (first..=last).contains(&key));
                assert_eq!(made.have(key), truly);
            }
        }
    }
}
