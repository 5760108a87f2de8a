//! Rule sets shaped like those of real filters, made from a number: the same seed gives the same rules.
//!
//! The three first [`Shape`]s follow the families of seeds of D. E. Taylor and J. S. Turner, "ClassBench: A
//! Packet Classification Benchmark" (IEEE/ACM Transactions on Networking 15(3), 2007): access lists, firewalls
//! and IP chains. What is kept, because lookups feel it: the protocols and, by protocol, the pairs of port
//! classes (any, high, low, a range, one port); the pairs of prefix lengths; that addresses come from far fewer
//! networks than there are rules and that many of those lie inside others; and that narrow rules mostly, but
//! not always, stand before wide ones, none behind one that hides it. Shares of access lists are those of the seed acl1, rounded; those of the
//! other two follow what the paper says of them in words (III). What is not kept: whose networks these are.
//! IPv6 takes the same lengths, stretched.
//!
//! The others are the worst a structure for lookups can meet, each by hand.
//!
//! Promises: as many rules as asked for, none hidden by another, the last of which matches everything; [`flows`] are
//! distinct, and most of them are of narrow rules far down the list.

mod flows;
mod worst;

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{AddressRange, PortRange, Selector};
use crate::random::SplitMix64;
use crate::wire::protocol::{ICMPV4, ICMPV6, TCP, UDP};

pub use flows::flows;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    V4,
    V6,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// Access lists: pairs of hosts and small networks, one destination port, TCP.
    Acl,
    /// Firewalls: one side often anywhere, all port classes, few networks.
    Firewall,
    /// IP chains: between the two.
    IpChain,
    /// Every rule is of one pair of addresses, and its port ranges overlap those of half of the others.
    Staircase,
    /// Every rule names one thing, and not the same one: ranges of either side or ports of either side.
    Wildcards,
    /// No two rules have the same prefix lengths and port spans, and each is a step beside one common packet.
    Tuples,
    /// Ranges of addresses that are no prefixes and overlap each other.
    Ranges,
    /// Pairs of hosts, nothing else.
    Hosts,
}

impl Shape {
    pub const ALL: [Shape; 8] = [
        Shape::Acl,
        Shape::Firewall,
        Shape::IpChain,
        Shape::Staircase,
        Shape::Wildcards,
        Shape::Tuples,
        Shape::Ranges,
        Shape::Hosts,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Shape::Acl => "acl",
            Shape::Firewall => "fw",
            Shape::IpChain => "ipc",
            Shape::Staircase => "staircase",
            Shape::Wildcards => "wildcards",
            Shape::Tuples => "tuples",
            Shape::Ranges => "ranges",
            Shape::Hosts => "hosts",
        }
    }

    pub fn named(name: &str) -> Option<Shape> {
        Shape::ALL.into_iter().find(|shape| shape.name() == name)
    }
}

/// `count` rules in their order.
pub fn rules(shape: Shape, family: Family, count: usize, seed: u64) -> Vec<Selector> {
    let narrow = count.saturating_sub(1);
    let mut rules = match shape {
        Shape::Acl => Maker::new(&ACL, family, narrow, seed).run(narrow),
        Shape::Firewall => Maker::new(&FIREWALL, family, narrow, seed).run(narrow),
        Shape::IpChain => Maker::new(&IP_CHAIN, family, narrow, seed).run(narrow),
        worst => worst::rules(worst, family, narrow, seed),
    };
    if count > 0 {
        rules.push(any(family));
    }
    rules
}

/// The rule that matches everything.
pub fn any(family: Family) -> Selector {
    Selector::within(match family {
        Family::V4 => AddressRange::ANY_V4,
        Family::V6 => AddressRange::ANY_V6,
    })
}

/// Port classes of source and destination.
type Pairs = &'static [(u64, Ports, Ports)];

/// How many of what: shares are relative to their sum.
struct Seed {
    /// Protocol (0 is any) and what its ports are.
    protocols: &'static [(u64, u8, Pairs)],
    /// Prefix lengths of source and destination, in bits of IPv4.
    lengths: &'static [(u64, u8, u8)],
    /// How many of 100 addresses drawn were drawn before; source, destination.
    again: (u64, u64),
}

/// The classes of the paper: WC, HI, LO, AR, EM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ports {
    Any,
    High,
    Low,
    Range,
    One,
}

use Ports::{Any, High, Low, One, Range};

const ICMP: u8 = ICMPV4;
const NO_PORTS: Pairs = &[(1, Any, Any)];

const ACL: Seed = Seed {
    protocols: &[
        (85, 0, NO_PORTS),
        (31, ICMP, NO_PORTS),
        (873, TCP, &[(216, Any, Any), (131, Any, Range), (653, Any, One)]),
        (11, UDP, &[(125, Any, Range), (875, Any, One)]),
    ],
    lengths: &[
        (740, 32, 32),
        (35, 31, 32),
        (25, 30, 32),
        (90, 32, 24),
        (30, 32, 23),
        (20, 32, 22),
        (45, 23, 32),
        (30, 23, 31),
        (12, 23, 24),
        (10, 23, 16),
        (9, 8, 32),
        (5, 0, 32),
        (4, 32, 0),
        (2, 0, 8),
    ],
    again: (65, 85),
};

const FIREWALL: Seed = Seed {
    protocols: &[
        (110, 0, NO_PORTS),
        (60, ICMP, NO_PORTS),
        (
            540,
            TCP,
            &[
                (200, Any, Any),
                (330, Any, One),
                (110, One, Any),
                (140, High, One),
                (60, One, High),
                (50, Any, High),
                (40, High, High),
                (40, Any, Range),
                (20, Range, Any),
                (10, Any, Low),
            ],
        ),
        (
            290,
            UDP,
            &[
                (120, Any, Any),
                (330, Any, One),
                (160, One, Any),
                (150, High, One),
                (140, One, One),
                (100, Any, Range),
            ],
        ),
    ],
    lengths: &[
        (230, 0, 32),
        (130, 32, 0),
        (170, 32, 32),
        (90, 0, 24),
        (60, 24, 0),
        (80, 24, 32),
        (70, 32, 24),
        (60, 24, 24),
        (40, 0, 28),
        (30, 16, 32),
        (20, 16, 24),
        (10, 8, 8),
        (10, 0, 0),
    ],
    again: (93, 90),
};

const IP_CHAIN: Seed = Seed {
    protocols: &[
        (150, 0, NO_PORTS),
        (80, ICMP, NO_PORTS),
        (
            430,
            TCP,
            &[
                (230, Any, Any),
                (380, Any, One),
                (110, One, Any),
                (80, Any, Range),
                (60, Range, Any),
                (60, High, One),
                (40, One, High),
                (40, Any, High),
            ],
        ),
        (
            340,
            UDP,
            &[
                (180, Any, Any),
                (380, Any, One),
                (160, One, Any),
                (180, One, One),
                (50, Any, Range),
                (50, High, High),
            ],
        ),
    ],
    lengths: &[
        (340, 32, 32),
        (110, 32, 24),
        (110, 24, 32),
        (90, 24, 24),
        (60, 0, 32),
        (60, 32, 0),
        (50, 27, 32),
        (50, 32, 27),
        (40, 16, 24),
        (40, 24, 16),
        (20, 16, 16),
        (20, 0, 24),
        (10, 8, 16),
    ],
    again: (85, 80),
};

/// Ports rules name one of, and their shares: a few services have most rules.
const SERVICES: [(u64, u16); 16] = [
    (180, 80),
    (140, 443),
    (110, 1521),
    (90, 25),
    (80, 53),
    (60, 22),
    (50, 21),
    (40, 1433),
    (40, 123),
    (40, 135),
    (30, 161),
    (30, 110),
    (30, 23),
    (20, 3306),
    (20, 6000),
    (20, 8080),
];

struct Maker {
    seed: &'static Seed,
    family: Family,
    scatter: SplitMix64,
    /// Every tenth port is none of the [`SERVICES`] but one of these, as many as the set is large.
    ports: u64,
    sources: Networks,
    destinations: Networks,
}

impl Maker {
    fn new(seed: &'static Seed, family: Family, count: usize, number: u64) -> Maker {
        let networks = |again| Networks { again, made: Vec::new() };
        Maker {
            seed,
            family,
            scatter: SplitMix64::new(number),
            ports: (count as u64 / 10).clamp(64, 20_000),
            sources: networks(seed.again.0),
            destinations: networks(seed.again.1),
        }
    }

    fn run(mut self, count: usize) -> Vec<Selector> {
        // what matches everything comes last, and is not made here
        let (mut seen, mut keyed) = (HashSet::from([any(self.family)]), Vec::with_capacity(count));
        while keyed.len() < count {
            let (rule, width) = self.rule();
            if seen.insert(rule) {
                keyed.push((width + noise(rule.destination), volume(&rule), rule));
            }
        }
        keyed.sort_by_key(|&(key, volume, _)| (key, volume));
        keyed.into_iter().map(|(_, _, rule)| rule).collect()
    }

    /// A rule, and how much it takes: bits left open, addresses in those of IPv4.
    fn rule(&mut self) -> (Selector, u64) {
        let seed = self.seed;
        let protocol = *pick(&mut self.scatter, seed.protocols, |p| p.0);
        let &(_, source_class, destination_class) = pick(&mut self.scatter, protocol.2, |p| p.0);
        let &(_, source, destination) = pick(&mut self.scatter, seed.lengths, |l| l.0);
        let source_ports = self.ports(source_class);
        let destination_ports = self.ports(destination_class);
        let open =
            |ports: PortRange| u64::from(u32::from(ports.last - ports.first).checked_ilog2().unwrap_or(0));
        let width = u64::from(64 - source - destination)
            + open(source_ports)
            + open(destination_ports)
            + if protocol.1 == 0 { 8 } else { 0 };
        let rule = Selector {
            source: self.sources.draw(&mut self.scatter, self.family, source),
            destination: self.destinations.draw(&mut self.scatter, self.family, destination),
            protocol: match (protocol.1, self.family) {
                (0, _) => None,
                (ICMP, Family::V6) => Some(ICMPV6),
                (number, _) => Some(number),
            },
            source_ports,
            destination_ports,
            icmp: PortRange::ANY,
        };
        (rule, width)
    }

    fn ports(&mut self, class: Ports) -> PortRange {
        let scatter = &mut self.scatter;
        match class {
            Any => PortRange::ANY,
            Low => PortRange { first: 0, last: 1023 },
            High => PortRange { first: 1024, last: u16::MAX },
            One => {
                let port = match scatter.below(10) {
                    0 => 1024 + scatter.below(self.ports) as u16,
                    _ => pick(scatter, &SERVICES, |s| s.0).1,
                };
                PortRange { first: port, last: port }
            }
            Range => {
                // A service's block: 2 to 100 ports from a round number, or all from there on.
                let first = 100 * (1 + scatter.below(self.ports.min(600))) as u16;
                let last = match scatter.below(10) {
                    0 => u16::MAX,
                    _ => first + [1, 4, 9, 10, 19, 49, 50, 99][scatter.below(8) as usize],
                };
                PortRange { first, last }
            }
        }
    }
}

/// How far a rule may stand from where its width puts it, in bits left open.
const NOISE: u64 = 16;

/// What a rule stands behind its width by: narrow before wide, but organisation by organisation, so that no rule
/// comes before one that lies whole inside of it.
fn noise(destination: AddressRange) -> u64 {
    let (differ, top) = match (destination.first, destination.last) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            ((a.to_bits() ^ b.to_bits()) >> 24 != 0, u64::from(a.to_bits() >> 24))
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            ((a.to_bits() ^ b.to_bits()) >> 96 != 0, (a.to_bits() >> 96) as u64)
        }
        _ => (true, 0),
    };
    if differ { NOISE } else { SplitMix64::new(top).below(NOISE) }
}

/// Ports a rule takes, of both sides.
fn volume(rule: &Selector) -> u64 {
    let open = |ports: PortRange| u64::from(ports.last - ports.first) + 1;
    open(rule.source_ports) * open(rule.destination_ports)
}

/// The networks one side of the rules is drawn from; bits stand at the top of 128.
struct Networks {
    again: u64,
    made: Vec<(u128, u8)>,
}

impl Networks {
    /// A network of `len` bits, as of IPv4: one of those there, or a new one, most often inside of another.
    fn draw(&mut self, scatter: &mut SplitMix64, family: Family, len: u8) -> AddressRange {
        let len = match family {
            Family::V4 => len,
            Family::V6 => stretched(len),
        };
        if len == 0 {
            return range(family, 0, 0);
        }
        if scatter.below(100) < self.again {
            // A few tries: which lengths there are, depends on what was drawn before.
            for _ in 0..8.min(self.made.len()) {
                let (bits, l) = self.made[scatter.below(self.made.len() as u64) as usize];
                if l == len {
                    return range(family, bits, len);
                }
            }
        }
        let around = (0..4.min(self.made.len()))
            .map(|_| self.made[scatter.below(self.made.len() as u64) as usize])
            .find(|&(_, l)| l < len);
        let (outer, outer_len) = match around {
            Some(around) if scatter.below(100) < 70 => around,
            _ => fresh(scatter, family),
        };
        let bits = (outer | (random128(scatter) & !mask(outer_len))) & mask(len);
        self.made.push((bits, len));
        range(family, bits, len)
    }
}

/// The block of some organisation: 10.0.0.0/8 to 99.0.0.0/8, or a /32 of 2001:db8::/26 and up.
fn fresh(scatter: &mut SplitMix64, family: Family) -> (u128, u8) {
    match family {
        Family::V4 => (u128::from(10 + scatter.below(90)) << 120, 8),
        Family::V6 => ((0x2001_0db8u128 + u128::from(scatter.below(64))) << 96, 32),
    }
}

/// A length of IPv6 for one of IPv4: hosts stay hosts, /24s become /48s, what is shorter starts at /25.
fn stretched(len: u8) -> u8 {
    match len {
        0 => 0,
        1..=24 => 24 + len,
        25..=31 => 33 + len,
        _ => 128,
    }
}

fn mask(len: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)
}

fn random128(scatter: &mut SplitMix64) -> u128 {
    u128::from(scatter.next_u64()) << 64 | u128::from(scatter.next_u64())
}

/// The prefix at the top of `bits`.
fn range(family: Family, bits: u128, len: u8) -> AddressRange {
    span(family, bits & mask(len), bits | !mask(len))
}

/// Addresses from one to another, both at the top of 128 bits.
fn span(family: Family, first: u128, last: u128) -> AddressRange {
    let address = |bits: u128| match family {
        Family::V4 => IpAddr::from(Ipv4Addr::from((bits >> 96) as u32)),
        Family::V6 => IpAddr::from(Ipv6Addr::from(bits)),
    };
    AddressRange { first: address(first), last: address(last) }
}

/// One of `all`, by its share.
fn pick<'a, T>(scatter: &mut SplitMix64, all: &'a [T], share: impl Fn(&T) -> u64) -> &'a T {
    let mut draw = scatter.below(all.iter().map(&share).sum());
    let found = all.iter().find(|one| {
        let here = draw < share(one);
        draw = draw.saturating_sub(share(one));
        here
    });
    found.unwrap_or(&all[0])
}

#[cfg(test)]
mod tests;
