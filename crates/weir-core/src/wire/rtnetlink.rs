//! Messages of rtnetlink about routes, next-hop objects, neighbours and policy rules (rtnetlink(7);
//! `include/uapi/linux/{rtnetlink,nexthop,neighbour,fib_rules}.h`).
//!
//! Promises: [`parse`] reads no byte past a message, allocates what the message holds and no more, and tells what is
//! not understood from what is malformed. Refuses: attributes that no decision needs are skipped.

pub mod links;
pub mod traffic;

use std::fmt;
use std::net::IpAddr;

use super::netlink::{self, FLAG_APPEND, FLAG_REPLACE, Malformed, Message, attributes, u16_at, u32_at};
use crate::id::Mac;
use crate::route::Prefix;

pub const NEW_ROUTE: u16 = 24;
pub const DELETE_ROUTE: u16 = 25;
pub const GET_ROUTE: u16 = 26;
pub const NEW_NEIGHBOR: u16 = 28;
pub const DELETE_NEIGHBOR: u16 = 29;
pub const GET_NEIGHBOR: u16 = 30;
pub const NEW_RULE: u16 = 32;
pub const DELETE_RULE: u16 = 33;
pub const GET_RULE: u16 = 34;
pub const NEW_NEXT_HOP: u16 = 104;
pub const DELETE_NEXT_HOP: u16 = 105;
pub const GET_NEXT_HOP: u16 = 106;

pub const AF_INET: u8 = 2;
pub const AF_INET6: u8 = 10;

/// The tables every namespace has.
pub const TABLE_DEFAULT: u32 = 253;
pub const TABLE_MAIN: u32 = 254;
pub const TABLE_LOCAL: u32 = 255;

/// Neighbour states (`NUD_*`).
pub const NUD_INCOMPLETE: u16 = 0x01;
pub const NUD_REACHABLE: u16 = 0x02;
pub const NUD_STALE: u16 = 0x04;
pub const NUD_DELAY: u16 = 0x08;
pub const NUD_PROBE: u16 = 0x10;
pub const NUD_FAILED: u16 = 0x20;
pub const NUD_NOARP: u16 = 0x40;
pub const NUD_PERMANENT: u16 = 0x80;

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    Route(Change, Route),
    NextHop(Change, NextHop),
    Neighbor(Change, Neighbor),
    Rule(Change, Rule),
    /// A message of another type, or of a family that is neither IPv4 nor IPv6.
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// New, in front of others of the same key.
    Added,
    /// New, behind others of the same key; every entry of a dump is told so.
    Appended,
    /// The route replaces the one of the same key.
    Replaced,
    Deleted,
}

/// A next hop as a route names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hop {
    /// Index of the link; 0 where none is named.
    pub link: u32,
    pub gateway: Option<IpAddr>,
    /// 1…65,536.
    pub weight: u32,
    /// The kernel does not use it now.
    pub dead: bool,
    /// It puts something around the packet (MPLS, SRv6, a tunnel's key).
    pub encapsulates: bool,
}

/// What a route does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouteKind {
    Unicast,
    Blackhole,
    Unreachable,
    Prohibit,
    /// Goes on with the next policy rule.
    Throw,
    /// An address of this host, or a broadcast, anycast or multicast one.
    Local,
    /// A protocol of another number.
    Unknown(u8),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub prefix: Prefix,
    pub table: u32,
    pub protocol: Protocol,
    pub kind: RouteKind,
    pub tos: u8,
    /// The metric: of several routes of a prefix the least one decides.
    pub priority: u32,
    /// Names a next-hop object; `hops` is then what the object holds, or empty.
    pub object: Option<u32>,
    pub hops: Vec<Hop>,
    /// Copied from another for one destination: no route of the table.
    pub cloned: bool,
    /// Only for packets from this source prefix (IPv6).
    pub from_source: bool,
    /// The address of ours that our own packets take: the route goes with it.
    pub source: Option<IpAddr>,
}

/// Who made a route: `RTPROT_*` and /etc/iproute2/rt_protos.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Protocol(pub u8);

const PROTOCOLS: &[(u8, &str)] = &[
    (1, "redirect"),
    (2, "kernel"),
    (3, "boot"),
    (4, "static"),
    (8, "gated"),
    (9, "ra"),
    (10, "mrt"),
    (11, "zebra"),
    (12, "bird"),
    (13, "dnrouted"),
    (14, "xorp"),
    (15, "ntk"),
    (16, "dhcp"),
    (18, "keepalived"),
    (42, "babel"),
    (84, "ovn"),
    (99, "openr"),
    (186, "bgp"),
    (187, "isis"),
    (188, "ospf"),
    (189, "rip"),
    (192, "eigrp"),
    (196, "static"),
];

impl Protocol {
    pub const KERNEL: Protocol = Protocol(2);

    /// Protocols with this name or number: FRR's static routes have a number of their own.
    pub fn named(name: &str) -> Vec<Protocol> {
        match name.parse() {
            Ok(number) => vec![Protocol(number)],
            Err(_) => PROTOCOLS.iter().filter(|p| p.1 == name).map(|p| Protocol(p.0)).collect(),
        }
    }

    /// Every name, for complaints.
    pub fn names() -> Vec<&'static str> {
        let mut names: Vec<&str> = PROTOCOLS.iter().map(|p| p.1).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match PROTOCOLS.iter().find(|p| p.0 == self.0) {
            Some((_, name)) => f.write_str(name),
            None => write!(f, "protocol {}", self.0),
        }
    }
}

/// A next-hop object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHop {
    pub id: u32,
    pub what: NextHopKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextHopKind {
    Hop(Hop),
    Blackhole,
    /// Ids and weights.
    Group(Vec<(u32, u32)>),
    /// A kind not understood, or one that bridges.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbor {
    pub link: u32,
    pub address: IpAddr,
    pub mac: Option<Mac>,
    /// `NUD_*`.
    pub state: u16,
    /// Answered for by this host (proxy ARP), learnt by a bridge, or set by another program's hardware.
    pub foreign: bool,
}

/// A policy rule, as far as it says whether it may concern transit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub v4: bool,
    pub priority: u32,
    pub table: u32,
    /// `FR_ACT_TO_TBL` is 1.
    pub action: u8,
    /// The interface packets come in on.
    pub input: Option<String>,
    /// The interface a socket is bound to.
    pub output: Option<String>,
    pub from: Option<Prefix>,
    pub to: Option<Prefix>,
    /// Any other condition: mark, TOS, ports, protocol, user, not.
    pub more: bool,
    /// It holds for what its conditions do not name (`not`).
    pub inverted: bool,
    /// The rule of VRF devices (`l3mdev`).
    pub vrf: bool,
    /// TOS and attributes as they came, but for those above: rules may differ in nothing else.
    pub unread: Vec<u8>,
}

/// Reads a message; `dumped`: it answers a dump request.
pub fn parse(message: &Message<'_>, dumped: bool) -> Result<News, Malformed> {
    let change = match message.kind {
        DELETE_ROUTE | DELETE_NEXT_HOP | DELETE_NEIGHBOR | DELETE_RULE => Change::Deleted,
        _ if dumped || message.flags & FLAG_APPEND != 0 => Change::Appended,
        _ if message.flags & FLAG_REPLACE != 0 => Change::Replaced,
        _ => Change::Added,
    };
    let family = *message.payload.first().ok_or(Malformed)?;
    let ip = matches!(family, AF_INET | AF_INET6);
    Ok(match message.kind {
        NEW_ROUTE | DELETE_ROUTE if ip => News::Route(change, route(message.payload)?),
        NEW_NEXT_HOP | DELETE_NEXT_HOP => News::NextHop(change, next_hop(message.payload)?),
        NEW_NEIGHBOR | DELETE_NEIGHBOR if ip => match neighbor(message.payload)? {
            Some(neighbor) => News::Neighbor(change, neighbor),
            None => News::Other,
        },
        NEW_RULE | DELETE_RULE if ip => News::Rule(change, rule(message.payload)?),
        _ => News::Other,
    })
}

/// `struct rtmsg`: family, destination length, source length, TOS, table, protocol, scope, type, flags.
const ROUTE_HEADER: usize = 12;
/// `RTM_F_CLONED`.
const CLONED: u32 = 0x200;

/// `RTA_*`.
mod rta {
    pub const DESTINATION: u16 = 1;
    pub const FROM: u16 = 2;
    pub const INPUT: u16 = 3;
    pub const LINK: u16 = 4;
    pub const GATEWAY: u16 = 5;
    pub const PRIORITY: u16 = 6;
    pub const SOURCE: u16 = 7;
    pub const MULTIPATH: u16 = 9;
    pub const TABLE: u16 = 15;
    pub const VIA: u16 = 18;
    pub const ENCAP: u16 = 22;
    pub const PROTOCOL: u16 = 27;
    pub const SOURCE_PORT: u16 = 28;
    pub const DESTINATION_PORT: u16 = 29;
    pub const OBJECT: u16 = 30;
}

fn route(payload: &[u8]) -> Result<Route, Malformed> {
    let header = payload.get(..ROUTE_HEADER).ok_or(Malformed)?;
    let (family, length) = (header[0], header[1]);
    let flags = u32_at(header, 8).unwrap_or_default();
    let mut destination = unspecified(family);
    let (mut table, mut priority, mut object, mut source) = (u32::from(header[4]), 0, None, None);
    let (mut only, mut hops) = (Hop { weight: 1, dead: is_dead(flags as u8), ..Hop::default() }, Vec::new());
    for attribute in attributes(&payload[ROUTE_HEADER..]) {
        let (kind, value) = attribute?;
        match kind {
            rta::DESTINATION => destination = address(family, value)?,
            rta::SOURCE => source = Some(address(family, value)?),
            rta::LINK => only.link = number(value)?,
            rta::PRIORITY => priority = number(value)?,
            rta::TABLE => table = number(value)?,
            rta::OBJECT => object = Some(number(value)?).filter(|&id| id != 0),
            rta::MULTIPATH => hops = multipath(family, value)?,
            _ => hop_attribute(family, kind, value, &mut only)?,
        }
    }
    if length > if family == AF_INET { 32 } else { 128 } {
        return Err(Malformed);
    }
    if hops.is_empty() && (only.link != 0 || only.gateway.is_some()) {
        hops.push(only);
    }
    Ok(Route {
        prefix: Prefix::new(destination, length),
        table,
        protocol: Protocol(header[5]),
        kind: match header[7] {
            1 => RouteKind::Unicast,
            2..=5 => RouteKind::Local,
            6 => RouteKind::Blackhole,
            7 => RouteKind::Unreachable,
            8 => RouteKind::Prohibit,
            9 => RouteKind::Throw,
            other => RouteKind::Unknown(other),
        },
        tos: header[3],
        priority,
        object,
        hops,
        cloned: flags & CLONED != 0,
        from_source: header[2] != 0,
        source,
    })
}

/// `RTNH_F_DEAD`; without carrier (`RTNH_F_LINKDOWN`) a port says so itself.
fn is_dead(flags: u8) -> bool {
    flags & 1 != 0
}

/// What a hop's own attributes and a route's of one hop have in common.
fn hop_attribute(family: u8, kind: u16, value: &[u8], hop: &mut Hop) -> Result<(), Malformed> {
    match kind {
        rta::GATEWAY => hop.gateway = Some(address(family, value)?),
        rta::VIA => {
            let family = u16_at(value, 0).ok_or(Malformed)?;
            hop.gateway = Some(address(u8::try_from(family).map_err(|_| Malformed)?, &value[2..])?);
        }
        rta::ENCAP => hop.encapsulates = true,
        _ => {}
    }
    Ok(())
}

/// `struct rtnexthop`: length, flags, weight less one, link; attributes behind.
fn multipath(family: u8, value: &[u8]) -> Result<Vec<Hop>, Malformed> {
    const HEADER: usize = 8;
    let (mut hops, mut rest) = (Vec::new(), value);
    while !rest.is_empty() {
        let length = u16_at(rest, 0).map_or(0, usize::from);
        let own = rest.get(HEADER..length).ok_or(Malformed)?;
        let (dead, weight) = (is_dead(rest[2]), u32::from(rest[3]) + 1);
        let link = u32_at(rest, 4).ok_or(Malformed)?;
        let mut hop = Hop { link, weight, dead, ..Hop::default() };
        for attribute in attributes(own) {
            let (kind, value) = attribute?;
            hop_attribute(family, kind, value, &mut hop)?;
        }
        hops.push(hop);
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(hops)
}

/// `struct nhmsg`: family, scope, protocol, reserved, flags.
fn next_hop(payload: &[u8]) -> Result<NextHop, Malformed> {
    const HEADER: usize = 8;
    let header = payload.get(..HEADER).ok_or(Malformed)?;
    let flags = u32_at(header, 4).unwrap_or_default();
    let (mut id, mut group, mut blackhole, mut unknown) = (None, None, false, false);
    let mut hop = Hop { weight: 1, dead: is_dead(flags as u8), ..Hop::default() };
    for attribute in attributes(&payload[HEADER..]) {
        let (kind, value) = attribute?;
        match kind {
            1 => id = Some(number(value)?),
            // `struct nexthop_grp`: id, weight less one, its upper byte, reserved.
            2 => {
                let member = |m: &[u8]| {
                    let weight = u32::from(m[4]) + (u32::from(m[5]) << 8) + 1;
                    Some((u32_at(m, 0)?, weight))
                };
                group = Some(value.chunks_exact(8).filter_map(member).collect());
            }
            4 => blackhole = true,
            5 => hop.link = number(value)?,
            6 => hop.gateway = Some(address(header[0], value)?),
            7 | 8 => hop.encapsulates = true,
            // A bridge's forwarding entry.
            11 => unknown = true,
            _ => {}
        }
    }
    let what = match group {
        _ if unknown => NextHopKind::Unknown,
        Some(members) => NextHopKind::Group(members),
        None if blackhole => NextHopKind::Blackhole,
        None => NextHopKind::Hop(hop),
    };
    Ok(NextHop { id: id.ok_or(Malformed)?, what })
}

/// `struct ndmsg`: family, padding, link, state, flags, type. None: an entry without an address.
fn neighbor(payload: &[u8]) -> Result<Option<Neighbor>, Malformed> {
    const HEADER: usize = 12;
    const PROXY: u8 = 0x08;
    let header = payload.get(..HEADER).ok_or(Malformed)?;
    let (mut at, mut mac) = (None, None);
    for attribute in attributes(&payload[HEADER..]) {
        match attribute? {
            (1, value) => at = Some(address(header[0], value)?),
            (2, value) => mac = Mac::try_from(value).ok(),
            _ => {}
        }
    }
    let link = u32_at(header, 4).ok_or(Malformed)?;
    let state = u16_at(header, 8).ok_or(Malformed)?;
    let foreign = header[10] & PROXY != 0;
    Ok(at.map(|address| Neighbor { link, address, mac, state, foreign }))
}

/// The rule holds for what it does not name.
const FIB_RULE_INVERT: u32 = 2;

/// `struct fib_rule_hdr`: family, destination length, source length, TOS, table, two reserved, action, flags.
fn rule(payload: &[u8]) -> Result<Rule, Malformed> {
    const HEADER: usize = 12;
    let header = payload.get(..HEADER).ok_or(Malformed)?;
    let flags = u32_at(header, 8).unwrap_or_default();
    let mut rule = Rule {
        v4: header[0] == AF_INET,
        priority: 0,
        table: header[4].into(),
        action: header[7],
        input: None,
        output: None,
        from: None,
        to: None,
        more: header[3] != 0 || flags & FIB_RULE_INVERT != 0,
        inverted: flags & FIB_RULE_INVERT != 0,
        vrf: false,
        unread: vec![header[3]],
    };
    for attribute in attributes(&payload[HEADER..]) {
        let (kind, value) = attribute?;
        match kind {
            1 => rule.to = Some(Prefix::new(address(header[0], value)?, header[1])),
            2 => rule.from = Some(Prefix::new(address(header[0], value)?, header[2])),
            3 => rule.input = Some(text(value)),
            17 => rule.output = Some(text(value)),
            6 => rule.priority = number(value)?,
            15 => rule.table = number(value)?,
            19 => rule.vrf = value.first().is_some_and(|&v| v != 0),
            // FRA_FWMARK, FRA_FLOW, FRA_TUN_ID, FRA_UID_RANGE, and what comes behind: protocols, ports, DSCP.
            10..=12 | 20 | 22.. => rule.more = true,
            // Routes by some interfaces, or shorter than something, do not count; all ones: they do.
            13 | 14 => rule.more |= number(value)? != u32::MAX,
            _ => {}
        }
        if !matches!(kind, 1..=3 | 6 | 15 | 17 | 19) {
            rule.unread.extend(kind.to_ne_bytes());
            rule.unread.extend(u16::try_from(value.len()).map_err(|_| Malformed)?.to_ne_bytes());
            rule.unread.extend(value);
        }
    }
    Ok(rule)
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).trim_end_matches('\0').to_owned()
}

fn number(value: &[u8]) -> Result<u32, Malformed> {
    u32_at(value, 0).ok_or(Malformed)
}

fn unspecified(family: u8) -> IpAddr {
    match family {
        AF_INET => IpAddr::from([0u8; 4]),
        _ => IpAddr::from([0u8; 16]),
    }
}

fn address(family: u8, value: &[u8]) -> Result<IpAddr, Malformed> {
    match family {
        AF_INET => value.get(..4).and_then(|v| <[u8; 4]>::try_from(v).ok()).map(IpAddr::from),
        AF_INET6 => value.get(..16).and_then(|v| <[u8; 16]>::try_from(v).ok()).map(IpAddr::from),
        _ => None,
    }
    .ok_or(Malformed)
}

/// A dump of what `kind` asks for, of every family.
pub fn dump(kind: u16) -> Vec<u8> {
    let family: &[u8] = match kind {
        GET_NEXT_HOP => &[0; 8],
        _ => &[0; 12],
    };
    netlink::request(kind, netlink::FLAG_DUMP, family, &[])
}

/// A packet that is to be forwarded, as far as its route may depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transit {
    /// Index of the link it comes in by.
    pub from: u32,
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: u8,
    pub source_port: u16,
    pub destination_port: u16,
}

/// Asks which route the kernel would take for a packet; the answer has the one next hop that it would choose.
pub fn query_route(packet: &Transit) -> Vec<u8> {
    let v4 = packet.destination.is_ipv4();
    let length = if v4 { 32 } else { 128 };
    let mut header = [0; ROUTE_HEADER];
    (header[0], header[1], header[2]) = (if v4 { AF_INET } else { AF_INET6 }, length, length);
    let attributes: [(u16, &[u8]); 6] = [
        (rta::DESTINATION, &octets(packet.destination)),
        (rta::FROM, &octets(packet.source)),
        (rta::INPUT, &packet.from.to_ne_bytes()),
        (rta::PROTOCOL, &[packet.protocol]),
        (rta::SOURCE_PORT, &packet.source_port.to_be_bytes()),
        (rta::DESTINATION_PORT, &packet.destination_port.to_be_bytes()),
    ];
    netlink::request(GET_ROUTE, 0, &header, &attributes)
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    }
}

/// Asks what the kernel has of a neighbour.
pub fn query_neighbor(link: u32, address: IpAddr) -> Vec<u8> {
    about_neighbor(GET_NEIGHBOR, 0, link, (0, address))
}

/// Asks the kernel to find a neighbour, or to see whether it is still there, as if it had a packet for it.
pub fn resolve(link: u32, address: IpAddr) -> Vec<u8> {
    /// `NTF_USE`.
    const USE: u8 = 0x01;
    about_neighbor(NEW_NEIGHBOR, netlink::FLAG_CREATE, link, (USE, address))
}

fn about_neighbor(kind: u16, flags: u16, link: u32, (use_flags, address): (u8, IpAddr)) -> Vec<u8> {
    let mut header = [0; 12];
    header[0] = if address.is_ipv4() { AF_INET } else { AF_INET6 };
    header[4..8].copy_from_slice(&link.to_ne_bytes());
    header[10] = use_flags;
    netlink::request(kind, flags, &header, &[(1, &octets(address))])
}

/// Any bytes are read to their end without a panic, and what is read twice is the same.
#[cfg(feature = "testing")]
pub fn fuzz_rtnetlink(data: &[u8]) {
    for message in netlink::messages(data) {
        let Ok(message) = message else { return };
        for dumped in [false, true] {
            assert_eq!(parse(&message, dumped), parse(&message, dumped));
        }
        assert_eq!(links::parse(&message), links::parse(&message));
        assert_eq!(traffic::parse(&message), traffic::parse(&message));
    }
}

#[cfg(test)]
mod tests {
    use super::super::netlink::{messages, request};
    use super::*;

    fn read(bytes: &[u8]) -> Result<News, Malformed> {
        parse(&messages(bytes).next().expect("one").expect("whole"), false)
    }

    fn routed(attributes: &[(u16, &[u8])]) -> Result<News, Malformed> {
        let header = [AF_INET, 24, 0, 0, 254, 186, 0, 1, 0, 0, 0, 0];
        let base: [(u16, &[u8]); 1] = [(rta::DESTINATION, &[203, 0, 113, 0])];
        read(&request(NEW_ROUTE, 0, &header, &[&base[..], attributes].concat()))
    }

    #[test]
    fn a_route_of_bgp_over_an_ipv6_gateway_is_read() {
        let mut via = vec![AF_INET6, 0];
        via.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        let link = 7u32.to_ne_bytes();
        let Ok(News::Route(Change::Added, route)) =
            routed(&[(rta::LINK, &link), (rta::VIA, &via), (rta::PRIORITY, &20u32.to_ne_bytes())])
        else {
            panic!("a route");
        };
        assert_eq!((route.prefix.to_string().as_str(), route.priority), ("203.0.113.0/24", 20));
        assert_eq!(route.protocol.to_string(), "bgp");
        let gateway = Some("fe80::1".parse().expect("an address"));
        assert_eq!(route.hops, [Hop { link: 7, gateway, weight: 1, ..Hop::default() }]);
    }

    #[test]
    fn attributes_cut_short_are_malformed() {
        assert_eq!(routed(&[(rta::LINK, &[1, 2, 3])]), Err(Malformed));
        assert_eq!(routed(&[(rta::GATEWAY, &[1, 2, 3])]), Err(Malformed));
        assert_eq!(routed(&[(rta::MULTIPATH, &[9, 0, 0, 0, 0, 0, 0, 0])]), Err(Malformed));
        assert_eq!(routed(&[(rta::VIA, &[1])]), Err(Malformed));
        assert_eq!(
            read(&request(NEW_ROUTE, 0, &[AF_INET, 33, 0, 0, 254, 2, 0, 1, 0, 0, 0, 0], &[])),
            Err(Malformed)
        );
        assert_eq!(read(&request(NEW_NEXT_HOP, 0, &[0; 8], &[])), Err(Malformed), "without an id");
    }

    #[test]
    fn a_rule_that_leaves_out_routes_has_a_condition() {
        let header = [AF_INET, 0, 0, 0, 254, 0, 0, 1, 0, 0, 0, 0];
        for (kind, value, expected) in [(14, u32::MAX, false), (14, 0, true), (13, 3, true)] {
            let Ok(News::Rule(_, rule)) =
                read(&request(NEW_RULE, 0, &header, &[(kind, &value.to_ne_bytes())]))
            else {
                panic!("a rule");
            };
            assert_eq!(rule.more, expected, "attribute {kind} of {value}");
        }
    }

    #[test]
    fn rules_that_differ_in_a_condition_that_is_not_read_are_not_the_same() {
        let read_rule = |tos: u8, attributes: &[(u16, &[u8])]| {
            let header = [AF_INET, 0, 0, tos, 254, 0, 0, 1, 0, 0, 0, 0];
            let Ok(News::Rule(_, rule)) = read(&request(NEW_RULE, 0, &header, attributes)) else {
                panic!("a rule");
            };
            rule
        };
        let [one, two] = [1u32, 2].map(u32::to_ne_bytes);
        type Attributes<'a> = &'a [(u16, &'a [u8])];
        let cases: [(u8, Attributes<'_>); 6] = [
            (0, &[]),
            (8, &[]),
            (0, &[(10, &one)]),
            (0, &[(10, &two)]),
            (0, &[(16, &one)]),
            (0, &[(10, &one), (16, &one)]),
        ];
        for (i, (tos, attributes)) in cases.iter().enumerate() {
            for (j, (other, others)) in cases.iter().enumerate() {
                let same = read_rule(*tos, attributes) == read_rule(*other, others);
                assert_eq!(same, i == j, "{attributes:?} with TOS {tos}, {others:?} with TOS {other}");
            }
        }
    }

    #[test]
    fn a_route_is_asked_for_by_all_that_the_kernel_may_choose_by() {
        let packet = Transit {
            from: 7,
            source: "10.1.0.2".parse().expect("an address"),
            destination: "10.9.0.1".parse().expect("an address"),
            protocol: 17,
            source_port: 1000,
            destination_port: 53,
        };
        let bytes = query_route(&packet);
        let message = messages(&bytes).next().expect("one").expect("whole");
        assert_eq!((message.kind, &message.payload[..4]), (GET_ROUTE, &[AF_INET, 32, 32, 0][..]));
        let found: Vec<_> = attributes(&message.payload[ROUTE_HEADER..]).map(|a| a.expect("whole")).collect();
        let expected: [(u16, &[u8]); 6] = [
            (1, &[10, 9, 0, 1]),
            (2, &[10, 1, 0, 2]),
            (3, &7u32.to_ne_bytes()),
            (27, &[17]),
            (28, &[3, 232]),
            (29, &[0, 53]),
        ];
        assert_eq!(found, expected);
        let six = Transit {
            source: "fd00::1".parse().expect("an address"),
            destination: "fd09::1".parse().expect("an address"),
            ..packet
        };
        let bytes = query_route(&six);
        let message = messages(&bytes).next().expect("one").expect("whole");
        assert_eq!(message.payload[..4], [AF_INET6, 128, 128, 0]);
    }

    #[test]
    fn a_group_has_ids_and_weights() {
        let group = [3, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 0, 1, 0, 0];
        let group = if cfg!(target_endian = "little") { group } else { return };
        let message = request(NEW_NEXT_HOP, FLAG_REPLACE, &[0; 8], &[(1, &5u32.to_ne_bytes()), (2, &group)]);
        let what = NextHopKind::Group(vec![(3, 2), (9, 257)]);
        assert_eq!(read(&message), Ok(News::NextHop(Change::Replaced, NextHop { id: 5, what })));
    }
}
