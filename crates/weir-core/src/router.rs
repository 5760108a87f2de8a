//! One breath of the router: a batch in, every frame out by exactly one way.
//!
//! ```text
//! rx(batch) ─► parse/check ─► lookup (whole batch) ─► rewrite ─► Output.tx[device]
//!                  │              │                      ├─────► Output.punt   (to the control side)
//!                  └──────────────┴─► pool (drop, counted)   └─► held for a neighbour
//! ```

use std::net::IpAddr;

use crate::packet::{Buffer, Frame};
use crate::tables::PortId;

/// Where a breath puts frames. Owned by the worker; emptied by it after each breath.
#[derive(Debug)]
pub struct Output<B> {
    /// Frames to send, by device; order inside a flow is the order of arrival.
    pub tx: Vec<Vec<Frame<B>>>,
    /// Frames for the control side (ARP, NDP) with the port they came in on.
    pub punt: Vec<(PortId, Frame<B>)>,
    /// What the control side should know.
    pub events: Vec<Event>,
}

impl<B: Buffer> Output<B> {
    pub fn new(devices: usize) -> Self {
        Output { tx: (0..devices).map(|_| Vec::new()).collect(), punt: Vec::new(), events: Vec::new() }
    }
}

/// A request of the data path to the control side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Frames wait for this next hop: resolve it.
    Resolve { port: PortId, next_hop: IpAddr },
}

/// Per-port traffic of one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    pub rx_packets: u64,
    pub rx_bytes: u64,
    pub tx_packets: u64,
    pub tx_bytes: u64,
}
