//! Why established flows are not all accepted without more, and the line that lets them be.
//!
//! Promises: the chain and the rule are named, and the line to write where one line is enough. Refuses: a line for chains
//! in front of conntrack, which cannot know an established flow, and for the older iptables.

use std::fmt;

use super::{Older, RuleLocation};
use crate::wire::nftables::{Family, Hook};

/// What stands in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// None: the older iptables.
    pub place: Option<RuleLocation>,
    /// The base chain by which packets come there, with its hook.
    pub base: Option<(RuleLocation, Hook)>,
    pub why: Why,
    /// The line to write.
    pub remedy: Option<String>,
}

/// The reason of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// Drop, reject or queue.
    Drops(String),
    /// No rule accepts all of them, and the policy is drop.
    Policy,
    /// It does more than decide, or is not understood.
    Statement(String),
    /// A rule that only counts.
    Counts,
    /// A set that it needs was not read, or is not there.
    Set(String),
    /// A chain that is jumped to is not there, or jumps go in a circle.
    Chain(String),
    /// More jumps than are followed.
    Depth,
    /// The older iptables, whose rules are not read.
    Older(Older),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Drops(what) => write!(f, "`{what}` may meet packets of established flows"),
            Why::Policy => {
                f.write_str("no rule accepts every packet of established flows, and the policy is drop")
            }
            Why::Statement(what) => {
                write!(f, "`{what}` meets packets of established flows, and is no decision about the flow")
            }
            Why::Counts => f.write_str("a rule that only counts meets packets of established flows"),
            Why::Set(set) => write!(f, "what set {set} has for packets of established flows is not known"),
            Why::Chain(chain) => write!(f, "the jump to chain {chain} cannot be followed"),
            Why::Depth => f.write_str("jumps go deeper than is followed"),
            Why::Older(Older { v6, table, chain }) => write!(
                f,
                "ip{}tables (legacy), table {table}, chain {chain}: it has rules, which are not read",
                if *v6 { "6" } else { "" }
            ),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{place}")?;
            match &self.base {
                Some((base, hook)) if base.chain != place.chain => {
                    write!(f, " (from {} at {hook}): ", base.chain)?;
                }
                Some((_, hook)) => write!(f, " (at {hook}): ")?,
                None => f.write_str(": ")?,
            }
        }
        self.why.fmt(f)
    }
}

/// The line that makes a base chain accept established flows first; none where its packets have no state yet.
pub(super) fn remedy(base: &RuleLocation, hook: Hook, tracked: bool) -> Option<String> {
    if !tracked {
        return None;
    }
    let RuleLocation { family, table, chain, .. } = base;
    if is_iptables(base, hook) {
        let program = if *family == Family::Ip6 { "ip6tables" } else { "iptables" };
        let table = if table == "filter" { String::new() } else { format!("-t {table} ") };
        return Some(format!(
            "{program} {table}-I {chain} 1 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
        ));
    }
    Some(format!("nft insert rule {family} {table} {chain} ct state established,related accept"))
}

/// `iptables-nft` names its chains after the hooks, in capitals.
fn is_iptables(base: &RuleLocation, hook: Hook) -> bool {
    let tables = ["filter", "mangle", "raw", "security"];
    let families = [Family::Ip, Family::Ip6];
    families.contains(&base.family)
        && tables.contains(&base.table.as_str())
        && base.chain == hook.to_string().to_uppercase()
}
