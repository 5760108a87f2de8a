//! Policy rules: which may concern transit, so that this router cannot decide for the kernel.

use super::Filter;
use crate::route::Prefix;
use crate::wire::rtnetlink::{Rule, TABLE_DEFAULT, TABLE_LOCAL, TABLE_MAIN};

/// `FR_ACT_TO_TBL`.
const TO_TABLE: u8 = 1;

/// Why packets of a family that pass through the ports on `devices` may be looked up elsewhere than in the local table and then the
/// one mirrored. `rules` are the family's.
pub(super) fn departure(rules: &[&Rule], filter: &Filter, devices: &[&str]) -> Option<String> {
    let of_vrfs = rules.iter().filter(|r| r.vrf).map(|r| r.priority).min();
    if filter.vrf && of_vrfs.is_none() {
        return Some("no policy rule sends VRFs to their tables (l3mdev)".to_owned());
    }
    let first_of_vrf = if filter.vrf { of_vrfs } else { None };
    rules.iter().find(|rule| concerns(rule, filter, devices, first_of_vrf)).map(|rule| describe(rule))
}

/// `first_of_vrf`: the priority of the rule that leads to the VRF's table, where that is the one mirrored.
fn concerns(rule: &Rule, filter: &Filter, devices: &[&str], first_of_vrf: Option<u32>) -> bool {
    // Only packets of this host itself come in by `lo` or are bound to an output.
    if rule.output.is_some() || rule.input.as_deref() == Some("lo") {
        return false;
    }
    // A rule that names a VRF holds for its members.
    if !filter.vrf && rule.input.as_deref().is_some_and(|input| !devices.contains(&input)) {
        return false;
    }
    let whole = |prefix: Option<Prefix>| prefix.is_none_or(|p| p.len() == 0);
    let always = rule.input.is_none() && whole(rule.from) && whole(rule.to) && !rule.more;
    if rule.vrf {
        return filter.vrf && !always;
    }
    // What the VRF's table lacks is the kernel's to look up, by whatever rules come after it.
    if first_of_vrf.is_some_and(|vrf| rule.priority > vrf) {
        return false;
    }
    let own = rule.table == TABLE_LOCAL || rule.table == filter.table;
    let usual = own || !filter.vrf && [TABLE_MAIN, TABLE_DEFAULT].contains(&rule.table);
    !(always && usual && rule.action == TO_TABLE)
}

/// A rule as `ip rule` shows it, as far as it is known.
pub(super) fn describe(rule: &Rule) -> String {
    let family = if rule.v4 { "IPv4" } else { "IPv6" };
    let from = rule.from.map_or("all".to_owned(), |p| p.to_string());
    let to = rule.to.map_or(String::new(), |p| format!(" to {p}"));
    let input = rule.input.as_ref().map_or(String::new(), |i| format!(" iif {i}"));
    let more = if rule.more { " and more" } else { "" };
    let does =
        if rule.action == TO_TABLE { format!("lookup {}", rule.table) } else { "another action".to_owned() };
    format!("{family} policy rule {}: from {from}{to}{input}{more} {does}", rule.priority)
}
