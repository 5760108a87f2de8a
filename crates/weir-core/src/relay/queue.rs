//! What waits for one client: data and path discovery, apart.
//!
//! ```text
//!  push ─►  disco  ▯▯▯▯   ─┐
//!           data   ▯▯▯▯▯▯ ─┴─► pop: disco first, but after 8 of them one of data
//!             └ the oldest falls out when its own class is over a limit
//! ```
//!
//! Promises: each class keeps to its own limits in packets and bytes; a full class drops its oldest, never the
//! other's; everything pushed comes out once, popped or dropped by reason. An empty queue can give its memory
//! back ([`Queue::release`]). Refuses: one item larger than its class may hold.

use std::collections::VecDeque;

use super::reason::{Class, Reason};
use crate::time::Nanos;

/// What may wait for one client, of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub packets: usize,
    pub bytes: usize,
}

/// So many of path discovery go before waiting data when both wait.
const DISCO_IN_A_ROW: u8 = 8;

#[derive(Debug)]
pub struct Queue<T> {
    lanes: [Lane<T>; 2],
    /// Of path discovery popped since data was, while data waited.
    disco_in_a_row: u8,
}

#[derive(Debug)]
struct Lane<T> {
    items: VecDeque<Waiting<T>>,
    bytes: usize,
    limits: Limits,
}

#[derive(Debug)]
struct Waiting<T> {
    item: T,
    bytes: u32,
    since: Nanos,
}

/// What came out of a queue to be sent.
#[derive(Debug, PartialEq, Eq)]
pub struct Popped<T> {
    pub item: T,
    pub class: Class,
    /// When it was pushed.
    pub since: Nanos,
}

impl<T> Lane<T> {
    fn new(limits: Limits) -> Lane<T> {
        Lane { items: VecDeque::new(), bytes: 0, limits }
    }

    fn pop(&mut self) -> Option<Waiting<T>> {
        let first = self.items.pop_front()?;
        self.bytes -= first.bytes as usize;
        Some(first)
    }

    fn is_over(&self) -> bool {
        self.items.len() > self.limits.packets || self.bytes > self.limits.bytes
    }
}

impl<T> Queue<T> {
    pub fn new(data: Limits, disco: Limits) -> Queue<T> {
        Queue { lanes: [Lane::new(data), Lane::new(disco)], disco_in_a_row: 0 }
    }

    /// Appends `item`, of so many bytes; hands what falls out to `dropped`, oldest first.
    pub fn push(
        &mut self,
        class: Class,
        item: T,
        bytes: u32,
        now: Nanos,
        mut dropped: impl FnMut(T, Reason),
    ) {
        let lane = &mut self.lanes[class as usize];
        if bytes as usize > lane.limits.bytes || lane.limits.packets == 0 {
            return dropped(item, Reason::QueueTail);
        }
        lane.items.push_back(Waiting { item, bytes, since: now });
        lane.bytes += bytes as usize;
        while lane.is_over()
            && let Some(oldest) = lane.pop()
        {
            dropped(oldest.item, Reason::QueueHead);
        }
    }

    /// What is to be sent next.
    pub fn pop(&mut self) -> Option<Popped<T>> {
        let [data, disco] = &mut self.lanes;
        let data_first = disco.items.is_empty() || self.disco_in_a_row >= DISCO_IN_A_ROW;
        let class = if data_first && !data.items.is_empty() { Class::Data } else { Class::Disco };
        match class {
            Class::Disco if !data.items.is_empty() => self.disco_in_a_row += 1,
            _ => self.disco_in_a_row = 0,
        }
        let Waiting { item, since, .. } = self.lanes[class as usize].pop()?;
        Some(Popped { item, class, since })
    }

    pub fn is_empty(&self) -> bool {
        self.lanes.iter().all(|lane| lane.items.is_empty())
    }

    /// Packets that wait.
    pub fn len(&self) -> usize {
        self.lanes.iter().map(|lane| lane.items.len()).sum()
    }

    /// Bytes that wait.
    pub fn bytes(&self) -> usize {
        self.lanes.iter().map(|lane| lane.bytes).sum()
    }

    /// When the oldest of what waits was pushed.
    pub fn oldest(&self) -> Option<Nanos> {
        self.lanes.iter().filter_map(|lane| lane.items.front()).map(|waiting| waiting.since).min()
    }

    /// Gives the memory of empty lanes back: for a client that has been idle.
    pub fn release(&mut self) {
        for lane in self.lanes.iter_mut().filter(|lane| lane.items.is_empty()) {
            lane.items = VecDeque::new();
        }
    }

    /// Everything that waits, with its class: for a client that is gone.
    pub fn drain(&mut self) -> impl Iterator<Item = (T, Class)> + '_ {
        self.lanes.iter_mut().zip(Class::ALL).flat_map(|(lane, class)| {
            lane.bytes = 0;
            lane.items.drain(..).map(move |waiting| (waiting.item, class))
        })
    }
}
