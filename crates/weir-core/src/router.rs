//! One breath of the router: a batch in, every frame out by exactly one way.
//!
//! ```text
//! rx(batch) ─► parse/check ─► lookup (whole batch) ─► rewrite ─► Output.tx[device]
//!                  │              │                      ├─────► Output.punt   (to the control side)
//!                  └──────────────┴─► pool (drop, counted)   └─► held for a neighbour
//! ```

//!
//! Frames put in [`Output::tx`] are counted as forwarded (or originated) at once; what a device then does
//! not take comes back through [`Router::refused`], which takes it off again and counts the drop. So the
//! usual case, a device that takes all, costs nothing a packet.
mod breath;
mod fast;
mod ingress;
mod slow;

use std::net::IpAddr;

use crate::packet::{Batch, Buffer, DeviceId, Frame, Pool};
use crate::tables::{PortId, Tables};
use crate::time::Nanos;
use crate::verdict::{Ledger, Reason};

pub use breath::breathe;
use fast::{SLOW, Stage};
use ingress::{NeighborCache, OwnAddresses};

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

/// The data path of one worker.
#[derive(Debug)]
pub struct Router<B> {
    ledger: Ledger,
    ports: Vec<PortCounters>,
    stage: Box<Stage>,
    own: OwnAddresses,
    near: NeighborCache,
    /// Generation of the snapshot the caches were made from.
    generation: Option<u64>,
    fast: bool,
    held: Vec<Frame<B>>,
}

impl<B: Buffer> Router<B> {
    pub fn new() -> Self {
        Router {
            ledger: Ledger::default(),
            ports: Vec::new(),
            stage: Box::new(Stage::new()),
            own: OwnAddresses::default(),
            near: NeighborCache::new(),
            generation: None,
            fast: true,
            held: Vec::new(),
        }
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Frames (their buffers) that wait for a neighbour.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Traffic by [`PortId`].
    pub fn port_counters(&self) -> &[PortCounters] {
        &self.ports
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
        if self.generation != Some(tables.generation) {
            self.adopt(tables);
        }
        let count = batch.len();
        self.ledger.received += count as u64;
        if self.fast {
            self.stage.judge(tables, &self.own, batch.frames(), &mut self.ports);
            self.stage.look_up(tables);
            let devices = out.tx.len();
            self.stage.rewrite(tables, &mut self.near, batch.frames_mut(), &mut self.ports, devices);
        }
        let mut frames = batch.drain();
        let mut at = 0;
        while at < count {
            let place = self.stage.place[at];
            let run = self.stage.place[at..count].iter().take_while(|&&p| p == place).count();
            at += run;
            if place == SLOW {
                for frame in frames.by_ref().take(run) {
                    self.slow(now, tables, frame, pool, out);
                }
            } else {
                out.tx[usize::from(place)].extend(frames.by_ref().take(run));
                self.ledger.forwarded += run as u64;
            }
        }
    }

    /// Makes the caches fit a new snapshot.
    #[cold]
    fn adopt(&mut self, tables: &Tables) {
        self.generation = Some(tables.generation);
        self.own = OwnAddresses::new(tables);
        self.near.clear();
        self.ports.resize(tables.ports.len().max(self.ports.len()), PortCounters::default());
    }

    /// What is due: frames held too long, frames whose next hop is now known.
    pub fn tick(&mut self, _now: Nanos, tables: &Tables, _pool: &mut Pool<B>, _out: &mut Output<B>) {
        if self.generation != Some(tables.generation) {
            self.adopt(tables);
        }
    }

    /// Frames `device` did not take: they were counted as sent and become drops for `reason`
    /// ([`Reason::TxRingFull`] or [`Reason::PortDown`]).
    #[cold]
    pub fn refused(
        &mut self,
        tables: &Tables,
        device: DeviceId,
        reason: Reason,
        frames: &mut Vec<Frame<B>>,
        pool: &mut Pool<B>,
    ) {
        for frame in frames.drain(..) {
            if let Some(port) = tables.port_of(device, frame.data())
                && let Some(counters) = self.ports.get_mut(port.index())
            {
                counters.tx_packets -= 1;
                counters.tx_bytes -= frame.len() as u64;
            }
            if frame.own {
                self.ledger.originated -= 1;
                self.ledger.originated_lost += 1;
            } else {
                self.ledger.forwarded -= 1;
                self.ledger.drops.add(reason, 1);
            }
            pool.put(frame.into_buffer());
        }
    }

    /// A frame given to this host did not reach it (its queue was full): it was counted as local and
    /// becomes a drop.
    #[cold]
    pub fn local_lost(&mut self, reason: Reason) {
        self.ledger.local -= 1;
        self.ledger.drops.add(reason, 1);
    }

    /// Queues a frame of this host's own making (ARP, neighbour discovery) and counts it.
    pub fn originate(&mut self, tables: &Tables, mut frame: Frame<B>, queue: &mut Vec<Frame<B>>) {
        frame.own = true;
        self.ledger.originated += 1;
        if let Some(port) = tables.port_of(frame.device, frame.data())
            && let Some(counters) = self.ports.get_mut(port.index())
        {
            counters.tx_packets += 1;
            counters.tx_bytes += frame.len() as u64;
        }
        queue.push(frame);
    }

    fn drop_frame(&mut self, frame: Frame<B>, reason: Reason, pool: &mut Pool<B>) {
        self.ledger.drops.add(reason, 1);
        pool.put(frame.into_buffer());
    }
}

impl<B: Buffer> Default for Router<B> {
    fn default() -> Self {
        Router::new()
    }
}
