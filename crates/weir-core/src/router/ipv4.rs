//! IPv4 rules of a router (RFC 1812 5), in the order they apply.
//!
//! Not done, and said so in the RFC's own terms: record route and timestamp options pass unfilled
//! (which departs from RFC 1812 5.3.13.5 and 5.3.13.6; RFC 7126 4.5 and 4.7 advise to drop them), no redirects are sent (5.2.7.2 makes them optional where
//! hosts and routers share no link), no fragment is reassembled for weir's own addresses.

use std::net::Ipv4Addr;

use super::decide::{Arrival, Context, Decision, Observer};
use super::ipsec::hooks as ipsec;
use super::next_hop::{self, Packet};
use crate::id::PortId;
use crate::tables::{Owner, ReversePath, Target};
use crate::verdict::Reason;
use crate::wire::icmpv4::{self, Error};
use crate::wire::{Icmpv4, Ipv4, protocol};

pub(super) fn decide(
    context: &Context<'_>,
    arrival: &Arrival<'_>,
    bytes: &[u8],
    see: &mut impl Observer,
) -> Decision {
    let packet = match Ipv4::parse(bytes) {
        Ok(packet) => packet,
        Err(reason) => return reason.into(),
    };
    see.note("ipv4", || (packet.to_string(), "a valid header".into()));
    let decision = classify(context, arrival, &packet, bytes, see);
    match decision {
        // RFC 1812 4.3.2.7: never about a link-layer broadcast or multicast.
        Decision::Drop(reason, Some(_)) if arrival.group => Decision::Drop(reason, None),
        other => other,
    }
}

fn classify(
    context: &Context<'_>,
    arrival: &Arrival<'_>,
    packet: &Ipv4<&[u8]>,
    bytes: &[u8],
    see: &mut impl Observer,
) -> Decision {
    if packet.has_options()
        && let Err(reason) = packet.check_options()
    {
        return match reason {
            Reason::IpBadOption => fail(reason, Error::ParameterProblem { pointer: bad_option_at(packet) }),
            reason => reason.into(),
        };
    }
    let (src, dst) = (packet.src(), packet.dst());
    // A host that does not know its address yet asks everyone (RFC 1122 3.2.1.3, DHCP).
    let asking = src.is_unspecified() && dst.is_broadcast();
    if !asking && !may_be_source(context, arrival, src) {
        see.note("source", || (src.to_string(), "no packet from outside may carry it".into()));
        return Reason::MartianSource.into();
    }
    if let Some(decision) = ipsec::opens(context, bytes, see) {
        return decision;
    }
    if dst.is_broadcast() {
        return broadcast(context, arrival);
    }
    if dst.is_multicast() {
        return group(context, arrival, dst);
    }
    if !may_be_destination(dst) {
        return Reason::MartianDestination.into();
    }
    let value = context.tables.fib4.lookup(dst);
    let target = next_hop::target(context.tables, value);
    see.note("route", || (dst.to_string(), next_hop::describe(context.tables, value)));
    match target {
        Target::Broadcast(port) if port == arrival.id => return broadcast(context, arrival),
        _ if arrival.group => return Reason::LinkBroadcast.into(),
        Target::Broadcast(_) => return Reason::DirectedBroadcast.into(),
        Target::Local(port) => return local(context, arrival, port, packet, bytes),
        _ => {}
    }
    if let Some(decision) = arrival.left_to_kernel(context.tables, target) {
        return decision;
    }
    if !came_the_right_way(context, arrival, src, see) {
        return Reason::ReversePath.into();
    }
    if let Some(reason) = ipsec::refuses(context.tables, arrival, bytes, see) {
        return reason.into();
    }
    if packet.ttl() <= 1 {
        return fail(Reason::TtlExpired, Error::TimeExceeded);
    }
    if src.is_link_local() || dst.is_link_local() {
        return Reason::LinkLocalScope.into();
    }
    let len = packet.total_len();
    let hash = |c: &Context<'_>| c.key.of_ipv4(packet);
    let next = Packet { destination: dst.into(), len, hash: &hash, fragments: !packet.dont_fragment() };
    debug_assert!(len <= bytes.len());
    next_hop::resolve(context, target, &next, see)
}

fn fail(reason: Reason, error: Error) -> Decision {
    Decision::Drop(reason, Some(error.into()))
}

/// RFC 1812 5.3.7: 0/8, loopback, groups, class E, and what is ours.
fn may_be_source(context: &Context<'_>, arrival: &Arrival<'_>, src: Ipv4Addr) -> bool {
    let martian = src.octets()[0] == 0 || src.is_loopback() || src.octets()[0] >= 224;
    // The far end of a point-to-point port may be this host's own kernel.
    !martian && (arrival.port.point_to_point || !context.own.contains(src.into()))
}

fn may_be_destination(dst: Ipv4Addr) -> bool {
    dst.octets()[0] != 0 && !dst.is_loopback() && dst.octets()[0] < 240
}

fn broadcast(context: &Context<'_>, arrival: &Arrival<'_>) -> Decision {
    if arrival.kernel_listens(true) {
        arrival.for_kernel(context.tables)
    } else {
        Reason::LocalNotServed.into()
    }
}

/// Only groups of the local link (RFC 5771 4) are for this host's routing protocols.
fn group(context: &Context<'_>, arrival: &Arrival<'_>, dst: Ipv4Addr) -> Decision {
    let of_this_link = dst.octets()[..3] == [224, 0, 0];
    if of_this_link && arrival.kernel_listens(true) {
        arrival.for_kernel(context.tables)
    } else {
        Reason::Multicast.into()
    }
}

fn local(
    context: &Context<'_>,
    arrival: &Arrival<'_>,
    port: PortId,
    packet: &Ipv4<&[u8]>,
    bytes: &[u8],
) -> Decision {
    if let Some(decision) = ipsec::awaits(context.tables, arrival, bytes) {
        return decision;
    }
    if Arrival::owner(context.tables, port, packet.dst().into()) == Owner::Kernel {
        return arrival.for_kernel(context.tables);
    }
    if let Some(decision) = ipsec::to_us(context.tables, arrival, bytes) {
        return decision;
    }
    match packet.protocol() {
        _ if packet.is_fragment() => Reason::LocalNotServed.into(),
        protocol::ICMPV4 => match Icmpv4::parse(packet.payload()) {
            Ok(message) if message.kind() == icmpv4::ECHO_REQUEST && message.code() == 0 => {
                Decision::EchoReply
            }
            Ok(_) => Reason::LocalNotServed.into(),
            Err(reason) => reason.into(),
        },
        protocol::UDP | protocol::TCP => fail(Reason::LocalNotServed, Error::PortUnreachable),
        _ => fail(Reason::LocalNotServed, Error::ProtocolUnreachable),
    }
}

fn came_the_right_way(
    context: &Context<'_>,
    arrival: &Arrival<'_>,
    src: Ipv4Addr,
    see: &mut impl Observer,
) -> bool {
    if arrival.port.reverse_path == ReversePath::Off {
        return true;
    }
    let value = context.tables.fib4.lookup(src);
    see.note("reverse path", || (src.to_string(), next_hop::describe(context.tables, value)));
    next_hop::leads_back(context.tables, value, (arrival.id, arrival.port))
}

/// The octet of the header where the first malformed option starts.
fn bad_option_at(packet: &Ipv4<&[u8]>) -> u8 {
    let mut at = crate::wire::ipv4::MIN_HEADER_LEN;
    for option in packet.options() {
        match option {
            Ok(o) if o.kind == crate::wire::ipv4::option::NOP => at += 1,
            Ok(o) => at += 2 + o.data.len(),
            Err(_) => break,
        }
    }
    at as u8
}

/// Where a packet of our own to `dst` goes.
pub(super) fn own_target(context: &Context<'_>, arrived: PortId, dst: Ipv4Addr) -> Target {
    if dst.is_link_local() {
        return Target::Connected(arrived);
    }
    next_hop::target(context.tables, context.tables.fib4.lookup(dst))
}

/// The address our ICMP errors about a packet that came in on `arrived` carry (RFC 1812 4.3.2.4): the
/// port's own, or any of ours where the port has none.
pub(super) fn error_source(context: &Context<'_>, arrived: PortId) -> Option<Ipv4Addr> {
    let ports = &context.tables.ports;
    let first = ports.get(arrived.index()).and_then(|port| port.first_ipv4());
    first.or_else(|| ports.iter().find_map(|port| port.first_ipv4()))
}
