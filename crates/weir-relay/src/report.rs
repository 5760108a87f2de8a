//! What an engine tells of itself: counters by worker, kind and reason, and who is connected.
//!
//! Promises: [`RelayReport::balance`] is zero whenever no worker is in the middle of a turn.

use std::net::SocketAddr;

use weir_core::relay::{Drops, Key, Kind};
use weir_io::stream::Counters;

use super::Role;
use super::counters::{End, Histogram, Tally, kind_name};

/// Counters of all workers.
#[derive(Clone, Debug, Default)]
pub struct RelayReport {
    pub workers: Vec<WorkerReport>,
}

/// One worker's counters since it started.
#[derive(Clone, Debug, Default)]
pub struct WorkerReport {
    pub worker: usize,
    pub cpu: Option<u32>,
    /// `io_uring`, or `epoll` and why.
    pub backend: String,
    pub connections: u64,
    /// Packets: data frames that came from clients and other relays.
    pub packets_in: u64,
    pub packets_forwarded: u64,
    /// Drops by reason and class, in packets and bytes.
    pub drops: Drops,
    pub packets_held: u64,
    /// Packets handed to other workers, and taken from them.
    pub packets_handed: u64,
    pub packets_taken: u64,
    pub bytes_received: u64,
    pub bytes_sent: u64,
    /// Name of the kind, frames.
    pub frames_received: Vec<(&'static str, u64)>,
    pub frames_sent: Vec<(&'static str, u64)>,
    /// Microseconds data waited for its receiver, the sum in nanoseconds.
    pub queue_delay: Histogram,
    /// Bytes given to a socket at once.
    pub flush_bytes: Histogram,
    /// Bytes of all memory that this worker holds for its connections, and of its buffers.
    pub memory_connections: u64,
    pub memory_buffers: u64,
    /// Why connections ended, by name.
    pub ended: Vec<(&'static str, u64)>,
    pub turns: u64,
    /// Times that a client was not read from, to keep it to its rate.
    pub paused: u64,
    /// Clients that came from other workers, to be where those they talk to are.
    pub moved: u64,
    pub streams: Counters,
}

impl WorkerReport {
    pub(super) fn new(worker: usize, cpu: Option<u32>, backend: String, tally: &Tally) -> WorkerReport {
        let mut sent = tally.sent;
        sent[Kind::RecvPacket as usize] += tally.packets_forwarded;

        let named = |kinds: &[u64]| {
            let all = kinds.iter().enumerate().map(|(i, &n)| (kind_name(i), n));
            all.filter(|(_, n)| *n > 0).collect::<Vec<_>>()
        };
        WorkerReport {
            worker,
            cpu,
            backend,
            connections: tally.connections,
            packets_in: tally.packets_in,
            packets_forwarded: tally.packets_forwarded,
            drops: tally.drops.clone(),
            packets_held: tally.held,
            packets_handed: tally.handed,
            packets_taken: tally.taken,
            bytes_received: tally.bytes_received,
            bytes_sent: tally.bytes_sent,
            frames_received: named(&tally.received),
            frames_sent: named(&sent),
            queue_delay: tally.queue_delay,
            flush_bytes: tally.flush_bytes,
            memory_connections: tally.memory_connections,
            memory_buffers: tally.memory_buffers,
            ended: End::ALL.iter().map(|&end| (end.name(), tally.ended[end as usize])).collect(),
            turns: tally.turns,
            paused: tally.paused,
            moved: tally.moved,
            streams: tally.streams,
        }
    }
}

impl RelayReport {
    /// Computes in − (forwarded + dropped + held): 0, or a packet has been lost track of.
    pub fn balance(&self) -> i64 {
        self.workers.iter().fold(0, |sum, w| {
            let dropped = w.drops.packets();
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
    /// Queued bytes of frames that are not packets.
    pub control_bytes: u64,
    pub memory: u64,
}
