//! IPsec around the router's breath: what comes in sealed is opened before it is routed, what leaves by a
//! tunnel or by a port with a policy enforcement point is sealed after.
//!
//! ```text
//! batch ─► classify ─┬─ cleartext ─► look up, rewrite ─┬─► tx[hardware]
//!    ▲               └─ ESP ─┐                         └─► tx[tunnel], tx[point] ─► seal ─► route ─► tx[…]
//!    └──── inner ◄──── open ◄┴─◄ the slow path's ESP ◄─ reassembly
//! ```
//!
//! A packet's headers are examined once: which SA an ESP packet is of is found while forwarding classifies it, and
//! travels with it. Each stage owns its scratch; frames move between them in vectors that keep their memory.
//!
//! Promises: without IPsec in the snapshot a breath asks once a batch and does nothing else; nothing is
//! allocated once the vectors have grown; a frame counts as received once, whatever was in it, and ends in
//! one verdict. Refuses: more than [`NESTING`] tunnels inside each other.

mod awaiting;
mod classify;
pub(crate) mod explain;
mod fragments;
mod handoff;
pub(crate) mod hooks;
mod host;
mod inbound;
mod outbound;
mod outer;
pub(crate) mod rules;
mod runs;
mod spd_query;
mod too_big;

use super::Breath;
use super::forwarder::Forwarder;
use super::sampler::Link;
use crate::ipsec::spd::LookupCounters;
use crate::ipsec::{Direction, Ipsec, Queue};
use crate::packet::{Batch, Buffer, DeviceId, Frame, Pool};
use crate::verdict::Reason;
use awaiting::Awaiting;
pub use awaiting::{SA_WAIT_FRAMES, SA_WAIT_FRAMES_OF_SPI, SA_WAIT_TIME};
use classify::Entry;
use fragments::Fragments;
pub(super) use handoff::Handoff;
use handoff::Sealed;
use inbound::Opener;
use outbound::{Beyond, EnforcementPoint, Sealer};
pub(crate) use outer::Way;
pub(crate) use rules::Key;
use rules::packet_len;
pub(crate) use too_big::{Remedy, remedy};

/// Headers of four tunnels, 4 × 76 B at most, are about what a buffer's headroom takes.
pub(crate) const NESTING: usize = 4;

/// The IPsec side of one worker.
#[derive(Debug)]
pub(super) struct Gateway<B> {
    /// The devices without hardware of this snapshot.
    queues: Vec<(DeviceId, Queue)>,
    entry: Entry,
    fragments: Fragments<B>,
    awaiting: Awaiting<B>,
    /// ESP of one level of nesting.
    level: Sealed<B>,
    opener: Opener<B>,
    sealer: Sealer<B>,
}

/// What each stage works with besides its own scratch.
struct Env<'a, 'b, B> {
    forwarder: &'a mut Forwarder<B>,
    breath: &'a mut Breath<'b, B>,
    ipsec: &'b Ipsec,
}

impl<B: Buffer> Env<'_, '_, B> {
    /// Ends a frame that goes nowhere.
    fn drop_frame(&mut self, frame: Frame<B>, reason: Reason) {
        self.forwarder.drop_frame(frame, reason, self.breath.pool);
    }

    /// Ends all of `frames`.
    #[cold]
    fn drop_all(&mut self, frames: &mut Vec<Frame<B>>, reason: Reason) {
        frames.drain(..).for_each(|frame| self.drop_frame(frame, reason));
    }

    /// Ends a frame that begins at its IP header.
    fn drop_packet(&mut self, frame: Frame<B>, reason: Reason) {
        self.forwarder.drop_from(frame, Link::Ip, reason, self.breath.pool);
    }

    /// Ends all of `frames`, which begin at their IP headers.
    #[cold]
    fn drop_packets(&mut self, frames: &mut Vec<Frame<B>>, reason: Reason) {
        frames.drain(..).for_each(|frame| self.drop_packet(frame, reason));
    }
}

impl<B: Buffer> Gateway<B> {
    pub fn new() -> Self {
        Gateway {
            queues: Vec::new(),
            entry: Entry::new(),
            fragments: Fragments::new(),
            awaiting: Awaiting::new(),
            level: Sealed::new(),
            opener: Opener::new(),
            sealer: Sealer::new(),
        }
    }

    pub fn set_worker(&mut self, worker: usize) {
        self.sealer.ident.worker = worker;
    }

    /// Fragments that wait, and packets that wait for their SA.
    pub fn held(&self) -> usize {
        self.fragments.held() + self.awaiting.held()
    }

    pub fn lookups(&self) -> &LookupCounters {
        self.entry.query.lookup.counters()
    }

    /// Forwards a batch: [`super::Router::forward`] where a snapshot has IPsec.
    #[inline(never)]
    pub fn forward<'b>(
        &mut self,
        forwarder: &mut Forwarder<B>,
        breath: &mut Breath<'b, B>,
        ipsec: &'b Ipsec,
        batch: &mut Batch<B>,
    ) {
        let env = &mut Env { forwarder, breath, ipsec };
        match host::queue(ipsec, batch) {
            None => self.entry.pass(env, batch),
            Some(device) => host::send(env, device, batch),
        }
        self.process_queues(env);
    }

    /// Does what is due: [`super::Router::tick`] where a snapshot has IPsec.
    #[inline(never)]
    pub fn tick<'b>(&mut self, forwarder: &mut Forwarder<B>, breath: &mut Breath<'b, B>, ipsec: &'b Ipsec) {
        self.fragments.expire(&mut forwarder.accounts, breath.now, breath.pool);
        self.awaiting.expire(&mut forwarder.accounts, breath.now, breath.pool);
        self.process_queues(&mut Env { forwarder, breath, ipsec });
    }

    /// Opens all ESP that was found, routes what was in it, and empties every queue.
    #[inline]
    fn process_queues(&mut self, env: &mut Env<'_, '_, B>) {
        let waits = |&(device, _): &(DeviceId, Queue)| {
            env.breath.out.tx.get(device.index()).is_some_and(|queue| !queue.is_empty())
        };
        if !env.forwarder.handoff.is_idle() || self.queues.iter().any(waits) {
            self.process(env);
        }
    }

    #[inline(never)]
    fn process(&mut self, env: &mut Env<'_, '_, B>) {
        for depth in 0.. {
            self.fragments.collect(env);
            self.awaiting.collect(env);
            if env.forwarder.handoff.is_empty() {
                break;
            }
            env.forwarder.handoff.take(&mut self.level);
            if depth == NESTING {
                self.level.clear_into(|frame| env.drop_packet(frame, Reason::TunnelNesting));
                break;
            }
            while self.level.next_batch(&mut self.opener.sealed) {
                self.opener.open(env, &mut self.entry.query);
                self.entry.pass(env, &mut self.opener.inner);
            }
        }
        self.empty_queues(env);
    }

    /// Makes what is kept of a snapshot fit a new one, and `out` large enough for its devices.
    pub fn on_snapshot(&mut self, forwarder: &mut Forwarder<B>, breath: &mut Breath<'_, B>) {
        let Some(ipsec) = &breath.tables.ipsec else { return self.shutdown(forwarder, breath.pool) };
        let devices = breath.tables.devices.len();
        if breath.out.tx.len() < devices {
            breath.out.tx.resize_with(devices, Vec::new);
        }
        self.entry.on_snapshot(breath.tables, ipsec);
        let queues = ipsec.queues.iter().enumerate().map(|(i, &queue)| (DeviceId(i as u16), queue));
        self.queues.clear();
        self.queues
            .extend(queues.filter(|(_, queue)| !matches!(queue, Queue::Hardware | Queue::Host { .. })));
        if self.awaiting.held() > 0 {
            self.awaiting.release(forwarder, ipsec);
        }
    }

    /// Ends what still waits for the rest of its packet, or for its SA.
    #[cold]
    pub fn shutdown(&mut self, forwarder: &mut Forwarder<B>, pool: &mut Pool<B>) {
        self.fragments.shutdown(&mut forwarder.accounts, pool);
        self.awaiting.shutdown(&mut forwarder.accounts, pool);
    }

    /// Empties every queue no hardware stands behind. What is sealed may lead into another tunnel, so it
    /// takes several rounds; the errors that sealing brings about go the same ways.
    fn empty_queues(&mut self, env: &mut Env<'_, '_, B>) {
        for round in 0..=NESTING {
            let mut idle = true;
            for &(device, queue) in &self.queues {
                let Some(ring) = env.breath.out.tx.get_mut(device.index()) else { continue };
                if ring.is_empty() {
                    continue;
                }
                idle = false;
                std::mem::swap(ring, &mut self.sealer.run);
                let known = self.entry.take_known(device);
                let ipsec = env.ipsec;
                match queue {
                    _ if round == NESTING => env.drop_all(&mut self.sealer.run, Reason::TunnelNesting),
                    Queue::Tunnel(id) => match ipsec.tunnels.get(usize::from(id.0)) {
                        Some(tunnel) => self.sealer.empty_tunnel(env, tunnel),
                        None => env.drop_all(&mut self.sealer.run, Reason::PortDown),
                    },
                    Queue::Enforcement { spd, device, .. } => {
                        match rules::question(ipsec, spd, Direction::Out) {
                            Some(question) => {
                                let point = EnforcementPoint { question, way: Beyond::Device(device), known };
                                self.sealer.enforce(env, &mut self.entry.query, point);
                            }
                            None => env.drop_all(&mut self.sealer.run, Reason::PortDown),
                        }
                    }
                    Queue::Policy(spd) => {
                        let devices = &env.breath.tables.devices;
                        let port = devices.get(device.index()).and_then(|device| device.untagged);
                        match rules::question(ipsec, spd, Direction::Out).zip(port) {
                            Some((question, port)) => {
                                let point = EnforcementPoint { question, way: Beyond::Nothing(port), known };
                                self.sealer.enforce(env, &mut self.entry.query, point);
                            }
                            None => env.drop_all(&mut self.sealer.run, Reason::PortDown),
                        }
                    }
                    Queue::Hardware | Queue::Host { .. } => {
                        env.drop_all(&mut self.sealer.run, Reason::PortDown)
                    }
                }
            }
            if idle {
                break;
            }
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
