//! What stands in a worker's device slot besides one queue: nothing yet, or several queues of one device.

use std::os::fd::RawFd;

use weir_core::device::{Device, DeviceStats, DeviceStatus};
use weir_core::packet::{Batch, Frame, Pool};
use weir_core::time::Nanos;
use weir_io::umem::Chunk;

/// A device that is not there: receives nothing, takes nothing.
pub struct Absent;

impl Device<Chunk> for Absent {
    fn rx(&mut self, _pool: &mut Pool<Chunk>, _batch: &mut Batch<Chunk>) -> usize {
        0
    }

    fn tx(&mut self, _pool: &mut Pool<Chunk>, _frames: &mut Vec<Frame<Chunk>>) -> usize {
        0
    }

    fn buffers_held(&self) -> usize {
        0
    }

    fn stats(&mut self) -> DeviceStats {
        DeviceStats::default()
    }

    fn status(&mut self) -> DeviceStatus {
        DeviceStatus::Gone
    }
}

/// Several receive queues of one device for one worker, where a device has more queues than there are
/// workers. Received from in turn, so that none starves; sent through the first.
pub struct Several<D: ?Sized> {
    queues: Vec<Box<D>>,
    next: usize,
}

impl<D: Device<Chunk> + ?Sized> Several<D> {
    pub fn new(first: Box<D>) -> Self {
        Several { queues: vec![first], next: 0 }
    }

    pub fn add(&mut self, queue: Box<D>) {
        self.queues.push(queue);
    }
}

impl<D: Device<Chunk> + ?Sized> Device<Chunk> for Several<D> {
    fn rx(&mut self, pool: &mut Pool<Chunk>, batch: &mut Batch<Chunk>) -> usize {
        let count = self.queues.len();
        let first = self.next;
        self.next = (first + 1) % count;
        (0..count).map(|i| self.queues[(first + i) % count].rx(pool, batch)).sum()
    }

    fn tx(&mut self, pool: &mut Pool<Chunk>, frames: &mut Vec<Frame<Chunk>>) -> usize {
        self.queues[0].tx(pool, frames)
    }

    fn buffers_held(&self) -> usize {
        self.queues.iter().map(|q| q.buffers_held()).sum()
    }

    fn stats(&mut self) -> DeviceStats {
        let mut sum = DeviceStats::default();
        for queue in &mut self.queues {
            add(&mut sum, queue.stats());
        }
        sum
    }

    fn watch(&mut self, now: Nanos) -> Option<String> {
        let told: Vec<String> = self.queues.iter_mut().filter_map(|queue| queue.watch(now)).collect();
        (!told.is_empty()).then(|| told.join("; "))
    }

    fn unsent(&self) -> bool {
        self.queues.iter().any(|q| q.unsent())
    }

    fn take_owed_wake_up(&mut self) -> Option<RawFd> {
        // The others send nothing.
        self.queues[0].take_owed_wake_up()
    }

    fn received_by_kernel(&self) -> bool {
        self.queues.iter().any(|q| q.received_by_kernel())
    }

    fn status(&mut self) -> DeviceStatus {
        self.queues[0].status()
    }
}

pub(super) fn add(to: &mut DeviceStats, more: DeviceStats) {
    to.rx_ring_full += more.rx_ring_full;
    to.rx_invalid += more.rx_invalid;
    to.tx_invalid += more.tx_invalid;
    to.rx_fill_empty += more.rx_fill_empty;
    to.rx_truncated += more.rx_truncated;
    to.tx_stalled += more.tx_stalled;
    to.tx_live += more.tx_live;
    to.tx_dropped += more.tx_dropped;
}
