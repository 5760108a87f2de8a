//! Which policies can never match, because one above them matches all they would.
//!
//! ```text
//! family ─► destination's prefix ─► source's prefix ─► protocol, prefix of the ports ─► rules
//! ```
//!
//! Promises: a policy is named only if each of its rules lies whole inside one rule of an earlier policy
//! of its direction. Rules are kept in a tree by the smallest prefixes that hold their ranges: what covers
//! a rule has prefixes that hold its own, so it is found on the few paths such prefixes make, whatever the
//! number of rules. Refuses to add rules up: a policy hidden by several only together goes unseen. So does one
//! that [`LOOKS_MAX`] others come before on those paths, which takes rules made to be slow to compare.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::ipsec::Direction;
use crate::ipsec::spd::{AddressRange, PortRange, Selector};
use crate::state::Policies;

/// Rules a rule is compared with: of 100,000 policies that all differ in one field no path asks about, a second.
const LOOKS_MAX: usize = 1024;

/// A place in the tree.
#[derive(Clone, Copy, Debug, Default)]
struct Node {
    id: u32,
    /// Bit `n`: there are children by prefixes of `n + 1` bits; there may always be some by none.
    lens: u128,
}

/// What a child is found by: its parent, a length, and that many bits.
type Way = (u32, u32, u128);

struct Rules {
    roots: [Node; 2],
    nodes: HashMap<Way, Node>,
    /// Rules by [`Node::id`] of the last level; empty for others.
    rules: Vec<Vec<(Selector, usize)>>,
}

/// Finds, for each policy, the first one that hides it, if all its rules are hidden.
pub(crate) fn hidden(policies: &Policies) -> Vec<Option<usize>> {
    let mut hidden = vec![None; policies.len()];
    let mut open = vec![false; policies.len()];
    // Where every policy is for both directions, one is the mirror of the other.
    let mirrored = policies.iter().all(|p| p.direction.is_none());
    let directions = if mirrored { &[Direction::Out][..] } else { &[Direction::Out, Direction::In] };
    for &direction in directions {
        let mut above = Rules::new();
        for (i, policy) in policies.iter().enumerate() {
            let rules = policy.selectors(direction);
            for rule in &rules {
                match above.covering(rule) {
                    Some(by) => hidden[i] = Some(hidden[i].map_or(by, |was: usize| was.min(by))),
                    None => open[i] = true,
                }
            }
            rules.into_iter().for_each(|rule| above.insert(rule, i));
        }
    }
    hidden.into_iter().zip(open).map(|(by, open)| by.filter(|_| !open)).collect()
}

impl Rules {
    fn new() -> Rules {
        let roots = [Node { id: 0, lens: 0 }, Node { id: 1, lens: 0 }];
        Rules { roots, nodes: HashMap::new(), rules: vec![Vec::new(); 2] }
    }

    fn insert(&mut self, rule: Selector, policy: usize) {
        let root = usize::from(rule.source.first.is_ipv4());
        let mut parent: Option<Way> = None;
        for step in [Prefix::of(rule.destination), Prefix::of(rule.source), Prefix::of_ports(&rule, true)] {
            let above = match parent {
                None => &mut self.roots[root],
                Some(way) => self.nodes.entry(way).or_default(),
            };
            above.lens |= step.len.checked_sub(1).map_or(0, |bit| 1 << bit);
            let way = (above.id, step.len, step.bits(step.len));
            let next = self.rules.len() as u32;
            if self.nodes.entry(way).or_insert(Node { id: next, lens: 0 }).id == next {
                self.rules.push(Vec::new());
            }
            parent = Some(way);
        }
        if let Some(leaf) = parent.and_then(|way| self.nodes.get(&way)) {
            self.rules[leaf.id as usize].push((rule, policy));
        }
    }

    /// The first policy with a rule that matches all `rule` does.
    fn covering(&self, rule: &Selector) -> Option<usize> {
        let root = self.roots[usize::from(rule.source.first.is_ipv4())];
        let near = self.holding(root, Prefix::of(rule.destination));
        let near = near.flat_map(|node| self.holding(node, Prefix::of(rule.source)));
        let ports =
            [Some(Prefix::of_ports(rule, false)), rule.protocol.map(|_| Prefix::of_ports(rule, true))];
        let near = near.flat_map(|node| ports.into_iter().flatten().flat_map(move |p| self.holding(node, p)));
        let rules = near.flat_map(|leaf| &self.rules[leaf.id as usize]).take(LOOKS_MAX);
        rules.filter(|(other, _)| covers(other, rule)).map(|&(_, policy)| policy).min()
    }

    /// Children of a node by prefixes that hold `inner`.
    fn holding(&self, node: Node, inner: Prefix) -> impl Iterator<Item = Node> {
        let lens = (0..=inner.len).filter(move |&n| n == 0 || node.lens >> (n - 1) & 1 == 1);
        lens.filter_map(move |len| self.nodes.get(&(node.id, len, inner.bits(len))).copied())
    }
}

/// The smallest prefix around a range, with more in front of it that has to be the same.
#[derive(Clone, Copy, Debug)]
struct Prefix {
    first: u128,
    width: u32,
    len: u32,
    tag: u128,
}

impl Prefix {
    fn of(range: AddressRange) -> Prefix {
        let ((first, width), (last, _)) = (number(range.first), number(range.last));
        Prefix { first, width, len: (first ^ last).leading_zeros() - (128 - width), tag: 0 }
    }

    /// The prefix of the destination's ports, with the protocol or for any.
    fn of_ports(rule: &Selector, own: bool) -> Prefix {
        let PortRange { first, last } = rule.destination_ports;
        let tag = rule.protocol.filter(|_| own).map_or(0, |p| u128::from(p) + 1) << 32;
        Prefix { first: first.into(), width: 16, len: (first ^ last).leading_zeros(), tag }
    }

    /// The first `len` bits, behind the tag.
    fn bits(self, len: u32) -> u128 {
        self.first.checked_shr(self.width - len).unwrap_or(0) | self.tag
    }
}

fn number(address: IpAddr) -> (u128, u32) {
    match address {
        IpAddr::V4(a) => (u128::from(a.to_bits()), 32),
        IpAddr::V6(a) => (a.to_bits(), 128),
    }
}

/// Whether every flow `inner` matches is one of `outer`'s.
fn covers(outer: &Selector, inner: &Selector) -> bool {
    let addresses = |o: AddressRange, i: AddressRange| o.contains(i.first) && o.contains(i.last);
    let ports = |o: PortRange, i: PortRange| o.first <= i.first && i.last <= o.last;
    addresses(outer.source, inner.source)
        && addresses(outer.destination, inner.destination)
        && outer.protocol.is_none_or(|p| inner.protocol == Some(p))
        && ports(outer.source_ports, inner.source_ports)
        && ports(outer.destination_ports, inner.destination_ports)
        && ports(outer.icmp, inner.icmp)
}
