//! The part of a trace that IPsec has: what is opened, which policy or tunnel takes a packet, what leaves.
//!
//! Promises: SAs are asked by copies, so that no sequence number is spent and no replay window moves; the
//! rules and ESP itself are those of forwarding. Time is when the SA was last used: a lifetime that ran out
//! since then is not seen.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::{Scribe, end, name_of};
use crate::id::{AdjacencyId, PortId};
use crate::ipsec::esp::{self, Outcome};
use crate::ipsec::spd::Lookup;
use crate::ipsec::{Direction, InboundId, Ipsec, Mode, Queue, Sa, pmtu};
use crate::packet::{DeviceId, Frame, HEADROOM};
use crate::router::decide::{Context, Observer, decide};
use crate::router::ipsec::rules::{self, Outward};
use crate::router::ipsec::{NESTING, Remedy, SA_WAIT_TIME, Way, explain, remedy};
use crate::tables::Adjacency;
use crate::time::{Nanos, SECOND};
use crate::verdict::{Reason, Verdict};
use crate::wire::get32;

type End = (Verdict, String);

fn lost(reason: Reason) -> End {
    (Verdict::Drop(reason), reason.sentence().into())
}

/// The SA as it is, with a state of its own.
fn shadow(sa: &Sa) -> Sa {
    let state = Arc::new(sa.state.shadow());
    Sa::new(sa.id, sa.name.clone(), sa.params.clone(), sa.cipher.clone(), state)
}

/// When the SA was last used.
fn now(sa: &Sa) -> Nanos {
    sa.state.used.load(Relaxed).max(sa.state.installed.load(Relaxed))
}

/// Seals or opens a copy of one packet.
fn by_copy<R>(
    sa: &Sa,
    packet: &[u8],
    work: impl Fn(&Sa, Nanos, &mut [Frame<Box<[u8]>>], &mut [Outcome]) -> R,
) -> Result<Vec<u8>, Reason> {
    let buffer = vec![0; packet.len() + 2 * HEADROOM].into_boxed_slice();
    let frame = Frame::from_bytes(buffer, packet, DeviceId(0)).map_err(|_| Reason::FrameTooLarge)?;
    let mut frames = [frame];
    let mut outcomes = [Outcome::Done];
    work(&shadow(sa), now(sa), &mut frames, &mut outcomes);
    match outcomes[0] {
        Outcome::Done => Ok(frames[0].data().to_vec()),
        Outcome::Lost(reason) => Err(reason),
    }
}

/// What becomes of ESP whose SA is not here.
pub(super) fn waits() -> String {
    let then = Reason::NoSa.sentence();
    format!("held for its SA, {} s at most; then: {then}", SA_WAIT_TIME / SECOND)
}

/// ESP by an SA of ours: opened, and what was in it goes on.
pub(super) fn inward(
    context: &Context<'_>,
    scribe: &mut Scribe,
    id: InboundId,
    packet: &[u8],
    depth: usize,
) -> End {
    let Some(ipsec) = context.tables.ipsec.as_deref() else { return lost(Reason::NoSa) };
    let Some(inbound) = ipsec.sad.get(id) else { return lost(Reason::NoSa) };
    if depth == NESTING {
        return lost(Reason::TunnelNesting);
    }
    let sa = &inbound.sa;
    let packet = packet.get(..rules::packet_len(packet)).unwrap_or(packet);
    note_replay(scribe, ipsec, sa, packet);
    let opened = by_copy(sa, packet, esp::open);
    scribe.note("open", || {
        let found = match &opened {
            Ok(inner) => format!("authentic: {} bytes inside", inner.len()),
            Err(reason) => reason.sentence().into(),
        };
        (format!("{} bytes, {} by {}", packet.len(), sa.params.suite, sa.cipher.backend()), found)
    });
    let inner = match opened {
        Ok(inner) => inner,
        Err(reason) => return lost(reason),
    };
    if let Some(question) = inbound.spd.and_then(|id| rules::question(ipsec, id, Direction::In)) {
        let spd = question.spd;
        let found = Lookup::explain(question, &inner).map(|said| explain::given(question, &said));
        let policy = rules::carried(spd, sa.id, found);
        scribe.note("policy in", || {
            let answer = explain::answer(question, &inner);
            let found = match policy {
                Some(_) => answer,
                None => format!("no policy lets it come by this SA; {answer}"),
            };
            (format!("spd {}, by sa {}", spd.name, sa.name), found)
        });
        if policy.is_none() {
            return lost(Reason::PolicyMismatch);
        }
    }
    let mut frame = vec![0; 12];
    frame.extend(if inner.first().is_some_and(|b| b >> 4 == 4) { [0x08, 0x00] } else { [0x86, 0xdd] });
    frame.extend_from_slice(&inner);
    let decided = decide(context, inbound.device, &frame, scribe);
    end(context, scribe, &decided, &frame, depth + 1)
}

fn note_replay(scribe: &mut Scribe, ipsec: &Ipsec, sa: &Sa, packet: &[u8]) {
    scribe.note("replay", || {
        let at = if sa.params.udp.is_some() { 12 } else { 4 };
        let low = rules::kind(ipsec, packet).1.and_then(|(_, esp)| Some(get32(esp.get(at..at + 4)?, 0)));
        let Some(low) = low else { return ("no sequence number".into(), "cut short".into()) };
        let Ok(replay) = sa.state.replay.lock() else { return (low.to_string(), "unknown".into()) };
        let sequence = if sa.params.esn { replay.extend(low) } else { u64::from(low) };
        let found = match replay.check(sequence) {
            Ok(()) => "new".into(),
            Err(reason) => reason.sentence().into(),
        };
        (format!("{sequence}, window of {} below {}", replay.size(), replay.top()), found)
    });
}

/// A packet that is to leave by `id`: `None` where no tunnel and no policy enforcement point is behind it.
pub(super) fn outward(
    context: &Context<'_>,
    scribe: &mut Scribe,
    id: AdjacencyId,
    packet: &[u8],
) -> Option<End> {
    let tables = context.tables;
    let ipsec = tables.ipsec.as_deref()?;
    let next = tables.adjacencies.get(id.0 as usize)?;
    let packet = packet.get(..rules::packet_len(packet)).unwrap_or(packet);
    let queue = *ipsec.queues.get(next.egress.index())?;
    match queue {
        Queue::Tunnel(_) => Some(through_tunnels(context, scribe, ipsec, next, packet.to_vec(), false)),
        Queue::Enforcement { spd, .. } | Queue::Policy(spd) => {
            let question = rules::question(ipsec, spd, Direction::Out)?;
            let spd = question.spd;
            let found = Lookup::explain(question, packet).map(|said| explain::given(question, &said));
            let said = rules::outward(spd, found);
            scribe.note("policy out", || (format!("spd {}", spd.name), explain::answer(question, packet)));
            Some(match said {
                // Nothing that takes cleartext is behind an SPD that is a port.
                Outward::Bypass(_) if matches!(queue, Queue::Policy(_)) => lost(Reason::NoOutboundSa),
                Outward::Bypass(_) => (Verdict::Forward(next.port), "sent as cleartext".into()),
                Outward::Discard(_, reason) => lost(reason),
                Outward::Protect(index) => {
                    let sas = spd.policy(index).map_or(&[][..], |policy| &policy.out);
                    match seal(context, scribe, sas, packet, false) {
                        Ok((sealed, way)) => leave(context, scribe, ipsec, way, sealed),
                        Err(reason) => lost(reason),
                    }
                }
            })
        }
        Queue::Hardware | Queue::Host { .. } => None,
    }
}

/// Seals by the tunnel behind `next`, and by those its outer packet leads into.
fn through_tunnels(
    context: &Context<'_>,
    scribe: &mut Scribe,
    ipsec: &Ipsec,
    next: &Adjacency,
    mut packet: Vec<u8>,
    mut sealed: bool,
) -> End {
    let mut port = next.port;
    for _ in 0..NESTING {
        let Some(tunnel) = ipsec.tunnels.iter().find(|tunnel| tunnel.port == port) else { break };
        scribe.note("tunnel", || {
            let found = tunnel.out.first().map_or("no SA".into(), |sa| format!("sa {}", sa.name));
            (tunnel.name.clone(), found)
        });
        let (outer, way) = match seal(context, scribe, &tunnel.out, &packet, sealed) {
            Ok(found) => found,
            Err(reason) => return lost(reason),
        };
        match way.of_packet(context.tables, context.key, &outer) {
            Way::Next(next) if ipsec.tunnels.iter().any(|tunnel| tunnel.port == next.port) => {
                (packet, sealed, port) = (outer, true, next.port);
            }
            way => return leave(context, scribe, ipsec, way, outer),
        }
    }
    lost(Reason::TunnelNesting)
}

/// The outer packet, and its way.
fn seal<'a>(
    context: &Context<'a>,
    scribe: &mut Scribe,
    sas: &[Arc<Sa>],
    packet: &[u8],
    sealed: bool,
) -> Result<(Vec<u8>, Way<'a>), Reason> {
    let tables = context.tables;
    let sa = rules::sender(sas, 0)?;
    let to = sa.params.destination;
    if sa.params.mode == Mode::Transport && rules::destination(packet) != Some(to) {
        return Err(Reason::NoOutboundSa);
    }
    let way = Way::find(tables, to, |port| tables.neighbors.get(&(port, to)).copied());
    let mtu = pmtu::of(sa, now(sa), way.mtu(tables));
    let room = usize::from(esp::inner_mtu(sa, mtu));
    if packet.len() > room {
        let remedy = remedy(sa, sealed, packet, room);
        scribe.note("MTU", || {
            let found = match &remedy {
                Remedy::After => "sealed, then cut".into(),
                Remedy::Before => "cut, then sealed".into(),
                Remedy::SendError(error) => format!("the sender is told by ICMP: {error:?}"),
                Remedy::Nothing => "no piece of it would fit".into(),
            };
            (format!("{} bytes, {room} fit into {mtu}", packet.len()), found)
        });
        if !matches!(remedy, Remedy::After | Remedy::Before) {
            return Err(Reason::FragmentNeeded);
        }
    }
    let outer = by_copy(sa, packet, esp::seal);
    scribe.note("seal", || {
        let found = match &outer {
            Ok(outer) => format!("{} bytes to {to}", outer.len()),
            Err(reason) => reason.sentence().into(),
        };
        let shared =
            if sas.len() > 1 { format!(" (one of {}, one a worker)", sas.len()) } else { String::new() };
        (format!("{} bytes by sa {}, spi 0x{:08x}{shared}", packet.len(), sa.name, sa.params.spi), found)
    });
    Ok((outer?, way))
}

/// Where an outer packet goes in the end.
fn leave(context: &Context<'_>, scribe: &mut Scribe, ipsec: &Ipsec, way: Way<'_>, outer: Vec<u8>) -> End {
    let tables = context.tables;
    let to = rules::destination(&outer).map_or(String::new(), |to| to.to_string());
    let port = |port: PortId| name_of(tables, port).to_string();
    let way = way.of_packet(tables, context.key, &outer);
    scribe.note("outer route", || {
        let found = match way {
            Way::Next(next) => format!("via {} on {}", next.next_hop, port(next.port)),
            Way::Wait(by, next_hop) => format!("via {next_hop} on {}, unresolved", port(by)),
            Way::None(reason) => reason.sentence().into(),
            Way::ByFlow { .. } => "no path".into(),
        };
        (to, found)
    });
    match way {
        Way::Next(next) if ipsec.tunnels.iter().any(|tunnel| tunnel.port == next.port) => {
            through_tunnels(context, scribe, ipsec, next, outer, true)
        }
        Way::Next(next) => (Verdict::Forward(next.port), "sealed and sent to the next hop".into()),
        Way::Wait(_, next_hop) => (Verdict::Held, format!("sealed, and held until {next_hop} answers")),
        Way::None(reason) => lost(reason),
        Way::ByFlow { .. } => lost(Reason::NoRoute),
    }
}
