//! Desired state and links in, snapshots out.

use crate::testbed::control as control_testbed;
use std::net::IpAddr;
use std::sync::Arc;

use control_testbed::{desired, link, lookup, port, route, up};
use weir_core::control::{Control, Notice, Origin};
use weir_core::id::{AdjacencyId, PortId};
use weir_core::route::Prefix;
use weir_core::state::{Desired, Link, Via};
use weir_core::tables::{Owner, Tables, Target};
use weir_core::verdict::Reason;

fn control(desired: Desired, links: &[Link]) -> Control {
    Control::new(desired, links.iter().cloned(), 0).unwrap_or_else(|e| panic!("{e:?}"))
}

fn two_ports() -> Desired {
    desired(&[
        port("lan", "eth0", &["192.0.2.1/24", "2001:db8::1/64", "fe80::1/64"]),
        port("wan", "eth1", &["198.51.100.1/31", "2001:db8:1::/127"]),
    ])
}

fn gateways(tables: &Tables, to: &str) -> Vec<IpAddr> {
    let gateway = |id: &AdjacencyId| tables.adjacencies[id.0 as usize].next_hop;
    match lookup(tables, to) {
        Target::Adjacent(id) => vec![gateway(&id)],
        Target::Multipath { first, len } => {
            tables.multipath[first as usize..(first + len) as usize].iter().map(gateway).collect()
        }
        other => panic!("{to} leads to {other:?}"),
    }
}

fn share(of: &str, among: &[IpAddr]) -> usize {
    let of: IpAddr = of.parse().expect("address");
    among.iter().filter(|&&a| a == of).count()
}

#[test]
fn ports_bring_addresses_networks_and_broadcasts() {
    let mut control = control(two_ports(), &[up("eth0"), up("eth1")]);
    let tables = control.take_snapshot().expect("the first");
    let (lan, wan) = (PortId(0), PortId(1));
    assert_eq!(lookup(&tables, "192.0.2.1"), Target::Local(lan));
    assert_eq!(lookup(&tables, "192.0.2.77"), Target::Connected(lan));
    assert_eq!(lookup(&tables, "192.0.2.255"), Target::Broadcast(lan));
    assert_eq!(lookup(&tables, "2001:db8::1"), Target::Local(lan));
    assert_eq!(lookup(&tables, "2001:db8::ffff"), Target::Connected(lan));
    assert_eq!(lookup(&tables, "203.0.113.1"), Target::NoRoute);
    // RFC 3021, RFC 6164: both addresses of a two-address network are hosts.
    assert_eq!(lookup(&tables, "198.51.100.0"), Target::Connected(wan));
    assert_eq!(lookup(&tables, "198.51.100.1"), Target::Local(wan));
    assert_eq!(lookup(&tables, "2001:db8:1::"), Target::Local(wan));
    assert_eq!(lookup(&tables, "2001:db8:1::1"), Target::Connected(wan));
    // Which port's link is not in the address.
    assert_eq!(lookup(&tables, "fe80::1"), Target::NoRoute);
    assert_eq!(control.take_snapshot().map(|t| t.generation), None);
}

#[test]
fn subnet_router_anycast_addresses_are_the_kernels_where_it_routes() {
    let mut lan =
        port("lan", "eth0", &["192.0.2.1/24", "2001:db8::1/64", "2001:db8:7::1/127", "2001:db8:8::1/126"]);
    lan.addresses.iter_mut().for_each(|a| a.owner = Owner::Kernel);
    let mut weirs = port("wan", "eth1", &["2001:db8:9::1/64"]);
    weirs.addresses.iter_mut().for_each(|a| a.owner = Owner::Weir);
    let mut control = control(desired(&[lan, weirs]), &[up("eth0"), up("eth1")]);
    let tables = control.take_snapshot().expect("the first");
    assert_eq!(lookup(&tables, "2001:db8::"), Target::Local(PortId(0)));
    assert_eq!(lookup(&tables, "2001:db8:8::"), Target::Local(PortId(0)));
    // RFC 6164 5: between two routers both addresses are hosts.
    assert_eq!(lookup(&tables, "2001:db8:7::"), Target::Connected(PortId(0)));
    assert_eq!(lookup(&tables, "192.0.2.0"), Target::Connected(PortId(0)));
    // Weir answers neighbours and echo for its own addresses, not for those it would share with other routers.
    assert_eq!(lookup(&tables, "2001:db8:9::"), Target::Connected(PortId(1)));
}

#[test]
fn address_without_network_is_only_local() {
    let mut control =
        control(desired(&[port("lo", "eth0", &["192.0.2.1/32", "2001:db8::1/128"])]), &[up("eth0")]);
    let tables = control.take_snapshot().expect("the first");
    assert_eq!(lookup(&tables, "192.0.2.1"), Target::Local(PortId(0)));
    assert_eq!(lookup(&tables, "2001:db8::1"), Target::Local(PortId(0)));
    assert_eq!(control.routes().len(), 2);
}

#[test]
fn routes_lead_to_gateways_discards_and_ports() {
    let mut wish = two_ports();
    wish.routes = vec![
        route("10.0.0.0/8", &["192.0.2.9"]),
        route("10.1.0.0/16", &["@wan"]),
        route("2001:db8:9::/48", &["fe80::9@wan"]),
        weir_core::state::RouteSpec { prefix: "10.2.0.0/16".parse().expect("prefix"), via: Via::Blackhole },
    ];
    let mut control = control(wish, &[up("eth0"), up("eth1")]);
    let tables = control.take_snapshot().expect("the first");
    assert_eq!(gateways(&tables, "10.9.9.9"), ["192.0.2.9".parse::<IpAddr>().expect("address")]);
    assert_eq!(lookup(&tables, "10.1.0.1"), Target::Connected(PortId(1)));
    assert_eq!(lookup(&tables, "10.2.0.1"), Target::Discard(Reason::Blackhole));
    let Target::Adjacent(id) = lookup(&tables, "2001:db8:9::1") else { panic!("no gateway") };
    let adjacency = &tables.adjacencies[id.0 as usize];
    assert_eq!((adjacency.port, adjacency.ready), (PortId(1), false));
    let origins: Vec<_> = control.routes().into_iter().map(|r| (r.prefix.to_string(), r.origin)).collect();
    assert!(origins.contains(&("10.0.0.0/8".to_string(), Origin::Static)));
    assert!(origins.contains(&("192.0.2.255/32".to_string(), Origin::Broadcast)));
}

#[test]
fn point_to_point_port_needs_no_neighbors() {
    let mut wish = desired(&[port("tun", "tun0", &["192.0.2.1/30"])]);
    wish.routes = vec![route("10.0.0.0/8", &["@tun"]), route("2001:db8::/32", &["@tun"])];
    let link = Link { point_to_point: true, ..up("tun0") };
    let mut control = control(wish, &[link]);
    let tables = control.take_snapshot().expect("the first");
    let Target::Adjacent(far) = lookup(&tables, "192.0.2.2") else { panic!("not adjacent") };
    assert_eq!(lookup(&tables, "10.0.0.1"), Target::Adjacent(far));
    assert_eq!(lookup(&tables, "2001:db8::1"), Target::Adjacent(far));
    assert!(tables.adjacencies[far.0 as usize].ready);
    assert_eq!(lookup(&tables, "192.0.2.3"), Target::Adjacent(far), "a point-to-point link has no broadcast");
    assert_eq!(control.take_transmits(), []);
}

#[test]
fn weights_become_buckets_and_a_lost_port_moves_only_its_own() {
    let mut wish = desired(&[
        port("a", "eth0", &["192.0.2.1/24"]),
        port("b", "eth1", &["198.51.100.1/24"]),
        port("c", "eth2", &["203.0.113.1/24"]),
    ]);
    wish.routes = vec![route("10.0.0.0/8", &["192.0.2.9*2", "198.51.100.9", "203.0.113.9"])];
    let mut control = control(wish, &[up("eth0"), up("eth1"), up("eth2")]);
    let before = gateways(&control.take_snapshot().expect("the first"), "10.0.0.1");
    assert_eq!(before.len(), 64);
    assert_eq!((share("192.0.2.9", &before), share("203.0.113.9", &before)), (32, 16));
    control.link_changed(1, Link { up: false, ..up("eth2") });
    let during = gateways(&control.take_snapshot().expect("a link"), "10.0.0.1");
    let lost: IpAddr = "203.0.113.9".parse().expect("address");
    for (was, is) in before.iter().zip(&during) {
        assert!(is != &lost && (was == &lost || was == is), "a flow moved without need");
    }
    assert_eq!((share("192.0.2.9", &during), share("198.51.100.9", &during)), (43, 21));
    control.link_changed(2, up("eth2"));
    assert_eq!(gateways(&control.take_snapshot().expect("a link"), "10.0.0.1"), before);
}

#[test]
fn route_without_a_port_that_is_up_gives_way_and_comes_back() {
    let mut wish = two_ports();
    wish.routes = vec![
        route("10.0.0.0/8", &["192.0.2.9"]),
        route("10.1.0.0/16", &["198.51.100.0"]),
        route("198.51.100.0/31", &["192.0.2.9"]),
    ];
    let mut control = control(wish, &[up("eth0"), up("eth1")]);
    let before = control.take_snapshot().expect("the first");
    assert_eq!(lookup(&before, "198.51.100.0"), Target::Connected(PortId(1)), "connected is better");
    control.link_changed(1, Link { up: false, ..up("eth1") });
    let down = control.take_snapshot().expect("a link");
    assert_eq!(lookup(&down, "10.1.0.1"), lookup(&down, "10.0.0.1"));
    assert_eq!(lookup(&down, "198.51.100.0"), lookup(&down, "10.0.0.1"), "the static route stands in");
    assert_eq!(lookup(&down, "198.51.100.1"), Target::Local(PortId(1)), "our address stays ours");
    assert!(!down.ports[1].up);
    control.link_changed(2, up("eth1"));
    let after = control.take_snapshot().expect("a link");
    assert_eq!(lookup(&after, "10.1.0.1"), lookup(&before, "10.1.0.1"));
    assert_eq!(lookup(&after, "198.51.100.0"), Target::Connected(PortId(1)));
}

#[test]
fn vanished_device_takes_its_ports_down_and_says_so() {
    let mut control = control(two_ports(), &[up("eth0")]);
    let tables = control.take_snapshot().expect("the first");
    assert_eq!(lookup(&tables, "198.51.100.0"), Target::NoRoute);
    let missing = Notice::DeviceMissing { port: "wan".into(), device: "eth1".into() };
    assert_eq!(control.notices(), [missing]);
    control.link_changed(1, up("eth1"));
    assert_eq!(control.notices(), []);
    control.link_removed(2, "eth0");
    let tables = control.take_snapshot().expect("a link");
    assert_eq!(lookup(&tables, "192.0.2.77"), Target::NoRoute);
    assert_eq!(lookup(&tables, "198.51.100.0"), Target::Connected(PortId(1)));
}

#[test]
fn mtu_is_the_devices_where_it_is_smaller() {
    let mut wish = two_ports();
    wish.ports[0].mtu = Some(9000);
    wish.ports[1].mtu = Some(1400);
    let mut control = control(wish, &[up("eth0"), up("eth1")]);
    let tables = control.take_snapshot().expect("the first");
    assert_eq!((tables.ports[0].mtu, tables.ports[1].mtu), (1500, 1400));
    assert_eq!(control.notices(), [Notice::MtuReduced { port: "lan".into(), asked: 9000, device_mtu: 1500 }]);
    control.link_changed(1, Link { mtu: 9000, ..up("eth0") });
    assert_eq!(control.take_snapshot().expect("a link").ports[0].mtu, 9000);
}

#[test]
fn ids_stay_with_names_through_applies() {
    let mut wish = two_ports();
    wish.ports.push(port("dmz", "eth0", &["203.0.113.1/24"]));
    wish.ports[2].vlan = Some(7);
    wish.routes = vec![route("10.0.0.0/8", &["203.0.113.9"])];
    let mut control = control(wish.clone(), &[up("eth0"), up("eth1")]);
    let before = control.take_snapshot().expect("the first");
    let leads = lookup(&before, "10.0.0.1");
    assert_eq!(before.devices[0].tagged, [(7, PortId(2))]);
    // Another order, one port less, one more.
    wish.ports.remove(0);
    wish.ports.insert(0, port("new", "eth2", &["192.0.2.1/24"]));
    wish.ports.reverse();
    control.apply(1, wish.clone()).expect("valid");
    let after = control.take_snapshot().expect("changed");
    assert_eq!(lookup(&after, "10.0.0.1"), leads);
    assert_eq!(control.port_id("dmz"), Some(PortId(2)));
    assert_eq!(control.port_id("new"), Some(PortId(3)));
    assert_eq!((after.ports[0].name.as_str(), after.ports[0].up), ("", false), "a hole");
    assert_eq!(after.devices[0].untagged, None);
    assert_eq!(after.devices[2].untagged, Some(PortId(3)));
    wish.ports.pop();
    wish.ports.push(port("lan", "eth0", &["192.0.2.1/24"]));
    control.apply(2, wish).expect("valid");
    assert_eq!(control.port_id("lan"), Some(PortId(0)), "back under its name");
}

#[test]
fn what_did_not_change_is_shared_with_the_snapshot_before() {
    let mut wish = two_ports();
    wish.routes = vec![route("10.0.0.0/8", &["192.0.2.9"]), route("2001:db8:9::/48", &["2001:db8::9"])];
    let mut control = control(wish.clone(), &[up("eth0"), up("eth1")]);
    let first = control.take_snapshot().expect("the first");
    wish.neighbors = vec![control_testbed::neighbor("lan", "192.0.2.9", 9)];
    control.apply(1, wish.clone()).expect("valid");
    let second = control.take_snapshot().expect("a neighbour");
    assert!(Arc::ptr_eq(&first.fib4, &second.fib4) && Arc::ptr_eq(&first.fib6, &second.fib6));
    assert!(Arc::ptr_eq(&first.targets, &second.targets) && Arc::ptr_eq(&first.ports, &second.ports));
    let Target::Adjacent(id) = lookup(&second, "10.0.0.1") else { panic!("no gateway") };
    let adjacency = &second.adjacencies[id.0 as usize];
    assert!(adjacency.ready && !first.adjacencies[id.0 as usize].ready);
    assert_eq!(adjacency.header, [2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 0xe0]);
    wish.routes.push(route("10.9.0.0/16", &["192.0.2.9"]));
    control.apply(2, wish.clone()).expect("valid");
    let third = control.take_snapshot().expect("a route");
    assert!(Arc::ptr_eq(&second.targets, &third.targets), "same next hop, same target");
    assert!(Arc::ptr_eq(&second.fib6, &third.fib6) && Arc::ptr_eq(&second.neighbors, &third.neighbors));
    assert_eq!(control.apply(3, wish), Ok(Vec::new()));
    assert!(control.take_snapshot().is_none());
}

#[test]
fn refused_wish_changes_nothing() {
    let mut control = control(two_ports(), &[up("eth0"), up("eth1")]);
    control.take_snapshot().expect("the first");
    let mut wish = two_ports();
    wish.routes = vec![route("10.0.0.0/8", &["203.0.113.9"])];
    let errors = control.apply(1, wish).expect_err("the gateway is nowhere");
    assert_eq!(
        errors[0].to_string(),
        "route 10.0.0.0/8: next hop 1: gateway 203.0.113.9 is on no connected network; name its port or add an \
         address near it"
    );
    assert!(control.take_snapshot().is_none());
    assert_eq!(control.desired(), &two_ports());
}

#[test]
fn several_next_hops_on_ethernet_need_gateways() {
    let mut wish = two_ports();
    wish.routes = vec![route("10.0.0.0/8", &["@lan", "198.51.100.0"])];
    let errors = Control::new(wish.clone(), [up("eth0"), up("eth1")], 0).expect_err("no bucket");
    assert!(errors[0].to_string().contains("only point-to-point"), "{}", errors[0]);
    let links = [Link { point_to_point: true, ..up("eth0") }, up("eth1")];
    let mut control = Control::new(wish, links, 0).expect("valid");
    assert_eq!(gateways(&control.take_snapshot().expect("the first"), "10.0.0.1").len(), 64);
}

#[test]
fn removed_routes_leave_nothing_behind() {
    let mut wish = two_ports();
    wish.routes =
        vec![route("10.0.0.0/8", &["192.0.2.9"]), route("10.1.0.0/16", &["192.0.2.9", "192.0.2.8"])];
    let mut control = control(wish, &[up("eth0"), up("eth1")]);
    control.take_snapshot().expect("the first");
    assert_eq!(control.neighbors(0).len(), 2);
    let lines: Vec<String> =
        control.apply(1, two_ports()).expect("valid").iter().map(|a| a.to_string()).collect();
    assert_eq!(
        lines,
        ["- route 10.0.0.0/8 via 192.0.2.9", "- route 10.1.0.0/16 via 192.0.2.9, via 192.0.2.8"]
    );
    let tables = control.take_snapshot().expect("changed");
    assert_eq!(lookup(&tables, "10.0.0.1"), Target::NoRoute);
    assert!(tables.multipath.is_empty());
    assert!(tables.neighbors.is_empty() && tables.adjacencies.iter().all(|a| !a.ready));
    assert_eq!((control.neighbors(1), control.poll_at()), (Vec::new(), None));
}

#[test]
fn link_of_a_device_nobody_uses_changes_nothing() {
    let mut control = control(two_ports(), &[up("eth0"), up("eth1")]);
    control.take_snapshot().expect("the first");
    control.link_changed(1, link("eth9", true));
    assert!(control.take_snapshot().is_none());
}

#[test]
fn many_routes_share_a_target_and_come_and_go_with_its_port() {
    let mut wish = two_ports();
    wish.routes.push(route("0.0.0.0/0", &["192.0.2.9"]));
    let many = (0..20_000u32).map(|i| {
        let prefix = Prefix::new(IpAddr::V4((0x0a00_0000 + (i << 8)).into()), 24);
        weir_core::state::RouteSpec { prefix, ..route("10.0.0.0/8", &["198.51.100.0"]) }
    });
    wish.routes.extend(many);
    let mut control = control(wish, &[up("eth0"), up("eth1")]);
    let before = control.take_snapshot().expect("the first");
    // None, two addresses' and networks' (both families of a port share), a broadcast, two gateways.
    assert_eq!(before.targets.len(), 1 + 4 + 1 + 2, "{:?}", before.targets);
    control.link_changed(1, Link { up: false, ..up("eth1") });
    let down = control.take_snapshot().expect("a link");
    assert_eq!(lookup(&down, "10.9.9.9"), lookup(&down, "8.8.8.8"));
    control.link_changed(2, up("eth1"));
    let after = control.take_snapshot().expect("a link");
    assert_eq!(lookup(&after, "10.9.9.9"), lookup(&before, "10.9.9.9"));
}
