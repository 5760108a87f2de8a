//! A gateway's SPD as its data path asks it: rules that change under flow caches of a few buckets.

use std::net::IpAddr;
use std::sync::Arc;

use weir_core::ipsec::spd::{
    AddressRange, Explained, Found, Lookup, LookupSpec, PolicyIndex, PortRange, Question, RuleSet, Selector,
    Way, WayCounters, first_match,
};
use weir_core::ipsec::{Action, Direction, Flow, FlowCaches, Policy, Spd, SpdId};
use weir_core::wire::build::Frame;

pub const SECRET: u64 = 0x5ec2e7;

pub struct Site {
    pub caches: FlowCaches,
    pub spd: Spd,
    pub id: SpdId,
    pub oracle: bool,
    pub lookup: Lookup,
    rules: Vec<(Selector, PolicyIndex)>,
}

pub fn direction(way: Way) -> Direction {
    if matches!(way, Way::Ipv4Outbound | Way::Ipv6Outbound) { Direction::Out } else { Direction::In }
}

/// Caches of so many buckets each way.
pub fn caches(buckets: u32) -> FlowCaches {
    FlowCaches::new(&LookupSpec { caches: [Some(buckets); 4], ..LookupSpec::default() }, SECRET)
}

/// An SPD of rules that are the same in both directions; one policy for each.
pub fn spd(rules: &[(Selector, Action)], epochs: [u64; 2]) -> Spd {
    let policy = |action| {
        let (name, out, inbound, counters) = (String::new(), vec![], vec![], Arc::default());
        Arc::new(Policy { name, action, out, inbound, counters })
    };
    let set = Arc::new(RuleSet::new(indexed(rules)));
    Spd {
        name: "spd".into(),
        policies: rules.iter().map(|&(_, action)| policy(action)).collect(),
        outbound: set.clone(),
        inbound: set,
        default: Action::Discard,
        epochs,
    }
}

pub fn indexed(rules: &[(Selector, Action)]) -> Vec<(Selector, PolicyIndex)> {
    (0..).zip(rules).map(|(n, &(selector, _))| (selector, PolicyIndex(n))).collect()
}

impl Site {
    /// Caches of so many buckets each way, and no rules.
    pub fn new(buckets: u32) -> Site {
        Site::with(caches(buckets))
    }

    pub fn with(caches: FlowCaches) -> Site {
        let spd = spd(&[], [0, 0]);
        let mut site =
            Site { caches, spd, id: SpdId(0), oracle: false, lookup: Lookup::default(), rules: vec![] };
        site.publish(&[]);
        site
    }

    /// These rules and no others from now on.
    pub fn publish(&mut self, rules: &[(Selector, Action)]) {
        self.spd = spd(rules, [self.caches.next_epoch(), self.caches.next_epoch()]);
        self.rules = indexed(rules);
    }

    pub fn question(&self, direction: Direction) -> Question<'_> {
        Question { spd: &self.spd, id: self.id, direction, caches: &self.caches, oracle: self.oracle }
    }

    pub fn find(&mut self, direction: Direction, packets: &[Vec<u8>]) -> Vec<Found> {
        let mut found = Vec::new();
        let Site { caches, spd, id, oracle, lookup, .. } = self;
        let question = Question { spd, id: *id, direction, caches, oracle: *oracle };
        lookup.find(question, packets.iter().map(Vec::as_slice), &mut found);
        found
    }

    /// What a packet gets, which has to be what the definition says.
    pub fn ask(&mut self, way: Way, packet: &[u8]) -> Action {
        let [found] = self.find(direction(way), &[packet.to_vec()])[..] else {
            panic!("one answer a packet")
        };
        let found = found.expect("an IP packet");
        assert_eq!(found, first_match(&self.rules, &Flow::of(packet).expect("an IP packet")));
        found.map_or(self.spd.default, |index| self.spd.policy(index).expect("a policy").action)
    }

    pub fn explain(&self, way: Way, packet: &[u8]) -> Explained {
        Lookup::explain(self.question(direction(way)), packet).expect("an IP packet")
    }

    pub fn counters(&self, way: Way) -> WayCounters {
        self.lookup.counters().ways[way as usize]
    }

    pub fn occupied(&self, way: Way) -> u64 {
        self.caches.get(way).expect("a cache").occupied()
    }
}

/// Host `n` of a way's family.
pub fn host(way: Way, n: u32) -> IpAddr {
    match way.is_ipv4() {
        true => IpAddr::V4((0x0a00_0000 + n).into()),
        false => IpAddr::V6((0x2001_0db8_u128 << 96 | u128::from(n)).into()),
    }
}

/// Datagram from host 1 to host `n`.
pub fn packet(way: Way, n: u32, port: u16) -> Vec<u8> {
    let frame = Frame::ip(host(way, 1), host(way, n)).expect("of one family");
    frame.packet().udp(1000, port, b"x")
}

pub fn everything(way: Way) -> Selector {
    Selector::within(if way.is_ipv4() { AddressRange::ANY_V4 } else { AddressRange::ANY_V6 })
}

/// Selects what goes to hosts `first`…`last`.
pub fn to(way: Way, first: u32, last: u32) -> Selector {
    Selector {
        destination: AddressRange { first: host(way, first), last: host(way, last) },
        ..everything(way)
    }
}

/// Datagrams to these ports.
pub fn to_ports(way: Way, first: u16, last: u16) -> Selector {
    Selector { protocol: Some(17), destination_ports: PortRange { first, last }, ..everything(way) }
}
