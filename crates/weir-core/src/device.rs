//! What a port does: hand in frames, take frames out, and say what it lost.

use std::os::fd::RawFd;

use crate::packet::{Batch, Buffer, Frame, Pool};
use crate::time::Nanos;

/// A device queue driven by one worker. One virtual call a batch, none a packet.
pub trait Device<B: Buffer> {
    /// Appends received frames to `batch`, at most `batch.room()`, in order of arrival; returns how
    /// many. Buffers come from `pool` (a device with a ring refills it here). Never blocks.
    fn rx(&mut self, pool: &mut Pool<B>, batch: &mut Batch<B>) -> usize;

    /// Sends frames from the front of `frames` and removes them, in order; returns how many were
    /// accepted. What remains did not fit: the caller decides to retry or to count a drop. Buffers
    /// of frames already on their way come back to `pool` now or in a later call. Never blocks.
    fn tx(&mut self, pool: &mut Pool<B>, frames: &mut Vec<Frame<B>>) -> usize;

    /// Frames accepted by `tx` whose buffers the device still holds, plus buffers posted for
    /// reception: with the pool and the frames in flight this is every buffer there is.
    fn buffers_held(&self) -> usize;

    /// What the device itself lost or refused, cumulative since it was opened.
    fn stats(&mut self) -> DeviceStats;

    /// Frames are brought by receive work of the kernel that may need this very CPU: a worker that finds
    /// nothing sleeps at once instead of keeping the CPU from it.
    fn received_by_kernel(&self) -> bool {
        false
    }

    /// Frames it accepted are not on their way yet: receiving again looks after them, and should not wait long.
    fn unsent(&self) -> bool {
        false
    }

    /// The descriptor whose driver is to be woken for what was sent in this breath, by the caller and at once: it may do so in
    /// the system call it sleeps by. Who does not ask has it done two breaths later.
    fn take_owed_wake_up(&mut self) -> Option<RawFd> {
        None
    }

    /// Looks after what has to move by itself, some dozens of times a second and never a packet at a time:
    /// returns what an operator should be told, once for each time it happens.
    fn watch(&mut self, _now: Nanos) -> Option<String> {
        None
    }

    /// Whether the device is still there and usable.
    fn status(&mut self) -> DeviceStatus {
        DeviceStatus::Up
    }
}

/// Losses before a frame reached us or after we let it go. They are outside the pipeline's ledger
/// (in = forwarded + local + dropped + held) and inside the lab's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// Frames lost because no receive buffer or ring slot was free.
    pub rx_ring_full: u64,
    /// Frames the kernel or the driver refused on receive.
    pub rx_invalid: u64,
    /// Frames accepted from us and then refused by the kernel.
    pub tx_invalid: u64,
    /// Times receive found its fill ring empty.
    pub rx_fill_empty: u64,
    /// Frames shorter than their IP header says: cut by who sent them or by a receive buffer too small for
    /// them. Counted by the router, which drops them as `ip_truncated`.
    pub rx_truncated: u64,
    /// Times frames lay in the transmit ring for longer than they may and none of them moved.
    pub tx_stalled: u64,
    /// No loss: frames that left without a socket buffer.
    pub tx_live: u64,
    /// Frames sent so that the device did not take because the far end's queue was full. (Of frames sent by a socket the
    /// kernel tells the device's own counters only.)
    pub tx_dropped: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceStatus {
    Up,
    /// Administratively down or without carrier; may come back.
    Down,
    /// Vanished; the worker drops what was meant for it.
    Gone,
}
