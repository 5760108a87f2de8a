//! `[[tunnel]]`, `[[spd]]` and `[[policy]]`: what is protected, by which SAs.

use std::net::IpAddr;

use weir_core::ipsec::sa::Direction;
use weir_core::ipsec::spd::{Action, PortRange};
use weir_core::state::{PolicySpec, SpdSpec};
use weir_core::tables::ReversePath;

use super::{RPF, name, names, selector, spelling, values};
use crate::config::Placed;
use crate::config::port::{self, Addresses};
use crate::config::read::{Fields, Value};
use crate::config::source::Complaints;
use crate::config::table::{Form, Key, Table, names as key_names};

/// One `[[tunnel]]`: a port that seals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    pub name: Placed<String>,
    /// Names of SAs: one, or one a worker.
    pub out: Vec<Placed<String>>,
    pub inbound: Vec<Placed<String>>,
    pub addresses: Vec<Placed<(IpAddr, u8)>>,
    pub mtu: Option<Placed<u16>>,
    pub reverse_path: ReversePath,
}

/// One `[[spd]]` without its policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spd {
    pub name: Placed<String>,
    pub ports: Vec<Placed<String>>,
    pub default: Action,
}

/// One `[[policy]]`; those of one SPD are tried in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub name: Placed<String>,
    pub spd: Placed<String>,
    pub spec: PolicySpec,
    pub out: Vec<Placed<String>>,
    pub inbound: Vec<Placed<String>>,
}

/// What `default` may be.
pub const DEFAULTS: [(&str, Action); 2] = [("drop", Action::Discard), ("bypass", Action::Bypass)];

const TUNNEL: [Key; 6] = [
    Key::required("name", Form::Text, "The tunnel's name, which routes lead to as a port."),
    Key::required(
        "out",
        Form::OneOrMany(&Form::Text),
        "The outbound SA, or a list: one for each worker (RFC 9611).",
    ),
    Key::required("in", Form::OneOrMany(&Form::Text), "The inbound SAs."),
    Key::new(
        "addresses",
        Form::OneOrMany(&Form::Text),
        "Addresses of weir in the tunnel, with prefix lengths.",
    ),
    Key::new(
        "mtu",
        Form::Integer(port::MTU_MIN as u64, port::MTU_MAX as u64),
        "The largest inner packet in bytes. Without it, what fits into the outer path.",
    ),
    Key::with_default(
        "rpf",
        Form::Words(&["off", "strict", "loose"]),
        "\"strict\"",
        "Reverse path filtering of what comes out of the tunnel.",
    ),
];
pub const TUNNEL_TABLE: Table = Table {
    heading: "[[tunnel]]",
    about: "Route mode: a port whose packets are sealed by an SA, as by a VTI.",
    keys: &TUNNEL,
};
const SPD: [Key; 3] = [
    Key::required("name", Form::Text, "The SPD's name."),
    Key::required(
        "ports",
        Form::OneOrMany(&Form::Text),
        "The ports where every packet is held against the policies.",
    ),
    Key::with_default(
        "default",
        Form::Names(&["drop", "bypass"]),
        "\"drop\"",
        "What becomes of packets that no policy matches.",
    ),
];
pub const SPD_TABLE: Table = Table {
    heading: "[[spd]]",
    about: "Policy mode: an ordered list of policies, and the ports it is enforced on.",
    keys: &SPD,
};
const POLICY: [Key; 12] = [
    Key::required(
        "spd",
        Form::Text,
        "The SPD the policy belongs to. Policies of an SPD are asked in the order of the file.",
    ),
    Key::required("name", Form::Text, "The policy's name."),
    Key::with_default(
        "direction",
        Form::Names(&["both", "in", "out"]),
        "\"both\"",
        "The packets it is about: those that come in on a port of the SPD, those that leave by one, or both.",
    ),
    Key::new(
        "local",
        Form::OneOrMany(&Form::Text),
        "Addresses on our side: a prefix, a range `10.1.0.1-10.1.0.9`, an address, or a list. Without it, any.",
    ),
    Key::new("remote", Form::OneOrMany(&Form::Text), "Addresses on the other side, written the same way."),
    Key::new(
        "protocol",
        Form::OneOf(&[Form::Text, Form::Integer(0, 255)]),
        "The protocol above IP, by name (`tcp`, `udp`, `icmp`, `icmpv6`, …) or number. Without it, any.",
    ),
    Key::new(
        "local_ports",
        Form::OneOf(&[Form::Text, Form::Integer(0, 65_535)]),
        "A port or a range `1024-65535` on our side. TCP, UDP and SCTP only.",
    ),
    Key::new(
        "remote_ports",
        Form::OneOf(&[Form::Text, Form::Integer(0, 65_535)]),
        "A port or a range on the other side.",
    ),
    Key::new(
        "icmp",
        Form::OneOf(&[Form::Text, Form::Table(&selector::ICMP_TABLE)]),
        "An ICMP type by name, or a table. ICMP and ICMPv6 only.",
    ),
    Key::required(
        "action",
        Form::Names(&["protect", "bypass", "discard"]),
        "What is done: sealed by an SA, forwarded as cleartext, or dropped.",
    ),
    Key::new("out", Form::OneOrMany(&Form::Text), "The outbound SAs of `protect`."),
    Key::new("in", Form::OneOrMany(&Form::Text), "The inbound SAs of `protect`."),
];
pub const POLICY_TABLE: Table = Table {
    heading: "[[policy]]",
    about: "A policy of an SPD: the first that matches a packet decides.",
    keys: &POLICY,
};

/// A table's name, which further complaints about it begin with.
fn named(
    fields: &mut Fields<'_>,
    what: &str,
    example: &str,
    complaints: &mut Complaints,
) -> Option<Placed<String>> {
    let value = fields.required("name", &format!("name = \"{example}\""), complaints)?;
    let name = name(&value, example, complaints)?;
    fields.subject = format!("{what} {}", name.value);
    Some(name)
}

pub fn tunnel(value: &Value<'_>, complaints: &mut Complaints) -> Option<Tunnel> {
    let mut fields = value.table(&key_names(&TUNNEL), "[[tunnel]]", complaints)?;
    let name = named(&mut fields, "tunnel", "east", complaints);
    let out = fields.required("out", "out = \"east-out\"", complaints);
    let inbound = fields.required("in", "in = \"east-in\"", complaints);
    let mtu = fields.get("mtu").and_then(|v| {
        v.integer(port::MTU_MIN..=port::MTU_MAX, 1400, complaints).map(|n| Placed::new(n, v.span))
    });
    // What a peer seals is the peer's; whose addresses it carries is not the peer's to say.
    let reverse_path =
        fields.get("rpf").and_then(|v| v.word(&RPF, complaints)).unwrap_or(ReversePath::Strict);
    let addresses = match port::addresses(&fields, complaints) {
        Some(Addresses::List(list)) => Some(list),
        Some(Addresses::Kernel) => {
            if let Some(value) = fields.get("addresses") {
                value.refuse(
                    "addresses with prefix lengths, because the kernel has no interface here",
                    "write `addresses = [\"10.255.0.1/30\"]`, or leave it out",
                    complaints,
                );
            }
            None
        }
        None => None,
    };
    Some(Tunnel {
        name: name?,
        out: names(&out?, "east-out", complaints),
        inbound: names(&inbound?, "east-in", complaints),
        addresses: addresses?,
        mtu,
        reverse_path,
    })
}

pub fn spd(value: &Value<'_>, complaints: &mut Complaints) -> Option<Spd> {
    let mut fields = value.table(&key_names(&SPD), "[[spd]]", complaints)?;
    let name = named(&mut fields, "spd", "wan", complaints);
    let ports = fields.required("ports", "ports = [\"wan\"]", complaints);
    let ports = ports.map(|v| names(&v, "wan", complaints));
    let default = match fields.get("default") {
        Some(v) => v.word_or(&DEFAULTS, &spelling::DEFAULTS, complaints),
        None => Some(Action::Discard),
    };
    Some(Spd { name: name?, ports: ports?, default: default? })
}

pub fn policy(value: &Value<'_>, complaints: &mut Complaints) -> Option<Policy> {
    let mut fields = value.table(&key_names(&POLICY), "[[policy]]", complaints)?;
    let name = named(&mut fields, "policy", "lan-to-east", complaints);
    let spd = fields.required("spd", "spd = \"wan\"", complaints);
    let spd = spd.and_then(|v| super::name(&v, "wan", complaints));
    let ways = [("both", None), ("in", Some(Direction::In)), ("out", Some(Direction::Out))];
    let direction = match fields.get("direction") {
        Some(v) => v.word_or(&ways, &spelling::POLICY_DIRECTIONS, complaints),
        None => Some(None),
    };
    let mut addresses = |key: &str| match fields.get(key) {
        Some(v) => selector::addresses(&v, complaints),
        None => Some(Vec::new()),
    };
    let (local, remote) = (addresses("local"), addresses("remote"));
    let upper = upper(&fields, complaints);
    let actions = [("protect", Action::Protect), ("bypass", Action::Bypass), ("discard", Action::Discard)];
    let action = fields.required("action", "action = \"protect\"", complaints);
    let action = action.and_then(|v| v.word_or(&actions, &spelling::ACTIONS, complaints));
    let mut sas =
        |key: &str, example: &str| fields.get(key).map_or(Vec::new(), |v| names(&v, example, complaints));
    let (out, inbound) = (sas("out", "east-out"), sas("in", "east-in"));
    let (name, upper) = (name?, upper?);
    let spec = PolicySpec {
        name: name.value.clone(),
        direction: direction?,
        local: local?,
        remote: remote?,
        protocol: upper.protocol,
        local_ports: upper.local_ports,
        remote_ports: upper.remote_ports,
        icmp: upper.icmp,
        action: action?,
        out: values(&out),
        inbound: values(&inbound),
    };
    Some(Policy { name, spd: spd?, spec, out, inbound })
}

/// Selectors above IP.
struct Upper {
    protocol: Option<u8>,
    local_ports: PortRange,
    remote_ports: PortRange,
    icmp: PortRange,
}

fn upper(fields: &Fields<'_>, complaints: &mut Complaints) -> Option<Upper> {
    let protocol = match fields.get("protocol") {
        Some(v) => selector::protocol(&v, complaints)?,
        None => None,
    };
    let needs = |key: &str, fits: &[u8], remedy: &str, complaints: &mut Complaints| {
        let value = fields.get(key)?;
        if protocol.is_some_and(|p| fits.contains(&p)) {
            return Some(value);
        }
        value.refuse(format!("no `{key}` without a protocol that has it"), remedy, complaints);
        None
    };
    let mut ports = |key: &str| {
        if fields.get(key).is_none() {
            return Some(PortRange::ANY);
        }
        let value = needs(key, &selector::WITH_PORTS, "write `protocol = \"tcp\"` or \"udp\"", complaints)?;
        selector::ports(&value, complaints)
    };
    let (local_ports, remote_ports) = (ports("local_ports"), ports("remote_ports"));
    let icmp = if fields.get("icmp").is_none() {
        Some(PortRange::ANY)
    } else {
        let fits = [selector::ICMP, selector::ICMPV6];
        needs("icmp", &fits, "write `protocol = \"icmp\"` or \"icmpv6\"", complaints)
            .and_then(|v| selector::icmp(&v, protocol.unwrap_or(selector::ICMP), complaints))
    };
    Some(Upper { protocol, local_ports: local_ports?, remote_ports: remote_ports?, icmp: icmp? })
}

impl Spd {
    pub(super) fn spec<'a>(&self, policies: impl Iterator<Item = &'a Policy>) -> SpdSpec {
        SpdSpec {
            name: self.name.value.clone(),
            ports: values(&self.ports),
            default: self.default,
            policies: policies.map(|p| p.spec.clone()).collect(),
            route_mode: None,
        }
    }
}
