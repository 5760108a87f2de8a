//! A batch of packets asks an SPD: flow cache, then classifier or ordered scan, then the cache learns.

use super::{Flow, PolicyIndex, Spd, SpdId};
use crate::ipsec::flow_cache::FlowCaches;
use crate::ipsec::sa::Direction;

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

    /// As options and metrics name it.
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
    /// By the cache.
    pub hit: u64,
    /// Not by the cache, whichever of the two following was why, or none: an empty bucket.
    pub miss: u64,
    /// Another flow had the bucket.
    pub collision: u64,
    /// The flow had the bucket, of rules that have changed since.
    pub stale: u64,
    /// By classifier and by ordered scan.
    pub classified: u64,
    pub scanned: u64,
    /// Where the oracle said otherwise. Each is a defect.
    pub disagreed: u64,
}

/// By [`Way`].
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
            let WayCounters { first, hit, miss, collision, stale, classified, scanned, disagreed } = mine;
            for (mine, theirs) in [
                (first, theirs.first),
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
}

impl Lookup {
    /// Asks about each of `packets` (IP packets, a batch at most); `found` gets an answer for each.
    pub fn find<'a>(
        &mut self,
        question: Question<'_>,
        packets: impl Iterator<Item = &'a [u8]>,
        found: &mut Vec<Found>,
    ) {
        found.clear();
        let rules = question.spd.rules(question.direction);
        for packet in packets {
            let flow = Flow::of(packet);
            if let Some(flow) = &flow {
                let way = Way::new(question.direction, flow.source.is_ipv4());
                self.counters.ways[way as usize].scanned += 1;
            }
            found.push(flow.map(|flow| rules.find(&flow)));
        }
    }

    /// `packets` were answered by the first rule ([`super::RuleSet::first_for_all`]).
    pub fn count_first(&mut self, way: Way, packets: u64) {
        self.counters.ways[way as usize].first += packets;
    }

    pub fn counters(&self) -> &LookupCounters {
        &self.counters
    }
}
