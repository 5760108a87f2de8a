//! The classifier: rules of one family in tables by the cells they touch, so that a packet never seen before
//! asks a few tables and not all rules.
//!
//! After TupleMerge (Daly, Bruschi, Linguaglossa, Pontarelli, Rossi, Tollet, Torng, Yourtchenko: TupleMerge:
//! Fast Software Packet Processing for Online Packet Classification, IEEE/ACM ToN 2019): tables hash fewer
//! bits than their rules have, so that rules of many tuples share one; they are asked in the order of their best
//! rule, and no more once something better was found. What differs: ranges are kept in every cell they touch,
//! up to eight; and rules that no table takes go to blocks under boxes ([`rest`]), not to ever longer chains.
//!
//! Promises: every answer is the ordered scan's. A lookup asks [`TABLES`] tables at most, in each
//! [`table::CHAIN_MAX`] rules at most, and of the rest a seventh more than its rules; [`Stats::bound`] says what
//! it is at present: whatever the rules, a seventh more than their number, and those chains.
//! A change takes a number of steps that hardly depends on the number of rules (now and then a search for a
//! table's next best rule, a byte a rule, and a list that doubles). With each change a few rules are looked at
//! anew, so that what changes did is undone when its reason is gone; every few changes one, while that is in vain.
//! A rule takes [`shape::CELLS`] entries at most.

#[cfg(feature = "testing")]
mod fuzz;
mod lookup;
mod rest;
mod shape;
mod table;
mod vote;

use super::rules::Order;
use super::scan::{Cursor, Home, Ordered, Rule};
use crate::random::SplitMix64;

#[cfg(feature = "testing")]
pub use fuzz::fuzz_classifier;
pub(super) use shape::Address;

use rest::{Hand, Rest};
use shape::{Extent, Keys, Mask, Shape};
use table::{Pool, Table};

/// Tables at most: each costs every packet a probe.
const TABLES: usize = 24;
/// Homes that are no table: no packet matches the rule, and among the rest.
pub(super) const NOWHERE: Home = Home::MAX;
const REST: Home = Home::MAX - 1;
/// How many rules may be among the rest before a table is made for them: a block of them costs about what a
/// table costs.
const FREE: usize = 32;
/// Rules asked which table they would like, building and changing.
const SAMPLE: usize = 1024;
const SAMPLE_LIVE: usize = 32;
/// Changes from one look at the rest to the next, once all were looked at twice in vain: a look asks every table,
/// and takes as long as the change itself.
const PAUSE: u64 = 8;
/// What a small table costs more than any other.
const SMALL: u64 = 100;

#[derive(Clone, Debug)]
pub(super) struct Classifier<A> {
    keys: Keys,
    /// The tables by [`Home`]; those without rules are spare.
    tables: Vec<Table<A>>,
    /// Tables that have rules, by their best order.
    sequence: Vec<Home>,
    pool: Pool<A>,
    rest: Rest<A>,
    hand: Hand,
    /// Rules among the rest from which on another table is thought about.
    patience: usize,
    /// Changes so far.
    changes: u64,
    /// Rules among the rest looked at since one found a table.
    idle: usize,
}

/// Homes chosen while rules changed: to be made again where the same happens to a copy in the same state, which
/// would choose the same and take as long.
#[derive(Clone, Debug, Default)]
pub(super) struct Choices {
    made: Vec<Home>,
    /// How many of them were made again.
    again: usize,
}

impl Choices {
    /// None, and memory for as many as `room`.
    pub fn cleared(mut self, room: usize) -> Choices {
        self.made.clear();
        self.made.shrink_to(room);
        Choices { made: self.made, again: 0 }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.made.len()
    }

    /// Starts again from the first: from here on they are made again.
    pub fn rewind(&mut self) {
        self.again = 0;
    }

    fn next(&mut self, choose: impl FnOnce() -> Home) -> Home {
        let home = match self.made.get(self.again) {
            Some(&home) => {
                debug_assert_eq!(home, choose(), "the copy is in another state");
                home
            }
            None => {
                let home = choose();
                self.made.push(home);
                home
            }
        };
        self.again += 1;
        home
    }
}

/// What is kept of a family's rules, and what finding one takes at the most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub rules: usize,
    pub tables: usize,
    /// Cells of rules in tables.
    pub entries: usize,
    /// Rules in the longest chain of a table.
    pub chain: usize,
    /// Rules in no table.
    pub residue: usize,
    /// Comparisons of a packet with a rule or a box that no lookup exceeds. (Flows that no packet has, such as
    /// ports of ICMP, are scanned.)
    pub bound: usize,
}

/// What a lookup took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effort {
    pub tables: usize,
    /// Comparisons with a rule or a box.
    pub compared: usize,
}

impl<A: Address> Classifier<A> {
    /// Builds the classifier of all rules of a list, whose homes it sets.
    pub fn build(list: &mut Ordered<A>, secret: u64) -> Classifier<A> {
        let mut classifier = Classifier {
            keys: Keys::new(secret),
            tables: Vec::new(),
            sequence: Vec::new(),
            pool: Pool::new(),
            rest: Rest::new(),
            hand: Hand::default(),
            patience: FREE,
            changes: 0,
            idle: 0,
        };
        let mut scatter = SplitMix64::new(secret);
        let mut open: Vec<_> = list
            .iter_mut()
            .filter_map(|(order, rule, home)| {
                *home = NOWHERE;
                Some((Extent::of(rule)?, order, rule, home))
            })
            .collect();
        while open.len() > FREE && classifier.tables.len() < TABLES {
            let count = SAMPLE.min(open.len());
            let mut pick = || open[scatter.below(open.len() as u64) as usize].0;
            let sample: Vec<_> = if count < SAMPLE {
                open.iter().map(|o| o.0).collect()
            } else {
                (0..count).map(|_| pick()).collect()
            };
            let Some(shape) = vote::vote(&sample, vote::PROPOSERS, open.len(), &classifier.keys) else {
                break;
            };
            let number = classifier.add_table(shape, 0);
            open.retain_mut(|(extent, order, rule, home)| {
                let takes = classifier.tables[number].room(&classifier.keys, extent, u64::MAX).is_some();
                if takes {
                    classifier.put(number as Home, extent, *order, rule);
                    **home = number as Home;
                }
                !takes
            });
        }
        for (_, order, rule, home) in open {
            classifier.rest.insert(order, rule);
            *home = REST;
        }
        classifier.sort();
        classifier
    }

    /// Adds a rule: its home.
    pub fn insert(&mut self, order: Order, rule: &Rule<A>, choices: &mut Choices) -> Home {
        let Some(extent) = Extent::of(rule) else { return NOWHERE };
        let home = choices.next(|| self.choose(&extent, REST));
        self.put(home, &extent, order, rule);
        self.sort_if_best(home, order);
        home
    }

    /// Takes out a rule that is no longer in `list`.
    pub fn remove(&mut self, order: Order, rule: &Rule<A>, home: Home, list: &Ordered<A>) {
        if let Some(extent) = Extent::of(rule) {
            self.take(home, &extent, order, rule);
            self.refresh(home, order, list);
        }
    }

    /// Looks at a rule or two anew: those among the rest may have got a table, those of small tables may fit
    /// larger ones.
    pub fn tend(&mut self, list: &mut Ordered<A>, hand: &mut Cursor, choices: &mut Choices) {
        self.changes += 1;
        if self.rest.len() >= self.patience {
            self.think();
        }
        let in_vain = self.idle >= 2 * self.rest.len();
        let looks = if in_vain { u64::from(self.changes.is_multiple_of(PAUSE)) } else { 2 };
        for _ in 0..looks {
            let mut at = self.hand;
            let Some((order, rule)) = self.rest.step(&mut at) else { break };
            self.hand = at;
            let rule = rule.clone();
            self.idle = if self.rehome(list, (order, &rule), REST, choices) { 0 } else { self.idle + 1 };
        }
        if let Some((order, rule, home)) = list.step(hand) {
            let number = usize::from(home);
            if number < self.tables.len() && (self.is_small(number) || self.is_closing(number)) {
                let rule = rule.clone();
                self.rehome(list, (order, &rule), home, choices);
            }
        }
    }

    pub fn stats(&self, rules: usize) -> Stats {
        let chains = self.sequence.iter().map(|&t| self.tables[usize::from(t)].longest() as usize);
        Stats {
            rules,
            tables: self.sequence.len(),
            entries: self.pool.used(),
            chain: chains.clone().max().unwrap_or(0),
            residue: self.rest.len(),
            bound: chains.sum::<usize>() + self.rest.bound(),
        }
    }

    pub fn memory(&self) -> usize {
        size_of::<Self>()
            + self.tables.iter().map(|table| size_of::<Table<A>>() + table.memory()).sum::<usize>()
            + self.pool.memory()
            + self.rest.memory()
    }

    /// Moves a rule from `home`, if a table would rather have it: whether it did.
    fn rehome(
        &mut self,
        list: &mut Ordered<A>,
        (order, rule): (Order, &Rule<A>),
        home: Home,
        choices: &mut Choices,
    ) -> bool {
        let Some(extent) = Extent::of(rule) else { return false };
        let mut to = choices.next(|| self.choose(&extent, home));
        if to == home && home != REST && self.is_closing(usize::from(home)) {
            to = REST;
        }
        if to == home {
            return false;
        }
        self.take(home, &extent, order, rule);
        self.put(to, &extent, order, rule);
        list.move_home(order, rule, home, to);
        self.refresh(home, order, list);
        self.sort_if_best(to, order);
        true
    }

    /// The table where a rule is in the least company; small ones only where there is no other.
    fn choose(&self, extent: &Extent<A>, home: Home) -> Home {
        if self.pool.is_full() {
            return REST;
        }
        let mut best = (u64::MAX, home);
        for (number, table) in self.tables.iter().enumerate() {
            if number == usize::from(home) || table.rules == 0 && home != REST || self.is_closing(number) {
                continue;
            }
            let more = if self.is_small(number) { SMALL } else { 0 };
            let Some(limit) = best.0.checked_sub(more) else { continue };
            if let Some(cost) = table.room(&self.keys, extent, limit) {
                best = (cost + more, number as Home);
            }
        }
        if home != REST && best.0 >= SMALL { home } else { best.1 }
    }

    /// Too few rules for the probe every packet pays for them.
    fn is_small(&self, number: usize) -> bool {
        self.tables[number].rules * 16 * TABLES < self.pool.used()
    }

    /// Whether a table has so few rules that they are better among the rest, and had its time to get more.
    fn is_closing(&self, number: usize) -> bool {
        let table = &self.tables[number];
        table.rules < vote::FEWEST / 2 && self.changes > table.grace
    }

    fn put(&mut self, home: Home, extent: &Extent<A>, order: Order, rule: &Rule<A>) {
        match self.tables.get_mut(usize::from(home)) {
            Some(table) => table.insert(&mut self.pool, &self.keys, extent, (order, rule)),
            None => self.rest.insert(order, rule),
        }
    }

    fn take(&mut self, home: Home, extent: &Extent<A>, order: Order, rule: &Rule<A>) {
        match self.tables.get_mut(usize::from(home)) {
            Some(table) => table.remove(&mut self.pool, &self.keys, extent, (order, rule)),
            None => {
                self.rest.remove(order, rule);
            }
        }
    }

    /// Brings a table up to date after a rule of `order` left `home`.
    fn refresh(&mut self, home: Home, order: Order, list: &Ordered<A>) {
        self.patience = self.patience.min(self.rest.len() * 2 + FREE);
        if let Some(table) = self.tables.get_mut(usize::from(home))
            && table.best == order
        {
            table.best = list.next_of(order, home).unwrap_or(Order::MAX);
            self.sort();
        }
    }

    /// Makes a table for rules among the rest, if there is one that takes enough of them.
    #[cold]
    fn think(&mut self) {
        self.patience = self.rest.len() * 2;
        let spare = self.tables.iter().any(|table| table.rules == 0);
        if !spare && self.tables.len() == TABLES {
            return;
        }
        let sample: Vec<_> = self.rest.sample(SAMPLE_LIVE).filter_map(Extent::of).collect();
        if let Some(shape) = vote::vote(&sample, 1, self.rest.len(), &self.keys) {
            // As long as it takes to look at each of the rest twice.
            let grace = self.changes + self.rest.len() as u64;
            self.add_table(shape, grace);
            (self.patience, self.idle) = (self.rest.len() + FREE, 0);
        }
    }

    fn add_table(&mut self, shape: Shape, grace: u64) -> usize {
        let table = Table::new(Mask::new(shape), grace);
        if let Some(number) = self.tables.iter().position(|table| table.rules == 0) {
            self.tables[number] = table;
            return number;
        }
        self.tables.push(table);
        self.tables.len() - 1
    }

    /// Sorts the tables if a rule of `order` that came to `home` is its best.
    fn sort_if_best(&mut self, home: Home, order: Order) {
        if self.tables.get(usize::from(home)).is_some_and(|table| table.best == order) {
            self.sort();
        }
    }

    fn sort(&mut self) {
        let tables = &self.tables;
        let used = tables.iter().filter(|table| table.rules > 0).count();
        if used != self.sequence.len()
            || self.sequence.iter().any(|&number| tables[usize::from(number)].rules == 0)
        {
            self.sequence.clear();
            self.sequence.extend((0..).zip(tables).filter(|(_, t)| t.rules > 0).map(|(number, _)| number));
        }
        self.sequence.sort_by_key(|&number| tables[usize::from(number)].best);
    }
}
