//! Packets between an SPD of route mode and this host's own stack.
//!
//! ```text
//! the kernel's route into the device ─► rx[host] ─► tx[spd] ─► SPD ─► seal
//! opened, for an address of the kernel ─► tx[host] ─► the kernel
//! ```
//!
//! Promises: what the kernel has routed into the device is not routed again, and keeps its TTL; the SPD decides about it as
//! about transit. Refuses what is no IP packet.

use super::Env;
use crate::ipsec::{Ipsec, Queue};
use crate::packet::{Batch, Buffer, DeviceId, Frame};
use crate::verdict::Reason;
use crate::wire::ethernet::HEADER_LEN as ETHERNET;
use crate::wire::{Ipv4, Ipv6};

/// The queue a batch goes to that comes from this host's own stack; a batch is of one device.
#[inline]
pub(super) fn queue<B: Buffer>(ipsec: &Ipsec, batch: &Batch<B>) -> Option<DeviceId> {
    let from = batch.frames().first()?.device;
    match ipsec.queues.get(from.index()) {
        Some(Queue::Host { device }) => Some(*device),
        _ => None,
    }
}

/// Puts all of `batch` into the queue of an SPD's device.
#[cold]
pub(super) fn send<B: Buffer>(env: &mut Env<'_, '_, B>, device: DeviceId, batch: &mut Batch<B>) {
    for mut frame in batch.drain() {
        match trim(&mut frame) {
            Ok(()) => env.forwarder.deliver(env.breath, device, frame),
            Err(reason) => env.drop_frame(frame, reason),
        }
    }
}

/// Drops what follows the IP packet.
fn trim<B: Buffer>(frame: &mut Frame<B>) -> Result<(), Reason> {
    let packet = frame.data().get(ETHERNET..).unwrap_or(&[]);
    let len = match packet.first().map(|byte| byte >> 4) {
        Some(4) => Ipv4::parse_header(packet)?.total_len(),
        _ => Ipv6::parse_header(packet)?.total_len(),
    };
    if len > packet.len() {
        return Err(Reason::IpTooShort);
    }
    frame.truncate(ETHERNET + len);
    Ok(())
}
