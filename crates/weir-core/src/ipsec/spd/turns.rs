//! Two rule sets that take turns: the one no snapshot has any more gets the changes that happened since.
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
    /// The one before `current`, and what changed between the two.
    lagging: Option<(Arc<RuleSet>, Vec<RuleChange>)>,
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

    /// Makes `current` what all changes make of it; `all` is what there is now, in order.
    pub(super) fn publish<'a>(&mut self, all: impl Iterator<Item = (Order, u32, &'a Rules)>) {
        if std::mem::take(&mut self.afresh) {
            let of = |(order, slot, rules): (Order, u32, &'a Rules)| (order, slot, rules.of(self.direction));
            self.lagging = None;
            self.current = Arc::new(build(self.search, all.map(of)));
        } else if !self.changes.is_empty() {
            let changes = std::mem::take(&mut self.changes);
            let next = self.caught_up(&changes);
            let was = std::mem::replace(&mut self.current, next);
            self.lagging = Some((was, changes));
        }
    }

    /// The lagging set, or a copy of the current one, with `changes` in it.
    fn caught_up(&mut self, changes: &[RuleChange]) -> Arc<RuleSet> {
        let spare = self.lagging.take().and_then(|(set, missed)| Some((Arc::try_unwrap(set).ok()?, missed)));
        let (mut next, missed) = spare.unwrap_or_else(|| (RuleSet::clone(&self.current), Vec::new()));
        missed.iter().chain(changes).for_each(|change| change.perform(self.direction, &mut next));
        Arc::new(next)
    }
}

impl RuleChange {
    fn perform(&self, direction: Direction, set: &mut RuleSet) {
        for selector in self.rules.of(direction) {
            if self.add {
                set.insert(self.order, selector, PolicyIndex(self.slot));
            } else {
                set.remove(self.order, selector, PolicyIndex(self.slot));
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
