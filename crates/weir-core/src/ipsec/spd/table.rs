//! The owner of one SPD: policies go in, snapshots come out.
//!
//! ```text
//! publish n     A is current, B lags by the changes of n
//! publish n+1   nobody holds B ─► bring B up to date, B is current, A lags by the changes of n+1
//!               somebody holds B ─► leave it to them, copy A (a pointer a policy, and its rules), go on with that
//! ```
//!
//! The list of policies and the rules of each direction take turns by themselves, so that a change of one
//! leaves the others shared. A policy has a slot ([`PolicyIndex`]), by which it is found, and its rules a label
//! ([`Order`]), by which they are sorted: labels are far apart, one between two others is made by halving their
//! distance, and where that has become too small, a few around are labelled again.
//!
//! Promises: a snapshot answers as the ordered list does that was there when it was published; a changed policy
//! costs what its rules cost, however many there are. A direction's epoch changes with each change of what its
//! rules are or of their order, and with the default; not with labels, nor with a policy's action and SAs, which
//! are found by its slot. Many changes at once are a fresh build instead.

use std::collections::HashMap;
use std::sync::Arc;

use super::order::{Labels, Moved};
use super::turns::{RuleChange, RuleTurns};
use super::{Action, Layer, Policy, PolicyIndex, Selector, Spd};
use crate::ipsec::flow_cache::FlowCaches;
use crate::ipsec::sa::Direction;

/// Changes that never call for a fresh list.
const FEW: usize = 64;

const BOTH: [Direction; 2] = [Direction::In, Direction::Out];

/// A policy's rules, outbound and inbound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    pub outbound: Vec<Selector>,
    pub inbound: Vec<Selector>,
}

impl Rules {
    pub fn of(&self, direction: Direction) -> &[Selector] {
        match direction {
            Direction::Out => &self.outbound,
            Direction::In => &self.inbound,
        }
    }
}

/// How rules are searched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Search {
    pub layer: Layer,
    /// Keys the hashes of rules: nobody else may know it.
    pub secret: u64,
}

#[derive(Clone, Debug)]
struct PolicyEntry {
    policy: Arc<Policy>,
    rules: Arc<Rules>,
}

/// One SPD.
#[derive(Debug)]
pub struct SpdTable {
    name: String,
    default: Action,
    /// The policies by [`PolicyIndex`].
    slots: Vec<Option<PolicyEntry>>,
    free: Vec<u32>,
    by_name: HashMap<String, u32>,
    order: Labels,
    /// The rules of each [`Direction`].
    rules: [RuleTurns; 2],
    /// What became of the rules of a direction since `current`.
    rules_change: [RulesChange; 2],
    epochs: [u64; 2],
    /// Policies by slot that differ from those of `current`; `None` where too many do.
    changes: Option<Changes>,
    /// Anything differs from `current`.
    changed: bool,
    current: Arc<Spd>,
    /// The one before `current`, and what changed between the two.
    lagging: Option<(Arc<Spd>, Changes)>,
    /// Held by workers when their turn came: kept, so that no worker is the last to hold one.
    retired: Vec<Arc<Spd>>,
    /// Who has a slot nobody has.
    nobody: Arc<Policy>,
}

/// What rules are to those of before, by what they mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum RulesChange {
    #[default]
    None,
    /// They follow from them by changes noted one by one.
    Incremental,
    Replaced,
}

type Changes = Vec<(PolicyIndex, Arc<Policy>)>;

/// Slots that have rules in a direction, in order, and their rules.
type Sequence = Vec<(u32, Arc<Rules>)>;

impl SpdTable {
    /// An SPD without policies.
    pub fn new(name: &str, default: Action, search: Search) -> SpdTable {
        let rules = BOTH.map(|direction| RuleTurns::new(direction, search));
        let (out, inbound) = (Vec::new(), Vec::new());
        let nobody =
            Policy { name: String::new(), action: Action::Discard, out, inbound, counters: Arc::default() };
        let [inbound, outbound] = rules.each_ref().map(RuleTurns::current);
        let (policies, epochs) = (Vec::new(), [0; 2]);
        let empty = Spd { name: name.to_string(), policies, outbound, inbound, default, epochs };
        SpdTable {
            name: name.to_string(),
            default,
            slots: Vec::new(),
            free: Vec::new(),
            by_name: HashMap::new(),
            order: Labels::default(),
            rules,
            rules_change: [RulesChange::Replaced; 2],
            epochs,
            changes: Some(Vec::new()),
            changed: true,
            current: Arc::new(empty),
            lagging: None,
            retired: Vec::new(),
            nobody: Arc::new(nobody),
        }
    }

    pub fn len(&self) -> usize {
        self.order.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The policy of a name, as it is now.
    pub fn policy(&self, name: &str) -> Option<&Arc<Policy>> {
        let slot = self.slots[*self.by_name.get(name)? as usize].as_ref()?;
        Some(&slot.policy)
    }

    /// Its number in the order.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.order.position(*self.by_name.get(name)?)
    }

    /// Policies come to this many rules in a direction.
    pub fn rules(&self, direction: Direction) -> usize {
        self.rules[direction as usize].count()
    }

    /// Puts a policy before number `at`, or last where there are fewer; one of its name leaves first.
    pub fn insert(&mut self, at: usize, policy: Policy, rules: Rules) {
        self.remove(&policy.name);
        let (policy, rules) = (Arc::new(policy), Arc::new(rules));
        let slot = self.take(policy.clone(), rules.clone());
        let moved = self.order.insert(at.min(self.len()), slot);
        self.relabel(&moved);
        BOTH.into_iter().for_each(|direction| self.note(direction, true, slot, &rules));
        self.set(slot, policy);
    }

    /// Takes a policy out: the number it had.
    pub fn remove(&mut self, name: &str) -> Option<usize> {
        let slot = self.by_name.remove(name)?;
        if let Some(was) = self.slots[slot as usize].take() {
            BOTH.into_iter().for_each(|direction| self.note(direction, false, slot, &was.rules));
        }
        let at = self.order.remove(slot);
        // The next policy may have the slot at once: what a cache has of it is of an epoch that ends here, for
        // every direction the policy had rules for, and snapshots of that epoch have the old policy there.
        self.free.push(slot);
        self.set(slot, self.nobody.clone());
        at
    }

    /// Puts a policy in the place of the one of its name; whether there was one.
    pub fn replace(&mut self, policy: Policy, rules: Rules) -> bool {
        let Some(&slot) = self.by_name.get(&policy.name) else { return false };
        let (policy, rules) = (Arc::new(policy), Arc::new(rules));
        let fresh = PolicyEntry { policy: policy.clone(), rules: rules.clone() };
        if let Some(was) = self.slots[slot as usize].replace(fresh) {
            for direction in BOTH.into_iter().filter(|&d| was.rules.of(d) != rules.of(d)) {
                self.note(direction, false, slot, &was.rules);
                self.note(direction, true, slot, &rules);
            }
        }
        self.set(slot, policy);
        true
    }

    /// Gives the policy of this name another action or other SAs; whether there was one.
    pub fn set_policy(&mut self, policy: Policy) -> bool {
        let Some(&slot) = self.by_name.get(&policy.name) else { return false };
        let policy = Arc::new(policy);
        if let Some(there) = &mut self.slots[slot as usize] {
            there.policy = policy.clone();
        }
        self.set(slot, policy);
        true
    }

    /// Puts policies in another order; those not named come last, as they were.
    pub fn reorder<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) {
        let before = BOTH.map(|direction| self.sequence(direction));
        let mut left = vec![true; self.slots.len()];
        let mut order: Vec<u32> = Vec::with_capacity(self.len());
        for &slot in names.into_iter().filter_map(|name| self.by_name.get(name)) {
            if std::mem::take(&mut left[slot as usize]) {
                order.push(slot);
            }
        }
        order.extend(self.order.iter().filter(|&slot| left[slot as usize]));
        let moved = self.order.arrange(order);
        self.relabel(&moved);
        self.compare(before);
    }

    /// Makes these the policies, in their order; one of a name that was there keeps its slot.
    pub fn set_all(&mut self, all: impl IntoIterator<Item = (Policy, Rules)>) {
        let before = BOTH.map(|direction| self.sequence(direction));
        let mut gone = std::mem::take(&mut self.by_name);
        let mut order = Vec::new();
        for (policy, rules) in all {
            let (policy, rules) = (Arc::new(policy), Arc::new(rules));
            match gone.remove(&policy.name) {
                Some(slot) => {
                    self.by_name.insert(policy.name.clone(), slot);
                    self.slots[slot as usize] = Some(PolicyEntry { policy, rules });
                    order.push(slot);
                }
                None => order.push(self.take(policy, rules)),
            }
        }
        for slot in gone.into_values() {
            self.slots[slot as usize] = None;
            self.free.push(slot);
        }
        self.order = Labels::new(order);
        for direction in BOTH {
            let all = self.slots.iter().flatten().map(|slot| slot.rules.of(direction).len());
            self.rules[direction as usize].start_again(all.sum());
        }
        (self.changes, self.changed) = (None, true);
        self.compare(before);
    }

    /// What becomes of packets no rule matches.
    pub fn set_default(&mut self, default: Action) {
        if self.default != default {
            self.default = default;
            self.renew();
        }
    }

    /// Rules are searched otherwise, to the same end.
    pub fn set_search(&mut self, search: Search) {
        self.rules.iter_mut().for_each(|rules| rules.set_search(search));
        self.changed = true;
    }

    /// The next snapshot has new epochs, as other caches and another default ask for.
    pub fn renew(&mut self) {
        (self.rules_change, self.changed) = ([RulesChange::Replaced; 2], true);
    }

    /// The same where epochs are counted from the first again: rules lose the record of their changes, which names
    /// epochs as they were counted before.
    pub fn begin_again(&mut self) {
        self.rules.iter_mut().for_each(|rules| rules.start_again(rules.count()));
        self.renew();
    }

    /// Whether the last snapshot has every change.
    pub fn is_published(&self) -> bool {
        !self.changed
    }

    /// A snapshot with every change so far.
    pub fn publish(&mut self, caches: &FlowCaches) -> Arc<Spd> {
        if !std::mem::take(&mut self.changed) {
            return self.current.clone();
        }
        self.retired.retain(|spd| Arc::strong_count(spd) > 1);
        let changes = self.changes.replace(Vec::new());
        // First, for the snapshot that lags has rules that lag.
        let policies = self.policies(changes.as_ref());
        for direction in BOTH {
            let change = std::mem::take(&mut self.rules_change[direction as usize]);
            let epoch = &mut self.epochs[direction as usize];
            let from = *epoch;
            if change != RulesChange::None {
                *epoch = caches.next_epoch();
            }
            let epochs = (change == RulesChange::Incremental).then_some((from, *epoch));
            let of =
                |slot: u32| Some((self.order.label(slot), slot, &*self.slots[slot as usize].as_ref()?.rules));
            self.rules[direction as usize].publish(epochs, self.order.iter().filter_map(of));
        }
        let [inbound, outbound] = self.rules.each_ref().map(RuleTurns::current);
        let (name, default, epochs) = (self.name.clone(), self.default, self.epochs);
        let next = Arc::new(Spd { name, policies, outbound, inbound, default, epochs });
        let was = std::mem::replace(&mut self.current, next);
        match changes {
            Some(changes) => self.lagging = Some((was, changes)),
            // Kept so that nobody else is the last to have it, not to be used again.
            None => self.retired.push(was),
        }
        self.current.clone()
    }

    /// The lagging list of policies, or a copy of the current one, with `changes` in it.
    fn policies(&mut self, changes: Option<&Changes>) -> Vec<Arc<Policy>> {
        let spare = self.lagging.take().and_then(|(spd, missed)| match Arc::try_unwrap(spd) {
            Ok(spd) => Some((spd.policies, missed)),
            Err(held) => {
                self.retired.push(held);
                None
            }
        });
        let Some(changes) = changes else {
            let of = |slot: &Option<PolicyEntry>| slot.as_ref().map_or(&self.nobody, |s| &s.policy).clone();
            return self.slots.iter().map(of).collect();
        };
        let (mut policies, missed) = spare.unwrap_or_else(|| (self.current.policies.clone(), Vec::new()));
        policies.resize(self.slots.len(), self.nobody.clone());
        for (slot, policy) in missed.iter().chain(changes) {
            policies[slot.0 as usize].clone_from(policy);
        }
        policies
    }

    /// A slot for a policy that has no place yet.
    fn take(&mut self, policy: Arc<Policy>, rules: Arc<Rules>) -> u32 {
        let slot = self.free.pop().unwrap_or(self.slots.len() as u32);
        self.by_name.insert(policy.name.clone(), slot);
        let fresh = Some(PolicyEntry { policy, rules });
        match self.slots.get_mut(slot as usize) {
            Some(empty) => *empty = fresh,
            None => self.slots.push(fresh),
        }
        slot
    }

    /// Notes who has a slot now.
    fn set(&mut self, slot: u32, policy: Arc<Policy>) {
        self.changed = true;
        if self.changes.as_ref().is_some_and(|changes| changes.len() > FEW.max(self.slots.len() / 4)) {
            self.changes = None;
        }
        if let Some(changes) = &mut self.changes {
            changes.push((PolicyIndex(slot), policy));
        }
    }

    /// Notes that rules come or go.
    fn note(&mut self, direction: Direction, add: bool, slot: u32, rules: &Arc<Rules>) {
        let (order, rules) = (self.order.label(slot), rules.clone());
        let change = RuleChange { add, counts: true, order, slot, rules };
        if self.rules[direction as usize].note(change) {
            let so_far = &mut self.rules_change[direction as usize];
            *so_far = RulesChange::Incremental.max(*so_far);
        }
    }

    /// Gives rules other labels, which means nothing to whom they answered. All go before any comes: one's new
    /// label may be another's old one.
    fn relabel(&mut self, moved: &[Moved]) {
        for (add, m) in moved.iter().map(|m| (false, m)).chain(moved.iter().map(|m| (true, m))) {
            let Some(rules) = self.slots[m.slot as usize].as_ref().map(|s| &s.rules) else { continue };
            let order = if add { m.to } else { m.from };
            for turns in &mut self.rules {
                turns.note(RuleChange { add, counts: false, order, slot: m.slot, rules: rules.clone() });
            }
            self.changed = true;
        }
    }

    /// Says whose rules a direction has, in order.
    fn sequence(&self, direction: Direction) -> Sequence {
        let of = |slot: u32| Some((slot, self.slots[slot as usize].as_ref()?.rules.clone()));
        let all = self.order.iter().filter_map(of);
        all.filter(|(_, rules)| !rules.of(direction).is_empty()).collect()
    }

    /// Ends the epochs of directions whose rules are not what they were.
    fn compare(&mut self, before: [Sequence; 2]) {
        for (direction, before) in BOTH.into_iter().zip(before) {
            let is = self.sequence(direction);
            let same = before.len() == is.len()
                && before.iter().zip(&is).all(|(was, is)| {
                    let same_rules = was.1.of(direction) == is.1.of(direction);
                    was.0 == is.0 && same_rules
                });
            if !same {
                self.rules_change[direction as usize] = RulesChange::Replaced;
            }
        }
    }
}
