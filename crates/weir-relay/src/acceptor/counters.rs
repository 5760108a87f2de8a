//! What became of every connection: accepted = clients + pages + ended on the way by cause + on its way.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::UNIX_EPOCH;

use super::Shared;
use crate::metrics::{self, AcceptorCounters};

/// Why a connection ended before it was a client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum End {
    /// It asked for pages and got them.
    Pages,
    /// Its source has too many.
    Source,
    /// Its source comes more often than it may.
    SourceRate,
    /// It, its source or all of them would hold more than they may.
    Bytes,
    /// It was the oldest of too many on their way.
    Evicted,
    /// There are as many clients as there may be.
    Full,
    /// There are as many of its source as there may be.
    SourceFull,
    /// A step took too long.
    Deadline,
    /// The other side hung up, or the network did.
    Gone,
    Tls,
    Http,
    /// No upgrade, or not one of DERP.
    Upgrade,
    /// The frames that say who it is are wrong.
    Handshake,
    /// The access rules do not let it in.
    Refused,
}

impl End {
    pub const ALL: [End; 14] = [
        End::Pages,
        End::Source,
        End::SourceRate,
        End::Bytes,
        End::Evicted,
        End::Full,
        End::SourceFull,
        End::Deadline,
        End::Gone,
        End::Tls,
        End::Http,
        End::Upgrade,
        End::Handshake,
        End::Refused,
    ];

    /// The counter's name.
    pub fn name(self) -> &'static str {
        match self {
            End::Pages => "pages",
            End::Source => "source_limit",
            End::SourceRate => "source_rate",
            End::Bytes => "handshake_bytes",
            End::Evicted => "handshake_limit",
            End::Full => "client_limit",
            End::SourceFull => "source_client_limit",
            End::Deadline => "deadline",
            End::Gone => "gone",
            End::Tls => "tls",
            End::Http => "http",
            End::Upgrade => "upgrade",
            End::Handshake => "handshake",
            End::Refused => "refused",
        }
    }
}

/// Counters that only grow.
#[derive(Debug, Default)]
pub struct Counters {
    pub accepted: AtomicU64,
    /// Times a connection could not be taken: no descriptors or memory.
    pub accept_failed: AtomicU64,
    /// Handed to the workers.
    pub clients: AtomicU64,
    pub websockets: AtomicU64,
    pub fast_starts: AtomicU64,
    /// Proved a key that was proved before, which costs less.
    pub known_keys: AtomicU64,
    pub meshed: AtomicU64,
    pub requests: AtomicU64,
    pub tls12: AtomicU64,
    pub tls13: AtomicU64,
    pub plain: AtomicU64,
    pub tls_user: AtomicU64,
    pub tls_kernel: AtomicU64,
    /// Verifier: let in, kept out, did not answer.
    pub verified: AtomicU64,
    pub denied: AtomicU64,
    pub unanswered: AtomicU64,
    pub stun_answered: AtomicU64,
    pub stun_ignored: AtomicU64,
    ended: [AtomicU64; End::ALL.len()],
}

impl Counters {
    pub fn end(&self, end: End) {
        self.ended[end as usize].fetch_add(1, Relaxed);
    }

    pub fn ended(&self, end: End) -> u64 {
        self.ended[end as usize].load(Relaxed)
    }
}

impl Shared {
    /// The text of one scrape of `/metrics`.
    pub fn metrics(&self) -> String {
        metrics::text(self.front_counters(), self.relay.report())
    }

    fn certificate_expires(&self) -> Option<f64> {
        let expires = self.live.load().tls.as_ref()?.identity.expires()?;
        Some(expires.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64())
    }

    fn front_counters(&self) -> AcceptorCounters {
        let c = &self.counters;
        AcceptorCounters {
            counters: vec![
                ("accepts", "Connections accepted", c.accepted.load(Relaxed)),
                ("accept_failures", "Times no connection could be taken", c.accept_failed.load(Relaxed)),
                ("clients", "Connections handed to the workers", c.clients.load(Relaxed)),
                ("websocket_clients", "Of these, by WebSocket", c.websockets.load(Relaxed)),
                ("fast_starts", "Of these, without a 101", c.fast_starts.load(Relaxed)),
                ("known_keys", "Keys proved that had been proved before", c.known_keys.load(Relaxed)),
                ("mesh_clients", "Of these, with the mesh key", c.meshed.load(Relaxed)),
                ("http_requests", "Requests read", c.requests.load(Relaxed)),
                ("stun_answers", "STUN requests answered", c.stun_answered.load(Relaxed)),
                ("stun_ignored", "Datagrams that were no such request", c.stun_ignored.load(Relaxed)),
            ],
            ended: End::ALL.iter().map(|e| (e.name(), c.ended(*e))).collect(),
            tls: vec![
                ("none", c.plain.load(Relaxed)),
                ("1.2", c.tls12.load(Relaxed)),
                ("1.3", c.tls13.load(Relaxed)),
            ],
            records: vec![("user", c.tls_user.load(Relaxed)), ("kernel", c.tls_kernel.load(Relaxed))],
            verifier: vec![
                ("allowed", c.verified.load(Relaxed)),
                ("denied", c.denied.load(Relaxed)),
                ("unanswered", c.unanswered.load(Relaxed)),
            ],
            underway: self.limiter.underway() as i64,
            handshake_bytes: self.limiter.budget.held() as i64,
            sources: self.limiter.sources() as i64,
            client_sources: self.limiter.client_sources() as i64,
            certificate_expires: self.certificate_expires(),
        }
    }
}

/// One more.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_has_a_counter_of_its_own() {
        let counters = Counters::default();
        End::ALL.iter().for_each(|end| counters.end(*end));
        assert!(End::ALL.iter().all(|end| counters.ended(*end) == 1));
    }
}
