//! The daemon with an SPD on the port packets leave by, or come in by.

use std::fmt::Write as _;

use crate::model::ipsec::Protection;
use crate::model::spd::LookupBy;
use crate::model::{Configuration, Family};
use crate::sut::policies;
use crate::workload::address;

/// Which of an SPD's directions packets ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Towards {
    Out,
    In,
}

/// What the policy does that packets match.
pub enum Action {
    Bypass,
    /// Protection by these lists of SAs.
    Protect {
        out: String,
        inbound: String,
    },
}

/// What its configuration says of policies that let packets pass, and of how they are asked.
pub fn tables(c: &Configuration) -> String {
    let Some(p) = c.ipsec() else { return String::new() };
    let family = c.workload.family;
    let asked = asked(&p, family, Towards::Out);
    format!("\n[ipsec]\n{asked}") + &policies(&p, family, Towards::Out, &Action::Bypass)
}

/// How policies are asked.
pub fn asked(p: &Protection, family: Family, towards: Towards) -> String {
    let family = match family {
        Family::Inet => "ipv4",
        Family::Inet6 => "ipv6",
    };
    let way = if towards == Towards::Out { "outbound" } else { "inbound" };
    match p.spd.lookup {
        LookupBy::Gateway => String::new(),
        LookupBy::Linear => "spd-classifier = \"off\"\n".into(),
        LookupBy::Classifier => "spd-classifier = \"on\"\n".into(),
        LookupBy::Cache => format!(
            "{family}-{way}-spd-flow-cache = \"on\"\n{family}-{way}-spd-hash-buckets = {}\n",
            p.spd.buckets
        ),
    }
}

/// The SPD of the port that packets ask.
pub fn policies(p: &Protection, family: Family, towards: Towards, action: &Action) -> String {
    // outbound, what is local is the source
    let (name, port, way, source, destination) = match towards {
        Towards::Out => ("leaving", "out", "out", "local", "remote"),
        Towards::In => ("arriving", "in", "in", "remote", "local"),
    };
    // what no policy behind could match would be refused: it is of all sources that packets have, not of any
    let (sources, len) = address::sources(family);
    let everything = match policies::matching(p) {
        Some(index) if index < p.policies => format!("{source} = \"{sources}/{len}\"\n"),
        _ => String::new(),
    };
    let default = if policies::matching(p).is_some() { "drop" } else { "bypass" };
    let mut text = format!("\n[[spd]]\nname = \"{name}\"\nports = [\"{port}\"]\ndefault = \"{default}\"\n");
    let bypass = "action = \"bypass\"\n".to_string();
    // SAs of both directions belong to a policy that protects
    let (matching_way, matching, others) = match action {
        Action::Bypass => (way, bypass.clone(), bypass),
        Action::Protect { out, inbound } => (
            "both",
            format!("action = \"protect\"\nout = {out}\nin = {inbound}\n"),
            "action = \"discard\"\n".to_string(),
        ),
    };
    for n in 1..=p.policies {
        let (direction, selector, action) = if policies::matching(p) == Some(n) {
            (matching_way, everything.clone(), &matching)
        } else if policies::are_of_ports(p) {
            (way, format!("protocol = \"udp\"\n{destination}_ports = {n}\n"), &others)
        } else {
            (way, format!("{destination} = \"{}\"\n", address::nobody(family, n)), &others)
        };
        let _ = write!(
            text,
            "\n[[policy]]\nspd = \"{name}\"\nname = \"policy-{n}\"\ndirection = \"{direction}\"\n{selector}{action}"
        );
    }
    text
}
