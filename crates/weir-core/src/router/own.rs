//! Packets of our own: ICMP errors (RFC 1812 4.3, RFC 4443 2.4) and echo replies.
//!
//! Promises: at most one error a packet, none where the RFCs forbid it, none beyond the rate limit; each
//! either leaves by a port, waits for its neighbour like any other, or is counted as lost. Refuses:
//! redirects, source quench.

use std::net::IpAddr;

use super::decide::{Context, Decided, Decision, IcmpError, Silent};
use super::forwarder::Forwarder;
use super::hold::HeldFrame;
use super::next_hop::{self, Packet};
use super::{Breath, ipv4, ipv6};
use crate::id::PortId;
use crate::packet::{Buffer, DeviceId, Frame, HEADROOM};
use crate::tables::Tables;
use crate::verdict::Reason;
use crate::wire::ethernet::HEADER_LEN as ETHERNET;
use crate::wire::{Ethernet, Ipv4, Ipv6, icmpv4, icmpv6};

/// TTL and hop limit of our own packets (IANA's recommended default).
const TTL: u8 = 64;

impl<B: Buffer> Forwarder<B> {
    /// Tells the sender of `packet`, which came in on `arrived`, what went wrong.
    pub(super) fn send_error(
        &mut self,
        breath: &mut Breath<'_, B>,
        arrived: PortId,
        error: IcmpError,
        packet: &[u8],
    ) {
        let allowed = match error {
            IcmpError::V4(_) => icmpv4::may_answer(packet),
            IcmpError::V6(error) => icmpv6::may_answer(error, packet),
        };
        if !allowed {
            return;
        }
        if !self.limiter.take(breath.now, &breath.tables.settings) {
            self.accounts.ledger.icmp_limited += 1;
            return;
        }
        let Some(buffer) = breath.pool.take() else {
            self.accounts.ledger.originated_lost += 1;
            return;
        };
        let room = buffer.bytes().len().saturating_sub(HEADROOM);
        let mut frame = Frame::new(buffer, HEADROOM, room, DeviceId::default());
        frame.own = true;
        let len = match frame.data_mut().get_mut(ETHERNET..) {
            Some(space) => self.write_error(breath.tables, arrived, error, packet, space),
            None => None,
        };
        match len {
            Some(len) if frame.set_len(ETHERNET + len) => {
                let held = self.hold.held(breath.now, frame, arrived);
                self.send_own(breath, held);
            }
            _ => self.drop_frame(frame, Reason::FrameTooLarge, breath.pool),
        }
    }

    fn write_error(
        &mut self,
        tables: &Tables,
        arrived: PortId,
        error: IcmpError,
        packet: &[u8],
        space: &mut [u8],
    ) -> Option<usize> {
        let context = Context { tables, own: &self.own, key: &self.key };
        match error {
            IcmpError::V4(error) => {
                let from = ipv4::error_source(&context, arrived)?;
                self.ident = self.ident.wrapping_add(1);
                icmpv4::write_error(space, error, from, packet, TTL, self.ident)
            }
            IcmpError::V6(error) => {
                let from = ipv6::error_source(&context, arrived)?;
                icmpv6::write_error(space, error, from, packet, TTL)
            }
        }
    }

    /// The neighbour of a held frame never answered.
    pub(super) fn send_unresolved(&mut self, breath: &mut Breath<'_, B>, held: &HeldFrame<B>) {
        let Ok(link) = Ethernet::parse(held.frame.data()) else { return };
        let packet = link.payload();
        let error = match packet.first().map(|byte| byte >> 4) {
            Some(4) => IcmpError::V4(icmpv4::Error::HostUnreachable),
            _ => IcmpError::V6(icmpv6::Error::AddressUnreachable),
        };
        self.send_error(breath, held.arrived, error, packet);
    }

    /// Answers an echo request where it lies: the request is ours (local), the reply is our own.
    pub(super) fn echo_reply(&mut self, breath: &mut Breath<'_, B>, mut held: HeldFrame<B>, network: usize) {
        let packet = held.frame.data_mut().get_mut(network..).unwrap_or(&mut []);
        let answered = match packet.first().map(|byte| byte >> 4) {
            Some(4) => icmpv4::reply_in_place(packet, TTL),
            _ => icmpv6::reply_in_place(packet, TTL),
        };
        if !answered || !held.frame.shrink_front(network - ETHERNET) {
            return self.drop_frame(held.frame, Reason::LocalNotServed, breath.pool);
        }
        self.accounts.ledger.local += 1;
        held.frame.own = true;
        self.send_own(breath, held);
    }

    /// Routes a packet of our own, whose IP header is at [`ETHERNET`].
    pub(super) fn send_own(&mut self, breath: &mut Breath<'_, B>, held: HeldFrame<B>) {
        let context = Context { tables: breath.tables, own: &self.own, key: &self.key };
        let decided =
            own_decision(&context, held.arrived, &held.frame.data()[ETHERNET.min(held.frame.len())..]);
        match decided.decision {
            Decision::Forward(id) if (id.0 as usize) < breath.tables.adjacencies.len() => {
                let next = &breath.tables.adjacencies[id.0 as usize];
                self.send(breath, next, held.frame, decided.network);
            }
            Decision::Hold(port, next_hop) => self.wait(breath, (port, next_hop), held),
            // An error or reply that cannot be sent is not worth another one.
            _ => self.drop_frame(held.frame, Reason::NoRoute, breath.pool),
        }
    }
}

fn own_decision(context: &Context<'_>, arrived: PortId, packet: &[u8]) -> Decided {
    let (destination, target, len): (IpAddr, _, _) = match packet.first().map(|byte| byte >> 4) {
        Some(4) => {
            let ip = Ipv4::new_unchecked(packet);
            (ip.dst().into(), ipv4::own_target(context, arrived, ip.dst()), ip.total_len())
        }
        _ => {
            let ip = Ipv6::new_unchecked(packet);
            (ip.dst().into(), ipv6::own_target(context, arrived, ip.dst()), ip.total_len())
        }
    };
    let hash = |context: &Context<'_>| match destination {
        IpAddr::V4(_) => context.key.of_ipv4(&Ipv4::new_unchecked(packet)),
        IpAddr::V6(_) => context.key.of_ipv6(&Ipv6::new_unchecked(packet)),
    };
    let packet = Packet { destination, len, hash: &hash, fragments: false };
    let decision = next_hop::resolve(context, target, &packet, &mut Silent);
    Decided { port: Some(arrived), network: ETHERNET, decision }
}
