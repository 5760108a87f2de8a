//! Policy rules: which may concern transit, so that this router cannot decide for the kernel.
//!
//! ```text
//! from 10.1.0.0/24 lookup 7     packets to the prefixes of table 7 only: those are the kernel's; with a default route in it
//!                               any packet may be concerned: the whole family is the kernel's
//! to 10.9.0.0/16 lookup 7       packets to 10.9.0.0/16 only: that prefix is the kernel's, where table 7 has any
//! ```

use std::collections::{BTreeMap, BTreeSet};

use super::Filter;
use super::tables::OtherTables;
use crate::route::Prefix;
use crate::wire::rtnetlink::{Rule, TABLE_DEFAULT, TABLE_LOCAL, TABLE_MAIN};

/// `FR_ACT_TO_TBL`.
const TO_TABLE: u8 = 1;

/// Destinations of one family that rules name: each is a lookup of the mirror and an entry of the kernel's trie. With more
/// of them the family is the kernel's.
const DESTINATIONS_MAX: usize = 1024;

/// What of a family may be looked up elsewhere than in the local table and then the one mirrored.
#[derive(Debug, Default)]
pub(super) struct Departures {
    /// Why any packet may be.
    pub(super) whole: Option<String>,
    /// Destinations whose packets may be, with the rule that says so.
    pub(super) to: BTreeMap<Prefix, String>,
}

/// The priority of the rule that leads to the tables of VRFs.
fn of_vrfs(rules: &[&Rule]) -> Option<u32> {
    rules.iter().filter(|r| r.vrf).map(|r| r.priority).min()
}

/// Tables to which rules of a family lead that may concern packets through the ports on `devices`, but for those that are
/// mirrored.
pub(super) fn other_tables(rules: &[&Rule], filter: &Filter, devices: &[&str]) -> BTreeSet<u32> {
    let first_of_vrf = of_vrfs(rules).filter(|_| filter.vrf);
    let concerned = rules.iter().filter(|rule| concerns(rule, filter, devices, first_of_vrf));
    concerned.filter_map(|rule| other_table(rule, filter)).collect()
}

/// The table a rule leads to, where that is another than those that are mirrored.
fn other_table(rule: &Rule, filter: &Filter) -> Option<u32> {
    let other = !rule.vrf && rule.action == TO_TABLE && ![TABLE_LOCAL, filter.table].contains(&rule.table);
    other.then_some(rule.table)
}

/// Which packets of a family that pass through the ports on `devices` are concerned. `rules` are the family's.
pub(super) fn departures(
    rules: &[&Rule],
    filter: &Filter,
    devices: &[&str],
    others: &OtherTables,
) -> Departures {
    let of_vrfs = of_vrfs(rules);
    if filter.vrf && of_vrfs.is_none() {
        let whole = Some("no policy rule sends VRFs to their tables (l3mdev)".to_owned());
        return Departures { whole, ..Departures::default() };
    }
    let first_of_vrf = of_vrfs.filter(|_| filter.vrf);
    // What no rule names must be looked up in the table mirrored, by a rule for everything.
    let leads = |r: &&Rule| is_for_everything(r) && !r.vrf && r.action == TO_TABLE && r.table == filter.table;
    let others_are_mirrored = filter.vrf || rules.iter().any(leads);
    let mut departures = Departures::default();
    for rule in rules.iter().filter(|rule| concerns(rule, filter, devices, first_of_vrf)) {
        match concerned(rule, filter, others) {
            Concerned::To(prefixes) if others_are_mirrored => {
                for to in prefixes {
                    departures.to.entry(to).or_insert_with(|| describe(rule));
                }
            }
            _ => _ = departures.whole.get_or_insert_with(|| describe(rule)),
        }
    }
    let (named, first) = (departures.to.len(), departures.to.values().next());
    if let (Some(first), true) = (first, named > DESTINATIONS_MAX) {
        let many = format!("{first}, and rules for {} other destinations", named - 1);
        departures.whole.get_or_insert(many);
    }
    if departures.whole.is_some() {
        departures.to.clear();
    }
    departures
}

/// Which packets a rule may concern.
enum Concerned {
    All,
    To(Vec<Prefix>),
}

fn concerned(rule: &Rule, filter: &Filter, others: &OtherTables) -> Concerned {
    let of_family = |prefix: &Prefix| prefix.addr().is_ipv4() == rule.v4;
    let of_table = other_table(rule, filter).and_then(|table| others.prefixes(table));
    let of_table: Option<Vec<Prefix>> = of_table.map(|all| all.filter(of_family).collect());
    match (destination(rule), of_table) {
        // In a table without routes the search finds nothing and goes on.
        (_, Some(prefixes)) if prefixes.is_empty() => Concerned::To(prefixes),
        (Some(to), _) => Concerned::To(vec![to]),
        (None, Some(prefixes)) if prefixes.iter().all(|p| p.len() > 0) => Concerned::To(prefixes),
        (None, _) => Concerned::All,
    }
}

/// The destination a rule is only about, whatever else it asks of a packet.
fn destination(rule: &Rule) -> Option<Prefix> {
    rule.to.filter(|to| to.len() > 0 && !rule.inverted && !rule.vrf)
}

fn is_for_everything(rule: &Rule) -> bool {
    let whole = |prefix: Option<Prefix>| prefix.is_none_or(|p| p.len() == 0);
    rule.input.is_none() && rule.output.is_none() && whole(rule.from) && whole(rule.to) && !rule.more
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
    let always = is_for_everything(rule);
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
