//! Rules that no table takes: blocks of neighbours, each under the box that covers them and its best order.
//!
//! Promises: a lookup passes over every block whose box the packet is not in or whose rules all come behind
//! what was found, and never compares more than a seventh more than the rules there are.
//!
//! Rules are kept in the order of their ranges, so that those of a block are neighbours; blocks are asked in
//! the order of their best rule. Two levels: groups of blocks of rules.

use std::cmp::Ordering;

use crate::ipsec::spd::rules::Order;
use crate::ipsec::spd::scan::Rule;
use crate::ipsec::spd::{Flow, PolicyIndex, PortRange};

use super::shape::Address;

/// Children of a node at most, and at least, unless there are no neighbours to share with.
const FULL: usize = 32;
const THIN: usize = 8;

#[derive(Clone, Debug)]
pub(super) struct Rest<A> {
    groups: Vec<Group<A>>,
    /// Groups by their best order.
    visit: Vec<u32>,
    len: usize,
}

/// Neighbouring blocks; never none.
#[derive(Clone, Debug)]
struct Group<A> {
    cover: Rule<A>,
    best: Order,
    least: Least<A>,
    blocks: Vec<Block<A>>,
    visit: Vec<u32>,
}

/// Neighbouring rules by order; never none.
#[derive(Clone, Debug)]
struct Block<A> {
    cover: Rule<A>,
    least: Least<A>,
    rules: Vec<(Order, Rule<A>)>,
}

/// The rule no other of a block is before, by [`compare`].
type Least<A> = (Order, Rule<A>);

/// Best found so far: order and policy, and how many rules and boxes were compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Best {
    pub order: Order,
    pub policy: Option<PolicyIndex>,
    pub compared: usize,
}

/// Where a hand is in a list: group, block, rule.
pub(super) type Hand = [usize; 3];

impl<A: Address> Rest<A> {
    pub fn new() -> Rest<A> {
        Rest { groups: Vec::new(), visit: Vec::new(), len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// The smallest order; nothing is smaller than that of nothing.
    pub fn best(&self) -> Order {
        self.visit.first().map_or(Order::MAX, |&g| self.groups[g as usize].best)
    }

    /// Rules, and boxes around them: what a lookup may have to compare.
    pub fn bound(&self) -> usize {
        self.len + self.groups.iter().map(|group| 1 + group.blocks.len()).sum::<usize>()
    }

    pub fn memory(&self) -> usize {
        let rules = |block: &Block<A>| block.rules.capacity() * size_of::<(Order, Rule<A>)>();
        let blocks = |group: &Group<A>| {
            group.blocks.capacity() * size_of::<Block<A>>()
                + group.visit.capacity() * 4
                + group.blocks.iter().map(rules).sum::<usize>()
        };
        self.groups.capacity() * size_of::<Group<A>>()
            + self.visit.capacity() * 4
            + self.groups.iter().map(blocks).sum::<usize>()
    }

    #[inline(never)]
    pub fn find(&self, source: A, destination: A, flow: &Flow, best: &mut Best) {
        for &g in &self.visit {
            let group = &self.groups[g as usize];
            if group.best >= best.order {
                return;
            }
            best.compared += 1;
            if group.cover.matches(source, destination, flow) {
                group.find(source, destination, flow, best);
            }
        }
    }

    pub fn insert(&mut self, order: Order, rule: &Rule<A>) {
        self.len += 1;
        let g = self.groups.partition_point(|group| before(&group.least, (order, rule)) != Ordering::Greater);
        let g = g.saturating_sub(1);
        let Some(group) = self.groups.get_mut(g) else {
            self.groups.push(Group::new(vec![Block::new(vec![(order, rule.clone())])]));
            return self.sort();
        };
        group.insert(order, rule);
        if group.blocks.len() > FULL {
            let tail = group.blocks.split_off(FULL / 2);
            *group = Group::new(std::mem::take(&mut group.blocks));
            self.groups.insert(g + 1, Group::new(tail));
        }
        self.sort();
    }

    /// Takes out a rule that was added; whether it was there.
    pub fn remove(&mut self, order: Order, rule: &Rule<A>) -> bool {
        let end =
            self.groups.partition_point(|group| before(&group.least, (order, rule)) != Ordering::Greater);
        // Rules that are the same in everything may stand in several blocks.
        let Some(g) = (0..end).rev().find(|&g| self.groups[g].remove(order, rule)) else {
            return false;
        };
        self.len -= 1;
        if self.groups[g].blocks.is_empty() {
            self.groups.remove(g);
        } else if let Some((front, back)) = thin(&self.groups, g, |group| group.blocks.len()) {
            let tail = self.groups.remove(back).blocks;
            let mut blocks = std::mem::take(&mut self.groups[front].blocks);
            blocks.extend(tail);
            self.groups[front] = Group::new(blocks);
        }
        self.sort();
        true
    }

    /// The rule at a place that is left by one step; at the end it starts anew.
    pub fn step(&self, hand: &mut Hand) -> Option<(Order, &Rule<A>)> {
        for _ in 0..4 {
            let [g, b, r] = *hand;
            let Some(group) = self.groups.get(g) else {
                *hand = [0; 3];
                continue;
            };
            let Some(block) = group.blocks.get(b) else {
                *hand = [g + 1, 0, 0];
                continue;
            };
            let Some((order, rule)) = block.rules.get(r) else {
                *hand = [g, b + 1, 0];
                continue;
            };
            hand[2] += 1;
            return Some((*order, rule));
        }
        None
    }

    /// Yields about `count` rules from everywhere.
    pub fn sample(&self, count: usize) -> impl Iterator<Item = &Rule<A>> {
        let blocks = self.groups.iter().flat_map(|group| &group.blocks);
        let many = blocks.clone().count().max(1);
        let each = count.div_ceil(many);
        let some = blocks.step_by(many.div_ceil(count).max(1));
        some.flat_map(move |block| block.rules.iter().take(each)).map(|(_, rule)| rule)
    }

    fn sort(&mut self) {
        sort(&mut self.visit, &self.groups, |group| group.best);
    }
}

impl<A: Address> Group<A> {
    fn new(blocks: Vec<Block<A>>) -> Group<A> {
        let (cover, least) = (blocks[0].cover.clone(), blocks[0].least.clone());
        let mut group = Group { cover, best: 0, least, blocks, visit: Vec::new() };
        group.summarize();
        group
    }

    /// Makes up what is known of all its blocks.
    fn summarize(&mut self) {
        self.cover = cover(self.blocks.iter().map(|block| &block.cover));
        self.least = self.blocks[0].least.clone();
        sort(&mut self.visit, &self.blocks, Block::best);
        self.best = self.blocks[self.visit[0] as usize].best();
    }

    fn insert(&mut self, order: Order, rule: &Rule<A>) {
        let b = self.blocks.partition_point(|block| before(&block.least, (order, rule)) != Ordering::Greater);
        let b = b.saturating_sub(1);
        let block = &mut self.blocks[b];
        let at = block.rules.partition_point(|(o, _)| *o <= order);
        block.rules.insert(at, (order, rule.clone()));
        if block.rules.len() > FULL {
            let mut rules = std::mem::take(&mut block.rules);
            rules.sort_unstable_by(|a, b| before(a, (b.0, &b.1)));
            let tail = rules.split_off(FULL / 2);
            *block = Block::new(rules);
            self.blocks.insert(b + 1, Block::new(tail));
        } else {
            block.cover = cover([&block.cover, rule].into_iter());
            if before(&block.least, (order, rule)) == Ordering::Greater {
                block.least = (order, rule.clone());
            }
        }
        self.summarize();
    }

    fn remove(&mut self, order: Order, rule: &Rule<A>) -> bool {
        let end =
            self.blocks.partition_point(|block| before(&block.least, (order, rule)) != Ordering::Greater);
        let here = |b: usize| self.blocks[b].position(order, rule).map(|at| (b, at));
        let Some((b, at)) = (0..end).rev().find_map(here) else { return false };
        let mut rules = std::mem::take(&mut self.blocks[b].rules);
        rules.remove(at);
        if rules.is_empty() {
            self.blocks.remove(b);
        } else {
            self.blocks[b] = Block::new(rules);
            if let Some((front, back)) = thin(&self.blocks, b, |block| block.rules.len()) {
                let tail = self.blocks.remove(back).rules;
                let mut rules = std::mem::take(&mut self.blocks[front].rules);
                rules.extend(tail);
                self.blocks[front] = Block::new(rules);
            }
        }
        if !self.blocks.is_empty() {
            self.summarize();
        }
        true
    }

    fn find(&self, source: A, destination: A, flow: &Flow, best: &mut Best) {
        for &b in &self.visit {
            let block = &self.blocks[b as usize];
            if block.best() >= best.order {
                return;
            }
            best.compared += 1;
            if !block.cover.matches(source, destination, flow) {
                continue;
            }
            for (order, rule) in &block.rules {
                if *order >= best.order {
                    break;
                }
                best.compared += 1;
                if rule.matches(source, destination, flow) {
                    (best.order, best.policy) = (*order, Some(rule.policy));
                    break;
                }
            }
        }
    }
}

impl<A: Address> Block<A> {
    fn new(mut rules: Vec<(Order, Rule<A>)>) -> Block<A> {
        rules.sort_by_key(|(order, _)| *order);
        let least = rules.iter().min_by(|a, b| before(a, (b.0, &b.1))).expect("a block has rules").clone();
        Block { cover: cover(rules.iter().map(|(_, rule)| rule)), least, rules }
    }

    fn best(&self) -> Order {
        self.rules[0].0
    }

    fn position(&self, order: Order, rule: &Rule<A>) -> Option<usize> {
        let from = self.rules.partition_point(|(o, _)| *o < order);
        let same = self.rules[from..].iter().take_while(|(o, _)| *o == order).position(|(_, r)| r == rule);
        same.map(|at| from + at)
    }
}

/// Two neighbours that are to become one, after node `n` lost a child.
fn thin<N>(nodes: &[N], n: usize, len: impl Fn(&N) -> usize) -> Option<(usize, usize)> {
    let (front, back) = if n + 1 < nodes.len() { (n, n + 1) } else { (n.checked_sub(1)?, n) };
    let together = len(&nodes[front]) + len(&nodes[back]);
    (len(&nodes[n]) < THIN && together <= FULL * 3 / 4).then_some((front, back))
}

fn sort<N>(visit: &mut Vec<u32>, nodes: &[N], best: impl Fn(&N) -> Order) {
    if visit.len() != nodes.len() {
        visit.clear();
        visit.extend(0..nodes.len() as u32);
    }
    visit.sort_by_key(|&n| best(&nodes[n as usize]));
}

/// Where rules stand: by their ranges, those that start at the same place from wide to narrow.
fn before<A: Address>((order, rule): &(Order, Rule<A>), (than, other): (Order, &Rule<A>)) -> Ordering {
    let ports = |a: PortRange, b: PortRange| a.first.cmp(&b.first).then(b.last.cmp(&a.last));
    let addresses = |a: (A, A), b: (A, A)| a.0.cmp(&b.0).then(b.1.cmp(&a.1));
    addresses(rule.destination, other.destination)
        .then_with(|| addresses(rule.source, other.source))
        .then_with(|| (rule.mask, rule.protocol).cmp(&(other.mask, other.protocol)))
        .then_with(|| ports(rule.destination_ports, other.destination_ports))
        .then_with(|| ports(rule.source_ports, other.source_ports))
        .then_with(|| ports(rule.icmp, other.icmp))
        .then_with(|| order.cmp(&than))
        .then_with(|| rule.policy.0.cmp(&other.policy.0))
}

/// A rule that matches what any of them matches.
fn cover<'a, A: Address>(mut rules: impl Iterator<Item = &'a Rule<A>>) -> Rule<A> {
    let ports =
        |a: PortRange, b: PortRange| PortRange { first: a.first.min(b.first), last: a.last.max(b.last) };
    let addresses = |a: (A, A), b: (A, A)| (a.0.min(b.0), a.1.max(b.1));
    let mut all = rules.next().expect("a box is around something").clone();
    for rule in rules {
        all.source = addresses(all.source, rule.source);
        all.destination = addresses(all.destination, rule.destination);
        if (all.protocol, all.mask) != (rule.protocol, rule.mask) {
            (all.protocol, all.mask) = (0, 0);
        }
        all.named &= rule.named;
        all.source_ports = ports(all.source_ports, rule.source_ports);
        all.destination_ports = ports(all.destination_ports, rule.destination_ports);
        all.icmp = ports(all.icmp, rule.icmp);
    }
    all
}
