//! Flows whose connection a RST may have ended.
//!
//! ```text
//! RST ─► kernel: established still, 10 s left; whichever packet comes next gives the time back
//!   `──► the XDP program counts it ─► the next look: the flow is the kernel's ─► the kernel saw a packet ─► taken again
//! ```
//!
//! Window tracking of a taken flow is liberal, and behind what passes, so the kernel believes any RST this much, in whose
//! window nothing is; neither host has to. Who ended the connection sends no more packets, and the entry ends with it.
//!
//! Promises: a flow that had a RST is given no time and passes the kernel no more until the kernel has given its entry time itself.
//! Refuses: to say whether a RST was meant.

use std::collections::BTreeSet;
use std::ops::Bound;

use weir_core::conntrack::{FlowId, Reason, Way};
use weir_core::time::Nanos;
use weir_core::wire::ctnetlink::{Event, TCP_ESTABLISHED, Tuple};
use weir_core::wire::protocol;

use super::take::TAKEN_AFTER;
use super::{Known, Thread, lock};

/// Flows that had a RST and are asked about each second: some 5 ms of work, however many RSTs somebody sends.
const RESET_A_LOOK: usize = 1024;

impl Thread {
    /// Whether an entry has what a RST leaves, and nothing else.
    pub(super) fn was_reset(&mut self, original: &Tuple) -> bool {
        if original.protocol != protocol::TCP {
            return false;
        }
        let Ok(Event::Present(entry)) = self.requests.query(original) else { return false };
        entry.timeout_s.is_some_and(|left| self.lifetimes.is_after_reset(left))
    }

    /// The flow is the kernel's until that has seen a packet of it.
    pub(super) fn give_back_reset(&mut self, known: &mut Known, id: FlowId) {
        self.release(known, id, false);
        known.wanted.remove(&id);
        known.reset.insert(id);
        known.table.set_way(id, Way::Kernel(Reason::Reset));
    }

    /// Flows that the kernel has given time since may be taken again.
    pub(super) fn look_at_reset(&mut self, now: Nanos) {
        let shared = self.known.clone();
        let mut known = lock(&shared);
        let ids = next(&known.reset, self.reset_looked, RESET_A_LOOK);
        self.reset_looked = ids.last().copied();
        for id in ids {
            // What is gone, or closed, its own message tells.
            let Some(original) = known.table.flow(id).map(|flow| *flow.original()) else { continue };
            let Ok(Event::Present(entry)) = self.requests.query(&original) else { continue };
            if entry.tcp_state == Some(TCP_ESTABLISHED)
                && entry.timeout_s.is_some_and(|left| left > self.lifetimes.close_s)
            {
                known.reset.remove(&id);
                known.wanted.insert(id);
                known.fresh.push_back((now + TAKEN_AFTER, id));
            }
        }
    }
}

/// At most `max` behind the one that was last, and from the front again behind the end.
fn next(all: &BTreeSet<FlowId>, last: Option<FlowId>, max: usize) -> Vec<FlowId> {
    let Some(last) = last else { return all.iter().take(max).copied().collect() };
    let behind = all.range((Bound::Excluded(last), Bound::Unbounded));
    behind.chain(all.range(..=last)).take(max).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flow_that_had_a_rst_has_its_turn() {
        let all: BTreeSet<FlowId> = [1, 4, 5, 9].map(FlowId).into();
        let turn = |last: Option<u32>, max| -> Vec<u32> {
            next(&all, last.map(FlowId), max).into_iter().map(|id| id.0).collect()
        };
        assert_eq!(turn(None, 3), [1, 4, 5]);
        assert_eq!(turn(Some(5), 3), [9, 1, 4]);
        assert_eq!(turn(Some(4), 9), [5, 9, 1, 4], "each once");
        assert_eq!(turn(Some(7), 2), [9, 1], "it may be gone");
        assert!(next(&BTreeSet::new(), Some(FlowId(3)), 5).is_empty());
    }
}
