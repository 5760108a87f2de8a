//! IPv6 rules of a router (RFC 8200, RFC 4291 2.5.6, RFC 4443), in the order they apply.
//!
//! Extension headers of transit are nobody's affair here, whatever they hold (RFC 8200 4, RFC 7045 2.1; hop-by-hop options
//! pass unread, which RFC 8200 4.3 lets a router do), unless [`crate::tables::Settings::check_extensions`] asks. What is for us must have a
//! chain that can be walked, without a type 0 routing header. No redirects are sent (RFC 4861 8.2 says SHOULD: weir
//! forwards instead). Site-local addresses are ordinary (RFC 3879).

use std::net::Ipv6Addr;

use super::decide::{Arrival, Context, Decision, Observer};
use super::ipsec::hooks as ipsec;
use super::next_hop::{self, Packet};
use crate::id::PortId;
use crate::tables::{Owner, PortAddress, ReversePath, Target};
use crate::verdict::Reason;
use crate::wire::icmpv6::{self, Error};
use crate::wire::ipv6::Chain;
use crate::wire::{Icmpv6, Ipv6, ndp, protocol};

/// Where the next-header field of the fixed header lies.
const NEXT_HEADER_AT: u32 = 6;

pub(super) fn decide(
    context: &Context<'_>,
    arrival: &Arrival<'_>,
    bytes: &[u8],
    see: &mut impl Observer,
) -> Decision {
    let packet = match Ipv6::parse(bytes) {
        Ok(packet) => packet,
        Err(reason) => return reason.into(),
    };
    see.note("ipv6", || (packet.to_string(), "a valid header".into()));
    let decision = classify(context, arrival, &packet, bytes, see);
    match decision {
        // RFC 4443 2.4 e: never about a link-layer broadcast or multicast.
        Decision::Drop(reason, Some(_)) if arrival.group => Decision::Drop(reason, None),
        other => other,
    }
}

fn classify(
    context: &Context<'_>,
    arrival: &Arrival<'_>,
    packet: &Ipv6<&[u8]>,
    bytes: &[u8],
    see: &mut impl Observer,
) -> Decision {
    let chain = packet.chain();
    let (src, dst) = (packet.src(), packet.dst());
    // A host that has no address yet speaks to groups (RFC 4861 4.3, RFC 3810 5.2.13).
    let asking = src.is_unspecified() && dst.is_multicast();
    if !asking && !may_be_source(context, arrival, src) {
        see.note("source", || (src.to_string(), "no packet from outside may carry it".into()));
        return Reason::MartianSource.into();
    }
    if let Some(decision) = ipsec::opens(context, bytes, see) {
        return decision;
    }
    if dst.is_multicast() {
        return group(context, arrival, packet, &chain);
    }
    if arrival.group {
        return Reason::LinkBroadcast.into();
    }
    if is_special(dst) {
        return Reason::MartianDestination.into();
    }
    let value = context.tables.fib6.lookup(dst);
    let mut target = next_hop::target(context.tables, value);
    if dst.is_unicast_link_local() {
        // Each link has its own fe80::/10: the route table cannot tell them apart, the port can.
        let is_ours = |a: &PortAddress| a.address == dst || a.anycast() == Some(dst);
        match arrival.port.addresses.iter().any(is_ours) {
            true => target = Target::Local(arrival.id),
            false => return fail(Reason::LinkLocalScope, Error::BeyondScope),
        }
    } else {
        see.note("route", || (dst.to_string(), next_hop::describe(context.tables, value)));
    }
    if let Target::Local(port) = target {
        return local(context, arrival, port, packet, bytes, &chain);
    }
    if let Some(decision) = arrival.left_to_kernel(context.tables, target) {
        return decision;
    }
    if let Err(reason) = chain {
        if context.tables.settings.check_extensions {
            return reason.into();
        }
        see.note("extension headers", || (reason.name().into(), "no affair of a router (RFC 8200 4)".into()));
    }
    if !came_the_right_way(context, arrival, src, see) {
        return Reason::ReversePath.into();
    }
    if let Some(reason) = ipsec::refuses(context.tables, arrival, bytes, see) {
        return reason.into();
    }
    if packet.hop_limit() <= 1 {
        return fail(Reason::TtlExpired, Error::HopLimitExceeded);
    }
    if src.is_unicast_link_local() {
        return fail(Reason::LinkLocalScope, Error::BeyondScope);
    }
    let hash = |c: &Context<'_>| c.key.of_ipv6(packet);
    let next = Packet { destination: dst.into(), len: packet.total_len(), hash: &hash, fragments: false };
    next_hop::resolve(context, target, &next, see)
}

fn fail(reason: Reason, error: Error) -> Decision {
    Decision::Drop(reason, Some(error.into()))
}

/// Unspecified, loopback and the rest of ::/96 (RFC 4291 2.5.5.1, deprecated), v4-mapped (2.5.5.2).
fn is_special(address: Ipv6Addr) -> bool {
    matches!(address.segments(), [0, 0, 0, 0, 0, 0 | 0xffff, _, _])
}

fn may_be_source(context: &Context<'_>, arrival: &Arrival<'_>, src: Ipv6Addr) -> bool {
    let martian = is_special(src) || src.is_multicast();
    // The far end of a point-to-point port may be this host's own kernel.
    !martian && (arrival.port.point_to_point || !context.own.contains(src.into()))
}

/// Neighbour discovery goes to the control side, other groups of this link (RFC 4291 2.7: scope 1 and 2)
/// are for this host's routing protocols, the rest is not routed.
fn group(
    context: &Context<'_>,
    arrival: &Arrival<'_>,
    packet: &Ipv6<&[u8]>,
    chain: &Result<Chain, Reason>,
) -> Decision {
    if is_discovery(packet, chain) {
        return discovery(packet);
    }
    let scope = packet.dst().octets()[1] & 0x0f;
    let of_this_link = scope == 1 || scope == 2;
    if of_this_link && arrival.kernel_listens(false) {
        arrival.for_kernel(context.tables)
    } else {
        Reason::Multicast.into()
    }
}

fn is_discovery(packet: &Ipv6<&[u8]>, chain: &Result<Chain, Reason>) -> bool {
    let Ok(chain) = chain else { return false };
    let at = chain.offset - crate::wire::ipv6::HEADER_LEN;
    chain.protocol == protocol::ICMPV6
        && chain.has_transport()
        && packet.payload().get(at).is_some_and(|&kind| icmpv6::is_ndp(kind))
}

fn discovery(packet: &Ipv6<&[u8]>) -> Decision {
    match ndp::parse(packet) {
        Ok(_) => Decision::Punt,
        Err(reason) => reason.into(),
    }
}

fn local(
    context: &Context<'_>,
    arrival: &Arrival<'_>,
    port: PortId,
    packet: &Ipv6<&[u8]>,
    bytes: &[u8],
    chain: &Result<Chain, Reason>,
) -> Decision {
    if is_discovery(packet, chain) {
        return discovery(packet);
    }
    if let Some(decision) = ipsec::awaits(context.tables, arrival, bytes) {
        return decision;
    }
    if Arrival::owner(context.tables, port, packet.dst().into()) == Owner::Kernel {
        return arrival.for_kernel(context.tables);
    }
    let chain = match chain {
        Ok(chain) => chain,
        Err(reason) => return (*reason).into(),
    };
    if let Some(decision) = ipsec::to_us(context.tables, arrival, bytes) {
        return decision;
    }
    match chain.protocol {
        _ if chain.fragment.is_some() => Reason::LocalNotServed.into(),
        // Only a request without extension headers is answered.
        protocol::ICMPV6 if packet.next_header() == protocol::ICMPV6 => {
            match Icmpv6::parse(packet.payload(), packet.src(), packet.dst()) {
                Ok(message) if message.kind() == icmpv6::ECHO_REQUEST && message.code() == 0 => {
                    Decision::EchoReply
                }
                Ok(_) => Reason::LocalNotServed.into(),
                Err(reason) => reason.into(),
            }
        }
        protocol::ICMPV6 | protocol::NO_NEXT_HEADER => Reason::LocalNotServed.into(),
        protocol::UDP | protocol::TCP => fail(Reason::LocalNotServed, Error::PortUnreachable),
        _ => {
            let pointer =
                if chain.next_header_at == 0 { NEXT_HEADER_AT } else { chain.next_header_at as u32 };
            fail(Reason::LocalNotServed, Error::ParameterProblem { code: 1, pointer })
        }
    }
}

fn came_the_right_way(
    context: &Context<'_>,
    arrival: &Arrival<'_>,
    src: Ipv6Addr,
    see: &mut impl Observer,
) -> bool {
    // Link-local sources never leave their link, which is the port.
    if arrival.port.reverse_path == ReversePath::Off || src.is_unicast_link_local() {
        return true;
    }
    let value = context.tables.fib6.lookup(src);
    see.note("reverse path", || (src.to_string(), next_hop::describe(context.tables, value)));
    next_hop::leads_back(context.tables, value, (arrival.id, arrival.port))
}

/// Where a packet of our own to `dst` goes.
pub(super) fn own_target(context: &Context<'_>, arrived: PortId, dst: Ipv6Addr) -> Target {
    if dst.is_unicast_link_local() {
        return Target::Connected(arrived);
    }
    next_hop::target(context.tables, context.tables.fib6.lookup(dst))
}

/// The address our ICMP errors about a packet that came in on `arrived` carry (RFC 4443 2.2): the port's
/// own, or any of ours where the port has none.
pub(super) fn error_source(context: &Context<'_>, arrived: PortId) -> Option<Ipv6Addr> {
    let ports = &context.tables.ports;
    let first = ports.get(arrived.index()).and_then(|port| port.first_ipv6());
    first.or_else(|| ports.iter().find_map(|port| port.first_ipv6()))
}
