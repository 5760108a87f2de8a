//! Policy rules: which may concern transit, so that this router cannot decide for the kernel.

use crate::wire::rtnetlink::{Rule, TABLE_DEFAULT, TABLE_LOCAL, TABLE_MAIN};

/// `FR_ACT_TO_TBL`.
const TO_TABLE: u8 = 1;

/// Whether packets that pass through may be looked up elsewhere than in the local table and the one mirrored.
pub(super) fn concerns(rule: &Rule, table: u32) -> bool {
    // Only packets of this host itself come in by `lo` or are bound to an output.
    if rule.output.is_some() || rule.input.as_deref() == Some("lo") {
        return false;
    }
    let whole = |prefix: Option<crate::route::Prefix>| prefix.is_none_or(|p| p.len() == 0);
    let always = rule.input.is_none() && whole(rule.from) && whole(rule.to) && !rule.more;
    let usual = [TABLE_LOCAL, TABLE_MAIN, TABLE_DEFAULT].contains(&rule.table) || rule.table == table;
    // Ports in a VRF are refused by themselves.
    !(rule.vrf || always && usual && rule.action == TO_TABLE)
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
