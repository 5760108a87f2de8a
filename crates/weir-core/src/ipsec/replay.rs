//! The anti-replay window (RFC 4303 3.4.3 and appendix A2, in blocks as RFC 6479 has them).
//!
//! Promises: a sequence number is accepted once; what lies left of the window never. Nothing changes
//! before a packet is authentic: [`Replay::check`] asks, [`Replay::accept`] remembers.

use crate::verdict::Reason;

/// The window of one inbound SA.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    size: u16,
    top: u64,
    /// Bit `n % 64` of block `n / 64`, in a ring one block longer than the window.
    blocks: Vec<u64>,
}

impl Replay {
    /// A window of `size` sequence numbers; 0 lets everything pass.
    pub fn new(size: u16) -> Replay {
        Replay { size, top: 0, blocks: vec![0; usize::from(size).div_ceil(64) + 1] }
    }

    pub fn size(&self) -> u16 {
        self.size
    }

    /// The highest sequence number authenticated.
    pub fn top(&self) -> u64 {
        self.top
    }

    /// The whole sequence number behind the 32 bits sent (RFC 4303 A2.2).
    pub fn extend(&self, low: u32) -> u64 {
        let (top_high, top_low) = (self.top >> 32, self.top as u32);
        let window = u32::from(self.size.max(1));
        let high = if top_low >= window - 1 {
            // The window lies within one subspace.
            if low >= top_low - (window - 1) { top_high } else { top_high.wrapping_add(1) }
        } else if low >= top_low.wrapping_sub(window - 1) {
            top_high.wrapping_sub(1)
        } else {
            top_high
        };
        (high & 0xffff_ffff) << 32 | u64::from(low)
    }

    /// Whether a packet with this number may be looked at.
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
                let at = (block % self.blocks.len() as u64) as usize;
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
        for sequence in self.top.saturating_add(1).saturating_sub(u64::from(size))..=self.top {
            if self.size == 0 || self.check(sequence).is_err() {
                let at = resized.block(sequence);
                resized.blocks[at] |= 1 << (sequence % 64);
            }
        }
        resized
    }

    fn block(&self, sequence: u64) -> usize {
        ((sequence / 64) % self.blocks.len() as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn another_size_forgets_nothing_and_reaches_back_to_nothing() {
        let mut replay = Replay::new(64);
        for sequence in (1..=200).filter(|n| n % 3 == 0) {
            assert_eq!(replay.accept(sequence), Ok(()));
        }
        let (wide, narrow) = (replay.resized(256), replay.resized(32));
        for sequence in 1..=200 {
            let was = replay.check(sequence);
            assert_eq!(wide.check(sequence).is_ok(), was.is_ok(), "{sequence}");
            assert_eq!(narrow.check(sequence).is_ok(), was.is_ok() && sequence > 198 - 32, "{sequence}");
        }
    }
}
