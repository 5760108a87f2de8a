//! What a worker counts: plain numbers of its own, shown to others once a turn.
//!
//! Promises: counting is an addition; a reader sees the numbers of one moment between two turns, so that the
//! ledger of what it reads is balanced. Refuses: being read by a worker that is not done with its turn.

use std::sync::{Mutex, PoisonError};

use weir_core::relay::{Class, Drops, Kind, Reason};
use weir_core::time::{MICROSECOND, Nanos};
use weir_metrics::Distribution;

/// Powers of two, 0 first: the last one holds 2^30 and everything above.
pub const BUCKETS: usize = 32;
/// Number of counters by type code: one for each known type, the last for all others.
pub const KINDS: usize = Kind::Restarting as usize + 2;

/// Counts by power of two: bucket 0 is 0, bucket n is 2^(n−1) … 2^n − 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    pub counts: [u64; BUCKETS],
    /// Sum of all values: 2^64 ns are 584 years of waiting.
    pub sum: u64,
}

impl Histogram {
    #[inline]
    pub fn add(&mut self, value: u64, times: u64) {
        self.add_as(value, value, times);
    }

    /// Counted where `unit` belongs, and summed up as `exact`, which has finer units.
    #[inline]
    pub fn add_as(&mut self, unit: u64, exact: u64, times: u64) {
        let bucket = (u64::BITS - unit.leading_zeros()) as usize;
        self.counts[bucket.min(BUCKETS - 1)] += times;
        self.sum = self.sum.wrapping_add(exact.wrapping_mul(times));
    }

    /// Counts up to each bound. A value of bucket n is below 2^n units, so `bound` makes of 2^n what holds them all.
    pub fn distribution(&self, bound: impl Fn(f64) -> f64, sum_unit: f64) -> Distribution {
        let bounds = (0..BUCKETS).map(|n| match n {
            // Everything above too: infinity.
            n if n == BUCKETS - 1 => f64::INFINITY,
            n => bound((1_u64 << n) as f64),
        });
        Distribution { buckets: bounds.zip(self.counts).collect(), sum: self.sum as f64 * sum_unit }
    }
}

/// Why connections ended, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum End {
    /// The other side closed it.
    Peer,
    /// The socket failed.
    Failed,
    /// It sent what the protocol does not allow.
    Protocol,
    /// TLS or WebSocket was broken.
    Transport,
    /// It took nothing for too long.
    Stalled,
    /// The registrar said so: a relay of the mesh asked, or no room.
    Registrar,
    /// The relay is going down.
    Drained,
}

impl End {
    pub const ALL: [End; 7] =
        [End::Peer, End::Failed, End::Protocol, End::Transport, End::Stalled, End::Registrar, End::Drained];

    /// The counter's name.
    pub fn name(self) -> &'static str {
        match self {
            End::Peer => "closed_by_peer",
            End::Failed => "socket_failed",
            End::Protocol => "protocol_error",
            End::Transport => "tls_or_websocket_error",
            End::Stalled => "write_timeout",
            End::Registrar => "told_to_close",
            End::Drained => "drained",
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub connections: u64,
    pub packets_in: u64,
    pub packets_forwarded: u64,
    pub drops: Drops,
    /// Packets in queues and in flight to sockets, now.
    pub held: u64,
    pub handed: u64,
    pub taken: u64,
    pub bytes_received: u64,
    pub bytes_sent: u64,
    pub received: [u64; KINDS],
    pub sent: [u64; KINDS],
    /// Microseconds; the sum is of nanoseconds.
    pub queue_delay: Histogram,
    pub flush_bytes: Histogram,
    pub ended: [u64; End::ALL.len()],
    pub turns: u64,
    /// Receiving was paused to keep a client to its rate.
    pub paused: u64,
    /// Clients that came from other workers.
    pub moved: u64,
    pub memory_connections: u64,
    pub memory_buffers: u64,
    pub streams: weir_io::stream::Counters,
}

impl Tally {
    /// A packet that was held, or never got so far, is dropped.
    #[inline]
    pub fn drop_packet(&mut self, reason: Reason, data: &[u8]) {
        self.drops.add(reason, Class::of(data), data.len());
    }

    /// Packets reached their socket after waiting since then.
    #[inline]
    pub fn forwarded(&mut self, packets: u64, since: Nanos, now: Nanos) {
        self.packets_forwarded += packets;
        self.held -= packets;
        let delay = now.saturating_sub(since);
        self.queue_delay.add_as(delay / MICROSECOND, delay, packets);
    }

    #[inline]
    pub fn received_kind(&mut self, code: u8, frames: u64) {
        self.received[usize::from(code).min(KINDS - 1)] += frames;
    }

    #[inline]
    pub fn sent_kind(&mut self, kind: Kind, frames: u64) {
        self.sent[kind as usize] += frames;
    }
}

/// A worker's tally where others can read it.
#[derive(Debug, Default)]
pub struct Shown(Mutex<Tally>);

impl Shown {
    /// Once a turn, from the worker. A reader keeps it no longer than a copy takes.
    pub fn publish(&self, tally: &Tally) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone_from(tally);
    }

    pub fn read(&self) -> Tally {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Names of the kinds in [`Tally::received`] and [`Tally::sent`].
pub fn kind_name(index: usize) -> &'static str {
    match Kind::from_code(index as u8) {
        Some(Kind::ServerKey) => "server_key",
        Some(Kind::ClientInfo) => "client_info",
        Some(Kind::ServerInfo) => "server_info",
        Some(Kind::SendPacket) => "send_packet",
        Some(Kind::RecvPacket) => "recv_packet",
        Some(Kind::KeepAlive) => "keep_alive",
        Some(Kind::NotePreferred) => "note_preferred",
        Some(Kind::PeerGone) => "peer_gone",
        Some(Kind::PeerPresent) => "peer_present",
        Some(Kind::ForwardPacket) => "forward_packet",
        Some(Kind::WatchConns) => "watch_conns",
        Some(Kind::ClosePeer) => "close_peer",
        Some(Kind::Ping) => "ping",
        Some(Kind::Pong) => "pong",
        Some(Kind::Health) => "health",
        Some(Kind::Restarting) => "restarting",
        None => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_fall_into_buckets_by_power_of_two() {
        let mut histogram = Histogram::default();
        for value in [0, 1, 2, 3, 4, u64::MAX] {
            histogram.add(value, 1);
        }
        assert_eq!(histogram.counts[..4], [1, 1, 2, 1]);
        assert_eq!(histogram.counts[BUCKETS - 1], 1);
    }
}
