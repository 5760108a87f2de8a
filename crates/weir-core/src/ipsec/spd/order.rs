//! The order of a list that changes in the middle, as labels that only compare.
//!
//! Promises: a new element gets a label between its neighbours' by halving their distance; where there is
//! none left, as few around it as leaves room for [`ROOM`] between any two are labelled again. Of an order given
//! whole, those that already rise keep their labels.

use super::Order;
use crate::chunked::Chunked;

/// Distance of neighbours labelled afresh: 32 elements fit between any two before others are touched.
const GAP: Order = 1 << 32;

/// Where a list begins: as much room before it as behind.
const MIDDLE: Order = 1 << 63;

/// What labelling again leaves between two, at least: 16 more fit between them.
const ROOM: Order = 1 << 16;

/// A label that is another now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) slot: u32,
    pub(super) from: Order,
    pub(super) to: Order,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Labels {
    /// Slots in order.
    order: Chunked<u32>,
    /// The label of each slot.
    labels: Vec<Order>,
}

impl Labels {
    pub(super) fn new(order: Vec<u32>) -> Labels {
        let slots = order.iter().max().map_or(0, |&last| last as usize + 1);
        let mut labels = vec![0; slots];
        let mut next = MIDDLE;
        for &slot in &order {
            labels[slot as usize] = next;
            next = next.saturating_add(GAP);
        }
        Labels { order: order.into_iter().collect(), labels }
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        self.order.iter().copied()
    }

    pub(super) fn label(&self, slot: u32) -> Order {
        self.labels[slot as usize]
    }

    /// The number of a slot that is in the list.
    pub(super) fn position(&self, slot: u32) -> Option<usize> {
        let label = self.label(slot);
        let at = self.order.partition_point(|&s| self.label(s) < label);
        (self.order.get(at) == Some(&slot)).then_some(at)
    }

    /// The label of number `at`, if there is one.
    fn label_at(&self, at: usize) -> Option<Order> {
        self.order.get(at).map(|&slot| self.label(slot))
    }

    /// Puts a slot before number `at`; others may get new labels.
    pub(super) fn insert(&mut self, at: usize, slot: u32) -> Vec<Moved> {
        self.order.insert(at, slot);
        let slots = self.labels.len().max(slot as usize + 1);
        self.labels.resize(slots, 0);
        let before = at.checked_sub(1).and_then(|at| self.label_at(at));
        let behind = self.label_at(at + 1);
        let free = match (before, behind) {
            (None, None) => Some(MIDDLE),
            (Some(before), None) => before.checked_add(GAP),
            (None, Some(behind)) => behind.checked_sub(GAP),
            (Some(before), Some(behind)) => (behind - before > 1).then_some(before + (behind - before) / 2),
        };
        match free {
            Some(label) => {
                self.labels[slot as usize] = label;
                Vec::new()
            }
            None => self.spread(at, slot),
        }
    }

    /// Takes out a slot: the number it had.
    pub(super) fn remove(&mut self, slot: u32) -> Option<usize> {
        let at = self.position(slot)?;
        self.order.remove(at);
        Some(at)
    }

    /// Labels what is around number `at`, the slot `fresh` that has none yet, so that there is room between any
    /// two.
    fn spread(&mut self, at: usize, fresh: u32) -> Vec<Moved> {
        let mut width = 8;
        loop {
            let (first, end) = (at.saturating_sub(width), (at + width + 1).min(self.len()));
            let before = first.checked_sub(1).and_then(|at| self.label_at(at)).unwrap_or(0);
            let behind = self.label_at(end).unwrap_or(Order::MAX);
            let step = (behind - before) / (end - first + 1) as Order;
            if step >= ROOM || end - first == self.len() {
                let mut next = before;
                let window: Vec<u32> = self.order.iter().skip(first).take(end - first).copied().collect();
                let label = |slot: u32| {
                    next += step;
                    Moved { slot, from: std::mem::replace(&mut self.labels[slot as usize], next), to: next }
                };
                let moved: Vec<Moved> = window.into_iter().map(label).collect();
                return moved.into_iter().filter(|m| m.slot != fresh && m.from != m.to).collect();
            }
            width *= 2;
        }
    }

    /// Makes `order`, which has the same slots, the order.
    pub(super) fn arrange(&mut self, order: Vec<u32>) -> Vec<Moved> {
        let kept = rising(&order.iter().map(|&s| self.label(s)).collect::<Vec<_>>());
        let mut labels = self.labels.clone();
        let mut at = 0;
        let mut room = true;
        while at < order.len() {
            let end = (at..order.len()).find(|&i| kept[i]).unwrap_or(order.len());
            let before = at.checked_sub(1).map(|at| labels[order[at] as usize]);
            let behind = order.get(end).map(|&s| labels[s as usize]);
            let count = (end - at) as Order;
            let first = match (before, behind) {
                (Some(before), behind) => {
                    let step = behind.map_or(GAP, |behind| (behind - before) / (count + 1));
                    before.checked_add(step).map(|first| (first, step))
                }
                (None, Some(behind)) => behind.checked_sub(count * GAP).map(|first| (first, GAP)),
                (None, None) => Some((MIDDLE, GAP)),
            };
            let fits = first.filter(|&(first, step)| step > 0 && first.checked_add(count * step).is_some());
            match (fits, count) {
                (_, 0) => {}
                (Some((first, step)), _) => {
                    for (i, &slot) in order[at..end].iter().enumerate() {
                        labels[slot as usize] = first + step * i as Order;
                    }
                }
                (None, _) => room = false,
            }
            at = end + 1;
        }
        let next = match room {
            true => Labels { order: order.into_iter().collect(), labels },
            false => Labels::new(order),
        };
        let was = std::mem::replace(self, next);
        let moved = |slot: u32| Moved { slot, from: was.label(slot), to: self.label(slot) };
        self.order.iter().map(|&slot| moved(slot)).filter(|m| m.from != m.to).collect()
    }
}

/// The longest part of `labels` that rises.
fn rising(labels: &[Order]) -> Vec<bool> {
    // By length of a rising part: the place where the one that ends lowest ends.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(labels.len());
    for (at, &label) in labels.iter().enumerate() {
        let len = ends.partition_point(|&end| labels[end] < label);
        before.push(len.checked_sub(1).map(|len| ends[len]));
        if len == ends.len() {
            ends.push(at);
        } else {
            ends[len] = at;
        }
    }
    let mut kept = vec![false; labels.len()];
    let mut next = ends.last().copied();
    while let Some(at) = next {
        kept[at] = true;
        next = before[at];
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rises(labels: &Labels) -> bool {
        labels.order.iter().is_sorted_by(|a, b| labels.label(**a) < labels.label(**b))
    }

    #[test]
    fn there_is_always_room_at_one_place() {
        for at in [0, 1, 500] {
            let mut labels = Labels::new((0..1000).collect());
            let mut again = 0;
            for slot in 1000..3000 {
                again += labels.insert(at, slot).len();
                assert!(rises(&labels), "slot {slot} at {at}");
                assert_eq!(labels.position(slot), Some(at));
            }
            assert!(again < 20 * 2000, "{again} labels for 2000 insertions at {at}");
        }
    }

    #[test]
    fn one_that_moves_alone_leaves_the_others_their_labels() {
        let mut labels = Labels::new((0..100).collect());
        let order: Vec<u32> = (0..90).filter(|&s| s != 7).chain([7]).chain(90..100).collect();
        let moved = labels.arrange(order);
        assert_eq!(moved.iter().map(|m| m.slot).collect::<Vec<_>>(), [7]);
        assert!(rises(&labels));
        let turned: Vec<u32> = labels.iter().collect::<Vec<_>>().into_iter().rev().collect();
        labels.arrange(turned.clone());
        assert!(rises(&labels));
        assert_eq!(labels.iter().collect::<Vec<_>>(), turned);
    }
}
