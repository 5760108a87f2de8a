//! A batch of packets asks an SPD: what is outside of all rules, flow cache, then classifier or ordered scan, then the cache learns.
//!
//! Promises: the answers of the ordered scan, whichever layer gave them; each packet is counted once, by who
//! answered it. Nothing is allocated once a few batches have been asked about.

mod batch;
#[cfg(feature = "testing")]
pub mod fuzz;

use super::{Flow, PolicyIndex, RuleSet, Spd, SpdId};
use crate::ipsec::flow_cache::FlowCaches;
use crate::ipsec::sa::Direction;
use batch::Scratch;

/// Direction and family of a lookup: each has a cache and counters of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    Ipv4Outbound,
    Ipv4Inbound,
    Ipv6Outbound,
    Ipv6Inbound,
}

impl Way {
    pub const ALL: [Way; 4] = [Way::Ipv4Outbound, Way::Ipv4Inbound, Way::Ipv6Outbound, Way::Ipv6Inbound];

    pub fn new(direction: Direction, ipv4: bool) -> Way {
        match (ipv4, direction) {
            (true, Direction::Out) => Way::Ipv4Outbound,
            (true, Direction::In) => Way::Ipv4Inbound,
            (false, Direction::Out) => Way::Ipv6Outbound,
            (false, Direction::In) => Way::Ipv6Inbound,
        }
    }

    pub fn is_ipv4(self) -> bool {
        matches!(self, Way::Ipv4Outbound | Way::Ipv4Inbound)
    }

    /// The name that options and metrics use.
    pub fn name(self) -> &'static str {
        match self {
            Way::Ipv4Outbound => "ipv4-outbound",
            Way::Ipv4Inbound => "ipv4-inbound",
            Way::Ipv6Outbound => "ipv6-outbound",
            Way::Ipv6Inbound => "ipv6-inbound",
        }
    }
}

/// What answers where no cache does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layer {
    /// The classifier for sets of more than a few rules.
    #[default]
    Auto,
    Scan,
    Classifier,
}

/// How SPDs are to be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookupSpec {
    /// Buckets of the flow cache of each [`Way`]; `None` is off. Rounded up to a power of two.
    pub caches: [Option<u32>; 4],
    pub layer: Layer,
    /// Every answer is held against the ordered scan, which is what goes.
    pub oracle: bool,
}

impl LookupSpec {
    pub fn buckets(&self, way: Way) -> Option<u32> {
        self.caches[way as usize]
    }
}

/// Whom a batch asks.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    pub spd: &'a Spd,
    pub id: SpdId,
    pub direction: Direction,
    pub caches: &'a FlowCaches,
    pub oracle: bool,
}

/// What was found for a packet: `None` where no policy can be asked about it ([`Flow::of`]), `Some(None)` where
/// no rule matches.
pub type Found = Option<Option<PolicyIndex>>;

/// Answers of one worker, by who gave them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WayCounters {
    /// A whole batch by the first rule: nobody else was asked.
    pub first: u64,
    /// A whole batch outside of all rules, by addresses alone: no rule was asked.
    pub outside: u64,
    /// Answers by the cache.
    pub hit: u64,
    /// Answers not by the cache, whichever of the two following was why, or none: an empty bucket.
    pub miss: u64,
    /// Another flow had the bucket.
    pub collision: u64,
    /// The flow had the bucket, of rules that have changed since.
    pub stale: u64,
    /// Answers by the classifier, and by the ordered scan.
    pub classified: u64,
    pub scanned: u64,
    /// Where the oracle said otherwise. Each is a defect.
    pub disagreed: u64,
}

/// The counters of each [`Way`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookupCounters {
    pub ways: [WayCounters; 4],
}

impl LookupCounters {
    /// Adds what another worker counted.
    pub fn merge(&mut self, other: &LookupCounters) {
        self.with(other, |mine, theirs| mine + theirs);
    }

    /// What was counted since `before`, of the same worker.
    #[must_use]
    pub fn since(&self, before: &LookupCounters) -> LookupCounters {
        let mut since = *self;
        since.with(before, |now, then| now - then);
        since
    }

    pub fn way(&self, way: Way) -> &WayCounters {
        &self.ways[way as usize]
    }

    fn with(&mut self, other: &LookupCounters, op: impl Fn(u64, u64) -> u64) {
        for (mine, theirs) in self.ways.iter_mut().zip(&other.ways) {
            let WayCounters { first, outside, hit, miss, collision, stale, classified, scanned, disagreed } =
                mine;
            for (mine, theirs) in [
                (first, theirs.first),
                (outside, theirs.outside),
                (hit, theirs.hit),
                (miss, theirs.miss),
                (collision, theirs.collision),
                (stale, theirs.stale),
                (classified, theirs.classified),
                (scanned, theirs.scanned),
                (disagreed, theirs.disagreed),
            ] {
                *mine = op(*mine, theirs);
            }
        }
    }
}

/// What a worker needs to ask: scratch and counters.
#[derive(Debug, Default)]
pub struct Lookup {
    counters: LookupCounters,
    scratch: Scratch,
}

/// What each layer says of a packet, by [`Lookup::explain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explained {
    pub way: Way,
    pub flow: Flow,
    pub cached: Cached,
    /// What answers where the cache does not.
    pub colder: Layer,
    /// Its answer.
    pub found: Option<PolicyIndex>,
    /// The ordered scan's.
    pub scanned: Option<PolicyIndex>,
}

/// What the flow cache has of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cached {
    /// No cache: none for this direction and family, or the rules have no epoch.
    Off,
    Hit(Option<PolicyIndex>),
    /// An answer by rules that have changed since.
    Stale(Option<PolicyIndex>),
    /// Another flow has the bucket.
    Collision,
    Empty,
    /// A worker is writing to the bucket.
    Busy,
}

impl Explained {
    /// What the packet gets. (With the oracle on, `scanned`.)
    pub fn answer(&self) -> Option<PolicyIndex> {
        match self.cached {
            Cached::Hit(answer) => answer,
            _ => self.found,
        }
    }
}

impl Lookup {
    /// The first rule's policy, where it decides about each of `packets` (see [`super::RuleSet::first_for_all`]).
    /// `None`: ask [`Lookup::find`].
    #[inline]
    pub fn first<'a>(
        &mut self,
        question: Question<'_>,
        packets: impl ExactSizeIterator<Item = &'a [u8]> + Clone,
        common: usize,
    ) -> Option<PolicyIndex> {
        let policy = question.rules().first_for_all(packets.clone(), common)?;
        self.count_first(question, packets, policy).then_some(policy)
    }

    /// Counts `packets` as answered by the first rule, whose policy is `policy`; `false`, where the oracle knows
    /// better: ask [`Lookup::find`].
    #[inline]
    pub fn count_first<'a>(
        &mut self,
        question: Question<'_>,
        packets: impl ExactSizeIterator<Item = &'a [u8]> + Clone,
        policy: PolicyIndex,
    ) -> bool {
        let ipv4 = packets.clone().next().and_then(<[u8]>::first).is_some_and(|byte| byte >> 4 == 4);
        let counters = &mut self.counters.ways[Way::new(question.direction, ipv4) as usize];
        let count = packets.len() as u64;
        if question.oracle {
            let disagreed = batch::against(question, packets, Some(policy));
            counters.disagreed += disagreed;
            if disagreed > 0 {
                return false;
            }
        }
        counters.first += count;
        true
    }

    /// The answer for each of `packets` where all are outside of all rules (see [`super::RuleSet::outside_all`]).
    /// `None`: ask [`Lookup::find`].
    #[inline]
    pub fn outside<'a>(
        &mut self,
        question: Question<'_>,
        packets: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Option<Option<PolicyIndex>> {
        let (answer, counts) = question.rules().outside_all(packets.clone())?;
        self.count_outside(question, packets, answer, counts).then_some(answer)
    }

    /// Counts `packets`, `counts` of IPv4 and IPv6, as outside of all rules, where `answer` goes; `false`, where the
    /// oracle knows better: ask [`Lookup::find`].
    #[inline]
    pub fn count_outside<'a>(
        &mut self,
        question: Question<'_>,
        packets: impl Iterator<Item = &'a [u8]>,
        answer: Option<PolicyIndex>,
        counts: [u64; 2],
    ) -> bool {
        let ways = [true, false].map(|ipv4| Way::new(question.direction, ipv4) as usize);
        if question.oracle {
            let disagreed = batch::against(question, packets, answer);
            let way = ways[usize::from(counts[0] == 0)];
            self.counters.ways[way].disagreed += disagreed;
            if disagreed > 0 {
                return false;
            }
        }
        for (way, count) in ways.into_iter().zip(counts) {
            self.counters.ways[way].outside += count;
        }
        true
    }

    /// Asks about each of `packets` (IP packets); `found` gets an answer for each.
    pub fn find<'a>(
        &mut self,
        question: Question<'_>,
        packets: impl Iterator<Item = &'a [u8]>,
        found: &mut Vec<Found>,
    ) {
        found.clear();
        self.scratch.find(question, packets, found, &mut self.counters);
    }

    /// What each layer would answer now, asking none of them for real: neither cache nor counters change.
    /// `None` where no policy can be asked ([`Flow::of`]).
    pub fn explain(question: Question<'_>, packet: &[u8]) -> Option<Explained> {
        let flow = Flow::of(packet)?;
        let ipv4 = flow.source.is_ipv4();
        let way = Way::new(question.direction, ipv4);
        let rules = question.rules();
        Some(Explained {
            way,
            flow,
            cached: batch::cached(question, way, &flow),
            colder: batch::layer(rules, ipv4),
            found: rules.find(&flow),
            scanned: rules.scan(&flow),
        })
    }

    pub fn counters(&self) -> &LookupCounters {
        &self.counters
    }
}

impl<'a> Question<'a> {
    pub fn rules(&self) -> &'a RuleSet {
        self.spd.rules(self.direction)
    }

    fn epoch(&self) -> u64 {
        self.spd.epoch(self.direction)
    }
}
