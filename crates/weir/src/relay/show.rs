//! The relay's state of this moment as [`crate::view`] types.

use std::sync::atomic::Ordering::Relaxed;

use weir_relay::Role;
use weir_relay::acceptor::Shared;
use weir_relay::acceptor::counters::End;

use crate::view::relay::{AcceptorCounters, Peer, RelayStatus, RelayWorkerCounters};

pub fn relay(shared: &Shared, relay: &weir_relay::Relay) -> RelayStatus {
    let report = relay.report();
    let worker = |w: &weir_relay::WorkerReport| RelayWorkerCounters {
        worker: w.worker,
        backend: w.backend.clone(),
        connections: w.connections,
        packets_in: w.packets_in,
        packets_forwarded: w.packets_forwarded,
        packets_held: w.packets_held,
        packets_dropped: w
            .drops
            .iter()
            .filter(|d| d.2.packets > 0)
            .map(|(reason, class, amount)| (format!("{}/{}", reason.name(), class.name()), amount.packets))
            .collect(),
        bytes_received: w.bytes_received,
        bytes_sent: w.bytes_sent,
        memory_connections: w.memory_connections,
        memory_buffers: w.memory_buffers,
    };
    let workers: Vec<RelayWorkerCounters> = report.workers.iter().map(worker).collect();
    RelayStatus {
        public_key: shared.live.load().secret.public().to_string(),
        connections: workers.iter().map(|w| w.connections).sum(),
        acceptor: acceptor(shared),
        workers,
        balance: report.balance(),
    }
}

fn acceptor(shared: &Shared) -> AcceptorCounters {
    let c = &shared.counters;
    AcceptorCounters {
        accepted: c.accepted.load(Relaxed),
        accept_failed: c.accept_failed.load(Relaxed),
        clients: c.clients.load(Relaxed),
        underway: shared.limiter.underway() as u64,
        sources: shared.limiter.sources() as u64,
        requests: c.requests.load(Relaxed),
        ended: End::ALL.iter().map(|e| (e.name().to_owned(), c.ended(*e))).filter(|e| e.1 > 0).collect(),
        tls13: c.tls13.load(Relaxed),
        tls12: c.tls12.load(Relaxed),
        plain: c.plain.load(Relaxed),
        stun_answered: c.stun_answered.load(Relaxed),
        stun_ignored: c.stun_ignored.load(Relaxed),
    }
}

pub fn peers(relay: &weir_relay::Relay) -> Vec<Peer> {
    let peer = |c: weir_relay::Connection| Peer {
        key: c.key.to_string(),
        address: c.address.to_string(),
        role: match c.role {
            Role::Client => "client",
            Role::Mesh => "mesh",
            Role::Dialled => "dialled",
        }
        .to_owned(),
        worker: c.worker,
        connected_seconds: c.connected_seconds,
        home: c.home,
        tls: c.tls.to_owned(),
        websocket: c.websocket,
        bytes_received: c.bytes_received,
        bytes_sent: c.bytes_sent,
        packets_dropped: c.packets_dropped,
        queued_bytes: c.queued_bytes,
        memory: c.memory,
    };
    relay.connections().into_iter().map(peer).collect()
}
