//! From a route to a next hop: multipath, connected networks, neighbours, MTU. One for both families.

use std::net::IpAddr;

use super::decide::{Context, Decision, IcmpError, Observer};
use crate::id::{AdjacencyId, PortId};
use crate::tables::{Adjacency, Port, ReversePath, Tables, Target};
use crate::verdict::Reason;
use crate::wire::{flow, icmpv4, icmpv6};

/// What the choice of a next hop needs of a packet.
pub(super) struct Packet<'a> {
    pub destination: IpAddr,
    /// Length of the IP packet, bytes.
    pub len: usize,
    /// The flow hash; computed only where there are several paths.
    pub hash: &'a dyn Fn(&Context<'_>) -> u32,
    /// It may be cut to fit.
    pub fragments: bool,
}

/// What a FIB value leads to; a value nobody knows leads nowhere.
pub(crate) fn target(tables: &Tables, value: u32) -> Target {
    tables.targets.get(value as usize).copied().unwrap_or(Target::NoRoute)
}

/// What a packet to `destination` reaches by its route.
pub(crate) fn target_of(tables: &Tables, destination: IpAddr) -> Target {
    let value = match destination {
        IpAddr::V4(to) => tables.fib4.lookup(to),
        IpAddr::V6(to) => tables.fib6.lookup(to),
    };
    target(tables, value)
}

/// The decision for a packet whose header has passed every check.
pub(super) fn resolve(
    context: &Context<'_>,
    target: Target,
    packet: &Packet<'_>,
    see: &mut impl Observer,
) -> Decision {
    let tables = context.tables;
    let id = match find(context, target, packet, see) {
        Ok(id) => id,
        Err(decision) => return decision,
    };
    let Some(next) = tables.adjacencies.get(id.0 as usize) else { return no_route(packet) };
    see.note("next hop", || (next.next_hop.to_string(), describe_adjacency(tables, next)));
    if !next.ready {
        return match tables.ports.get(next.port.index()) {
            Some(port) if port.up => Decision::Hold(next.port, next.next_hop),
            _ => port_down(packet),
        };
    }
    if packet.len <= usize::from(next.mtu) {
        return Decision::Forward(id);
    }
    see.note("MTU", || (format!("{} bytes", packet.len), format!("the port takes {}", next.mtu)));
    if packet.fragments {
        return Decision::Fragment(id);
    }
    let (too_big4, too_big6) = (
        icmpv4::Error::FragmentationNeeded { mtu: next.mtu },
        icmpv6::Error::PacketTooBig { mtu: next.mtu.into() },
    );
    fail(packet, Reason::FragmentNeeded, too_big4, too_big6)
}

/// The adjacency, or the decision where there is none.
fn find(
    context: &Context<'_>,
    target: Target,
    packet: &Packet<'_>,
    see: &mut impl Observer,
) -> Result<AdjacencyId, Decision> {
    let tables = context.tables;
    match target {
        Target::Adjacent(id) => Ok(id),
        Target::Multipath { first, len } => {
            let bucket = flow::pick((packet.hash)(context), len.max(1));
            see.note("multipath", || (format!("flow hash over {len} buckets"), format!("bucket {bucket}")));
            tables.multipath.get((first + bucket) as usize).copied().ok_or_else(|| no_route(packet))
        }
        Target::Connected(port) => {
            let known = tables.neighbors.get(&(port, packet.destination)).copied();
            see.note("neighbour", || {
                let text = if known.is_some() { "in the table" } else { "unknown" };
                (packet.destination.to_string(), text.into())
            });
            match (known, tables.ports.get(port.index())) {
                (Some(id), _) => Ok(id),
                (None, Some(entry)) if entry.up => Err(Decision::Hold(port, packet.destination)),
                _ => Err(port_down(packet)),
            }
        }
        Target::Discard(Reason::Unreachable) => {
            Err(fail(packet, Reason::Unreachable, icmpv4::Error::HostUnreachable, icmpv6::Error::RejectRoute))
        }
        Target::Discard(Reason::Prohibited) => {
            Err(fail(packet, Reason::Prohibited, icmpv4::Error::Prohibited, icmpv6::Error::Prohibited))
        }
        Target::Discard(reason) => Err(reason.into()),
        // Local and broadcast destinations were dealt with before; of our own packets none goes there.
        Target::NoRoute | Target::Local(_) | Target::Broadcast(_) => Err(no_route(packet)),
    }
}

fn no_route(packet: &Packet<'_>) -> Decision {
    fail(packet, Reason::NoRoute, icmpv4::Error::NetUnreachable, icmpv6::Error::NoRoute)
}

fn port_down(packet: &Packet<'_>) -> Decision {
    fail(packet, Reason::PortDown, icmpv4::Error::HostUnreachable, icmpv6::Error::AddressUnreachable)
}

fn fail(packet: &Packet<'_>, reason: Reason, v4: icmpv4::Error, v6: icmpv6::Error) -> Decision {
    Decision::Drop(reason, Some(error(packet.destination, v4, v6)))
}

/// The error in the family of `destination`.
pub(super) fn error(destination: IpAddr, v4: icmpv4::Error, v6: icmpv6::Error) -> IcmpError {
    if destination.is_ipv4() { v4.into() } else { v6.into() }
}

/// RFC 3704: whether the route to a packet's source (`value`) permits the port it came in on.
pub(super) fn leads_back(tables: &Tables, value: u32, (arrived, port): (PortId, &Port)) -> bool {
    let target = target(tables, value);
    let leaves_by =
        |id: &AdjacencyId| tables.adjacencies.get(id.0 as usize).is_some_and(|a| a.port == arrived);
    match (port.reverse_path, target) {
        (ReversePath::Off, _) => true,
        (_, Target::NoRoute | Target::Discard(_)) => false,
        (ReversePath::Loose, _) => true,
        (ReversePath::Strict, Target::Adjacent(id)) => leaves_by(&id),
        (ReversePath::Strict, Target::Multipath { first, len }) => {
            let buckets = tables.multipath.get(first as usize..(first + len) as usize);
            buckets.is_some_and(|buckets| buckets.iter().any(leaves_by))
        }
        (ReversePath::Strict, Target::Connected(port)) => port == arrived,
        // On a point-to-point port our own address may be the source: the kernel behind it.
        (ReversePath::Strict, Target::Local(port) | Target::Broadcast(port)) => port == arrived,
    }
}

fn name(tables: &Tables, port: PortId) -> &str {
    tables.ports.get(port.index()).map_or("unknown port", |p| &p.name)
}

/// A target in words, for traces.
pub(crate) fn describe(tables: &Tables, value: u32) -> String {
    match target(tables, value) {
        Target::NoRoute => "no route".into(),
        Target::Adjacent(id) => match tables.adjacencies.get(id.0 as usize) {
            Some(next) => format!("via {} on {}", next.next_hop, name(tables, next.port)),
            None => format!("via adjacency {}, which does not exist", id.0),
        },
        Target::Multipath { len, .. } => format!("one of {len} paths"),
        Target::Connected(port) => format!("connected to {}", name(tables, port)),
        Target::Local(port) => format!("an address of this host, on {}", name(tables, port)),
        Target::Broadcast(port) => format!("the broadcast address of {}", name(tables, port)),
        Target::Discard(reason) => reason.sentence().into(),
    }
}

fn describe_adjacency(tables: &Tables, next: &Adjacency) -> String {
    let port = name(tables, next.port);
    if !next.ready {
        return format!("on {port}, unresolved");
    }
    let [a, b, c, d, e, f, ..] = next.header;
    let tag = next.vlan.map_or(String::new(), |id| format!(", VLAN {id}"));
    format!("on {port}{tag}, at {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
}
