//! How SPDs were asked: flow caches, classifier and ordered scan for the control socket and `/metrics`; what the
//! oracle found, for the log.
//!
//! Promises: an answer is counted with the layer that gave it, so that hits and misses add up to what a cache was
//! asked; disagreements are logged as errors, at most every [`TELL_EVERY`], with how many there were.

use weir_core::ipsec::Direction;
use weir_core::ipsec::spd::{Layer, LookupCounters, Spd, Stats, Way, WayCounters};
use weir_core::time::{Nanos, SECOND};

use super::Daemon;
use crate::view;

/// How often disagreements are told of.
const TELL_EVERY: Nanos = 10 * SECOND;

/// What of the oracle was told already.
#[derive(Debug, Default)]
pub(super) struct Oracle {
    disagreed: u64,
    told: Option<Nanos>,
}

impl Oracle {
    /// Disagreements to tell of now, of `all` there were.
    fn news(&mut self, now: Nanos, all: u64) -> Option<u64> {
        let more = all.saturating_sub(self.disagreed);
        if more == 0 || self.told.is_some_and(|at| now.saturating_sub(at) < TELL_EVERY) {
            return None;
        }
        (self.disagreed, self.told) = (all, Some(now));
        Some(more)
    }
}

impl Daemon {
    /// Tells the log where a layer said otherwise than the ordered scan.
    pub(super) fn tell_disagreements(&mut self, now: Nanos) {
        let sum = self.lookups();
        let ways = Way::ALL.map(|way| (way, sum.way(way).disagreed));
        let all = ways.iter().map(|way| way.1).sum();
        let Some(more) = self.watch.oracle.news(now, all) else { return };
        let where_: Vec<&str> = ways.iter().filter(|way| way.1 > 0).map(|way| way.0.name()).collect();
        tracing::error!(
            "spd-oracle: cache or classifier said otherwise than the ordered scan about {more} packets ({}); the scan's answer was used; this is a defect of weir: report it with the policies and `weir show cache --json`, and until it is mended set the spd flow caches and spd-classifier to \"off\"",
            where_.join(", ")
        );
    }

    /// SPD lookups of all workers.
    fn lookups(&self) -> LookupCounters {
        let mut sum = LookupCounters::default();
        for report in self.reports() {
            sum.merge(&report.lookups);
        }
        sum
    }

    pub(super) fn cache(&self) -> view::Cache {
        let ipsec = self.control.tables().ipsec.as_deref();
        let sum = self.lookups();
        let spds = ipsec.map_or(&[][..], |ipsec| &ipsec.spds);
        let way = |way: Way| {
            let cache = ipsec.and_then(|ipsec| ipsec.caches.get(way));
            view::CacheWay {
                direction: direction(way).to_owned(),
                family: family(way).to_owned(),
                on: cache.is_some(),
                buckets: cache.map_or(0, |c| c.buckets().into()),
                occupied: cache.map_or(0, |c| c.occupied()),
                bytes: cache.map_or(0, |c| c.memory()),
                lookups: lookups(sum.way(way)),
            }
        };
        view::Cache {
            classifier: match self.control.desired().ipsec.lookup.layer {
                Layer::Auto => "auto",
                Layer::Classifier => "on",
                Layer::Scan => "off",
            }
            .to_owned(),
            oracle: ipsec.is_some_and(|ipsec| ipsec.oracle),
            ways: Way::ALL.map(way).into(),
            spds: spds
                .iter()
                .flat_map(|spd| [Direction::Out, Direction::In].map(|d| rules(spd, d)))
                .collect(),
        }
    }
}

/// What one worker counted, for ways it was asked about.
pub(super) fn worker(counters: &LookupCounters) -> Vec<view::WorkerLookups> {
    let view = |way: Way| view::WorkerLookups {
        direction: direction(way).to_owned(),
        family: family(way).to_owned(),
        lookups: lookups(counters.way(way)),
    };
    Way::ALL.map(view).into()
}

fn rules(spd: &Spd, way: Direction) -> view::SpdRules {
    let rules = spd.rules(way);
    let [v4, v6] = rules.stats();
    let family = |ipv4: bool, stats: Stats| {
        let classified = rules.classifies(ipv4);
        view::FamilyRules {
            family: if ipv4 { "ipv4" } else { "ipv6" }.to_owned(),
            rules: stats.rules,
            layer: if classified { "classifier" } else { "scan" }.to_owned(),
            tables: stats.tables,
            longest_chain: stats.chain,
            in_no_table: stats.residue,
            most_comparisons: if classified { stats.bound } else { stats.rules },
        }
    };
    view::SpdRules {
        spd: spd.name.clone(),
        direction: match way {
            Direction::Out => "out",
            Direction::In => "in",
        }
        .to_owned(),
        bytes: rules.memory() as u64,
        families: vec![family(true, v4), family(false, v6)],
    }
}

fn lookups(c: &WayCounters) -> view::Lookups {
    view::Lookups {
        first: c.first,
        outside: c.outside,
        hit: c.hit,
        miss: c.miss,
        collision: c.collision,
        stale: c.stale,
        classified: c.classified,
        scanned: c.scanned,
        disagreed: c.disagreed,
    }
}

fn direction(way: Way) -> &'static str {
    if matches!(way, Way::Ipv4Outbound | Way::Ipv6Outbound) { "out" } else { "in" }
}

fn family(way: Way) -> &'static str {
    if way.is_ipv4() { "ipv4" } else { "ipv6" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disagreements_are_told_now_and_then_and_all_counted() {
        let mut oracle = Oracle::default();
        assert_eq!(oracle.news(0, 0), None, "nothing happened");
        let told: Vec<u64> = (0..25).filter_map(|s| oracle.news(s * SECOND, (s + 1) * 3)).collect();
        assert_eq!(told, [3, 30, 30]);
    }
}
