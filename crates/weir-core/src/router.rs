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
pub(crate) mod decide;
mod fast;
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
mod slow;

use std::net::IpAddr;

use crate::id::PortId;
use crate::ipsec::spd::LookupCounters;
use crate::packet::{Batch, Buffer, DeviceId, Frame, Pool};
use crate::tables::Tables;
use crate::time::Nanos;
use crate::verdict::{Ledger, Reason};
use crate::wire::flow::FlowKey;

pub use breath::breathe;
use fast::{SLOW, SLOW_COUNTED, Stage};
pub use hold::HOLD_TIME;
use hold::Hold;
use ingress::{NeighborCache, OwnAddresses};
use limiter::Limiter;

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

/// What the slow path works with.
struct Breath<'a, B> {
    now: Nanos,
    tables: &'a Tables,
    pool: &'a mut Pool<B>,
    out: &'a mut Output<B>,
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
    hold: Hold<B>,
    limiter: Limiter,
    key: FlowKey,
    /// Identification of our own IPv4 packets.
    ident: u16,
    /// Scratch: the later pieces of the packet being fragmented.
    fragments: Vec<Frame<B>>,
    fast: bool,
    /// Which worker this is: it sends by SAs of its own where an operator gave it some.
    #[cfg_attr(not(feature = "ipsec"), expect(dead_code, reason = "nobody else asks"))]
    worker: usize,
    #[cfg(feature = "ipsec")]
    ipsec: ipsec::Scratch<B>,
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
            hold: Hold::new(),
            limiter: Limiter::new(),
            key: FlowKey::new(0),
            ident: 0,
            fragments: Vec::new(),
            fast: true,
            worker: 0,
            #[cfg(feature = "ipsec")]
            ipsec: ipsec::Scratch::new(),
        }
    }

    /// Chooses among several paths by this key, which should be drawn at random once a router: all its
    /// workers share it, no other router does.
    #[must_use]
    pub fn with_flow_key(self, key: FlowKey) -> Self {
        Router { key, ..self }
    }

    /// Which worker this is, from 0 (RFC 9611: an SA for each CPU).
    #[must_use]
    pub fn with_worker(self, worker: usize) -> Self {
        Router { worker, ..self }
    }

    /// For tests: every frame takes the slow path.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn without_fast_path(self) -> Self {
        Router { fast: false, ..self }
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Frames (their buffers) that wait for a neighbour, or for the rest of their packet.
    pub fn held(&self) -> usize {
        #[cfg(feature = "ipsec")]
        return self.hold.len() + self.ipsec.held();
        #[cfg(not(feature = "ipsec"))]
        self.hold.len()
    }

    /// Traffic by [`PortId`].
    pub fn port_counters(&self) -> &[PortCounters] {
        &self.ports
    }

    /// Who answered what this worker asked of SPDs.
    pub fn lookups(&self) -> LookupCounters {
        #[cfg(feature = "ipsec")]
        return *self.ipsec.ask.lookup.counters();
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
        if self.generation != Some(tables.generation) {
            self.adopt(now, tables, pool, out);
        }
        self.ledger.received += batch.len() as u64;
        #[cfg(feature = "ipsec")]
        if tables.ipsec.is_some() {
            return self.forward_ipsec(now, tables, batch, pool, out);
        }
        self.pass::<false>(now, tables, batch, pool, out);
    }

    /// Judges, looks up and rewrites a batch. `IPSEC`: the tables have it; without, nothing here knows of IPsec.
    fn pass<const IPSEC: bool>(
        &mut self,
        now: Nanos,
        tables: &Tables,
        batch: &mut Batch<B>,
        pool: &mut Pool<B>,
        out: &mut Output<B>,
    ) {
        let count = batch.len();
        if self.fast {
            self.stage.judge(tables, &self.own, batch.frames(), &mut self.ports);
            self.stage.look_up(tables);
            let devices = out.tx.len();
            self.stage.rewrite(
                tables,
                &self.key,
                &mut self.near,
                batch.frames_mut(),
                &mut self.ports,
                devices,
            );
        }
        let mut frames = batch.drain();
        let mut at = 0;
        while at < count {
            let place = self.stage.place[at];
            let run = self.stage.place[at..count].iter().take_while(|&&p| p == place).count();
            at += run;
            if place >= SLOW_COUNTED {
                for frame in frames.by_ref().take(run) {
                    self.slow(&mut Breath { now, tables, pool, out }, frame, place == SLOW);
                }
            } else {
                out.tx[usize::from(place)].extend(frames.by_ref().take(run));
                self.ledger.forwarded += run as u64;
                #[cfg(feature = "ipsec")]
                if IPSEC && self.stage.is_all_ipv4() {
                    self.ipsec.note_common(place, run);
                }
            }
        }
    }

    /// Makes the caches fit a new snapshot. Held frames go first: what comes later must not overtake them.
    #[cold]
    fn adopt(&mut self, now: Nanos, tables: &Tables, pool: &mut Pool<B>, out: &mut Output<B>) {
        self.generation = Some(tables.generation);
        self.own = OwnAddresses::new(tables);
        self.near.clear();
        self.ports.resize(tables.ports.len().max(self.ports.len()), PortCounters::default());
        #[cfg(feature = "ipsec")]
        self.adopt_ipsec(tables, pool, out);
        self.release(&mut Breath { now, tables, pool, out });
    }

    /// What is due: frames whose next hop may now be known, frames held too long.
    pub fn tick(&mut self, now: Nanos, tables: &Tables, pool: &mut Pool<B>, out: &mut Output<B>) {
        if self.generation != Some(tables.generation) {
            self.adopt(now, tables, pool, out);
        }
        if self.hold.is_due(now) {
            self.expire(&mut Breath { now, tables, pool, out });
        }
        #[cfg(feature = "ipsec")]
        if tables.ipsec.is_some() {
            self.tick_ipsec(&mut Breath { now, tables, pool, out });
        }
    }

    /// Before the worker ends: whatever still waits is lost, and its buffers are back in the pool.
    pub fn give_up(&mut self, pool: &mut Pool<B>) {
        for held in self.hold.take_all() {
            self.ledger.held -= u64::from(!held.frame.own);
            self.lose(held.frame, Reason::NeighborUnresolved, pool);
        }
        self.hold.forget_empty();
        #[cfg(feature = "ipsec")]
        self.give_up_fragments(pool);
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
}

impl<B: Buffer> Default for Router<B> {
    fn default() -> Self {
        Router::new()
    }
}
