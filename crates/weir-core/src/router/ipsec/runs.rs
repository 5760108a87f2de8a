//! Frames grouped into runs that share something, each run in order of arrival.
//!
//! Promises: nothing is allocated once the vectors have grown to a batch; a flow keeps its order, for all
//! its frames are of one run.

use crate::packet::Frame;

/// Frames with what each of them belongs to.
#[derive(Debug)]
pub(super) struct Runs<B, K> {
    slots: Vec<Option<Frame<B>>>,
    keys: Vec<K>,
    at: usize,
}

impl<B, K: Copy + PartialEq> Runs<B, K> {
    pub fn new() -> Self {
        Runs { slots: Vec::new(), keys: Vec::new(), at: 0 }
    }

    pub fn push(&mut self, key: K, frame: Frame<B>) {
        self.keys.push(key);
        self.slots.push(Some(frame));
    }

    /// Moves the next run behind what `run` has; `None`, and all is empty, after the last.
    pub fn next(&mut self, run: &mut Vec<Frame<B>>) -> Option<K> {
        while self.slots.get(self.at).is_some_and(Option::is_none) {
            self.at += 1;
        }
        let Some(&key) = self.keys.get(self.at) else {
            self.slots.clear();
            self.keys.clear();
            self.at = 0;
            return None;
        };
        for (slot, k) in self.slots[self.at..].iter_mut().zip(&self.keys[self.at..]) {
            if *k == key {
                run.extend(slot.take());
            }
        }
        Some(key)
    }
}
