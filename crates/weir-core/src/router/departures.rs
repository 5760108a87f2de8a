//! What leaves: frames are handed to their device, and what it took is counted.
//!
//! Promises: a frame is counted as forwarded or originated, and on its port, once its device has taken it; what the
//! device leaves behind is a drop. Costs one walk of a queue a batch, over lengths and flags.

#[cfg(feature = "testing")]
use super::Output;
use super::forwarder::Forwarder;
use super::sampler::Link;
use super::{PortCounters, Router};
use crate::device::{Device, DeviceStatus};
use crate::id::PortId;
use crate::packet::{Buffer, DeviceId, Frame, Pool};
use crate::tables::Tables;
use crate::verdict::Reason;

/// How often a device is asked to take what it did not take at first: the second call finds the ring
/// slots that the first one's completions freed.
const TX_TRIES: usize = 2;

/// Frames that leave by one port, or by all of a device's.
#[derive(Clone, Copy, Debug, Default)]
struct QueueCounts {
    frames: u64,
    /// How many of `frames` were made by this host.
    own: u64,
    bytes: u64,
}

impl QueueCounts {
    #[inline]
    fn of<B: Buffer>(frames: &[Frame<B>]) -> QueueCounts {
        let mut load = QueueCounts { frames: frames.len() as u64, ..QueueCounts::default() };
        for frame in frames {
            load.own += u64::from(frame.own);
            load.bytes += frame.len() as u64;
        }
        load
    }

    #[inline]
    fn without(self, rest: QueueCounts) -> QueueCounts {
        QueueCounts {
            frames: self.frames - rest.frames,
            own: self.own - rest.own,
            bytes: self.bytes - rest.bytes,
        }
    }
}

impl<B: Buffer> Router<B> {
    /// Hands `frames`, the queue of device `id`, to `device`, counts what it took, and drops the rest.
    pub fn transmit(
        &mut self,
        tables: &Tables,
        id: DeviceId,
        device: &mut dyn Device<B>,
        frames: &mut Vec<Frame<B>>,
        pool: &mut Pool<B>,
    ) {
        let tagged = tables.devices.get(id.index()).is_some_and(|device| !device.tagged.is_empty());
        let all = QueueCounts::of(frames);
        // Which port a tagged frame is of, only its bytes tell, and the device keeps them.
        let forwarder = &mut self.forwarder;
        forwarder.departing.clear();
        if tagged {
            forwarder.departing.extend(by_port(tables, id, frames));
        }
        for _ in 0..TX_TRIES {
            if !frames.is_empty() {
                device.tx(pool, frames);
            }
        }
        let taken = all.without(QueueCounts::of(frames));
        forwarder.depart(taken);
        if tagged {
            for &(port, len) in forwarder.departing.iter().take(taken.frames as usize) {
                leave_by(&mut forwarder.ports, port, 1, len);
            }
        } else {
            let port = tables.devices.get(id.index()).and_then(|device| device.untagged);
            leave_by(&mut forwarder.ports, port, taken.frames, taken.bytes);
        }
        if !frames.is_empty() {
            let reason = match device.status() {
                DeviceStatus::Up => Reason::TxRingFull,
                DeviceStatus::Down | DeviceStatus::Gone => Reason::PortDown,
            };
            let accounts = &mut forwarder.accounts;
            frames.drain(..).for_each(|frame| accounts.drop_frame(frame, Link::Ethernet, reason, pool));
        }
    }

    /// Counts everything in `out` as taken, by a test that has neither devices nor a control side.
    #[cfg(feature = "testing")]
    pub fn taken(&mut self, tables: &Tables, out: &Output<B>) {
        for (id, frames) in out.tx.iter().enumerate() {
            self.forwarder.depart(QueueCounts::of(frames));
            for (port, len) in by_port(tables, DeviceId(id as u16), frames) {
                leave_by(&mut self.forwarder.ports, port, 1, len);
            }
        }
        self.punted(out.punt.len() as u64);
    }
}

/// The port and the length of each frame.
fn by_port<B: Buffer>(
    tables: &Tables,
    id: DeviceId,
    frames: &[Frame<B>],
) -> impl Iterator<Item = (Option<PortId>, u64)> {
    frames.iter().map(move |frame| (tables.port_of(id, frame.data()), frame.len() as u64))
}

impl<B: Buffer> Forwarder<B> {
    #[inline]
    fn depart(&mut self, load: QueueCounts) {
        self.accounts.ledger.forwarded += load.frames - load.own;
        self.accounts.ledger.originated += load.own;
    }
}

#[inline]
fn leave_by(ports: &mut [PortCounters], port: Option<PortId>, packets: u64, bytes: u64) {
    if let Some(counters) = port.and_then(|port| ports.get_mut(port.index())) {
        counters.add_sent(packets, bytes);
    }
}

impl PortCounters {
    /// Counts packets that left.
    #[inline]
    pub(super) fn add_sent(&mut self, packets: u64, bytes: u64) {
        self.tx_packets += packets;
        self.tx_bytes += bytes;
    }
}
