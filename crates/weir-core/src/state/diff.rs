//! From one desired state to another, as the shortest list of actions.
//!
//! Promises: a pure function; no action when nothing differs; what refers to a port goes before the
//! port does and comes after it; an [`Action`] displays as the line an operator reads. Objects are
//! matched by what names them: a port by name, an address on its port, a route by prefix, a neighbour
//! by port and address; `ipsec.rs` beside it says the same of IPsec. The order of ports, routes, neighbours and next hops means nothing; the order
//! of a port's addresses does (the first is the source of ICMP errors). Refuses nothing: it compares
//! states that [`super::check`] accepted.

mod ipsec;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;

pub use ipsec::{Change, IpsecAction, LookupChange};

use super::{AddressSpec, Desired, IpsecSpec, NeighborSpec, NextHopSpec, PortSpec, RouteSpec, Via};
use crate::route::Prefix;
use crate::tables::{Owner, ReversePath, Settings};
use crate::wire::DisplayMac;

/// One step from the old state to the new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    AddPort(PortSpec),
    RemovePort(PortSpec),
    ChangePort {
        port: String,
        change: PortChange,
    },
    AddAddress {
        port: String,
        address: AddressSpec,
    },
    RemoveAddress {
        port: String,
        address: AddressSpec,
    },
    /// Another prefix length or owner.
    ChangeAddress {
        port: String,
        old: AddressSpec,
        new: AddressSpec,
    },
    /// The addresses left and added, in the order they now have.
    OrderAddresses {
        port: String,
        order: Vec<IpAddr>,
    },
    AddRoute(RouteSpec),
    RemoveRoute(RouteSpec),
    ChangeRoute {
        prefix: Prefix,
        old: Via,
        new: Via,
    },
    AddNeighbor(NeighborSpec),
    RemoveNeighbor(NeighborSpec),
    ChangeNeighbor {
        old: NeighborSpec,
        new: NeighborSpec,
    },
    ChangeSettings {
        old: Settings,
        new: Settings,
    },
    Ipsec(IpsecAction),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortChange {
    /// The device that carries it, or the tag on it.
    Carrier {
        old: (String, Option<u16>),
        new: (String, Option<u16>),
    },
    /// `None` is the device's own.
    Mtu {
        old: Option<u16>,
        new: Option<u16>,
    },
    ReversePath {
        old: ReversePath,
        new: ReversePath,
    },
}

/// The actions that make `old` into `new`.
pub fn diff(old: &Desired, new: &Desired) -> Vec<Action> {
    let mut actions = Vec::new();
    let old_ports: HashMap<&str, &PortSpec> = old.ports.iter().map(|p| (p.name.as_str(), p)).collect();
    let new_ports: HashSet<&str> = new.ports.iter().map(|p| p.name.as_str()).collect();
    let (mut gone, mut come) = routes(old, new);
    let (gone_neighbors, mut come_neighbors) = neighbors(old, new);
    let (gone_ipsec, come_ipsec) = ipsec::diff(&old.ipsec, &new.ipsec);
    actions.append(&mut gone);
    actions.extend(gone_neighbors);
    actions.extend(gone_ipsec);
    actions.extend(
        old.ports.iter().filter(|p| !new_ports.contains(p.name.as_str())).cloned().map(Action::RemovePort),
    );
    for port in &new.ports {
        match old_ports.get(port.name.as_str()) {
            None => actions.push(Action::AddPort(port.clone())),
            Some(before) => change_port(before, port, &mut actions),
        }
    }
    actions.extend(come_ipsec);
    if old.settings != new.settings {
        actions.push(Action::ChangeSettings { old: old.settings, new: new.settings });
    }
    actions.append(&mut come_neighbors);
    actions.append(&mut come);
    actions
}

/// The part of [`diff`] that is about IPsec.
pub(crate) fn diff_ipsec(old: &IpsecSpec, new: &IpsecSpec) -> Vec<Action> {
    let (mut gone, come) = ipsec::diff(old, new);
    gone.extend(come);
    gone
}

/// Removed routes, and added or changed ones.
fn routes(old: &Desired, new: &Desired) -> (Vec<Action>, Vec<Action>) {
    // Most of a full table is where it was: only what lies between the first and the last difference is
    // matched by prefix.
    let (mut old, mut new) = (&old.routes[..], &new.routes[..]);
    let same = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    (old, new) = (&old[same..], &new[same..]);
    let same = old.iter().rev().zip(new.iter().rev()).take_while(|(a, b)| a == b).count();
    (old, new) = (&old[..old.len() - same], &new[..new.len() - same]);
    let mut before: HashMap<Prefix, &Via> = old.iter().map(|r| (r.prefix, &r.via)).collect();
    let mut come = Vec::new();
    for route in new {
        match before.remove(&route.prefix) {
            None => come.push(Action::AddRoute(route.clone())),
            Some(via) if via == &route.via || via.canonical() == route.via.canonical() => {}
            Some(via) => come.push(Action::ChangeRoute {
                prefix: route.prefix,
                old: via.clone(),
                new: route.via.clone(),
            }),
        }
    }
    if before.is_empty() {
        return (Vec::new(), come);
    }
    let gone = old.iter().filter(|r| before.contains_key(&r.prefix));
    (gone.cloned().map(Action::RemoveRoute).collect(), come)
}

fn neighbors(old: &Desired, new: &Desired) -> (Vec<Action>, Vec<Action>) {
    let mut before: HashMap<(&str, IpAddr), &NeighborSpec> =
        old.neighbors.iter().map(|n| ((n.port.as_str(), n.address), n)).collect();
    let mut come = Vec::new();
    for n in &new.neighbors {
        match before.remove(&(n.port.as_str(), n.address)) {
            None => come.push(Action::AddNeighbor(n.clone())),
            Some(was) if was == n => {}
            Some(was) => come.push(Action::ChangeNeighbor { old: was.clone(), new: n.clone() }),
        }
    }
    let gone = old.neighbors.iter().filter(|n| before.contains_key(&(n.port.as_str(), n.address)));
    (gone.cloned().map(Action::RemoveNeighbor).collect(), come)
}

fn change_port(old: &PortSpec, new: &PortSpec, actions: &mut Vec<Action>) {
    let mut change = |change| actions.push(Action::ChangePort { port: new.name.clone(), change });
    let carrier = |p: &PortSpec| (p.device.clone(), p.vlan);
    if carrier(old) != carrier(new) {
        change(PortChange::Carrier { old: carrier(old), new: carrier(new) });
    }
    if old.mtu != new.mtu {
        change(PortChange::Mtu { old: old.mtu, new: new.mtu });
    }
    if old.reverse_path != new.reverse_path {
        change(PortChange::ReversePath { old: old.reverse_path, new: new.reverse_path });
    }
    let port = || new.name.clone();
    let mut reached = Vec::new();
    for &was in &old.addresses {
        match new.addresses.iter().find(|a| a.address == was.address) {
            None => actions.push(Action::RemoveAddress { port: port(), address: was }),
            Some(&is) => {
                reached.push(is.address);
                if is != was {
                    actions.push(Action::ChangeAddress { port: port(), old: was, new: is });
                }
            }
        }
    }
    for &is in &new.addresses {
        if !reached.contains(&is.address) {
            reached.push(is.address);
            actions.push(Action::AddAddress { port: port(), address: is });
        }
    }
    let order: Vec<IpAddr> = new.addresses.iter().map(|a| a.address).collect();
    if order != reached {
        actions.push(Action::OrderAddresses { port: port(), order });
    }
}

impl Via {
    /// The same with next hops in a fixed order: their order in a file means nothing.
    pub fn canonical(&self) -> Via {
        let mut via = self.clone();
        if let Via::NextHops(hops) = &mut via {
            hops.sort();
        }
        via
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::AddPort(p) => write!(f, "+ {p}"),
            Action::RemovePort(p) => write!(f, "- {p}"),
            Action::ChangePort { port, change } => write!(f, "~ port {port}: {change}"),
            Action::AddAddress { port, address } => write!(f, "+ address {address} on port {port}"),
            Action::RemoveAddress { port, address } => write!(f, "- address {address} on port {port}"),
            Action::ChangeAddress { port, old, new } => {
                write!(f, "~ address {} on port {port}: {old} → {new}", new.address)
            }
            Action::OrderAddresses { port, order } => {
                write!(f, "~ port {port}: address order {}", commas(order.iter()))
            }
            Action::AddRoute(r) => write!(f, "+ {r}"),
            Action::RemoveRoute(r) => write!(f, "- {r}"),
            Action::ChangeRoute { prefix, old, new } => write!(f, "~ route {prefix}: {old} → {new}"),
            Action::AddNeighbor(n) => write!(f, "+ {n}"),
            Action::RemoveNeighbor(n) => write!(f, "- {n}"),
            Action::ChangeNeighbor { old, new } => write!(
                f,
                "~ neighbor {} on port {}: {} → {}",
                new.address,
                new.port,
                DisplayMac(old.mac),
                DisplayMac(new.mac)
            ),
            Action::ChangeSettings { old, new } => change_settings(f, old, new),
            Action::Ipsec(action) => action.fmt(f),
        }
    }
}

fn change_settings(f: &mut fmt::Formatter<'_>, old: &Settings, new: &Settings) -> fmt::Result {
    let fields = [
        ("icmp errors per second", old.icmp_errors_per_second, new.icmp_errors_per_second),
        ("icmp error burst", old.icmp_error_burst, new.icmp_error_burst),
        ("hold per neighbor", old.hold_per_neighbor.into(), new.hold_per_neighbor.into()),
        ("hold total", old.hold_total.into(), new.hold_total.into()),
        ("ipv6 extensions checked", old.check_extensions.into(), new.check_extensions.into()),
    ];
    let changed = fields.iter().filter(|(_, old, new)| old != new);
    write!(f, "~ settings: {}", commas(changed.map(|(name, old, new)| format!("{name} {old} → {new}"))))
}

impl fmt::Display for PortChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mtu = |m: &Option<u16>| m.map_or("device's".to_string(), |m| m.to_string());
        match self {
            PortChange::Carrier { old, new } => {
                write!(f, "{} → {}", Carrier(&old.0, old.1), Carrier(&new.0, new.1))
            }
            PortChange::Mtu { old, new } => write!(f, "mtu {} → {}", mtu(old), mtu(new)),
            PortChange::ReversePath { old, new } => {
                write!(f, "reverse path {} → {}", reverse_path(*old), reverse_path(*new))
            }
        }
    }
}

struct Carrier<'a>(&'a str, Option<u16>);

impl fmt::Display for Carrier<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            None => write!(f, "device {}", self.0),
            Some(vlan) => write!(f, "device {} vlan {vlan}", self.0),
        }
    }
}

fn reverse_path(mode: ReversePath) -> &'static str {
    match mode {
        ReversePath::Off => "off",
        ReversePath::Strict => "strict",
        ReversePath::Loose => "loose",
    }
}

fn commas(items: impl Iterator<Item = impl fmt::Display>) -> String {
    items.map(|i| i.to_string()).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {} on {}", self.name, Carrier(&self.device, self.vlan))?;
        if let Some(mtu) = self.mtu {
            write!(f, ", mtu {mtu}")?;
        }
        if self.reverse_path != ReversePath::Off {
            write!(f, ", reverse path {}", reverse_path(self.reverse_path))?;
        }
        self.addresses.iter().try_for_each(|a| write!(f, ", {a}"))
    }
}

impl fmt::Display for AddressSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = match self.owner {
            Owner::Kernel => "kernel",
            Owner::Weir => "weir",
        };
        write!(f, "{}/{} ({owner})", self.address, self.prefix_len)
    }
}

impl fmt::Display for RouteSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "route {} {}", self.prefix, self.via)
    }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Via::NextHops(hops) => f.write_str(&commas(hops.iter())),
            Via::Blackhole => f.write_str("blackhole"),
            Via::Unreachable => f.write_str("unreachable"),
            Via::Prohibited => f.write_str("prohibited"),
        }
    }
}

impl fmt::Display for NextHopSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.gateway, &self.port) {
            (Some(gateway), None) => write!(f, "via {gateway}")?,
            (Some(gateway), Some(port)) => write!(f, "via {gateway} port {port}")?,
            (None, Some(port)) => write!(f, "port {port}")?,
            (None, None) => f.write_str("nowhere")?,
        }
        if self.weight == 1 { Ok(()) } else { write!(f, " weight {}", self.weight) }
    }
}

impl fmt::Display for NeighborSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "neighbor {} on port {} at {}", self.address, self.port, DisplayMac(self.mac))
    }
}
