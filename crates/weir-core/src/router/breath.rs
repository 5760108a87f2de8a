//! One breath of a worker: rx → forward → tick → tx, with the accounting of what devices refuse.
//!
//! The daemon, the lab's memory testbed and the tests all breathe by this function.

use super::{Output, Router};
use crate::device::Device;
use crate::packet::{Batch, Buffer, DeviceId, Pool};
use crate::tables::Tables;
use crate::time::Nanos;

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
        if !frames.is_empty() {
            router.transmit(tables, DeviceId(id as u16), device.as_mut(), frames, pool);
        }
    }
    received
}
