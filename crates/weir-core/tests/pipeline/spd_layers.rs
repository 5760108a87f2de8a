//! Scan, classifier and flow cache are one: whatever changes, whoever asks, at whatever moment.

use crate::testbed::spd as testbed;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use testbed::flow;
use weir_core::ipsec::spd::lookup::fuzz::fuzz_spd;
use weir_core::ipsec::spd::{
    AddressRange, Layer, Lookup, LookupSpec, Order, PolicyIndex, PortRange, Question, RuleSet, Selector,
    Transport, first_match,
};
use weir_core::ipsec::{Action, Direction, Flow, FlowCaches, Spd, SpdId};
use weir_core::wire::build::Frame;

/// A packet that may be of this flow: what it is says [`Flow::of`].
fn packet(flow: &Flow) -> Vec<u8> {
    let frame = Frame::ip(flow.source, flow.destination).expect("of one family").packet();
    let [ports, icmp] = match flow.transport {
        Transport::Ports { source, destination } => [source, destination],
        Transport::Icmp(kind) => [kind, 0],
        Transport::None => [0, 0],
        Transport::Opaque => return frame.fragment(8, false).raw(flow.protocol, &[0; 8]),
    }
    .map(u16::to_be_bytes);
    frame.raw(flow.protocol, &[ports[0], ports[1], icmp[0], icmp[1], 0, 0, 0, 0])
}

/// SPD and direction; a rule put in at an order, or taken out there.
type Change = (usize, Order, Option<(Selector, PolicyIndex)>);

fn change() -> impl Strategy<Value = Change> {
    let rule = testbed::rules(2).prop_map(|rules| rules.first().map(|&(selector, _)| selector));
    (0usize..4, 0u64..12, rule, 0u32..8).prop_map(|(set, order, selector, policy)| {
        (set, order, selector.map(|selector| (selector, PolicyIndex(policy))))
    })
}

/// The rules of two SPDs in two directions, as a list and as every layer has them.
struct Four {
    listed: [BTreeMap<Order, (Selector, PolicyIndex)>; 4],
    layers: Vec<Gateway>,
}

struct Gateway {
    caches: FlowCaches,
    spds: [Spd; 2],
    lookup: Lookup,
}

const DIRECTIONS: [Direction; 2] = [Direction::In, Direction::Out];

impl Gateway {
    fn new(layer: Layer, buckets: Option<u32>) -> Gateway {
        let spec = LookupSpec { caches: [buckets; 4], ..LookupSpec::default() };
        let caches = FlowCaches::new(&spec, 7);
        let spds = [(); 2].map(|()| {
            let set = Arc::new(RuleSet::default().with_layer(layer));
            let epochs = [caches.next_epoch(), caches.next_epoch()];
            spd([set.clone(), set], epochs)
        });
        Gateway { caches, spds, lookup: Lookup::default() }
    }

    /// A rule comes (`true`) or goes, which every third time nobody records.
    fn change(&mut self, set: usize, order: Order, (comes, selector, policy): (bool, Selector, PolicyIndex)) {
        let spd = &mut self.spds[set / 2];
        let rules = if set.is_multiple_of(2) { &mut spd.inbound } else { &mut spd.outbound };
        let rules = Arc::make_mut(rules);
        if comes {
            rules.insert(order, &selector, policy);
        } else {
            assert!(rules.remove(order, &selector, policy), "it is there");
        }
        let epochs = (spd.epochs[set % 2], self.caches.next_epoch());
        spd.epochs[set % 2] = epochs.1;
        if !epochs.1.is_multiple_of(3) {
            rules.record(epochs, [(comes, &selector, policy)]);
        }
    }
}

fn spd([inbound, outbound]: [Arc<RuleSet>; 2], epochs: [u64; 2]) -> Spd {
    Spd { name: String::new(), policies: vec![], outbound, inbound, default: Action::Discard, epochs }
}

impl Four {
    fn new() -> Four {
        let layers = [Layer::Auto, Layer::Scan, Layer::Classifier];
        // So small that flows meet, so large that hardly any do, and none.
        let caches = [Some(2), Some(1 << 10), None];
        let layers = layers.iter().flat_map(|&layer| caches.map(|buckets| Gateway::new(layer, buckets)));
        Four { listed: std::array::from_fn(|_| BTreeMap::new()), layers: layers.collect() }
    }

    fn apply(&mut self, &(set, order, rule): &Change) {
        let before = self.listed[set].remove(&order);
        if let Some((selector, policy)) = before {
            self.layers.iter_mut().for_each(|g| g.change(set, order, (false, selector, policy)));
        }
        if let Some((selector, policy)) = rule {
            self.listed[set].insert(order, (selector, policy));
            self.layers.iter_mut().for_each(|g| g.change(set, order, (true, selector, policy)));
        }
    }

    fn check(&mut self, packets: &[Vec<u8>], oracle: bool) -> Result<(), TestCaseError> {
        for set in 0..4 {
            let rules: Vec<_> = self.listed[set].values().copied().collect();
            let flows = packets.iter().map(|packet| Flow::of(packet));
            let expected: Vec<_> = flows.map(|flow| flow.map(|flow| first_match(&rules, &flow))).collect();
            for Gateway { caches, spds, lookup } in &mut self.layers {
                let (spd, id, direction) = (&spds[set / 2], SpdId(set as u16 / 2), DIRECTIONS[set % 2]);
                let question = Question { spd, id, direction, caches, oracle };
                let mut found = Vec::new();
                lookup.find(question, packets.iter().map(Vec::as_slice), &mut found);
                prop_assert_eq!(&found, &expected);
                prop_assert!(lookup.counters().ways.iter().all(|way| way.disagreed == 0));
            }
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn layers_agree_whatever_changes_between_packets(
        steps in prop::collection::vec(
            (prop::collection::vec(change(), 1..6), prop::collection::vec(flow(), 1..80), any::<bool>()),
            1..4,
        ),
    ) {
        let mut all = Four::new();
        for (changes, flows, oracle) in &steps {
            changes.iter().for_each(|change| all.apply(change));
            let packets: Vec<_> = flows.iter().map(packet).collect();
            // Cold, then with what the caches learnt.
            all.check(&packets, *oracle)?;
            all.check(&packets, *oracle)?;
        }
    }

    #[test]
    fn fuzz_of_all_layers_at_smoke_length(data in prop::collection::vec(any::<u8>(), 0..600)) {
        fuzz_spd(&data);
    }
}

const HOSTS: u32 = 40;

fn host(n: u32) -> std::net::IpAddr {
    std::net::Ipv4Addr::from(0x0a00_0000 + n).into()
}

/// Rules of version `n`: each host has a policy of its own, another in every version; some have none.
fn version(n: u32, caches: &FlowCaches) -> Spd {
    let rule = |h: u32| {
        let only = AddressRange { first: host(h), last: host(h) };
        let any = PortRange::ANY;
        let selector = Selector {
            source: AddressRange::ANY_V4,
            destination: only,
            protocol: None,
            source_ports: any,
            destination_ports: any,
            icmp: any,
        };
        (selector, PolicyIndex((h * 7 + n) % 64))
    };
    let set = Arc::new(RuleSet::new((0..HOSTS).filter(|h| !(h + n).is_multiple_of(5)).map(rule).collect()));
    spd([set.clone(), set], [caches.next_epoch(), caches.next_epoch()])
}

#[test]
fn workers_that_share_caches_get_the_answers_of_the_rules_they_hold() {
    const BATCHES: u32 = 400;
    let spec = LookupSpec { caches: [Some(16); 4], ..LookupSpec::default() };
    let caches = FlowCaches::new(&spec, 3);
    let current = Mutex::new(Arc::new(version(0, &caches)));
    let totals = [const { AtomicU64::new(0) }; 3];
    let worker = |worker: u32| {
        let (mut lookup, mut found) = (Lookup::default(), Vec::new());
        let mut random = 0x9e37_79b9_7f4a_7c15 ^ u64::from(worker);
        for batch in 0..BATCHES {
            if worker == 0 && batch % 8 == 0 {
                let next = Arc::new(version(batch / 8 + 1, &caches));
                *current.lock().expect("no worker panicked") = next;
            }
            // Each goes on with the rules it has for a while, as workers do between two breaths.
            let spd = current.lock().expect("no worker panicked").clone();
            for _ in 0..4 {
                let packets: Vec<_> = (0..32)
                    .map(|_| {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        let frame = Frame::ip(host(1), host(random as u32 % HOSTS)).expect("of one family");
                        frame.packet().udp(1, 2, b"")
                    })
                    .collect();
                let direction = DIRECTIONS[random as usize >> 40 & 1];
                let question =
                    Question { spd: &spd, id: SpdId(0), direction, caches: &caches, oracle: false };
                lookup.find(question, packets.iter().map(Vec::as_slice), &mut found);
                for (packet, found) in packets.iter().zip(&found) {
                    let scanned = Flow::of(packet).map(|flow| spd.rules(direction).scan(&flow));
                    assert_eq!(*found, scanned);
                }
            }
        }
        for way in &lookup.counters().ways {
            for (total, count) in totals.iter().zip([way.hit, way.miss, way.stale]) {
                total.fetch_add(count, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|n| drop(scope.spawn(move || worker(n)))));
    let [hit, miss, stale] = totals.map(AtomicU64::into_inner);
    assert_eq!(hit + miss, 4 * u64::from(BATCHES) * 4 * 32);
    assert!(hit > 0 && stale > 0, "{hit} hits, {stale} stale: nothing was put to the test");
}
