//! What strangers may cost: connections a second, on their way at once, and from one source.
//!
//! Promises: an accept never waits for a stranger; a full house lets the oldest go that is still on its way. Sources
//! are IPv4 addresses and IPv6 /64s: whoever has one of those has all of it.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;
use weir_core::relay::bucket::Bucket;
use weir_core::time::Nanos;
use weir_io::clock;

use crate::relay::settings::Limits;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source(IpAddr);

impl Source {
    pub fn of(address: IpAddr) -> Source {
        match address.to_canonical() {
            IpAddr::V6(v6) => Source(IpAddr::V6((v6.to_bits() & !u128::from(u64::MAX)).into())),
            v4 => Source(v4),
        }
    }
}

/// Shared by the threads of the front.
pub struct Limiter {
    limits: Mutex<Limits>,
    bucket: Mutex<Bucket>,
    sources: Arc<Mutex<HashMap<Source, u32>>>,
    underway: Mutex<VecDeque<AbortHandle>>,
}

/// One connection's share of its source, given back when dropped.
#[derive(Debug)]
pub struct Share {
    source: Source,
    sources: Arc<Mutex<HashMap<Source, u32>>>,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut sources = locked(&self.sources);
        if let Some(count) = sources.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                sources.remove(&self.source);
            }
        }
    }
}

/// A thread that panicked left numbers behind, nothing half done.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Limiter {
    pub fn new(limits: &Limits) -> Limiter {
        let bucket = Bucket::new(limits.accepts_per_second.into(), limits.accept_burst.into(), clock::now());
        Limiter {
            limits: Mutex::new(*limits),
            bucket: Mutex::new(bucket),
            sources: Arc::default(),
            underway: Mutex::default(),
        }
    }

    pub fn change(&self, limits: &Limits) {
        let (rate, burst) = (limits.accepts_per_second.into(), limits.accept_burst.into());
        locked(&self.bucket).change(rate, burst, clock::now());
        *locked(&self.limits) = *limits;
    }

    pub fn now(&self) -> Limits {
        *locked(&self.limits)
    }

    /// One more was accepted: how long to wait before the next.
    pub fn accepted(&self, now: Nanos) -> Nanos {
        locked(&self.bucket).spend(1, now)
    }

    /// A share of the source's connections, unless it has them all.
    pub fn share(&self, address: IpAddr, most: usize) -> Option<Share> {
        let source = Source::of(address);
        let mut sources = locked(&self.sources);
        let count = sources.entry(source).or_default();
        if *count as usize >= most {
            if *count == 0 {
                sources.remove(&source);
            }
            return None;
        }
        *count += 1;
        drop(sources);
        Some(Share { source, sources: self.sources.clone() })
    }

    /// Notes a stranger on its way; true when the oldest had to make room.
    pub fn enter(&self, stranger: AbortHandle) -> bool {
        let most = locked(&self.limits).handshakes;
        let mut underway = locked(&self.underway);
        while underway.front().is_some_and(AbortHandle::is_finished) {
            underway.pop_front();
        }
        underway.push_back(stranger);
        if underway.len() <= most {
            return false;
        }
        // Those that have ended in the middle do not count: seen once in so many entries.
        underway.retain(|handle| !handle.is_finished());
        if underway.len() <= most {
            return false;
        }
        if let Some(oldest) = underway.pop_front() {
            oldest.abort();
        }
        true
    }

    pub fn underway(&self) -> usize {
        locked(&self.underway).iter().filter(|handle| !handle.is_finished()).count()
    }

    pub fn sources(&self) -> usize {
        locked(&self.sources).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_has_its_share_and_gets_it_back() {
        let limiter = Limiter::new(&Limits::default());
        let of = |text: &str| text.parse::<IpAddr>().expect("an address");
        let first = limiter.share(of("2001:db8::1"), 2).expect("one");
        let _second = limiter.share(of("2001:db8::2"), 2).expect("two of one /64");
        assert!(limiter.share(of("2001:db8::3"), 2).is_none(), "the /64 has two");
        limiter.share(of("2001:db8:0:1::3"), 2).expect("another /64");
        drop(first);
        assert!(limiter.share(of("2001:db8::3"), 2).is_some(), "one went");
        assert_eq!(limiter.sources(), 1);
    }

    #[test]
    fn a_full_house_lets_the_oldest_go_that_is_still_on_its_way() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let limiter = Limiter::new(&Limits { handshakes: 2, ..Limits::default() });
            let slow: Vec<_> = (0..3).map(|_| tokio::spawn(std::future::pending::<()>())).collect();
            assert!(!limiter.enter(slow[0].abort_handle()) && !limiter.enter(slow[1].abort_handle()));
            assert!(limiter.enter(slow[2].abort_handle()), "one too many");
            let [first, ..] = <[_; 3]>::try_from(slow).expect("three");
            assert!(first.await.expect_err("aborted").is_cancelled());
            assert_eq!(limiter.underway(), 2);
        });
    }
}
