//! `[[route]]` and `[[neighbor]]`: where packets go.

use std::net::IpAddr;
use std::ops::Range;

use toml::de::DeValue;
use weir_core::id::Mac;
use weir_core::route::Prefix;
use weir_core::state::{MULTIPATH_HOPS_MAX as PATHS_MAX, WEIGHT_MAX};

use super::Placed;
use super::read::{Fields, Value};
use super::source::{Complaints, nearest};
use super::table::{Form, Key, Table, names};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub span: Range<usize>,
    pub prefix: Placed<Prefix>,
    pub via: Via,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Via {
    NextHops(Vec<NextHop>),
    Blackhole,
    Unreachable,
    Prohibited,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHop {
    pub span: Range<usize>,
    pub gateway: Option<Placed<IpAddr>>,
    pub port: Option<Placed<String>>,
    pub weight: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbor {
    pub span: Range<usize>,
    pub port: Placed<String>,
    pub address: Placed<IpAddr>,
    pub mac: Mac,
}

const ROUTE: [Key; 2] = [
    Key::required("prefix", Form::Text, "The destination: an IPv4 or IPv6 prefix."),
    Key::required(
        "via",
        Form::OneOrMany(&Form::OneOf(&[Form::Text, Form::Table(&NEXT_HOP_TABLE)])),
        "The next hop: a gateway's address, a table, or a list of them that shares the flows. `\"blackhole\"` discards in silence; `\"unreachable\"` and `\"prohibited\"` discard and answer.",
    ),
];
const NEXT_HOP: [Key; 3] = [
    Key::new("gateway", Form::Text, "The gateway's address."),
    Key::new(
        "port",
        Form::Text,
        "The port or tunnel to leave by. A link-local gateway needs it; alone, it says that destinations are neighbors.",
    ),
    Key::with_default(
        "weight",
        Form::Integer(1, WEIGHT_MAX as u64),
        "1",
        "The share of this next hop beside the others of its route.",
    ),
];
const NEIGHBOR: [Key; 3] = [
    Key::required("port", Form::Text, "The port the neighbor is behind."),
    Key::required("address", Form::Text, "The neighbor's IPv4 or IPv6 address."),
    Key::required("mac", Form::Text, "The neighbor's MAC address, `02:00:00:00:00:01`."),
];
const ROUTE_KEYS: &[&str] = &names(&ROUTE);
const NEXT_HOP_KEYS: &[&str] = &names(&NEXT_HOP);
const NEIGHBOR_KEYS: &[&str] = &names(&NEIGHBOR);

pub const ROUTE_TABLE: Table =
    Table { heading: "[[route]]", about: "A route. Networks of ports need none.", keys: &ROUTE };
const NEXT_HOP_TABLE: Table =
    Table { heading: "via = { … }", about: "A next hop of a route.", keys: &NEXT_HOP };
pub const NEIGHBOR_TABLE: Table = Table {
    heading: "[[neighbor]]",
    about: "A host that does not answer ARP or neighbor solicitation.",
    keys: &NEIGHBOR,
};
const DISCARDS: &[&str] = &["blackhole", "unreachable", "prohibited"];

pub fn read(value: &Value<'_>, complaints: &mut Complaints) -> Option<Route> {
    let mut fields = value.table(ROUTE_KEYS, "[[route]]", complaints)?;
    let prefix =
        fields.required("prefix", "prefix = \"0.0.0.0/0\"", complaints).and_then(|v| prefix(&v, complaints));
    if let Some(prefix) = &prefix {
        fields.subject = format!("route {}", prefix.value);
    }
    let via = fields.required("via", "via = \"192.0.2.254\"", complaints)?;
    let via = via_of(&via, complaints);
    Some(Route { span: fields.span.clone(), prefix: prefix?, via: via? })
}

fn prefix(value: &Value<'_>, complaints: &mut Complaints) -> Option<Placed<Prefix>> {
    let text = value.text("an IPv4 or IPv6 prefix", "prefix = \"0.0.0.0/0\"", complaints)?;
    let text = if text == "default" { "" } else { text };
    if text.is_empty() {
        value.refuse(
            "an IPv4 or IPv6 prefix",
            "write `\"0.0.0.0/0\"` for the IPv4 default route, `\"::/0\"` for the IPv6 one",
            complaints,
        );
        return None;
    }
    match text.parse::<Prefix>() {
        Ok(prefix) => Some(Placed::new(prefix, value.span.clone())),
        Err(error) => {
            complaints.add(value.span.clone(), format!("route: {}", error.or_example("10.0.0.0/8")));
            None
        }
    }
}

fn via_of(value: &Value<'_>, complaints: &mut Complaints) -> Option<Via> {
    if let DeValue::String(s) = value.value {
        match s.as_ref() {
            "blackhole" => return Some(Via::Blackhole),
            "unreachable" => return Some(Via::Unreachable),
            // Linux writes the shorter one.
            "prohibited" | "prohibit" => return Some(Via::Prohibited),
            _ => {}
        }
    }
    let items = value.one_or_many();
    if items.is_empty() || items.len() > PATHS_MAX {
        value.refuse(
            format!("1 to {PATHS_MAX} next hops"),
            "write a gateway's address, or `\"blackhole\"` to discard",
            complaints,
        );
        return None;
    }
    let hops: Vec<Option<NextHop>> = items.iter().map(|item| next_hop(item, complaints)).collect();
    let hops: Vec<NextHop> = hops.into_iter().collect::<Option<_>>()?;
    Some(Via::NextHops(hops))
}

fn next_hop(value: &Value<'_>, complaints: &mut Complaints) -> Option<NextHop> {
    let span = value.span.clone();
    match value.value {
        DeValue::String(s) => match s.parse::<IpAddr>() {
            Ok(gateway) => {
                let gateway = Some(Placed::new(gateway, span.clone()));
                Some(NextHop { span, gateway, port: None, weight: 1 })
            }
            Err(_) => {
                let remedy = match nearest(s, DISCARDS) {
                    Some(near) => format!("write `\"{near}\"`"),
                    None => format!("write an address, or `{{ port = \"{s}\" }}` if `{s}` is a port"),
                };
                value.refuse(
                    "a gateway's address, `blackhole`, `unreachable` or `prohibited`",
                    remedy,
                    complaints,
                );
                None
            }
        },
        DeValue::Table(_) => {
            let fields = value.table(NEXT_HOP_KEYS, "", complaints)?;
            hop_table(&fields, span, complaints)
        }
        _ => {
            value.refuse(
                "a gateway's address or a table with `gateway`, `port` or both",
                "write `{ gateway = \"fe80::1\", port = \"wan\" }`",
                complaints,
            );
            None
        }
    }
}

fn hop_table(fields: &Fields<'_>, span: Range<usize>, complaints: &mut Complaints) -> Option<NextHop> {
    let gateway = fields.get("gateway").map(|v| address(&v, complaints));
    let port = fields.get("port").map(|v| port(&v, complaints));
    let weight = fields.get("weight").map(|v| v.integer(1..=WEIGHT_MAX, 1, complaints));
    if gateway.is_none() && port.is_none() {
        complaints.add(
            span,
            format!(
                "{}: a next hop has neither `gateway` nor `port`; write at least one of them",
                fields.subject
            ),
        );
        return None;
    }
    // A field that was there and unreadable has been complained about: no half next hop.
    let gateway = gateway.map_or(Some(None), |g| g.map(Some))?;
    let port = port.map_or(Some(None), |p| p.map(Some))?;
    Some(NextHop { span, gateway, port, weight: weight.unwrap_or(Some(1))? })
}

fn address(value: &Value<'_>, complaints: &mut Complaints) -> Option<Placed<IpAddr>> {
    let text = value.text("an IPv4 or IPv6 address", "gateway = \"192.0.2.254\"", complaints)?;
    match text.parse() {
        Ok(address) => Some(Placed::new(address, value.span.clone())),
        Err(_) => {
            let bare = text.split(['/', '%']).next().and_then(|t| t.parse::<IpAddr>().ok());
            let remedy = match bare {
                Some(bare) => format!("write `\"{bare}\"`"),
                None => "write for example `\"192.0.2.254\"`".to_owned(),
            };
            value.refuse("an IPv4 or IPv6 address", remedy, complaints);
            None
        }
    }
}

fn port(value: &Value<'_>, complaints: &mut Complaints) -> Option<Placed<String>> {
    let text = value.text("a port's name", "port = \"lan\"", complaints)?;
    Some(Placed::new(text.to_owned(), value.span.clone()))
}

pub fn neighbor(value: &Value<'_>, complaints: &mut Complaints) -> Option<Neighbor> {
    let mut fields = value.table(NEIGHBOR_KEYS, "[[neighbor]]", complaints)?;
    let address = fields
        .required("address", "address = \"192.0.2.7\"", complaints)
        .and_then(|v| address(&v, complaints));
    if let Some(address) = &address {
        fields.subject = format!("neighbor {}", address.value);
    }
    let port = fields.required("port", "port = \"lan\"", complaints).and_then(|v| port(&v, complaints));
    let mac =
        fields.required("mac", "mac = \"02:00:00:00:00:01\"", complaints).and_then(|v| mac(&v, complaints));
    Some(Neighbor { span: fields.span.clone(), port: port?, address: address?, mac: mac? })
}

fn mac(value: &Value<'_>, complaints: &mut Complaints) -> Option<Mac> {
    let text = value.text("a MAC address", "mac = \"02:00:00:00:00:01\"", complaints)?;
    match parse_mac(text) {
        Some(mac) if mac[0] & 1 == 1 => {
            value.refuse(
                "the MAC address of one station",
                "this is a group address; write the neighbour's own, as `ip link` on it shows",
                complaints,
            );
            None
        }
        Some(mac) if mac == [0; 6] => {
            value.refuse("the MAC address of one station", "write the neighbour's own", complaints);
            None
        }
        Some(mac) => Some(mac),
        None => {
            value.refuse("six bytes in hex", "write for example `\"02:00:00:00:00:01\"`", complaints);
            None
        }
    }
}

/// `02:00:00:00:00:01`, or with dashes.
pub fn parse_mac(text: &str) -> Option<Mac> {
    let mut mac = [0; 6];
    let mut parts = text.split([':', '-']);
    for byte in &mut mac {
        let part = parts.next().filter(|p| p.len() == 2 && p.bytes().all(|b| b.is_ascii_hexdigit()))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}
