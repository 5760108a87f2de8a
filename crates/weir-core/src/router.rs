//! One breath of the router: a batch in, every frame out by exactly one way.
//!
//! ```text
//! rx(batch) ─► parse/check ─► lookup (whole batch) ─► rewrite ─► Output.tx[device]
//!                  │              │                      ├─────► Output.punt   (to the control side)
//!                  └──────────────┴─► pool (drop, counted)   └─► held for a neighbour
//! ```
//!
//! A frame is counted when its fate is final, and never taken off again: as forwarded (or originated) when a device
//! has taken it ([`Router::transmit`]), as local when the host has, as a drop when its buffer is back in the pool.
//! Between [`Router::forward`] and that, frames in [`Output`] are on their way and in no counter.

mod accounts;
mod breath;
pub(crate) mod decide;
mod departures;
mod fast;
mod forwarder;
mod fragment;
mod hold;
pub(crate) mod ingress;
#[cfg_attr(not(feature = "ipsec"), path = "router/no_ipsec.rs")]
pub(crate) mod ipsec;
mod ipv4;
mod ipv6;
pub mod lasting;
mod limiter;
mod next_hop;
mod own;
pub mod sampler;
mod slow;

use std::net::IpAddr;

use crate::id::PortId;
use crate::ipsec::spd::LookupCounters;
use crate::packet::{Batch, Buffer, Frame, Pool};
use crate::tables::Tables;
use crate::time::Nanos;
use crate::verdict::{Ledger, Reason};
use crate::wire::flow::FlowKey;

pub use breath::breathe;
use forwarder::Forwarder;
pub use hold::HOLD_TIME;
#[cfg(feature = "ipsec")]
pub use ipsec::{SA_WAIT_FRAMES, SA_WAIT_FRAMES_OF_SPI, SA_WAIT_TIME};
use sampler::{Link, Sampler};

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
    /// An SA has used half of what is reserved on disk for it: reserve more.
    Reserve,
}

/// Per-port traffic of one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    pub rx_packets: u64,
    pub rx_bytes: u64,
    pub tx_packets: u64,
    pub tx_bytes: u64,
}

/// What a breath works with besides the worker's own state.
struct Breath<'a, B> {
    now: Nanos,
    tables: &'a Tables,
    pool: &'a mut Pool<B>,
    out: &'a mut Output<B>,
}

/// The data path of one worker.
#[derive(Debug)]
pub struct Router<B> {
    forwarder: Forwarder<B>,
    /// Generation of the snapshot that what is kept of it was made from.
    generation: Option<u64>,
    #[cfg(feature = "ipsec")]
    gateway: Box<ipsec::Gateway<B>>,
}

impl<B: Buffer> Router<B> {
    pub fn new() -> Self {
        Router {
            forwarder: Forwarder::new(),
            generation: None,
            #[cfg(feature = "ipsec")]
            gateway: Box::new(ipsec::Gateway::new()),
        }
    }

    /// Chooses among several paths by this key, which should be drawn at random once a router: all its
    /// workers share it, no other router does.
    #[must_use]
    pub fn with_flow_key(mut self, key: FlowKey) -> Self {
        self.forwarder.key = key;
        self
    }

    /// Says which worker this is, from 0: it sends by SAs of its own where an operator gave it some (RFC 9611).
    #[must_use]
    #[cfg_attr(not(feature = "ipsec"), expect(unused_mut, unused_variables, reason = "nobody else asks"))]
    pub fn with_worker(mut self, worker: usize) -> Self {
        #[cfg(feature = "ipsec")]
        self.gateway.set_worker(worker);
        self
    }

    /// Sends every frame through the slow path, for tests.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn without_fast_path(mut self) -> Self {
        self.forwarder.fast = false;
        self
    }

    pub fn ledger(&self) -> &Ledger {
        &self.forwarder.accounts.ledger
    }

    /// Frames (their buffers) that wait for a neighbour, for the rest of their packet, or for their SA.
    pub fn held(&self) -> usize {
        #[cfg(feature = "ipsec")]
        return self.forwarder.hold.len() + self.gateway.held();
        #[cfg(not(feature = "ipsec"))]
        self.forwarder.hold.len()
    }

    /// Traffic by [`PortId`].
    pub fn port_counters(&self) -> &[PortCounters] {
        &self.forwarder.ports
    }

    /// Frames that were shorter than their IP header says, by [`DeviceId`].
    pub fn truncated(&self) -> &[u64] {
        &self.forwarder.truncated
    }

    /// Which layers answered what this worker asked of SPDs.
    pub fn lookups(&self) -> LookupCounters {
        #[cfg(feature = "ipsec")]
        return *self.gateway.lookups();
        #[cfg(not(feature = "ipsec"))]
        LookupCounters::default()
    }

    /// Takes every frame out of `batch`; each ends in `out`, in `pool`, or held.
    pub fn forward(
        &mut self,
        now: Nanos,
        tables: &Tables,
        batch: &mut Batch<B>,
        pool: &mut Pool<B>,
        out: &mut Output<B>,
    ) {
        let breath = &mut Breath { now, tables, pool, out };
        if self.generation != Some(tables.generation) {
            self.on_snapshot(breath);
        }
        self.forwarder.accounts.ledger.received += batch.len() as u64;
        #[cfg(feature = "ipsec")]
        if let Some(ipsec) = tables.ipsec.as_deref() {
            return self.gateway.forward(&mut self.forwarder, breath, ipsec, batch);
        }
        self.forwarder.pass(breath, batch);
    }

    /// Makes what is kept of a snapshot fit a new one. Held frames go first: what comes later must not overtake them.
    #[cold]
    fn on_snapshot(&mut self, breath: &mut Breath<'_, B>) {
        self.generation = Some(breath.tables.generation);
        self.forwarder.on_snapshot(breath.tables);
        #[cfg(feature = "ipsec")]
        self.gateway.on_snapshot(&mut self.forwarder, breath);
        self.forwarder.release(breath);
    }

    /// Does what is due: frames whose next hop may now be known leave, frames held too long are dropped.
    pub fn tick(&mut self, now: Nanos, tables: &Tables, pool: &mut Pool<B>, out: &mut Output<B>) {
        let breath = &mut Breath { now, tables, pool, out };
        if self.generation != Some(tables.generation) {
            self.on_snapshot(breath);
        }
        if self.forwarder.hold.is_due(now) {
            self.forwarder.expire(breath);
        }
        #[cfg(feature = "ipsec")]
        if let Some(ipsec) = tables.ipsec.as_deref() {
            self.gateway.tick(&mut self.forwarder, breath, ipsec);
        }
    }

    /// Ends the worker: whatever still waits is dropped, and its buffers are back in the pool.
    pub fn shutdown(&mut self, pool: &mut Pool<B>) {
        self.forwarder.shutdown(pool);
        #[cfg(feature = "ipsec")]
        self.gateway.shutdown(&mut self.forwarder, pool);
    }

    /// Counts frames of [`Output::punt`] that the control side has taken.
    pub fn punted(&mut self, frames: u64) {
        self.forwarder.accounts.ledger.local += frames;
    }

    /// Counts a frame of [`Output::punt`] that the control side did not take.
    #[cold]
    pub fn punt_refused(&mut self, frame: &Frame<B>, reason: Reason) {
        let accounts = &mut self.forwarder.accounts;
        accounts.ledger.drops.add(reason, 1);
        accounts.sample(frame, Link::Ethernet, reason, frame.len());
    }

    /// Copies frames that are dropped from now on, or no longer.
    pub fn set_sampler(&mut self, sampler: Option<Sampler>) {
        self.forwarder.accounts.sampler = sampler.map(Box::new);
    }

    /// What was copied of frames that were dropped, while somebody asks for it.
    #[inline]
    pub fn sampler(&mut self) -> Option<&mut Sampler> {
        self.forwarder.accounts.sampler.as_deref_mut()
    }

    /// Queues a frame of this host's own making (ARP, neighbour discovery).
    pub fn originate(&mut self, mut frame: Frame<B>, queue: &mut Vec<Frame<B>>) {
        frame.own = true;
        queue.push(frame);
    }
}

impl<B: Buffer> Default for Router<B> {
    fn default() -> Self {
        Router::new()
    }
}
