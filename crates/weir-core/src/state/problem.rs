//! What is wrong with a desired state: where, and in the operator's words.
//!
//! Promises: one [`Error`] per mistake, with the place in the [`super::Desired`] (so that a front end
//! can name a line), a subject, what was found against what was expected, and the remedy.

pub mod ipsec;

use std::fmt;
use std::net::IpAddr;

use ipsec::{IpsecElement, LookupProblem, PolicyProblem, SaProblem, SpdProblem, TunnelProblem, UseProblem};

use super::check::{MULTIPATH_HOPS_MAX, PORTS_MAX, ROUTES_MAX, WEIGHT_MAX};
use crate::id::Mac;
use crate::route::Prefix;
use crate::wire::DisplayMac;

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub at: Element,
    /// What the sentence is about: `port lan`, `route 10.0.0.0/8`.
    pub subject: String,
    pub problem: Problem,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.subject, self.problem)
    }
}

impl std::error::Error for Error {}

/// Which element of the desired state, as indexes into its lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    Ports,
    Routes,
    Port(usize),
    Address { port: usize, address: usize },
    Route(usize),
    NextHop { route: usize, hop: usize },
    Neighbor(usize),
    Settings,
    Ipsec(IpsecElement),
}

/// Why an address cannot be a host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    Unspecified,
    Loopback,
    Multicast,
    /// 255.255.255.255 and 240.0.0.0/4.
    Reserved,
    /// An IPv4 address written as IPv6.
    Mapped,
    /// The all-zeros host of its network (for IPv6 the subnet-router anycast address, RFC 4291 2.6.1).
    Network(Prefix),
    /// The all-ones host of its IPv4 network.
    Broadcast(Prefix),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Unspecified => f.write_str("the unspecified address"),
            Wrong::Loopback => f.write_str("a loopback address"),
            Wrong::Multicast => f.write_str("a multicast address"),
            Wrong::Reserved => f.write_str("a reserved address (240.0.0.0/4)"),
            Wrong::Mapped => f.write_str("an IPv4 address written as IPv6"),
            Wrong::Network(net) => write!(f, "the network address of {net}"),
            Wrong::Broadcast(net) => write!(f, "the broadcast address of {net}"),
        }
    }
}

/// What is wrong; the text says what was expected and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    TooManyPorts(usize),
    TooManyRoutes(usize),
    UnknownPort { name: String, nearest: Option<String> },
    HoldTotal { total: u16, per_neighbor: u16 },
    Port(PortProblem),
    Route(RouteProblem),
    NextHop(HopProblem),
    Neighbor(NeighborProblem),
    Sa(SaProblem),
    Use(UseProblem),
    Tunnel(TunnelProblem),
    Spd(SpdProblem),
    Policy(PolicyProblem),
    Lookup(LookupProblem),
}

/// What is wrong with a port or an address on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortProblem {
    BadName(String),
    NoDevice,
    Duplicate,
    SharedDevice { device: String, vlan: Option<u16>, other: String },
    Vlan(u16),
    ReservedDevice { device: String, kind: &'static str },
    Mtu { mtu: u16, least: u16 },
    PrefixLength { address: IpAddr, len: u8 },
    NotAHost { address: IpAddr, wrong: Wrong },
    DuplicateAddress { address: IpAddr, other: String },
    OverlappingNetworks { mine: Prefix, theirs: Prefix, other: String },
}

/// What is wrong with a route as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteProblem {
    Duplicate,
    Unroutable { what: &'static str },
    IsUs { port: String },
    NoNextHops,
    TooManyNextHops(usize),
}

/// What is wrong with one next hop of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HopProblem {
    Weight(u8),
    Empty,
    Duplicate,
    Family { gateway: IpAddr },
    GatewayNotAHost { gateway: IpAddr, wrong: Wrong },
    GatewayIsOurs { gateway: IpAddr, port: String },
    GatewayNotConnected { gateway: IpAddr },
    GatewayElsewhere { gateway: IpAddr, on: String, named: String },
    LinkLocalWithoutPort { gateway: IpAddr },
    GatewayNeeded { port: String },
}

/// What is wrong with a static neighbour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NeighborProblem {
    Duplicate,
    OnTunnel,
    NotAHost { wrong: Wrong },
    IsUs { port: String },
    Mac { mac: Mac, what: &'static str },
}

impl From<PortProblem> for Problem {
    fn from(problem: PortProblem) -> Self {
        Problem::Port(problem)
    }
}

impl From<RouteProblem> for Problem {
    fn from(problem: RouteProblem) -> Self {
        Problem::Route(problem)
    }
}

impl From<HopProblem> for Problem {
    fn from(problem: HopProblem) -> Self {
        Problem::NextHop(problem)
    }
}

impl From<NeighborProblem> for Problem {
    fn from(problem: NeighborProblem) -> Self {
        Problem::Neighbor(problem)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::TooManyPorts(n) => {
                write!(f, "{n} are configured, expected at most {PORTS_MAX}; remove some")
            }
            Problem::TooManyRoutes(n) => {
                write!(f, "{n} are configured, expected at most {ROUTES_MAX}; aggregate some")
            }
            Problem::UnknownPort { name, nearest: Some(nearest) } => {
                write!(f, "port `{name}` does not exist; did you mean `{nearest}`?")
            }
            Problem::UnknownPort { name, nearest: None } => {
                write!(f, "port `{name}` does not exist; configure it or correct the name")
            }
            Problem::HoldTotal { total, per_neighbor } => write!(
                f,
                "hold total is {total}, expected at least the {per_neighbor} held per neighbour; raise it"
            ),
            Problem::Port(problem) => problem.fmt(f),
            Problem::Route(problem) => problem.fmt(f),
            Problem::NextHop(problem) => problem.fmt(f),
            Problem::Neighbor(problem) => problem.fmt(f),
            Problem::Sa(problem) => problem.fmt(f),
            Problem::Use(problem) => problem.fmt(f),
            Problem::Tunnel(problem) => problem.fmt(f),
            Problem::Spd(problem) => problem.fmt(f),
            Problem::Policy(problem) => problem.fmt(f),
            Problem::Lookup(problem) => problem.fmt(f),
        }
    }
}

impl fmt::Display for PortProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortProblem::BadName(name) => {
                write!(f, "name is `{name}`, expected 1 to 64 printable characters without spaces; rename it")
            }
            PortProblem::NoDevice => write!(f, "names no device; name the interface that carries it"),
            PortProblem::Duplicate => write!(f, "is configured twice; keep one or rename one"),
            PortProblem::SharedDevice { device, vlan: Some(vlan), other } => {
                write!(f, "vlan {vlan} on device {device} is port {other}'s already; choose another tag")
            }
            PortProblem::SharedDevice { device, vlan: None, other } => {
                write!(f, "untagged traffic of device {device} is port {other}'s already; give one a vlan")
            }
            PortProblem::Vlan(id) => write!(f, "vlan is {id}, expected 1 to 4094; use a valid 802.1Q tag"),
            PortProblem::ReservedDevice { device, kind } => {
                write!(f, "device is {device}, but names with `{kind}` are for devices of IPsec; rename it")
            }
            PortProblem::Mtu { mtu, least: 1280 } => write!(
                f,
                "mtu is {mtu}, expected at least 1280 with IPv6 addresses (RFC 8200 5); raise it or remove them"
            ),
            PortProblem::Mtu { mtu, least } => {
                write!(f, "mtu is {mtu}, expected at least {least} for IPv4 (RFC 791); raise it")
            }
            PortProblem::PrefixLength { address, len } => write!(
                f,
                "address {address}/{len} has prefix length {len}, expected 1 to {}; correct it",
                if address.is_ipv4() { 32 } else { 128 }
            ),
            PortProblem::NotAHost { address, wrong } => {
                write!(f, "address {address} is {wrong}, expected a host's; choose another")
            }
            PortProblem::DuplicateAddress { address, other } => {
                write!(f, "address {address} is on port {other} already; remove one")
            }
            PortProblem::OverlappingNetworks { mine, theirs, other } => write!(
                f,
                "network {mine} overlaps {theirs} on port {other}, expected each network on one port; \
                 renumber one or lengthen its prefix"
            ),
        }
    }
}

impl fmt::Display for RouteProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RouteProblem::Duplicate => {
                write!(f, "is configured twice; keep one, with several next hops if both are meant")
            }
            RouteProblem::Unroutable { what } => {
                write!(f, "covers only {what}, expected a unicast prefix; remove it")
            }
            RouteProblem::IsUs { port } => write!(f, "is our own address on port {port}; remove the route"),
            RouteProblem::NoNextHops => {
                write!(f, "has no next hop, expected one or more; add one or say `blackhole`")
            }
            RouteProblem::TooManyNextHops(n) => {
                write!(f, "has {n} next hops, expected at most {MULTIPATH_HOPS_MAX}; remove some")
            }
        }
    }
}

impl fmt::Display for HopProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HopProblem::Weight(w) => {
                write!(f, "weight is {w}, expected 1 to {WEIGHT_MAX}; scale the weights")
            }
            HopProblem::Empty => write!(f, "has neither gateway nor port; name at least one"),
            HopProblem::Duplicate => write!(f, "is listed twice in the route; use one with a higher weight"),
            HopProblem::Family { gateway } => write!(
                f,
                "gateway {gateway} is {}, expected the family of the prefix; use a gateway of that family",
                if gateway.is_ipv4() { "IPv4" } else { "IPv6" }
            ),
            HopProblem::GatewayNotAHost { gateway, wrong } => {
                write!(f, "gateway {gateway} is {wrong}, expected a neighbour's address; correct it")
            }
            HopProblem::GatewayIsOurs { gateway, port } => {
                write!(f, "gateway {gateway} is our own address on port {port}; name the neighbour's address")
            }
            HopProblem::GatewayNotConnected { gateway } => write!(
                f,
                "gateway {gateway} is on no connected network; name its port or add an address near it"
            ),
            HopProblem::GatewayElsewhere { gateway, on, named } => write!(
                f,
                "gateway {gateway} is on port {on}'s network, but the next hop names port {named}; \
                 correct one of them"
            ),
            HopProblem::LinkLocalWithoutPort { gateway } => write!(
                f,
                "gateway {gateway} is link-local and names no port (RFC 4007); add the port it is on"
            ),
            HopProblem::GatewayNeeded { port } => write!(
                f,
                "names port {port} without a gateway among several next hops, which only point-to-point \
                 ports allow; add its gateway"
            ),
        }
    }
}

impl fmt::Display for NeighborProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NeighborProblem::Duplicate => write!(f, "is configured twice on the port; keep one"),
            NeighborProblem::OnTunnel => {
                write!(f, "the port is a tunnel, where there is nobody to address; remove the neighbor")
            }
            NeighborProblem::NotAHost { wrong } => {
                write!(f, "address is {wrong}, expected a neighbour's; correct it")
            }
            NeighborProblem::IsUs { port } => {
                write!(f, "address is our own on port {port}; remove the neighbour")
            }
            NeighborProblem::Mac { mac, what } => {
                write!(f, "mac address {} is {what}, expected a station's own; correct it", DisplayMac(*mac))
            }
        }
    }
}

/// Bytes as people say them, at most one digit behind the point: `512 B`, `128 MiB`, `1.5 GiB`.
pub fn amount(bytes: impl Into<u128>) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let bytes = bytes.into();
    let unit = (bytes.max(1).ilog2() / 10).min(6);
    let tenths = (bytes * 10) >> (10 * unit);
    match (tenths / 10, tenths % 10) {
        (whole, 0) => format!("{whole} {}", UNITS[unit as usize]),
        (whole, tenth) => format!("{whole}.{tenth} {}", UNITS[unit as usize]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_read_as_people_write_them() {
        let cases = [
            (0u128, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (3 << 19, "1.5 MiB"),
            (128 << 20, "128 MiB"),
            (128 << 30, "128 GiB"),
            (1 << 90, "1073741824 EiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(amount(bytes), text);
        }
    }
}
