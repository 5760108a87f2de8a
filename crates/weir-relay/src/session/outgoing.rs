//! Packets for clients of another worker: batches of whole frames, gathered during a turn.
//!
//! Promises: packets of one sender to one receiver keep their order; neighbours for one client share a batch. Refuses:
//! nothing; a batch that the other worker has no room for is dropped and counted by [`super::Session::hand_over`].

use weir_core::relay::{Place, Reason};
use weir_core::time::Nanos;

use crate::backlog::{BufferPool, data_of, first_frame};
use crate::counters::Tally;

/// Frames are added to a batch until it is so large.
const BATCH: usize = 64 << 10;

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
    /// The batches of this turn, in order.
    batches: Vec<CrossWorkerBatch>,
    /// Holds for each slot the index of its last batch in `batches`, plus one.
    by_slot: Vec<u32>,
}

impl Outgoing {
    /// Copies whole frames into a batch.
    pub fn add(&mut self, to: Place, frames: &[u8], count: u32, now: Nanos, pool: &mut BufferPool) {
        let slot = to.slot as usize;
        if self.by_slot.len() <= slot {
            self.by_slot.resize(slot + 1, 0);
        }
        let last = (self.by_slot[slot] as usize).checked_sub(1).and_then(|at| self.batches.get_mut(at));
        if let Some(batch) = last
            && batch.to == to
            && batch.bytes.len() + frames.len() <= BATCH
        {
            batch.bytes.extend_from_slice(frames);
            batch.frames += count;
            return;
        }
        let mut bytes = pool.take(frames.len());
        bytes.extend_from_slice(frames);
        self.batches.push(CrossWorkerBatch { to, frames: count, since: now, bytes });
        self.by_slot[slot] = self.batches.len() as u32;
    }

    /// Hands over what there is; whether there was anything. What `push` gives back is dropped.
    pub fn send(
        &mut self,
        mut push: impl FnMut(CrossWorkerBatch) -> Result<(), CrossWorkerBatch>,
        tally: &mut Tally,
        pool: &mut BufferPool,
    ) -> bool {
        let any = !self.batches.is_empty();
        for batch in self.batches.drain(..) {
            self.by_slot[batch.to.slot as usize] = 0;
            let frames = u64::from(batch.frames);
            match push(batch) {
                Ok(()) => tally.handed += frames,
                Err(batch) => {
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

    #[test]
    fn frames_for_one_client_share_a_batch_and_keep_their_order() {
        let mut outgoing = Outgoing::default();
        let (mut tally, mut pool) = (Tally::default(), BufferPool::default());
        let frame = |n: u8| {
            let mut bytes = Vec::new();
            Frame::RecvPacket(Key([0; 32]), &[n]).write(&mut bytes);
            bytes
        };
        for n in 0..3 {
            outgoing.add(place(5), &frame(n), 1, 0, &mut pool);
            outgoing.add(place(6), &frame(n), 1, 0, &mut pool);
            outgoing.add(place(7), &frame(n), 1, 0, &mut pool);
        }
        // The other worker has room for two.
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
    }
}
