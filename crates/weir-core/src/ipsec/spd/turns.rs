//! Two rule sets that take turns: the one no snapshot has any more gets the changes that happened since.
//!
//! A set that follows another by changes alone has a record of them ([`RuleSet::record`]); a fresh one has none.
//!
//! Promises: a change costs what its rules cost, twice; where somebody still has the other one, a copy of the
//! current one besides. More changes than a share of the rules are a fresh build.

use std::sync::Arc;

use super::classifier::Choices;
use super::table::{Rules, Search};
use super::{Layer, Order, PolicyIndex, RuleSet, Selector};
use crate::ipsec::sa::Direction;

/// Changes that never call for a fresh build.
const FEW: usize = 64;

/// Rules of a policy come or go.
#[derive(Clone, Debug)]
pub(super) struct RuleChange {
    pub(super) add: bool,
    /// Whether the change counts; not where rules only get another label.
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
    step: Step,
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
    /// Made by the set that took it first; the other one is then in the state that one was in.
    choices: Choices,
}

impl RuleTurns {
    pub(super) fn new(direction: Direction, search: Search) -> RuleTurns {
        let current = Arc::new(build(search, []));
        let (step, lagging) = (Step::default(), None);
        RuleTurns { direction, search, count: 0, step, afresh: false, current, lagging }
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
        if self.step.changes.len() > FEW.max(self.count / 4) {
            self.start_again(self.count);
        }
        if !self.afresh {
            self.step.changes.push(change);
        }
        true
    }

    /// Everything may be another, and comes to `count` rules.
    pub(super) fn start_again(&mut self, count: usize) {
        (self.count, self.afresh) = (count, true);
        self.step.changes.clear();
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
        } else if !self.step.changes.is_empty() {
            let mut step = Step { epochs, ..std::mem::take(&mut self.step) };
            let next = self.caught_up(&mut step);
            let was = std::mem::replace(&mut self.current, next);
            self.lagging = Some((was, step));
        }
    }

    /// The lagging set, or a copy of the current one, with `step` taken.
    fn caught_up(&mut self, step: &mut Step) -> Arc<RuleSet> {
        if let Some((mut set, mut missed)) = self.lagging.take()
            && let Some(next) = Arc::get_mut(&mut set)
        {
            missed.take(self.direction, next);
            step.take(self.direction, next);
            next.compile();
            // Its memory is there for the next changes.
            self.step = missed.cleared();
            return set;
        }
        let mut next = RuleSet::clone(&self.current);
        step.take(self.direction, &mut next);
        next.compile();
        Arc::new(next)
    }
}

impl Step {
    /// What is left for the next changes: memory for few.
    fn cleared(mut self) -> Step {
        self.changes.clear();
        self.changes.shrink_to(FEW);
        Step { changes: self.changes, epochs: None, choices: self.choices.cleared(FEW) }
    }

    fn take(&mut self, direction: Direction, set: &mut RuleSet) {
        self.choices.rewind();
        self.changes.iter().for_each(|change| change.perform(direction, set, &mut self.choices));
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

    fn perform(&self, direction: Direction, set: &mut RuleSet, choices: &mut Choices) {
        for (comes, selector, policy) in self.rules(direction) {
            if comes {
                set.insert_as(self.order, selector, policy, choices);
            } else {
                set.remove_as(self.order, selector, policy, choices);
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
    let mut set = set.with_secret(search.secret).with_layer(search.layer);
    set.compile();
    set
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipsec::spd::synthetic::{self, Family, Shape};
    use crate::random::SplitMix64;

    #[test]
    fn set_that_takes_what_it_missed_is_the_current_one_in_every_table_and_chain() {
        let of = |selector| Arc::new(Rules { outbound: vec![selector], inbound: Vec::new() });
        let all = synthetic::rules(Shape::Firewall, Family::V4, 600, 1);
        let all: Vec<Arc<Rules>> = all.into_iter().map(of).collect();
        let mut turns = RuleTurns::new(Direction::Out, Search { layer: Layer::Auto, secret: 7 });
        let mut there = vec![false; all.len()];
        let (mut scatter, mut held, mut chosen) = (SplitMix64::new(1), None, 0);
        for turn in 0..3000 {
            let slot = scatter.below(all.len() as u64) as usize;
            there[slot] = !there[slot];
            let (add, order, rules) = (there[slot], slot as Order, all[slot].clone());
            turns.note(RuleChange { add, counts: true, order, slot: slot as u32, rules });
            turns.publish(None, std::iter::empty());
            if turn % 50 == 0 {
                // Now and then one is a copy.
                held = Some(turns.current());
            } else if turn % 50 == 49 {
                let (lagging, missed) = turns.lagging.as_ref().expect("one lags");
                let (mut set, mut missed) = (RuleSet::clone(lagging), missed.clone());
                chosen += missed.choices.len();
                missed.take(Direction::Out, &mut set);
                set.compile();
                assert_eq!(format!("{set:?}"), format!("{:?}", turns.current), "turn {turn}");
            }
        }
        assert!(held.is_some() && chosen > 0 && turns.current.classifies(true));
    }
}
