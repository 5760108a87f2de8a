//! The rules of one direction, and who answers about them: classifier or ordered scan, by family.
//!
//! Promises: every answer is the ordered scan's ([`super::first_match`]), whichever layer gives it; a rule
//! comes or goes in time that does not depend on how many there are, but for the search of its place.

use std::net::IpAddr;

use crate::ipsec::flow::{has_icmp_type, has_ports};
use crate::packet::BATCH;
use crate::wire::{get_array, get16, get32, protocol};

use super::classifier::{Address, Choices, Classifier, NOWHERE};
pub use super::classifier::{Effort, Stats};
use super::lanes::Laned;
use super::outside::{Coarse, Outside};
use super::recent::Recent;
use super::scan::{Cursor, Ordered, Rule};
use super::{AddressRange, Flow, Layer, PolicyIndex, Selector, Transport};

/// A rule's place in the order of its set: the smallest that matches decides. Rules of one policy may share
/// one; two policies never do.
pub type Order = u64;

/// [`Layer::Auto`]: families of more rules than this are asked by way of the classifier. Here scan and classifier
/// meet, by `cargo bench -p weir-core --bench spd -- threshold`.
const FEW: usize = 48;

/// The first rule of a family, where addresses and protocol alone decide: one look at a packet's header tells
/// whether it matches.
#[derive(Clone, Copy, Debug)]
pub struct First<'a>(Plain<'a>);

#[derive(Clone, Copy, Debug)]
enum Plain<'a> {
    V4(&'a Rule<u32>),
    V6(&'a Rule<u128>),
}

/// Ordered rules of one direction.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    v4: Family<u32>,
    v6: Family<u128>,
    /// What no rule matches; `None` also since rules changed.
    outside4: Option<Box<Outside<u32>>>,
    outside6: Option<Box<Outside<u64>>>,
    recent: Recent,
    layer: Layer,
    secret: u64,
}

#[derive(Clone, Debug)]
struct Family<A: Laned> {
    list: Ordered<A>,
    classifier: Option<Box<Classifier<A>>>,
    /// Where the classifier is tended next.
    hand: Cursor,
}

impl<A: Laned> Default for Family<A> {
    fn default() -> Self {
        Family { list: Ordered::default(), classifier: None, hand: Cursor::default() }
    }
}

impl RuleSet {
    /// Rules in their order.
    pub fn new(rules: Vec<(Selector, PolicyIndex)>) -> RuleSet {
        let mut set = RuleSet { layer: Layer::Scan, ..RuleSet::default() };
        for (order, (selector, policy)) in (0..).zip(&rules) {
            set.insert(order, selector, *policy);
        }
        set.set_layer(Layer::Auto);
        set.compile();
        set
    }

    /// Works out what is outside of all rules, after changes and before packets ask. Where a layer is named, that layer
    /// answers about every packet.
    pub fn compile(&mut self) {
        if self.layer != Layer::Auto {
            return;
        }
        self.outside4 = Outside::new(&self.v4.list, Rule::<u32>::is_everything).map(Box::new);
        self.outside6 = Outside::new(&self.v6.list, Rule::<u128>::is_everything).map(Box::new);
    }

    /// The answer for every packet to these destinations, where it does not depend on more: no rule but one for
    /// everything can match any. `None` says only that packets have to be asked about.
    #[inline]
    pub fn outside(&self, v4: &[u32], v6: &[u128]) -> Option<Option<PolicyIndex>> {
        let four =
            || self.outside4.as_ref().filter(|outside| outside.has_all_to(v4)).map(|outside| outside.rest);
        let six =
            || self.outside6.as_ref().filter(|outside| outside.has_all_to(v6)).map(|outside| outside.rest);
        match (v4.is_empty(), v6.is_empty()) {
            (_, true) => four(),
            (true, false) => six(),
            (false, false) => {
                let answer = four()?;
                (six()? == answer).then_some(answer)
            }
        }
    }

    /// The answer for each of `packets`, and how many of them are IPv4, where addresses are all that is asked: no rule
    /// but one for everything can match any. `None` says only that packets have to be asked about.
    #[inline]
    pub fn outside_all<'a>(
        &self,
        packets: impl Iterator<Item = &'a [u8]>,
    ) -> Option<(Option<PolicyIndex>, [u64; 2])> {
        if self.outside4.is_none() && self.outside6.is_none() {
            return None;
        }
        let (mut answer, mut counts) = (None, [0; 2]);
        for packet in packets {
            let (rest, family) = self.outside_one(packet)?;
            if *answer.get_or_insert(rest) != rest {
                return None;
            }
            counts[family] += 1;
        }
        Some((answer?, counts))
    }

    /// A common packet's answer and family (0 for IPv4) where it is outside.
    #[inline(always)]
    fn outside_one(&self, packet: &[u8]) -> Option<(Option<PolicyIndex>, usize)> {
        if packet.first()? >> 4 == 4 {
            let (head, outside) = (packet.first_chunk::<20>()?, self.outside4.as_ref()?);
            let is_outside = is_common4(head) && outside.has(get32(head, 12), get32(head, 16));
            is_outside.then_some((outside.rest, 0))
        } else {
            let (head, outside) = (packet.first_chunk::<40>()?, self.outside6.as_ref()?);
            let address = |at| u128::from_be_bytes(get_array(head, at)).key();
            let is_outside = is_common6(head) && outside.has(address(8), address(24));
            is_outside.then_some((outside.rest, 1))
        }
    }

    /// The same rules, answered by `layer`.
    pub fn with_layer(mut self, layer: Layer) -> RuleSet {
        self.set_layer(layer);
        self
    }

    pub fn set_layer(&mut self, layer: Layer) {
        self.layer = layer;
        if layer != Layer::Auto {
            (self.outside4, self.outside6) = (None, None);
        }
        self.v4.choose_layer(layer, self.secret);
        self.v6.choose_layer(layer, self.secret);
    }

    /// The same rules, with `secret` as the key of the classifier's hash: who knows it can choose rules and
    /// packets that meet.
    pub fn with_secret(mut self, secret: u64) -> RuleSet {
        self.secret = secret;
        (self.v4.classifier, self.v6.classifier) = (None, None);
        self.set_layer(self.layer);
        self
    }

    /// Adds a rule behind those of the same order. A selector of two families matches nothing and is not kept.
    pub fn insert(&mut self, order: Order, selector: &Selector, policy: PolicyIndex) {
        self.insert_as(order, selector, policy, &mut Choices::default());
    }

    /// The same, with what a copy of these rules chose.
    pub(super) fn insert_as(
        &mut self,
        order: Order,
        selector: &Selector,
        policy: PolicyIndex,
        choices: &mut Choices,
    ) {
        (self.outside4, self.outside6) = (None, None);
        if let (Some(source), Some(destination)) = (range4(selector.source), range4(selector.destination)) {
            self.v4.insert(order, Rule::new(selector, source, destination, policy), choices);
            self.v4.choose_layer(self.layer, self.secret);
        } else if let (Some(source), Some(destination)) =
            (range6(selector.source), range6(selector.destination))
        {
            self.v6.insert(order, Rule::new(selector, source, destination, policy), choices);
            self.v6.choose_layer(self.layer, self.secret);
        }
    }

    /// Takes out what [`RuleSet::insert`] added by the same arguments; whether it was there.
    pub fn remove(&mut self, order: Order, selector: &Selector, policy: PolicyIndex) -> bool {
        self.remove_as(order, selector, policy, &mut Choices::default())
    }

    /// The same, with what a copy of these rules chose.
    pub(super) fn remove_as(
        &mut self,
        order: Order,
        selector: &Selector,
        policy: PolicyIndex,
        choices: &mut Choices,
    ) -> bool {
        (self.outside4, self.outside6) = (None, None);
        if let (Some(source), Some(destination)) = (range4(selector.source), range4(selector.destination)) {
            let was = self.v4.remove(order, &Rule::new(selector, source, destination, policy), choices);
            self.v4.choose_layer(self.layer, self.secret);
            was
        } else if let (Some(source), Some(destination)) =
            (range6(selector.source), range6(selector.destination))
        {
            let was = self.v6.remove(order, &Rule::new(selector, source, destination, policy), choices);
            self.v6.choose_layer(self.layer, self.secret);
            was
        } else {
            false
        }
    }

    /// Says that rules of epoch `from` became these, of epoch `to`, by those that came (`true`) or went, and by
    /// nothing else: answers learnt before then hold as far as no such rule concerns their flow.
    pub fn record<'a>(
        &mut self,
        (from, to): (u64, u64),
        changes: impl IntoIterator<Item = (bool, &'a Selector, PolicyIndex)>,
    ) {
        self.recent.record((from, to), changes);
    }

    /// Whether an answer learnt about a flow in the epoch `then` is certain to be that of these rules, those of
    /// the epoch `now`. `false` says only that they have to be asked.
    pub fn holds(&self, (then, now): (u64, u64), flow: &Flow, answer: Option<PolicyIndex>) -> bool {
        self.recent.holds((then, now), flow, answer)
    }

    /// The policy of the first rule that matches, for each of `flows`, into `found` at the same place.
    pub fn find_batch(&self, flows: &[Flow], found: &mut [Option<PolicyIndex>]) {
        for (flows, found) in flows.chunks(BATCH).zip(found.chunks_mut(BATCH)) {
            found.fill(None);
            self.v4.find_batch(flows, found);
            self.v6.find_batch(flows, found);
        }
    }

    /// What the rules say, one after the other, whichever layer [`RuleSet::find`] asks: the oracle.
    pub fn scan(&self, flow: &Flow) -> Option<PolicyIndex> {
        match (flow.source, flow.destination) {
            (IpAddr::V4(s), IpAddr::V4(d)) => self.v4.list.scan_each(s.to_bits(), d.to_bits(), flow),
            (IpAddr::V6(s), IpAddr::V6(d)) => self.v6.list.scan_each(s.to_bits(), d.to_bits(), flow),
            _ => None,
        }
    }

    /// The place of the first rule that matches among those of the flow's family, from 1.
    pub fn number(&self, flow: &Flow) -> Option<usize> {
        match (flow.source, flow.destination) {
            (IpAddr::V4(s), IpAddr::V4(d)) => self.v4.list.number(s.to_bits(), d.to_bits(), flow),
            (IpAddr::V6(s), IpAddr::V6(d)) => self.v6.list.number(s.to_bits(), d.to_bits(), flow),
            _ => None,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn len(&self) -> usize {
        self.v4.list.len() + self.v6.list.len()
    }

    /// Whether flows of a family are answered by the classifier.
    pub fn classifies(&self, ipv4: bool) -> bool {
        if ipv4 { self.v4.classifier.is_some() } else { self.v6.classifier.is_some() }
    }

    /// The policy of the first rule that matches.
    // Always: as a call it would take the flow by way of memory, a few bytes at a time.
    #[inline(always)]
    pub fn find(&self, flow: &Flow) -> Option<PolicyIndex> {
        match (flow.source, flow.destination) {
            (IpAddr::V4(s), IpAddr::V4(d)) => self.v4.find(s.to_bits(), d.to_bits(), flow),
            (IpAddr::V6(s), IpAddr::V6(d)) => self.v6.find(s.to_bits(), d.to_bits(), flow),
            _ => None,
        }
    }

    /// The policy that a packet matches; `None` where [`Flow::of`] finds no flow in it.
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
    /// costs a third of finding each one's flow. `common` of them are known to have an IPv4 header without options
    /// and a length that covers it: where all are, a rule for everything is asked about none.
    #[inline]
    pub fn first_for_all<'a>(
        &self,
        packets: impl ExactSizeIterator<Item = &'a [u8]> + Clone,
        common: usize,
    ) -> Option<PolicyIndex> {
        let first = self.first(packets.clone().next()?)?;
        let is_known = common == packets.len() && first.is_for_every_ipv4();
        (is_known || first.is_for_all(packets)).then_some(first.policy())
    }

    /// The first rule of the packet's family, if it is plain enough to be asked about a whole batch.
    #[inline]
    pub fn first(&self, packet: &[u8]) -> Option<First<'_>> {
        let plain = match packet.first()? >> 4 {
            4 => Plain::V4(self.v4.list.first().filter(|rule| rule.is_plain())?),
            _ => Plain::V6(self.v6.list.first().filter(|rule| rule.is_plain())?),
        };
        Some(First(plain))
    }

    /// What is kept for each family, IPv4 first.
    pub fn stats(&self) -> [Stats; 2] {
        [self.v4.stats(), self.v6.stats()]
    }

    /// What finding a flow's rule takes.
    pub fn effort(&self, flow: &Flow) -> Effort {
        match (flow.source, flow.destination) {
            (IpAddr::V4(s), IpAddr::V4(d)) => self.v4.effort(s.to_bits(), d.to_bits(), flow),
            (IpAddr::V6(s), IpAddr::V6(d)) => self.v6.effort(s.to_bits(), d.to_bits(), flow),
            _ => Effort::default(),
        }
    }

    /// Bytes taken. Per rule at the most eight entries of the classifier, 80 bytes each with IPv4 and 144 with
    /// IPv6, and twice its place in the ordered list (45 and 105), since lists grow by doubling and do not shrink; each 64
    /// rules at the most, and 16 at the least, have lanes of 1 KiB or 2 KiB besides.
    pub fn memory(&self) -> usize {
        let outside = self.outside4.as_ref().map_or(0, |_| size_of::<Outside<u32>>())
            + self.outside6.as_ref().map_or(0, |_| size_of::<Outside<u64>>());
        size_of::<RuleSet>() + outside + self.v4.memory() + self.v6.memory() + self.recent.memory()
    }

    #[inline(never)]
    fn find_uncommon(&self, packet: &[u8]) -> Option<Option<PolicyIndex>> {
        Flow::of_any(packet).map(|flow| self.find(&flow))
    }
}

impl First<'_> {
    pub fn policy(self) -> PolicyIndex {
        match self.0 {
            Plain::V4(rule) => rule.policy,
            Plain::V6(rule) => rule.policy,
        }
    }

    /// Whether it matches every IPv4 packet whose header has no options and has a length that covers it.
    pub fn is_for_every_ipv4(self) -> bool {
        matches!(self.0, Plain::V4(rule) if rule.is_everything())
    }

    /// Whether it matches each of `packets`; `false` says only that they have to be asked about one by one. No
    /// packet is taken out of `packets` behind the first that says so.
    #[inline(always)]
    pub fn is_for_all<'p>(self, packets: impl Iterator<Item = &'p [u8]>) -> bool {
        match self.0 {
            // Such a rule is most often the only one: nothing but the header's own shape is asked.
            Plain::V4(rule) if rule.is_everything() => all(packets, is_common4),
            Plain::V4(rule) => all(packets, |head| rule.takes4(head)),
            Plain::V6(rule) => all(packets, |head| rule.takes6(head)),
        }
    }
}

/// Whether each packet has a header that will do. A loop, and no `Iterator::all`: what `packets` does on its way
/// is then part of it, and counts in registers.
#[inline(always)]
fn all<'p, const N: usize>(
    packets: impl Iterator<Item = &'p [u8]>,
    will_do: impl Fn(&[u8; N]) -> bool,
) -> bool {
    for packet in packets {
        if !packet.first_chunk().is_some_and(&will_do) {
            return false;
        }
    }
    true
}

/// Whether packets of the flow's protocol have what its transport says: the classifier knows no others.
fn is_regular(flow: &Flow) -> bool {
    match flow.transport {
        Transport::None | Transport::Opaque => true,
        Transport::Ports { .. } => has_ports(flow.protocol),
        Transport::Icmp(_) => has_icmp_type(flow.protocol),
    }
}

impl<A: Address> Family<A> {
    /// Makes or drops the classifier, as layer and number of rules ask. Between `FEW` / 2 and `FEW` it stays
    /// as it is, so that one rule more or less does not build it again and again.
    #[inline]
    fn choose_layer(&mut self, layer: Layer, secret: u64) {
        let wanted = match layer {
            Layer::Scan => false,
            Layer::Classifier => true,
            Layer::Auto if self.classifier.is_some() => self.list.len() > FEW / 2,
            Layer::Auto => self.list.len() > FEW,
        };
        if wanted != self.classifier.is_some() {
            self.classifier = wanted.then(|| Box::new(Classifier::build(&mut self.list, secret)));
        }
    }

    fn insert(&mut self, order: Order, rule: Rule<A>, choices: &mut Choices) {
        let classifier = self.classifier.as_mut();
        let home = classifier.map_or(NOWHERE, |classifier| classifier.insert(order, &rule, choices));
        self.list.insert(order, rule, home);
        self.tend(choices);
    }

    fn remove(&mut self, order: Order, rule: &Rule<A>, choices: &mut Choices) -> bool {
        let Some(home) = self.list.remove(order, rule) else { return false };
        if let Some(classifier) = &mut self.classifier {
            classifier.remove(order, rule, home, &self.list);
        }
        self.tend(choices);
        true
    }

    fn tend(&mut self, choices: &mut Choices) {
        if let Some(classifier) = &mut self.classifier {
            classifier.tend(&mut self.list, &mut self.hand, choices);
        }
    }

    #[inline(always)]
    fn find(&self, source: A, destination: A, flow: &Flow) -> Option<PolicyIndex> {
        match &self.classifier {
            Some(classifier) if is_regular(flow) => classifier.find(source, destination, flow),
            _ => self.list.scan(source, destination, flow),
        }
    }

    /// Leaves alone what is said of flows of the other family.
    fn find_batch(&self, flows: &[Flow], found: &mut [Option<PolicyIndex>]) {
        match &self.classifier {
            // Setting up a batch takes as long as a few lookups.
            Some(classifier) if flows.len() > 4 => {
                classifier.find_batch(flows, found, is_regular, |s, d, flow| self.list.scan(s, d, flow));
            }
            _ => {
                for (flow, found) in flows.iter().zip(found) {
                    if let Some((source, destination)) = A::pair(flow) {
                        *found = self.find(source, destination, flow);
                    }
                }
            }
        }
    }

    fn stats(&self) -> Stats {
        let rules = self.list.len();
        match &self.classifier {
            Some(classifier) => classifier.stats(rules),
            None => Stats { rules, residue: rules, bound: rules, ..Stats::default() },
        }
    }

    fn effort(&self, source: A, destination: A, flow: &Flow) -> Effort {
        match &self.classifier {
            Some(classifier) if is_regular(flow) => classifier.effort(source, destination, flow),
            _ => Effort { tables: 0, compared: self.list.len() },
        }
    }

    fn memory(&self) -> usize {
        self.list.memory() + self.classifier.as_ref().map_or(0, |classifier| classifier.memory())
    }
}

/// Whether a header has no options, and its packet room for it.
#[inline(always)]
fn is_common4(head: &[u8; 20]) -> bool {
    (head[0] == 0x45) & (get16(head, 2) >= 20)
}

/// Whether a header is of TCP or UDP, without extension headers.
#[inline(always)]
fn is_common6(head: &[u8; 40]) -> bool {
    (head[0] >> 4 == 6) & matches!(head[6], protocol::TCP | protocol::UDP)
}

impl Rule<u32> {
    /// Whether it matches every packet of its family.
    fn is_everything(&self) -> bool {
        self.is_for_all_within((0, u32::MAX))
    }

    /// Whether a plain rule matches a packet without options; `false` also where it is another.
    #[inline(always)]
    fn takes4(&self, head: &[u8; 20]) -> bool {
        let (source, destination) = (get32(head, 12), get32(head, 16));
        is_common4(head)
            & (source.wrapping_sub(self.source.0) <= self.source.1 - self.source.0)
            & (destination.wrapping_sub(self.destination.0) <= self.destination.1 - self.destination.0)
            & ((head[9] ^ self.protocol) & self.mask == 0)
    }
}

impl Rule<u128> {
    /// Whether it matches every packet of its family.
    fn is_everything(&self) -> bool {
        self.is_for_all_within((0, u128::MAX))
    }

    /// Whether a plain rule matches a packet of TCP or UDP without extension headers; `false` also where it
    /// is another.
    #[inline(always)]
    fn takes6(&self, head: &[u8; 40]) -> bool {
        let source = u128::from_be_bytes(get_array(head, 8));
        let destination = u128::from_be_bytes(get_array(head, 24));
        is_common6(head)
            & (source.wrapping_sub(self.source.0) <= self.source.1 - self.source.0)
            & (destination.wrapping_sub(self.destination.0) <= self.destination.1 - self.destination.0)
            & ((head[6] ^ self.protocol) & self.mask == 0)
    }
}

pub(super) fn range4(range: AddressRange) -> Option<(u32, u32)> {
    match (range.first, range.last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => Some((first.to_bits(), last.to_bits())),
        _ => None,
    }
}

pub(super) fn range6(range: AddressRange) -> Option<(u128, u128)> {
    match (range.first, range.last) {
        (IpAddr::V6(first), IpAddr::V6(last)) => Some((first.to_bits(), last.to_bits())),
        _ => None,
    }
}
