//! What a policy's selectors look like in the file: addresses, protocol, ports, ICMP types.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use toml::de::DeValue;
use weir_core::ipsec::spd::{AddressRange, PortRange};
use weir_core::route::Prefix;

use crate::config::read::{Value, alternatives};
use crate::config::source::{Complaints, write_instead};
use crate::config::table::{Form, Key, Table, names as key_names};

pub const ICMP: u8 = 1;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const ICMPV6: u8 = 58;

/// Names of the protocols people write policies about.
pub const PROTOCOLS: [(&str, u8); 10] = [
    ("icmp", ICMP),
    ("ipip", 4),
    ("tcp", TCP),
    ("udp", UDP),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("icmpv6", ICMPV6),
    ("ospf", 89),
    ("sctp", 132),
];

/// Those with ports (RFC 4301 4.4.1.1).
pub const WITH_PORTS: [u8; 3] = [TCP, UDP, 132];

const ICMP_TYPES: [(&str, u8); 6] = [
    ("echo-reply", 0),
    ("destination-unreachable", 3),
    ("redirect", 5),
    ("echo-request", 8),
    ("time-exceeded", 11),
    ("parameter-problem", 12),
];

const ICMPV6_TYPES: [(&str, u8); 11] = [
    ("destination-unreachable", 1),
    ("packet-too-big", 2),
    ("time-exceeded", 3),
    ("parameter-problem", 4),
    ("echo-request", 128),
    ("echo-reply", 129),
    ("router-solicitation", 133),
    ("router-advertisement", 134),
    ("neighbor-solicitation", 135),
    ("neighbor-advertisement", 136),
    ("redirect", 137),
];

/// `local` and `remote`: one or a list of prefixes, ranges and addresses; `any`, or nothing, is every one.
pub fn addresses(value: &Value<'_>, complaints: &mut Complaints) -> Option<Vec<AddressRange>> {
    if matches!(value.value, DeValue::String(s) if s == "any") {
        return Some(Vec::new());
    }
    let items = value.one_or_many();
    if items.is_empty() {
        value.refuse(
            "prefixes, ranges or addresses",
            "write `\"10.1.0.0/16\"`, or leave it out for any",
            complaints,
        );
        return None;
    }
    let found: Vec<Option<AddressRange>> = items.iter().map(|item| range(item, complaints)).collect();
    found.into_iter().collect()
}

fn range(value: &Value<'_>, complaints: &mut Complaints) -> Option<AddressRange> {
    const EXPECTED: &str = "a prefix, a range or an address";
    let text = value.text(EXPECTED, "local = \"10.1.0.0/16\"", complaints)?;
    let parsed = match text.split_once('-') {
        Some((first, last)) => first.trim().parse().ok().zip(last.trim().parse().ok()),
        None if text.contains('/') => match text.parse::<Prefix>() {
            Ok(prefix) => Some(ends(prefix)),
            Err(error) => {
                let said = format!("{}: {}", value.subject, error.or_example("10.1.0.0/16"));
                complaints.add(value.span.clone(), said);
                return None;
            }
        },
        None => text.parse::<IpAddr>().ok().map(|a| (a, a)),
    };
    let Some((first, last)) = parsed else {
        value.refuse(
            EXPECTED,
            "write `\"10.1.0.0/16\"`, `\"10.1.0.1-10.1.0.9\"` or `\"10.1.0.1\"`",
            complaints,
        );
        return None;
    };
    if first.is_ipv4() != last.is_ipv4() || first > last {
        let remedy = match first.is_ipv4() == last.is_ipv4() {
            true => format!("write `\"{last}-{first}\"`"),
            false => format!("write a list: `[\"{first}\", \"{last}\"]`"),
        };
        value.refuse("a range from a lower to a higher address of one family", remedy, complaints);
        return None;
    }
    Some(AddressRange { first, last })
}

fn ends(prefix: Prefix) -> (IpAddr, IpAddr) {
    match prefix.addr() {
        IpAddr::V4(a) => {
            let host = u32::MAX.checked_shr(prefix.len().into()).unwrap_or(0);
            (a.into(), Ipv4Addr::from(u32::from(a) | host).into())
        }
        IpAddr::V6(a) => {
            let host = u128::MAX.checked_shr(prefix.len().into()).unwrap_or(0);
            (a.into(), Ipv6Addr::from(u128::from(a) | host).into())
        }
    }
}

/// A protocol by name or number; `any`, or nothing, is every one.
pub fn protocol(value: &Value<'_>, complaints: &mut Complaints) -> Option<Option<u8>> {
    match value.value {
        DeValue::String(s) if s == "any" => return Some(None),
        DeValue::String(s) => {
            if let Some(found) = PROTOCOLS.iter().find(|p| p.0 == s.as_ref()) {
                return Some(Some(found.1));
            }
            let known = PROTOCOLS.map(|p| p.0);
            value.refuse(
                format!("{} or a number from 0 to 255", alternatives(&known).replace(" or ", ", ")),
                write_instead(s, &known),
                complaints,
            );
            return None;
        }
        _ => {}
    }
    value.integer(0..=u8::MAX, TCP, complaints).map(Some)
}

/// A port, or `"first-last"`.
pub fn ports(value: &Value<'_>, complaints: &mut Complaints) -> Option<PortRange> {
    let found = match value.value {
        DeValue::Integer(n) => u16::from_str_radix(n.as_str(), n.radix()).ok().map(|n| (n, n)),
        DeValue::String(s) if s == "any" => Some((0, u16::MAX)),
        DeValue::String(s) => match s.split_once('-') {
            Some((first, last)) => first.trim().parse().ok().zip(last.trim().parse().ok()),
            None => s.parse().ok().map(|n| (n, n)),
        },
        _ => None,
    };
    let found = found.filter(|(first, last)| first <= last);
    if found.is_none() {
        value.refuse(
            "a port from 0 to 65535 or a range of them",
            "write `443` or `\"1024-65535\"`",
            complaints,
        );
    }
    found.map(|(first, last)| PortRange { first, last })
}

/// `"echo-request"`, or `{ type = 8, code = 0 }`: every code when none is given.
const ICMP_KEYS: [Key; 2] = [
    Key::required("type", Form::Integer(0, 255), "The type."),
    Key::new("code", Form::Integer(0, 255), "The code. Without it, any."),
];
pub const ICMP_TABLE: Table =
    Table { heading: "icmp = { … }", about: "A type of ICMP or ICMPv6 message.", keys: &ICMP_KEYS };

pub fn icmp(value: &Value<'_>, protocol: u8, complaints: &mut Complaints) -> Option<PortRange> {
    let types: &[(&'static str, u8)] = if protocol == ICMPV6 { &ICMPV6_TYPES } else { &ICMP_TYPES };
    let of = |kind: u8, first: u8, last: u8| PortRange {
        first: u16::from_be_bytes([kind, first]),
        last: u16::from_be_bytes([kind, last]),
    };
    match value.value {
        DeValue::String(_) => value.word(types, complaints).map(|kind| of(kind, 0, u8::MAX)),
        DeValue::Table(_) => {
            let fields = value.table(&key_names(&ICMP_KEYS), "", complaints)?;
            let kind = fields.required("type", "type = 8", complaints)?.integer(0..=u8::MAX, 8, complaints);
            let code = fields.get("code").map(|v| v.integer(0..=u8::MAX, 0, complaints));
            Some(match code {
                Some(code) => of(kind?, code?, code?),
                None => of(kind?, 0, u8::MAX),
            })
        }
        _ => {
            value.refuse(
                "a type by name or a table with `type` and `code`",
                "write `\"echo-request\"` or `{ type = 8, code = 0 }`",
                complaints,
            );
            None
        }
    }
}
