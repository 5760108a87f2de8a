//! A watch over a transmit ring: frames wait, and nothing takes them.
//!
//! Promises: no clock and no ring of its own (both are told to it); a ring that is empty, or from which anything
//! was taken since the last look, is well; an episode is told once when it begins and once when it ends.

use weir_core::time::{MILLISECOND, Nanos};

/// How long frames may wait without one of them being taken: the slowest driver takes a whole ring of 2,048
/// full frames at 1 Gb/s in 25 ms, and a kernel that is busy elsewhere comes back within 100 ms.
pub const STALL_AFTER: Nanos = 100 * MILLISECOND;

/// What a look at the ring says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The ring moves, or nothing waits in it.
    Moves,
    /// Frames have waited for [`STALL_AFTER`]: from now on this is an episode.
    Stalls,
    /// The episode goes on.
    Stalled,
    /// The ring moved again, after this long.
    MovesAgain(Nanos),
}

/// One transmit ring's past, as far as the next look needs it.
#[derive(Clone, Copy, Debug, Default)]
pub struct StallWatch {
    /// The ring's consumer index and the time when it was last seen to move, or when frames were first seen waiting.
    seen: Option<(u32, Nanos)>,
    stalled: bool,
}

impl StallWatch {
    /// `taken` is the ring's consumer index (it only grows, and wraps), `waiting` the entries behind it.
    pub fn look(&mut self, now: Nanos, taken: u32, waiting: u32) -> Look {
        match self.seen {
            Some((before, since)) if waiting > 0 && before == taken => {
                if now.saturating_sub(since) < STALL_AFTER {
                    return Look::Moves;
                }
                if std::mem::replace(&mut self.stalled, true) { Look::Stalled } else { Look::Stalls }
            }
            seen => {
                self.seen = (waiting > 0).then_some((taken, now));
                match (std::mem::take(&mut self.stalled), seen) {
                    (true, Some((_, since))) => Look::MovesAgain(now.saturating_sub(since)),
                    _ => Look::Moves,
                }
            }
        }
    }

    /// What waits is not to be judged, for example while the link is down: time begins anew.
    pub fn forget(&mut self) {
        *self = StallWatch::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A transmit ring of which the test is both ends.
    #[derive(Default)]
    struct Ring {
        put: u32,
        taken: u32,
        watch: StallWatch,
    }

    impl Ring {
        fn look(&mut self, now: Nanos) -> Look {
            self.watch.look(now, self.taken, self.put.wrapping_sub(self.taken))
        }
    }

    #[test]
    fn an_empty_ring_never_stalls() {
        let mut ring = Ring::default();
        for now in 0..10 {
            assert_eq!(ring.look(now * STALL_AFTER), Look::Moves);
        }
    }

    #[test]
    fn a_ring_that_moves_now_and_then_never_stalls() {
        let mut ring = Ring { put: 1000, ..Ring::default() };
        for turn in 0..100 {
            ring.taken += 1;
            assert_eq!(ring.look(turn * (STALL_AFTER - 1)), Look::Moves);
        }
    }

    #[test]
    fn frames_nobody_takes_are_an_alarm_after_the_bound_and_once() {
        let mut ring = Ring { put: 3, ..Ring::default() };
        assert_eq!(ring.look(7), Look::Moves);
        assert_eq!(ring.look(7 + STALL_AFTER - 1), Look::Moves);
        ring.put = 5;
        assert_eq!(ring.look(7 + STALL_AFTER), Look::Stalls, "more frames are no movement");
        assert_eq!(ring.look(8 + STALL_AFTER), Look::Stalled);
        assert_eq!(ring.look(7 + 9 * STALL_AFTER), Look::Stalled);
        ring.taken = 1;
        assert_eq!(ring.look(7 + 10 * STALL_AFTER), Look::MovesAgain(10 * STALL_AFTER));
        assert_eq!(ring.look(8 + 10 * STALL_AFTER), Look::Moves);
        assert_eq!(ring.look(7 + 11 * STALL_AFTER), Look::Stalls, "a second episode is told again");
    }

    #[test]
    fn time_with_an_empty_ring_does_not_count() {
        let mut ring = Ring { put: 1, ..Ring::default() };
        assert_eq!(ring.look(0), Look::Moves);
        ring.taken = 1;
        assert_eq!(ring.look(STALL_AFTER / 2), Look::Moves);
        ring.put = 2;
        assert_eq!(ring.look(5 * STALL_AFTER), Look::Moves, "put just now, as far as anybody knows");
        assert_eq!(ring.look(6 * STALL_AFTER), Look::Stalls);
    }

    #[test]
    fn the_index_wraps() {
        let mut ring = Ring { put: 1, taken: u32::MAX, ..Ring::default() };
        assert_eq!(ring.look(0), Look::Moves);
        ring.taken = 0;
        assert_eq!(ring.look(STALL_AFTER), Look::Moves);
        assert_eq!(ring.look(2 * STALL_AFTER), Look::Stalls);
    }

    #[test]
    fn what_was_forgotten_begins_anew() {
        let mut ring = Ring { put: 1, ..Ring::default() };
        ring.look(0);
        assert_eq!(ring.look(STALL_AFTER), Look::Stalls);
        ring.watch.forget();
        assert_eq!(ring.look(2 * STALL_AFTER), Look::Moves);
        assert_eq!(ring.look(3 * STALL_AFTER), Look::Stalls);
    }
}
