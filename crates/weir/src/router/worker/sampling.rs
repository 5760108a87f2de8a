//! A worker's side of a capture: copies of frames it drops, on their way to the control thread.
//!
//! Promises: at most so many in [`ALLOWED_EVERY`]; a full channel delays nothing, what it has no room for counts as
//! dropped and is not among the copies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;

use weir_core::id::PortId;
use weir_core::packet::Buffer;
use weir_core::router::Router;
use weir_core::router::sampler::{Link, Sample, Sampler};
use weir_core::tables::Tables;
use weir_core::time::{MILLISECOND, Nanos};
use weir_core::verdict::Reason;

/// How often a worker may copy again.
pub const ALLOWED_EVERY: Nanos = 100 * MILLISECOND;

/// What a worker does for a capture.
#[derive(Clone, Debug)]
pub struct CaptureOrder {
    pub reasons: Arc<[Reason]>,
    /// Bytes of a frame.
    pub keep: usize,
    /// Copies in [`ALLOWED_EVERY`].
    pub allowed: u32,
    pub copies: SyncSender<CapturedCopy>,
    /// Frames dropped for one of the reasons.
    pub dropped: Arc<AtomicU64>,
}

/// A copy on its way from a worker.
#[derive(Debug)]
pub struct CapturedCopy {
    pub at: Nanos,
    pub port: Option<PortId>,
    pub sample: Sample,
}

/// A worker's side of a capture.
#[derive(Debug)]
pub struct Sampling {
    order: CaptureOrder,
    allowed_at: Nanos,
}

impl Sampling {
    pub fn begin<B: Buffer>(order: CaptureOrder, now: Nanos, router: &mut Router<B>) -> Sampling {
        let mut sampler = Sampler::new(&order.reasons, order.keep);
        sampler.allow(order.allowed);
        router.set_sampler(Some(sampler));
        Sampling { order, allowed_at: now }
    }

    /// Passes on what a breath at `now` has copied, without waiting.
    pub fn pass_on<B: Buffer>(&mut self, now: Nanos, tables: &Tables, router: &mut Router<B>) {
        let Some(sampler) = router.sampler() else { return };
        let (dropped, samples) = sampler.drain();
        if dropped > 0 {
            self.order.dropped.fetch_add(dropped, Ordering::Relaxed);
        }
        for sample in samples {
            let port = match sample.link {
                Link::Ethernet => tables.port_of(sample.device, &sample.data),
                Link::Ip => tables.port_of(sample.device, &[]),
            };
            // Full: counted as dropped and not among the copies, like what was above the rate.
            let _ = self.order.copies.try_send(CapturedCopy { at: now, port, sample });
        }
        if now.saturating_sub(self.allowed_at) >= ALLOWED_EVERY {
            self.allowed_at = now;
            sampler.allow(self.order.allowed);
        }
    }
}
