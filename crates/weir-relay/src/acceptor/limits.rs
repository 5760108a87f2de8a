//! What strangers and clients may cost: connections a second, on their way at once, bytes, from one source, and in all.
//!
//! Promises: an accept never waits for a stranger; a full house lets the oldest go that is still on its way; a client's
//! [`Share`] is given back when its worker lets it go, whatever ended it. Sources are IPv4 addresses and IPv6 /64s:
//! whoever has one of those has all of it.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;
use weir_core::relay::bucket::Bucket;
use weir_core::time::Nanos;
use weir_io::clock;

use super::budget::Budget;
use super::rates::Rates;
use crate::settings::Limits;

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

/// Shared by the threads of the acceptor.
pub struct Limiter {
    limits: Mutex<Limits>,
    bucket: Mutex<Bucket>,
    rates: Mutex<Rates>,
    /// Bytes of strangers.
    pub budget: Arc<Budget>,
    /// Connections that are not clients yet, and pages.
    strangers: Arc<Mutex<Book>>,
    clients: Arc<Mutex<Book>>,
    underway: Mutex<VecDeque<AbortHandle>>,
}

/// How many there are, and of each source.
#[derive(Debug, Default)]
struct Book {
    sources: HashMap<Source, u32>,
    all: usize,
}

/// One connection's share of its source and of all, given back when dropped. A client's goes with the connection to
/// its worker, and ends with it.
#[derive(Debug)]
pub struct Share {
    source: Source,
    book: Arc<Mutex<Book>>,
}

/// Why a share is not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    Source,
    All,
}

impl Share {
    fn take(book: &Arc<Mutex<Book>>, address: IpAddr, per_source: usize, most: usize) -> Result<Share, Full> {
        let source = Source::of(address);
        let mut open = locked(book);
        if open.all >= most {
            return Err(Full::All);
        }
        if open.sources.get(&source).is_some_and(|&count| count as usize >= per_source) {
            return Err(Full::Source);
        }
        *open.sources.entry(source).or_default() += 1;
        open.all += 1;
        drop(open);
        Ok(Share { source, book: book.clone() })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut book = locked(&self.book);
        book.all -= 1;
        if let Some(count) = book.sources.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                book.sources.remove(&self.source);
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
            rates: Mutex::new(Rates::new(limits, clock::now())),
            budget: Budget::new(limits.handshake_bytes, limits.handshake_bytes_per_source),
            strangers: Arc::default(),
            clients: Arc::default(),
            underway: Mutex::default(),
        }
    }

    pub fn change(&self, limits: &Limits) {
        let (rate, burst) = (limits.accepts_per_second.into(), limits.accept_burst.into());
        locked(&self.bucket).change(rate, burst, clock::now());
        locked(&self.rates).change(limits, clock::now());
        self.budget.change(limits.handshake_bytes, limits.handshake_bytes_per_source);
        *locked(&self.limits) = *limits;
    }

    pub fn now(&self) -> Limits {
        *locked(&self.limits)
    }

    /// Whether its source may come once more: asked first, so that what all have is not spent by one.
    pub fn may_come(&self, address: IpAddr, now: Nanos) -> bool {
        locked(&self.rates).take(address, now)
    }

    /// One more was accepted: how long to wait before the next.
    pub fn accepted(&self, now: Nanos) -> Nanos {
        locked(&self.bucket).spend(1, now)
    }

    /// A stranger's share, unless its source has them all.
    pub fn share(&self, address: IpAddr) -> Option<Share> {
        let per_source = self.now().handshakes_per_source;
        Share::take(&self.strangers, address, per_source, usize::MAX).ok()
    }

    /// A client's place, unless its source or the relay has no more.
    pub fn place(&self, address: IpAddr) -> Result<Share, Full> {
        let limits = self.now();
        Share::take(&self.clients, address, limits.clients_per_source, limits.clients)
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

    /// Counts the sources of strangers.
    pub fn sources(&self) -> usize {
        locked(&self.strangers).sources.len()
    }

    /// Counts the sources of clients.
    pub fn client_sources(&self) -> usize {
        locked(&self.clients).sources.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_source_has_its_share_and_gets_it_back() {
        let limiter = Limiter::new(&Limits { handshakes_per_source: 2, ..Limits::default() });
        let first = limiter.share(of("2001:db8::1")).expect("one");
        let _second = limiter.share(of("2001:db8::2")).expect("two of one /64");
        assert!(limiter.share(of("2001:db8::3")).is_none(), "the /64 has two");
        limiter.share(of("2001:db8:0:1::3")).expect("another /64");
        drop(first);
        assert!(limiter.share(of("2001:db8::3")).is_some(), "one went");
        assert_eq!(limiter.sources(), 1);
    }

    #[test]
    fn places_end_by_source_and_in_all_and_a_new_limit_counts_those_there_are() {
        let limits = Limits { clients_per_source: 2, clients: 3, ..Limits::default() };
        let limiter = Limiter::new(&limits);
        let first = limiter.place(of("192.0.2.1")).expect("one");
        let _second = limiter.place(of("::ffff:192.0.2.1")).expect("two of one source");
        assert_eq!(limiter.place(of("192.0.2.1")).err(), Some(Full::Source));
        let _third = limiter.place(of("192.0.2.2")).expect("another source");
        assert_eq!(limiter.place(of("192.0.2.3")).err(), Some(Full::All));
        limiter.change(&Limits { clients_per_source: 1, clients: 9, ..limits });
        drop(first);
        assert_eq!(limiter.place(of("192.0.2.1")).err(), Some(Full::Source), "one is there still");
        assert_eq!(limiter.client_sources(), 2);
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
