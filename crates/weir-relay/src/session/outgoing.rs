//! Packets for clients of another worker: batches of whole frames, gathered during a turn.
//!
//! ```text
//!  ring   │ a │ a │ b │   │   │   │ . │ . │    a quarter is for who has nothing under way; of the rest three are free:
//!                                             a may open one more batch, b one, c any
//! ```
//!
//! Promises: packets of one sender to one receiver keep their order; neighbours for one client share a batch; a sender has
//! no more batches under way than are free beside a quarter of the ring, which is kept for those who have none. So one
//! sender fills less than half of the ring, and many who flood leave a quarter to the others. Refuses: what goes beyond
//! that, and a batch that the other worker has no room for: it is dropped and counted.

use std::collections::VecDeque;

use weir_core::relay::{Place, Reason};
use weir_core::time::Nanos;

use crate::backlog::{BufferPool, data_of, first_frame};
use crate::counters::Tally;

/// Frames are added to a batch until it is so large.
const BATCH: usize = 32 << 10;

/// Whole frames for one client.
#[derive(Debug)]
pub struct CrossWorkerBatch {
    pub to: Place,
    pub frames: u32,
    /// When they came.
    pub since: Nanos,
    pub bytes: Vec<u8>,
}

/// What a session has for the clients of one other worker.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// The batches of this turn, in order, each with the slot of the client that opened it.
    batches: Vec<(Option<u32>, CrossWorkerBatch)>,
    /// Holds for each slot the index of its last batch in `batches`, plus one.
    by_slot: Vec<u32>,
    /// The owners of the batches that the other worker was not seen to have taken, the oldest first.
    untaken: VecDeque<Option<u32>>,
    /// Counts for each slot those of `batches` and `untaken` that its client opened.
    under_way: Vec<u32>,
    /// Batches the ring has room for, at the beginning of the turn.
    free: usize,
    /// Those of them that are for clients which have nothing under way.
    reserve: usize,
}

impl Outgoing {
    /// How full the ring is at the beginning of a turn: batches that nobody has taken, and room for more.
    pub fn note_ring(&mut self, untaken: usize, free: usize) {
        self.free = free;
        self.reserve = (untaken + free) / 4;
        while self.untaken.len() > untaken {
            let taken = self.untaken.pop_front().flatten();
            if let Some(under_way) = taken.and_then(|slot| self.under_way.get_mut(slot as usize)) {
                *under_way -= 1;
            }
        }
    }

    /// Copies whole frames of the client with the slot `from` into a batch; whether that client may have one more. Frames of
    /// no client are always taken.
    #[must_use]
    pub fn add(
        &mut self,
        from: Option<u32>,
        to: Place,
        (frames, count): (&[u8], u32),
        now: Nanos,
        pool: &mut BufferPool,
    ) -> bool {
        let slot = to.slot as usize;
        if self.by_slot.len() <= slot {
            self.by_slot.resize(slot + 1, 0);
        }
        let last = (self.by_slot[slot] as usize).checked_sub(1).and_then(|at| self.batches.get_mut(at));
        if let Some((_, batch)) = last
            && batch.to == to
            && batch.bytes.len() + frames.len() <= BATCH
        {
            batch.bytes.extend_from_slice(frames);
            batch.frames += count;
            return true;
        }
        if let Some(from) = from
            && !self.charge(from as usize)
        {
            return false;
        }
        let mut bytes = pool.take(frames.len());
        bytes.extend_from_slice(frames);
        self.batches.push((from, CrossWorkerBatch { to, frames: count, since: now, bytes }));
        self.by_slot[slot] = self.batches.len() as u32;
        true
    }

    /// Counts one more batch of a client's, if it may have one.
    fn charge(&mut self, from: usize) -> bool {
        if self.under_way.len() <= from {
            self.under_way.resize(from + 1, 0);
        }
        let free = self.free.saturating_sub(self.batches.len());
        let may = match self.under_way[from] as usize {
            0 => free > 0,
            own => own + self.reserve < free,
        };
        self.under_way[from] += u32::from(may);
        may
    }

    /// Hands over what there is; whether there was anything. What `push` gives back is dropped.
    pub fn send(
        &mut self,
        mut push: impl FnMut(CrossWorkerBatch) -> Result<(), CrossWorkerBatch>,
        tally: &mut Tally,
        pool: &mut BufferPool,
    ) -> bool {
        let any = !self.batches.is_empty();
        for (from, batch) in self.batches.drain(..) {
            self.by_slot[batch.to.slot as usize] = 0;
            let frames = u64::from(batch.frames);
            match push(batch) {
                Ok(()) => {
                    tally.handed += frames;
                    self.untaken.push_back(from);
                }
                Err(batch) => {
                    if let Some(under_way) = from.and_then(|slot| self.under_way.get_mut(slot as usize)) {
                        *under_way -= 1;
                    }
                    drop_frames(&batch.bytes, Reason::RingFull, tally);
                    pool.give(batch.bytes);
                }
            }
        }
        any
    }
}

/// Counts every frame of `bytes` as dropped.
pub fn drop_frames(bytes: &[u8], reason: Reason, tally: &mut Tally) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let frame = first_frame(rest);
        tally.drop_packet(reason, data_of(frame));
        rest = &rest[frame.len()..];
    }
}

#[cfg(test)]
mod tests {
    use weir_core::relay::{Frame, Key};

    use super::*;

    fn place(slot: u32) -> Place {
        Place { worker: 1, slot, conn: u64::from(slot) }
    }

    fn frame(n: u8) -> Vec<u8> {
        let mut bytes = Vec::new();
        Frame::RecvPacket(Key([0; 32]), &[n]).write(&mut bytes);
        bytes
    }

    #[test]
    fn frames_for_one_client_share_a_batch_and_keep_their_order() {
        let mut outgoing = Outgoing::default();
        outgoing.note_ring(0, 6);
        let (mut tally, mut pool) = (Tally::default(), BufferPool::default());
        for n in 0..3 {
            for to in 5..8 {
                assert!(outgoing.add(Some(1), place(to), (&frame(n), 1), 0, &mut pool));
            }
        }
        // The other worker has room for two after all.
        let mut taken = Vec::new();
        let push = |batch| {
            if taken.len() == 2 {
                return Err(batch);
            }
            taken.push(batch);
            Ok(())
        };
        assert!(outgoing.send(push, &mut tally, &mut pool));
        assert_eq!((taken[0].to.slot, taken[0].frames), (5, 3));
        assert_eq!(taken[0].bytes, [frame(0), frame(1), frame(2)].concat());
        assert_eq!((tally.handed, tally.drops.packets()), (6, 3));
        assert!(!outgoing.send(Err, &mut tally, &mut pool));
        assert_eq!((outgoing.untaken.len(), outgoing.under_way[1]), (2, 2));
    }

    /// Adds as many batches as `from` may have, each to another client.
    fn flood(outgoing: &mut Outgoing, from: u32, pool: &mut BufferPool) -> usize {
        (0..1000)
            .take_while(|n| outgoing.add(Some(from), place(from * 1000 + n), (&frame(0), 1), 0, pool))
            .count()
    }

    #[test]
    fn whoever_floods_leaves_room_to_all_others() {
        const RING: usize = 64;
        let (mut tally, mut pool) = (Tally::default(), BufferPool::default());
        let mut outgoing = Outgoing::default();
        outgoing.note_ring(0, RING);
        // Half of what is not kept for others.
        assert_eq!(flood(&mut outgoing, 1, &mut pool), 24);
        assert!(outgoing.send(|_| Ok(()), &mut tally, &mut pool));
        // Nothing is taken: the same sender gets no more, another one half of the rest.
        outgoing.note_ring(24, RING - 24);
        assert_eq!(flood(&mut outgoing, 1, &mut pool), 0);
        assert_eq!(flood(&mut outgoing, 2, &mut pool), 12);
        assert!(outgoing.send(|_| Ok(()), &mut tally, &mut pool));
        // Taken in order: the first sender's are gone first.
        outgoing.note_ring(12, RING - 12);
        assert_eq!((outgoing.under_way[1], outgoing.under_way[2]), (0, 12));
        outgoing.note_ring(0, RING);
        assert_eq!(outgoing.under_way, [0, 0, 0]);
        // Several who flood leave a quarter, where each other client finds room for a batch.
        let floods: usize = (1..6).map(|from| flood(&mut outgoing, from, &mut pool)).sum();
        let others = (100..).take_while(|from| flood(&mut outgoing, *from, &mut pool) == 1).count();
        assert!(floods + others == RING && others >= RING / 4, "{floods} {others}");
    }

    #[test]
    fn frames_of_no_client_are_taken_where_clients_get_no_more() {
        let (mut tally, mut pool) = (Tally::default(), BufferPool::default());
        let mut outgoing = Outgoing::default();
        assert!(!outgoing.add(Some(0), place(1), (&frame(0), 1), 0, &mut pool));
        assert!(outgoing.add(None, place(1), (&frame(0), 1), 0, &mut pool));
        assert!(outgoing.send(Err, &mut tally, &mut pool));
        assert_eq!((tally.drops.packets(), outgoing.under_way[0]), (1, 0));
    }
}
