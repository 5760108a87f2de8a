//! Connections a second of each source: one that comes too often spends its own tokens, not everybody's.
//!
//! Promises: a source takes at most its burst and its rate; at most [`SOURCES`] are remembered, and forgetting a source
//! gives it nothing it did not have. Refuses: nobody for others' sake: while there is no room to remember a source,
//! only the limit of all holds for it.

use std::collections::HashMap;
use std::net::IpAddr;

use weir_core::relay::bucket::Bucket;
use weir_core::time::{Nanos, SECOND};

use super::limits::Source;
use crate::settings::Limits;

/// Sources remembered, each some 100 bytes: 6 MiB.
const SOURCES: usize = 1 << 16;

/// Token buckets by source.
#[derive(Debug)]
pub struct Rates {
    rate: u64,
    burst: u64,
    loopback: bool,
    buckets: HashMap<Source, Bucket>,
    /// When full buckets were last looked for.
    swept: Nanos,
}

impl Rates {
    pub fn new(limits: &Limits, now: Nanos) -> Rates {
        Rates {
            rate: limits.accepts_per_second_per_source.into(),
            burst: limits.accept_burst_per_source.into(),
            loopback: limits.loopback_is_a_source,
            buckets: HashMap::new(),
            swept: now,
        }
    }

    pub fn change(&mut self, limits: &Limits, now: Nanos) {
        let swept = self.swept;
        let buckets = std::mem::take(&mut self.buckets);
        *self = Rates { buckets, swept, ..Rates::new(limits, now) };
        self.buckets.values_mut().for_each(|bucket| bucket.change(self.rate, self.burst, now));
    }

    /// Takes a token of this source, if it has one.
    pub fn take(&mut self, address: IpAddr, now: Nanos) -> bool {
        if !self.loopback && address.to_canonical().is_loopback() {
            return true;
        }
        let source = Source::of(address);
        if let Some(bucket) = self.buckets.get_mut(&source) {
            return bucket.take(1, now);
        }
        if self.buckets.len() >= SOURCES && !self.sweep(now) {
            return true;
        }
        let bucket = self.buckets.entry(source).or_insert_with(|| Bucket::new(self.rate, self.burst, now));
        bucket.take(1, now)
    }

    /// Forgets those that have all their tokens again, at most once a second: it looks at all of them.
    fn sweep(&mut self, now: Nanos) -> bool {
        if now.saturating_sub(self.swept) < SECOND {
            return false;
        }
        self.swept = now;
        self.buckets.retain(|_, bucket| !bucket.is_full(now));
        self.buckets.len() < SOURCES
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn limits(loopback: bool) -> Limits {
        Limits {
            accepts_per_second_per_source: 1,
            accept_burst_per_source: 3,
            loopback_is_a_source: loopback,
            ..Limits::default()
        }
    }

    fn of(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_source_spends_its_own_tokens_alone() {
        let mut rates = Rates::new(&limits(false), 0);
        let mut taken = |address: &str, now| (0..10).filter(|_| rates.take(of(address), now)).count();
        assert_eq!(taken("192.0.2.1", 0), 3);
        assert_eq!(taken("::ffff:192.0.2.1", 0), 0, "the same one");
        assert_eq!(taken("192.0.2.2", 0), 3);
        assert_eq!((taken("2001:db8::1", 0), taken("2001:db8::2", 0)), (3, 0), "one /64");
        assert_eq!(taken("192.0.2.1", 2 * SECOND), 2);
        assert_eq!((taken("127.0.0.1", 0), taken("::1", 0)), (10, 10), "a proxy of this host");
    }

    #[test]
    fn loopback_is_a_source_where_the_limit_was_asked_for() {
        let mut rates = Rates::new(&limits(true), 0);
        assert_eq!((0..10).filter(|_| rates.take(of("127.0.0.1"), 0)).count(), 3);
    }

    #[test]
    fn no_more_sources_are_remembered_than_there_is_room_for_and_none_is_forgotten_in_debt() {
        let mut rates = Rates::new(&limits(false), 0);
        let mut comes = |n: usize, now| rates.take(Ipv4Addr::from_bits(0x0a00_0000 + n as u32).into(), now);
        (0..SOURCES).for_each(|n| assert!(comes(n, 0)));
        (0..3).for_each(|_| assert!(comes(7, 5 * SECOND)));
        assert!(!comes(7, 5 * SECOND), "it has spent its tokens");
        assert!(comes(SOURCES, 5 * SECOND), "those with all their tokens are forgotten");
        assert!(!comes(7, 5 * SECOND), "and this one is not");
        assert!(rates.buckets.len() < 4, "{}", rates.buckets.len());
    }
}
