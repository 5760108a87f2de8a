//! The ordered scan: rules of one direction, packed by family.
//!
//! Promises: what [`super::first_match`] answers, for every flow, in time linear in the rules of the flow's
//! family; addresses compare as numbers, and ports and types are looked at only for rules that name some.

use std::net::IpAddr;

use crate::wire::{get_array, get16, get32, protocol};

use super::{AddressRange, Flow, PolicyIndex, PortRange, Selector, Transport};

/// A rule's place in the order of its set: the smallest that matches decides. Rules of one policy may share
/// one; two policies never do.
pub type Order = u64;

/// Ordered rules of one direction.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    v4: Vec<Rule<u32>>,
    v6: Vec<Rule<u128>>,
}

/// 48 bytes for IPv4, 96 for IPv6.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule<A> {
    source: (A, A),
    destination: (A, A),
    /// Compared under `mask`, which is 0 where any protocol will do.
    protocol: u8,
    mask: u8,
    /// Whether it names ports or types.
    named: bool,
    source_ports: PortRange,
    destination_ports: PortRange,
    icmp: PortRange,
    policy: PolicyIndex,
    order: Order,
}

impl RuleSet {
    /// Rules in their order.
    pub fn new(rules: Vec<(Selector, PolicyIndex)>) -> RuleSet {
        let mut set = RuleSet::default();
        for (order, (selector, policy)) in (0..).zip(&rules) {
            set.insert(order, selector, *policy);
        }
        set
    }

    /// Adds a rule behind those of the same order. A selector of two families matches nothing and is not kept.
    pub fn insert(&mut self, order: Order, selector: &Selector, policy: PolicyIndex) {
        if let (Some(source), Some(destination)) = (range4(selector.source), range4(selector.destination)) {
            insert(&mut self.v4, Rule::new(selector, source, destination, (order, policy)));
        } else if let (Some(source), Some(destination)) =
            (range6(selector.source), range6(selector.destination))
        {
            insert(&mut self.v6, Rule::new(selector, source, destination, (order, policy)));
        }
    }

    /// Takes out what [`RuleSet::insert`] added by the same arguments; whether it was there.
    pub fn remove(&mut self, order: Order, selector: &Selector, policy: PolicyIndex) -> bool {
        if let (Some(source), Some(destination)) = (range4(selector.source), range4(selector.destination)) {
            remove(&mut self.v4, &Rule::new(selector, source, destination, (order, policy)))
        } else if let (Some(source), Some(destination)) =
            (range6(selector.source), range6(selector.destination))
        {
            remove(&mut self.v6, &Rule::new(selector, source, destination, (order, policy)))
        } else {
            false
        }
    }

    /// The policy of the first rule that matches, for each of `flows`, into `found` at the same place.
    pub fn find_batch(&self, flows: &[Flow], found: &mut [Option<PolicyIndex>]) {
        for (flow, found) in flows.iter().zip(found) {
            *found = self.find(flow);
        }
    }

    /// What the ordered scan says, whichever layer [`RuleSet::find`] asks: the oracle.
    pub fn scan(&self, flow: &Flow) -> Option<PolicyIndex> {
        self.find(flow)
    }

    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// The policy of the first rule that matches.
    // Always: as a call it would take the flow by way of memory, a few bytes at a time.
    #[inline(always)]
    pub fn find(&self, flow: &Flow) -> Option<PolicyIndex> {
        match (flow.source, flow.destination) {
            (IpAddr::V4(s), IpAddr::V4(d)) => scan(&self.v4, s.to_bits(), d.to_bits(), flow),
            (IpAddr::V6(s), IpAddr::V6(d)) => scan(&self.v6, s.to_bits(), d.to_bits(), flow),
            _ => None,
        }
    }

    /// The same of a packet; `None` where [`Flow::of`] has none.
    #[inline(always)]
    pub fn find_packet(&self, packet: &[u8]) -> Option<Option<PolicyIndex>> {
        // Two ways, so that the flow of a common packet need not be written to memory in between.
        match Flow::of_common(packet) {
            Some(flow) => Some(self.find(&flow)),
            None => self.find_uncommon(packet),
        }
    }

    /// The first rule's policy if it is the answer for each of `packets`; `None` says only that they have to
    /// be asked about one by one. A batch most often is of one policy, and one comparison of ranges a packet
    /// costs a third of finding each one's flow.
    #[inline]
    pub fn first_for_all<'a>(
        &self,
        mut packets: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Option<PolicyIndex> {
        match packets.clone().next()?.first()? >> 4 {
            4 => {
                let rule = self.v4.first().filter(|rule| rule.is_plain())?;
                let all = packets.all(|packet| packet.first_chunk().is_some_and(|head| rule.takes4(head)));
                all.then_some(rule.policy)
            }
            _ => {
                let rule = self.v6.first().filter(|rule| rule.is_plain())?;
                let all = packets.all(|packet| packet.first_chunk().is_some_and(|head| rule.takes6(head)));
                all.then_some(rule.policy)
            }
        }
    }

    #[inline(never)]
    fn find_uncommon(&self, packet: &[u8]) -> Option<Option<PolicyIndex>> {
        Flow::of_any(packet).map(|flow| self.find(&flow))
    }
}

fn insert<A: Copy>(rules: &mut Vec<Rule<A>>, rule: Rule<A>) {
    let at = rules.partition_point(|r| r.order <= rule.order);
    rules.insert(at, rule);
}

fn remove<A: Copy + PartialEq>(rules: &mut Vec<Rule<A>>, rule: &Rule<A>) -> bool {
    let from = rules.partition_point(|r| r.order < rule.order);
    let here = rules[from..].iter().take_while(|r| r.order == rule.order).position(|r| r == rule);
    here.map(|at| rules.remove(from + at)).is_some()
}

#[inline(always)]
fn scan<A: Copy + PartialOrd>(
    rules: &[Rule<A>],
    source: A,
    destination: A,
    flow: &Flow,
) -> Option<PolicyIndex> {
    rules.iter().find(|rule| rule.matches(source, destination, flow)).map(|rule| rule.policy)
}

impl<A: Copy + PartialOrd> Rule<A> {
    fn new(
        selector: &Selector,
        source: (A, A),
        destination: (A, A),
        (order, policy): (Order, PolicyIndex),
    ) -> Rule<A> {
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
            order,
        }
    }

    #[inline(always)]
    fn matches(&self, source: A, destination: A, flow: &Flow) -> bool {
        // One branch for all: which of them fails first differs from rule to rule.
        let here = (self.source.0 <= source)
            & (source <= self.source.1)
            & (self.destination.0 <= destination)
            & (destination <= self.destination.1)
            & ((flow.protocol ^ self.protocol) & self.mask == 0);
        here && (!self.named || self.names(flow.transport))
    }

    /// Addresses and protocol decide, and there are some it matches.
    fn is_plain(&self) -> bool {
        !self.named && self.source.0 <= self.source.1 && self.destination.0 <= self.destination.1
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

impl Rule<u32> {
    /// Whether a plain rule matches a packet without options; `false` also where it is another.
    #[inline(always)]
    fn takes4(&self, head: &[u8; 20]) -> bool {
        let (source, destination) = (get32(head, 12), get32(head, 16));
        (head[0] == 0x45)
            & (get16(head, 2) >= 20)
            & (source.wrapping_sub(self.source.0) <= self.source.1 - self.source.0)
            & (destination.wrapping_sub(self.destination.0) <= self.destination.1 - self.destination.0)
            & ((head[9] ^ self.protocol) & self.mask == 0)
    }
}

impl Rule<u128> {
    /// Whether a plain rule matches a packet of TCP or UDP without extension headers; `false` also where it
    /// is another.
    #[inline(always)]
    fn takes6(&self, head: &[u8; 40]) -> bool {
        let source = u128::from_be_bytes(get_array(head, 8));
        let destination = u128::from_be_bytes(get_array(head, 24));
        (head[0] >> 4 == 6)
            & matches!(head[6], protocol::TCP | protocol::UDP)
            & (source.wrapping_sub(self.source.0) <= self.source.1 - self.source.0)
            & (destination.wrapping_sub(self.destination.0) <= self.destination.1 - self.destination.0)
            & ((head[6] ^ self.protocol) & self.mask == 0)
    }
}

fn range4(range: AddressRange) -> Option<(u32, u32)> {
    match (range.first, range.last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => Some((first.to_bits(), last.to_bits())),
        _ => None,
    }
}

fn range6(range: AddressRange) -> Option<(u128, u128)> {
    match (range.first, range.last) {
        (IpAddr::V6(first), IpAddr::V6(last)) => Some((first.to_bits(), last.to_bits())),
        _ => None,
    }
}
