//! Which policies can never match, because one above them matches all they would.
//!
//! Promises: a policy is named only if each of its rules lies whole inside one rule of an earlier policy
//! of its direction. Rules are kept by the smallest prefixes their addresses and far ports lie in: what
//! covers a rule has prefixes that hold its own, so a rule is compared with few, whatever the number of
//! rules. Refuses to add rules up: a policy hidden by several only together goes unseen.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::ipsec::Direction;
use crate::ipsec::spd::{AddressRange, PortRange, Selector};
use crate::state::PolicySpec;

/// The shape of a rule: how long the prefixes around its ranges are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shape {
    v4: bool,
    source: u32,
    destination: u32,
    protocol: bool,
    ports: u32,
}

/// And the prefixes.
type Around = (u128, u128, u8, u16);

#[derive(Default)]
struct Rules {
    shapes: Vec<Shape>,
    all: HashMap<(Shape, Around), Vec<(Selector, usize)>>,
}

/// For each policy the first one that hides it, if all its rules are hidden.
pub(super) fn hidden(policies: &[PolicySpec]) -> Vec<Option<usize>> {
    let mut hidden = vec![None; policies.len()];
    let mut open = vec![false; policies.len()];
    for direction in [Direction::Out, Direction::In] {
        let mut above = Rules::default();
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
    fn insert(&mut self, rule: Selector, policy: usize) {
        let shape = Shape::of(&rule);
        let there = self.all.entry((shape, shape.around(&rule))).or_default();
        if there.is_empty() && !self.shapes.contains(&shape) {
            self.shapes.push(shape);
        }
        there.push((rule, policy));
    }

    /// The first policy with a rule that matches all `rule` does.
    fn covering(&self, rule: &Selector) -> Option<usize> {
        let own = Shape::of(rule);
        let wider = self.shapes.iter().filter(|s| s.may_cover(own));
        let near = wider.filter_map(|&s| self.all.get(&(s, s.around(rule))));
        near.flatten().filter(|(other, _)| covers(other, rule)).map(|&(_, policy)| policy).min()
    }
}

impl Shape {
    fn of(rule: &Selector) -> Shape {
        Shape {
            v4: rule.source.first.is_ipv4(),
            source: common(rule.source),
            destination: common(rule.destination),
            protocol: rule.protocol.is_some(),
            ports: (rule.destination_ports.first ^ rule.destination_ports.last).leading_zeros(),
        }
    }

    /// Whether a rule of this shape may hold one of the other.
    fn may_cover(self, other: Shape) -> bool {
        self.v4 == other.v4
            && self.source <= other.source
            && self.destination <= other.destination
            && self.protocol <= other.protocol
            && self.ports <= other.ports
    }

    /// The prefixes of this shape that `rule` begins in.
    fn around(self, rule: &Selector) -> Around {
        let prefix = |range: AddressRange, len: u32| {
            let (bits, width) = number(range.first);
            bits.checked_shr(width - len).unwrap_or(0)
        };
        (
            prefix(rule.source, self.source),
            prefix(rule.destination, self.destination),
            rule.protocol.filter(|_| self.protocol).unwrap_or(0),
            rule.destination_ports.first.checked_shr(16 - self.ports).unwrap_or(0),
        )
    }
}

/// Leading bits all addresses of a range share.
fn common(range: AddressRange) -> u32 {
    let ((first, width), (last, _)) = (number(range.first), number(range.last));
    (first ^ last).leading_zeros() - (128 - width)
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
