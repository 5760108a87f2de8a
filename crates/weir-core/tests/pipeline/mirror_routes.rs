//! The mirror against a small kernel: whatever happened, what was followed is what a dump would tell.

use std::collections::BTreeMap;

use proptest::prelude::*;
use weir_core::mirror::{Filter, KernelRoute, Mirror, MirrorLink, MirrorPort, Outcome, Why};
use weir_core::route::Prefix;
use weir_core::state::Via;
use weir_core::wire::rtnetlink::{Change, Hop, News, NextHop, NextHopKind, Protocol, Route, RouteKind, Rule};

/// Links 1 and 2 are ports, 3 is none.
fn links(up: [bool; 3]) -> Vec<MirrorLink> {
    let port = |n: u32| MirrorPort {
        name: format!("p{n}").into(),
        ethernet: true,
        device: format!("eth{n}").into(),
        elsewhere: None,
    };
    (1..=3).map(|n| MirrorLink { index: n, up: up[n as usize - 1], port: (n < 3).then(|| port(n)) }).collect()
}

fn mirror() -> Mirror {
    let mut mirror = Mirror::new(Filter::default());
    mirror.set_links(links([true; 3]));
    mirror
}

fn hop(link: u32, last: u8) -> Hop {
    Hop { link, gateway: Some([10, 0, link as u8, last].into()), weight: 1, dead: false, encapsulates: false }
}

fn route(prefix: &str, priority: u32, hops: Vec<Hop>) -> Route {
    Route {
        prefix: prefix.parse().expect("a prefix"),
        table: 254,
        protocol: Protocol(186),
        kind: RouteKind::Unicast,
        tos: 0,
        priority,
        object: None,
        hops,
        cloned: false,
        from_source: false,
        source: None,
    }
}

fn observe(mirror: &mut Mirror, change: Change, route: Route) {
    mirror.observe(News::Route(change, route));
}

fn all(mirror: &Mirror) -> BTreeMap<Prefix, KernelRoute> {
    mirror.all().collect()
}

fn leads(mirror: &Mirror, prefix: &str) -> Option<String> {
    let route = all(mirror).remove(&prefix.parse().expect("a prefix"))?;
    Some(match route.outcome {
        Outcome::Via(via) => via.to_string(),
        Outcome::Kernel(why) => format!("kernel: {why}"),
    })
}

#[test]
fn the_least_metric_decides_and_the_next_takes_over() {
    let mut m = mirror();
    observe(&mut m, Change::Added, route("10.9.0.0/16", 20, vec![hop(1, 2)]));
    observe(&mut m, Change::Added, route("10.9.0.0/16", 10, vec![hop(2, 2)]));
    assert_eq!(leads(&m, "10.9.0.0/16").expect("there"), "via 10.0.2.2 port p2");
    observe(&mut m, Change::Deleted, route("10.9.0.0/16", 10, vec![hop(2, 2)]));
    assert_eq!(leads(&m, "10.9.0.0/16").expect("there"), "via 10.0.1.2 port p1");
    m.set_links(links([false, true, true]));
    assert_eq!(leads(&m, "10.9.0.0/16"), None, "its link is down");
}

#[test]
fn what_cannot_be_done_here_is_left_to_the_kernel_with_its_reason() {
    let mut m = mirror();
    observe(&mut m, Change::Added, route("10.1.0.0/16", 0, vec![hop(3, 2)]));
    observe(&mut m, Change::Added, route("10.2.0.0/16", 0, vec![hop(1, 2), hop(3, 2)]));
    observe(&mut m, Change::Added, route("10.3.0.0/16", 0, vec![Hop { encapsulates: true, ..hop(1, 2) }]));
    let on_link = Hop { gateway: None, ..hop(1, 0) };
    observe(&mut m, Change::Added, route("10.4.0.0/16", 0, vec![on_link.clone(), hop(2, 2)]));
    observe(&mut m, Change::Added, route("10.5.0.0/16", 0, vec![on_link]));
    observe(&mut m, Change::Added, Route { tos: 8, ..route("10.6.0.0/16", 0, vec![hop(1, 2)]) });
    observe(&mut m, Change::Added, route("10.6.0.0/16", 0, vec![hop(1, 2)]));
    observe(&mut m, Change::Added, Route { kind: RouteKind::Throw, ..route("10.7.0.0/16", 0, Vec::new()) });
    let left = ["10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16", "10.4.0.0/16", "10.6.0.0/16", "10.7.0.0/16"];
    for prefix in left {
        assert!(leads(&m, prefix).expect("there").starts_with("kernel: "), "{prefix}");
    }
    assert_eq!(leads(&m, "10.5.0.0/16").expect("there"), "port p1");
    m.take_changes();
    let passes = m.take_passes().expect("changed");
    assert_eq!(passes.prefixes.len(), left.len());
    assert!(m.take_passes().is_none(), "nothing has changed since");
    observe(&mut m, Change::Added, route("10.1.2.0/24", 0, vec![hop(1, 2)]));
    m.take_changes();
    let inside: Prefix = "10.1.2.0/24".parse().expect("a prefix");
    assert!(m.take_passes().expect("a route inside is named").prefixes.contains(&(inside, false)));
}

#[test]
fn protocols_that_are_filtered_out_stay_the_kernels() {
    let only_bgp = Filter { protocols: Some([Protocol(186)].into()), ..Filter::default() };
    let mut m = Mirror::new(only_bgp);
    m.set_links(links([true; 3]));
    observe(&mut m, Change::Added, route("10.9.0.0/16", 0, vec![hop(1, 2)]));
    observe(
        &mut m,
        Change::Added,
        Route { protocol: Protocol(4), ..route("10.9.1.0/24", 0, vec![hop(1, 2)]) },
    );
    let kinds: Vec<bool> = all(&m).values().map(|r| matches!(r.outcome, Outcome::Via(_))).collect();
    assert_eq!(kinds, [true, false]);
}

#[test]
fn ipv6_next_hops_come_and_go_one_by_one() {
    let six = |link: u32, last: u16| Hop {
        gateway: Some(std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last).into()),
        ..hop(link, 0)
    };
    let mut m = mirror();
    observe(&mut m, Change::Added, route("fd09::/48", 1024, vec![six(1, 1)]));
    // The kernel tells the whole route when a next hop is appended.
    observe(&mut m, Change::Appended, route("fd09::/48", 1024, vec![six(1, 1), six(2, 2)]));
    assert_eq!(leads(&m, "fd09::/48").expect("there"), "via fe80::1 port p1, via fe80::2 port p2");
    observe(&mut m, Change::Deleted, route("fd09::/48", 1024, vec![six(1, 1)]));
    assert_eq!(leads(&m, "fd09::/48").expect("there"), "via fe80::2 port p2");
    observe(&mut m, Change::Replaced, route("fd09::/48", 1024, vec![six(1, 3)]));
    assert_eq!(leads(&m, "fd09::/48").expect("there"), "via fe80::3 port p1");
    observe(&mut m, Change::Deleted, route("fd09::/48", 1024, vec![six(1, 3)]));
    assert_eq!(leads(&m, "fd09::/48"), None);
}

#[test]
fn routes_follow_their_next_hop_object() {
    let mut m = mirror();
    let object = |id, what| News::NextHop(Change::Replaced, NextHop { id, what });
    observe(&mut m, Change::Added, Route { object: Some(9), ..route("10.9.0.0/16", 0, Vec::new()) });
    assert_eq!(leads(&m, "10.9.0.0/16"), None, "nobody has said what 9 is");
    m.observe(object(7, NextHopKind::Hop(hop(1, 2))));
    m.observe(object(8, NextHopKind::Hop(hop(2, 2))));
    m.observe(object(9, NextHopKind::Group(vec![(7, 200), (8, 100)])));
    assert_eq!(
        leads(&m, "10.9.0.0/16").expect("there"),
        "via 10.0.1.2 port p1 weight 64, via 10.0.2.2 port p2 weight 32"
    );
    m.observe(object(7, NextHopKind::Blackhole));
    assert_eq!(leads(&m, "10.9.0.0/16").expect("there"), "blackhole");
    let gone = NextHop { id: 9, what: NextHopKind::Unknown };
    assert!(m.observe(News::NextHop(Change::Deleted, gone)), "its routes vanish without a message");
    assert_eq!(leads(&m, "10.9.0.0/16"), None);
    m.take_changes();
}

/// A rule for every packet of IPv4.
fn rule(priority: u32, table: u32) -> Rule {
    Rule {
        v4: true,
        priority,
        table,
        action: 1,
        input: None,
        output: None,
        from: None,
        to: None,
        more: false,
        inverted: false,
        vrf: false,
        unread: Vec::new(),
    }
}

/// One that looks at this mark, which this router does not know.
fn marked(mark: u8, priority: u32, table: u32) -> Rule {
    Rule { more: true, unread: vec![mark], ..rule(priority, table) }
}

#[test]
fn of_two_rules_that_differ_in_a_mark_one_stays_when_the_other_goes() {
    let mut m = mirror();
    m.observe(News::Rule(Change::Added, rule(32766, 254)));
    for mark in [1, 2] {
        m.observe(News::Rule(Change::Added, marked(mark, 9, 254)));
    }
    for (mark, left) in [(1, 1), (1, 1), (2, 0)] {
        m.observe(News::Rule(Change::Deleted, marked(mark, 9, 254)));
        assert_eq!(m.aside().count(), left, "after that of mark {mark} is gone");
    }
    m.begin_resync();
    for rule in [rule(32766, 254), marked(2, 9, 254), marked(1, 9, 254)] {
        m.observe(News::Rule(Change::Appended, rule));
    }
    m.end_resync();
    m.observe(News::Rule(Change::Deleted, marked(1, 9, 254)));
    assert_eq!(m.aside().count(), 1);
}

#[test]
fn only_rules_that_may_concern_transit_put_this_router_aside() {
    let mut m = mirror();
    for usual in [rule(0, 255), rule(32766, 254), rule(32767, 253)] {
        m.observe(News::Rule(Change::Added, usual));
    }
    m.observe(News::Rule(Change::Added, Rule { output: Some("tun0".into()), ..rule(5, 7) }));
    m.observe(News::Rule(Change::Added, Rule { input: Some("lo".into()), ..rule(6, 7) }));
    m.observe(News::Rule(Change::Added, Rule { vrf: true, ..rule(1000, 0) }));
    m.observe(News::Rule(Change::Added, Rule { input: Some("eth3".into()), ..rule(7, 7) }));
    assert_eq!(m.aside().count(), 0, "no port is concerned");
    let ours = Rule { input: Some("eth2".into()), ..rule(8, 7) };
    m.observe(News::Rule(Change::Added, ours.clone()));
    assert_eq!(m.aside().collect::<Vec<_>>(), ["IPv4 policy rule 8: from all iif eth2 lookup 7"]);
    m.observe(News::Rule(Change::Deleted, ours));
    let marked = Rule { more: true, ..rule(9, 254) };
    m.observe(News::Rule(Change::Added, marked.clone()));
    assert_eq!(m.aside().collect::<Vec<_>>(), ["IPv4 policy rule 9: from all and more lookup 254"]);
    let everything: Prefix = "0.0.0.0/0".parse().expect("a prefix");
    assert_eq!(m.take_passes().expect("changed").prefixes, [(everything, true)]);
    m.observe(News::Rule(Change::Deleted, marked));
    assert_eq!(m.aside().count(), 0);
}

/// A rule for packets to a prefix.
fn to(prefix: &str, priority: u32, table: u32) -> Rule {
    Rule { to: Some(prefix.parse().expect("a prefix")), ..rule(priority, table) }
}

/// Which prefixes are told to the kernel's program, those inside included.
fn told(m: &mut Mirror) -> Vec<(String, bool)> {
    m.take_changes();
    let passes = m.take_passes().expect("changed");
    passes.prefixes.iter().map(|(prefix, kernel)| (prefix.to_string(), *kernel)).collect()
}

#[test]
fn a_rule_for_a_destination_leaves_that_destination_to_the_kernel_and_nothing_else() {
    let mut m = mirror();
    for usual in [rule(0, 255), rule(32766, 254), rule(32767, 253)] {
        m.observe(News::Rule(Change::Added, usual));
    }
    observe(&mut m, Change::Added, route("10.9.0.0/16", 0, vec![hop(1, 2)]));
    observe(&mut m, Change::Added, route("10.9.4.0/24", 0, vec![hop(2, 2)]));
    observe(&mut m, Change::Added, route("10.8.0.0/16", 0, vec![hop(3, 2)]));
    observe(&mut m, Change::Added, route("10.8.1.0/24", 0, vec![hop(1, 2)]));
    let own = |list: &[(&str, bool)]| list.iter().map(|(p, k)| (p.to_string(), *k)).collect::<Vec<_>>();
    assert_eq!(told(&mut m), own(&[("10.8.0.0/16", true), ("10.8.1.0/24", false)]));
    // Between two routes, and within one that is named because a shorter one is the kernel's.
    m.observe(News::Rule(Change::Added, to("10.9.0.0/20", 500, 7)));
    let marked = Rule { more: true, input: Some("eth1".into()), ..to("10.8.1.128/25", 501, 7) };
    m.observe(News::Rule(Change::Added, marked.clone()));
    assert_eq!(m.aside().count(), 0);
    let there =
        [("10.8.0.0/16", true), ("10.8.1.0/24", false), ("10.8.1.128/25", true), ("10.9.0.0/20", true)];
    assert_eq!(told(&mut m), own(&there));
    assert_eq!(leads(&m, "10.9.0.0/16").expect("there"), "via 10.0.1.2 port p1");
    assert_eq!(leads(&m, "10.9.0.0/20").expect("there"), "kernel: a policy rule decides about it");
    assert!(leads(&m, "10.9.4.0/24").expect("there").starts_with("kernel: it lies in a destination"));
    let by_rule: Vec<_> = m.by_rule().map(|(_, rule)| rule.to_owned()).collect();
    assert_eq!(by_rule[1], "IPv4 policy rule 500: from all to 10.9.0.0/20 lookup 7");
    // What a rule does not name must be what this router has the routes of.
    m.observe(News::Rule(Change::Deleted, rule(32766, 254)));
    assert_eq!(m.aside().count(), 1, "nothing leads to the table");
    m.observe(News::Rule(Change::Added, rule(32766, 254)));
    assert_eq!(m.aside().count(), 0);
    // Everything but a prefix is not a prefix.
    let not = Rule { more: true, inverted: true, ..to("10.9.0.0/20", 502, 7) };
    m.observe(News::Rule(Change::Added, not.clone()));
    assert_eq!(m.aside().count(), 1);
    assert_eq!(m.by_rule().count(), 0, "the whole family is the kernel's already");
    m.observe(News::Rule(Change::Deleted, not));
    m.observe(News::Rule(Change::Deleted, to("10.9.0.0/20", 500, 7)));
    m.observe(News::Rule(Change::Deleted, marked));
    assert_eq!(told(&mut m), own(&[("10.8.0.0/16", true), ("10.8.1.0/24", false)]));
    assert_eq!(leads(&m, "10.9.0.0/20"), None);
    assert_eq!(leads(&m, "10.9.4.0/24").expect("there"), "via 10.0.2.2 port p2");
}

#[test]
fn more_destinations_of_rules_than_are_looked_up_put_the_family_aside() {
    let mut m = mirror();
    m.observe(News::Rule(Change::Added, rule(32766, 254)));
    for n in 0..1025u32 {
        assert_eq!(m.aside().count(), 0, "{n} rules");
        m.observe(News::Rule(Change::Added, to(&format!("10.{}.{}.0/24", n >> 8, n & 255), 500, 7)));
    }
    assert_eq!(
        m.aside().collect::<Vec<_>>(),
        ["IPv4 policy rule 500: from all to 10.0.0.0/24 lookup 7, and rules for 1024 other destinations"]
    );
}

#[test]
fn more_prefixes_than_there_is_room_for_are_the_kernels_until_a_dump_fits() {
    let mut m = Mirror::new(Filter { most: 2, ..Filter::default() });
    m.set_links(links([true; 3]));
    let prefixes = ["10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"];
    for prefix in prefixes {
        assert_eq!(m.aside().count(), 0);
        observe(&mut m, Change::Added, route(prefix, 0, vec![hop(1, 2)]));
    }
    assert_eq!(
        m.aside().collect::<Vec<_>>(),
        ["IPv4", "IPv6"]
            .map(|f| format!("{f}: the kernel has more than 2 prefixes, for which there is room"))
    );
    assert_eq!(all(&m).len(), 2);
    // What is known is followed, and another dump that does not fit changes nothing.
    observe(&mut m, Change::Replaced, route("10.1.0.0/16", 0, vec![hop(2, 2)]));
    assert_eq!(leads(&m, "10.1.0.0/16").expect("there"), "via 10.0.2.2 port p2");
    let dump = |m: &mut Mirror, prefixes: &[&str]| {
        m.begin_resync();
        prefixes.iter().for_each(|prefix| observe(m, Change::Appended, route(prefix, 0, vec![hop(1, 2)])));
        m.end_resync();
    };
    dump(&mut m, &prefixes);
    assert_eq!(m.aside().count(), 2);
    observe(&mut m, Change::Deleted, route("10.1.0.0/16", 0, vec![hop(1, 2)]));
    assert_eq!(m.aside().count(), 2, "nobody knows yet what else there is");
    dump(&mut m, &prefixes[1..]);
    assert_eq!(m.aside().count(), 0);
    assert_eq!(all(&m).keys().map(ToString::to_string).collect::<Vec<_>>(), prefixes[1..]);
}

/// What a dump tells of: the usual rules, these, and these routes.
fn dump(m: &mut Mirror, rules: &[Rule], routes: &[Route]) {
    m.begin_resync();
    let usual = [rule(0, 255), rule(32766, 254), rule(32767, 253)];
    for rule in usual.iter().chain(rules) {
        m.observe(News::Rule(Change::Appended, rule.clone()));
    }
    routes.iter().for_each(|route| observe(m, Change::Appended, route.clone()));
    m.end_resync();
}

#[test]
fn of_a_table_that_a_rule_leads_to_its_prefixes_are_the_kernels_and_an_empty_one_changes_nothing() {
    let mut m = mirror();
    let main = [route("10.8.0.0/16", 0, vec![hop(1, 2)]), route("10.9.1.0/24", 0, vec![hop(1, 2)])];
    let ike = rule(220, 220);
    dump(&mut m, std::slice::from_ref(&ike), &main);
    assert_eq!((m.aside().count(), m.by_rule().count()), (0, 0), "the table is empty");
    assert_eq!(leads(&m, "10.9.1.0/24").expect("there"), "via 10.0.1.2 port p1");
    let of_table = |prefix| Route { table: 220, ..route(prefix, 0, vec![hop(1, 9)]) };
    observe(&mut m, Change::Added, of_table("10.9.0.0/16"));
    assert_eq!(m.aside().count(), 0);
    let named: Vec<_> = m.by_rule().map(|(prefix, rule)| format!("{prefix}: {rule}")).collect();
    assert_eq!(named, ["10.9.0.0/16: IPv4 policy rule 220: from all lookup 220"]);
    assert!(leads(&m, "10.9.1.0/24").expect("there").starts_with("kernel: it lies in a destination"));
    assert_eq!(leads(&m, "10.8.0.0/16").expect("there"), "via 10.0.1.2 port p1");
    assert_eq!(all(&m).len(), 3, "the prefix of the other table is no route of its own");
    // Two routes of a prefix: it stays named until both are gone.
    let worse = Route { priority: 5, ..of_table("10.9.0.0/16") };
    observe(&mut m, Change::Added, worse.clone());
    observe(&mut m, Change::Deleted, of_table("10.9.0.0/16"));
    assert_eq!(m.by_rule().count(), 1);
    observe(&mut m, Change::Deleted, worse);
    assert_eq!(m.by_rule().count(), 0);
    assert_eq!(leads(&m, "10.9.1.0/24").expect("there"), "via 10.0.1.2 port p1");
    // With a default route in it any packet may be concerned.
    observe(&mut m, Change::Added, of_table("0.0.0.0/0"));
    assert_eq!(m.aside().collect::<Vec<_>>(), ["IPv4 policy rule 220: from all lookup 220"]);
    dump(&mut m, &[ike], &main);
    assert_eq!(m.aside().count(), 0, "a dump does not tell of it any more");
}

#[test]
fn a_table_counts_as_one_that_may_have_any_prefix_until_a_dump_told_its_routes() {
    let mut m = mirror();
    dump(&mut m, &[], &[]);
    let other = Rule { from: Some("10.1.0.0/24".parse().expect("a prefix")), ..rule(500, 7) };
    assert!(m.observe(News::Rule(Change::Added, other.clone())), "a dump is asked for");
    assert_eq!(m.aside().collect::<Vec<_>>(), ["IPv4 policy rule 500: from 10.1.0.0/24 lookup 7"]);
    let of_table = Route { table: 7, ..route("10.9.0.0/16", 0, vec![hop(1, 9)]) };
    dump(&mut m, std::slice::from_ref(&other), std::slice::from_ref(&of_table));
    assert_eq!((m.aside().count(), m.by_rule().count()), (0, 1));
    // Gone and added again it is another table.
    m.observe(News::Rule(Change::Deleted, other.clone()));
    assert_eq!(m.by_rule().count(), 0);
    assert!(m.observe(News::Rule(Change::Added, other.clone())));
    assert_eq!(m.aside().count(), 1);
    dump(&mut m, std::slice::from_ref(&other), &[]);
    assert_eq!((m.aside().count(), m.by_rule().count()), (0, 0));
    // An action that is no lookup is nobody's table.
    m.observe(News::Rule(Change::Added, Rule { action: 6, ..rule(501, 7) }));
    assert_eq!(m.aside().count(), 1);
}

#[test]
fn a_table_with_more_prefixes_than_are_held_may_have_any_until_a_dump_fits() {
    let mut m = mirror();
    let other = rule(500, 7);
    let of_table = |n: u32| Route {
        table: 7,
        ..route(&format!("10.{}.{}.0/24", 64 + (n >> 8), n & 255), 0, vec![hop(1, 9)])
    };
    let many: Vec<Route> = (0..1025).map(of_table).collect();
    dump(&mut m, std::slice::from_ref(&other), &many[..1024]);
    assert_eq!((m.aside().count(), m.by_rule().count()), (0, 1024));
    observe(&mut m, Change::Added, many[1024].clone());
    assert_eq!(m.aside().count(), 1);
    observe(&mut m, Change::Deleted, many[0].clone());
    assert_eq!(m.aside().count(), 1, "nobody knows yet what else there is");
    dump(&mut m, &[other], &many[..10]);
    assert_eq!((m.aside().count(), m.by_rule().count()), (0, 10));
}

/// A mirror of the VRF whose table is 10, with the rules every kernel with a VRF has.
fn of_vrf() -> (Mirror, impl Fn(u32, u32) -> Rule) {
    let rule = |priority, table| Rule { vrf: table == 0, ..rule(priority, table) };
    let mut m = Mirror::new(Filter { table: 10, vrf: true, ..Filter::default() });
    m.set_links(links([true; 3]));
    for v4 in [true, false] {
        for usual in [rule(0, 255), rule(1000, 0), rule(32766, 254), rule(32767, 253)] {
            m.observe(News::Rule(Change::Added, Rule { v4, ..usual }));
        }
    }
    (m, rule)
}

#[test]
fn what_a_vrfs_table_lacks_is_left_to_the_kernel_until_it_has_a_default_route() {
    let (mut m, _) = of_vrf();
    observe(&mut m, Change::Added, Route { table: 10, ..route("10.9.0.0/16", 0, vec![hop(1, 2)]) });
    observe(&mut m, Change::Added, route("10.8.0.0/16", 0, vec![hop(1, 2)]));
    m.take_changes();
    let everything: Prefix = "0.0.0.0/0".parse().expect("a prefix");
    let ours: Prefix = "10.9.0.0/16".parse().expect("a prefix");
    let passes = m.take_passes().expect("changed");
    assert_eq!(passes.aside, [None, None]);
    assert!(passes.prefixes.starts_with(&[(everything, true), (ours, false)]), "{passes:?}");
    assert!(leads(&m, "0.0.0.0/0").expect("said").contains("the VRF has no default route"));
    assert_eq!(leads(&m, "10.8.0.0/16"), None, "another table's");
    let end =
        Route { table: 10, kind: RouteKind::Unreachable, ..route("0.0.0.0/0", u32::MAX >> 1, Vec::new()) };
    observe(&mut m, Change::Added, end.clone());
    m.take_changes();
    assert!(!m.take_passes().expect("changed").prefixes.contains(&(everything, true)));
    observe(&mut m, Change::Deleted, end);
    m.take_changes();
    assert!(m.take_passes().expect("changed").prefixes.contains(&(everything, true)));
}

#[test]
fn rules_before_a_vrfs_own_put_this_router_aside_and_those_after_it_do_not() {
    let (mut m, rule) = of_vrf();
    m.observe(News::Rule(Change::Added, rule(2000, 7)));
    assert_eq!(m.aside().count(), 0);
    m.observe(News::Rule(Change::Added, rule(500, 254)));
    assert_eq!(m.aside().collect::<Vec<_>>(), ["IPv4 policy rule 500: from all lookup 254"]);
    m.observe(News::Rule(Change::Deleted, rule(500, 254)));
    m.observe(News::Rule(Change::Deleted, rule(1000, 0)));
    assert_eq!(m.aside().collect::<Vec<_>>(), ["IPv4: no policy rule sends VRFs to their tables (l3mdev)"]);
}

#[test]
fn a_port_that_is_put_into_a_bridge_leaves_everything_to_the_kernel_until_it_is_out() {
    let mut m = mirror();
    observe(&mut m, Change::Added, route("10.9.0.0/16", 0, vec![hop(1, 2)]));
    let mut bridged = links([true; 3]);
    bridged[0].port.as_mut().expect("a port").elsewhere = Some("eth1 belongs to br0".into());
    m.set_links(bridged);
    assert_eq!(m.aside().collect::<Vec<_>>(), ["IPv4: eth1 belongs to br0", "IPv6: eth1 belongs to br0"]);
    m.take_changes();
    assert!(m.take_passes().expect("changed").prefixes.iter().all(|(p, kernel)| p.len() == 0 && *kernel));
    m.set_links(links([true; 3]));
    assert_eq!(m.aside().count(), 0);
}

/// What the kernel would do: the routes of each prefix by metric, those of one metric in their order.
#[derive(Default)]
struct Kernel(BTreeMap<Prefix, Vec<Route>>);

#[derive(Clone, Debug)]
enum Step {
    Add(u8, u32, Vec<(u32, u8)>),
    Append(u8, u32, Vec<(u32, u8)>),
    Replace(u8, u32, Vec<(u32, u8)>),
    Delete(u8, usize),
    /// The link goes without a message.
    Vanish(u8),
}

impl Kernel {
    fn told(&mut self, step: &Step) -> Option<(Change, Route)> {
        let make = |n: &u8, priority: &u32, hops: &[(u32, u8)]| {
            let length = 16 + n % 9;
            let prefix = Prefix::new([20, n % 4, n & 0xc0, 0].into(), length);
            route(&prefix.to_string(), *priority, hops.iter().map(|&(link, last)| hop(link, last)).collect())
        };
        let (n, change) = match step {
            Step::Add(n, p, hops) => (make(n, p, hops), Change::Added),
            Step::Append(n, p, hops) => (make(n, p, hops), Change::Appended),
            Step::Replace(n, p, hops) => (make(n, p, hops), Change::Replaced),
            Step::Delete(n, _) | Step::Vanish(n) => (make(n, &0, &[]), Change::Deleted),
        };
        let routes = self.0.entry(n.prefix).or_default();
        let first = routes.iter().position(|r| r.priority >= n.priority).unwrap_or(routes.len());
        let behind = routes.iter().rposition(|r| r.priority <= n.priority).map_or(0, |at| at + 1);
        let same = routes.get(first).is_some_and(|r| r.priority == n.priority);
        match step {
            Step::Vanish(_) => {
                routes.clear();
                return None;
            }
            Step::Delete(_, at) => {
                let at = (!routes.is_empty()).then(|| at % routes.len())?;
                return Some((Change::Deleted, routes.remove(at)));
            }
            // Exactly the same route is refused.
            _ if routes.contains(&n) => return None,
            Step::Add(..) if same => return None,
            Step::Add(..) => routes.insert(first, n.clone()),
            Step::Append(..) => routes.insert(behind, n.clone()),
            Step::Replace(..) if same => routes[first] = n.clone(),
            Step::Replace(..) => {
                routes.insert(first, n.clone());
                return Some((Change::Added, n));
            }
        }
        Some((change, n))
    }

    fn dump(&self, mirror: &mut Mirror) {
        self.dump_with(mirror, &[], &[]);
    }

    /// `others`: routes of tables that are not mirrored.
    fn dump_with(&self, mirror: &mut Mirror, rules: &[Rule], others: &[Route]) {
        mirror.begin_resync();
        for rule in rules {
            mirror.observe(News::Rule(Change::Appended, rule.clone()));
        }
        for route in self.0.values().flatten().chain(others) {
            observe(mirror, Change::Appended, route.clone());
        }
        mirror.end_resync();
    }
}

/// Adds what is not there, and takes away what is.
fn toggle<T: PartialEq>(all: &mut Vec<T>, one: T) -> Change {
    match all.iter().position(|t| *t == one) {
        Some(at) => {
            all.remove(at);
            Change::Deleted
        }
        None => {
            all.push(one);
            Change::Added
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let hops = || prop::collection::vec((1u32..4, 1u8..4), 1..3);
    prop_oneof![
        4 => (0u8..12, 0u32..3, hops()).prop_map(|(n, p, h)| Step::Add(n, p, h)),
        2 => (0u8..12, 0u32..3, hops()).prop_map(|(n, p, h)| Step::Append(n, p, h)),
        3 => (0u8..12, 0u32..3, hops()).prop_map(|(n, p, h)| Step::Replace(n, p, h)),
        3 => (0u8..12, 0usize..4).prop_map(|(n, at)| Step::Delete(n, at)),
        1 => (0u8..12).prop_map(Step::Vanish),
    ]
}

proptest! {
    #[test]
    fn what_is_followed_is_what_a_dump_tells(steps in prop::collection::vec(step(), 1..60)) {
        let (mut kernel, mut followed) = (Kernel::default(), mirror());
        let mut told: BTreeMap<Prefix, KernelRoute> = BTreeMap::new();
        for step in &steps {
            match kernel.told(step) {
                Some((change, route)) => observe(&mut followed, change, route),
                None if matches!(step, Step::Vanish(_)) => kernel.dump(&mut followed),
                None => {}
            }
            let mut fresh = mirror();
            kernel.dump(&mut fresh);
            prop_assert_eq!(all(&followed), all(&fresh));
            // Whoever follows the changes knows as much as whoever looks, and so of what is kept.
            for (prefix, route) in followed.take_changes() {
                match route {
                    Some(route) => _ = told.insert(prefix, route),
                    None => _ = told.remove(&prefix),
                }
            }
            prop_assert_eq!(&told, &all(&followed));
            fresh.take_changes();
            let (kept, expected) = (followed.take_passes(), fresh.take_passes());
            if let Some(kept) = kept {
                prop_assert_eq!(Some(kept), expected);
            }
        }
    }

    /// Rules for destinations, and routes of a table that a rule leads to, come and go between the routes: what is followed is
    /// what a dump tells, and what they name is the kernel's, with everything in it.
    #[test]
    fn rules_and_the_tables_they_lead_to_are_followed(
        steps in prop::collection::vec((step(), prop::option::of((any::<bool>(), 0u8..12))), 1..40),
        address in any::<[u8; 2]>()
    ) {
        let (mut kernel, mut followed) = (Kernel::default(), mirror());
        let of_table = |prefix: Prefix| Route { table: 8, prefix, ..route("0.0.0.0/0", 0, vec![hop(1, 9)]) };
        let mut rules = vec![rule(32766, 254), rule(600, 8)];
        // The table of the rules for destinations has a route, so that they decide something.
        let elsewhere = "192.0.2.0/24".parse().expect("a prefix");
        let mut others = vec![Route { table: 7, ..of_table(elsewhere) }];
        kernel.dump_with(&mut followed, &rules, &others);
        let address = std::net::IpAddr::from([20, address[0] % 4, address[1], 1]);
        let covers = |p: &Prefix| Prefix::new(address, p.len()) == *p;
        for (step, toggled) in &steps {
            if let Some((by_table, n)) = toggled {
                let prefix = Prefix::new([20, n % 4, n & 0xc0, 0].into(), 15 + n % 7);
                let news = if *by_table {
                    News::Route(toggle(&mut others, of_table(prefix)), of_table(prefix))
                } else {
                    let rule = Rule { to: Some(prefix), ..rule(500, 7) };
                    News::Rule(toggle(&mut rules, rule.clone()), rule)
                };
                followed.observe(news);
            }
            match kernel.told(step) {
                Some((change, route)) => observe(&mut followed, change, route),
                None if matches!(step, Step::Vanish(_)) => kernel.dump_with(&mut followed, &rules, &others),
                None => {}
            }
            let mut fresh = mirror();
            kernel.dump_with(&mut fresh, &rules, &others);
            prop_assert_eq!(all(&followed), all(&fresh));
            followed.take_changes();
            fresh.take_changes();
            let (passes, expected) = (followed.take_passes(), fresh.take_passes());
            let expected = expected.expect("told once at least");
            prop_assert!(passes.is_none_or(|passes| passes == expected));
            let mut plain = mirror();
            kernel.dump(&mut plain);
            let best = all(&plain).into_iter().filter(|(p, _)| covers(p)).max_by_key(|(p, _)| p.len());
            let routed = best.is_some_and(|(_, r)| matches!(r.outcome, Outcome::Kernel(_)));
            let named = rules.iter().filter_map(|r| r.to).chain(others.iter().map(|r| r.prefix));
            let ruled = named.into_iter().any(|p| covers(&p));
            let kept = expected.prefixes.iter().filter(|(p, _)| covers(p)).max_by_key(|(p, _)| p.len());
            prop_assert_eq!(kept.is_some_and(|(_, kernel)| *kernel), routed || ruled);
        }
    }

    /// The longest prefix of what is kept says of every address what the longest route says.
    #[test]
    fn passes_decide_as_the_routes_do(steps in prop::collection::vec(step(), 1..40), address in any::<[u8; 2]>()) {
        let (mut kernel, mut m) = (Kernel::default(), mirror());
        for step in &steps {
            kernel.told(step);
        }
        kernel.dump(&mut m);
        let table = m.take_changes();
        let passes = m.take_passes().expect("told once at least");
        let address = std::net::IpAddr::from([20, address[0] % 4, address[1], 1]);
        let covers = |p: &Prefix| Prefix::new(address, p.len()) == *p;
        let best = table.iter().filter(|(p, r)| covers(p) && r.is_some()).max_by_key(|(p, _)| p.len());
        let kernel_s = best.is_some_and(|(_, r)| matches!(r.as_ref().map(|r| &r.outcome), Some(Outcome::Kernel(_))));
        let kept = passes.prefixes.iter().filter(|(p, _)| covers(p)).max_by_key(|(p, _)| p.len());
        prop_assert_eq!(kept.is_some_and(|(_, kernel)| *kernel), kernel_s);
    }
}

#[test]
fn reasons_are_sentences() {
    assert_eq!(Why::Filtered(Protocol(186)).to_string(), "routes of bgp are filtered out");
    assert_eq!(Via::Blackhole.to_string(), "blackhole");
}
