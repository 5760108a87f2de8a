//! Where IPsec has a say in what is to become of a received packet: the hooks of [`super::super::decide`].
//!
//! Promises: pure, like every rule there; each asks the snapshot first whether it has IPsec at all.

use super::explain;
use super::rules::{self, Kind};
use crate::ipsec::Direction;
use crate::router::decide::{Arrival, Context, Decision, Observer};
use crate::tables::Tables;
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
    let inbound = ipsec.sad.find(key.0, key.1);
    see.note("sa", || {
        let found = inbound.map_or("no SA of ours".into(), |inbound| inbound.sa.name.clone());
        (format!("spi 0x{:08x} to {}", key.0, key.1), found)
    });
    inbound.map(|_| Decision::Open(key))
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
    if crate::ipsec::pmtu::concerned(ipsec, packet).is_some() {
        return Some(Decision::Local);
    }
    rules::refuses(tables, arrival.id, packet).map(Decision::from)
}

/// Why a packet that came in clear goes no further, if the port's SPD says so.
pub(in crate::router) fn refuses(
    tables: &Tables,
    arrival: &Arrival<'_>,
    packet: &[u8],
    see: &mut impl Observer,
) -> Option<Reason> {
    let question = rules::guard(tables.ipsec.as_ref()?, arrival.id, Direction::In)?;
    let refused = rules::clear(question.spd, question.spd.inbound.find_packet(packet)).1;
    see.note("policy in", || {
        let mut text = explain::answer(question, packet);
        if let Some(reason) = refused {
            text = format!("{text}: {}", reason.sentence());
        }
        (format!("in clear on {}", arrival.port.name), text)
    });
    refused
}
