//! What a fuzz function reads: its bytes one after another, as choices of what to do next.
//!
//! Promises: an input that has ended goes on as zeros, so that every input is a whole test.

/// What is done with one input; it panics where a promise is broken.
pub type FuzzTarget = fn(&[u8]);

/// The bytes that are left, with zeros behind them.
pub struct Input<'a>(pub &'a [u8]);

impl Input<'_> {
    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    pub fn word(&mut self) -> usize {
        usize::from(self.byte()) << 8 | usize::from(self.byte())
    }

    pub fn take(&mut self, n: usize) -> &[u8] {
        let (taken, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        taken
    }
}
