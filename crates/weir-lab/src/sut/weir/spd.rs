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

/// What policies do.
pub struct Actions {
    /// Lines of the policy that packets match.
    pub matching: String,
    /// The action of those that match nothing.
    pub others: &'static str,
}

/// What its configuration says of policies that let packets pass, and of how they are asked.
pub fn tables(c: &Configuration) -> String {
    let Some(p) = c.ipsec() else { return String::new() };
    let family = c.workload.family;
    let bypass = Actions { matching: "action = \"bypass\"\n".into(), others: "bypass" };
    format!("\n[ipsec]\n{}", asked(&p, family, Towards::Out)) + &policies(&p, family, Towards::Out, &bypass)
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
pub fn policies(p: &Protection, family: Family, towards: Towards, actions: &Actions) -> String {
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
    for n in 1..=p.policies {
        let others = format!("action = \"{}\"\n", actions.others);
        let (direction, selector, action) = if policies::matching(p) == Some(n) {
            // SAs of both directions belong to it
            let both = actions.matching.contains("protect");
            (if both { "both" } else { way }, everything.clone(), &actions.matching)
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
