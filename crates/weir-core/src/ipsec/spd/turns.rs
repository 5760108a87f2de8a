//! Two rule sets that take turns: the one no snapshot has any more gets the changes that happened since.
//!
//! A set that follows another by changes alone has a record of them ([`RuleSet::record`]); a fresh one has none.
//!
//! Promises: a change costs what its rules cost, twice; where somebody still has the other one, a copy of the
//! current one besides. More changes than a share of the rules are a fresh build.

use std::sync::Arc;

use super::table::{Rules, Search};
use super::{Layer, Order, PolicyIndex, RuleSet, Selector};
use crate::ipsec::sa::Direction;

/// Changes that never call for a fresh build.
const FEW: usize = 64;

/// Rules of a policy come or go.
#[derive(Clone, Debug)]
pub(super) struct RuleChange {
    pub(super) add: bool,
    /// Not where they only get another label.
    pub(super) counts: bool,
    pub(super) order: Order,
    pub(super) slot: u32,
    pub(super) rules: Arc<Rules>,
}

#[derive(Debug)]
pub(super) struct RuleTurns {
    direction: Direction,
    search: Search,
    /// Rules there are with all changes.
    count: usize,
    /// Changes since `current`.
    changes: Vec<RuleChange>,
    /// They are not worth following one by one.
    afresh: bool,
    current: Arc<RuleSet>,
    /// The one before `current`, and what led from it to that.
    lagging: Option<(Arc<RuleSet>, Step)>,
}

/// Changes, and the epochs they lead from and to, where they are all that differs between these.
#[derive(Clone, Debug, Default)]
struct Step {
    changes: Vec<RuleChange>,
    epochs: Option<(u64, u64)>,
}

impl RuleTurns {
    pub(super) fn new(direction: Direction, search: Search) -> RuleTurns {
        let current = Arc::new(build(search, []));
        let (changes, lagging) = (Vec::new(), None);
        RuleTurns { direction, search, count: 0, changes, afresh: false, current, lagging }
    }

    pub(super) fn current(&self) -> Arc<RuleSet> {
        self.current.clone()
    }

    /// Rules there are with all changes.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Notes a change; `false` where it has no rules here.
    pub(super) fn note(&mut self, change: RuleChange) -> bool {
        let rules = change.rules.of(self.direction).len();
        if rules == 0 {
            return false;
        }
        self.count = if change.add { self.count + rules } else { self.count.saturating_sub(rules) };
        if self.changes.len() > FEW.max(self.count / 4) {
            self.start_again(self.count);
        }
        if !self.afresh {
            self.changes.push(change);
        }
        true
    }

    /// Everything may be another, and comes to `count` rules.
    pub(super) fn start_again(&mut self, count: usize) {
        (self.count, self.afresh) = (count, true);
        self.changes.clear();
    }

    pub(super) fn set_search(&mut self, search: Search) {
        self.search = search;
        self.start_again(self.count);
    }

    /// Makes `current` what all changes make of it; `all` is what there is now, in order, and `epochs` what the
    /// changes lead from and to, if nothing else does.
    pub(super) fn publish<'a>(
        &mut self,
        epochs: Option<(u64, u64)>,
        all: impl Iterator<Item = (Order, u32, &'a Rules)>,
    ) {
        if std::mem::take(&mut self.afresh) {
            let of = |(order, slot, rules): (Order, u32, &'a Rules)| (order, slot, rules.of(self.direction));
            self.lagging = None;
            self.current = Arc::new(build(self.search, all.map(of)));
        } else if !self.changes.is_empty() {
            let step = Step { changes: std::mem::take(&mut self.changes), epochs };
            let next = self.caught_up(&step);
            let was = std::mem::replace(&mut self.current, next);
            self.lagging = Some((was, step));
        }
    }

    /// The lagging set, or a copy of the current one, with `step` taken.
    fn caught_up(&mut self, step: &Step) -> Arc<RuleSet> {
        if let Some((mut set, missed)) = self.lagging.take()
            && let Some(next) = Arc::get_mut(&mut set)
        {
            missed.take(self.direction, next);
            step.take(self.direction, next);
            return set;
        }
        let mut next = RuleSet::clone(&self.current);
        step.take(self.direction, &mut next);
        Arc::new(next)
    }
}

impl Step {
    fn take(&self, direction: Direction, set: &mut RuleSet) {
        self.changes.iter().for_each(|change| change.perform(direction, set));
        if let Some(epochs) = self.epochs {
            let changes = self.changes.iter().filter(|change| change.counts);
            set.record(epochs, changes.flat_map(|change| change.rules(direction)));
        }
    }
}

impl RuleChange {
    /// Whether each comes, and whose it is.
    fn rules(&self, direction: Direction) -> impl Iterator<Item = (bool, &Selector, PolicyIndex)> {
        self.rules.of(direction).iter().map(|selector| (self.add, selector, PolicyIndex(self.slot)))
    }

    fn perform(&self, direction: Direction, set: &mut RuleSet) {
        for (comes, selector, policy) in self.rules(direction) {
            if comes {
                set.insert(self.order, selector, policy);
            } else {
                set.remove(self.order, selector, policy);
            }
        }
    }
}

/// All rules at once; the search is made when all are there.
fn build<'a>(search: Search, all: impl IntoIterator<Item = (Order, u32, &'a [Selector])>) -> RuleSet {
    let mut set = RuleSet::default().with_layer(Layer::Scan);
    for (order, slot, rules) in all {
        rules.iter().for_each(|selector| set.insert(order, selector, PolicyIndex(slot)));
    }
    set.with_secret(search.secret).with_layer(search.layer)
}
