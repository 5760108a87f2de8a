//! Frames that wait for a neighbour (RFC 1122 2.3.2.2: save at least the latest packet).
//!
//! Promises: bounded per next hop and in all; a full queue loses its oldest frame, counted; frames come
//! out in the order they went in, whatever next hop they waited for, so no flow is reordered by waiting.
//! Refuses: to wait longer than [`HOLD_TIME`].

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use super::Event;
use crate::id::PortId;
use crate::packet::Frame;
use crate::tables::Settings;
use crate::time::{MILLISECOND, Nanos, SECOND};

/// Three probes a second apart (RFC 4861 10: MAX_UNICAST_SOLICIT, RETRANS_TIMER), and no longer.
pub const HOLD_TIME: Nanos = 3 * SECOND;
/// How often the control side is reminded of a next hop that frames still wait for.
const ASK_EVERY: Nanos = SECOND;
/// How exactly [`HOLD_TIME`] is kept: a scan of every queue ten times a second costs nothing.
const SCAN_EVERY: Nanos = 100 * MILLISECOND;

/// A frame that waits, and until when.
#[derive(Debug)]
pub(super) struct HeldFrame<B> {
    pub frame: Frame<B>,
    /// The port it came in on (the port it leaves by, of our own frames).
    pub arrived: PortId,
    pub deadline: Nanos,
    /// Order of arrival over all queues.
    sequence: u64,
}

#[derive(Debug)]
struct Queue<B> {
    frames: VecDeque<HeldFrame<B>>,
    asked: Nanos,
}

/// Every queue of one worker.
#[derive(Debug)]
pub(super) struct HoldQueues<B> {
    queues: BTreeMap<(PortId, IpAddr), Queue<B>>,
    /// Frames in all queues; at most `Settings::hold_total`.
    total: usize,
    next_sequence: u64,
    next_scan: Nanos,
}

impl<B> HoldQueues<B> {
    pub fn new() -> Self {
        HoldQueues { queues: BTreeMap::new(), total: 0, next_sequence: 0, next_scan: 0 }
    }

    pub fn len(&self) -> usize {
        self.total
    }

    /// Adds a frame to the queue of `next_hop` and asks for it when nobody did lately. Returns the frame
    /// that had to make room: the queue's oldest, or this one when there is no room at all.
    pub fn push(
        &mut self,
        now: Nanos,
        settings: &Settings,
        next_hop: (PortId, IpAddr),
        held: HeldFrame<B>,
        events: &mut Vec<Event>,
    ) -> Option<HeldFrame<B>> {
        if self.total >= usize::from(settings.hold_total) || settings.hold_per_neighbor == 0 {
            return Some(held);
        }
        let mut ask = false;
        let queue = self.queues.entry(next_hop).or_insert_with(|| {
            ask = true;
            Queue { frames: VecDeque::new(), asked: now }
        });
        ask |= now.saturating_sub(queue.asked) >= ASK_EVERY;
        if ask {
            queue.asked = now;
            events.push(Event::Resolve { port: next_hop.0, next_hop: next_hop.1 });
        }
        queue.frames.push_back(held);
        self.total += 1;
        if queue.frames.len() > usize::from(settings.hold_per_neighbor) {
            self.total -= 1;
            return queue.frames.pop_front();
        }
        None
    }

    /// A frame that starts to wait at `now`.
    pub fn held(&mut self, now: Nanos, frame: Frame<B>, arrived: PortId) -> HeldFrame<B> {
        self.next_sequence += 1;
        HeldFrame { frame, arrived, deadline: now + HOLD_TIME, sequence: self.next_sequence }
    }

    /// Takes every frame out in order of arrival. The queues stay, empty, so that frames which come back
    /// ask for nobody anew; [`HoldQueues::forget_empty`] ends that.
    pub fn take_all(&mut self) -> Vec<HeldFrame<B>> {
        let mut all: Vec<_> = self.queues.values_mut().flat_map(|queue| queue.frames.drain(..)).collect();
        all.sort_by_key(|held| held.sequence);
        self.total = 0;
        all
    }

    pub fn forget_empty(&mut self) {
        self.queues.retain(|_, queue| !queue.frames.is_empty());
    }

    /// Whether a scan is due: the cheap question of every breath.
    #[inline]
    pub fn is_due(&self, now: Nanos) -> bool {
        self.total > 0 && now >= self.next_scan
    }

    /// Takes out what waited too long, in order of arrival, and reminds the control side of the rest.
    pub fn scan(&mut self, now: Nanos, events: &mut Vec<Event>) -> Vec<HeldFrame<B>> {
        self.next_scan = now + SCAN_EVERY;
        let mut late = Vec::new();
        for (&(port, next_hop), queue) in &mut self.queues {
            while queue.frames.front().is_some_and(|held| held.deadline <= now) {
                late.extend(queue.frames.pop_front());
            }
            if !queue.frames.is_empty() && now.saturating_sub(queue.asked) >= ASK_EVERY {
                queue.asked = now;
                events.push(Event::Resolve { port, next_hop });
            }
        }
        self.forget_empty();
        self.total -= late.len();
        late.sort_by_key(|held| held.sequence);
        late
    }
}
