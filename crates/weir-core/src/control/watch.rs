//! What has to be watched about SAs: lifetimes, sequence numbers, NAT mappings, learned MTUs.
//!
//! Promises: each limit of an SA is told once ([`Control::take_sa_events`]) and shown as long as it lasts
//! ([`Notice`]); a NAT before a UDP-encapsulated SA hears something every [`KEEPALIVE`] (RFC 3948 4), from
//! us if not from traffic; a path MTU is forgotten when its time is over, so that a larger one can be
//! found. Packets and bytes are counted by workers, so limits of them are looked at every [`LOOK`].
//! Refuses to send keepalives through a tunnel, and to a next hop that does not answer.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::Control;
use super::gateway::Kept;
use super::show::Notice;
use crate::id::{Mac, PortId};
use crate::ipsec::Sa;
use crate::ipsec::sa::{Direction, UdpPorts};
use crate::tables::PortKind;
use crate::time::{Nanos, SECOND};
use crate::wire::build::Frame;

/// RFC 3948 4: the default of the keepalive interval.
pub const KEEPALIVE: Nanos = 20 * SECOND;

/// How often limits that workers approach are looked at: a fifth of the shortest time a rekey by hand
/// would want, and nothing beside what a worker does in it.
const LOOK: Nanos = SECOND;

/// Sequence numbers left when an SA is said to run out: an eighth of 2^32, 107 s at 5 Mpps.
const SEQUENCES_LOW: u64 = 1 << 29;

/// Events waiting to be taken: what does not fit is still shown as a notice.
const EVENTS_MAX: usize = 4096;

/// RFC 3948 2.3: one octet.
const KEEPALIVE_PAYLOAD: &[u8] = &[0xff];

/// Which limits an SA has reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub soft: bool,
    pub hard: bool,
    /// Few sequence numbers are left.
    pub sequence: bool,
}

/// An SA has to be replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaEvent {
    SoftExpired { sa: String },
    HardExpired { sa: String },
    SequenceLow { sa: String, left: u64 },
}

impl fmt::Display for SaEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SaEvent::SoftExpired { sa } => write!(f, "sa {sa}: has reached its soft lifetime; rekey it"),
            SaEvent::HardExpired { sa } => {
                write!(f, "sa {sa}: has reached its hard lifetime and carries nothing more; replace it")
            }
            SaEvent::SequenceLow { sa, left } => {
                write!(f, "sa {sa}: has {left} sequence numbers left; rekey it, or use esn")
            }
        }
    }
}

/// What a NAT keeps a mapping of.
type Mapping = (IpAddr, IpAddr, UdpPorts);

#[derive(Debug, Default)]
pub(super) struct Watch {
    /// When to look again; `None` without SAs.
    due: Option<Nanos>,
    events: Vec<SaEvent>,
    /// When a keepalive was last sent.
    kept_alive: HashMap<Mapping, Nanos>,
    transmits: Vec<(PortId, Vec<u8>)>,
}

impl Control {
    /// SAs that reached a limit since the last call, each limit once.
    pub fn take_sa_events(&mut self) -> Vec<SaEvent> {
        std::mem::take(&mut self.watch.events)
    }

    /// SAs came or went.
    pub(super) fn watch_again(&mut self, now: Nanos) {
        self.watch.due = (!self.gateway.kept.is_empty()).then_some(now);
    }

    pub(super) fn watch_sas(&mut self, now: Nanos) {
        if self.watch.due.is_none_or(|due| due > now) {
            return;
        }
        for kept in self.gateway.kept.values_mut() {
            kept.look(now, &mut self.watch.events);
        }
        self.watch.events.truncate(EVENTS_MAX);
        let next = self.keep_alive(now);
        self.watch.due = Some(next.min(now.saturating_add(LOOK)));
    }

    pub(super) fn watch_at(&self) -> Option<Nanos> {
        self.watch.due
    }

    pub(super) fn take_keepalives(&mut self) -> Vec<(PortId, Vec<u8>)> {
        std::mem::take(&mut self.watch.transmits)
    }

    /// Sends the keepalives that are due; when the next is.
    fn keep_alive(&mut self, now: Nanos) -> Nanos {
        let mut mappings: HashMap<Mapping, Nanos> = HashMap::new();
        for kept in self.gateway.kept.values() {
            let (params, state) = (&kept.sa.params, &kept.sa.state);
            if let (Some(udp), Direction::Out) = (params.udp, params.direction) {
                let heard = state.used.load(Relaxed).max(state.installed.load(Relaxed));
                let last = mappings.entry((params.source, params.destination, udp)).or_default();
                *last = heard.max(*last);
            }
        }
        self.watch.kept_alive.retain(|mapping, _| mappings.contains_key(mapping));
        let mut next = Nanos::MAX;
        for (mapping, used) in mappings {
            let last = used.max(self.watch.kept_alive.get(&mapping).copied().unwrap_or(0));
            let due = last.saturating_add(KEEPALIVE);
            if due > now {
                next = next.min(due);
            } else if let Some((port, frame)) = self.keepalive(now, mapping) {
                self.watch.transmits.push((port, frame));
                self.watch.kept_alive.insert(mapping, now);
                next = next.min(now.saturating_add(KEEPALIVE));
            }
        }
        next
    }

    /// A keepalive and the port it leaves by; `None` as long as nobody is known to take it there.
    fn keepalive(&mut self, now: Nanos, (source, destination, udp): Mapping) -> Option<(PortId, Vec<u8>)> {
        let (id, mac) = self.first_hop(now, destination)?;
        let port = self.ports.port(id).filter(|p| p.kind == PortKind::Device)?;
        let frame = Frame::ip(source, destination)?.macs(mac, port.mac);
        let frame = port.vlan.map_or(frame.clone(), |vlan| frame.vlan(vlan));
        Some((id, frame.udp(udp.source, udp.destination, KEEPALIVE_PAYLOAD)))
    }

    /// Where a packet of ours to an address goes first.
    fn first_hop(&mut self, now: Nanos, destination: IpAddr) -> Option<(PortId, Mac)> {
        let hop = self.hops_toward(destination)?.iter().flatten().find(|h| h.up)?.clone();
        if let Some(id) = hop.adjacency {
            let adjacency = self.adjacencies.get(id);
            let mac = adjacency.header.first_chunk().filter(|_| adjacency.ready)?;
            return Some((hop.port, *mac));
        }
        let mac = self.neighbors.mac((hop.port, destination));
        if mac.is_none()
            && let Some(port) = self.ports.port(hop.port)
        {
            self.neighbors.resolve(now, hop.port, port, destination);
            self.refresh_neighbors(now);
        }
        Some((hop.port, mac?))
    }

    /// SAs beyond a limit, as long as they are.
    pub(super) fn sa_notices(&self) -> Vec<Notice> {
        let specs = self.desired.ipsec.sas.iter();
        let kept = specs.filter_map(|spec| self.gateway.kept.get(&spec.name));
        let notice = |kept: &Kept| {
            let sa = kept.sa.name.clone();
            match kept.reached {
                Limits { hard: true, .. } => Some(Notice::Sa(SaEvent::HardExpired { sa })),
                Limits { sequence: true, .. } => {
                    Some(Notice::Sa(SaEvent::SequenceLow { sa, left: sequences_left(&kept.sa) }))
                }
                Limits { soft: true, .. } => Some(Notice::Sa(SaEvent::SoftExpired { sa })),
                Limits { .. } => None,
            }
        };
        kept.filter_map(notice).collect()
    }
}

impl Kept {
    /// Notes limits reached since the last look, and lets a learned MTU that is over go.
    fn look(&mut self, now: Nanos, events: &mut Vec<SaEvent>) {
        let (sa, before) = (&self.sa, self.reached);
        let left = sequences_left(sa);
        self.reached = Limits {
            soft: sa.is_soft_expired(now),
            hard: sa.is_hard_expired(now),
            sequence: sa.params.direction == Direction::Out && left < SEQUENCES_LOW,
        };
        let name = || sa.name.clone();
        if self.reached.soft && !before.soft && !self.reached.hard {
            events.push(SaEvent::SoftExpired { sa: name() });
        }
        if self.reached.hard && !before.hard {
            events.push(SaEvent::HardExpired { sa: name() });
        }
        if self.reached.sequence && !before.sequence {
            events.push(SaEvent::SequenceLow { sa: name(), left });
        }
        forget_path_mtu(sa, now);
    }
}

fn sequences_left(sa: &Arc<Sa>) -> u64 {
    let most = if sa.params.esn { u64::MAX } else { u64::from(u32::MAX) };
    most.saturating_sub(sa.state.sequence.load(Relaxed))
}

fn forget_path_mtu(sa: &Sa, now: Nanos) {
    let mtu = sa.state.path_mtu.load(Relaxed);
    if mtu != 0 && sa.state.path_mtu_until.load(Relaxed) <= now {
        // A worker that has just learned another keeps it.
        let _ = sa.state.path_mtu.compare_exchange(mtu, 0, Relaxed, Relaxed);
    }
}
