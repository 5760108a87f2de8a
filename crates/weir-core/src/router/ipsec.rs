//! IPsec around the router's breath: what comes in sealed is opened before it is routed, what leaves by a
//! tunnel or a guarded port is sealed after.
//!
//! ```text
//! batch ─► take in ─┬─ clear ─► judge, look up, rewrite ─┬─► tx[hardware]
//!    ▲              └─ ESP ─┐                            └─► tx[tunnel], tx[guard] ─► seal ─► route ─► tx[…]
//!    └──── inner ◄── open ◄─┴─◄ the slow path's ESP ◄─ reassembly
//! ```
//!
//! Promises: without IPsec in the snapshot a breath asks once a batch and does nothing else; nothing is
//! allocated once the vectors have grown; a frame counts as received once, whatever was in it, and ends in
//! one verdict. Refuses: more than [`NESTING`] tunnels inside each other.

mod ask;
pub(crate) mod explain;
mod fragments;
mod inward;
pub(crate) mod judge;
mod outer;
mod outward;
pub(crate) mod rules;
mod runs;
mod too_big;

use super::{Breath, Output, Router};
use crate::id::PortId;
use crate::ipsec::esp::Outcome;
use crate::ipsec::reassembly::{Ended, Reassembly};
use crate::ipsec::{Direction, Ipsec, Queue};
use crate::packet::{BATCH, Batch, Buffer, DeviceId, Frame, Pool};
use crate::tables::Tables;
use crate::time::Nanos;
use crate::verdict::Reason;
use ask::Ask;
pub(crate) use outer::Way;
use outward::{Guard, Sender};
use rules::{Key, packet_len};
use runs::Runs;
pub(crate) use too_big::{Remedy, remedy};

/// Headers of four tunnels, 4 × 76 B at most, are about what a buffer's headroom takes.
pub(crate) const NESTING: usize = 4;

/// Scratch of the IPsec side of one worker.
#[derive(Debug)]
pub(super) struct Gate<B> {
    /// The devices without hardware of this snapshot.
    queues: Vec<(DeviceId, Queue)>,
    /// Frames taken out of such a device's queue; what stays in it is sealed in place.
    run: Vec<Frame<B>>,
    /// A run that is being put together.
    next: Vec<Frame<B>>,
    by_sender: Runs<B, Sender>,
    by_sa: Runs<B, Key>,
    outcomes: [Outcome; BATCH],
    /// ESP of one level of nesting, and the batch of it that is being opened.
    level: Sealed<B>,
    opening: Sealed<B>,
    inner: Batch<B>,
    /// Identification of outer packets cut here.
    ident: u32,
}

impl<B: Buffer> Gate<B> {
    pub fn new() -> Self {
        Gate {
            queues: Vec::new(),
            run: Vec::new(),
            next: Vec::new(),
            by_sender: Runs::new(),
            by_sa: Runs::new(),
            outcomes: [Outcome::Done; BATCH],
            level: Sealed::new(),
            opening: Sealed::new(),
            inner: Batch::new(),
            ident: 0,
        }
    }
}

/// What a router has for IPsec; nothing is allocated before a snapshot has any.
#[derive(Debug)]
pub(super) struct Scratch<B> {
    gate: Option<Box<Gate<B>>>,
    /// ESP the breath has found so far.
    sealed: Sealed<B>,
    /// Frames that stay in a batch others are taken out of.
    staying: Vec<Frame<B>>,
    reassembly: Reassembly<B>,
    pub ask: Ask,
    ended: Vec<Ended<B>>,
    /// By device: frames with an IPv4 header without options that the fast path put into its queue since it was
    /// emptied. Where that is all of them, a rule for every packet need not look at one.
    common: Vec<usize>,
}

impl<B: Buffer> Scratch<B> {
    pub fn new() -> Self {
        Scratch {
            gate: None,
            sealed: Sealed::new(),
            staying: Vec::new(),
            reassembly: Reassembly::new(),
            ask: Ask::new(),
            ended: Vec::new(),
            common: Vec::new(),
        }
    }

    /// `count` frames with such a header are in the queue of `device`.
    #[inline]
    pub fn note_common(&mut self, device: u16, count: usize) {
        if let Some(common) = self.common.get_mut(usize::from(device)) {
            *common += count;
        }
    }

    /// Fragments that wait.
    pub fn held(&self) -> usize {
        self.reassembly.held()
    }
}

/// ESP on its way to being opened: windows begin at the outer IP header.
#[derive(Debug)]
struct Sealed<B> {
    frames: Vec<Frame<B>>,
    keys: Vec<Key>,
}

impl<B> Sealed<B> {
    const fn new() -> Self {
        Sealed { frames: Vec::new(), keys: Vec::new() }
    }

    fn push(&mut self, key: Key, frame: Frame<B>) {
        self.keys.push(key);
        self.frames.push(frame);
    }

    /// Moves at most a batch to `batch`, which is empty; whether there was any.
    fn next_batch(&mut self, batch: &mut Sealed<B>) -> bool {
        if self.frames.len() <= BATCH {
            std::mem::swap(self, batch);
        } else {
            batch.frames.extend(self.frames.drain(..BATCH));
            batch.keys.extend(self.keys.drain(..BATCH));
        }
        !batch.frames.is_empty()
    }
}

impl<B: Buffer> Router<B> {
    /// [`Router::forward`] where a snapshot has IPsec.
    #[inline(never)]
    pub(super) fn forward_ipsec(
        &mut self,
        now: Nanos,
        tables: &Tables,
        batch: &mut Batch<B>,
        pool: &mut Pool<B>,
        out: &mut Output<B>,
    ) {
        if let Some(ipsec) = tables.ipsec.as_deref() {
            self.take_in(tables, ipsec, batch, pool);
            self.pass::<true>(now, tables, batch, pool, out);
            self.settle(&mut Breath { now, tables, pool, out }, ipsec);
        }
    }

    /// [`Router::tick`] where a snapshot has IPsec.
    #[inline(never)]
    pub(super) fn tick_ipsec(&mut self, breath: &mut Breath<'_, B>) {
        if let Some(ipsec) = breath.tables.ipsec.as_deref() {
            if self.ipsec.reassembly.is_due(breath.now) {
                self.ipsec.reassembly.expire(breath.now, &mut self.ipsec.ended);
                self.end_fragments(breath.pool);
            }
            self.settle(breath, ipsec);
        }
    }

    /// Opens all ESP that was found, routes what was in it, and empties every queue.
    fn settle(&mut self, breath: &mut Breath<'_, B>, ipsec: &Ipsec) {
        let mut gate = self.ipsec.gate.take().unwrap_or_else(|| Box::new(Gate::new()));
        let mut inner = std::mem::replace(&mut gate.inner, Batch::hollow());
        for depth in 0.. {
            if self.ipsec.sealed.frames.is_empty() {
                break;
            }
            if depth == NESTING {
                self.refuse_nested(breath);
                break;
            }
            let mut level = std::mem::replace(&mut gate.level, Sealed::new());
            std::mem::swap(&mut level, &mut self.ipsec.sealed);
            while level.next_batch(&mut gate.opening) {
                self.open(breath, ipsec, &mut gate, &mut inner);
                self.take_in(breath.tables, ipsec, &mut inner, breath.pool);
                self.pass::<true>(breath.now, breath.tables, &mut inner, breath.pool, breath.out);
            }
            gate.level = level;
        }
        gate.inner = inner;
        self.empty_queues(breath, ipsec, &mut gate);
        self.ipsec.gate = Some(gate);
    }

    /// Makes what is kept of a snapshot fit a new one, and `out` large enough for its devices.
    pub(super) fn adopt_ipsec(&mut self, tables: &Tables, pool: &mut Pool<B>, out: &mut Output<B>) {
        let Some(ipsec) = &tables.ipsec else { return self.give_up_fragments(pool) };
        if out.tx.len() < tables.devices.len() {
            out.tx.resize_with(tables.devices.len(), Vec::new);
        }
        let gate = self.ipsec.gate.get_or_insert_with(|| Box::new(Gate::new()));
        let queues = ipsec.queues.iter().enumerate().map(|(i, &queue)| (DeviceId(i as u16), queue));
        self.ipsec.common.clear();
        self.ipsec.common.resize(tables.devices.len(), 0);
        gate.queues.clear();
        gate.queues.extend(queues.filter(|&(_, queue)| queue != Queue::Hardware));
    }

    /// Empties every queue no hardware stands behind. What is sealed may lead into another tunnel, so it
    /// takes several rounds; the errors that sealing brings about go the same ways.
    fn empty_queues(&mut self, breath: &mut Breath<'_, B>, ipsec: &Ipsec, gate: &mut Gate<B>) {
        for round in 0..=NESTING {
            let mut idle = true;
            for at in 0..gate.queues.len() {
                let (device, queue) = gate.queues[at];
                let Some(ring) = breath.out.tx.get_mut(device.index()) else { continue };
                if ring.is_empty() {
                    continue;
                }
                idle = false;
                std::mem::swap(ring, &mut gate.run);
                let common = self.ipsec.common.get_mut(device.index()).map_or(0, std::mem::take);
                match queue {
                    _ if round == NESTING => self.lose_queue(breath, gate, Reason::TunnelNesting),
                    Queue::Tunnel(id) => match ipsec.tunnels.get(usize::from(id.0)) {
                        Some(tunnel) => self.empty_tunnel(breath, gate, tunnel),
                        None => self.lose_queue(breath, gate, Reason::PortDown),
                    },
                    Queue::Guard { spd, port, device } => match rules::question(ipsec, spd, Direction::Out) {
                        Some(question) => {
                            self.empty_guard(breath, gate, Guard { question, port, device, common });
                        }
                        None => self.lose_queue(breath, gate, Reason::PortDown),
                    },
                    Queue::Hardware | Queue::Policy(_) => self.lose_queue(breath, gate, Reason::PortDown),
                }
            }
            if idle {
                break;
            }
        }
    }

    /// The end of all frames of a queue, each with its link header.
    #[cold]
    fn lose_queue(&mut self, breath: &mut Breath<'_, B>, gate: &mut Gate<B>, reason: Reason) {
        for frame in gate.run.drain(..) {
            self.lose_sent(breath, frame, reason);
        }
    }

    /// The end of a whole frame that was counted as sent by its device's port.
    fn lose_sent(&mut self, breath: &mut Breath<'_, B>, frame: Frame<B>, reason: Reason) {
        let queue = breath.tables.ipsec.as_ref().and_then(|i| i.queues.get(frame.device.index()).copied());
        let port = match queue {
            Some(Queue::Guard { port, .. }) => Some(port),
            _ => breath.tables.port_of(frame.device, frame.data()),
        };
        if let Some(port) = port {
            self.take_off(port, frame.len());
        }
        self.take_back(&frame);
        self.lose(frame, reason, breath.pool);
    }

    /// A frame was counted as sent, and is not (yet).
    fn take_back(&mut self, frame: &Frame<B>) {
        if frame.own {
            self.ledger.originated -= 1;
        } else {
            self.ledger.forwarded -= 1;
        }
    }

    /// Takes a frame of `len` bytes off what left by `port`.
    fn take_off(&mut self, port: PortId, len: usize) {
        if let Some(counters) = self.ports.get_mut(port.index()) {
            counters.tx_packets -= 1;
            counters.tx_bytes -= len as u64;
        }
    }
}

/// Drops the link header of `network` bytes, and what follows the IP packet.
#[inline]
fn unwrap<B: Buffer>(frame: &mut Frame<B>, network: usize) -> bool {
    frame.shrink_front(network) && {
        let len = packet_len(frame.data());
        len <= frame.len() && frame.set_len(len)
    }
}
