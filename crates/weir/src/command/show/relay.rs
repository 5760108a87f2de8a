//! `weir show relay` and `weir show peers`.

use crate::text::{duration, table};
use crate::view::relay::{Peer, RelayStatus};

pub fn relay(r: &RelayStatus) -> String {
    let f = &r.acceptor;
    let mut out = format!(
        "{}\n{} connected, {} accepted, {} became clients, {} on their way from {} addresses\n",
        r.public_key, r.connections, f.accepted, f.clients, f.underway, f.sources
    );
    out += &format!("TLS 1.3 {}, TLS 1.2 {}, none {}\n", f.tls13, f.tls12, f.plain);
    if !f.ended.is_empty() {
        let ended: Vec<String> = f.ended.iter().map(|(why, n)| format!("{why} {n}")).collect();
        out += &format!("ended before they were clients: {}\n", ended.join(", "));
    }
    let row = |w: &crate::view::relay::RelayWorkerCounters| {
        [
            w.worker.to_string(),
            w.connections.to_string(),
            w.packets_in.to_string(),
            w.packets_forwarded.to_string(),
            w.packets_held.to_string(),
            w.packets_dropped.values().sum::<u64>().to_string(),
            w.bytes_received.to_string(),
            w.bytes_sent.to_string(),
            w.backend.clone(),
        ]
    };
    let head =
        ["worker", "conns", "packets in", "forwarded", "held", "dropped", "bytes in", "bytes out", "sockets"];
    out += &table(head, 0..8, r.workers.iter().map(row).collect());
    for worker in &r.workers {
        for (reason, packets) in &worker.packets_dropped {
            out += &format!("# worker {}: dropped {packets}: {reason}\n", worker.worker);
        }
    }
    if r.balance != 0 {
        out += &format!("! {} packets unaccounted for\n", r.balance);
    }
    out
}

pub fn peers(peers: &[Peer]) -> String {
    let row = |p: &Peer| {
        [
            p.key.clone(),
            p.address.clone(),
            p.role.clone(),
            if p.home { "home" } else { "" }.to_owned(),
            format!("{}{}", p.tls, if p.websocket { " websocket" } else { "" }),
            duration(p.connected_seconds as f64),
            p.bytes_received.to_string(),
            p.bytes_sent.to_string(),
            p.packets_dropped.to_string(),
            p.queued_bytes.to_string(),
        ]
    };
    let head = ["key", "address", "role", "home", "tls", "for", "bytes in", "bytes out", "dropped", "queued"];
    table(head, 6..10, peers.iter().map(row).collect())
}
