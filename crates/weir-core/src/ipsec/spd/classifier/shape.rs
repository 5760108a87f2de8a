//! What tables hash: cells of addresses and ports, under a secret key.
//!
//! A [`Shape`] cuts each field into cells of a power of two. A rule is kept in every cell its ranges touch,
//! whether they are prefixes or not; it fits a shape where those are [`CELLS`] at most.
//!
//! The hash is Multilinear-HM over 32-bit words (Lemire, Kaser: Strongly universal string hashing is fast,
//! 2012): for any two different cells the chance to share a value is 2^-32 over all keys, so that neither
//! packets nor rules can be chosen to meet by who does not know the key.

use std::fmt;
use std::net::IpAddr;

use crate::ipsec::flow::{has_icmp_type, has_ports};
use crate::ipsec::spd::lanes::Laned;
use crate::ipsec::spd::scan::Rule;
use crate::ipsec::spd::{Flow, Transport};
use crate::random::SplitMix64;

/// Entries a rule has in a table at most.
pub(super) const CELLS: u64 = 8;
/// Port ranges: bits that choose a cell.
pub(super) const PORT_CLASSES: &[u8] = &[0, 6, 10, 13, 16];

/// Two words an address at IPv6's size, one for ports, one for the protocol, and what is added.
#[derive(Clone, Debug)]
pub(crate) struct Keys([u64; 11]);

impl Keys {
    pub fn new(secret: u64) -> Keys {
        let mut scatter = SplitMix64::new(secret);
        Keys(std::array::from_fn(|_| scatter.next_u64()))
    }

    #[inline(always)]
    fn pair(&self, n: usize, (a, b): (u32, u32)) -> u64 {
        let first = self.0[n].wrapping_add(u64::from(a));
        first.wrapping_mul(self.0[n + 1].wrapping_add(u64::from(b)))
    }
}

/// An address of a family, as a number.
pub(crate) trait Address: Laned + Ord + fmt::Debug + 'static {
    /// Lengths of prefixes that cells may have, ascending.
    const CLASSES: &'static [u8];

    fn pair(flow: &Flow) -> Option<(Self, Self)>;
    /// The upper `len` bits set.
    fn mask(len: u8) -> Self;
    fn and(self, mask: Self) -> Self;
    /// The first address of the cell that starts `cells` cells behind this one's start.
    fn later(self, cells: u64, len: u8) -> Self;
    /// Cells of `len` bits that `first`…`last` touches; saturates.
    fn cells(first: Self, last: Self, len: u8) -> u64;
    fn hash(keys: &Keys, source: Self, destination: Self) -> u64;
}

impl Address for u32 {
    const CLASSES: &'static [u8] = &[0, 8, 12, 16, 20, 24, 28, 32];

    #[inline(always)]
    fn pair(flow: &Flow) -> Option<(u32, u32)> {
        match (flow.source, flow.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Some((source.to_bits(), destination.to_bits())),
            _ => None,
        }
    }

    fn mask(len: u8) -> u32 {
        u32::MAX.checked_shl(u32::from(32 - len)).unwrap_or(0)
    }

    #[inline(always)]
    fn and(self, mask: u32) -> u32 {
        self & mask
    }

    fn later(self, cells: u64, len: u8) -> u32 {
        if len == 0 { 0 } else { (self & Self::mask(len)) + ((cells as u32) << (32 - len)) }
    }

    fn cells(first: u32, last: u32, len: u8) -> u64 {
        let cell = |a: u32| u64::from(a) >> (32 - len);
        cell(last) - cell(first) + 1
    }

    #[inline(always)]
    fn hash(keys: &Keys, source: u32, destination: u32) -> u64 {
        keys.pair(0, (source, destination))
    }
}

impl Address for u128 {
    const CLASSES: &'static [u8] = &[0, 16, 32, 48, 64, 96, 128];

    #[inline(always)]
    fn pair(flow: &Flow) -> Option<(u128, u128)> {
        match (flow.source, flow.destination) {
            (IpAddr::V6(source), IpAddr::V6(destination)) => Some((source.to_bits(), destination.to_bits())),
            _ => None,
        }
    }

    fn mask(len: u8) -> u128 {
        u128::MAX.checked_shl(u32::from(128 - len)).unwrap_or(0)
    }

    #[inline(always)]
    fn and(self, mask: u128) -> u128 {
        self & mask
    }

    fn later(self, cells: u64, len: u8) -> u128 {
        if len == 0 { 0 } else { (self & Self::mask(len)) + (u128::from(cells) << (128 - len)) }
    }

    fn cells(first: u128, last: u128, len: u8) -> u64 {
        let cell = |a: u128| a.checked_shr(u32::from(128 - len)).unwrap_or(0);
        u64::try_from(cell(last) - cell(first)).map_or(u64::MAX, |n| n.saturating_add(1))
    }

    #[inline(always)]
    fn hash(keys: &Keys, source: u128, destination: u128) -> u64 {
        let words = |n: u32| ((source >> n) as u32, (destination >> n) as u32);
        keys.pair(0, words(0))
            .wrapping_add(keys.pair(4, words(32)))
            .wrapping_add(keys.pair(6, words(64)))
            .wrapping_add(keys.pair(8, words(96)))
    }
}

/// Bits of each field that choose a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Shape {
    pub source: u8,
    pub destination: u8,
    pub source_port: u8,
    pub destination_port: u8,
    pub protocol: bool,
}

/// A shape as it is laid over packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mask<A> {
    pub shape: Shape,
    source: A,
    destination: A,
    ports: u32,
    protocol: u32,
}

/// The flows a rule may match, as boxes of numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent<A> {
    source: (A, A),
    destination: (A, A),
    source_ports: (u16, u16),
    destination_ports: (u16, u16),
    protocol: Option<u8>,
}

/// What a packet is hashed by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point<A> {
    pub source: A,
    pub destination: A,
    /// Ports; an ICMP type and code in the destination's place; else 0.
    pub ports: u32,
    pub protocol: u32,
}

impl<A: Address> Point<A> {
    #[inline(always)]
    pub fn new(source: A, destination: A, flow: &Flow) -> Point<A> {
        let ports = match flow.transport {
            Transport::Ports { source, destination } => u32::from(source) << 16 | u32::from(destination),
            Transport::Icmp(kind) => u32::from(kind),
            Transport::None | Transport::Opaque => 0,
        };
        Point { source, destination, ports, protocol: u32::from(flow.protocol) }
    }
}

impl<A: Address> Extent<A> {
    /// `None` where no packet can match.
    pub fn of(rule: &Rule<A>) -> Option<Extent<A>> {
        let protocol = (rule.mask != 0).then_some(rule.protocol);
        let any = (0, u16::MAX);
        let (source_ports, destination_ports) = match protocol {
            _ if !rule.named => (any, any),
            Some(p) if has_ports(p) => (
                (rule.source_ports.first, rule.source_ports.last),
                (rule.destination_ports.first, rule.destination_ports.last),
            ),
            Some(p) if has_icmp_type(p) => (any, (rule.icmp.first, rule.icmp.last)),
            // It names what packets of this protocol do not have.
            Some(_) => return None,
            // Ports of some packets, types of others.
            None => (any, any),
        };
        let some = rule.source.0 <= rule.source.1
            && rule.destination.0 <= rule.destination.1
            && source_ports.0 <= source_ports.1
            && destination_ports.0 <= destination_ports.1;
        let (source, destination) = (rule.source, rule.destination);
        some.then_some(Extent { source, destination, source_ports, destination_ports, protocol })
    }

    /// Cells it touches by field: source, destination, ports; `None` where it does not fit.
    pub fn cells(&self, shape: Shape) -> Option<[u64; 4]> {
        let source = A::cells(self.source.0, self.source.1, shape.source);
        let destination = A::cells(self.destination.0, self.destination.1, shape.destination);
        if source > CELLS || destination > CELLS || shape.protocol && self.protocol.is_none() {
            return None;
        }
        let source_port = port_cells(self.source_ports, shape.source_port);
        let destination_port = port_cells(self.destination_ports, shape.destination_port);
        let all = source * destination * source_port * destination_port;
        (all <= CELLS).then_some([source, destination, source_port, destination_port])
    }

    /// The finest class of an address in which it touches `most` cells or fewer, as an index.
    fn finest(range: (A, A), most: u64) -> usize {
        A::CLASSES.iter().rposition(|&len| A::cells(range.0, range.1, len) <= most).unwrap_or(0)
    }

    /// Shapes it would fit well, from fine to coarse.
    pub fn shapes(&self, mut each: impl FnMut(Shape)) {
        let steps = |finest: usize| {
            distinct([finest, finest.saturating_sub(1), finest.saturating_sub(3), 0].map(|n| A::CLASSES[n]))
        };
        let port =
            |range| PORT_CLASSES.iter().copied().rfind(|&len| port_cells(range, len) <= 2).unwrap_or(0);
        let (from, to) = (port(self.source_ports), port(self.destination_ports));
        for source in steps(Self::finest(self.source, 2)) {
            for destination in steps(Self::finest(self.destination, 2)) {
                for (source_port, destination_port) in distinct([(from, to), (0, to), (from, 0), (0, 0)]) {
                    for protocol in distinct([self.protocol.is_some(), false]) {
                        each(Shape { source, destination, source_port, destination_port, protocol });
                    }
                }
            }
        }
    }
}

/// Each of them once.
fn distinct<T: Copy + PartialEq, const N: usize>(all: [T; N]) -> impl Iterator<Item = T> {
    (0..N).filter(move |&n| !all[..n].contains(&all[n])).map(move |n| all[n])
}

/// Ports in cells of `16 - len` bits. Any port at all is no range to be cut: a packet may have none.
fn port_cells((first, last): (u16, u16), len: u8) -> u64 {
    if len != 0 && (first, last) == (0, u16::MAX) {
        return CELLS + 1;
    }
    let cell = |port: u16| u64::from(port) >> (16 - len);
    cell(last) - cell(first) + 1
}

impl<A: Address> Mask<A> {
    pub fn new(shape: Shape) -> Mask<A> {
        let port = |len: u8| u32::from((0xffff_0000_u32 >> len) as u16);
        Mask {
            shape,
            source: A::mask(shape.source),
            destination: A::mask(shape.destination),
            ports: port(shape.source_port) << 16 | port(shape.destination_port),
            protocol: if shape.protocol { 0xff } else { 0 },
        }
    }

    /// 32 bits of which any are as good as any others.
    #[inline(always)]
    pub fn hash(&self, keys: &Keys, point: &Point<A>) -> u32 {
        let addresses = A::hash(keys, point.source.and(self.source), point.destination.and(self.destination));
        let rest = keys.pair(2, (point.ports & self.ports, point.protocol & self.protocol));
        (addresses.wrapping_add(rest).wrapping_add(keys.0[10]) >> 32) as u32
    }

    /// How many cells `extent` has here, if it fits, each one's hash given to `each` until that says no.
    pub fn each(&self, keys: &Keys, extent: &Extent<A>, each: impl FnMut(u32) -> bool) -> Option<u64> {
        let counts = extent.cells(self.shape)?;
        self.walk(keys, extent, counts, each).then(|| counts.iter().product())
    }

    /// Gives the hash of each cell of `extent` to `each`, as [`Extent::cells`] counts them, until that says no:
    /// whether it never did.
    #[inline]
    pub fn walk(
        &self,
        keys: &Keys,
        extent: &Extent<A>,
        counts: [u64; 4],
        mut each: impl FnMut(u32) -> bool,
    ) -> bool {
        let port = |first: u16, n: u64, len: u8| u32::from(first) + ((n as u32) << (16 - len));
        for s in 0..counts[0] {
            let source = extent.source.0.later(s, self.shape.source);
            for d in 0..counts[1] {
                let destination = extent.destination.0.later(d, self.shape.destination);
                for p in 0..counts[2] * counts[3] {
                    let (from, to) = (p / counts[3], p % counts[3]);
                    let from = port(extent.source_ports.0, from, self.shape.source_port) & 0xffff;
                    let to = port(extent.destination_ports.0, to, self.shape.destination_port) & 0xffff;
                    let protocol = u32::from(extent.protocol.unwrap_or(0));
                    let point = Point { source, destination, ports: from << 16 | to, protocol };
                    if !each(self.hash(keys, &point)) {
                        return false;
                    }
                }
            }
        }
        true
    }
}
