//! What the sets are shaped like.

use super::*;

const SETS: [Shape; 3] = [Shape::Acl, Shape::Firewall, Shape::IpChain];
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// How many of 100 rules do.
fn percent(rules: &[Selector], does: impl Fn(&Selector) -> bool) -> usize {
    rules.iter().filter(|rule| does(rule)).count() * 100 / rules.len()
}

fn is_host(range: AddressRange) -> bool {
    range.first == range.last
}

fn is_open(range: AddressRange) -> bool {
    [AddressRange::ANY_V4, AddressRange::ANY_V6].contains(&range)
}

fn distinct<T: std::hash::Hash + Eq>(all: impl Iterator<Item = T>) -> usize {
    all.collect::<HashSet<T>>().len()
}

#[test]
fn sets_have_the_size_asked_for_no_rule_twice_and_end_with_the_one_for_everything() {
    for shape in Shape::ALL {
        for family in FAMILIES {
            for count in [0, 1, 2, 1000, 5000] {
                let rules = rules(shape, family, count, 1);
                assert_eq!(rules.len(), count, "{}", shape.name());
                assert_eq!(distinct(rules.iter()), count, "{} {count}", shape.name());
                assert_eq!(rules.last(), (count > 0).then_some(&any(family)));
                assert!(rules.iter().all(|r| r.source.first <= r.source.last));
                assert!(rules.iter().all(|r| r.destination.first.is_ipv4() == (family == Family::V4)));
            }
        }
    }
}

#[test]
fn no_rule_lies_whole_inside_an_earlier_one() {
    let addresses = |o: AddressRange, i: AddressRange| o.contains(i.first) && o.contains(i.last);
    let ports = |o: PortRange, i: PortRange| o.contains(i.first) && o.contains(i.last);
    let hides = |o: &Selector, i: &Selector| {
        addresses(o.source, i.source)
            && addresses(o.destination, i.destination)
            && (o.protocol.is_none() || o.protocol == i.protocol)
            && ports(o.source_ports, i.source_ports)
            && ports(o.destination_ports, i.destination_ports)
    };
    for shape in Shape::ALL {
        for family in FAMILIES {
            let rules = rules(shape, family, 700, 4);
            let hidden = (0..rules.len()).find(|&n| rules[..n].iter().any(|o| hides(o, &rules[n])));
            assert_eq!(hidden, None, "{} {family:?}", shape.name());
        }
    }
}

#[test]
fn a_hundred_thousand_rules_are_no_two_alike() {
    for shape in [Shape::Firewall, Shape::Staircase, Shape::Tuples] {
        assert_eq!(distinct(rules(shape, Family::V4, 100_000, 3).iter()), 100_000, "{}", shape.name());
    }
}

#[test]
fn same_seed_gives_the_same_rules_and_flows_and_another_seed_others() {
    let acl = |seed| rules(Shape::Acl, Family::V6, 1000, seed);
    assert_eq!(acl(7), acl(7));
    assert_ne!(acl(7), acl(8));
    assert_eq!(flows(&acl(7), 500, 1), flows(&acl(7), 500, 1));
    assert_ne!(flows(&acl(7), 500, 1), flows(&acl(7), 500, 2));
}

#[test]
fn shapes_are_found_by_their_names() {
    for shape in Shape::ALL {
        assert_eq!(Shape::named(shape.name()), Some(shape));
    }
    assert_eq!(Shape::named("acl1"), None);
}

#[test]
fn access_lists_name_pairs_of_hosts_and_one_port_of_tcp() {
    for family in FAMILIES {
        let acl = rules(Shape::Acl, family, 10_000, 1);
        let one = |r: &Selector| r.destination_ports.first == r.destination_ports.last;
        assert!((80..95).contains(&percent(&acl, |r| r.protocol == Some(TCP))));
        assert!((50..75).contains(&percent(&acl, one)));
        assert_eq!(percent(&acl, |r| r.source_ports == PortRange::ANY), 100);
        assert!((60..85).contains(&percent(&acl, |r| is_host(r.source) && is_host(r.destination))));
        assert!(percent(&acl, |r| is_open(r.source) || is_open(r.destination)) <= 3);
    }
}

#[test]
fn firewalls_leave_a_side_open_use_all_port_classes_and_few_networks() {
    for family in FAMILIES {
        let fw = rules(Shape::Firewall, family, 10_000, 1);
        assert!((40..75).contains(&percent(&fw, |r| is_open(r.source) || is_open(r.destination))));
        let classes =
            |is: fn(PortRange) -> bool| percent(&fw, |r| is(r.source_ports) || is(r.destination_ports));
        assert!(classes(|p| p.first == p.last) >= 40, "one port");
        assert!(classes(|p| (p.first, p.last) == (1024, u16::MAX)) >= 8, "high ports");
        assert!(classes(|p| p.first > 0 && p.first < p.last && p.last < u16::MAX) >= 2, "ranges");
        assert!(fw.iter().any(|r| r.destination_ports == PortRange { first: 0, last: 1023 }), "low ports");
        assert!(distinct(fw.iter().map(|r| r.source)) < fw.len() / 5);
        assert!(distinct(fw.iter().map(|r| r.destination)) < fw.len() / 4);
    }
}

#[test]
fn chains_lie_between_access_lists_and_firewalls() {
    let open = |shape| {
        percent(&rules(shape, Family::V4, 10_000, 1), |r| is_open(r.source) || is_open(r.destination))
    };
    assert!(open(Shape::Acl) < open(Shape::IpChain) && open(Shape::IpChain) < open(Shape::Firewall));
    let chain = rules(Shape::IpChain, Family::V4, 10_000, 1);
    assert!((30..50).contains(&percent(&chain, |r| r.protocol == Some(UDP))), "udp and tcp mixed");
}

#[test]
fn networks_lie_inside_of_others_and_narrow_rules_mostly_stand_first() {
    for shape in SETS {
        let rules = rules(shape, Family::V4, 2000, 1);
        let sources: HashSet<_> = rules.iter().map(|r| r.source).filter(|&s| !is_open(s)).collect();
        let nested = |inner: &AddressRange| {
            sources.iter().any(|o| o != inner && o.contains(inner.first) && o.contains(inner.last))
        };
        let inside = sources.iter().filter(|&s| nested(s)).count() * 100 / sources.len();
        assert!(inside >= 10, "{}: {inside} of 100", shape.name());
        let (front, back) = rules.split_at(rules.len() / 2);
        let hosts = |part| percent(part, |r| is_host(r.source) && is_host(r.destination));
        assert!(hosts(front) > hosts(back), "{}", shape.name());
    }
}

#[test]
fn flows_are_distinct_match_a_rule_and_mostly_go_deep() {
    for shape in Shape::ALL {
        for family in FAMILIES {
            let rules = rules(shape, family, 400, 5);
            let flows = flows(&rules, 800, 9);
            assert_eq!(distinct(flows.iter()), 800, "{}", shape.name());
            let first = |flow: &super::super::Flow| rules.iter().position(|r| r.matches(flow));
            let depths: Vec<usize> = flows.iter().filter_map(first).collect();
            assert_eq!(depths.len(), flows.len(), "the last rule takes everything");
            let deep = depths.iter().filter(|&&at| at >= 100).count() * 100 / depths.len();
            // where all overlap, only the corners of a rule are its own
            let wanted = if shape == Shape::Staircase { 30 } else { 50 };
            assert!(deep >= wanted, "{} {family:?}: {deep} of 100 lie deep", shape.name());
            let last = depths.iter().filter(|&&at| at == 399).count() * 100 / depths.len();
            assert!(last <= 10, "{}: {last} of 100 are for the last", shape.name());
        }
    }
}

#[test]
fn flows_stop_where_rules_have_no_more_room() {
    let host = AddressRange { first: IpAddr::from([10, 0, 0, 1]), last: IpAddr::from([10, 0, 0, 1]) };
    let port = PortRange { first: 7, last: 7 };
    let rule = Selector {
        source: host,
        destination: host,
        protocol: Some(UDP),
        source_ports: port,
        destination_ports: port,
        ..any(Family::V4)
    };
    assert_eq!(flows(&[rule], 10, 1).len(), 1);
    assert_eq!(flows(&[], 10, 1).len(), 0);
}

#[test]
fn stairs_overlap_and_none_hides_another() {
    let stairs = rules(Shape::Staircase, Family::V4, 1000, 1);
    for (at, rule) in stairs[..999].iter().enumerate() {
        let flow = super::super::Flow {
            source: rule.source.first,
            destination: rule.destination.first,
            protocol: UDP,
            transport: super::super::Transport::Ports {
                source: rule.source_ports.last,
                destination: rule.destination_ports.first,
            },
        };
        assert_eq!(stairs.iter().position(|r| r.matches(&flow)), Some(at));
        assert_eq!(stairs[at..999].iter().filter(|r| r.matches(&flow)).count(), 999 - at);
    }
}

#[test]
fn tuples_have_lengths_and_spans_of_their_own() {
    let len = |r: AddressRange| match (r.first, r.last) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).count_ones(),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).count_ones(),
        _ => unreachable!("one family"),
    };
    for family in FAMILIES {
        let tuples = rules(Shape::Tuples, family, 20_000, 1);
        let span = |p: PortRange| p.last - p.first;
        let of = |r: &Selector| {
            (len(r.source), len(r.destination), span(r.source_ports), span(r.destination_ports))
        };
        assert_eq!(distinct(tuples.iter().map(of)), 20_000);
    }
}

#[test]
fn ranges_are_no_prefixes() {
    let prefix = |range: AddressRange| match (range.first, range.last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => {
            let open = first.to_bits() ^ last.to_bits();
            open & open.wrapping_add(1) == 0 && first.to_bits() & open == 0
        }
        _ => unreachable!("asked for IPv4"),
    };
    let ranges = rules(Shape::Ranges, Family::V4, 1000, 1);
    assert_eq!(percent(&ranges[..999], |r| prefix(r.source) || prefix(r.destination)), 0);
}
