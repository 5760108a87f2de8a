//! SPDs of the next snapshot: a table for each, the flow caches they are asked through.
//!
//! Promises: a snapshot shares what no change was about, and a changed policy costs what one policy costs.
//! Flow caches are made when their sizes are configured, keyed with a number nobody else knows, kept while
//! they stay the same, and gone with the last SPD; with other caches every SPD has other epochs, for those of
//! before mean nothing in them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::gateway::Sas;
use crate::ipsec::spd::table::{Rules, Search, SpdTable};
use crate::ipsec::spd::{LookupSpec, PolicyCounters};
use crate::ipsec::{Direction, FlowCaches, Policy, Spd};
use crate::state::{Action, IpsecAction, IpsecSpec, PolicySpec, SpdSpec};

/// Changes of one SPD that are never made all at once.
const FEW: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Spds {
    /// The SPDs by name: there are few, which are found sooner by comparing than by a hash.
    tables: BTreeMap<String, SpdTable>,
    pub(super) caches: Arc<FlowCaches>,
    /// What `caches` were made of.
    made: LookupSpec,
    /// How rules are searched: the secret is drawn once.
    search: Option<Search>,
}

impl Spds {
    /// Makes SPDs what `new` says; `actions` are what it took from the wish before.
    pub(super) fn follow(
        &mut self,
        actions: &[Action],
        new: &IpsecSpec,
        sas: Sas<'_>,
        random: &mut dyn FnMut() -> u64,
    ) {
        let search = self.fit(new, random);
        let there: HashSet<&str> = new.spds.iter().map(|s| s.name.as_str()).collect();
        self.tables.retain(|name, _| there.contains(name.as_str()));
        let mut by_spd: HashMap<&str, Vec<&IpsecAction>> = HashMap::new();
        for action in actions {
            if let Action::Ipsec(action) = action
                && let Some(spd) = changed_policies(action)
            {
                by_spd.entry(spd).or_default().push(action);
            }
        }
        for spec in &new.spds {
            let fresh = || SpdTable::new(&spec.name, spec.default, search);
            let table = self.tables.entry(spec.name.clone()).or_insert_with(fresh);
            table.set_default(spec.default);
            let actions = by_spd.remove(spec.name.as_str()).unwrap_or_default();
            if actions.len() > FEW.max(spec.policies.len() / 4) {
                set_all(table, spec, sas);
            } else {
                actions.into_iter().for_each(|action| perform(table, action, sas));
            }
        }
    }

    /// Caches and search as asked for: none where there is nothing to ask.
    fn fit(&mut self, new: &IpsecSpec, random: &mut dyn FnMut() -> u64) -> Search {
        let wanted = if new.spds.is_empty() { LookupSpec::default() } else { new.lookup };
        let sizes = |spec: &LookupSpec| spec.caches.map(|n| n.map(u32::next_power_of_two));
        if sizes(&wanted) != sizes(&self.made) {
            // No epoch is given twice, so that rules may go on with the record of their changes.
            let last = u64::MAX - self.caches.epochs_left();
            self.caches = Arc::new(FlowCaches::new(&wanted, random()).after_epoch(last));
            self.tables.values_mut().for_each(SpdTable::renew);
        }
        self.made = wanted;
        if let Some(search) = self.search.filter(|search| search.layer == wanted.layer) {
            return search;
        }
        let secret = self.search.map_or_else(random, |search| search.secret);
        let search = Search { layer: wanted.layer, secret };
        self.tables.values_mut().for_each(|table| table.set_search(search));
        *self.search.insert(search)
    }

    /// Gives every policy the SAs its names mean now.
    pub(super) fn refresh(&mut self, spec: &IpsecSpec, sas: Sas<'_>) {
        for spd in &spec.spds {
            let Some(table) = self.tables.get_mut(&spd.name) else { continue };
            for policy in spd.policies.iter().filter(|p| !p.out.is_empty() || !p.inbound.is_empty()) {
                if let Some(was) = table.policy(&policy.name) {
                    let is = sas.policy(&spd.name, policy, was.counters.clone());
                    if !same_sas(was, &is) {
                        table.set_policy(is);
                    }
                }
            }
        }
    }

    pub(super) fn publish(&mut self, spec: &IpsecSpec) -> Vec<Arc<Spd>> {
        // Each table may take one for each direction.
        if self.caches.epochs_left() < 2 * self.tables.len() as u64 {
            self.caches = Arc::new(self.caches.renewed());
            self.tables.values_mut().for_each(SpdTable::begin_again);
        }
        let publish = |s: &SpdSpec| Some(self.tables.get_mut(&s.name)?.publish(&self.caches));
        spec.spds.iter().filter_map(publish).collect()
    }

    pub(super) fn table(&self, spd: &str) -> Option<&SpdTable> {
        self.tables.get(spd)
    }

    pub(super) fn table_mut(&mut self, spd: &str) -> Option<&mut SpdTable> {
        self.tables.get_mut(spd)
    }

    pub(super) fn counters(&self, spd: &str, policy: &str) -> Option<&Arc<PolicyCounters>> {
        Some(&self.tables.get(spd)?.policy(policy)?.counters)
    }
}

/// The SPD an action changes policies of.
fn changed_policies(action: &IpsecAction) -> Option<&str> {
    match action {
        IpsecAction::RemovePolicy { spd, .. }
        | IpsecAction::ChangePolicy { spd, .. }
        | IpsecAction::OrderPolicies { spd, .. }
        | IpsecAction::AddPolicy { spd, .. } => Some(spd),
        _ => None,
    }
}

fn perform(table: &mut SpdTable, action: &IpsecAction, sas: Sas<'_>) {
    match action {
        IpsecAction::RemovePolicy { policy, .. } => _ = table.remove(&policy.name),
        IpsecAction::ChangePolicy { spd, change } => replace(table, spd, &change.new, sas),
        IpsecAction::OrderPolicies { order, .. } => table.reorder(order.iter().map(String::as_str)),
        IpsecAction::AddPolicy { spd, at, policy } => insert(table, spd, *at, policy, sas),
        _ => {}
    }
}

/// Puts a policy before number `at`.
pub(super) fn insert(table: &mut SpdTable, spd: &str, at: usize, policy: &PolicySpec, sas: Sas<'_>) {
    table.insert(at, sas.policy(spd, policy, Arc::default()), rules(policy));
}

/// Puts a policy in the place of the one of its name, whose counters it goes on with.
pub(super) fn replace(table: &mut SpdTable, spd: &str, policy: &PolicySpec, sas: Sas<'_>) {
    let counters = table.policy(&policy.name).map(|was| was.counters.clone()).unwrap_or_default();
    table.replace(sas.policy(spd, policy, counters), rules(policy));
}

fn set_all(table: &mut SpdTable, spec: &SpdSpec, sas: Sas<'_>) {
    let all = spec.policies.iter().map(|policy| {
        let counters = table.policy(&policy.name).map(|was| was.counters.clone()).unwrap_or_default();
        (sas.policy(&spec.name, policy, counters), rules(policy))
    });
    let all: Vec<(Policy, Rules)> = all.collect();
    table.set_all(all);
}

fn rules(policy: &PolicySpec) -> Rules {
    Rules { outbound: policy.selectors(Direction::Out), inbound: policy.selectors(Direction::In) }
}

fn same_sas(a: &Policy, b: &Policy) -> bool {
    a.inbound == b.inbound
        && a.out.len() == b.out.len()
        && a.out.iter().zip(&b.out).all(|(a, b)| Arc::ptr_eq(a, b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipsec::spd::Way;

    #[test]
    fn caches_are_new_and_every_spd_has_new_epochs_before_epochs_run_out() {
        let spd = |name: &str| SpdSpec {
            name: name.into(),
            ports: Vec::new(),
            default: crate::ipsec::Action::Discard,
            policies: Default::default(),
            route_mode: None,
        };
        let lookup = LookupSpec { caches: [Some(4); 4], ..LookupSpec::default() };
        let spec = IpsecSpec { lookup, spds: vec![spd("a"), spd("b")], ..IpsecSpec::default() };
        let mut spds = Spds::default();
        let search = spds.fit(&spec, &mut || 7);
        for spd in &spec.spds {
            spds.tables.insert(spd.name.clone(), SpdTable::new(&spd.name, spd.default, search));
        }
        let publish =
            |spds: &mut Spds| -> Vec<_> { spds.publish(&spec).iter().map(|spd| spd.epochs).collect() };
        assert_eq!(publish(&mut spds), [[1, 2], [3, 4]]);
        let caches = spds.caches.clone();
        assert_eq!(publish(&mut spds), [[1, 2], [3, 4]], "nothing has changed");
        assert!(Arc::ptr_eq(&caches, &spds.caches));
        spds.caches = Arc::new(caches.renewed().after_epoch(u64::MAX - 3));
        assert_eq!(publish(&mut spds), [[1, 2], [3, 4]]);
        assert_eq!(spds.caches.epochs_left(), u64::MAX - 4, "begun again");
        let buckets = |way| spds.caches.get(way).map(|cache| (cache.buckets(), cache.occupied()));
        assert_eq!(Way::ALL.map(buckets), [Some((4, 0)); 4]);
    }
}
