//! One breath of a worker: rx → forward → tick → tx, with the accounting of what devices refuse.
//!
//! The daemon, the lab's memory bed and the tests all breathe by this function.

use super::{Output, Router};
use crate::device::{Device, DeviceStatus};
use crate::packet::{Batch, Buffer, DeviceId, Pool};
use crate::tables::Tables;
use crate::time::Nanos;
use crate::verdict::Reason;

/// How often a device is asked to take what it did not take at first: the second call finds the ring
/// slots that the first one's completions freed.
const TX_TRIES: usize = 2;

/// Receives at most a batch from every device, forwards, and sends. Returns how many frames came in.
/// `devices` are in the order of [`Tables::devices`]. What is left in `out.punt` and `out.events` is the
/// caller's.
pub fn breathe<B: Buffer>(
    router: &mut Router<B>,
    now: Nanos,
    tables: &Tables,
    devices: &mut [Box<dyn Device<B>>],
    batch: &mut Batch<B>,
    pool: &mut Pool<B>,
    out: &mut Output<B>,
) -> usize {
    let mut received = 0;
    for device in devices.iter_mut() {
        if device.rx(pool, batch) > 0 {
            received += batch.len();
            router.forward(now, tables, batch, pool, out);
        }
    }
    router.tick(now, tables, pool, out);
    for (id, (device, frames)) in devices.iter_mut().zip(&mut out.tx).enumerate() {
        for _ in 0..TX_TRIES {
            if !frames.is_empty() {
                device.tx(pool, frames);
            }
        }
        if !frames.is_empty() {
            let reason = match device.status() {
                DeviceStatus::Up => Reason::TxRingFull,
                DeviceStatus::Down | DeviceStatus::Gone => Reason::PortDown,
            };
            router.refused(tables, DeviceId(id as u16), reason, frames, pool);
        }
    }
    received
}
