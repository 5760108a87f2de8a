//! Whatever the fast path declines.

use super::{Output, Router};
use crate::packet::{Buffer, Frame, Pool};
use crate::tables::Tables;
use crate::time::Nanos;
use crate::verdict::Reason;

impl<B: Buffer> Router<B> {
    #[cold]
    #[inline(never)]
    pub(super) fn slow(
        &mut self,
        _now: Nanos,
        tables: &Tables,
        frame: Frame<B>,
        pool: &mut Pool<B>,
        out: &mut Output<B>,
    ) {
        const ARP: [u8; 2] = [0x08, 0x06];
        let port = tables.port_of(frame.device, frame.data());
        match (port, frame.data().get(12..14)) {
            (None, _) => self.drop_frame(frame, Reason::UnknownVlan, pool),
            (Some(port), Some(ethertype)) if ethertype == ARP => {
                self.ledger.local += 1;
                out.punt.push((port, frame));
            }
            _ => self.drop_frame(frame, Reason::UnknownProtocol, pool),
        }
    }
}
