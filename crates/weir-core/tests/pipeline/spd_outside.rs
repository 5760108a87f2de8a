//! Packets that no rule can match, by addresses alone: what they get, who is asked about them, and that a change of policies
//! is obeyed by the next packet.

use crate::common::site::{any, any6, *};
use weir_core::ipsec::spd::first_match;
use weir_core::ipsec::spd::{
    AddressRange, Layer, LookupSpec, PolicyIndex, RuleSet, Selector, Way, WayCounters,
};
use weir_core::ipsec::{Action, Flow};
use weir_core::packet::DeviceId;
use weir_core::random::SplitMix64;
use weir_core::verdict::Reason;
use weir_core::wire::build::Frame;

/// Far networks, and others beside them.
const OTHERS: [(&str, &str); 2] = [("10.40.0.0", "10.40.255.255"), ("2001:db8:40::", "2001:db8:40:ffff::")];

fn site(oracle: bool) -> Site {
    let mut site = Site::policy_mode(gcm());
    site.ask_by(LookupSpec { layer: Layer::Auto, oracle, ..LookupSpec::default() });
    site.default = Action::Bypass;
    site.policies = (0..2).map(|six| Rule::new(Action::Discard, to_others(six))).collect();
    site.publish_policies();
    site
}

fn to_others(six: usize) -> Selector {
    let (first, last) = OTHERS[six];
    Selector { destination: range(first, last), ..[any(), any6()][six] }
}

/// `count` packets to the far end, of the families named.
fn outward(families: &[usize], count: usize) -> Vec<(DeviceId, Vec<u8>)> {
    let of = |n: usize| {
        let six = families[n % families.len()];
        (DeviceId(0), frame(LAN, NEAR[six], FAR[six]).udp(1000 + n as u16, 9, b"payload"))
    };
    (0..count).map(of).collect()
}

fn inward(six: usize, count: usize) -> Vec<(DeviceId, Vec<u8>)> {
    let of = |n: usize| (DeviceId(1), frame(WAN, FAR[six], NEAR[six]).udp(9, 1000 + n as u16, b"payload"));
    (0..count).map(of).collect()
}

fn outside(site: &Site, way: Way) -> u64 {
    let counters = site.w.router.lookups().ways[way as usize];
    assert_eq!(counters.disagreed, 0);
    assert_eq!(WayCounters { outside: 0, ..counters }, WayCounters::default(), "nobody else was asked");
    counters.outside
}

#[test]
fn packets_outside_of_all_rules_get_the_default_and_ask_none_of_them() {
    for oracle in [false, true] {
        for families in [&[0][..], &[1], &[0, 1]] {
            let mut site = site(oracle);
            site.w.send_all(&outward(families, 20));
            assert_eq!(site.w.router.ledger().forwarded, 20);
            let counts = [Way::Ipv4Outbound, Way::Ipv6Outbound].map(|way| outside(&site, way));
            assert_eq!(counts.iter().sum::<u64>(), 20);
            for (six, &count) in counts.iter().enumerate() {
                assert_eq!(count > 0, families.contains(&six));
            }
        }
        for six in 0..2 {
            let mut site = site(oracle);
            site.w.send_all(&inward(six, 20));
            assert_eq!(site.w.router.ledger().forwarded, 20);
            assert_eq!(outside(&site, [Way::Ipv4Inbound, Way::Ipv6Inbound][six]), 20);
        }
    }
}

#[test]
fn policy_that_comes_is_obeyed_by_the_next_packet_and_one_that_goes_too() {
    for six in 0..2 {
        let mut site = site(false);
        let packets = outward(&[six], 10);
        site.w.send_all(&packets);
        let discard = Selector { destination: range(FAR[six], FAR[six]), ..[any(), any6()][six] };
        for at in 0..=2 {
            site.policies.insert(at, Rule::new(Action::Discard, discard));
            site.publish_policies();
            let before = site.w.router.ledger().drops.of(Reason::PolicyDiscard);
            site.w.send_all(&packets);
            assert_eq!(site.w.router.ledger().drops.of(Reason::PolicyDiscard) - before, 10);
            site.policies.remove(at);
            site.publish_policies();
            let before = site.w.router.ledger().forwarded;
            site.w.send_all(&packets);
            assert_eq!(site.w.router.ledger().forwarded - before, 10);
        }
        site.default = Action::Discard;
        site.publish_policies();
        let before = site.w.router.ledger().forwarded;
        site.w.send_all(&packets);
        assert_eq!(site.w.router.ledger().forwarded, before, "the default is no rule, and goes all the same");
    }
}

#[test]
fn policy_for_everything_behind_the_others_counts_what_is_outside_of_them() {
    for six in 0..2 {
        let mut site = site(true);
        let rest = Rule::new(Action::Bypass, [any(), any6()][six]);
        let counters = rest.counters.clone();
        site.policies.push(rest);
        site.publish_policies();
        site.w.send_all(&outward(&[six], 12));
        assert_eq!(counters.out_packets.load(std::sync::atomic::Ordering::Relaxed), 12);
        assert_eq!(outside(&site, [Way::Ipv4Outbound, Way::Ipv6Outbound][six]), 12);
    }
}

#[test]
fn one_packet_inside_makes_the_rules_be_asked_about_all() {
    let mut site = site(false);
    let discard = Selector { destination: range("10.30.7.7", "10.30.7.7"), ..any() };
    site.policies.push(Rule::new(Action::Discard, discard));
    site.publish_policies();
    let mut packets = outward(&[0], 20);
    packets[13].1 = frame(LAN, NEAR[0], "10.30.7.7").udp(1, 2, b"payload");
    site.w.send_all(&packets);
    assert_eq!(site.w.router.ledger().drops.of(Reason::PolicyDiscard), 1);
    assert_eq!(site.w.router.ledger().forwarded, 19);
    assert_eq!(site.w.router.lookups().way(Way::Ipv4Outbound).outside, 0);
}

/// Whatever the rules, what is said of a batch is what the ordered list says of each of its packets.
#[test]
fn random_rules_and_packets_are_answered_as_by_the_ordered_list() {
    let mut random = SplitMix64::new(11);
    let mut said = [0; 2];
    for round in 0..2000 {
        let mut address = |wide: u64| u32::MAX - ((random.below(wide) as u32) << (round % 24));
        let rules: Vec<(Selector, PolicyIndex)> = (0..round % 14)
            .map(|n| {
                let mut some = || {
                    let (a, b) = (address(64), address(64));
                    AddressRange {
                        first: std::net::Ipv4Addr::from(a.min(b)).into(),
                        last: std::net::Ipv4Addr::from(a.max(b)).into(),
                    }
                };
                let (source, destination) = match n % 5 {
                    0 => (some(), any().destination),
                    1 => (any().source, some()),
                    4 if round % 3 == 0 => (any().source, any().destination),
                    _ => (some(), some()),
                };
                let protocol = (n % 3 == 1).then_some(17);
                (Selector { source, destination, protocol, ..any() }, PolicyIndex(n))
            })
            .collect();
        let set = RuleSet::new(rules.clone());
        let packets: Vec<Vec<u8>> = (0..1 + round % 5)
            .map(|_| Frame::ipv4(address(80).into(), address(80).into()).packet().udp(1, 2, b"x"))
            .collect();
        let flows: Vec<Flow> = packets.iter().map(|packet| Flow::of(packet).expect("an IP packet")).collect();
        if let Some((answer, counts)) = set.outside_all(packets.iter().map(Vec::as_slice)) {
            said[0] += 1;
            assert_eq!(counts, [packets.len() as u64, 0]);
            assert!(flows.iter().all(|flow| first_match(&rules, flow) == answer));
        }
        let to: Vec<u32> = packets
            .iter()
            .map(|packet| u32::from_be_bytes([packet[16], packet[17], packet[18], packet[19]]))
            .collect();
        if let Some(answer) = set.outside(&to, &[]) {
            said[1] += 1;
            assert!(flows.iter().all(|flow| first_match(&rules, flow) == answer));
        }
    }
    assert!(said.iter().all(|&n| n > 100), "{said:?} of 2000 batches: the test says little");
}
