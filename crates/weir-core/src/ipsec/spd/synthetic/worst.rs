//! Rule sets nobody has, each of which takes away what some structure for lookups relies on.

use std::net::IpAddr;

use super::{AddressRange, Family, PortRange, Selector, Shape, SplitMix64, any, random128, range, span};
use crate::wire::protocol::{TCP, UDP};

/// `count` rules, no two alike.
pub fn rules(shape: Shape, family: Family, count: usize, seed: u64) -> Vec<Selector> {
    let mut scatter = SplitMix64::new(seed);
    let numbers = 0..count as u64;
    match shape {
        Shape::Staircase => numbers.map(|n| stair(family, n)).collect(),
        Shape::Wildcards => numbers.map(|n| wildcard(family, n)).collect(),
        Shape::Tuples => sorted(numbers.map(|n| tuple(family, n)).collect(), open_bits),
        Shape::Ranges => sorted(numbers.map(|_| overlap(family, &mut scatter)).collect(), |r| {
            // what hides another is at least as long
            length(r.source)
        }),
        _ => {
            let mut numbers: Vec<u64> = numbers.collect();
            scatter.shuffle(&mut numbers);
            numbers.into_iter().map(|n| pair(family, n)).collect()
        }
    }
}

fn sorted(mut rules: Vec<Selector>, key: impl Fn(&Selector) -> u128) -> Vec<Selector> {
    rules.sort_by_key(key);
    rules
}

fn length(range: AddressRange) -> u128 {
    match (range.first, range.last) {
        (IpAddr::V4(a), IpAddr::V4(b)) => u128::from(b.to_bits() - a.to_bits()),
        (IpAddr::V6(a), IpAddr::V6(b)) => b.to_bits() - a.to_bits(),
        _ => 0,
    }
}

/// The bits a rule of prefixes and powers of two leaves open.
fn open_bits(rule: &Selector) -> u128 {
    let addresses = length(rule.source).count_ones() + length(rule.destination).count_ones();
    let ports = |p: PortRange| (p.last - p.first).count_ones();
    u128::from(addresses + ports(rule.source_ports) + ports(rule.destination_ports))
}

/// A network for tests (RFC 2544, RFC 5180), at the top of 128 bits.
fn bench(family: Family) -> u128 {
    match family {
        Family::V4 => 0xc612 << 112,
        Family::V6 => 0x2001_0002 << 96,
    }
}

fn bits(family: Family) -> u8 {
    match family {
        Family::V4 => 32,
        Family::V6 => 128,
    }
}

fn one(family: Family, host: u64) -> AddressRange {
    range(family, bench(family) | u128::from(host) << (128 - bits(family)), bits(family))
}

fn ports(first: u64, count: u64) -> PortRange {
    PortRange { first: first as u16, last: (first + count - 1) as u16 }
}

/// Half of all ports on either side. Source ports start a step higher with each rule, destination ports a step
/// lower: a packet's rule is the first of thousands that take it, and none hides another.
fn stair(family: Family, n: u64) -> Selector {
    const HALF: u64 = 1 << 15;
    let (step, level) = (n % HALF, n / HALF);
    Selector {
        source: one(family, 1),
        destination: one(family, 2),
        protocol: Some(UDP),
        source_ports: ports(step, HALF),
        // Another level is shorter by a port, so that no two rules are alike.
        destination_ports: ports(HALF - 1 - step, HALF - level.min(HALF - 1)),
        ..any(family)
    }
}

/// One thing named: a source network, a destination network, a source port or a destination port.
fn wildcard(family: Family, n: u64) -> Selector {
    let turn = n / 4;
    // An odd factor takes every number of 16 bits once.
    let port = ports(turn.wrapping_mul(40_503) % (1 << 16), 1);
    // One more bit each time the numbers of 16 bits are used up.
    let (base, len) = match family {
        Family::V4 => (10 << 120, 24),
        Family::V6 => (0x2001_0db8 << 96, 48),
    };
    let (round, place) = (turn / (1 << 16), turn % (1 << 16));
    let network = range(family, base | u128::from(place) << (128 - len), len as u8 + (round % 8) as u8);
    let protocol = Some(if round.is_multiple_of(2) { TCP } else { UDP });
    let all = any(family);
    match n % 4 {
        0 => Selector { source: network, ..all },
        1 => Selector { protocol, destination_ports: port, ..all },
        2 => Selector { destination: network, ..all },
        _ => Selector { protocol, source_ports: port, ..all },
    }
}

/// Lengths of the source and the destination prefix, and spans of both ports as powers of two: a combination of
/// its own for each of the first 295,936 rules. All of them lie beside one packet by the last bit of the source
/// prefix: whoever looks for that one finds nothing wherever they look.
fn tuple(family: Family, n: u64) -> Selector {
    const LENGTHS: u64 = 32;
    const SPANS: u64 = 17;
    const ALL: u64 = LENGTHS * LENGTHS * SPANS * SPANS;
    // Odd and no multiple of 17: every combination comes once.
    let mut turn = n.wrapping_mul(104_729) % ALL;
    let mut digit = |base: u64| {
        let digit = turn % base;
        turn /= base;
        digit
    };
    let step = bits(family) / LENGTHS as u8;
    let (source, destination) = (step * (1 + digit(LENGTHS) as u8), step * (1 + digit(LENGTHS) as u8));
    let anchor = match family {
        Family::V4 => 0x0a55_5555 << 96,
        Family::V6 => (0x2001_0db8 << 96) | (u128::MAX / 3) >> 32,
    };
    let beside = anchor ^ (1 << (128 - source));
    let mut spanned = || {
        let open = digit(SPANS);
        ports(0x5555 >> open << open, 1 << open)
    };
    Selector {
        source: range(family, beside, source),
        destination: range(family, anchor, destination),
        protocol: (n / ALL).is_multiple_of(2).then_some(UDP),
        source_ports: spanned(),
        destination_ports: spanned(),
        ..any(family)
    }
}

/// Ranges with both ends anywhere in a network, each up to a sixty-fourth of it long.
fn overlap(family: Family, scatter: &mut SplitMix64) -> Selector {
    let (base, open) = match family {
        Family::V4 => (10 << 120, 120),
        Family::V6 => (0x2001_0db8 << 96, 96),
    };
    let mut draw = || {
        let room = 1u128 << open;
        let first = random128(scatter) % (room - room / 64);
        let last = first + random128(scatter) % (room / 64);
        span(family, base | first, base | last)
    };
    Selector { source: draw(), destination: draw(), ..any(family) }
}

/// Source and destination host; about as many of the one as of the other.
fn pair(family: Family, n: u64) -> Selector {
    const SIDE: u64 = 317;
    Selector { source: one(family, n % SIDE), destination: one(family, (1 << 15) + n / SIDE), ..any(family) }
}
