//! One table: rules by the hash of the cells they touch, chained in their order.
//!
//! It grows and shrinks by one slot at a time (linear hashing: Litwin, 1980), so that no change costs more
//! than a few chains. A slot is one number: which of 32 values the hashes in its chain take, how long the chain
//! is, and where it starts; most packets without a rule here are turned away by that number alone.
//!
//! ```text
//! 63    60 59                      32 31                        0
//! | length | first entry             | one bit a hash modulo 32  |
//! ```

use crate::ipsec::spd::rules::Order;
use crate::ipsec::spd::scan::Rule;

use super::shape::{Address, Extent, Keys, Mask};

/// A rule goes elsewhere where a chain has so many.
pub(super) const CHAIN: u32 = 8;
/// What a chain never exceeds: eight cells of a rule may all meet in a chain that had room for one.
pub(super) const CHAIN_MAX: u32 = CHAIN - 1 + super::shape::CELLS as u32;

const NONE: u32 = (1 << 28) - 1;
const EMPTY: u64 = (NONE as u64) << 32;
/// A table's smallest size, and a power of two.
const SLOTS_MIN: usize = 8;
/// Slots for each entry.
const SLOTS: usize = 2;
/// How many more there may be before one goes: rules that leave and come do not move others each time. 2 KB.
const SPARE: usize = 256;

/// A rule in one cell: a line of the CPU's cache for IPv4, two for IPv6.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Entry<A> {
    pub order: Order,
    pub rule: Rule<A>,
    next: u32,
    hash: u32,
}

/// Entries of all tables.
#[derive(Clone, Debug)]
pub(super) struct Pool<A> {
    entries: Vec<Entry<A>>,
    free: u32,
    used: usize,
}

#[derive(Clone, Debug)]
pub(super) struct Table<A> {
    pub mask: Mask<A>,
    /// The smallest order of its rules.
    pub best: Order,
    pub rules: usize,
    /// The change until which it may have few rules.
    pub grace: u64,
    entries: usize,
    slots: Vec<u64>,
    /// The next power of two, less one.
    high: usize,
}

impl<A: Address> Pool<A> {
    pub fn new() -> Pool<A> {
        Pool { entries: Vec::new(), free: NONE, used: 0 }
    }

    fn take(&mut self, entry: Entry<A>) -> u32 {
        self.used += 1;
        if self.free == NONE {
            self.entries.push(entry);
            return self.entries.len() as u32 - 1;
        }
        let at = self.free;
        self.free = self.entries[at as usize].next;
        self.entries[at as usize] = entry;
        at
    }

    fn give_back(&mut self, at: u32) {
        self.used -= 1;
        self.entries[at as usize].next = self.free;
        self.free = at;
    }

    /// Whether no more rules may come: entries have 28 bits.
    pub fn is_full(&self) -> bool {
        self.used + super::shape::CELLS as usize >= NONE as usize
    }

    pub fn used(&self) -> usize {
        self.used
    }

    pub fn memory(&self) -> usize {
        self.entries.capacity() * size_of::<Entry<A>>()
    }

    #[inline(always)]
    pub fn order(&self, at: u32) -> Order {
        self.entries[at as usize].order
    }

    /// The first of a chain, from `at` on, that is before `best` and that `is` says yes to; and how many were
    /// asked.
    #[inline(always)]
    pub fn walk(
        &self,
        mut at: u32,
        best: Order,
        mut is: impl FnMut(&Rule<A>) -> bool,
    ) -> (Option<&Entry<A>>, usize) {
        let mut asked = 0;
        while at != NONE {
            let entry = &self.entries[at as usize];
            if entry.order >= best {
                break;
            }
            asked += 1;
            if is(&entry.rule) {
                return (Some(entry), asked);
            }
            at = entry.next;
        }
        (None, asked)
    }
}

fn head(slot: u64) -> u32 {
    (slot >> 32) as u32 & NONE
}

fn length(slot: u64) -> u32 {
    (slot >> 60) as u32
}

impl<A: Address> Table<A> {
    pub fn new(mask: Mask<A>, grace: u64) -> Table<A> {
        Table {
            mask,
            best: Order::MAX,
            rules: 0,
            grace,
            entries: 0,
            slots: vec![EMPTY; SLOTS_MIN],
            high: SLOTS_MIN - 1,
        }
    }

    #[inline(always)]
    fn slot(&self, hash: u32) -> usize {
        let at = (hash >> 5) as usize & self.high;
        if at < self.slots.len() { at } else { at & (self.high >> 1) }
    }

    /// The chain that may hold rules of a hash; `false` where none is there.
    #[inline(always)]
    pub fn probe(&self, hash: u32) -> (bool, u32) {
        let slot = self.slots[self.slot(hash)];
        (slot >> (hash & 31) & 1 != 0, head(slot))
    }

    /// What keeping a rule here costs: its cells, and twice the longest chain it would join. `None` where it does not
    /// fit, a chain is full, or that comes to `limit` or more, which is found out with as few slots as will do.
    pub fn room(&self, keys: &Keys, extent: &Extent<A>, limit: u64) -> Option<u64> {
        let cells = extent.cells(self.mask.shape)?;
        let count: u64 = cells.iter().product();
        if count >= limit {
            return None;
        }
        let mut longest = 0;
        let all = self.mask.walk(keys, extent, cells, |hash| {
            let len = length(self.slots[self.slot(hash)]);
            longest = longest.max(len);
            len < CHAIN && count + 2 * u64::from(longest) < limit
        });
        all.then_some(count + 2 * u64::from(longest))
    }

    /// Adds a rule for which there is room.
    pub fn insert(
        &mut self,
        pool: &mut Pool<A>,
        keys: &Keys,
        extent: &Extent<A>,
        (order, rule): (Order, &Rule<A>),
    ) {
        let mask = self.mask;
        mask.each(keys, extent, |hash| {
            let at = pool.take(Entry { order, rule: rule.clone(), next: NONE, hash });
            self.link(pool, at);
            self.entries += 1;
            true
        });
        self.rules += 1;
        self.best = self.best.min(order);
        while self.slots.len() < self.entries * SLOTS {
            self.grow(pool);
        }
    }

    /// Takes out a rule that was added. [`Table::best`] may then be less than it need be.
    pub fn remove(
        &mut self,
        pool: &mut Pool<A>,
        keys: &Keys,
        extent: &Extent<A>,
        (order, rule): (Order, &Rule<A>),
    ) {
        let mask = self.mask;
        mask.each(keys, extent, |hash| {
            let at = self.unlink(pool, hash, order, rule);
            self.entries -= usize::from(at != NONE);
            if at != NONE {
                pool.give_back(at);
            }
            true
        });
        self.rules -= 1;
        let most = if self.rules == 0 { SLOTS_MIN } else { SLOTS_MIN.max(self.entries * SLOTS + SPARE) };
        while self.slots.len() > most && self.shrink(pool) {}
    }

    /// Entries of the longest chain.
    pub fn longest(&self) -> u32 {
        self.slots.iter().map(|&slot| length(slot)).max().unwrap_or(0)
    }

    pub fn memory(&self) -> usize {
        self.slots.capacity() * size_of::<u64>()
    }

    /// Puts an entry into its chain, behind those of its order.
    fn link(&mut self, pool: &mut Pool<A>, at: u32) {
        let (order, hash) = (pool.entries[at as usize].order, pool.entries[at as usize].hash);
        let number = self.slot(hash);
        let slot = self.slots[number];
        let (mut first, mut before, mut next) = (head(slot), NONE, head(slot));
        while next != NONE && pool.entries[next as usize].order <= order {
            (before, next) = (next, pool.entries[next as usize].next);
        }
        pool.entries[at as usize].next = next;
        if before == NONE {
            first = at;
        } else {
            pool.entries[before as usize].next = at;
        }
        self.slots[number] = make(first, length(slot) + 1, slot as u32 | 1 << (hash & 31));
    }

    /// Puts each entry of a chain that is no slot's any more where it belongs.
    fn link_all(&mut self, pool: &mut Pool<A>, chain: u64) {
        let mut at = head(chain);
        while at != NONE {
            let next = pool.entries[at as usize].next;
            self.link(pool, at);
            at = next;
        }
    }

    /// Takes an entry from its chain: which.
    fn unlink(&mut self, pool: &mut Pool<A>, hash: u32, order: Order, rule: &Rule<A>) -> u32 {
        let number = self.slot(hash);
        let (mut first, mut found) = (head(self.slots[number]), NONE);
        let (mut bits, mut len, mut before, mut at) = (0, 0, NONE, first);
        while at != NONE {
            let entry = &pool.entries[at as usize];
            let next = entry.next;
            if found == NONE && (entry.hash, entry.order) == (hash, order) && entry.rule == *rule {
                found = at;
                if before == NONE {
                    first = next;
                } else {
                    pool.entries[before as usize].next = next;
                }
            } else {
                (bits, len, before) = (bits | 1 << (entry.hash & 31), len + 1, at);
            }
            at = next;
        }
        self.slots[number] = make(first, len, bits);
        found
    }

    /// One slot more: it takes its share of another's chain.
    fn grow(&mut self, pool: &mut Pool<A>) {
        if self.slots.len() > self.high {
            self.high = self.high * 2 + 1;
        }
        let new = self.slots.len();
        let old = new & (self.high >> 1);
        let chain = std::mem::replace(&mut self.slots[old], EMPTY);
        self.slots.push(EMPTY);
        self.link_all(pool, chain);
    }

    /// One slot less, unless its chain and the one it goes to would be too long together.
    fn shrink(&mut self, pool: &mut Pool<A>) -> bool {
        let last = self.slots.len() - 1;
        let half = if last == (self.high >> 1) + 1 { self.high >> 1 } else { self.high };
        let into = last & (self.high >> 1);
        let slot = self.slots[last];
        if length(slot) + length(self.slots[into]) > CHAIN {
            return false;
        }
        self.slots.pop();
        self.high = half;
        self.link_all(pool, slot);
        true
    }
}

fn make(first: u32, len: u32, bits: u32) -> u64 {
    debug_assert!(len <= CHAIN_MAX, "a chain of {len}");
    if len == 0 { EMPTY } else { u64::from(len) << 60 | u64::from(first) << 32 | u64::from(bits) }
}

#[cfg(test)]
mod tests {
    use super::super::shape::Shape;
    use super::*;
    use crate::ipsec::spd::{PolicyIndex, Selector, synthetic};

    /// Rules of an access list, and a table by their destinations.
    fn filled(count: usize) -> (Keys, Pool<u32>, Table<u32>, Vec<Rule<u32>>) {
        let of = |(n, s): (usize, &Selector)| {
            let range = crate::ipsec::spd::rules::range4;
            Some(Rule::new(s, range(s.source)?, range(s.destination)?, PolicyIndex(n as u32)))
        };
        let all = synthetic::rules(synthetic::Shape::Acl, synthetic::Family::V4, count, 1);
        let rules: Vec<_> = all.iter().enumerate().filter_map(of).collect();
        let (keys, mut pool) = (Keys::new(1), Pool::new());
        let mut table = Table::new(Mask::new(Shape { destination: 24, ..Shape::default() }), 0);
        for (order, rule) in (0..).zip(rules.iter().step_by(2)) {
            let extent = Extent::of(rule).expect("it matches something");
            if table.room(&keys, &extent, u64::MAX).is_some() {
                table.insert(&mut pool, &keys, &extent, (order, rule));
            }
        }
        (keys, pool, table, rules)
    }

    #[test]
    fn limit_hides_what_costs_as_much_and_changes_no_cost_below() {
        let (keys, _, table, rules) = filled(1_000);
        let mut costs = std::collections::BTreeSet::new();
        for extent in rules.iter().filter_map(Extent::of) {
            let cost = table.room(&keys, &extent, u64::MAX);
            for limit in 0..40 {
                assert_eq!(table.room(&keys, &extent, limit), cost.filter(|&cost| cost < limit));
            }
            costs.insert(cost);
        }
        assert!(costs.len() > 3 && costs.contains(&None), "{costs:?}");
    }

    #[test]
    fn rule_that_leaves_and_comes_again_moves_no_slot_and_an_empty_table_has_few() {
        let (keys, mut pool, mut table, rules) = filled(1_000);
        let of = |rule| Extent::of(rule).expect("it matches something");
        let there = |pool: &Pool<u32>| -> Vec<(Order, Rule<u32>)> {
            let is = |(order, rule): (Order, &Rule<u32>)| {
                pool.entries
                    .iter()
                    .any(|e| e.order == order && e.rule == *rule)
                    .then(|| (order, rule.clone()))
            };
            (0..).zip(rules.iter().step_by(2)).filter_map(is).collect()
        };
        let (all, slots) = (there(&pool), table.slots.len());
        for (order, rule) in &all {
            table.remove(&mut pool, &keys, &of(rule), (*order, rule));
            assert_eq!(table.slots.len(), slots);
            table.insert(&mut pool, &keys, &of(rule), (*order, rule));
            assert_eq!(table.slots.len(), slots);
        }
        for (order, rule) in &all {
            table.remove(&mut pool, &keys, &of(rule), (*order, rule));
            assert!(table.slots.len() <= (table.entries * SLOTS + SPARE).max(SLOTS_MIN));
        }
        assert_eq!((table.rules, table.slots.len()), (0, SLOTS_MIN));
    }
}
