//! The ring between two workers in place of rtrb's: one thread puts, one takes, and an entry is published by an index.
//!
//! Promises: what rtrb promises, and no more: `push` releases what `pop` acquires.

use std::sync::Arc;

use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::session::CrossWorkerBatch;

#[derive(Debug)]
struct Shared {
    entries: Vec<AtomicU64>,
    put: AtomicU64,
    taken: AtomicU64,
}

/// Makes both ends of a ring.
pub struct RingBuffer;

#[derive(Debug)]
pub struct Producer<T>(Arc<Shared>, std::marker::PhantomData<T>);

#[derive(Debug)]
pub struct Consumer(Arc<Shared>);

#[derive(Debug)]
pub enum PushError<T> {
    Full(T),
}

impl RingBuffer {
    #[expect(clippy::new_ret_no_self, reason = "as rtrb has it")]
    pub fn new(length: usize) -> (Producer<CrossWorkerBatch>, Consumer) {
        let entries = (0..length).map(|_| AtomicU64::new(u64::MAX)).collect();
        let shared = Arc::new(Shared { entries, put: AtomicU64::new(0), taken: AtomicU64::new(0) });
        (Producer(shared.clone(), std::marker::PhantomData), Consumer(shared))
    }
}

impl Shared {
    fn entry(&self, index: u64) -> &AtomicU64 {
        &self.entries[index as usize % self.entries.len()]
    }
}

impl Producer<CrossWorkerBatch> {
    pub fn push(&mut self, batch: CrossWorkerBatch) -> Result<(), PushError<CrossWorkerBatch>> {
        let put = self.0.put.load(Relaxed);
        if put - self.0.taken.load(Acquire) == self.0.entries.len() as u64 {
            return Err(PushError::Full(batch));
        }
        self.0.entry(put).store(batch.0, Relaxed);
        self.0.put.store(put + 1, Release);
        Ok(())
    }
}

impl Consumer {
    pub fn slots(&self) -> usize {
        (self.0.put.load(Acquire) - self.0.taken.load(Relaxed)) as usize
    }

    pub fn pop(&mut self) -> Option<CrossWorkerBatch> {
        let taken = self.0.taken.load(Relaxed);
        if taken == self.0.put.load(Acquire) {
            return None;
        }
        let batch = CrossWorkerBatch(self.0.entry(taken).load(Relaxed));
        self.0.taken.store(taken + 1, Release);
        Some(batch)
    }
}
