//! VPP's SPD under the packets of a namespace: policies that let packets pass, the one that matches at a given index.
//!
//! ```text
//! ipsec = { mode = "policy", direction = "out", action = "bypass", lookup = "linear" | "cache", match = N }
//! the policies of the port packets leave by are asked; those of the port they come in by are about ESP alone
//! ```
//!
//! Promises: policies before the one that matches are of addresses no packet has, of falling priority, and of the same
//! action: VPP keeps a list of each direction and action. `linear` is its ordered scan, `cache` its flow cache (IPv4),
//! `classifier` its fast path (outbound). Refuses, by name: what packets that stay plain cannot show, and what VPP
//! does not have.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::model::ipsec::{Backend, Direction, Mode, Protection};
use crate::model::spd::{Action, LookupBy};
use crate::model::{Configuration, Family};

/// Why VPP cannot do as a configuration asks, with the remedy.
pub fn refused(c: &Configuration) -> Option<String> {
    let p = c.ipsec()?;
    let (spd, inet6) = (&p.spd, c.workload.family == Family::Inet6);
    let inbound = p.direction == Direction::In;
    let reason = if p.mode == Mode::Route {
        "between namespaces it has policies only: use mode = \"policy\", or topology = \"gateways\" for its tunnels"
    } else if p.direction == Direction::Beside {
        "what no policy matches it drops: use direction = \"out\" or \"in\""
    } else if spd.action == Action::Protect {
        "packets are counted as cleartext at the receiver: use action = \"bypass\", or topology = \"gateways\" for its ESP"
    } else if spd.rules.is_some() || spd.churn > 0 {
        "its policies are one list that stays: remove `rules` and `churn`"
    } else if p.backend != Backend::Auto {
        "it chooses its crypto engine: remove `backend`"
    } else if inbound {
        "it asks inbound policies about ESP alone: use direction = \"out\", or topology = \"memory\""
    } else if spd.lookup == LookupBy::Cache && inet6 {
        "its flow cache is of IPv4: use family = \"inet\", or lookup = \"linear\""
    } else {
        return None;
    };
    Some(format!("vpp: {reason}"))
}

/// The section of its settings that says who answers; what is not measured stays off.
pub fn settings(c: &Configuration) -> String {
    let Some(p) = &c.ipsec() else { return String::new() };
    let direction = direction(p);
    let lines = match (p.spd.lookup, c.workload.family) {
        (LookupBy::Gateway, _) => return String::new(),
        (LookupBy::Linear | LookupBy::Cache, Family::Inet6) => return String::new(),
        (LookupBy::Linear, Family::Inet) => format!("  ipv4-{direction}-spd-flow-cache off\n"),
        (LookupBy::Cache, Family::Inet) => format!(
            "  ipv4-{direction}-spd-flow-cache on\n  ipv4-{direction}-spd-hash-buckets {}\n",
            p.spd.buckets
        ),
        (LookupBy::Classifier, Family::Inet) => format!("  ipv4-{direction}-spd-fast-path on\n"),
        (LookupBy::Classifier, Family::Inet6) => format!("  ipv6-{direction}-spd-fast-path on\n"),
    };
    format!("ipsec {{\n{lines}}}\n")
}

/// Commands for packets that leave by the port `output`.
pub fn commands(c: &Configuration, output: &str) -> String {
    let Some(p) = &c.ipsec() else { return String::new() };
    let (direction, inet6) = (direction(p), c.workload.family == Family::Inet6);
    let mut text = format!("ipsec spd add 1\nset interface ipsec spd host-{output} 1\n");
    let index = p.spd.matching.unwrap_or(p.policies);
    for n in 1..=p.policies {
        let priority = p.policies - n + 1;
        let ip6 = if inet6 { "ip6 " } else { "" };
        let _ = write!(text, "ipsec policy add spd 1 {ip6}priority {priority} {direction} action bypass");
        // of addresses no packet may have (RFC 1122 3.2.1.3)
        let _ = match (n == index, inet6) {
            (true, _) => writeln!(text),
            (false, false) => writeln!(text, " remote-ip-range {0} - {0}", Ipv4Addr::from(n)),
            (false, true) => {
                writeln!(text, " remote-ip-range {0} - {0}", Ipv6Addr::from(u128::from(n) << 64))
            }
        };
    }
    text
}

/// What a reader of its values must know.
pub fn note(c: &Configuration) -> Option<String> {
    let p = c.ipsec()?;
    let answers = match p.spd.lookup {
        LookupBy::Gateway => "as it comes",
        LookupBy::Linear => "ordered scan",
        LookupBy::Cache => "flow cache",
        LookupBy::Classifier => "fast path",
    };
    let index = p.spd.matching.unwrap_or(p.policies);
    Some(format!(
        "vpp: {} SPD, {answers}: packets match policy {index} of {} and pass as cleartext",
        direction(&p),
        p.policies
    ))
}

fn direction(p: &Protection) -> &'static str {
    if p.direction == Direction::In { "inbound" } else { "outbound" }
}
