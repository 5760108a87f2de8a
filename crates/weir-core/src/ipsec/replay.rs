//! The anti-replay window (RFC 4303 3.4.3 and appendix A2, in blocks as RFC 6479 has them).
//!
//! ```text
//!            top − size + 1          top
//! too old … |  seen or not, a bit each | … what may come
//! ```
//!
//! Promises: a sequence number is accepted once; what lies left of the window never. Nothing changes
//! before a packet is authentic: [`Replay::check`] asks, [`Replay::accept`] remembers. Refuses number 0,
//! which no sender uses where replays are watched for (RFC 4303 3.3.3).

use crate::verdict::Reason;

/// How far behind the highest number a late packet's upper half is still found without a window: half a
/// subspace, so that the nearest of two candidates is taken.
const REACH_WITHOUT_WINDOW: u32 = 1 << 31;

/// The window of one inbound SA.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    size: u16,
    top: u64,
    /// Bit `n % 64` of block `n / 64`, in a ring longer than the window by a block at least; its length is
    /// a power of two.
    blocks: Vec<u64>,
}

impl Replay {
    /// A window of `size` sequence numbers; 0 lets everything pass.
    pub fn new(size: u16) -> Replay {
        let length = (usize::from(size).div_ceil(64) + 1).next_power_of_two();
        let mut blocks = vec![0; length];
        // Number 0 counts as seen.
        blocks[0] = 1;
        Replay { size, top: 0, blocks }
    }

    /// A window whose highest number is `top`, of which nothing is known but that: all of it counts as seen.
    pub fn resumed(size: u16, top: u64) -> Replay {
        let mut replay = Replay::new(size);
        if top > 0 {
            replay.top = top;
            replay.blocks.fill(u64::MAX);
            // What is right of the top may come.
            let at = replay.block(top);
            replay.blocks[at] = u64::MAX >> (63 - top % 64);
        }
        replay
    }

    pub fn size(&self) -> u16 {
        self.size
    }

    /// The highest sequence number authenticated.
    pub fn top(&self) -> u64 {
        self.top
    }

    /// The whole sequence number behind the 32 bits sent (RFC 4303 A2.2): in the window or right of it,
    /// less than 2^32 numbers from the window's left end.
    pub fn extend(&self, low: u32) -> u64 {
        let (high, top_low) = (self.top >> 32, self.top as u32);
        let size = if self.size == 0 { REACH_WITHOUT_WINDOW } else { u32::from(self.size) };
        let left = top_low.wrapping_sub(size - 1);
        let high = if top_low >= size - 1 {
            // Case A: the window lies within one subspace. A number left of it is one of the next.
            high + u64::from(low < left)
        } else {
            // Case B: it begins in the subspace before, unless this is the first.
            high.saturating_sub(u64::from(low >= left))
        };
        (high & 0xffff_ffff) << 32 | u64::from(low)
    }

    /// Whether a packet with this number may be looked at.
    #[inline]
    pub fn check(&self, sequence: u64) -> Result<(), Reason> {
        if self.size == 0 || sequence > self.top {
            return Ok(());
        }
        if self.top - sequence >= u64::from(self.size) {
            return Err(Reason::ReplayTooOld);
        }
        let block = self.blocks[self.block(sequence)];
        if block >> (sequence % 64) & 1 != 0 { Err(Reason::Replayed) } else { Ok(()) }
    }

    /// Remembers the number of an authentic packet; says what [`Replay::check`] says, for another packet
    /// may have come between.
    #[inline]
    pub fn accept(&mut self, sequence: u64) -> Result<(), Reason> {
        self.check(sequence)?;
        if self.size == 0 {
            self.top = self.top.max(sequence);
            return Ok(());
        }
        if sequence > self.top {
            let (old, new) = (self.top / 64, sequence / 64);
            let fresh = (new - old).min(self.blocks.len() as u64);
            for block in new + 1 - fresh..=new {
                let at = self.block(block * 64);
                self.blocks[at] = 0;
            }
            self.top = sequence;
        }
        let at = self.block(sequence);
        self.blocks[at] |= 1 << (sequence % 64);
        Ok(())
    }

    /// The same window with another size: what was seen stays seen, and what a larger window reaches back
    /// to counts as seen, for nobody knows.
    #[must_use]
    pub fn resized(&self, size: u16) -> Replay {
        let mut resized = Replay { top: self.top, ..Replay::new(size) };
        resized.blocks.fill(0);
        for sequence in self.top.saturating_add(1).saturating_sub(u64::from(size))..=self.top {
            if self.size == 0 || self.check(sequence).is_err() {
                let at = resized.block(sequence);
                resized.blocks[at] |= 1 << (sequence % 64);
            }
        }
        resized
    }

    #[inline]
    fn block(&self, sequence: u64) -> usize {
        (sequence / 64) as usize & (self.blocks.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window whose highest number is `top`.
    fn at(size: u16, top: u64) -> Replay {
        let mut replay = Replay::new(size);
        assert_eq!(replay.accept(top), Ok(()));
        replay
    }

    #[test]
    fn a_number_is_accepted_once_and_never_left_of_the_window() {
        let mut replay = Replay::new(64);
        for sequence in [1, 2, 100, 37] {
            assert_eq!(replay.accept(sequence), Ok(()));
            assert_eq!(replay.accept(sequence), Err(Reason::Replayed));
        }
        assert_eq!(replay.accept(36), Err(Reason::ReplayTooOld));
    }

    #[test]
    fn a_resumed_window_takes_nothing_up_to_its_top_and_everything_above_once() {
        for top in [1, 63, 64, 5000, 7 << 32 | 12] {
            let mut replay = Replay::resumed(128, top);
            for sequence in top.saturating_sub(500)..=top {
                assert!(replay.check(sequence).is_err(), "{sequence} of {top}");
            }
            for sequence in [top + 2, top + 1, top + 400, top + 300] {
                assert_eq!(replay.accept(sequence), Ok(()));
                assert_eq!(replay.accept(sequence), Err(Reason::Replayed));
            }
        }
        assert_eq!(Replay::resumed(64, 0).accept(1), Ok(()), "nothing was seen");
    }

    #[test]
    fn number_zero_is_refused_where_replays_are() {
        assert_eq!(Replay::new(32).check(0), Err(Reason::Replayed));
        assert_eq!(at(32, 31).check(0), Err(Reason::Replayed));
        assert_eq!(at(32, 32).check(0), Err(Reason::ReplayTooOld));
        assert_eq!(at(4096, 1 << 20).check(0), Err(Reason::ReplayTooOld));
        assert_eq!(Replay::new(0).check(0), Ok(()));
    }

    #[test]
    fn case_a_the_window_lies_in_one_subspace() {
        // RFC 4303 A2.1: Tl ≥ W − 1. From Bl = Tl − W + 1 on it is Th, below it Th + 1.
        let (high, top) = (7u64, 1000u32);
        let replay = at(64, high << 32 | u64::from(top));
        for low in [937, 938, 1000, 1001, u32::MAX] {
            assert_eq!(replay.extend(low), high << 32 | u64::from(low));
        }
        for low in [0, 1, 936] {
            assert_eq!(replay.extend(low), (high + 1) << 32 | u64::from(low));
        }
        // The narrowest case: Tl = W − 1, and the window begins with the subspace.
        assert_eq!(at(64, high << 32 | 63).extend(0), high << 32);
    }

    #[test]
    fn case_b_the_window_spans_two_subspaces() {
        // Tl < W − 1: from Bl = Tl − W + 1 + 2^32 on it is Th − 1, below it Th.
        let (high, top) = (7u64, 10u32);
        let replay = at(64, high << 32 | u64::from(top));
        let left = top.wrapping_sub(63);
        for low in [left, left + 1, u32::MAX] {
            assert_eq!(replay.extend(low), (high - 1) << 32 | u64::from(low));
        }
        for low in [0, 10, 11, left - 1] {
            assert_eq!(replay.extend(low), high << 32 | u64::from(low));
        }
    }

    #[test]
    fn there_is_no_subspace_before_the_first() {
        assert_eq!(at(64, 10).extend(u32::MAX), u64::from(u32::MAX));
        assert_eq!(Replay::new(64).extend(u32::MAX), u64::from(u32::MAX));
    }

    #[test]
    fn without_a_window_the_nearest_number_is_taken() {
        let replay = at(0, 7 << 32 | 1000);
        assert_eq!(replay.extend(999), 7 << 32 | 999);
        assert_eq!(replay.extend(0), 7 << 32);
        assert_eq!(replay.extend(u32::MAX), 6 << 32 | 0xffff_ffff);
        assert_eq!(at(0, 7 << 32 | 0xffff_fff0).extend(5), 8 << 32 | 5);
    }
    #[test]
    fn another_size_forgets_nothing_and_reaches_back_to_nothing() {
        for top in [200u64, 4096, 4097, 4127] {
            let mut replay = Replay::new(64);
            for sequence in (top.saturating_sub(300).max(1)..=top).filter(|n| n % 3 == 0) {
                assert_eq!(replay.accept(sequence), Ok(()));
            }
            let (wide, narrow) = (replay.resized(256), replay.resized(32));
            for sequence in top - 190..=top {
                let was = replay.check(sequence).is_ok();
                assert_eq!(wide.check(sequence).is_ok(), was, "{sequence}");
                let left = replay.top() - 32;
                assert_eq!(narrow.check(sequence).is_ok(), was && sequence > left, "{sequence}");
            }
        }
        assert_eq!(Replay::new(64).resized(128).check(0), Err(Reason::Replayed));
    }
}
