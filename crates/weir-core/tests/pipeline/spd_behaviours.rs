//! What an SPD does to traffic, whichever of its layers answers: without a flow cache, with one so small that
//! flows fight for it, and with a large one. Behaviours are named as the field's tests of its flow cache name
//! them; every packet goes through the whole router, with the oracle on.

use std::sync::atomic::Ordering::Relaxed;

use crate::common::site::*;
use weir_core::ipsec::Action;
use weir_core::ipsec::spd::{LookupSpec, PortRange, Selector, Way, WayCounters};
use weir_core::packet::DeviceId;
use weir_core::router::Router;
use weir_core::verdict::Reason;
use weir_core::wire::build;

/// Buckets of every cache; 16 is too few for the flows of most tests.
const CACHES: [Option<u32>; 3] = [None, Some(16), Some(4096)];

/// Families of the packets, without and with caches.
fn setups() -> impl Iterator<Item = (usize, Option<u32>)> {
    CACHES.into_iter().flat_map(|buckets| [(0, buckets), (1, buckets)])
}

fn everything(six: usize) -> Selector {
    [any(), any6()][six]
}

/// UDP to ports of the far end.
fn to_ports(six: usize, first: u16, last: u16) -> Selector {
    Selector { protocol: Some(17), destination_ports: PortRange { first, last }, ..everything(six) }
}

/// These rules, behind one that no packet here is of, so that the first never decides about all of a batch.
fn with_rules(buckets: Option<u32>, rules: &[Rule]) -> Site {
    let mut site = Site::policy_mode(gcm());
    site.ask_by(LookupSpec { caches: [buckets; 4], oracle: true, ..LookupSpec::default() });
    put(&mut site, rules);
    site
}

fn put(site: &mut Site, rules: &[Rule]) {
    let never = [0, 1].map(|six| Rule::new(Action::Discard, to_ports(six, 9, 9)));
    site.policies = [&never[..], rules].concat();
    site.publish_policies();
}

fn out(six: usize, port: u16) -> (DeviceId, Vec<u8>) {
    (DeviceId(0), frame(LAN, NEAR[six], FAR[six]).udp(1000, port, b"out"))
}

/// What answers it, as cleartext.
fn back(six: usize, port: u16) -> (DeviceId, Vec<u8>) {
    (DeviceId(1), frame(WAN, FAR[six], NEAR[six]).udp(port, 1000, b"back"))
}

/// How many packets a rule decided about, out and in.
fn counted(rule: &Rule) -> (u64, u64) {
    (rule.counters.out_packets.load(Relaxed), rule.counters.in_packets.load(Relaxed))
}

fn lookups(site: &Site, way: Way) -> WayCounters {
    *site.w.router.lookups().way(way)
}

/// Every packet was answered once, none wrongly.
#[track_caller]
fn settled(site: &Site) {
    for way in Way::ALL {
        let c = lookups(site, way);
        assert_eq!(c.disagreed, 0, "{way:?}: {c:?}");
        let cached = site.lookup.buckets(way).is_some();
        assert_eq!(c.classified + c.scanned, if cached { c.miss } else { c.classified + c.scanned });
    }
}

/// Sends a frame so often, one a batch; how often it was forwarded.
fn times(site: &mut Site, n: usize, frame: &(DeviceId, Vec<u8>)) -> u64 {
    (0..n).map(|_| site.w.send_all(std::slice::from_ref(frame)).forwarded).sum()
}

#[test]
fn bypass_passes_both_ways_and_every_packet_counts() {
    for (six, buckets) in setups() {
        let rule = Rule::new(Action::Bypass, everything(six));
        let mut site = with_rules(buckets, std::slice::from_ref(&rule));
        assert_eq!(times(&mut site, 5, &out(six, 2000)), 5);
        assert_eq!(times(&mut site, 5, &back(six, 2000)), 5);
        assert_eq!(counted(&rule), (5, 5), "cached verdicts count too");
        let len = (out(six, 2000).1.len() - 14) as u64;
        assert_eq!(rule.counters.out_bytes.load(Relaxed), 5 * len);
        let outward = lookups(&site, [Way::Ipv4Outbound, Way::Ipv6Outbound][six]);
        let inward = lookups(&site, [Way::Ipv4Inbound, Way::Ipv6Inbound][six]);
        let hits = if buckets.is_some() { 4 } else { 0 };
        assert_eq!((outward.hit, inward.hit), (hits, hits));
        settled(&site);
    }
}

#[test]
fn discard_drops_both_ways_and_every_packet_counts() {
    for (six, buckets) in setups() {
        let rule = Rule::new(Action::Discard, everything(six));
        let mut site = with_rules(buckets, std::slice::from_ref(&rule));
        for frame in [out(six, 2000), back(six, 2000)] {
            for _ in 0..5 {
                site.w.send_all(std::slice::from_ref(&frame)).dropped_silently(Reason::PolicyDiscard);
            }
        }
        assert_eq!(counted(&rule), (5, 5));
        settled(&site);
    }
}

#[test]
fn discard_holds_wherever_in_a_batch_its_packets_stand() {
    for (six, buckets) in setups() {
        let rule = Rule::new(Action::Discard, everything(six));
        let mut site = with_rules(buckets, std::slice::from_ref(&rule));
        for order in 0..16u16 {
            let frame = |n: u16| if order >> n & 1 == 0 { out(six, 2000 + n) } else { back(six, 2000 + n) };
            let batch: Vec<_> = (0..4).map(frame).collect();
            // The second time, ESP is looked for among what forwarding declines.
            for _ in 0..2 {
                let seen = site.w.send_all(&batch);
                assert_eq!(seen.drops, [(Reason::PolicyDiscard, 4)], "{order:04b}");
            }
        }
        assert_eq!(counted(&rule), (64, 64));
        settled(&site);
    }
}

#[test]
fn slow_path_counts_what_it_discards() {
    let rule = Rule::new(Action::Discard, any());
    let mut site = with_rules(None, std::slice::from_ref(&rule));
    site.w.router = Router::new().without_fast_path();
    site.publish();
    site.w.send_all(&[back(0, 2000)]).dropped_silently(Reason::PolicyDiscard);
    assert_eq!(counted(&rule), (0, 1));
}

#[test]
fn protect_seals_what_leaves_and_takes_only_what_came_sealed() {
    for (six, buckets) in setups() {
        let mut site = with_rules(buckets, &[]);
        let rule = Rule::protect(everything(six), &site.out, &site.back);
        put(&mut site, std::slice::from_ref(&rule));
        for n in 0..5u8 {
            let sent = out(six, 2000);
            let seen = site.w.send_all(std::slice::from_ref(&sent));
            assert_eq!(site.opened(seen.one()), forwarded(&sent.1[14..]));
            let packet = site.far_packet(six, &[n]);
            let sealed = site.sealed(&packet);
            assert_eq!(site.w.send(WAN, &sealed).one()[14..], forwarded(&packet));
            let clear = on_wan(&packet);
            site.w.send(WAN, &clear).dropped_silently(Reason::PolicyUnprotected);
        }
        assert_eq!(counted(&rule), (5, 5));
        settled(&site);
    }
}

#[test]
fn removed_policy_is_not_served_from_the_cache() {
    for (six, buckets) in setups() {
        let rule = Rule::new(Action::Bypass, everything(six));
        let mut site = with_rules(buckets, std::slice::from_ref(&rule));
        for frame in [out(six, 2000), back(six, 2000)] {
            put(&mut site, std::slice::from_ref(&rule));
            assert_eq!(times(&mut site, 3, &frame), 3);
            put(&mut site, &[]);
            site.w.send_all(std::slice::from_ref(&frame)).dropped_silently(Reason::PolicyNone);
        }
        assert_eq!(counted(&rule), (3, 3));
        settled(&site);
    }
}

#[test]
fn readded_policy_decides_again_and_counts_on() {
    for (six, buckets) in setups() {
        let rule = Rule::new(Action::Bypass, everything(six));
        let mut site = with_rules(buckets, std::slice::from_ref(&rule));
        for frame in [out(six, 2000), back(six, 2000)] {
            assert_eq!(times(&mut site, 2, &frame), 2);
            put(&mut site, &[]);
            assert_eq!(times(&mut site, 2, &frame), 0);
            put(&mut site, std::slice::from_ref(&rule));
            assert_eq!(times(&mut site, 2, &frame), 2);
        }
        assert_eq!(counted(&rule), (4, 4));
        settled(&site);
    }
}

#[test]
fn multiple_policies_of_one_batch_each_count_their_own() {
    for (six, buckets) in setups() {
        let mut site = with_rules(buckets, &[]);
        let rules = [
            Rule::new(Action::Bypass, to_ports(six, 2000, 2000)),
            Rule::new(Action::Discard, to_ports(six, 2001, 2001)),
            Rule::protect(to_ports(six, 2002, 2002), &site.out, &site.back),
            Rule::new(Action::Bypass, everything(six)),
        ];
        put(&mut site, &rules);
        let batch = |frame: fn(usize, u16) -> (DeviceId, Vec<u8>)| -> Vec<_> {
            (0..64).map(|n| frame(six, 2000 + n % 4)).collect()
        };
        for _ in 0..3 {
            let seen = site.w.send_all(&batch(out));
            assert_eq!((seen.forwarded, &seen.drops[..]), (48, &[(Reason::PolicyDiscard, 16)][..]));
            let seen = site.w.send_all(&batch(back));
            assert_eq!(seen.forwarded, 32);
            assert_eq!(seen.drops.iter().map(|&(_, n)| n).collect::<Vec<_>>(), [16, 16]);
        }
        let all: Vec<_> = rules.iter().map(counted).collect();
        assert_eq!(all, [(48, 48), (48, 48), (48, 0), (48, 48)]);
        settled(&site);
    }
}

#[test]
fn overwritten_flows_still_get_their_own_verdicts() {
    for six in [0, 1] {
        // 200 flows for 16 buckets, two policies in turn.
        let (even, odd) = ((0..200).step_by(2), (1..200).step_by(2));
        let bypass = even.map(|n| Rule::new(Action::Bypass, to_ports(six, 2000 + n, 2000 + n)));
        let discard = odd.map(|n| Rule::new(Action::Discard, to_ports(six, 2000 + n, 2000 + n)));
        let rules: Vec<_> = bypass.chain(discard).collect();
        let mut site = with_rules(Some(16), &rules);
        for frame in [out, back] {
            for _ in 0..3 {
                for first in (0..200).step_by(50) {
                    let batch: Vec<_> = (first..first + 50).map(|n| frame(six, 2000 + n)).collect();
                    let seen = site.w.send_all(&batch);
                    assert_eq!((seen.forwarded, &seen.drops[..]), (25, &[(Reason::PolicyDiscard, 25)][..]));
                }
            }
        }
        assert!(rules.iter().all(|rule| counted(rule) == (3, 3)));
        assert!(lookups(&site, [Way::Ipv4Outbound, Way::Ipv6Outbound][six]).collision > 300);
        settled(&site);
    }
}

#[test]
fn two_flows_of_one_bucket_take_it_in_turns_and_both_policies_count() {
    for six in [0, 1] {
        let way = [Way::Ipv4Outbound, Way::Ipv6Outbound][six];
        let one = Rule::new(Action::Bypass, to_ports(six, 2000, 2000));
        let others = Rule::new(Action::Bypass, to_ports(six, 2001, 2999));
        let rules = [one.clone(), others.clone()];
        let mut site = with_rules(Some(16), &rules);
        times(&mut site, 1, &out(six, 2000));
        // The flow that finds another in its bucket, though there is one flow alone in the cache.
        let rival = (2001..2999).find(|&port| {
            put(&mut site, &rules);
            site.ask_by(site.lookup);
            put(&mut site, &rules);
            times(&mut site, 1, &out(six, 2000));
            let before = lookups(&site, way).collision;
            times(&mut site, 1, &out(six, port));
            lookups(&site, way).collision > before
        });
        let rival = rival.expect("one flow in 16 shares the bucket");
        let (before, counts) = (lookups(&site, way), (counted(&one).0, counted(&others).0));
        for _ in 0..10 {
            assert_eq!(times(&mut site, 1, &out(six, 2000)), 1);
            assert_eq!(times(&mut site, 1, &out(six, rival)), 1);
        }
        let after = lookups(&site, way);
        assert_eq!((after.hit - before.hit, after.collision - before.collision), (0, 20));
        assert_eq!((counted(&one).0 - counts.0, counted(&others).0 - counts.1), (10, 10));
        settled(&site);
    }
}

/// What passes of packets to each destination and port, sent twice, so that the second may be a cache's answer.
fn passes(selector: Selector, buckets: Option<u32>, packets: &[(&str, u16, bool)]) {
    let rule = Rule::new(Action::Bypass, selector);
    let mut site = with_rules(buckets, std::slice::from_ref(&rule));
    for &(address, port, expected) in packets {
        let six = usize::from(address.contains(':'));
        let out = frame(LAN, NEAR[six], address).udp(1000, port, b"x");
        let back = frame(WAN, address, NEAR[six]).udp(port, 1000, b"x");
        for (device, bytes) in [(0, &out), (1, &back), (0, &out), (1, &back)] {
            let seen = site.w.send_all(&[(DeviceId(device), bytes.clone())]);
            assert_eq!(seen.forwarded, u64::from(expected), "{address} port {port} by {buckets:?}");
        }
    }
    let expected = 2 * packets.iter().filter(|p| p.2).count() as u64;
    assert_eq!(counted(&rule), (expected, expected));
    settled(&site);
}

#[test]
fn address_range_ends_where_it_says() {
    for buckets in CACHES {
        let four = Selector { destination: range("10.30.0.5", "10.30.0.7"), ..any() };
        let packets = [
            ("10.30.0.4", 1, false),
            ("10.30.0.5", 1, true),
            ("10.30.0.7", 8, true),
            ("10.30.0.8", 1, false),
        ];
        passes(four, buckets, &packets);
        let six = Selector { destination: range("2001:db8:30::5", "2001:db8:30::7"), ..any6() };
        let packets = [
            ("2001:db8:30::4", 1, false),
            ("2001:db8:30::5", 1, true),
            ("2001:db8:30::7", 8, true),
            ("2001:db8:30::8", 1, false),
        ];
        passes(six, buckets, &packets);
    }
}

#[test]
fn port_range_ends_where_it_says() {
    for (six, buckets) in setups() {
        let to = FAR[six];
        let packets = [(to, 99, false), (to, 100, true), (to, 150, true), (to, 200, true), (to, 201, false)];
        passes(to_ports(six, 100, 200), buckets, &packets);
    }
}

#[test]
fn range_of_addresses_and_ports_wants_both() {
    for buckets in CACHES {
        let both = Selector { destination: range("10.30.0.5", "10.30.0.7"), ..to_ports(0, 100, 200) };
        let packets = [
            ("10.30.0.5", 100, true),
            ("10.30.0.7", 200, true),
            ("10.30.0.6", 99, false),
            ("10.30.0.8", 150, false),
            ("10.30.0.4", 201, false),
        ];
        passes(both, buckets, &packets);
    }
}

#[test]
fn rule_for_everything_takes_what_no_rule_before_it_does() {
    for (six, buckets) in setups() {
        let some = Rule::new(Action::Discard, to_ports(six, 2000, 2009));
        let all = Rule::new(Action::Bypass, everything(six));
        let mut site = with_rules(buckets, &[some.clone(), all.clone()]);
        for frame in [out, back] {
            let batch: Vec<_> = (0..40).map(|n| frame(six, 2000 + n)).collect();
            for _ in 0..2 {
                let seen = site.w.send_all(&batch);
                assert_eq!((seen.forwarded, &seen.drops[..]), (30, &[(Reason::PolicyDiscard, 10)][..]));
            }
        }
        assert_eq!((counted(&some), counted(&all)), ((20, 20), (60, 60)));
        settled(&site);
    }
}

#[test]
fn default_drop_holds_both_ways_and_a_cache_remembers_it() {
    for (six, buckets) in setups() {
        let mut site = with_rules(buckets, &[]);
        for frame in [out(six, 2000), back(six, 2000)] {
            for _ in 0..3 {
                site.w.send_all(std::slice::from_ref(&frame)).dropped_silently(Reason::PolicyNone);
            }
        }
        let hits = lookups(&site, [Way::Ipv4Outbound, Way::Ipv6Outbound][six]).hit;
        assert_eq!(hits, if buckets.is_some() { 2 } else { 0 });
        site.default = Action::Bypass;
        site.publish_policies();
        assert_eq!(times(&mut site, 2, &out(six, 2000)), 2);
        assert_eq!(times(&mut site, 2, &back(six, 2000)), 2);
        settled(&site);
    }
}

#[test]
fn policies_that_share_an_sa_are_sealed_in_order_of_arrival() {
    let mut site = with_rules(Some(4096), &[]);
    let rules = [2000, 2001, 2002].map(|p| Rule::protect(to_ports(0, p, p), &site.out, &site.back));
    put(&mut site, &rules);
    let batch: Vec<_> = (0..60).map(|n| out(0, 2000 + n % 3)).collect();
    let seen = site.w.send_all(&batch);
    let ports: Vec<_> = seen.sent.iter().map(|(_, bytes)| site.opened(bytes)[22..24].to_vec()).collect();
    let expected: Vec<_> = (0..60u16).map(|n| (2000 + n % 3).to_be_bytes().to_vec()).collect();
    assert_eq!(ports, expected);
    assert!(rules.iter().all(|rule| counted(rule) == (20, 0)));
    settled(&site);
}

#[test]
fn no_packet_is_judged_by_rules_older_than_its_snapshot() {
    for (six, buckets) in setups() {
        let rules = [Action::Bypass, Action::Discard].map(|action| Rule::new(action, everything(six)));
        let mut site = with_rules(buckets, &rules);
        let batch: Vec<_> = (0..32).flat_map(|n| [out(six, 2000 + n), back(six, 2000 + n)]).collect();
        for round in 0..20 {
            let turn = [rules[round % 2].clone(), rules[(round + 1) % 2].clone()];
            put(&mut site, &turn);
            for _ in 0..2 {
                let seen = site.w.send_all(&batch);
                assert_eq!(seen.forwarded, if round % 2 == 0 { 64 } else { 0 }, "round {round}");
            }
        }
        assert_eq!(rules.map(|rule| counted(&rule)), [(640, 640), (640, 640)]);
        settled(&site);
    }
}

#[test]
fn packet_that_waited_for_its_neighbour_is_judged_by_the_rules_of_its_leaving() {
    for buckets in CACHES {
        let rules = [Action::Bypass, Action::Discard].map(|action| Rule::new(action, any()));
        let mut site = with_rules(buckets, &rules[..1]);
        let held = (DeviceId(0), frame(LAN, NEAR[0], "192.0.2.77").udp(1000, 2000, b"wait"));
        assert_eq!(site.w.send_all(&[held]).forwarded, 0);
        assert_eq!(site.w.router.ledger().held, 1);
        put(&mut site, &rules[1..]);
        site.w.net.resolve(WAN, addr("192.0.2.77"));
        let seen = site.publish();
        assert_eq!(seen.drops, [(Reason::PolicyDiscard, 1)], "{seen:?}");
        settled(&site);
    }
}

#[test]
fn oracle_finds_a_cached_answer_of_other_rules_and_its_own_goes() {
    for six in [0, 1] {
        let mut site = with_rules(Some(4096), &[Rule::new(Action::Bypass, everything(six))]);
        // The defect: other rules by the same epochs.
        site.epochs = Some([7, 8]);
        site.publish_policies();
        let frames = [out(six, 2000), back(six, 2000)];
        for frame in &frames {
            assert_eq!(times(&mut site, 2, frame), 2);
        }
        settled(&site);
        site.policies.remove(2);
        site.publish_policies();
        for frame in &frames {
            site.w.send_all(std::slice::from_ref(frame)).dropped_silently(Reason::PolicyNone);
        }
        for way in [[Way::Ipv4Outbound, Way::Ipv4Inbound], [Way::Ipv6Outbound, Way::Ipv6Inbound]][six] {
            assert_eq!(lookups(&site, way).disagreed, 1, "{way:?}");
        }
        // Without it nobody would have noticed.
        site.lookup.oracle = false;
        site.publish_policies();
        let before = lookups(&site, [Way::Ipv4Outbound, Way::Ipv6Outbound][six]).hit;
        site.w.send_all(&frames[..1]);
        assert_eq!(lookups(&site, [Way::Ipv4Outbound, Way::Ipv6Outbound][six]).hit, before + 1);
    }
}

#[test]
fn every_way_of_a_mixed_batch_is_counted_where_it_belongs() {
    let rules = [0, 1].map(|six| Rule::new(Action::Bypass, everything(six)));
    let mut site = with_rules(Some(64), &rules);
    let arp = build::arp_request((neighbor_mac(WAN, 2), [192, 0, 2, 2].into()), [192, 0, 2, 1].into(), None);
    let batch = [out(0, 1), out(1, 1), back(0, 1), back(1, 1), out(1, 2), (DeviceId(1), arp)];
    site.w.send_all(&batch);
    assert_eq!(Way::ALL.map(|way| lookups(&site, way).miss), [1, 1, 2, 1]);
    settled(&site);
}
