//! Random policies, updates and packets through all layers at once: scan, classifier and flow cache.
//!
//! Promises checked: each answers every packet as [`first_match`] does, before and after any change; each
//! packet is counted once; the oracle agrees; an explanation names the answer that is given.

use std::net::IpAddr;
use std::sync::Arc;

use super::{Layer, Lookup, LookupSpec, Question, Way};
use crate::fuzz_input::Input;
use crate::ipsec::flow_cache::{FlowCaches, NO_EPOCH};
use crate::ipsec::sa::Direction;
use crate::ipsec::spd::{
    Action, AddressRange, Flow, Order, PolicyIndex, PortRange, RuleSet, Selector, Spd, SpdId, first_match,
};
use crate::wire::build::Frame;
use crate::wire::get16;

const LAYERS: [Layer; 3] = [Layer::Auto, Layer::Scan, Layer::Classifier];
/// Few, so that flows meet.
const BUCKETS: u32 = 4;

/// One layer behind caches of its own.
struct Gateway {
    caches: FlowCaches,
    spd: Spd,
    lookup: Lookup,
}

/// Reads `data` as rules that come and go, and packets.
pub fn fuzz_spd(data: &[u8]) {
    let mut input = Input(data);
    let mut rules: [Vec<(Order, Selector, PolicyIndex)>; 2] = [Vec::new(), Vec::new()];
    let mut gateways = LAYERS.map(gateway);
    while !input.0.is_empty() {
        let what = input.byte();
        let direction = if what & 1 == 0 { Direction::In } else { Direction::Out };
        let rules = &mut rules[direction as usize];
        match what >> 1 & 7 {
            0 | 1 => {
                let order = Order::from(input.byte());
                let rule = (order, selector(&mut input), PolicyIndex(u32::from(input.byte() % 16)));
                let at = rules.partition_point(|r| r.0 < order);
                // Policies never share a place.
                if rules.get(at).is_none_or(|r| r.0 != order) {
                    rules.insert(at, rule);
                    gateways.iter_mut().for_each(|g| g.change(direction, (true, rule), what));
                }
            }
            2 if !rules.is_empty() => {
                let rule = rules.remove(input.word() % rules.len());
                gateways.iter_mut().for_each(|g| g.change(direction, (false, rule), what));
            }
            _ => {
                let packets: Vec<Vec<u8>> = (0..1 + input.byte() % 6).map(|_| packet(&mut input)).collect();
                let listed: Vec<_> = rules.iter().map(|&(_, selector, policy)| (selector, policy)).collect();
                gateways.iter_mut().for_each(|g| g.check(direction, &packets, &listed, what & 0x80 != 0));
            }
        }
    }
}

fn gateway(layer: Layer) -> Gateway {
    let spec = LookupSpec { caches: [Some(BUCKETS); 4], ..LookupSpec::default() };
    let rules = Arc::new(RuleSet::default().with_layer(layer));
    let spd = Spd {
        name: String::new(),
        policies: Vec::new(),
        outbound: rules.clone(),
        inbound: rules,
        default: Action::Discard,
        epochs: [u64::MAX, u64::MAX - 1],
    };
    Gateway { caches: FlowCaches::new(&spec, 1), spd, lookup: Lookup::default() }
}

impl Gateway {
    /// A rule comes (`true`) or goes. Most changes are recorded, as control does it; some are not, and after a few
    /// caches are new and epochs begin again.
    fn change(
        &mut self,
        direction: Direction,
        (comes, (order, selector, policy)): (bool, (Order, Selector, PolicyIndex)),
        what: u8,
    ) {
        let rules = match direction {
            Direction::Out => &mut self.spd.outbound,
            Direction::In => &mut self.spd.inbound,
        };
        let set = Arc::make_mut(rules);
        if comes {
            set.insert(order, &selector, policy);
        } else {
            assert!(set.remove(order, &selector, policy), "it was there");
        }
        let epoch = &mut self.spd.epochs[direction as usize];
        let from = std::mem::replace(epoch, self.caches.next_epoch());
        if what & 0x30 != 0x30 {
            set.record((from, *epoch), [(comes, &selector, policy)]);
        } else if what & 0x40 != 0 {
            self.renew();
        }
        if what & 0x80 == 0 {
            self.compile(direction);
        }
    }

    /// Works out what is outside of all rules, as publishing does.
    fn compile(&mut self, direction: Direction) {
        match direction {
            Direction::Out => Arc::make_mut(&mut self.spd.outbound).compile(),
            Direction::In => Arc::make_mut(&mut self.spd.inbound).compile(),
        }
    }

    /// Starts anew as [`SpdTable::begin_again`](crate::ipsec::spd::table::SpdTable::begin_again) does: no record outlives the caches.
    fn renew(&mut self) {
        self.caches = self.caches.renewed();
        for rules in [&mut self.spd.inbound, &mut self.spd.outbound] {
            Arc::make_mut(rules).record((NO_EPOCH, NO_EPOCH), []);
        }
        self.spd.epochs = [(); 2].map(|()| self.caches.next_epoch());
    }

    fn check(
        &mut self,
        direction: Direction,
        packets: &[Vec<u8>],
        rules: &[(Selector, PolicyIndex)],
        oracle: bool,
    ) {
        let expected: Vec<_> =
            packets.iter().map(|packet| Flow::of(packet).map(|flow| first_match(rules, &flow))).collect();
        let (caches, spd) = (&self.caches, &self.spd);
        let question = Question { spd, id: SpdId(3), direction, caches, oracle };
        let batch = || packets.iter().map(Vec::as_slice);
        for (packet, expected) in batch().zip(&expected) {
            let explained = Lookup::explain(question, packet);
            assert_eq!(explained.map(|e| e.answer()), *expected);
            assert_eq!(explained.map(|e| (e.found, e.scanned)), expected.map(|e| (e, e)));
        }
        let (before, mut found) = (*self.lookup.counters(), Vec::new());
        self.lookup.find(question, batch(), &mut found);
        assert_eq!(found, expected);
        let is_common = |packet: &&[u8]| packet.len() >= 20 && packet[0] == 0x45 && get16(packet, 2) >= 20;
        for common in [0, batch().filter(is_common).count()] {
            if let Some(policy) = self.lookup.first(question, batch(), common) {
                assert!(expected.iter().all(|&expected| expected == Some(Some(policy))));
            }
        }
        let said = self.lookup.outside(question, batch());
        assert!(said.is_none_or(|answer| expected.iter().all(|&expected| expected == Some(answer))));
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        let flows: Vec<Flow> = batch().filter_map(Flow::of).collect();
        for flow in &flows {
            match flow.destination {
                IpAddr::V4(to) => v4.push(to.to_bits()),
                IpAddr::V6(to) => v6.push(to.to_bits()),
            }
        }
        if let Some(answer) = question.rules().outside(&v4, &v6) {
            assert!(flows.iter().all(|flow| first_match(rules, flow) == answer));
        }
        for way in Way::ALL {
            let (now, then) = (self.lookup.counters().ways[way as usize], before.ways[way as usize]);
            let of = |flow: Flow| Way::new(direction, flow.source.is_ipv4()) == way;
            let asked = batch().filter(|packet| Flow::of(packet).is_some_and(of)).count() as u64;
            assert_eq!((now.hit - then.hit) + (now.miss - then.miss), asked);
            let colder = (now.classified - then.classified) + (now.scanned - then.scanned);
            assert_eq!((now.miss - then.miss, now.disagreed), (colder, 0));
            assert!(now.collision + now.stale <= now.miss);
        }
    }
}

/// Addresses close together, at the ends of their family too.
fn address(ipv4: bool, byte: u8) -> IpAddr {
    let n = if byte >= 250 { u32::MAX } else { u32::from(byte % 8) };
    if ipv4 { IpAddr::V4(n.into()) } else { IpAddr::V6((u128::from(n) << 64 | u128::from(n)).into()) }
}

fn selector(input: &mut Input<'_>) -> Selector {
    let kind = input.byte();
    let ipv4 = kind & 1 == 0;
    let mut range = |any: bool| match (any, ipv4) {
        (true, true) => AddressRange::ANY_V4,
        (true, false) => AddressRange::ANY_V6,
        _ => {
            let (a, b) = (address(ipv4, input.byte()), address(ipv4, input.byte()));
            AddressRange { first: a.min(b), last: a.max(b) }
        }
    };
    let (source, destination) = (range(kind & 2 != 0), range(kind & 4 != 0));
    let mut ports = |any: bool| match any {
        true => PortRange::ANY,
        false => {
            let both = input.byte();
            let (a, b) = (u16::from(both & 7), u16::from(both >> 3 & 7));
            PortRange { first: a.min(b), last: a.max(b) }
        }
    };
    let (source_ports, destination_ports) = (ports(kind & 8 != 0), ports(kind & 16 != 0));
    let icmp = ports(kind & 0x60 != 0);
    let protocol = (kind & 0x80 != 0).then(|| protocol(input.byte()));
    Selector { source, destination, protocol, source_ports, destination_ports, icmp }
}

fn protocol(byte: u8) -> u8 {
    [1, 6, 17, 47, 58, 132, 0, 255][usize::from(byte % 8)]
}

fn packet(input: &mut Input<'_>) -> Vec<u8> {
    let kind = input.byte();
    let ipv4 = kind & 1 == 0;
    let (source, destination) = (address(ipv4, input.byte()), address(ipv4, input.byte()));
    let Some(frame) = Frame::ip(source, destination) else { return Vec::new() };
    let mut frame = frame.packet();
    if kind & 0x0e == 2 {
        frame = if ipv4 { frame.options(&[1; 4]) } else { frame.extension(60, &[0; 7]) };
    }
    if kind & 0x0e == 4 {
        frame = frame.fragment(8 * usize::from(input.byte() & 1), true);
    }
    let ports = input.byte();
    let protocol = protocol(input.byte());
    let mut packet = frame.raw(protocol, &[0, ports & 7, 0, ports >> 3 & 7, 0, 0, 0, 0]);
    if kind >= 240 {
        let at = input.word() % packet.len();
        packet[at] = input.byte();
        packet.truncate(input.word() % 128);
    }
    packet
}
