//! Acts on decisions: whatever the fast path declines, and what comes out of the hold queue.
//!
//! Promises: the frame ends in exactly one place, and the ledger says which. Refuses to grow: without a
//! buffer or headroom the frame is dropped and counted.

use super::Breath;
use super::accounts::Accounts;
use super::decide::{Context, Decided, Decision, Silent, decide};
use super::forwarder::Forwarder;
use super::hold::HeldFrame;
use super::sampler::Link;
use crate::id::PortId;
#[cfg(feature = "ipsec")]
use crate::packet::DeviceId;
use crate::packet::{Buffer, Frame};
use crate::tables::Adjacency;
use crate::verdict::Reason;
use crate::wire::ethernet::{self, ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use crate::wire::{Ipv4, Ipv6};

/// Frames for the control side between two visits of the worker: a few batches.
const PUNT_LIMIT: usize = 256;

impl<B: Buffer> Forwarder<B> {
    /// A frame just received; `count` it on its port unless the fast path did.
    #[cold]
    #[inline(never)]
    pub(super) fn slow(&mut self, breath: &mut Breath<'_, B>, frame: Frame<B>, count: bool) {
        let context = Context { tables: breath.tables, own: &self.own, key: &self.key };
        let decided = decide(&context, frame.device, frame.data(), &mut Silent);
        if count && let Some(counters) = decided.port.and_then(|port| self.ports.get_mut(port.index())) {
            counters.rx_packets += 1;
            counters.rx_bytes += frame.len() as u64;
        }
        #[cfg(feature = "ipsec")]
        if let Some(ipsec) = breath.tables.ipsec.as_deref() {
            super::ipsec::hooks::observe(ipsec, breath.now, &decided, frame.data(), count);
        }
        let held = self.hold.held(breath.now, frame, decided.port.unwrap_or_default());
        self.act(breath, decided, held);
    }

    /// Carries a decision out. A frame that has to wait (again) keeps its place and deadline.
    fn act(&mut self, breath: &mut Breath<'_, B>, decided: Decided, held: HeldFrame<B>) {
        let Decided { network, decision, .. } = decided;
        let arrived = held.arrived;
        match decision {
            Decision::Forward(id) => match breath.tables.adjacencies.get(id.0 as usize) {
                Some(next) => self.send_on(breath, next, held.frame, network),
                None => self.drop_frame(held.frame, Reason::NoRoute, breath.pool),
            },
            Decision::Fragment(id) => match breath.tables.adjacencies.get(id.0 as usize) {
                Some(next) => self.send_fragments(breath, next, held.frame, network),
                None => self.drop_frame(held.frame, Reason::NoRoute, breath.pool),
            },
            Decision::Hold(port, next_hop) => {
                self.wait(breath, (port, next_hop), held);
            }
            Decision::Punt if breath.out.punt.len() >= PUNT_LIMIT => {
                self.drop_frame(held.frame, Reason::PuntQueueFull, breath.pool);
            }
            Decision::Punt => breath.out.punt.push((arrived, held.frame)),
            Decision::Local => {
                self.accounts.ledger.local += 1;
                breath.pool.put(held.frame.into_buffer());
            }
            Decision::EchoReply => self.echo_reply(breath, held, network),
            #[cfg(feature = "ipsec")]
            Decision::Deliver(device) => self.deliver(breath, device, held.frame),
            #[cfg(feature = "ipsec")]
            Decision::Open(id) => self.hand_off(Some(id), held.frame, network, breath.pool),
            #[cfg(feature = "ipsec")]
            Decision::Collect => self.hand_off(None, held.frame, network, breath.pool),
            #[cfg(feature = "ipsec")]
            Decision::AwaitSa(key) => self.await_sa(key, held.frame, network, breath.pool),
            Decision::Drop(reason, error) => {
                if let Some(error) = error {
                    let packet = held.frame.data().get(network..).unwrap_or(&[]);
                    self.send_error(breath, arrived, error, packet);
                }
                self.drop_frame(held.frame, reason, breath.pool);
            }
        }
    }

    /// Queues a frame, between this host's own stack and an SPD of route mode.
    #[cfg(feature = "ipsec")]
    pub(super) fn deliver(&mut self, breath: &mut Breath<'_, B>, device: DeviceId, mut frame: Frame<B>) {
        frame.device = device;
        match breath.out.tx.get_mut(device.index()) {
            Some(ring) => ring.push(frame),
            None => self.drop_frame(frame, Reason::PortDown, breath.pool),
        }
    }

    /// Puts a frame in the hold queue; what it displaces is lost.
    pub(super) fn wait(
        &mut self,
        breath: &mut Breath<'_, B>,
        next_hop: (PortId, std::net::IpAddr),
        held: HeldFrame<B>,
    ) {
        self.accounts.ledger.held += u64::from(!held.frame.own);
        if let Some(displaced) =
            self.hold.push(breath.now, &breath.tables.settings, next_hop, held, &mut breath.out.events)
        {
            self.accounts.ledger.held -= u64::from(!displaced.frame.own);
            self.drop_frame(displaced.frame, Reason::HoldQueueFull, breath.pool);
        }
    }

    /// Decides anew on everything held: the snapshot has changed.
    pub(super) fn release(&mut self, breath: &mut Breath<'_, B>) {
        for held in self.hold.take_all() {
            self.accounts.ledger.held -= u64::from(!held.frame.own);
            if held.frame.own || held.frame.sealed {
                self.send_own(breath, held);
                continue;
            }
            let context = Context { tables: breath.tables, own: &self.own, key: &self.key };
            let decided = decide(&context, held.frame.device, held.frame.data(), &mut Silent);
            self.act(breath, decided, held);
        }
        self.hold.forget_empty();
    }

    /// Gives up on what waited too long.
    pub(super) fn expire(&mut self, breath: &mut Breath<'_, B>) {
        for held in self.hold.scan(breath.now, &mut breath.out.events) {
            if !held.frame.own {
                self.accounts.ledger.held -= 1;
                // The source of a sealed packet is ourselves.
                if !held.frame.sealed {
                    self.send_unresolved(breath, &held);
                }
            }
            self.drop_frame(held.frame, Reason::NeighborUnresolved, breath.pool);
        }
    }

    /// Lowers TTL or hop limit and sends the packet, without what follows it in its frame, to `next`.
    fn send_on(&mut self, breath: &mut Breath<'_, B>, next: &Adjacency, mut frame: Frame<B>, network: usize) {
        if let Some(packet) = frame.data_mut().get_mut(network..) {
            let len = lower_ttl(packet);
            frame.truncate(network + len);
        }
        self.send(breath, next, frame, network);
    }

    /// Puts the link header of `next` before the packet at `network` and queues the frame.
    pub(super) fn send(
        &mut self,
        breath: &mut Breath<'_, B>,
        next: &Adjacency,
        frame: Frame<B>,
        network: usize,
    ) {
        send(&mut self.accounts, breath, next, frame, network);
    }

    /// Sends the first piece of a packet, whose IP header is at `network`, and those in `fragments`.
    pub(super) fn send_pieces(
        &mut self,
        breath: &mut Breath<'_, B>,
        next: &Adjacency,
        (first, network): (Frame<B>, usize),
        sealed: bool,
    ) {
        send(&mut self.accounts, breath, next, first, network);
        for mut piece in self.fragments.drain(..) {
            piece.sealed = sealed;
            send(&mut self.accounts, breath, next, piece, ethernet::HEADER_LEN);
        }
    }
}

/// Puts the link header of `next` before the packet at `network` and queues the frame.
fn send<B: Buffer>(
    accounts: &mut Accounts,
    breath: &mut Breath<'_, B>,
    next: &Adjacency,
    mut frame: Frame<B>,
    network: usize,
) {
    // No policy enforcement point asks about what was sealed.
    let queue = if frame.sealed { next.device } else { next.egress };
    let link = if network == 0 { Link::Ip } else { Link::Ethernet };
    let Some(ring) = breath.out.tx.get_mut(queue.index()) else {
        return accounts.drop_frame(frame, link, Reason::PortDown, breath.pool);
    };
    if !relink(&mut frame, next, network) {
        return accounts.drop_frame(frame, link, Reason::FrameTooLarge, breath.pool);
    }
    frame.device = next.device;
    ring.push(frame);
}

/// Replaces the link header before `network` by that of `next`; `false` without headroom for its tag.
fn relink<B: Buffer>(frame: &mut Frame<B>, next: &Adjacency, network: usize) -> bool {
    let version = frame.data().get(network).map_or(0, |byte| byte >> 4);
    let ethertype = if version == 4 { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
    let header = ethernet::HEADER_LEN + if next.vlan.is_some() { ethernet::TAG_LEN } else { 0 };
    let fits = match network.checked_sub(header) {
        Some(surplus) => frame.shrink_front(surplus),
        None => frame.grow_front(header - network),
    };
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5] = next.header;
    let (dst, src) = ([d0, d1, d2, d3, d4, d5], [s0, s1, s2, s3, s4, s5]);
    fits && ethernet::write(frame.data_mut(), dst, src, next.vlan, ethertype).is_some()
}

/// Lowers TTL or hop limit; returns the packet's own length.
fn lower_ttl(packet: &mut [u8]) -> usize {
    if packet.first().is_some_and(|byte| byte >> 4 == 4) {
        let mut packet = Ipv4::new_unchecked(packet);
        packet.decrement_ttl();
        packet.total_len()
    } else {
        let mut packet = Ipv6::new_unchecked(packet);
        packet.decrement_hop_limit();
        packet.total_len()
    }
}
