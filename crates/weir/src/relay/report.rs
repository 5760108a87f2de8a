//! What an engine tells of itself: counters by worker, kind and reason, and who is connected.
//!
//! Promises: [`Report::balance`] is zero whenever no worker is in the middle of a turn.

use std::net::SocketAddr;

use weir_core::relay::Key;

use super::Role;

/// Counters of all workers.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub workers: Vec<WorkerReport>,
}

/// One worker's counters since it started.
#[derive(Clone, Debug, Default)]
pub struct WorkerReport {
    pub worker: usize,
    /// `io_uring`, or `epoll` and why.
    pub backend: String,
    pub connections: u64,
    /// Packets: data frames that came from clients and other relays.
    pub packets_in: u64,
    pub packets_forwarded: u64,
    /// Counter name of the reason, packets.
    pub packets_dropped: Vec<(&'static str, u64)>,
    pub packets_held: u64,
    /// To other workers, and from them.
    pub packets_handed: u64,
    pub packets_taken: u64,
    pub bytes_received: u64,
    pub bytes_sent: u64,
    /// Name of the kind, frames.
    pub frames_received: Vec<(&'static str, u64)>,
    pub frames_sent: Vec<(&'static str, u64)>,
    /// Microseconds data waited for its receiver: counts by power of two, 0 first.
    pub queue_delay_us: Vec<u64>,
    /// Bytes given to a socket at once: counts by power of two.
    pub flush_bytes: Vec<u64>,
    /// Bytes of all memory that this worker holds for its connections, and of its buffers.
    pub memory_connections: u64,
    pub memory_buffers: u64,
}

impl Report {
    /// In − (forwarded + dropped + held): 0, or a packet has been lost track of.
    pub fn balance(&self) -> i64 {
        self.workers.iter().fold(0, |sum, w| {
            let dropped: u64 = w.packets_dropped.iter().map(|(_, n)| n).sum();
            sum + (w.packets_in + w.packets_taken) as i64
                - (w.packets_forwarded + dropped + w.packets_held + w.packets_handed) as i64
        })
    }
}

/// One connection.
#[derive(Clone, Debug)]
pub struct Connection {
    pub key: Key,
    pub address: SocketAddr,
    pub role: Role,
    pub worker: usize,
    pub connected_seconds: u64,
    /// Said by the client: this relay is its home.
    pub home: bool,
    pub tls: &'static str,
    pub websocket: bool,
    pub bytes_received: u64,
    pub bytes_sent: u64,
    pub packets_dropped: u64,
    /// Waiting for it now.
    pub queued_bytes: u64,
    pub memory: u64,
}
