//! The flow cache keeps its promises: what it remembers is what the rules say now, of this very flow.

use crate::testbed::lookup as testbed;
use testbed::{Site, caches, direction, everything, host, packet, to, to_ports};
use weir_core::ipsec::flow_cache::{FlowCache, NO_EPOCH};
use weir_core::ipsec::spd::{Cached, Layer, LookupSpec, PolicyIndex, PortRange, Selector, Way, WayCounters};
use weir_core::ipsec::{Action, Direction, FlowCaches, SpdId};
use weir_core::wire::build::Frame;

use Action::{Bypass, Discard, Protect};

const BUCKETS: u32 = 1 << 10;

#[test]
fn answer_of_the_cache_is_that_of_the_rules_for_each_action() {
    for way in Way::ALL {
        for action in [Bypass, Discard, Protect] {
            let mut site = Site::new(BUCKETS);
            site.publish(&[(to(way, 5, 5), action)]);
            assert_eq!([site.ask(way, &packet(way, 5, 1)), site.ask(way, &packet(way, 5, 1))], [action; 2]);
            let counters = WayCounters { hit: 1, miss: 1, scanned: 1, ..WayCounters::default() };
            assert_eq!(site.counters(way), counters, "{}", way.name());
            assert_eq!(site.occupied(way), 1);
        }
    }
}

#[test]
fn removed_policy_is_not_served_and_one_added_again_is() {
    for way in Way::ALL {
        let mut site = Site::new(BUCKETS);
        let rules = [(to(way, 5, 5), Bypass)];
        for _ in 0..3 {
            site.publish(&rules);
            assert_eq!([(); 2].map(|()| site.ask(way, &packet(way, 5, 1))), [Bypass; 2]);
            site.publish(&[]);
            assert_eq!([(); 2].map(|()| site.ask(way, &packet(way, 5, 1))), [Discard; 2], "default drop");
        }
        let counters = site.counters(way);
        assert_eq!((counters.hit, counters.miss, counters.stale, counters.collision), (6, 6, 5, 0));
        assert_eq!(site.occupied(way), 1);
    }
}

#[test]
fn flows_of_many_policies_each_get_theirs() {
    for way in Way::ALL {
        let mut site = Site::new(BUCKETS);
        let actions = [Bypass, Discard, Protect];
        let rules: Vec<_> = (0..60).map(|n| (to(way, n, n), actions[n as usize % 3])).collect();
        site.publish(&rules);
        for _ in 0..2 {
            for n in 0..60 {
                assert_eq!(site.ask(way, &packet(way, n, 9)), actions[n as usize % 3]);
            }
        }
        let counters = site.counters(way);
        assert_eq!(counters.hit + counters.miss, 120);
        assert!(counters.hit >= 30, "{counters:?}");
    }
}

#[test]
fn rule_put_before_another_overwrites_its_answers() {
    for way in Way::ALL {
        let mut site = Site::new(BUCKETS);
        site.publish(&[(to(way, 0, 9), Bypass)]);
        assert_eq!(site.ask(way, &packet(way, 5, 1)), Bypass);
        site.publish(&[(to(way, 5, 5), Discard), (to(way, 0, 9), Bypass)]);
        assert_eq!(site.ask(way, &packet(way, 5, 1)), Discard);
        assert_eq!(site.ask(way, &packet(way, 6, 1)), Bypass);
        assert_eq!(site.counters(way).stale, 1);
    }
}

/// Two hosts whose datagrams share a bucket of 16.
fn colliding(way: Way) -> [u32; 2] {
    let mut site = Site::new(16);
    for n in 3.. {
        site.ask(way, &packet(way, 2, 1));
        site.ask(way, &packet(way, n, 1));
        if site.counters(way).collision > 0 {
            return [2, n];
        }
        site = Site::new(16);
    }
    unreachable!()
}

#[test]
fn flows_that_share_a_bucket_take_it_from_each_other_and_both_get_their_policy() {
    for way in Way::ALL {
        let [a, b] = colliding(way);
        let mut site = Site::new(16);
        site.publish(&[(to(way, a, a), Bypass), (to(way, b, b), Protect)]);
        for _ in 0..10 {
            assert_eq!(site.ask(way, &packet(way, a, 1)), Bypass);
            assert_eq!(site.ask(way, &packet(way, b, 1)), Protect);
        }
        let counters = WayCounters { miss: 20, collision: 19, scanned: 20, ..WayCounters::default() };
        assert_eq!(site.counters(way), counters);
        assert_eq!(site.occupied(way), 1, "one bucket for both");
        // In one batch as well.
        let batch = [a, b, a, b, a].map(|n| packet(way, n, 1));
        let found = site.find(direction(way), &batch);
        assert_eq!(found, [0, 1, 0, 1, 0].map(|n| Some(Some(PolicyIndex(n)))));
    }
}

#[test]
fn default_decides_where_no_rule_does_and_is_remembered_too() {
    for way in Way::ALL {
        let mut site = Site::new(BUCKETS);
        assert_eq!([(); 3].map(|()| site.ask(way, &packet(way, 5, 1))), [Discard; 3]);
        assert_eq!(site.counters(way).hit, 2);
        site.spd.default = Bypass;
        assert_eq!(site.ask(way, &packet(way, 5, 1)), Bypass, "no rule: whatever the default is now");
    }
}

#[test]
fn rule_for_everything_is_every_flows() {
    for way in Way::ALL {
        let mut site = Site::new(BUCKETS);
        site.publish(&[(everything(way), Bypass)]);
        for n in (0..200).chain(0..200) {
            assert_eq!(site.ask(way, &packet(way, n, n as u16)), Bypass);
        }
        assert_eq!(site.counters(way).scanned, site.counters(way).miss);
    }
}

#[test]
fn ranges_end_where_they_say() {
    for way in Way::ALL {
        let mut site = Site::new(BUCKETS);
        let both = Selector { destination: to(way, 20, 29).destination, ..to_ports(way, 300, 400) };
        site.publish(&[(to(way, 5, 7), Bypass), (to_ports(way, 100, 200), Protect), (both, Bypass)]);
        for _ in 0..2 {
            for (n, port, action) in [
                (4, 1, Discard),
                (5, 1, Bypass),
                (7, 1, Bypass),
                (8, 1, Discard),
                (8, 99, Discard),
                (8, 100, Protect),
                (8, 200, Protect),
                (8, 201, Discard),
                (20, 300, Bypass),
                (29, 400, Bypass),
                (29, 401, Discard),
                (30, 400, Discard),
            ] {
                assert_eq!(site.ask(way, &packet(way, n, port)), action, "{} {n} {port}", way.name());
            }
        }
    }
}

#[test]
fn directions_and_families_do_not_share_answers() {
    let mut site = Site::new(16);
    for (known, way) in Way::ALL.into_iter().enumerate() {
        assert_eq!(site.explain(way, &packet(way, 5, 1)).cached, Cached::Empty);
        site.ask(way, &packet(way, 5, 1));
        let occupied = Way::ALL.map(|way| site.occupied(way)).iter().sum::<u64>();
        assert_eq!(occupied, known as u64 + 1);
    }
}

#[test]
fn spds_do_not_share_answers() {
    for way in Way::ALL {
        let mut site = Site::new(1);
        site.publish(&[(everything(way), Bypass)]);
        site.ask(way, &packet(way, 5, 1));
        assert_eq!(site.explain(way, &packet(way, 5, 1)).cached, Cached::Hit(Some(PolicyIndex(0))));
        site.id = SpdId(1);
        assert_eq!(site.explain(way, &packet(way, 5, 1)).cached, Cached::Collision);
        site.ask(way, &packet(way, 5, 1));
        assert_eq!(site.counters(way).collision, 1);
    }
}

/// Packets of the same addresses and protocol that differ in what their transport is to a selector.
fn kinds(way: Way, protocol: u8) -> Vec<Vec<u8>> {
    let frame = || Frame::ip(host(way, 1), host(way, 2)).expect("of one family").packet();
    let zeros = [0; 8];
    vec![
        frame().raw(protocol, &zeros),
        frame().raw(protocol, &[]),
        frame().raw(protocol, &[0, 0, 0, 1, 0, 0, 0, 0]),
        frame().fragment(8, false).raw(protocol, &zeros),
        frame().raw(protocol, &[8, 0, 0, 0, 0, 0, 0, 0]),
    ]
}

#[test]
fn flows_that_differ_only_in_kind_of_transport_never_answer_for_each_other() {
    for way in Way::ALL {
        for protocol in [1, 6, 17, 47, 58, 132] {
            let all = kinds(way, protocol);
            for a in &all {
                for b in &all {
                    let mut site = Site::new(1);
                    site.ask(way, a);
                    let same = weir_core::ipsec::Flow::of(a) == weir_core::ipsec::Flow::of(b);
                    let expected = if same { Cached::Hit(None) } else { Cached::Collision };
                    assert_eq!(site.explain(way, b).cached, expected, "{a:02x?} {b:02x?}");
                }
            }
        }
    }
}

#[test]
fn port_rule_is_not_asked_about_a_fragment_by_way_of_the_cache() {
    for way in Way::ALL {
        let mut site = Site::new(1);
        site.publish(&[(to_ports(way, 0, 0), Bypass)]);
        let whole = packet(way, 2, 0);
        let frame = Frame::ip(host(way, 1), host(way, 2)).expect("of one family").packet();
        let later = frame.fragment(8, false).raw(17, &[0; 8]);
        for _ in 0..3 {
            assert_eq!([site.ask(way, &whole), site.ask(way, &later)], [Bypass, Discard]);
        }
    }
}

#[test]
fn each_packet_of_a_batch_is_counted_once_and_what_is_no_packet_never() {
    let (v4, v6) = (Way::Ipv4Outbound, Way::Ipv6Outbound);
    let mut site = Site::new(1 << 16);
    site.publish(&[(to(v4, 0, 9), Bypass), (to(v6, 0, 9), Bypass)]);
    let mut batch = Vec::new();
    for n in 0..40 {
        batch.extend([packet(v4, n % 4, 1), vec![0x45; 3], packet(v6, n % 3, 1), Vec::new(), vec![0x10; 60]]);
    }
    let (one, three) = (Some(Some(PolicyIndex(0))), Some(Some(PolicyIndex(1))));
    for _ in 0..2 {
        let found = site.find(Direction::Out, &batch);
        assert_eq!(found.len(), batch.len());
        assert!(found.chunks(5).all(|c| *c == [one, None, three, None, None]), "{found:?}");
    }
    // The first 64 of 200 packets hold 13 of each family: each flow missed as often as it is among them.
    let counters = |way| site.counters(way);
    assert_eq!((counters(v4).hit, counters(v4).miss, counters(v4).scanned), (67, 13, 13));
    assert_eq!((counters(v6).hit, counters(v6).miss, counters(v6).scanned), (67, 13, 13));
    assert_eq!((site.occupied(v4), site.occupied(v6)), (4, 3));
}

#[test]
fn without_a_cache_the_rules_answer_and_nothing_else_is_counted() {
    for way in Way::ALL {
        let mut site = Site::with(FlowCaches::default());
        site.publish(&[(to(way, 5, 5), Bypass)]);
        for n in [5, 6, 5, 6] {
            site.ask(way, &packet(way, n, 1));
            assert_eq!(site.explain(way, &packet(way, n, 1)).cached, Cached::Off);
        }
        assert_eq!(site.counters(way), WayCounters { scanned: 4, ..WayCounters::default() });
    }
}

#[test]
fn rules_without_an_epoch_are_never_remembered() {
    for way in Way::ALL {
        let mut site = Site::new(16);
        site.spd = testbed::spd(&[(everything(way), Bypass)], [NO_EPOCH; 2]);
        for _ in 0..3 {
            let found = site.find(direction(way), &[packet(way, 5, 1)]);
            assert_eq!(found, [Some(Some(PolicyIndex(0)))]);
        }
        assert_eq!((site.occupied(way), site.counters(way).miss), (0, 0));
    }
}

#[test]
fn epochs_never_repeat_and_after_the_last_nothing_is_remembered() {
    let way = Way::Ipv4Inbound;
    let mut site = Site::with(caches(16).after_epoch(u64::MAX - 3));
    assert_eq!(site.spd.epochs, [u64::MAX - 2, u64::MAX - 1]);
    site.publish(&[(everything(way), Bypass)]);
    assert_eq!((site.spd.epochs, site.caches.epochs_left()), ([u64::MAX, NO_EPOCH], 0));
    assert_eq!([site.ask(way, &packet(way, 5, 1)), site.ask(way, &packet(way, 5, 1))], [Bypass; 2]);
    assert_eq!(site.counters(way).hit, 1, "the last epoch is as good as any");
    for action in [Discard, Bypass, Discard] {
        site.publish(&[(everything(way), action)]);
        assert_eq!(site.spd.epochs, [NO_EPOCH; 2]);
        assert_eq!([site.ask(way, &packet(way, 5, 1)), site.ask(way, &packet(way, 5, 1))], [action; 2]);
    }
    assert_eq!(site.counters(way).hit, 1);
}

#[test]
fn caches_made_anew_begin_empty_and_at_the_first_epoch() {
    let way = Way::Ipv6Inbound;
    let old = Site::with(caches(16)).spd.epochs;
    let mut site = Site::with(caches(16));
    site.publish(&[(everything(way), Bypass)]);
    site.ask(way, &packet(way, 5, 1));
    site.caches = site.caches.after_epoch(u64::MAX).renewed();
    let of = |way| site.caches.get(way).map(|cache| (cache.occupied(), cache.buckets()));
    assert_eq!(Way::ALL.map(of), [Some((0, 16)); 4]);
    site.publish(&[(everything(way), Discard)]);
    assert_eq!(site.spd.epochs, old);
    assert_eq!([site.ask(way, &packet(way, 5, 1)), site.ask(way, &packet(way, 5, 1))], [Discard; 2]);
}

#[test]
fn memory_is_what_was_said_before_and_never_grows() {
    let spec = LookupSpec { caches: [Some(100), Some(1), None, Some(4096)], ..LookupSpec::default() };
    let caches = FlowCaches::new(&spec, 1);
    let of = |way| caches.get(way).map(|cache| (u64::from(cache.buckets()), cache.memory()));
    assert_eq!(
        Way::ALL.map(of),
        [Some((128, 128 * 32)), Some((1, 32)), None, Some((4096, 4096 * 64))],
        "rounded up to a power of two"
    );
    assert_eq!(FlowCaches::memory(&spec), 128 * 32 + 32 + 4096 * 64);
    assert_eq!(FlowCache::bytes(Way::Ipv4Inbound, 4 << 20), 128 << 20);
    let mut site = Site::with(caches);
    for n in 0..2000 {
        site.ask(Way::Ipv4Outbound, &packet(Way::Ipv4Outbound, n, 1));
    }
    let cache = site.caches.get(Way::Ipv4Outbound).expect("on");
    assert_eq!((cache.occupied(), cache.memory()), (128, 128 * 32), "every bucket, and no more");
}

#[test]
fn explanation_names_each_layer_and_changes_nothing() {
    for way in Way::ALL {
        let mut site = Site::new(1);
        site.publish(&[(to(way, 5, 5), Bypass)]);
        let explained = |site: &Site, n| {
            let (all, counters) = (site.explain(way, &packet(way, n, 1)), site.counters(way));
            assert_eq!((site.explain(way, &packet(way, n, 1)), site.counters(way)), (all, counters));
            assert_eq!((all.way, all.found, all.colder), (way, all.scanned, Layer::Scan));
            (all.cached, all.answer())
        };
        let five = Some(PolicyIndex(0));
        assert_eq!(explained(&site, 5), (Cached::Empty, five));
        site.ask(way, &packet(way, 5, 1));
        assert_eq!(explained(&site, 5), (Cached::Hit(five), five));
        assert_eq!(explained(&site, 6), (Cached::Collision, None));
        site.publish(&[]);
        assert_eq!(explained(&site, 5), (Cached::Stale(five), None));
    }
}

#[test]
fn oracle_finds_an_answer_that_is_not_the_scans_and_gives_the_scans() {
    for way in Way::ALL {
        let mut site = Site::new(16);
        site.publish(&[(everything(way), Bypass)]);
        site.ask(way, &packet(way, 5, 1));
        // Rules that changed without a new epoch: what a defect would look like.
        site.spd = testbed::spd(&[(to(way, 9, 9), Bypass), (everything(way), Discard)], site.spd.epochs);
        let batch = [packet(way, 5, 1), packet(way, 9, 1)];
        assert_eq!(
            site.find(direction(way), &batch)[0],
            Some(Some(PolicyIndex(0))),
            "wrong, and nobody looks"
        );
        site.oracle = true;
        assert_eq!(
            site.find(direction(way), &batch),
            [Some(Some(PolicyIndex(1))), Some(Some(PolicyIndex(0)))]
        );
        assert_eq!(site.counters(way).disagreed, 1);
    }
}

#[test]
fn first_rule_answers_a_batch_and_is_held_against_the_scan() {
    for way in Way::ALL {
        let mut site = Site::new(16);
        site.publish(&[(to(way, 0, 9), Bypass), (everything(way), Discard)]);
        for oracle in [false, true] {
            let batch = [2, 3, 4].map(|n| packet(way, n, 1));
            let Site { caches, spd, id, lookup, .. } = &mut site;
            let direction = direction(way);
            let question = weir_core::ipsec::spd::Question { spd, id: *id, direction, caches, oracle };
            assert_eq!(lookup.first(question, batch.iter().map(Vec::as_slice), 0), Some(PolicyIndex(0)));
            let mixed = [2, 3, 40].map(|n| packet(way, n, 1));
            assert_eq!(lookup.first(question, mixed.iter().map(Vec::as_slice), 0), None);
        }
        assert_eq!(site.counters(way), WayCounters { first: 6, ..WayCounters::default() });
    }
}

#[test]
fn icmp_types_are_flows_of_their_own() {
    let way = Way::Ipv4Inbound;
    let mut site = Site::new(1);
    let echo = PortRange { first: 0x0800, last: 0x08ff };
    site.publish(&[(Selector { protocol: Some(1), icmp: echo, ..everything(way) }, Bypass)]);
    let frame = || Frame::ip(host(way, 1), host(way, 2)).expect("of one family").packet();
    for _ in 0..2 {
        assert_eq!(site.ask(way, &frame().echo_request(1, 1, b"x")), Bypass);
        assert_eq!(site.ask(way, &frame().echo_reply(1, 1, b"x")), Discard);
    }
    assert_eq!(site.counters(way).collision, 3);
}
