//! The addresses of a chunk's rules, laid out so that vectors compare them: many rules with one packet at once.
//!
//! ```text
//! source_first       │ s₀ │ s₁ │ s₂ │ …       one lane a rule, in the rules' order
//! source_len         │ …                      a rule is passed over where source − first > length, or the same
//! destination_first  │ …                      of the destination
//! destination_len    │ …
//! ```
//!
//! Promises: no rule that matches is passed over; whether one that is not passed over matches, its own comparison says. So
//! rules are looked at in their order, and the first that matches is found. IPv6 addresses are compared by their upper
//! halves, in which networks differ.
//!
//! AVX2 compares signed numbers only. All are kept with the upper bit turned: order among signed numbers is then
//! that of unsigned ones, and a turned `first` turns a difference too.

use std::fmt;
use std::ops::BitOr;

use super::scan::Rule;

/// Lanes compared before anything is decided: four vectors of IPv4, eight of IPv6.
pub(super) const GROUP: usize = 32;
/// Lanes compared to find which of a group it is.
const PART: usize = 8;

/// Rules that are looked at one after the other sooner than in lanes.
const FEW: usize = 16;

/// An address that has lanes.
pub(super) trait Laned: Copy + PartialOrd {
    type Lane: Lane;

    /// Its number in a lane, the upper bit as it is.
    fn lane(self) -> Self::Lane;
}

/// A number as wide as a lane.
pub(super) trait Lane: Copy + PartialOrd + BitOr<Output = Self> + fmt::Debug {
    const TURN: Self;
    const ZERO: Self;

    fn minus(self, other: Self) -> Self;
    fn from_bool(hit: bool) -> Self;
}

impl Laned for u32 {
    type Lane = i32;

    #[inline(always)]
    fn lane(self) -> i32 {
        self.cast_signed()
    }
}

impl Laned for u128 {
    type Lane = i64;

    #[inline(always)]
    fn lane(self) -> i64 {
        ((self >> 64) as u64).cast_signed()
    }
}

impl Lane for i32 {
    const TURN: i32 = i32::MIN;
    const ZERO: i32 = 0;

    #[inline(always)]
    fn minus(self, other: i32) -> i32 {
        self.wrapping_sub(other)
    }

    #[inline(always)]
    fn from_bool(hit: bool) -> i32 {
        hit.into()
    }
}

impl Lane for i64 {
    const TURN: i64 = i64::MIN;
    const ZERO: i64 = 0;

    #[inline(always)]
    fn minus(self, other: i64) -> i64 {
        self.wrapping_sub(other)
    }

    #[inline(always)]
    fn from_bool(hit: bool) -> i64 {
        hit.into()
    }
}

/// The lanes of `N` rules; those behind the last rule's are of address 0 alone.
#[derive(Clone, Debug)]
pub(super) struct Lanes<L, const N: usize> {
    source_first: [L; N],
    source_len: [L; N],
    destination_first: [L; N],
    destination_len: [L; N],
}

impl<L: Lane, const N: usize> Lanes<L, N> {
    pub fn new() -> Self {
        let all = [L::TURN; N];
        Lanes { source_first: all, source_len: all, destination_first: all, destination_len: all }
    }

    /// Writes the lanes of `rules`, the first `N` at most, from number `from` on.
    pub fn set<A: Laned<Lane = L>>(&mut self, rules: &[Rule<A>], from: usize) {
        for at in from..N {
            let turned = |(first, last): (A, A)| {
                (first.lane().minus(L::TURN), last.lane().minus(first.lane()).minus(L::TURN))
            };
            let nothing = (L::TURN, L::TURN);
            let (source, destination) = rules
                .get(at)
                .map_or((nothing, nothing), |rule| (turned(rule.source), turned(rule.destination)));
            (self.source_first[at], self.source_len[at]) = source;
            (self.destination_first[at], self.destination_len[at]) = destination;
        }
    }

    /// The first rule of `rules`, whose lanes these are, that `matches` among those not passed over.
    #[inline(always)]
    pub fn find<'a, A: Laned<Lane = L>>(
        &self,
        rules: &'a [Rule<A>],
        source: A,
        destination: A,
        matches: impl Fn(&Rule<A>) -> bool,
    ) -> Option<&'a Rule<A>> {
        if rules.len() <= FEW {
            return rules.iter().find(|rule| matches(rule));
        }
        let (source, destination) = (source.lane(), destination.lane());
        for (group, rules) in rules.chunks(GROUP).enumerate() {
            if self.passes_over::<GROUP>(group * GROUP, source, destination) {
                continue;
            }
            for (part, rules) in rules.chunks(PART).enumerate() {
                let at = group * GROUP + part * PART;
                if !self.passes_over::<PART>(at, source, destination)
                    && let Some(rule) = rules.iter().find(|rule| matches(rule))
                {
                    return Some(rule);
                }
            }
        }
        None
    }

    /// Whether each of `M` rules from number `at` on is passed over.
    // In this form, of references and with one bit a lane, the compiler makes it vectors throughout.
    #[inline(always)]
    fn passes_over<const M: usize>(&self, at: usize, source: L, destination: L) -> bool {
        fn part<L, const N: usize, const M: usize>(all: &[L; N], at: usize) -> Option<&[L; M]> {
            all.get(at..)?.first_chunk()
        }
        let (Some(sources), Some(source_lens), Some(destinations), Some(destination_lens)) = (
            part::<L, N, M>(&self.source_first, at),
            part::<L, N, M>(&self.source_len, at),
            part::<L, N, M>(&self.destination_first, at),
            part::<L, N, M>(&self.destination_len, at),
        ) else {
            return false;
        };
        let mut hit = L::ZERO;
        for lane in 0..M {
            let by_source = source.minus(sources[lane]) <= source_lens[lane];
            let by_destination = destination.minus(destinations[lane]) <= destination_lens[lane];
            hit = hit | L::from_bool(by_source & by_destination);
        }
        hit == L::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipsec::spd::{AddressRange, PolicyIndex, Selector};
    use crate::random::SplitMix64;

    const N: usize = 64;

    fn rule<A: Laned>(n: usize, source: (A, A), destination: (A, A)) -> Rule<A> {
        Rule::new(&Selector::within(AddressRange::ANY_V4), source, destination, PolicyIndex(n as u32))
    }

    fn within<A: Laned>(rule: &Rule<A>, source: A, destination: A) -> bool {
        (rule.source.0 <= source && source <= rule.source.1)
            && (rule.destination.0 <= destination && destination <= rule.destination.1)
    }

    /// What lanes find and what a look at each rule finds, of addresses at and beside the ends of every range.
    fn check<A: Laned + fmt::Debug>(rules: &[Rule<A>], one: impl Fn(A, i8) -> A) {
        let mut lanes = Box::new(Lanes::<A::Lane, N>::new());
        lanes.set(rules, 0);
        let ends =
            |(first, last): (A, A)| [one(first, -1), first, one(first, 1), one(last, -1), last, one(last, 1)];
        for rule in rules {
            for (source, destination) in ends(rule.source).into_iter().zip(ends(rule.destination)) {
                for (source, destination) in [(source, destination), (rule.source.0, destination)] {
                    let found =
                        lanes.find(rules, source, destination, |rule| within(rule, source, destination));
                    let expected = rules.iter().find(|rule| within(rule, source, destination));
                    assert_eq!(
                        found.map(|r| r.policy),
                        expected.map(|r| r.policy),
                        "{source:?} {destination:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn first_rule_that_matches_is_found_wherever_it_stands_and_whatever_its_ends() {
        let mut random = SplitMix64::new(5);
        for round in 0..400 {
            let count = 1 + round % N;
            let mut range = || {
                let edges = [0, 1, i32::MAX as u32, 1 << 31, u32::MAX - 1, u32::MAX];
                let mut end = || match random.below(3) {
                    0 => edges[random.below(6) as usize],
                    1 => random.below(1 << 32) as u32,
                    _ => 0x0a00_0000 + random.below(300) as u32,
                };
                let (a, b) = (end(), end());
                // Now and then the wrong way round, which matches nothing.
                if random.below(20) == 0 { (a.max(b), a.min(b)) } else { (a.min(b), a.max(b)) }
            };
            let rules: Vec<_> = (0..count).map(|n| rule(n, range(), range())).collect();
            check(&rules, |address, by| address.wrapping_add_signed(by.into()));
            let wide = |(first, last): (u32, u32)| {
                // The lower half of an address decides too.
                (u128::from(first) << 96 | 5, u128::from(last) << 96 | 9)
            };
            let rules: Vec<_> =
                rules.iter().enumerate().map(|(n, r)| rule(n, wide(r.source), wide(r.destination))).collect();
            check(&rules, |address: u128, by| address.wrapping_add_signed(by.into()));
        }
    }

    #[test]
    fn lanes_follow_rules_that_come_and_go() {
        let host = |n: usize| rule(n, (0, u32::MAX), (n as u32, n as u32));
        let mut rules: Vec<_> = (0..N).map(host).collect();
        let mut lanes = Box::new(Lanes::<i32, N>::new());
        lanes.set(&rules, 0);
        for at in [N - 1, 40, 31, 8, 7, 0] {
            let gone = rules.remove(at);
            lanes.set(&rules, at);
            let find = |rules: &[Rule<u32>], n: u32| {
                lanes.find(rules, 1, n, |rule| within(rule, 1, n)).map(|rule| rule.policy)
            };
            assert_eq!(find(&rules, gone.destination.0), None);
            assert!(rules.iter().all(|rule| find(&rules, rule.destination.0) == Some(rule.policy)));
        }
    }
}
