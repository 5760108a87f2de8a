//! The SPD of a SUT in namespaces and on hosts: policies of the port packets leave by, which let them pass as cleartext.
//!
//! ```text
//! ipsec = { mode = "policy", direction = "out",    action = "bypass", match = N, policies = M }   the Nth matches all
//! ipsec = { mode = "policy", direction = "beside", action = "bypass", policies = M }              none matches
//! ```
//!
//! Promises: policies of which none matches are of addresses no packet has, or with `lookup = "linear"` of ports none
//! has, which no table of addresses can tell apart: the same ones whoever is asked. Refuses, by name: what packets
//! that stay plain cannot show.

use crate::model::ipsec::{Direction, Mode, Protection};
use crate::model::spd::{Action, LookupBy};
use crate::model::{Configuration, kebab};

/// Why a SUT cannot be asked as a configuration says, with the remedy.
pub fn refused(c: &Configuration) -> Option<String> {
    let p = c.ipsec()?;
    let reason = if p.mode == Mode::Route {
        "between namespaces it has policies only: use mode = \"policy\", or topology = \"memory\""
    } else if p.direction == Direction::In {
        "packets come as cleartext: use direction = \"out\" or \"beside\", or topology = \"memory\""
    } else if p.spd.action == Action::Protect {
        "packets are counted as cleartext at the receiver: use action = \"bypass\", or topology = \"memory\""
    } else if p.spd.rules.is_some() || p.spd.churn > 0 {
        "its policies are one list that stays: remove `rules` and `churn`, or use topology = \"memory\""
    } else {
        return None;
    };
    Some(format!("{}: {reason}", kebab(&c.sut())))
}

/// The index of the policy that all packets match.
pub fn matching(p: &Protection) -> Option<u32> {
    (p.direction != Direction::Beside).then(|| p.spd.matching.unwrap_or(p.policies))
}

/// Whether the policies that match nothing are of ports.
pub fn are_of_ports(p: &Protection) -> bool {
    p.spd.lookup == LookupBy::Linear
}

/// What a reader of its values must know.
pub fn note(c: &Configuration) -> Option<String> {
    let p = c.ipsec()?;
    let of = if are_of_ports(&p) { "ports" } else { "addresses" };
    Some(match matching(&p) {
        Some(index) => {
            format!("packets match policy {index} of {}, those before it of {of} none has", p.policies)
        }
        None => format!("packets match none of {} policies, of {of} none has", p.policies),
    })
}
