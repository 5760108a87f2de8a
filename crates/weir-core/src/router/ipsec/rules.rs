//! What IPsec says about one packet: every rule, no action.
//!
//! Promises: pure functions of a snapshot and bytes, so forwarding acts on them and a trace prints them.
//! A packet no [`crate::ipsec::Flow`] can be told of is one no policy allows: discarded wherever an SPD is asked.

use std::net::IpAddr;
use std::sync::Arc;

use crate::id::{AdjacencyId, PortId};
#[cfg(doc)]
use crate::ipsec::Flow;
use crate::ipsec::spd::{Found, PolicyIndex, Question};
use crate::ipsec::{Action, Direction, Ipsec, Sa, SaId, Spd, SpdId};
use crate::packet::DeviceId;
use crate::router::next_hop::target_of;
use crate::tables::{Owner, Tables, Target};
use crate::verdict::Reason;
use crate::wire::{Ipv4, Ipv6, get16, get32, icmpv6, protocol};

/// UDP header.
const UDP: usize = 8;
/// SPI and sequence number.
const ESP: usize = 8;
/// RFC 3948 2.3.
const KEEPALIVE: [u8; 1] = [0xff];

/// SPI and destination of an ESP packet.
pub(crate) type Key = (u32, IpAddr);

/// What a packet is to IPsec, as far as its headers tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// ESP, plain or in UDP, whole.
    Esp(Key),
    /// A fragment that may be part of an ESP packet.
    Fragment(IpAddr, u8),
    Keepalive,
    Other,
}

/// What a packet is, and its upper-layer protocol with what follows that header. Looks behind options and
/// extension headers: the slow way. `packet` has passed the header checks.
pub(crate) fn kind<'a>(ipsec: &Ipsec, packet: &'a [u8]) -> (Kind, Option<(u8, &'a [u8])>) {
    let Some((destination, proto, payload, fragment)) = upper(packet) else { return (Kind::Other, None) };
    let upper = Some((proto, payload));
    let esp = match (proto, fragment) {
        (protocol::ESP | protocol::UDP, true) => return (Kind::Fragment(destination, proto), upper),
        (protocol::ESP, false) => payload,
        (protocol::UDP, false) if payload.len() > UDP => {
            if ipsec.udp_ports.binary_search(&get16(payload, 2)).is_err() {
                return (Kind::Other, upper);
            }
            let inside = &payload[UDP..];
            // RFC 3948 2.2: four zero octets are the non-ESP marker of IKE.
            match inside.len() {
                _ if *inside == KEEPALIVE => return (Kind::Keepalive, upper),
                len if len < ESP || get32(inside, 0) == 0 => return (Kind::Other, upper),
                _ => inside,
            }
        }
        _ => return (Kind::Other, upper),
    };
    let kind = if esp.len() < 4 { Kind::Other } else { Kind::Esp((get32(esp, 0), destination)) };
    (kind, upper)
}

/// Destination, protocol behind all headers, what it carries, and whether that is a fragment.
fn upper(packet: &[u8]) -> Option<(IpAddr, u8, &[u8], bool)> {
    match packet.first()? >> 4 {
        4 => {
            let ip = Ipv4::parse_header(packet).ok()?;
            let end = ip.total_len().min(packet.len());
            let payload = packet.get(ip.header_len()..end).unwrap_or(&[]);
            Some((ip.dst().into(), ip.protocol(), payload, ip.is_fragment()))
        }
        _ => {
            let ip = Ipv6::parse_header(packet).ok()?;
            let chain = ip.chain().ok()?;
            let end = ip.total_len().min(packet.len());
            let payload = packet.get(chain.offset..end).unwrap_or(&[]);
            Some((ip.dst().into(), chain.protocol, payload, chain.fragment.is_some()))
        }
    }
}

/// Whom to ask about packets that come in by a port (as cleartext) or leave by it, if it has an SPD.
pub(crate) fn enforcement(ipsec: &Ipsec, port: PortId, direction: Direction) -> Option<Question<'_>> {
    question(ipsec, (*ipsec.enforcement.get(port.index())?)?, direction)
}

/// Whom to ask about packets an SPD decides about.
pub(crate) fn question(ipsec: &Ipsec, id: SpdId, direction: Direction) -> Option<Question<'_>> {
    let spd = ipsec.spds.get(usize::from(id.0))?;
    Some(Question { spd, id, direction, caches: &ipsec.caches, oracle: ipsec.oracle })
}

/// What becomes of a packet that came in as cleartext on a port (RFC 4301 5.2 step 3b), by what the SPD says of it: the
/// policy it counts for, and why it goes no further, if it does not.
#[inline]
pub(crate) fn clear(spd: &Spd, found: Found) -> (Option<PolicyIndex>, Option<Reason>) {
    let index = match found {
        Some(Some(index)) => index,
        Some(None) if spd.default == Action::Bypass => return (None, None),
        _ => return (None, Some(Reason::PolicyNone)),
    };
    match spd.policy(index).map(|policy| policy.action) {
        Some(Action::Bypass) => (Some(index), None),
        // What it protects came otherwise.
        Some(Action::Protect) => (None, Some(Reason::PolicyUnprotected)),
        _ => (Some(index), Some(Reason::PolicyDiscard)),
    }
}

/// Whether an enforced port lets a packet in that is to be forwarded or answered.
pub(crate) fn refuses(tables: &Tables, port: PortId, packet: &[u8]) -> Option<Reason> {
    let spd = enforcement(tables.ipsec.as_ref()?, port, Direction::In)?.spd;
    clear(spd, spd.inbound.find_packet(packet)).1
}

/// The policy that lets a packet through which came by `sa` (RFC 4301 5.2 step 4), by what the SPD says of it.
#[inline]
pub(crate) fn carried(spd: &Spd, sa: SaId, found: Found) -> Option<PolicyIndex> {
    let index = found??;
    let policy = spd.policy(index)?;
    (policy.action == Action::Protect && policy.inbound.contains(&sa)).then_some(index)
}

/// What the SPD before a port says of a packet that leaves by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outward {
    /// The packet leaves as cleartext, by this policy or for want of one.
    Bypass(Option<PolicyIndex>),
    Protect(PolicyIndex),
    Discard(Option<PolicyIndex>, Reason),
}

#[inline]
pub(crate) fn outward(spd: &Spd, found: Found) -> Outward {
    let index = match found {
        Some(Some(index)) => index,
        Some(None) if spd.default == Action::Bypass => return Outward::Bypass(None),
        _ => return Outward::Discard(None, Reason::PolicyNone),
    };
    match spd.policy(index).map(|policy| policy.action) {
        Some(Action::Protect) => Outward::Protect(index),
        Some(Action::Bypass) => Outward::Bypass(Some(index)),
        _ => Outward::Discard(Some(index), Reason::PolicyDiscard),
    }
}

/// Whether ESP with an SPI that no SA here has, which came in on `port`, may be of an SA that is still to be heard of.
pub(crate) fn may_come(ipsec: &Ipsec, port: PortId, key: &Key) -> bool {
    let Some(awaited) = &ipsec.awaited else { return false };
    ipsec.enforcement.get(port.index()) == Some(&Some(awaited.spd)) && !awaited.others.contains(key)
}

/// The SA a worker sends by.
pub(crate) fn sender(sas: &[Arc<Sa>], worker: usize) -> Result<&Arc<Sa>, Reason> {
    crate::ipsec::choose(sas, worker).ok_or(Reason::NoOutboundSa)
}

/// The device a packet of ours that is sealed leaves by: no policy enforcement point asks about it again.
pub(crate) fn past_enforcement(tables: &Tables, port: PortId) -> DeviceId {
    tables.ports.get(port.index()).map_or(DeviceId(u16::MAX), |port| port.device)
}

/// Destination of an IP packet, from its header on.
#[inline]
pub(crate) fn destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => packet.get(16..20)?.first_chunk::<4>().map(|&a| IpAddr::from(a)),
        6 => packet.get(24..40)?.first_chunk::<16>().map(|&a| IpAddr::from(a)),
        _ => None,
    }
}

/// Source of an IP packet.
pub(crate) fn source(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => packet.get(12..16)?.first_chunk::<4>().map(|&a| IpAddr::from(a)),
        6 => packet.get(8..24)?.first_chunk::<16>().map(|&a| IpAddr::from(a)),
        _ => None,
    }
}

/// The port packets to `address` leave by: an error about a packet carries its address (RFC 1812 4.3.2.4).
pub(crate) fn port_towards(tables: &Tables, address: IpAddr) -> Option<PortId> {
    let of = |id: AdjacencyId| tables.adjacencies.get(id.0 as usize).map(|next| next.port);
    match target_of(tables, address) {
        Target::Adjacent(id) => of(id),
        Target::Multipath { first, .. } => tables.multipath.get(first as usize).copied().and_then(of),
        Target::Connected(port) => Some(port),
        _ => None,
    }
}

/// Neighbour discovery (RFC 4861), which is between this host and its link.
pub(crate) fn is_discovery(packet: &[u8]) -> bool {
    packet.first().is_some_and(|byte| byte >> 4 == 6)
        && packet.get(6) == Some(&protocol::ICMPV6)
        && packet.get(40).is_some_and(|&kind| icmpv6::is_ndp(kind))
}

/// Whether the kernel answers for `address`.
pub(crate) fn is_kernels(tables: &Tables, address: IpAddr) -> bool {
    let mut all = tables.ports.iter().flat_map(|port| &port.addresses);
    all.any(|a| a.address == address && a.owner == Owner::Kernel)
}

/// Bytes of the IP packet at the front of `packet`, by its own header.
#[inline]
pub(crate) fn packet_len(packet: &[u8]) -> usize {
    match packet.first().map(|byte| byte >> 4) {
        Some(4) if packet.len() >= 20 => usize::from(u16::from_be_bytes([packet[2], packet[3]])),
        Some(6) if packet.len() >= 40 => 40 + usize::from(u16::from_be_bytes([packet[4], packet[5]])),
        _ => packet.len(),
    }
}
