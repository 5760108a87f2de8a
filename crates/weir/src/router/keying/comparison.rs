//! When the kernel's SAs and policies are dumped again and compared with what was heard, and when what failed is tried again.
//!
//! ```text
//! whole ────────── 5 min ──────────►┐
//! interrupted ──── 0.2 s ──────────►├─► due
//! failed ───────── 1, 2, 4 … 32 s ─►┤
//! messages lost, the rest is read ─►┘ at once, but not while dumps fail
//! ```
//!
//! Promises: no dump while messages wait that may be older than lost ones; a failure is tried again within [`AGAIN_MOST`] and
//! is to be said once until it is over. Reads no clock.

use std::io;

use weir_core::time::{MILLISECOND, Nanos, SECOND};

/// A dump that finds what no message told of.
const EVERY: Nanos = 300 * SECOND;
/// A dump that a change interrupted may lack something.
const INTERRUPTED: Nanos = 200 * MILLISECOND;
/// The least and the most time from a failure until it is tried again.
pub(super) const AGAIN: Nanos = SECOND;
const AGAIN_MOST: Nanos = 32 * SECOND;

#[derive(Debug)]
pub(super) struct Comparison {
    at: Nanos,
    /// Messages were lost since the last dump.
    lost: bool,
    /// Dumps that failed, one after the other, and why the last one did.
    failures: u32,
    why: String,
}

impl Comparison {
    /// The first dump was whole at this time.
    pub fn new(now: Nanos) -> Comparison {
        Comparison { at: now.saturating_add(EVERY), lost: false, failures: 0, why: String::new() }
    }

    pub fn messages_lost(&mut self) {
        self.lost = true;
    }

    /// Whether everything is to be dumped: `asked` for by something else, or by what is known here. `all_read`: no message
    /// waits.
    pub fn is_due(&self, now: Nanos, all_read: bool, asked: bool) -> bool {
        let may = all_read || !(self.lost || asked);
        let wanted = (self.lost || asked) && self.failures == 0;
        may && (wanted || now >= self.at)
    }

    pub fn due_at(&self) -> Nanos {
        self.at
    }

    /// A dump has ended; true where the one before it had failed.
    pub fn dumped(&mut self, now: Nanos, interrupted: bool) -> bool {
        self.at = now.saturating_add(if interrupted { INTERRUPTED } else { EVERY });
        self.lost = false;
        std::mem::take(&mut self.failures) > 0
    }

    /// A dump failed; true where the one before it had not.
    pub fn failed(&mut self, now: Nanos, error: &io::Error) -> bool {
        self.at = now.saturating_add((AGAIN << self.failures.min(63)).min(AGAIN_MOST));
        self.failures += 1;
        self.why = error.to_string();
        self.failures == 1
    }

    /// Why what is known may be old.
    pub fn failing(&self) -> Option<&str> {
        (self.failures > 0).then_some(&self.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Nanos = 7 * SECOND;

    fn failure() -> io::Error {
        io::Error::other("no memory")
    }

    #[test]
    fn a_dump_that_fails_is_taken_again_after_a_second_then_later_and_is_said_once() {
        let mut comparison = Comparison::new(START);
        let mut now = START + EVERY;
        assert!(comparison.is_due(now, true, false) && !comparison.is_due(now - 1, true, false));
        let (mut waits, mut said) = (Vec::new(), 0);
        for _ in 0..80 {
            said += u32::from(comparison.failed(now, &failure()));
            assert_eq!(comparison.failing(), Some("no memory"));
            waits.push((comparison.due_at() - now) / SECOND);
            now = comparison.due_at();
            assert!(comparison.is_due(now, true, false) && !comparison.is_due(now - 1, true, false));
        }
        assert_eq!((said, &waits[..7]), (1, &[1, 2, 4, 8, 16, 32, 32][..]));
        assert_eq!(waits.iter().max(), Some(&32));
        assert!(comparison.dumped(now, false), "it had failed before");
        assert_eq!((comparison.failing(), comparison.due_at()), (None, now + EVERY));
        assert!(!comparison.dumped(now, false));
        assert!(comparison.failed(now, &failure()), "it is said again");
        assert_eq!(comparison.due_at(), now + SECOND);
    }

    #[test]
    fn lost_messages_and_those_who_ask_have_everything_dumped_at_once_but_not_while_dumps_fail() {
        let mut comparison = Comparison::new(START);
        assert!(!comparison.is_due(START, true, false) && comparison.is_due(START, true, true));
        comparison.messages_lost();
        assert!(comparison.is_due(START, true, false));
        comparison.failed(START, &failure());
        assert!(!comparison.is_due(START, true, true) && comparison.is_due(START + SECOND, true, false));
        comparison.dumped(START + SECOND, false);
        assert!(!comparison.is_due(START + SECOND, true, false), "nothing is lost any more");
    }

    #[test]
    fn no_dump_is_taken_while_messages_wait_that_may_be_older_than_lost_ones() {
        let mut comparison = Comparison::new(START);
        assert!(comparison.is_due(START + EVERY, false, false));
        assert!(!comparison.is_due(START + EVERY, false, true));
        comparison.messages_lost();
        assert!(!comparison.is_due(START + EVERY, false, false));
        assert!(comparison.is_due(START, true, false));
    }

    #[test]
    fn an_interrupted_dump_is_taken_again_soon() {
        let mut comparison = Comparison::new(START);
        comparison.dumped(START, true);
        assert!(comparison.is_due(START + INTERRUPTED, true, false));
    }
}
