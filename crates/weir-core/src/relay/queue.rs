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

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: Limits = Limits { packets: 3, bytes: 100 };

    /// Pushes items of so many bytes, named by their number; what fell out.
    fn pushed(queue: &mut Queue<u32>, class: Class, items: &[(u32, u32)]) -> Vec<(u32, Reason)> {
        let mut fallen = Vec::new();
        for &(item, bytes) in items {
            queue.push(class, item, bytes, u64::from(item), |item, why| fallen.push((item, why)));
        }
        fallen
    }

    fn all(queue: &mut Queue<u32>) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop().map(|popped| popped.item)).collect()
    }

    #[test]
    fn the_oldest_falls_out_of_a_queue_that_has_too_many() {
        let mut queue = Queue::new(FEW, FEW);
        let fallen = pushed(&mut queue, Class::Data, &[(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]);
        assert_eq!(fallen, [(1, Reason::QueueHead), (2, Reason::QueueHead)]);
        assert_eq!(all(&mut queue), [3, 4, 5]);
    }

    #[test]
    fn as_many_fall_out_as_one_large_packet_takes() {
        let mut queue = Queue::new(FEW, FEW);
        let fallen = pushed(&mut queue, Class::Data, &[(1, 40), (2, 40), (3, 70)]);
        assert_eq!(fallen, [(1, Reason::QueueHead), (2, Reason::QueueHead)]);
        assert_eq!((queue.len(), queue.bytes()), (1, 70));
    }

    #[test]
    fn what_can_never_fit_falls_out_itself_and_nothing_else() {
        let mut queue = Queue::new(FEW, FEW);
        let fallen = pushed(&mut queue, Class::Data, &[(1, 40), (2, 101)]);
        assert_eq!(fallen, [(2, Reason::QueueTail)]);
        assert_eq!(all(&mut queue), [1]);
    }

    #[test]
    fn data_never_pushes_out_path_discovery() {
        let mut queue = Queue::new(FEW, FEW);
        pushed(&mut queue, Class::Disco, &[(1, 70)]);
        pushed(&mut queue, Class::Data, &[(2, 90), (3, 90), (4, 90)]);
        assert_eq!(all(&mut queue), [1, 4]);
    }

    #[test]
    fn path_discovery_goes_first_and_does_not_starve_data() {
        let many = Limits { packets: 100, bytes: 100 };
        let mut queue = Queue::new(many, many);
        pushed(&mut queue, Class::Data, &[(100, 1), (101, 1)]);
        pushed(&mut queue, Class::Disco, &(0..20).map(|i| (i, 1)).collect::<Vec<_>>());
        let order = all(&mut queue);
        assert_eq!(order[..10], [0, 1, 2, 3, 4, 5, 6, 7, 100, 8]);
        assert_eq!(order.iter().position(|&item| item == 101), Some(17));
        assert_eq!(order.len(), 22);
    }

    #[test]
    fn what_waits_knows_since_when() {
        let mut queue = Queue::new(FEW, FEW);
        pushed(&mut queue, Class::Data, &[(5, 1), (9, 1)]);
        pushed(&mut queue, Class::Disco, &[(7, 1)]);
        assert_eq!(queue.oldest(), Some(5));
        assert_eq!(queue.pop(), Some(Popped { item: 7, class: Class::Disco, since: 7 }));
        assert_eq!(queue.pop(), Some(Popped { item: 5, class: Class::Data, since: 5 }));
    }

    #[test]
    fn everything_pushed_comes_out_once() {
        let mut queue = Queue::new(FEW, Limits { packets: 2, bytes: 50 });
        let items: Vec<(u32, u32)> = (0..200).map(|i| (i, i * 37 % 120)).collect();
        let mut out = Vec::new();
        for (at, item) in items.iter().enumerate() {
            let class = Class::ALL[at % 3 % 2];
            out.extend(pushed(&mut queue, class, &[*item]).into_iter().map(|(item, _)| item));
            if at % 5 == 0 {
                out.extend(queue.pop().map(|popped| popped.item));
            }
        }
        out.extend(queue.drain().map(|(item, _)| item));
        assert!(queue.is_empty() && queue.bytes() == 0);
        out.sort_unstable();
        assert_eq!(out, (0..200).collect::<Vec<_>>());
    }
}
