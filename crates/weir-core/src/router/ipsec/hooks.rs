//! Where IPsec has a say in what is to become of a received packet: the hooks of [`super::super::decide`], and what
//! IPsec learns from a packet the slow path decided about.
//!
//! Promises: the hooks are pure, like every rule there; each asks the snapshot first whether it has IPsec at all.

use super::explain;
use super::rules::{self, Kind, Outward, packet_len};
use crate::id::PortId;
use crate::ipsec::{Direction, Ipsec, pmtu};
use crate::router::decide::{Arrival, Context, Decided, Decision, Observer};
use crate::router::lasting::Passed;
use crate::tables::Tables;
use crate::time::Nanos;
use crate::verdict::Reason;
use crate::wire::{get16, protocol};

/// UDP port of IKE (RFC 7296 2); 4500 is among [`crate::ipsec::Ipsec::udp_ports`].
const IKE: u16 = 500;

/// ESP by an SA of ours is opened, whoever's the destination is (RFC 4301 5.2 step 3a).
pub(in crate::router) fn opens(
    context: &Context<'_>,
    packet: &[u8],
    see: &mut impl Observer,
) -> Option<Decision> {
    let ipsec = context.tables.ipsec.as_ref()?;
    let key = match rules::kind(ipsec, packet) {
        (Kind::Esp(key), _) => key,
        // Of other hosts' packets, whose SA may be here, fragments are not collected.
        (Kind::Fragment(to, proto), _) if context.own.contains(to) && ipsec.sad.serves(to, proto) => {
            see.note("reassembly", || ("a fragment of an outer packet".into(), "held for the others".into()));
            return Some(Decision::Collect);
        }
        _ => return None,
    };
    let id = ipsec.sad.id(key.0, key.1);
    see.note("sa", || {
        let inbound = id.and_then(|id| ipsec.sad.get(id));
        let found = inbound.map_or("no SA of ours".into(), |inbound| inbound.sa.name.clone());
        (format!("spi 0x{:08x} to {}", key.0, key.1), found)
    });
    id.map(Decision::Open)
}

/// ESP to an address of ours, whose SA is not here, and may be of one that is still to be heard of.
pub(in crate::router) fn awaits(tables: &Tables, arrival: &Arrival<'_>, packet: &[u8]) -> Option<Decision> {
    let ipsec = tables.ipsec.as_ref().filter(|ipsec| ipsec.awaited.is_some())?;
    let (Kind::Esp(key), _) = rules::kind(ipsec, packet) else { return None };
    rules::may_come(ipsec, arrival.id, &key).then_some(Decision::AwaitSa(key))
}

/// The device by which what was opened, and came in on a port of route mode, reaches this host's own stack.
pub(in crate::router) fn host(tables: &Tables, port: PortId) -> Option<Decision> {
    let hosts = &tables.ipsec.as_ref()?.hosts;
    hosts.iter().find(|(of, _)| *of == port).map(|&(_, device)| Decision::Deliver(device))
}

/// A packet to an address only weir has: ESP without an SA, what IPsec listens to, what its SPD refuses.
pub(in crate::router) fn to_us(tables: &Tables, arrival: &Arrival<'_>, packet: &[u8]) -> Option<Decision> {
    let ipsec = tables.ipsec.as_ref()?;
    match rules::kind(ipsec, packet) {
        (Kind::Esp(_), _) => return Some(Reason::NoSa.into()),
        (Kind::Keepalive, _) => return Some(Decision::Local),
        (Kind::Other, Some((protocol::UDP, udp))) if udp.len() >= 4 => {
            let port = get16(udp, 2);
            if port == IKE || ipsec.udp_ports.binary_search(&port).is_ok() {
                return None;
            }
        }
        _ => {}
    }
    // An ICMP error about ESP of ours: heard, and no more.
    if pmtu::concerned(ipsec, packet).is_some() {
        return Some(Decision::Local);
    }
    rules::refuses(tables, arrival.id, packet).map(Decision::from)
}

/// Why a packet that came in as cleartext goes no further, if the port's SPD says so.
pub(in crate::router) fn refuses(
    tables: &Tables,
    arrival: &Arrival<'_>,
    packet: &[u8],
    see: &mut impl Observer,
) -> Option<Reason> {
    let question = rules::enforcement(tables.ipsec.as_ref()?, arrival.id, Direction::In)?;
    let refused = rules::clear(question.spd, question.spd.inbound.find_packet(packet)).1;
    see.note("policy in", || {
        let mut text = explain::answer(question, packet);
        if let Some(reason) = refused {
            text = format!("{text}: {}", reason.sentence());
        }
        (format!("cleartext on {}", arrival.port.name), text)
    });
    refused
}

/// Which packets like `packet`, that come in as cleartext by the first port and leave by the second, policies let pass as they do this one;
/// `None` where it does not pass so, or each packet is wanted. Ports without an SPD pass all.
pub(in crate::router) fn passed<'a>(
    tables: &'a Tables,
    (arrives, leaves): (PortId, PortId),
    packet: &[u8],
) -> Option<Passed<'a>> {
    let mut passed = Passed::default();
    let Some(ipsec) = &tables.ipsec else { return Some(passed) };
    let ways = [(arrives, Direction::In), (leaves, Direction::Out)];
    for ((port, direction), by) in ways.into_iter().zip(&mut passed.by) {
        let Some(question) = rules::enforcement(ipsec, port, direction) else { continue };
        // The oracle looks at each packet.
        if question.oracle {
            return None;
        }
        let found = question.rules().find_packet(packet);
        let policy = match direction {
            Direction::In => match rules::clear(question.spd, found) {
                (policy, None) => policy,
                (_, Some(_)) => return None,
            },
            Direction::Out => match rules::outward(question.spd, found) {
                Outward::Bypass(policy) => policy,
                Outward::Protect(_) | Outward::Discard(..) => return None,
            },
        };
        passed.enforced = true;
        *by = policy.and_then(|index| question.spd.policy(index)).map(|policy| &policy.counters);
        passed.of_flow |= question.rules().outside_all(std::iter::once(packet)).is_none();
    }
    Some(passed)
}

/// Learns from a frame the slow path decided about: of ICMP errors about packets of ours, and that a policy let it pass
/// or discarded it, unless the fast path counted that (`count` is false).
pub(in crate::router) fn observe(ipsec: &Ipsec, now: Nanos, decided: &Decided, frame: &[u8], count: bool) {
    let packet = frame.get(decided.network..).unwrap_or(&[]);
    match decided.decision {
        Decision::Local => {
            pmtu::learn(ipsec, now, packet);
        }
        Decision::Forward(_)
        | Decision::Fragment(_)
        | Decision::Hold(..)
        | Decision::Drop(Reason::PolicyDiscard, _)
            if count =>
        {
            let question = decided.port.and_then(|port| rules::enforcement(ipsec, port, Direction::In));
            let Some(spd) = question.map(|question| question.spd) else { return };
            let (policy, refused) = rules::clear(spd, spd.inbound.find_packet(packet));
            let dropped = matches!(decided.decision, Decision::Drop(..));
            if let Some(policy) = policy.and_then(|policy| spd.policy(policy))
                && refused.is_some() == dropped
            {
                policy.counters.count(Direction::In, packet_len(packet) as u64);
            }
        }
        _ => {}
    }
}
