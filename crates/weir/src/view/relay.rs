//! What a relay says of itself: `GET /v1/relay` and `GET /v1/peers`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `GET /v1/relay`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayStatus {
    pub public_key: String,
    pub connections: u64,
    pub acceptor: AcceptorCounters,
    pub workers: Vec<RelayWorkerCounters>,
    /// Packets in − forwarded − dropped − held; anything but 0 is a defect.
    pub balance: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptorCounters {
    pub accepted: u64,
    pub accept_failed: u64,
    /// Handed to the workers.
    pub clients: u64,
    pub underway: u64,
    pub sources: u64,
    pub requests: u64,
    /// Why connections ended before they were clients.
    pub ended: BTreeMap<String, u64>,
    pub tls13: u64,
    pub tls12: u64,
    pub plain: u64,
    pub stun_answered: u64,
    pub stun_ignored: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayWorkerCounters {
    pub worker: usize,
    pub backend: String,
    pub connections: u64,
    pub packets_in: u64,
    pub packets_forwarded: u64,
    pub packets_held: u64,
    /// Drops by reason and class (`disco` or `other`), those above zero.
    pub packets_dropped: BTreeMap<String, u64>,
    pub bytes_received: u64,
    pub bytes_sent: u64,
    pub memory_connections: u64,
    pub memory_buffers: u64,
}

/// `GET /v1/peers`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    pub key: String,
    pub address: String,
    /// `client`, `mesh` (it showed the mesh key) or `dialled` (by this relay).
    pub role: String,
    pub worker: usize,
    pub connected_seconds: u64,
    pub home: bool,
    pub tls: String,
    pub websocket: bool,
    pub bytes_received: u64,
    pub bytes_sent: u64,
    pub packets_dropped: u64,
    pub queued_bytes: u64,
    pub memory: u64,
}

impl Peer {
    /// What it can be found by.
    pub fn words(&self) -> Vec<&str> {
        [&self.key, &self.address, &self.role, &self.tls].map(String::as_str).to_vec()
    }
}
