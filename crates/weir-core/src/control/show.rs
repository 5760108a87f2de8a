//! What an operator may ask the control side: routes, neighbours, ports, and what is odd about them.
//!
//! Promises: names instead of ids, sorted, and every next hop with the state it is in now.

mod ipsec;

use std::net::IpAddr;

use super::Control;
use super::targets::{FAR_END, Meaning};
pub use super::watch::{Limits, SaEvent};
use crate::id::{Mac, PortId};
use crate::mirror::{Outcome, Why};
use crate::neighbor::{Counters, State};
use crate::route::Prefix;
use crate::state::{Desired, Via};
use crate::tables::Port;
use crate::time::Nanos;
use crate::wire::rtnetlink::Protocol;
pub use ipsec::{PolicyView, SaView, SpdView, TunnelView};

/// Where a route comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// An address of ours.
    Local,
    Broadcast,
    /// The network of a port.
    Connected,
    /// The configuration file.
    Static,
    /// The kernel, where this protocol put it.
    Kernel(Protocol),
}

impl Origin {
    fn of(meaning: &Meaning) -> Origin {
        match meaning {
            Meaning::Local(_) => Origin::Local,
            Meaning::Broadcast(_) => Origin::Broadcast,
            Meaning::Connected(_) => Origin::Connected,
            Meaning::Static(_) => Origin::Static,
            Meaning::Mirrored(_, protocol) => Origin::Kernel(*protocol),
        }
    }
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Local => f.write_str("local"),
            Origin::Broadcast => f.write_str("broadcast"),
            Origin::Connected => f.write_str("connected"),
            Origin::Static => f.write_str("static"),
            Origin::Kernel(protocol) => write!(f, "kernel {protocol}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteView {
    pub prefix: Prefix,
    pub origin: Origin,
    /// `blackhole`, `unreachable` or `prohibited`; such a route has no next hops.
    pub discard: Option<&'static str>,
    /// Why it is left to the kernel; such a route has no next hops.
    pub left: Option<Why>,
    pub hops: Vec<HopView>,
    /// Whether the route is in the table now; otherwise no next hop is usable or a better route has the prefix.
    pub active: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HopView {
    /// `None` when its port is not configured any more.
    pub port: Option<String>,
    pub gateway: Option<IpAddr>,
    pub weight: u8,
    /// The port is up.
    pub up: bool,
    /// Frames can be sent there now; `true` where nobody has to be asked.
    pub resolved: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeighborView {
    pub port: String,
    pub address: IpAddr,
    pub mac: Option<Mac>,
    pub state: State,
    /// Who says so: `static` (the configuration file), `kernel`, or `learned` by frames of ours.
    pub origin: &'static str,
    /// How long it has been in this state.
    pub age: Nanos,
    /// Routes lead there.
    pub gateway: bool,
}

/// Something that works, but not as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    DeviceMissing { port: String, device: String },
    LinkDown { port: String, device: String },
    MtuReduced { port: String, asked: u16, device_mtu: u16 },
    Sa(SaEvent),
}

impl std::fmt::Display for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Notice::DeviceMissing { port, device } => {
                write!(f, "port {port}: device {device} does not exist; create it or correct the name")
            }
            Notice::LinkDown { port, device } => {
                write!(f, "port {port}: device {device} is down; set it up or plug it in")
            }
            Notice::MtuReduced { port, asked, device_mtu } => write!(
                f,
                "port {port}: mtu is {device_mtu}, its device's, expected {asked}; raise the device's"
            ),
            Notice::Sa(event) => event.fmt(f),
        }
    }
}

impl Control {
    /// What the operator asked for.
    pub fn desired(&self) -> &Desired {
        &self.desired
    }

    /// Ports by id, without the holes of removed ones.
    pub fn ports(&self) -> impl Iterator<Item = (PortId, &Port)> {
        self.ports.iter()
    }

    pub fn port_id(&self, name: &str) -> Option<PortId> {
        self.ports.id(name)
    }

    pub fn neighbor_counters(&self) -> Counters {
        self.neighbors.counters()
    }

    /// The prefix that decides about a destination, and where its route comes from.
    pub fn matched(&self, address: IpAddr) -> Option<(Prefix, Option<Origin>)> {
        let prefix = match address {
            IpAddr::V4(v4) => self.table4.explain(v4).map(|(prefix, _)| Prefix::V4(prefix)),
            IpAddr::V6(v6) => self.table6.explain(v6).map(|(prefix, _)| Prefix::V6(prefix)),
        }?;
        Some((prefix, self.targets.meaning(self.best(prefix)).map(Origin::of)))
    }

    /// Every route, sorted by prefix; of two with one prefix the better comes first.
    pub fn routes(&self) -> Vec<RouteView> {
        let mut prefixes: Vec<(Prefix, u8, u32)> = Vec::new();
        prefixes.extend(self.own.iter().map(|(&p, &v)| (p, 0, v)));
        prefixes.extend(self.routes.iter().map(|(&p, &v)| (p, 1, v)));
        prefixes.extend(self.mirrored.iter().map(|(&p, &v)| (p, 2, v)));
        prefixes.sort_unstable();
        prefixes.into_iter().filter_map(|(prefix, _, value)| self.route(prefix, value)).collect()
    }

    fn route(&self, prefix: Prefix, value: u32) -> Option<RouteView> {
        let name = |id: PortId| self.ports.port(id).map(|p| p.name.clone());
        let here = |id: PortId| HopView {
            port: name(id),
            gateway: None,
            weight: 1,
            up: self.ports.port(id).is_some_and(|p| p.up),
            resolved: true,
        };
        let meaning = self.targets.meaning(value)?;
        let (mut discard, mut left, mut hops) = (None, None, Vec::new());
        let origin = Origin::of(meaning);
        match (meaning.via(), meaning) {
            (_, Meaning::Local(id) | Meaning::Broadcast(id) | Meaning::Connected(id)) => hops.push(here(*id)),
            (_, Meaning::Mirrored(Outcome::Kernel(why), _)) => left = Some(*why),
            (Some(Via::Blackhole), _) => discard = Some("blackhole"),
            (Some(Via::Unreachable), _) => discard = Some("unreachable"),
            (Some(Via::Prohibited), _) => discard = Some("prohibited"),
            (Some(Via::NextHops(specs)), _) => {
                let found = specs.iter().zip(self.targets.hops(value));
                hops.extend(found.map(|(spec, hop)| {
                    HopView {
                        port: hop.as_ref().and_then(|h| name(h.port)).or_else(|| spec.port.clone()),
                        gateway: spec.gateway,
                        weight: spec.weight,
                        up: hop.as_ref().is_some_and(|h| h.up),
                        resolved: hop
                            .as_ref()
                            .is_some_and(|h| h.adjacency.is_none_or(|id| self.adjacencies.get(id).ready)),
                    }
                }));
            }
            (None, _) => {}
        }
        let active = self.best(prefix) == value;
        Some(RouteView { prefix, origin, discard, left, hops, active })
    }

    /// Every neighbour, sorted by port and address.
    pub fn neighbors(&self, now: Nanos) -> Vec<NeighborView> {
        let view = |((id, address), n): ((PortId, IpAddr), &crate::neighbor::Neighbor)| {
            Some(NeighborView {
                port: self.ports.port(id)?.name.clone(),
                address,
                mac: n.mac,
                state: n.state,
                origin: self.neighbors.origin(n),
                age: now.saturating_sub(n.since),
                gateway: n.gateway,
            })
        };
        let known = self.neighbors.iter().filter(|((_, address), _)| *address != FAR_END);
        let mut all: Vec<NeighborView> = known.filter_map(view).collect();
        all.sort_by(|a, b| (&a.port, a.address).cmp(&(&b.port, b.address)));
        all
    }

    /// What works otherwise than asked for.
    pub fn notices(&self) -> Vec<Notice> {
        let mut notices = Vec::new();
        for spec in &self.desired.ports {
            let (port, device) = (spec.name.clone(), spec.device.clone());
            match (self.links.get(&spec.device), spec.mtu) {
                (None, _) => notices.push(Notice::DeviceMissing { port, device }),
                (Some(link), _) if !link.up => notices.push(Notice::LinkDown { port, device }),
                (Some(link), Some(asked)) if asked > link.mtu => {
                    notices.push(Notice::MtuReduced { port, asked, device_mtu: link.mtu });
                }
                _ => {}
            }
        }
        notices.extend(self.sa_notices());
        notices
    }
}
