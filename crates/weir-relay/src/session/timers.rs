//! What a worker does at a later time: keepalives, reading again, sending again.
//!
//! Promises: asking is cheap when nothing is due. Entries of connections that are gone are met and passed over.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use weir_core::relay::ConnId;
use weir_core::time::Nanos;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Due {
    Keepalive,
    /// Receive again: the rate allows it.
    Resume,
    /// Send again: the rate allows it.
    Release,
}

#[derive(Debug, Default)]
pub struct Timers {
    heap: BinaryHeap<Reverse<(Nanos, u32, ConnId, Due)>>,
}

impl Timers {
    pub fn add(&mut self, at: Nanos, slot: u32, conn: ConnId, due: Due) {
        self.heap.push(Reverse((at, slot, conn, due)));
    }

    /// When the next one is due.
    pub fn next(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    /// One that is due at `now`.
    pub fn pop(&mut self, now: Nanos) -> Option<(u32, ConnId, Due)> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, slot, conn, due))| (slot, conn, due))
    }

    pub fn memory(&self) -> usize {
        self.heap.capacity() * size_of::<(Nanos, u32, ConnId, Due)>()
    }
}
