//! The SPD of a protected configuration: its policies, who answers, the flows its rules match, and values of it.
//!
//! Promises: rules and flows are the same in every run. The lab's packets are UDP: where most rules of a set are
//! of TCP, TCP and UDP change places in it, which leaves its shape as it is.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_core::ipsec::spd::synthetic::{self, Family as Numbers};
use weir_core::ipsec::spd::{
    AddressRange, Flow, Layer, LookupCounters, LookupSpec, PortRange, Selector, Way,
};
use weir_core::ipsec::{Action, Direction as Towards};
use weir_core::state::PolicySpec;
use weir_core::tables::Tables;
use weir_core::wire::protocol::{TCP, UDP};

use super::traffic::{FIRST_V4, FIRST_V6};
use crate::model::ipsec::Direction;
use crate::model::spd::{self, LookupBy, RuleSet};
use crate::model::{Family, LabError, Protection};
use crate::workload::MEMORY_FLOWS_MAX;

/// Its name in the tables.
pub const NAME: &str = "lab";
const SEED: u64 = 1;
/// Draws of flows before a set is said to have no more of them.
const DRAWS: u64 = 8;

/// Which of an SPD's directions packets ask.
pub fn towards(p: &Protection) -> Towards {
    if p.direction == Direction::In && !p.bypasses() { Towards::In } else { Towards::Out }
}

pub fn way(p: &Protection, family: Family) -> Way {
    Way::new(towards(p), family == Family::Inet)
}

pub fn lookup(p: &Protection, family: Family) -> LookupSpec {
    let layer = match p.spd.lookup {
        LookupBy::Gateway => Layer::Auto,
        LookupBy::Linear => Layer::Scan,
        LookupBy::Classifier | LookupBy::Cache => Layer::Classifier,
    };
    let mut spec = LookupSpec { layer, ..LookupSpec::default() };
    if p.spd.lookup == LookupBy::Cache {
        spec.caches[way(p, family) as usize] = Some(p.spd.buckets);
    }
    spec
}

/// Rules of a set in their order.
pub fn rules(set: RuleSet, family: Family) -> Vec<Selector> {
    let numbers = if family == Family::Inet { Numbers::V4 } else { Numbers::V6 };
    let mut rules = synthetic::rules(set.shape, numbers, set.count as usize, SEED);
    let of = |protocol| rules.iter().filter(|r| r.protocol == Some(protocol)).count();
    if of(TCP) > of(UDP) {
        for rule in &mut rules {
            rule.protocol = match rule.protocol {
                Some(TCP) => Some(UDP),
                Some(UDP) => Some(TCP),
                other => other,
            };
        }
    }
    rules
}

/// Up to `count` flows of UDP that rules match, no two alike in addresses and destination port: source ports are
/// free to vary.
pub fn flows(set: RuleSet, family: Family, count: u32) -> Result<Vec<Flow>, LabError> {
    let rules = rules(set, family);
    let (mut seen, mut flows) = (HashSet::new(), Vec::new());
    for seed in SEED..SEED + DRAWS {
        for flow in synthetic::flows(&rules, 2 * count as usize, seed) {
            let weir_core::ipsec::spd::Transport::Ports { destination: port, .. } = flow.transport else {
                continue;
            };
            let usable =
                flow.protocol == UDP && [flow.source, flow.destination].into_iter().all(is_elsewhere);
            if usable && flows.len() < count as usize && seen.insert((flow.source, flow.destination, port)) {
                flows.push(flow);
            }
        }
        if flows.len() == count as usize {
            break;
        }
    }
    match flows.is_empty() {
        true => {
            Err(LabError::new(format!("memory: rules {set}: none of them matches UDP: name another shape")))
        }
        false => Ok(flows),
    }
}

/// Says whether an address is neither on a wire of the device under test nor a gateway.
fn is_elsewhere(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => !matches!(a.octets(), [10, 10 | 20, 0, _] | [192, 0, 2, _]),
        IpAddr::V6(a) => a.segments()[0] != 0xfd00,
    }
}

/// The SPD's policies. `out` and `inbound` are names of SAs.
pub fn policies(p: &Protection, family: Family, out: &[String], inbound: &[String]) -> Vec<PolicySpec> {
    match p.spd.rules {
        None => (1..=p.policies).map(|n| listed(p, n, out, inbound)).collect(),
        Some(set) => {
            let rules = rules(set, family);
            rules.iter().enumerate().map(|(n, rule)| of_rule(p, n, rule, out, inbound)).collect()
        }
    }
}

/// The index of a policy packets need: churn leaves it alone.
pub fn needed(p: &Protection) -> usize {
    match (p.spd.rules, p.spd.matching) {
        (None, Some(matching)) => matching as usize - 1,
        _ => p.policies as usize - 1,
    }
}

fn action(p: &Protection) -> Action {
    match p.spd.action {
        spd::Action::Protect => Action::Protect,
        spd::Action::Bypass => Action::Bypass,
    }
}

/// Policies of addresses no packet may have (RFC 1122 3.2.1.3), and one that matches every packet sent, unless none
/// is to match.
fn listed(p: &Protection, n: u32, out: &[String], inbound: &[String]) -> PolicySpec {
    let matches = !p.matches_nothing() && n as usize == needed(p) + 1;
    let one = |address: IpAddr| AddressRange { first: address, last: address };
    let nobody = || vec![one(Ipv4Addr::from(n).into()), one(Ipv6Addr::from(u128::from(n) << 64).into())];
    let remote = if matches { Vec::new() } else { nobody() };
    // those behind it would be hidden by one that matches everything
    let (local, remote) = match (matches && n < p.policies, towards(p)) {
        (true, Towards::Out) => (sources(), remote),
        (true, Towards::In) => (Vec::new(), sources()),
        (false, _) => (Vec::new(), remote),
    };
    let chosen =
        |sas: &[String]| if matches && action(p) == Action::Protect { sas.to_vec() } else { Vec::new() };
    PolicySpec {
        name: if matches { "all".into() } else { format!("nobody-{n}") },
        direction: None,
        local,
        remote,
        protocol: None,
        local_ports: PortRange::ANY,
        remote_ports: PortRange::ANY,
        icmp: PortRange::ANY,
        action: if matches { action(p) } else { Action::Discard },
        out: chosen(out),
        inbound: chosen(inbound),
    }
}

/// Where packets come from.
fn sources() -> Vec<AddressRange> {
    let last = (u32::from(FIRST_V4) + MEMORY_FLOWS_MAX, u128::from(FIRST_V6) + u128::from(MEMORY_FLOWS_MAX));
    vec![
        AddressRange { first: FIRST_V4.into(), last: Ipv4Addr::from(last.0).into() },
        AddressRange { first: FIRST_V6.into(), last: Ipv6Addr::from(last.1).into() },
    ]
}

fn of_rule(p: &Protection, n: usize, rule: &Selector, out: &[String], inbound: &[String]) -> PolicySpec {
    let towards = towards(p);
    // the one for everything is of both directions: an SA nobody uses is refused
    let both = n == needed(p);
    let (from, to) = ((rule.source, rule.source_ports), (rule.destination, rule.destination_ports));
    let (local, remote) = if towards == Towards::Out { (from, to) } else { (to, from) };
    let chosen = |sas: &[String], direction| match both || towards == direction {
        true if action(p) == Action::Protect => sas.to_vec(),
        _ => Vec::new(),
    };
    PolicySpec {
        name: format!("rule-{}", n + 1),
        direction: (!both).then_some(towards),
        local: vec![local.0],
        remote: vec![remote.0],
        protocol: rule.protocol,
        local_ports: local.1,
        remote_ports: remote.1,
        icmp: rule.icmp,
        action: action(p),
        out: chosen(out, Towards::Out),
        inbound: chosen(inbound, Towards::In),
    }
}

/// SPD lookup sources, in percent of all packets asked about, and what the cache holds.
pub fn metrics(
    p: &Protection,
    family: Family,
    (tables, counted): (&Tables, &LookupCounters),
    metrics: &mut BTreeMap<String, f64>,
) {
    let way = way(p, family);
    let c = counted.way(way);
    let asked = c.first + c.outside + c.hit + c.classified + c.scanned;
    let mut share = |name: &str, n: u64| {
        if asked > 0 {
            metrics.insert(format!("spd_{name}_percent"), 100.0 * n as f64 / asked as f64);
        }
    };
    share("first", c.first);
    share("outside", c.outside);
    share("classified", c.classified);
    share("scanned", c.scanned);
    if p.spd.lookup == LookupBy::Cache {
        share("hit", c.hit);
        share("collision", c.collision);
        share("stale", c.stale);
    }
    let Some(ipsec) = tables.ipsec.as_deref() else { return };
    if let (Some(spd), LookupBy::Classifier | LookupBy::Cache) = (ipsec.spds.first(), p.spd.lookup) {
        let [v4, v6] = spd.rules(towards(p)).stats();
        let stats = if family == Family::Inet { v4 } else { v6 };
        metrics.insert("spd_bound_comparisons".into(), stats.bound as f64);
    }
    if let Some(cache) = ipsec.caches.get(way) {
        metrics.insert("cache_occupied_buckets".into(), cache.occupied() as f64);
    }
}

#[cfg(all(test, feature = "ipsec"))]
mod tests;
