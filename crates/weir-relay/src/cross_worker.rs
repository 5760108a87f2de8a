//! From worker to worker: packets for a client of another core travel in batches over one ring a direction.
//!
//! ```text
//!  worker 0 ── batch (whole frames for one client) ──► ring ──► worker 1
//!                              └ the doorbell is rung once a turn, and the waker only used if worker 1 sleeps
//! ```
//!
//! Promises: no lock and no wait; packets of one sender to one receiver keep their order. Refuses: more than
//! [`RING`] batches that nobody has taken: they are dropped and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rtrb::{Producer, PushError};
use weir_core::relay::{Place, Reason};
use weir_core::time::Nanos;
use weir_io::wake::Waker;

use super::backlog::{BufferPool, data_of, first_frame};
use super::counters::Tally;

/// Batches in one ring: at 64 KiB each 16 MiB, when a worker does not keep up at all.
pub const RING: usize = 256;
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

/// How a worker is told that there is something for it.
#[derive(Debug)]
pub struct Doorbell {
    waker: Arc<Waker>,
    asleep: AtomicBool,
    news: AtomicBool,
}

impl Doorbell {
    pub fn new(waker: Arc<Waker>) -> Doorbell {
        Doorbell { waker, asleep: AtomicBool::new(false), news: AtomicBool::new(true) }
    }

    /// After something was put in a ring or a queue of its worker.
    pub fn ring(&self) {
        self.note();
        self.notify();
    }

    /// As [`Doorbell::ring`], but a worker that sleeps sleeps on until [`Doorbell::notify`].
    pub fn note(&self) {
        self.news.store(true, Ordering::SeqCst);
    }

    /// Wakes a worker that sleeps although there is something for it.
    pub fn notify(&self) {
        if self.news.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            self.waker.wake();
        }
    }

    /// Whether its worker may sleep now: nothing came since it last looked.
    pub fn prepare_sleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        let quiet = !self.news.load(Ordering::SeqCst);
        if !quiet {
            self.asleep.store(false, Ordering::SeqCst);
        }
        quiet
    }

    /// Awake again; whether there is something to be taken.
    pub fn wake(&self) -> bool {
        self.asleep.store(false, Ordering::SeqCst);
        self.news.swap(false, Ordering::SeqCst)
    }
}

/// What a worker has for one other worker.
#[derive(Debug)]
pub struct Outgoing {
    ring: Producer<CrossWorkerBatch>,
    doorbell: Arc<Doorbell>,
    /// Of this turn, in order.
    batches: Vec<CrossWorkerBatch>,
    /// By slot: the place of its last batch in `batches`, plus one.
    by_slot: Vec<u32>,
}

impl Outgoing {
    pub fn new(ring: Producer<CrossWorkerBatch>, doorbell: Arc<Doorbell>) -> Outgoing {
        Outgoing { ring, doorbell, batches: Vec::new(), by_slot: Vec::new() }
    }

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

    /// Hands over what there is.
    pub fn send(&mut self, tally: &mut Tally, pool: &mut BufferPool) {
        if self.batches.is_empty() {
            return;
        }
        for batch in self.batches.drain(..) {
            self.by_slot[batch.to.slot as usize] = 0;
            let frames = u64::from(batch.frames);
            match self.ring.push(batch) {
                Ok(()) => tally.handed += frames,
                Err(PushError::Full(batch)) => {
                    drop_frames(&batch.bytes, Reason::RingFull, tally);
                    pool.give(batch.bytes);
                }
            }
        }
        self.doorbell.ring();
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
        let (producer, mut consumer) = rtrb::RingBuffer::new(2);
        let doorbell = Arc::new(Doorbell::new(Arc::new(Waker::new().expect("an eventfd"))));
        let mut outgoing = Outgoing::new(producer, doorbell.clone());
        let (mut tally, mut pool) = (Tally::default(), BufferPool::default());
        doorbell.wake();
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
        outgoing.send(&mut tally, &mut pool);
        assert!(doorbell.wake());
        let batch = consumer.pop().expect("a batch");
        assert_eq!((batch.to.slot, batch.frames), (5, 3));
        assert_eq!(batch.bytes, [frame(0), frame(1), frame(2)].concat());
        // The ring has room for two.
        assert_eq!((tally.handed, tally.drops.packets()), (6, 3));
    }

    #[test]
    fn a_doorbell_that_was_rung_does_not_let_its_worker_sleep() {
        let doorbell = Doorbell::new(Arc::new(Waker::new().expect("an eventfd")));
        assert!(doorbell.wake() && doorbell.prepare_sleep());
        doorbell.ring();
        assert!(doorbell.wake());
        assert!(!doorbell.wake());
        doorbell.ring();
        assert!(!doorbell.prepare_sleep());
    }

    #[test]
    fn a_note_is_found_by_whoever_is_awake_and_wakes_nobody_else() {
        let doorbell = Doorbell::new(Arc::new(Waker::new().expect("an eventfd")));
        doorbell.note();
        assert!(!doorbell.prepare_sleep());
        assert!(doorbell.wake());
        assert!(doorbell.prepare_sleep());
        doorbell.notify();
        assert!(doorbell.asleep.load(Ordering::SeqCst), "there is nothing for it");
        doorbell.note();
        assert!(doorbell.asleep.load(Ordering::SeqCst));
        doorbell.notify();
        assert!(!doorbell.asleep.load(Ordering::SeqCst));
        assert!(doorbell.wake());
    }
}
