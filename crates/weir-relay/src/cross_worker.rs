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

use rtrb::{Producer, PushError};
use weir_io::wake::Waker;

use super::session::CrossWorkerBatch;
use crate::sync::atomic::{AtomicBool, Ordering};

/// Batches in one ring: at 32 KiB each 16 MiB, when a worker does not keep up at all.
pub const RING: usize = 512;

/// How a worker is told that there is something for it.
///
/// Each change of a flag is a swap, which reads the flag's last value: of a worker that lies down and one that rings, the
/// second to change `asleep` sees all that the first did before. `loom/` holds this with acquire and release alone; a store
/// would want the total order of `SeqCst`, and costs as much on x86.
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

    /// Wakes its worker, after something was put in one of its rings or queues.
    pub fn ring(&self) {
        self.note();
        self.notify();
    }

    /// Rings as [`Doorbell::ring`] does, but a worker that sleeps sleeps on until [`Doorbell::notify`].
    pub fn note(&self) {
        self.news.swap(true, Ordering::AcqRel);
    }

    /// Wakes a worker that sleeps although there is something for it.
    pub fn notify(&self) {
        if self.news.load(Ordering::Acquire) && self.asleep.swap(false, Ordering::AcqRel) {
            self.waker.wake();
        }
    }

    /// Whether its worker may sleep now: nothing came since it last looked.
    pub fn prepare_sleep(&self) -> bool {
        self.asleep.swap(true, Ordering::AcqRel);
        let quiet = !self.news.load(Ordering::Acquire);
        if !quiet {
            self.asleep.swap(false, Ordering::AcqRel);
        }
        quiet
    }

    /// Awake again; whether there is something to be taken.
    pub fn wake(&self) -> bool {
        self.asleep.swap(false, Ordering::AcqRel);
        self.news.swap(false, Ordering::AcqRel)
    }
}

/// The way to one other worker.
#[derive(Debug)]
pub struct Mailbox {
    pub ring: Producer<CrossWorkerBatch>,
    pub doorbell: Arc<Doorbell>,
}

impl Mailbox {
    /// The batch comes back when the ring is full.
    pub fn push(&mut self, batch: CrossWorkerBatch) -> Result<(), CrossWorkerBatch> {
        self.ring.push(batch).map_err(|PushError::Full(batch)| batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
