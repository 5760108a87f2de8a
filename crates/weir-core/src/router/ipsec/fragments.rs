//! Outer fragments on their way through the router: held, made whole, opened.
//!
//! Every fragment was received as a frame and ends as one: those whose bytes went into a whole packet are
//! this host's (local), the packet itself goes on in the frame of one of them.

use super::rules::{self, Kind};
use super::unwrap;
use crate::packet::{Buffer, Frame, Pool};
use crate::router::{Breath, Router};
use crate::verdict::Reason;

impl<B: Buffer> Router<B> {
    /// The slow path found a fragment that may be part of an ESP packet to us.
    #[cold]
    pub(in crate::router) fn collect(
        &mut self,
        breath: &mut Breath<'_, B>,
        mut frame: Frame<B>,
        network: usize,
    ) {
        let Some(ipsec) = breath.tables.ipsec.as_deref() else {
            return self.lose(frame, Reason::NoSa, breath.pool);
        };
        if !unwrap(&mut frame, network) {
            return self.lose(frame, Reason::IpTruncated, breath.pool);
        }
        self.ledger.held += 1;
        let whole = self.ipsec.reassembly.push(breath.now, frame, &mut self.ipsec.ended);
        self.end_fragments(breath.pool);
        let Some(frame) = whole else { return };
        self.ledger.held -= 1;
        match rules::kind(ipsec, frame.data()).0 {
            Kind::Esp(key) if ipsec.sad.find(key.0, key.1).is_some() => self.ipsec.sealed.push(key, frame),
            // The kernel has fragments of its own of what is for it.
            kind => {
                let to = rules::destination(frame.data());
                if to.is_some_and(|to| rules::is_kernels(breath.tables, to)) {
                    self.ledger.local += 1;
                    return breath.pool.put(frame.into_buffer());
                }
                let esp = matches!(kind, Kind::Esp(_));
                let reason = if esp { Reason::NoSa } else { Reason::LocalNotServed };
                self.lose(frame, reason, breath.pool);
            }
        }
    }

    /// Accounts for fragments that wait no longer.
    pub(super) fn end_fragments(&mut self, pool: &mut Pool<B>) {
        let mut ended = std::mem::take(&mut self.ipsec.ended);
        for end in ended.drain(..) {
            self.ledger.held -= 1;
            match end.lost {
                Some(reason) => self.lose(end.frame, reason, pool),
                None => {
                    self.ledger.local += 1;
                    pool.put(end.frame.into_buffer());
                }
            }
        }
        self.ipsec.ended = ended;
    }

    /// Whatever still waits for the rest of its packet is lost.
    #[cold]
    pub(in crate::router) fn give_up_fragments(&mut self, pool: &mut Pool<B>) {
        self.ipsec.reassembly.give_up(&mut self.ipsec.ended);
        self.end_fragments(pool);
    }
}
