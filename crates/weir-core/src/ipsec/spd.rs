//! The security policy database: an ordered list of rules for each direction (RFC 4301 4.4.1).
//!
//! [`RuleSet::find`] is the one question the data path asks; how it is answered (`spd/scan.rs`: a scan of
//! packed rules; `spd/classifier.rs`) is nobody else's affair, and must be what [`first_match`] says. A rule's
//! place in the list is its priority.

pub(crate) mod classifier;
mod lanes;
pub mod lookup;
mod order;
mod outside;
mod recent;
mod rules;
mod scan;
#[cfg(feature = "synthetic")]
pub mod synthetic;
pub mod table;
mod turns;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::sa::{Direction, Sa, SaId};
#[cfg(feature = "testing")]
pub use classifier::fuzz_classifier;
pub use lookup::{
    Cached, Explained, Found, Layer, Lookup, LookupCounters, LookupSpec, Question, Way, WayCounters,
};
pub use rules::{Effort, First, Order, RuleSet, Stats};

/// Addresses `first`…`last` of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressRange {
    pub first: IpAddr,
    pub last: IpAddr,
}

impl AddressRange {
    pub const ANY_V4: AddressRange =
        AddressRange { first: IpAddr::V4(Ipv4Addr::UNSPECIFIED), last: IpAddr::V4(Ipv4Addr::BROADCAST) };
    pub const ANY_V6: AddressRange = AddressRange {
        first: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        last: IpAddr::V6(Ipv6Addr::from_bits(u128::MAX)),
    };

    /// Whether `address` is in the range; never for a range whose ends are of two families.
    pub fn contains(&self, address: IpAddr) -> bool {
        let v4 = address.is_ipv4();
        (self.first.is_ipv4(), self.last.is_ipv4()) == (v4, v4) && (self.first..=self.last).contains(&address)
    }
}

/// Ports `first`…`last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

impl PortRange {
    pub const ANY: PortRange = PortRange { first: 0, last: u16::MAX };

    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

/// What a packet must be for a rule to be its rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Selector {
    pub source: AddressRange,
    pub destination: AddressRange,
    /// `None` is any protocol.
    pub protocol: Option<u8>,
    pub source_ports: PortRange,
    pub destination_ports: PortRange,
    /// ICMP type and code as one number, type in the upper byte (RFC 4301 4.4.1.1).
    pub icmp: PortRange,
}

/// What a packet is, as selectors see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: u8,
    pub transport: Transport,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// The protocol has none.
    None,
    /// A later fragment, or too short: a rule that names ports or types does not match (RFC 4301 7).
    Opaque,
    Ports {
        source: u16,
        destination: u16,
    },
    /// Type in the upper byte, code in the lower.
    Icmp(u16),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Protect,
    Bypass,
    Discard,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Action::Protect => "protect",
            Action::Bypass => "bypass",
            Action::Discard => "discard",
        })
    }
}

/// An index into [`Spd::policies`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PolicyIndex(pub u32);

/// One policy, which may have rules in both directions.
#[derive(Debug)]
pub struct Policy {
    pub name: String,
    pub action: Action,
    /// [`Action::Protect`]: SAs packets leave by, one or one a worker (RFC 9611).
    pub out: Vec<Arc<Sa>>,
    /// SAs packets may come in by.
    pub inbound: Vec<SaId>,
    pub counters: Arc<PolicyCounters>,
}

/// Packets and bytes by direction; shared by all snapshots that have the policy.
#[derive(Debug, Default)]
pub struct PolicyCounters {
    pub out_packets: AtomicU64,
    pub out_bytes: AtomicU64,
    pub in_packets: AtomicU64,
    pub in_bytes: AtomicU64,
}

impl PolicyCounters {
    pub fn count(&self, direction: Direction, bytes: u64) {
        self.count_many(direction, 1, bytes);
    }

    /// Counts a whole run at once.
    pub fn count_many(&self, direction: Direction, packets: u64, bytes: u64) {
        let (count, sum) = self.of(direction);
        count.fetch_add(packets, Ordering::Relaxed);
        sum.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Packets and bytes of a direction.
    pub fn of(&self, direction: Direction) -> (&AtomicU64, &AtomicU64) {
        match direction {
            Direction::Out => (&self.out_packets, &self.out_bytes),
            Direction::In => (&self.in_packets, &self.in_bytes),
        }
    }
}

/// The definition every lookup is held against: the policy of the first selector that matches.
pub fn first_match(rules: &[(Selector, PolicyIndex)], flow: &Flow) -> Option<PolicyIndex> {
    rules.iter().find(|(selector, _)| selector.matches(flow)).map(|&(_, policy)| policy)
}

impl Selector {
    /// Every packet between addresses of `range`.
    pub fn within(range: AddressRange) -> Selector {
        Selector {
            source: range,
            destination: range,
            protocol: None,
            source_ports: PortRange::ANY,
            destination_ports: PortRange::ANY,
            icmp: PortRange::ANY,
        }
    }

    /// Whether it asks for more than addresses and a protocol.
    pub fn names_transport(&self) -> bool {
        (self.source_ports, self.destination_ports, self.icmp)
            != (PortRange::ANY, PortRange::ANY, PortRange::ANY)
    }

    pub fn matches(&self, flow: &Flow) -> bool {
        self.source.contains(flow.source)
            && self.destination.contains(flow.destination)
            && self.protocol.is_none_or(|p| p == flow.protocol)
            && match flow.transport {
                Transport::None | Transport::Opaque => !self.names_transport(),
                Transport::Ports { source, destination } => {
                    self.source_ports.contains(source) && self.destination_ports.contains(destination)
                }
                Transport::Icmp(kind) => self.icmp.contains(kind),
            }
    }
}

/// An index into [`super::Ipsec::spds`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpdId(pub u16);

/// One SPD: the rules of the ports it is enforced on.
#[derive(Debug)]
pub struct Spd {
    pub name: String,
    /// The policies by [`PolicyIndex`], which says nothing about their order.
    pub policies: Vec<Arc<Policy>>,
    /// Shared by snapshots that have the same rules.
    pub outbound: Arc<RuleSet>,
    pub inbound: Arc<RuleSet>,
    /// Where no rule matches: [`Action::Discard`] or [`Action::Bypass`].
    pub default: Action,
    /// Which rules these are, inbound and outbound: never the same for two sets of rules
    /// ([`super::flow_cache::FlowCaches::next_epoch`]). What a cache says of another epoch means nothing.
    pub epochs: [u64; 2],
}

impl Spd {
    pub fn policy(&self, index: PolicyIndex) -> Option<&Policy> {
        self.policies.get(index.0 as usize).map(AsRef::as_ref)
    }

    pub fn epoch(&self, direction: Direction) -> u64 {
        self.epochs[direction as usize]
    }

    /// The policy that decides about `flow`.
    #[inline]
    pub fn find(&self, direction: Direction, flow: &Flow) -> Option<&Policy> {
        self.rules(direction).find(flow).and_then(|index| self.policy(index))
    }

    /// The policy that decides about a packet; `None` where no policy can be asked about it
    /// ([`Flow::of`]).
    #[inline]
    pub fn find_packet(&self, direction: Direction, packet: &[u8]) -> Option<Option<&Policy>> {
        let found = self.rules(direction).find_packet(packet)?;
        Some(found.and_then(|index| self.policy(index)))
    }

    #[inline]
    pub fn rules(&self, direction: Direction) -> &RuleSet {
        match direction {
            Direction::Out => &self.outbound,
            Direction::In => &self.inbound,
        }
    }
}
