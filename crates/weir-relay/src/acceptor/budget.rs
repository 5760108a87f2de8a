//! Memory that connections which are not clients yet may take, beyond what each needs anyway.
//!
//! ```text
//! a connection's buffers:   0 … FREE            its own: a head, a ClientInfo as clients send it, a flight of TLS
//!                           FREE … 256 KiB      charged to its source and to all, given back when it ends or is a client
//! ```
//!
//! Promises: what is held beyond [`FREE`] by all strangers is at most the budget, by those of one source at most a
//! source's; strangers that need no more than [`FREE`] never wait for it. Refuses: a byte more; that connection ends.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::http::HEAD_MAX;
use super::limits::Source;

/// Buffers of this size are every connection's: the longest head, and what is read at once beside it.
pub const FREE: usize = HEAD_MAX + (4 << 10);

/// What may be held, and what is.
#[derive(Debug)]
pub struct Budget {
    most: AtomicUsize,
    per_source: AtomicUsize,
    held: Mutex<Charged>,
}

#[derive(Debug, Default)]
struct Charged {
    all: usize,
    sources: HashMap<Source, usize>,
}

impl Budget {
    pub fn new(most: usize, per_source: usize) -> Arc<Budget> {
        let held = Mutex::default();
        Arc::new(Budget { most: most.into(), per_source: per_source.into(), held })
    }

    /// What is held stays held.
    pub fn change(&self, most: usize, per_source: usize) {
        self.most.store(most, Relaxed);
        self.per_source.store(per_source, Relaxed);
    }

    /// Bytes held now.
    pub fn held(&self) -> usize {
        self.locked().all
    }

    /// Opens the charge of a connection from there, with nothing held yet.
    pub fn charge(self: &Arc<Budget>, address: IpAddr) -> Charge {
        Charge { budget: self.clone(), source: Source::of(address), held: 0 }
    }

    /// A thread that panicked left numbers behind, nothing half done.
    fn locked(&self) -> MutexGuard<'_, Charged> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one connection holds, given back when dropped.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<Budget>,
    source: Source,
    held: usize,
}

impl Charge {
    /// Notes that the connection's buffers have `bytes` now; false, and nothing changed, when it may not have as many.
    pub fn hold(&mut self, bytes: usize) -> bool {
        let wanted = bytes.saturating_sub(FREE);
        if wanted == self.held {
            return true;
        }
        let mut held = self.budget.locked();
        let source = held.sources.get(&self.source).copied().unwrap_or_default();
        let (all, source) = (held.all - self.held + wanted, source - self.held + wanted);
        let fits = all <= self.budget.most.load(Relaxed) && source <= self.budget.per_source.load(Relaxed);
        if wanted > self.held && !fits {
            return false;
        }
        held.all = all;
        match source {
            0 => drop(held.sources.remove(&self.source)),
            some => drop(held.sources.insert(self.source, some)),
        }
        self.held = wanted;
        true
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.hold(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BIG: usize = FREE + 100;

    fn of(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_source_holds_its_part_and_all_together_the_budget() {
        let budget = Budget::new(250, 200);
        let (a, b) = (of("192.0.2.1"), of("192.0.2.2"));
        let mut first = budget.charge(a);
        assert!(first.hold(BIG) && first.hold(BIG));
        let mut second = budget.charge(a);
        assert!(second.hold(BIG), "200 of this source");
        let mut third = budget.charge(a);
        assert!(!third.hold(FREE + 1), "a source has no more");
        assert!(third.hold(FREE), "what each needs anyway is free");
        let mut other = budget.charge(b);
        assert!(!other.hold(BIG), "all have no more");
        assert!(other.hold(FREE + 50));
        assert_eq!(budget.held(), 250);
        drop(first);
        assert!(third.hold(BIG), "the first one's was given back");
        drop((second, third, other));
        assert_eq!((budget.held(), budget.locked().sources.len()), (0, 0));
    }

    #[test]
    fn less_is_always_held_though_the_budget_was_lowered() {
        let budget = Budget::new(200, 200);
        let mut charge = budget.charge(of("2001:db8::1"));
        assert!(charge.hold(FREE + 150));
        budget.change(10, 10);
        assert!(charge.hold(BIG) && !charge.hold(FREE + 101));
        assert_eq!(budget.held(), 100);
    }
}
