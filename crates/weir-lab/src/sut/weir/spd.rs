//! The daemon with an SPD on the port packets leave by.

use std::fmt::Write as _;

use crate::model::spd::LookupBy;
use crate::model::{Configuration, Family};
use crate::sut::policies;
use crate::workload::address;

/// What its configuration says of policies, and of how they are asked.
pub fn tables(c: &Configuration) -> String {
    let Some(p) = c.ipsec() else { return String::new() };
    let family = match c.workload.family {
        Family::Inet => "ipv4",
        Family::Inet6 => "ipv6",
    };
    let asked = match p.spd.lookup {
        LookupBy::Gateway => String::new(),
        LookupBy::Linear => "spd-classifier = \"off\"\n".into(),
        LookupBy::Classifier => "spd-classifier = \"on\"\n".into(),
        LookupBy::Cache => format!(
            "{family}-outbound-spd-flow-cache = \"on\"\n{family}-outbound-spd-hash-buckets = {}\n",
            p.spd.buckets
        ),
    };
    // what no policy behind could match would be refused: it is of all sources that packets have, not of any
    let (sources, len) = address::sources(c.workload.family);
    let everything = match policies::matching(&p) {
        Some(index) if index < p.policies => format!("local = \"{sources}/{len}\"\n"),
        _ => String::new(),
    };
    let default = if policies::matching(&p).is_some() { "drop" } else { "bypass" };
    let mut text = format!(
        "\n[ipsec]\n{asked}\n[[spd]]\nname = \"leaving\"\nports = [\"out\"]\ndefault = \"{default}\"\n"
    );
    for n in 1..=p.policies {
        let selector = if policies::matching(&p) == Some(n) {
            everything.clone()
        } else if policies::are_of_ports(&p) {
            format!("protocol = \"udp\"\nremote_ports = {n}\n")
        } else {
            format!("remote = \"{}\"\n", address::nobody(c.workload.family, n))
        };
        let _ = write!(
            text,
            "\n[[policy]]\nspd = \"leaving\"\nname = \"policy-{n}\"\ndirection = \"out\"\n{selector}action = \"bypass\"\n"
        );
    }
    text
}
