//! Asks an SPD about the packets of a batch at once, and counts for the policies that decided.
//!
//! Promises: nothing is allocated once the vectors have grown; a policy's counters, which all workers share, are
//! touched once for all its packets of a batch.

use std::hint::black_box;
use std::sync::atomic::Ordering;

use crate::ipsec::spd::{Found, Lookup, PolicyIndex, Question};
use crate::ipsec::{Direction, Spd};
use crate::packet::BATCH;

/// What a query of a batch takes: the lookup, its answers and the counts they lead to.
#[derive(Debug)]
pub(in crate::router) struct SpdQuery {
    pub lookup: Lookup,
    /// The answer for each packet, where they are not all alike.
    pub found: Vec<Found>,
    pub tally: Tally,
}

impl SpdQuery {
    pub fn new() -> Self {
        SpdQuery { lookup: Lookup::default(), found: Vec::new(), tally: Tally::new() }
    }

    /// The answer for all of `packets`, if they have the same; if not, each one's is in `found`.
    pub fn each<'a>(
        &mut self,
        question: Question<'_>,
        packets: impl Iterator<Item = &'a [u8]>,
    ) -> Option<Found> {
        self.lookup.find(question, packets, &mut self.found);
        let first = *self.found.first()?;
        self.found.iter().all(|&found| found == first).then_some(first)
    }
}

/// What follows from an answer, worked out anew only where it is another than the packet's before.
pub(super) struct LookupMemo<T, F> {
    found: Found,
    follows: T,
    rule: F,
}

impl<T: Copy, F: Fn(Found) -> T> LookupMemo<T, F> {
    pub fn new(rule: F) -> Self {
        LookupMemo { found: None, follows: rule(None), rule }
    }

    #[inline]
    pub fn of(&mut self, found: Found) -> T {
        if found != self.found {
            (self.found, self.follows) = (found, (self.rule)(found));
        }
        self.follows
    }
}

/// Packets and bytes by policy that are not in its counters yet.
#[derive(Debug)]
pub(in crate::router) struct Tally {
    /// Counts by the lower bits of the policy's index; a policy whose place is taken sends the other to its counters.
    places: [Count; BATCH],
    /// Places that count for someone.
    used: [u8; BATCH],
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    policy: PolicyIndex,
    packets: u32,
    bytes: u64,
}

const _: () = assert!(BATCH.is_power_of_two() && BATCH <= 256);

impl Tally {
    pub fn new() -> Self {
        let none = Count { policy: PolicyIndex(0), packets: 0, bytes: 0 };
        Tally { places: [none; BATCH], used: [0; BATCH], len: 0 }
    }

    /// Counts a packet; [`Tally::flush`] is due by the end of the batch, and before another SPD's.
    #[inline]
    pub fn add(&mut self, spd: &Spd, direction: Direction, policy: PolicyIndex, bytes: u64) {
        let at = policy.0 as usize % BATCH;
        let place = &mut self.places[at];
        if place.packets == 0 {
            place.policy = policy;
            self.used[self.len % BATCH] = at as u8;
            self.len += 1;
        } else if place.policy != policy {
            place.flush(spd, direction);
            place.policy = policy;
        }
        place.packets += 1;
        place.bytes += bytes;
    }

    /// Moves what was counted to the policies.
    #[inline]
    pub fn flush(&mut self, spd: &Spd, direction: Direction) {
        let used = &self.used[..self.len.min(BATCH)];
        self.len = 0;
        if used.len() > 1 {
            // Adding waits for each counter in its turn; so they are all fetched before.
            let load = |&at: &u8| {
                let policy = spd.policy(self.places[usize::from(at)].policy);
                policy.map_or(0, |policy| policy.counters.of(direction).0.load(Ordering::Relaxed))
            };
            black_box(used.iter().map(load).fold(0, u64::wrapping_add));
        }
        for &at in used {
            self.places[usize::from(at)].flush(spd, direction);
        }
    }
}

impl Count {
    fn flush(&mut self, spd: &Spd, direction: Direction) {
        count(spd, direction, Some(self.policy), u64::from(self.packets), self.bytes);
        (self.packets, self.bytes) = (0, 0);
    }
}

/// Counts packets a policy decided about, if one did.
#[inline]
pub(super) fn count(spd: &Spd, direction: Direction, policy: Option<PolicyIndex>, packets: u64, bytes: u64) {
    if let Some(policy) = policy.and_then(|index| spd.policy(index)) {
        policy.counters.count_many(direction, packets, bytes);
    }
}
