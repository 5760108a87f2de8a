//! Whether a desired state can be built: every mistake at once, none repaired silently.
//!
//! Promises: a [`Desired`] without errors has unique port names, device and tag pairs, addresses,
//! prefixes and neighbours; each network on one port; and next hops that name a port or lie on a
//! connected network. Linear in routes: each distinct next hop is judged once. Refuses to look at what
//! is observed (links, neighbours): that changes while the wish stays the same.

mod ipsec;
mod policy;
mod sa;
mod shadow;

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{
    AddressSpec, Desired, Element, Error, HopProblem, IpsecElement, NeighborProblem, NextHopSpec,
    PortProblem, Problem, RouteProblem, SpdSpec, VIRTUAL, Via, Wrong, nearest,
};
use crate::route::Prefix;

/// One port per VLAN of one device (4,094) and one more for its untagged traffic, rounded up.
pub const PORTS_MAX: usize = 4096;

/// Four full IPv4 tables; each could have a value of its own and leave three quarters of
/// [`crate::route::MAX_VALUE`] to the networks and addresses of [`PORTS_MAX`] ports.
pub const ROUTES_MAX: usize = 1 << 22;

/// Next hops of one route: with [`WEIGHT_MAX`] each, 64 × 64 = 4,096 buckets of 4 B, 16 KiB a group.
pub const MULTIPATH_HOPS_MAX: usize = 64;

pub const WEIGHT_MAX: u8 = 64;

/// RFC 791: every link passes 68 bytes.
const MTU_MIN_V4: u16 = 68;

/// RFC 8200 5: every IPv6 link passes 1280 bytes.
const MTU_MIN_V6: u16 = 1280;

/// Linux allows 15 characters for an interface; twice that twice over is room for any name worth reading.
const NAME_MAX: usize = 64;

pub(super) use ipsec::RULE_MEMORY;
pub use ipsec::{CACHE_MEMORY_MAX, POLICIES_MAX, RULES_MAX};
pub(crate) use policy::check_policy;
pub use sa::{RECORDS_MAX, SAS_MAX};
pub(super) use sa::{SPI_MIN, WINDOW};
pub(crate) use shadow::hidden;

/// Every mistake in `desired`, in its order; empty when it can be built.
pub fn check(desired: &Desired) -> Vec<Error> {
    check_against(desired, &Desired::default())
}

/// The same with less work: what is as in `good`, which is in use, is not looked at again where that would
/// take long. So a policy that was put in front of others it hides may stay there.
pub(crate) fn check_against<'a>(desired: &'a Desired, good: &'a Desired) -> Vec<Error> {
    let mut check = Check::new(desired);
    check.known = &good.ipsec.spds;
    check.ports();
    check.ipsec();
    if !desired.routes_from_kernel {
        check.networks();
    }
    check.routes();
    check.neighbors();
    check.settings();
    check.errors
}

/// Every mistake in the IPsec of `desired`, of which ports, routes and selectors were good before.
pub(crate) fn check_ipsec(desired: &Desired) -> Vec<Error> {
    let mut check = Check::new(desired);
    check.known = &desired.ipsec.spds;
    check.ports();
    check.ipsec();
    check.errors
}

struct Check<'a> {
    desired: &'a Desired,
    /// Our addresses with more than link-local scope, and the port each is on.
    ours: HashMap<IpAddr, &'a str>,
    names: HashSet<&'a str>,
    /// SPDs whose policies need not be looked at together again.
    known: &'a [SpdSpec],
    errors: Vec<Error>,
}

impl<'a> Check<'a> {
    fn new(desired: &'a Desired) -> Check<'a> {
        let (ours, names) = (HashMap::new(), HashSet::new());
        Check { desired, ours, names, known: &[], errors: Vec::new() }
    }

    fn wrong(&mut self, at: Element, problem: impl Into<Problem>) {
        let problem = problem.into();
        let subject = match at {
            Element::Ports => "ports".to_string(),
            Element::Routes => "routes".to_string(),
            Element::Port(i) | Element::Address { port: i, .. } => {
                format!("port {}", self.desired.ports[i].name)
            }
            Element::Route(i) => format!("route {}", self.desired.routes[i].prefix),
            Element::NextHop { route, hop } => {
                format!("route {}: next hop {}", self.desired.routes[route].prefix, hop + 1)
            }
            Element::Neighbor(i) => {
                let n = &self.desired.neighbors[i];
                format!("neighbor {} on {}", n.address, n.port)
            }
            Element::Settings => "settings".to_string(),
            Element::Ipsec(place) => self.desired.ipsec.subject(place),
        };
        self.errors.push(Error { at, subject, problem });
    }

    fn ports(&mut self) {
        let desired = self.desired;
        if desired.ports.len() > PORTS_MAX {
            self.wrong(Element::Ports, Problem::TooManyPorts(desired.ports.len()));
        }
        let mut carried: HashMap<(&str, Option<u16>), &str> = HashMap::new();
        for (i, port) in desired.ports.iter().enumerate() {
            let at = Element::Port(i);
            if !is_name(&port.name) {
                self.wrong(at, PortProblem::BadName(port.name.clone()));
            }
            if !self.names.insert(&port.name) {
                self.wrong(at, PortProblem::Duplicate);
            }
            if port.device.is_empty() {
                self.wrong(at, PortProblem::NoDevice);
            } else if let Some(&other) = carried.get(&(port.device.as_str(), port.vlan)) {
                let (device, other) = (port.device.clone(), other.to_string());
                self.wrong(at, PortProblem::SharedDevice { device, vlan: port.vlan, other });
            } else {
                carried.insert((&port.device, port.vlan), &port.name);
            }
            if let Some(kind) = VIRTUAL.iter().find(|v| port.device.starts_with(*v)) {
                self.wrong(at, PortProblem::ReservedDevice { device: port.device.clone(), kind });
            }
            if let Some(vlan) = port.vlan.filter(|v| !(1..=4094).contains(v)) {
                self.wrong(at, PortProblem::Vlan(vlan));
            }
            let least =
                if port.addresses.iter().any(|a| a.address.is_ipv6()) { MTU_MIN_V6 } else { MTU_MIN_V4 };
            if let Some(mtu) = port.mtu.filter(|&m| m < least) {
                self.wrong(at, PortProblem::Mtu { mtu, least });
            }
            self.addresses(&port.name, &port.addresses, |address| Element::Address { port: i, address });
        }
    }

    fn addresses(&mut self, port: &'a str, list: &'a [AddressSpec], place: impl Fn(usize) -> Element) {
        let mut here = HashSet::new();
        for (i, a) in list.iter().enumerate() {
            let at = place(i);
            let (address, len) = (a.address, a.prefix_len);
            if len == 0 || len > width(address) {
                self.wrong(at, PortProblem::PrefixLength { address, len });
            } else if let Some(wrong) = not_a_host(address).or_else(|| not_in_network(address, a)) {
                self.wrong(at, PortProblem::NotAHost { address, wrong });
            }
            let elsewhere = self.ours.get(&address).map(|&p| p.to_string());
            if !here.insert(address) {
                self.wrong(at, PortProblem::DuplicateAddress { address, other: port.to_string() });
            } else if let Some(other) = elsewhere {
                self.wrong(at, PortProblem::DuplicateAddress { address, other });
            } else if !link_local(address) {
                // fe80::1 may be ours on every link; each is another address (RFC 4007).
                self.ours.insert(address, port);
            }
        }
    }

    /// Each connected network on one port. Host prefixes name nobody else, so they may lie inside
    /// another port's network (a router address on a point-to-point link).
    fn networks(&mut self) {
        let mut all: Vec<(Prefix, usize, usize)> = Vec::new();
        // Ports count on to tunnels.
        let names: Vec<&str> = self.desired.addressed().map(|(name, _)| name).collect();
        for (p, (_, addresses)) in self.desired.addressed().enumerate() {
            for (i, a) in addresses.iter().enumerate() {
                if a.prefix_len > 0 && a.prefix_len < width(a.address) && !link_local(a.address) {
                    all.push((a.network(), p, i));
                }
            }
        }
        // Sorted, a covering prefix comes just before what it covers, so one open cover is enough:
        // what overlaps nothing open starts a new one.
        all.sort();
        let mut open: Option<(Prefix, usize)> = None;
        let mut found = Vec::new();
        for &(net, port, address) in &all {
            match open {
                Some((cover, owner)) if covers(cover, net) => {
                    if owner != port {
                        found.push((port, address, net, cover, owner));
                    }
                }
                _ => open = Some((net, port)),
            }
        }
        for (port, address, mine, theirs, owner) in found {
            let other = names[owner].to_string();
            let at = match port.checked_sub(self.desired.ports.len()) {
                None => Element::Address { port, address },
                Some(tunnel) => Element::Ipsec(IpsecElement::TunnelAddress { tunnel, address }),
            };
            self.wrong(at, PortProblem::OverlappingNetworks { mine, theirs, other });
        }
    }

    fn routes(&mut self) {
        let desired = self.desired;
        if desired.routes.len() > ROUTES_MAX {
            self.wrong(Element::Routes, Problem::TooManyRoutes(desired.routes.len()));
        }
        // Routes written in order need no set to be seen as unique.
        let sorted = desired.routes.is_sorted_by(|a, b| a.prefix < b.prefix);
        let mut seen = HashSet::with_capacity(if sorted { 0 } else { desired.routes.len() });
        // A full table names few next hops a million times over.
        let mut good: HashSet<(bool, &NextHopSpec)> = HashSet::new();
        for (r, route) in desired.routes.iter().enumerate() {
            let at = Element::Route(r);
            if !sorted && !seen.insert(route.prefix) {
                self.wrong(at, RouteProblem::Duplicate);
            }
            if let Some(what) = unroutable(route.prefix) {
                self.wrong(at, RouteProblem::Unroutable { what });
            }
            if route.prefix.len() == width(route.prefix.addr())
                && let Some(&port) = self.ours.get(&route.prefix.addr())
            {
                self.wrong(at, RouteProblem::IsUs { port: port.to_string() });
            }
            let Via::NextHops(hops) = &route.via else { continue };
            if hops.is_empty() {
                self.wrong(at, RouteProblem::NoNextHops);
            }
            if hops.len() > MULTIPATH_HOPS_MAX {
                self.wrong(at, RouteProblem::TooManyNextHops(hops.len()));
                continue;
            }
            for (h, hop) in hops.iter().enumerate() {
                let at = Element::NextHop { route: r, hop: h };
                if hops[..h].iter().any(|o| o.gateway == hop.gateway && o.port == hop.port) {
                    self.wrong(at, HopProblem::Duplicate);
                }
                let v4 = route.prefix.addr().is_ipv4();
                if !good.contains(&(v4, hop)) {
                    match self.next_hop(v4, hop) {
                        None => _ = good.insert((v4, hop)),
                        Some(problem) => self.wrong(at, problem),
                    }
                }
            }
        }
    }

    /// The first thing wrong with a next hop for a prefix of the family.
    fn next_hop(&self, v4: bool, hop: &NextHopSpec) -> Option<Problem> {
        match &hop.port {
            Some(name) if !self.names.contains(name.as_str()) => Some(self.unknown_port(name)),
            _ => self.gateway(v4, hop).map(Problem::NextHop),
        }
    }

    /// The same for a next hop whose port, if it names one, exists.
    fn gateway(&self, v4: bool, hop: &NextHopSpec) -> Option<HopProblem> {
        if !(1..=WEIGHT_MAX).contains(&hop.weight) {
            return Some(HopProblem::Weight(hop.weight));
        }
        let Some(gateway) = hop.gateway else {
            return hop.port.is_none().then_some(HopProblem::Empty);
        };
        if gateway.is_ipv4() != v4 {
            return Some(HopProblem::Family { gateway });
        }
        if let Some(wrong) = not_a_host(gateway) {
            return Some(HopProblem::GatewayNotAHost { gateway, wrong });
        }
        if let Some(&port) = self.ours.get(&gateway) {
            return Some(HopProblem::GatewayIsOurs { gateway, port: port.to_string() });
        }
        if link_local(gateway) {
            let Some(port) = &hop.port else { return Some(HopProblem::LinkLocalWithoutPort { gateway }) };
            let mut on_port = self.desired.addressed().filter(|(name, _)| name == port);
            return on_port
                .any(|(_, addresses)| addresses.iter().any(|a| a.address == gateway))
                .then(|| HopProblem::GatewayIsOurs { gateway, port: port.clone() });
        }
        match (self.desired.connected(gateway), &hop.port) {
            (None, None) => Some(HopProblem::GatewayNotConnected { gateway }),
            (None, Some(_)) => None,
            (Some((port, _)), Some(named)) if port != named => {
                Some(HopProblem::GatewayElsewhere { gateway, on: port.to_string(), named: named.clone() })
            }
            (Some((_, address)), _) => {
                not_in_network(gateway, address).map(|wrong| HopProblem::GatewayNotAHost { gateway, wrong })
            }
        }
    }

    fn unknown_port(&self, name: &str) -> Problem {
        let nearest = nearest(name, self.desired.addressed().map(|(name, _)| name));
        Problem::UnknownPort { name: name.to_string(), nearest: nearest.map(str::to_string) }
    }

    fn neighbors(&mut self) {
        let desired = self.desired;
        let mut seen = HashSet::new();
        for (i, n) in desired.neighbors.iter().enumerate() {
            let at = Element::Neighbor(i);
            if !self.names.contains(n.port.as_str()) {
                let problem = self.unknown_port(&n.port);
                self.wrong(at, problem);
            } else if self.is_tunnel(&n.port) {
                self.wrong(at, NeighborProblem::OnTunnel);
            }
            if !seen.insert((n.port.as_str(), n.address)) {
                self.wrong(at, NeighborProblem::Duplicate);
            }
            if let Some(wrong) = not_a_host(n.address) {
                self.wrong(at, NeighborProblem::NotAHost { wrong });
            }
            if let Some(&port) = self.ours.get(&n.address) {
                self.wrong(at, NeighborProblem::IsUs { port: port.to_string() });
            }
            if n.mac[0] & 1 != 0 {
                self.wrong(at, NeighborProblem::Mac { mac: n.mac, what: "a group address" });
            } else if n.mac == [0; 6] {
                self.wrong(at, NeighborProblem::Mac { mac: n.mac, what: "all zeros" });
            }
        }
    }

    fn settings(&mut self) {
        let s = self.desired.settings;
        if s.hold_total < s.hold_per_neighbor {
            let problem = Problem::HoldTotal { total: s.hold_total, per_neighbor: s.hold_per_neighbor };
            self.wrong(Element::Settings, problem);
        }
    }
}

/// Printable, without spaces, and not too long to read.
fn is_name(name: &str) -> bool {
    let printable = name.chars().all(|c| !c.is_whitespace() && !c.is_control());
    !name.is_empty() && name.len() <= NAME_MAX && printable
}

impl Desired {
    /// The port, and the address on it, whose network holds `address`; link-local ones have no single
    /// answer and get none.
    pub(crate) fn connected(&self, address: IpAddr) -> Option<(&str, &AddressSpec)> {
        if link_local(address) {
            return None;
        }
        self.addressed().find_map(|(name, addresses)| {
            let near = addresses.iter().find(|a| a.prefix_len < width(a.address) && a.covers(address))?;
            Some((name, near))
        })
    }

    /// Every port with addresses, tunnels behind the others.
    pub(crate) fn addressed(&self) -> impl Iterator<Item = (&str, &[AddressSpec])> {
        let ports = self.ports.iter().map(|p| (p.name.as_str(), &p.addresses[..]));
        ports.chain(self.ipsec.tunnels.iter().map(|t| (t.name.as_str(), &t.addresses[..])))
    }
}

impl AddressSpec {
    /// The network this address is in.
    pub fn network(&self) -> Prefix {
        Prefix::new(self.address, self.prefix_len)
    }

    /// Whether `other` is in the same network.
    pub fn covers(&self, other: IpAddr) -> bool {
        self.address.is_ipv4() == other.is_ipv4() && Prefix::new(other, self.prefix_len) == self.network()
    }
}

/// Bits of an address of this family.
pub(crate) fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// IPv6 only: 169.254.0.0/16 is routed like any other network when an operator configures it.
pub(crate) fn link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(a) if a.is_unicast_link_local())
}

fn covers(cover: Prefix, other: Prefix) -> bool {
    match (cover, other) {
        (Prefix::V4(a), Prefix::V4(b)) => a.len() <= b.len() && a.contains(b.addr()),
        (Prefix::V6(a), Prefix::V6(b)) => a.len() <= b.len() && a.contains(b.addr()),
        _ => false,
    }
}

/// Why no station may have this address, in any network.
pub(crate) fn not_a_host(address: IpAddr) -> Option<Wrong> {
    match address {
        IpAddr::V4(a) if a.octets()[0] == 0 => Some(Wrong::Unspecified),
        IpAddr::V4(a) if a.octets()[0] >= 240 => Some(Wrong::Reserved),
        IpAddr::V6(a) if a.to_ipv4_mapped().is_some() => Some(Wrong::Mapped),
        a if a.is_unspecified() => Some(Wrong::Unspecified),
        a if a.is_loopback() => Some(Wrong::Loopback),
        a if a.is_multicast() => Some(Wrong::Multicast),
        _ => None,
    }
}

/// Why no station may have this address in the network of `near`. Networks of two addresses have
/// neither network nor broadcast address (RFC 3021, RFC 6164).
fn not_in_network(address: IpAddr, near: &AddressSpec) -> Option<Wrong> {
    if near.prefix_len + 2 > width(address) {
        return None;
    }
    match near.network() {
        net if net.addr() == address => Some(Wrong::Network(net)),
        Prefix::V4(net) if IpAddr::V4(Ipv4Addr::from(net.last())) == address => {
            Some(Wrong::Broadcast(Prefix::V4(net)))
        }
        _ => None,
    }
}

/// Why a route to this prefix would never carry anything.
pub(crate) fn unroutable(prefix: Prefix) -> Option<&'static str> {
    let inside = |addr: IpAddr, len| covers(Prefix::new(addr, len), prefix);
    let six = |first: u16| IpAddr::V6(Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, 0));
    match prefix {
        _ if inside(Ipv4Addr::new(224, 0, 0, 0).into(), 4) || inside(six(0xff00), 8) => {
            Some("multicast addresses")
        }
        _ if inside(six(0xfe80), 10) => Some("link-local addresses (RFC 4291 2.5.6)"),
        _ if inside(Ipv4Addr::LOCALHOST.into(), 8) || inside(Ipv6Addr::LOCALHOST.into(), 128) => {
            Some("loopback addresses")
        }
        _ if inside(Ipv4Addr::new(240, 0, 0, 0).into(), 4) => Some("reserved addresses (240.0.0.0/4)"),
        _ => None,
    }
}
