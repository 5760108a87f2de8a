//! Whether a worker's CPU has time left for it, and who keeps it busy.
//!
//! ```text
//!  look: a fifth of a second since the last one? ─► busy all the time, or kept waiting ─► senders of the next turns ─► half of them
//! ```
//!
//! Promises: a look costs one small read, five times a second at most. Refuses: to guess where the kernel does not tell.

use weir_core::relay::ConnId;
use weir_core::time::{MILLISECOND, Nanos};
use weir_io::cpu_time::{Spent, ThreadTimes};

/// The time between two looks at least.
const EVERY: Nanos = 200 * MILLISECOND;
/// A worker that slept for less than this share of the time has none left.
const LEAST_SLEEP: f64 = 0.1;
/// A worker that waited for its CPU for more than this share of the time shares it with others.
const MOST_WAITING: f64 = 0.05;
/// Turns whose senders are those that keep the worker busy.
const TURNS: u32 = 64;
/// Clients that are named at once at most.
const NAMED: usize = 8;

/// What a worker knows of its own time.
#[derive(Debug)]
pub struct Pressure {
    times: Option<ThreadTimes>,
    at: Nanos,
    before: Spent,
    /// Others have the CPU too.
    shared: bool,
    /// Turns that are still to be looked at, and their senders so far.
    turns: u32,
    senders: Vec<ConnId>,
}

impl Pressure {
    /// Begins to watch the calling thread.
    pub fn of_this_thread(now: Nanos) -> Pressure {
        let times = ThreadTimes::of_this_thread().ok();
        let before = times.as_ref().and_then(|times| times.read().ok()).unwrap_or_default();
        Pressure { times, at: now, before, shared: false, turns: 0, senders: Vec::new() }
    }

    /// Names clients that had better be elsewhere, once a turn is asked about that ends a time in which the CPU had too little for the
    /// worker. `note` adds the senders of this turn.
    #[inline]
    pub fn look(&mut self, now: Nanos, note: impl FnOnce(&mut Vec<ConnId>)) -> Option<Vec<ConnId>> {
        if self.turns == 0 {
            if now.saturating_sub(self.at) >= EVERY && self.is_high(now) {
                self.turns = TURNS;
            }
            return None;
        }
        self.turns -= 1;
        note(&mut self.senders);
        if self.turns == 0 { self.named() } else { None }
    }

    /// Half of the clients that kept the worker busy. Who is alone is as busy elsewhere, and goes only where others have the CPU too.
    #[cold]
    fn named(&mut self) -> Option<Vec<ConnId>> {
        let mut senders = std::mem::take(&mut self.senders);
        senders.sort_unstable();
        senders.dedup();
        let half = if self.shared { senders.len().div_ceil(2) } else { senders.len() / 2 };
        senders.truncate(NAMED.min(half));
        Some(senders).filter(|senders| !senders.is_empty())
    }

    /// Whether the worker was busy all the time since the last look, or kept waiting by others that have its CPU too.
    #[cold]
    fn is_high(&mut self, now: Nanos) -> bool {
        let passed = now.saturating_sub(self.at);
        self.at = now;
        let Some(spent) = self.times.as_ref().and_then(|times| times.read().ok()) else { return false };
        let waited = spent.waited.saturating_sub(self.before.waited);
        let busy = spent.ran.saturating_sub(self.before.ran) + waited;
        self.before = spent;
        self.shared = waited as f64 > passed as f64 * MOST_WAITING;
        // Who slept through a look or more had time.
        passed < 2 * EVERY && (self.shared || busy as f64 > passed as f64 * (1.0 - LEAST_SLEEP))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many are named of so many that send in turns.
    fn named(senders: u64, shared: bool) -> usize {
        let mut pressure = Pressure::of_this_thread(0);
        (pressure.turns, pressure.shared) = (TURNS, shared);
        let looks = (1..=u64::from(TURNS))
            .map(|turn| pressure.look(0, |all| all.extend([turn % senders, (turn * 7) % senders])));
        let looks: Vec<_> = looks.collect();
        let (last, before) = looks.split_last().expect("there were some");
        assert!(before.iter().all(Option::is_none), "named before all turns were looked at");
        last.as_ref().map_or(0, Vec::len)
    }

    #[test]
    fn half_of_those_who_send_are_named_and_who_is_alone_only_beside_others() {
        for (senders, own, shared) in [(1, 0, 1), (2, 1, 1), (5, 2, 3), (100, NAMED, NAMED)] {
            assert_eq!((named(senders, false), named(senders, true)), (own, shared), "{senders} senders");
        }
    }

    #[test]
    fn a_thread_that_never_sleeps_is_seen_to_and_one_that_does_is_not() {
        if ThreadTimes::of_this_thread().is_err() {
            return;
        }
        let start = weir_io::clock::now();
        let mut pressure = Pressure::of_this_thread(start);
        while weir_io::clock::now() < start + EVERY {}
        assert!(pressure.is_high(start + EVERY));
        std::thread::sleep(std::time::Duration::from_nanos(EVERY));
        assert!(!pressure.is_high(start + 2 * EVERY) || pressure.shared);
    }
}
