//! Rules come and go as bytes say, and all layers are asked.

use std::net::IpAddr;

use crate::ipsec::spd::{
    AddressRange, Flow, Layer, Order, PolicyIndex, PortRange, RuleSet, Selector, Transport, first_match,
};

/// Rules at most: each lookup is held against a scan of them.
const RULES: usize = 96;

/// Small numbers from bytes; 0 where they end.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// A few numbers close together, the ends, and others.
    fn number(&mut self) -> u32 {
        let byte = self.next();
        match byte >> 6 {
            0 | 1 => u32::from(byte & 15),
            2 => u32::MAX - u32::from(byte & 3),
            _ => u32::from(byte) << (byte & 24),
        }
    }

    fn address(&mut self, v4: bool) -> IpAddr {
        let n = self.number();
        if v4 { IpAddr::V4(n.into()) } else { IpAddr::V6((u128::from(n) << 96 | u128::from(n)).into()) }
    }

    /// Now and then one whose last is before its first.
    fn addresses(&mut self, v4: bool) -> AddressRange {
        let kind = self.next();
        if kind & 3 == 0 {
            return if v4 { AddressRange::ANY_V4 } else { AddressRange::ANY_V6 };
        }
        let (a, b) = (self.address(v4), self.address(v4));
        match kind & 31 {
            31 => AddressRange { first: a, last: b },
            n if n & 1 == 1 => AddressRange { first: a, last: a },
            _ => AddressRange { first: a.min(b), last: a.max(b) },
        }
    }

    fn ports(&mut self) -> PortRange {
        let (kind, a, b) = (self.next(), self.number() as u16, self.number() as u16);
        match kind & 7 {
            0..4 => PortRange::ANY,
            4 | 5 => PortRange { first: a, last: a },
            6 => PortRange { first: a.min(b), last: a.max(b) },
            _ => PortRange { first: a, last: b },
        }
    }

    fn protocol(&mut self) -> u8 {
        [6, 17, 1, 58, 132, 47, 0, 255][usize::from(self.next() & 7)]
    }

    fn selector(&mut self, v4: bool) -> Selector {
        Selector {
            source: self.addresses(v4),
            destination: self.addresses(v4),
            protocol: if self.next() & 1 == 0 { None } else { Some(self.protocol()) },
            source_ports: self.ports(),
            destination_ports: self.ports(),
            icmp: self.ports(),
        }
    }

    fn flow(&mut self, v4: bool) -> Flow {
        let (source, destination, protocol) = (self.address(v4), self.address(v4), self.protocol());
        let transport = match self.next() & 3 {
            0 => Transport::None,
            1 => Transport::Opaque,
            2 => Transport::Icmp(self.number() as u16),
            _ => Transport::Ports { source: self.number() as u16, destination: self.number() as u16 },
        };
        Flow { source, destination, protocol, transport }
    }
}

/// Rules as they should stand, by order.
type Model = Vec<(Order, Selector, PolicyIndex)>;

fn change(bytes: &mut Bytes<'_>, model: &mut Model, set: &mut RuleSet) {
    let kind = bytes.next();
    if kind & 3 == 0 && !model.is_empty() {
        let (order, selector, policy) = model.remove(usize::from(bytes.next()) % model.len());
        assert!(set.remove(order, &selector, policy), "a rule that was added can be removed");
        return;
    }
    if model.len() == RULES {
        return;
    }
    // Those of one order have one policy.
    let order = Order::from(bytes.next());
    let rule = (order, bytes.selector(kind & 4 == 0), PolicyIndex(order as u32));
    let at = model.partition_point(|r| r.0 <= order);
    set.insert(order, &rule.1, rule.2);
    model.insert(at, rule);
}

/// `data` is read as changes and lookups.
#[cfg(feature = "testing")]
pub fn fuzz_classifier(data: &[u8]) {
    let mut bytes = Bytes(data);
    let mut model = Model::new();
    let mut set = RuleSet::default().with_secret(u64::from(bytes.next())).with_layer(Layer::Classifier);
    let mut flows = Vec::new();
    while !bytes.0.is_empty() && flows.len() < 64 {
        for _ in 0..bytes.next() & 15 {
            change(&mut bytes, &mut model, &mut set);
        }
        let v4 = bytes.next() & 1 == 0;
        flows.push(bytes.flow(v4));
        if let Some((_, selector, _)) = model.get(usize::from(bytes.next())) {
            // Where a rule ends.
            let last = flows.len() - 1;
            (flows[last].source, flows[last].destination) =
                (selector.source.last, selector.destination.first);
        }
    }
    let rules: Vec<_> = model.iter().map(|&(_, selector, policy)| (selector, policy)).collect();
    let mut found = vec![None; flows.len()];
    set.find_batch(&flows, &mut found);
    let bound = set.stats().iter().map(|stats| stats.bound.max(stats.rules)).max().unwrap_or(0);
    for (flow, found) in flows.iter().zip(found) {
        let expected = first_match(&rules, flow);
        assert_eq!(set.scan(flow), expected, "scan of {flow:?}");
        assert_eq!(set.find(flow), expected, "classifier of {flow:?}");
        assert_eq!(found, expected, "batch with {flow:?}");
        assert!(set.effort(flow).compared <= bound, "bound {bound} of {flow:?}");
    }
}
