//! The ordered scan: rules of one family in their order, packed.
//!
//! Promises: what [`super::first_match`] answers, for every flow, in time linear in the rules; addresses
//! compare as numbers, many rules at once ([`super::lanes`]), and ports and types are looked at only for rules that name
//! some. A rule comes and goes by moving a chunk's worth of bytes at most, whatever the number of rules.
//! [`Ordered::scan_each`] is the same without vectors, a rule after the other: the oracle, which asks nobody and which
//! all layers are held against.

use super::lanes::{Laned, Lanes};
use super::rules::Order;
use super::{Flow, PolicyIndex, PortRange, Selector, Transport};

/// Rules a chunk has at most: 4.6 KB for IPv4 and 2 KB of lanes, of which a change moves half.
const CHUNK: usize = 128;
/// How full a chunk is that rules came to in their order, so that the next ones find room: whole groups of lanes, for
/// lanes behind the last rule are compared too.
const FILL: usize = CHUNK * 3 / 4;

/// 36 bytes for IPv4, 96 for IPv6.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule<A> {
    pub source: (A, A),
    pub destination: (A, A),
    /// Compared under `mask`, which is 0 where any protocol will do.
    pub protocol: u8,
    pub mask: u8,
    /// Whether it names ports or types.
    pub named: bool,
    pub source_ports: PortRange,
    pub destination_ports: PortRange,
    pub icmp: PortRange,
    pub policy: PolicyIndex,
}

/// Who else holds a rule: a number the classifier gives.
pub(super) type Home = u8;

/// Rules in their order.
#[derive(Clone, Debug)]
pub(super) struct Ordered<A: Laned> {
    /// The chunks; none is empty.
    chunks: Vec<Chunk<A>>,
    len: usize,
}

/// What a scan does not read stands apart from what it reads.
#[derive(Clone, Debug)]
struct Chunk<A: Laned> {
    /// `orders[0]`: chunks are searched without looking into each.
    first: Order,
    rules: Vec<Rule<A>>,
    /// What a scan compares first, of every rule.
    lanes: Box<Lanes<A::Lane, CHUNK>>,
    orders: Vec<Order>,
    homes: Vec<Home>,
}

/// A place in the list, good until the next change.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    chunk: usize,
    at: usize,
}

impl<A: Laned> Default for Ordered<A> {
    fn default() -> Self {
        Ordered { chunks: Vec::new(), len: 0 }
    }
}

impl<A: Laned> Ordered<A> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn first(&self) -> Option<&Rule<A>> {
        self.chunks.first()?.rules.first()
    }

    /// All rules in their order.
    pub fn iter(&self) -> impl Iterator<Item = &Rule<A>> {
        self.chunks.iter().flat_map(|chunk| &chunk.rules)
    }

    #[inline(always)]
    pub fn scan(&self, source: A, destination: A, flow: &Flow) -> Option<PolicyIndex> {
        let in_chunk = |chunk: &Chunk<A>| {
            let matches = |rule: &Rule<A>| rule.matches(source, destination, flow);
            chunk.lanes.find(&chunk.rules, source, destination, matches).map(|rule| rule.policy)
        };
        self.chunks.iter().find_map(in_chunk)
    }

    /// The same, a rule after the other.
    pub fn scan_each(&self, source: A, destination: A, flow: &Flow) -> Option<PolicyIndex> {
        self.iter().find(|rule| rule.matches(source, destination, flow)).map(|rule| rule.policy)
    }

    /// How many rules a scan looks at to find a flow's, which is the last of them.
    pub fn number(&self, source: A, destination: A, flow: &Flow) -> Option<usize> {
        Some(self.iter().position(|rule| rule.matches(source, destination, flow))? + 1)
    }

    /// Adds a rule behind those of the same order.
    pub fn insert(&mut self, order: Order, rule: Rule<A>, home: Home) {
        self.len += 1;
        let behind = self.chunks.partition_point(|chunk| chunk.first <= order);
        let is_last = behind == self.chunks.len();
        let Some(chunk) = self.chunks.get_mut(behind.saturating_sub(1)) else {
            let mut chunk = Chunk::new(order);
            chunk.insert(0, order, rule, home);
            return self.chunks.push(chunk);
        };
        let at = chunk.orders.partition_point(|&o| o <= order);
        let len = chunk.orders.len();
        // Rules that come in their order are not moved again.
        let follows = is_last && at == len;
        if len < if follows { FILL } else { CHUNK } {
            return chunk.insert(at, order, rule, home);
        }
        let cut = if follows { len } else { CHUNK / 2 };
        let mut tail = chunk.split_off(cut);
        if at > cut || follows {
            tail.insert(at - cut, order, rule, home);
        } else {
            chunk.insert(at, order, rule, home);
        }
        self.chunks.insert(behind.max(1), tail);
    }

    /// Takes out the first rule that equals `rule`; who else held it.
    pub fn remove(&mut self, order: Order, rule: &Rule<A>) -> Option<Home> {
        let Cursor { chunk: number, at } = self.places(order).find(|&place| self.rule(place) == rule)?;
        self.len -= 1;
        let chunk = &mut self.chunks[number];
        let (home, len) = chunk.remove(at);
        // Neighbours that fit one chunk with room to spare become one, so that none stays nearly empty.
        let (front, back) = if number + 1 < self.chunks.len() {
            (number, number + 1)
        } else {
            (number.saturating_sub(1), number)
        };
        if len == 0 {
            self.chunks.remove(number);
        } else if len < CHUNK / 4
            && front != back
            && self.chunks[front].orders.len() + self.chunks[back].orders.len() <= FILL
        {
            let tail = self.chunks.remove(back);
            self.chunks[front].append(tail);
        }
        Some(home)
    }

    /// The order of the first rule of `home` whose order is `from` or behind.
    pub fn next_of(&self, from: Order, home: Home) -> Option<Order> {
        for chunk in &self.chunks[self.reach(from)..] {
            let at = if chunk.first < from { chunk.orders.partition_point(|&o| o < from) } else { 0 };
            // Most chunks have none, and that is found out many at a time.
            let homes = &chunk.homes[at..];
            if homes.contains(&home) {
                let n = homes.iter().position(|&h| h == home)?;
                return Some(chunk.orders[at + n]);
            }
        }
        None
    }

    /// A rule equal to `rule` that has home `from` gets home `to`.
    pub fn move_home(&mut self, order: Order, rule: &Rule<A>, from: Home, to: Home) {
        let here = |&place: &Cursor| *self.home(place) == from && self.rule(place) == rule;
        let place = self.places(order).find(here);
        if let Some(Cursor { chunk, at }) = place {
            self.chunks[chunk].homes[at] = to;
        }
    }

    /// The rule at a place that is left by one step; at the end it starts anew.
    pub fn step(&self, hand: &mut Cursor) -> Option<(Order, &Rule<A>, Home)> {
        if self.chunks.get(hand.chunk).is_none_or(|chunk| hand.at >= chunk.orders.len()) {
            hand.at = 0;
            hand.chunk = if hand.chunk + 1 < self.chunks.len() { hand.chunk + 1 } else { 0 };
        }
        let (chunk, at) = (self.chunks.get(hand.chunk)?, hand.at);
        hand.at += 1;
        Some((chunk.orders[at], &chunk.rules[at], chunk.homes[at]))
    }

    /// All rules, with what their homes are to be written to.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Order, &Rule<A>, &mut Home)> {
        self.chunks.iter_mut().flat_map(|chunk| {
            let rules = chunk.orders.iter().zip(&chunk.rules).zip(&mut chunk.homes);
            rules.map(|((&order, rule), home)| (order, rule, home))
        })
    }

    pub fn memory(&self) -> usize {
        let bytes = |chunk: &Chunk<A>| {
            chunk.rules.capacity() * size_of::<Rule<A>>()
                + size_of::<Lanes<A::Lane, CHUNK>>()
                + chunk.orders.capacity() * 8
                + chunk.homes.capacity()
        };
        self.chunks.iter().map(bytes).sum::<usize>() + self.chunks.capacity() * size_of::<Chunk<A>>()
    }

    /// Where rules of an order stand.
    fn places(&self, order: Order) -> impl Iterator<Item = Cursor> {
        let chunks = self.chunks.iter().enumerate().skip(self.reach(order));
        chunks.take_while(move |(_, chunk)| chunk.first <= order).flat_map(move |(number, chunk)| {
            let from = chunk.orders.partition_point(|&o| o < order);
            let until = chunk.orders.partition_point(|&o| o <= order);
            (from..until).map(move |at| Cursor { chunk: number, at })
        })
    }

    /// The first chunk that may have rules of `order` or behind; those before it have none.
    fn reach(&self, order: Order) -> usize {
        self.chunks.partition_point(|chunk| chunk.first < order).saturating_sub(1)
    }

    fn rule(&self, place: Cursor) -> &Rule<A> {
        &self.chunks[place.chunk].rules[place.at]
    }

    fn home(&self, place: Cursor) -> &Home {
        &self.chunks[place.chunk].homes[place.at]
    }
}

impl<A: Laned> Chunk<A> {
    /// An empty one, whose first rule will have this order.
    fn new(first: Order) -> Chunk<A> {
        let (rules, orders, homes) = (Vec::new(), Vec::new(), Vec::new());
        Chunk { first, rules, lanes: Box::new(Lanes::new()), orders, homes }
    }

    fn insert(&mut self, at: usize, order: Order, rule: Rule<A>, home: Home) {
        self.rules.insert(at, rule);
        self.orders.insert(at, order);
        self.homes.insert(at, home);
        self.first = self.orders[0];
        self.lanes.set(&self.rules, at);
    }

    /// Who else held the rule taken out, and how many are left.
    fn remove(&mut self, at: usize) -> (Home, usize) {
        self.rules.remove(at);
        self.orders.remove(at);
        self.first = self.orders.first().copied().unwrap_or(self.first);
        self.lanes.set(&self.rules, at);
        (self.homes.remove(at), self.orders.len())
    }

    fn split_off(&mut self, at: usize) -> Chunk<A> {
        let mut tail = Chunk::new(self.orders.get(at).copied().unwrap_or(Order::MAX));
        tail.rules.reserve_exact(CHUNK);
        tail.orders.reserve_exact(CHUNK);
        tail.homes.reserve_exact(CHUNK);
        tail.rules.extend(self.rules.drain(at..));
        tail.orders.extend(self.orders.drain(at..));
        tail.homes.extend(self.homes.drain(at..));
        tail.lanes.set(&tail.rules, 0);
        self.lanes.set(&self.rules, at);
        tail
    }

    fn append(&mut self, mut tail: Chunk<A>) {
        let from = self.rules.len();
        self.rules.append(&mut tail.rules);
        self.orders.append(&mut tail.orders);
        self.homes.append(&mut tail.homes);
        self.lanes.set(&self.rules, from);
    }
}

impl<A: Copy + PartialOrd> Rule<A> {
    pub fn new(selector: &Selector, source: (A, A), destination: (A, A), policy: PolicyIndex) -> Rule<A> {
        Rule {
            source,
            destination,
            protocol: selector.protocol.unwrap_or(0),
            mask: if selector.protocol.is_some() { u8::MAX } else { 0 },
            named: selector.names_transport(),
            source_ports: selector.source_ports,
            destination_ports: selector.destination_ports,
            icmp: selector.icmp,
            policy,
        }
    }

    #[inline(always)]
    pub fn matches(&self, source: A, destination: A, flow: &Flow) -> bool {
        // One branch for all: which of them fails first differs from rule to rule.
        let here = (self.source.0 <= source)
            & (source <= self.source.1)
            & (self.destination.0 <= destination)
            & (destination <= self.destination.1)
            & ((flow.protocol ^ self.protocol) & self.mask == 0);
        here && (!self.named || self.names(flow.transport))
    }

    /// Addresses and protocol decide, and there are some it matches.
    pub fn is_plain(&self) -> bool {
        !self.named && self.source.0 <= self.source.1 && self.destination.0 <= self.destination.1
    }

    /// Whether it matches every packet between addresses of `range`, and asks for nothing but addresses.
    pub fn is_for_all_within(&self, range: (A, A)) -> bool {
        self.is_plain() && self.mask == 0 && self.source == range && self.destination == range
    }

    fn names(&self, transport: Transport) -> bool {
        match transport {
            Transport::None | Transport::Opaque => false,
            Transport::Ports { source, destination } => {
                self.source_ports.contains(source) && self.destination_ports.contains(destination)
            }
            Transport::Icmp(kind) => self.icmp.contains(kind),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipsec::spd::AddressRange;

    fn rule(n: u32) -> Rule<u32> {
        Rule::new(&Selector::within(AddressRange::ANY_V4), (n, n), (n, n), PolicyIndex(n))
    }

    #[test]
    fn list_made_in_order_has_room_in_each_chunk_and_is_searched_by_what_stands_first() {
        let mut list = Ordered::default();
        for n in 0..10 * CHUNK as u32 {
            list.insert(u64::from(n) * 1000, rule(n), 0);
        }
        let chunks = list.chunks.len();
        let check = |list: &Ordered<u32>| {
            assert!(list.chunks.iter().all(|chunk| chunk.first == chunk.orders[0]));
            assert!(list.chunks.iter().flat_map(|chunk| &chunk.orders).is_sorted());
        };
        // As many as each chunk has room for, of one order with what was there or between two.
        for n in 0..10 * (CHUNK - FILL) as u32 {
            list.insert(u64::from(n) * 4000 + u64::from(n % 2), rule(n + 10_000), 1);
            check(&list);
        }
        assert_eq!(list.chunks.len(), chunks, "none was split");
        for n in 0..10 * (CHUNK - FILL) as u32 {
            assert_eq!(list.next_of(u64::from(n) * 4000, 1), Some(u64::from(n) * 4000 + u64::from(n % 2)));
            assert_eq!(list.remove(u64::from(n) * 4000 + u64::from(n % 2), &rule(n + 10_000)), Some(1));
        }
        for n in (0..10 * CHUNK as u32).rev() {
            assert_eq!(list.remove(u64::from(n) * 1000, &rule(n)), Some(0));
            check(&list);
        }
        assert_eq!((list.len(), list.chunks.len()), (0, 0));
    }
}
