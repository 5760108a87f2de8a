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

const TUNNEL_KEYS: &[&str] = &["name", "out", "in", "addresses", "mtu", "rpf"];
const SPD_KEYS: &[&str] = &["name", "ports", "default"];
const POLICY_KEYS: &[&str] = &[
    "spd",
    "name",
    "direction",
    "local",
    "remote",
    "protocol",
    "local_ports",
    "remote_ports",
    "icmp",
    "action",
    "out",
    "in",
];

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
    let mut fields = value.table(TUNNEL_KEYS, "[[tunnel]]", complaints)?;
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
    let mut fields = value.table(SPD_KEYS, "[[spd]]", complaints)?;
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
    let mut fields = value.table(POLICY_KEYS, "[[policy]]", complaints)?;
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
        }
    }
}
