//! The same traffic under the same policies, asked by scan, by classifier and by flow caches of two sizes:
//! what leaves, what is dropped and what policies count must not differ, whatever changes in between.

use std::sync::atomic::Ordering::Relaxed;

use crate::common::site::any;
use crate::common::site::*;
use proptest::prelude::*;
use weir_core::ipsec::Action;
use weir_core::ipsec::spd::{Layer, LookupSpec, PortRange, Selector, Way};
use weir_core::packet::DeviceId;

/// A rule to be made for each site.
#[derive(Clone, Debug)]
struct Draft {
    six: usize,
    action: Action,
    /// Last bytes of the far address.
    far: (u8, u8),
    protocol: Option<u8>,
    ports: (u16, u16),
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    six: usize,
    inward: bool,
    sealed: bool,
    far: u8,
    port: u16,
    tcp: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Traffic(Vec<Packet>),
    Remove(usize),
    Insert(usize, Draft),
    Default(Action),
}

fn draft() -> impl Strategy<Value = Draft> {
    let action = prop::sample::select(vec![Action::Bypass, Action::Discard, Action::Protect]);
    let protocol = prop::sample::select(vec![None, Some(17), Some(6)]);
    let ports = prop_oneof![Just((0, u16::MAX)), (0u16..8, 0u16..8).prop_map(|(a, b)| (a.min(b), a.max(b)))];
    let far = prop_oneof![Just((0, u8::MAX)), (1u8..8, 1u8..8).prop_map(|(a, b)| (a.min(b), a.max(b)))];
    (0usize..2, action, far, protocol, ports).prop_map(|(six, action, far, protocol, ports)| Draft {
        six,
        action,
        far,
        protocol,
        ports,
    })
}

fn packet() -> impl Strategy<Value = Packet> {
    (0usize..2, prop::bool::ANY, prop::bool::ANY, 1u8..8, 0u16..8, prop::bool::ANY)
        .prop_map(|(six, inward, sealed, far, port, tcp)| Packet { six, inward, sealed, far, port, tcp })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop::collection::vec(packet(), 1..64).prop_map(Step::Traffic),
        1 => prop::num::usize::ANY.prop_map(Step::Remove),
        2 => (prop::num::usize::ANY, draft()).prop_map(|(at, rule)| Step::Insert(at, rule)),
        1 => prop::sample::select(vec![Action::Bypass, Action::Discard]).prop_map(Step::Default),
    ]
}

fn far(six: usize, last: u8) -> String {
    if six == 0 { format!("10.30.0.{last}") } else { format!("2001:db8:30::{last:x}") }
}

impl Draft {
    fn rule(&self, site: &Site) -> Rule {
        let selector = Selector {
            destination: range(&far(self.six, self.far.0), &far(self.six, self.far.1)),
            protocol: self.protocol,
            destination_ports: PortRange { first: self.ports.0, last: self.ports.1 },
            ..[any(), any6()][self.six]
        };
        match self.action {
            Action::Protect => Rule::protect(selector, &site.out, &site.back),
            action => Rule::new(action, selector),
        }
    }
}

impl Packet {
    fn frame(&self, site: &Site) -> (DeviceId, Vec<u8>) {
        let (near, far) = (NEAR[self.six], far(self.six, self.far));
        let (port, from, to) = if self.inward { (WAN, &*far, near) } else { (LAN, near, &*far) };
        let ports = if self.inward { [self.port, 1000] } else { [1000, self.port] };
        let mut segment = ports.map(u16::to_be_bytes).concat();
        segment.extend([0; 16]);
        let bytes = frame(port, from, to).raw(if self.tcp { 6 } else { 17 }, &segment);
        match (self.inward, self.sealed) {
            (true, true) => (DeviceId(1), site.sealed(&bytes[14..])),
            (true, false) => (DeviceId(1), bytes),
            (false, _) => (DeviceId(0), bytes),
        }
    }
}

fn site(layer: Layer, buckets: Option<u32>, rules: &[Draft]) -> Site {
    let mut site = Site::policy_mode(gcm());
    site.ask_by(LookupSpec { caches: [buckets; 4], layer, oracle: true });
    site.policies = rules.iter().map(|rule| rule.rule(&site)).collect();
    site.publish_policies();
    site
}

/// Takes a step; what left and what was dropped.
fn take(site: &mut Site, step: &Step) -> String {
    let len = site.policies.len();
    match step {
        Step::Traffic(packets) => {
            let frames: Vec<_> = packets.iter().map(|packet| packet.frame(site)).collect();
            return format!("{:?}", site.w.send_all(&frames));
        }
        Step::Remove(at) if len > 0 => drop(site.policies.remove(at % len)),
        Step::Remove(_) => {}
        Step::Insert(at, rule) => {
            let rule = rule.rule(site);
            site.policies.insert(at % (len + 1), rule);
        }
        Step::Default(action) => site.default = *action,
    }
    format!("{:?}", site.publish_policies())
}

fn counters(site: &Site) -> Vec<[u64; 4]> {
    let all = site.policies.iter().map(|rule| &rule.counters);
    all.map(|c| [&c.out_packets, &c.out_bytes, &c.in_packets, &c.in_bytes].map(|n| n.load(Relaxed))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn layers_and_caches_do_the_same_to_the_same_traffic(
        rules in prop::collection::vec(draft(), 0..24),
        steps in prop::collection::vec(step(), 1..16),
    ) {
        let mut sites = [
            site(Layer::Scan, None, &rules),
            site(Layer::Classifier, None, &rules),
            site(Layer::Scan, Some(16), &rules),
            site(Layer::Classifier, Some(16), &rules),
            site(Layer::Auto, Some(4096), &rules),
        ];
        for step in &steps {
            let [expected, others @ ..] = sites.each_mut().map(|site| take(site, step));
            for other in others {
                prop_assert_eq!(&other, &expected);
            }
        }
        for site in &sites {
            prop_assert_eq!(counters(site), counters(&sites[0]));
            prop_assert_eq!(site.w.router.ledger(), sites[0].w.router.ledger());
            prop_assert_eq!(site.w.router.port_counters(), sites[0].w.router.port_counters());
            for way in Way::ALL {
                prop_assert_eq!(site.w.router.lookups().way(way).disagreed, 0);
            }
        }
    }
}
