//! What frames end by: a count for each, and for some of those that are dropped a copy.

use super::sampler::{Link, Sampler};
use crate::packet::{Buffer, Frame, Pool};
use crate::verdict::{Ledger, Reason};

/// The ledger of a worker, and what is copied of frames that are dropped, if anything.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    pub ledger: Ledger,
    /// Asked once a drop; a packet that goes on never gets here.
    pub sampler: Option<Box<Sampler>>,
}

impl Accounts {
    /// Ends a frame that goes nowhere and begins with `link`: our own is lost, a received one is a drop.
    pub fn drop_frame<B: Buffer>(&mut self, frame: Frame<B>, link: Link, reason: Reason, pool: &mut Pool<B>) {
        self.count(&frame, reason);
        self.sample(&frame, link, reason, frame.len());
        pool.put(frame.into_buffer());
    }

    /// The same of a frame whose bytes from `readable` on are not what came in any more.
    #[cfg(feature = "ipsec")]
    pub fn drop_overwritten<B: Buffer>(
        &mut self,
        frame: Frame<B>,
        (reason, readable): (Reason, usize),
        pool: &mut Pool<B>,
    ) {
        self.count(&frame, reason);
        self.sample(&frame, Link::Ip, reason, readable);
        pool.put(frame.into_buffer());
    }

    fn count<B: Buffer>(&mut self, frame: &Frame<B>, reason: Reason) {
        if frame.own {
            self.ledger.originated_lost += 1;
        } else {
            self.ledger.drops.add(reason, 1);
        }
    }

    /// Copies a frame that is a drop, where somebody asked for some.
    pub fn sample<B: Buffer>(&mut self, frame: &Frame<B>, link: Link, reason: Reason, readable: usize) {
        if let Some(sampler) = self.sampler.as_deref_mut()
            && !frame.own
        {
            sampler.take(frame, link, reason, readable);
        }
    }
}
