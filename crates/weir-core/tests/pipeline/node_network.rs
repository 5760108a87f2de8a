//! Two routers with two cables between them and a host on either side: control side and data path
//! together, every packet accounted for.
//!
//! ```text
//!                  ┌─ eth1 ── x ── eth4 ─┐
//! h1 ── eth0 ── A ─┤                     ├─ B ── eth3 ── h2
//!                  └─ eth2 ── y ── eth5 ─┘
//! ```

use std::net::IpAddr;

use crate::testbed::control::{desired, port, route, up};
use crate::testbed::node::{End, Host, Network};
use weir_core::id::{Mac, PortId};
use weir_core::neighbor::State;
use weir_core::state::{Desired, Link, RouteSpec, Via};
use weir_core::time::{MILLISECOND, SECOND};
use weir_core::verdict::Reason;

const A: usize = 0;
const B: usize = 1;
const H1: usize = 0;
const H2: usize = 1;

fn wish_of_a() -> Desired {
    let mut wish = desired(&[
        port("lan", "eth0", &["10.1.0.1/24", "2001:db8:1::1/64", "fe80::a/64"]),
        port("x", "eth1", &["192.0.2.0/31", "fe80::a/64"]),
        port("y", "eth2", &["198.51.100.0/31", "fe80::a/64"]),
    ]);
    wish.routes = vec![
        route("10.2.0.0/24", &["192.0.2.1", "198.51.100.1"]),
        route("2001:db8:2::/64", &["fe80::b@x", "fe80::b@y"]),
    ];
    wish
}

fn wish_of_b() -> Desired {
    let mut wish = desired(&[
        port("lan", "eth3", &["10.2.0.1/24", "2001:db8:2::1/64", "fe80::b/64"]),
        port("x", "eth4", &["192.0.2.1/31", "fe80::b/64"]),
        port("y", "eth5", &["198.51.100.1/31", "fe80::b/64"]),
    ]);
    wish.routes = vec![
        route("10.1.0.0/24", &["192.0.2.0", "198.51.100.0"]),
        route("2001:db8:1::/64", &["fe80::a@x", "fe80::a@y"]),
    ];
    wish
}

fn network() -> Network {
    let mut net = Network::default();
    net.node(wish_of_a(), &[up("eth0"), up("eth1"), up("eth2")]);
    net.node(wish_of_b(), &[up("eth3"), up("eth4"), up("eth5")]);
    let mut h1 = desired(&[port("h", "eth7", &["10.1.0.9/24", "2001:db8:1::9/64"])]);
    h1.routes = vec![route("0.0.0.0/0", &["10.1.0.1"]), route("::/0", &["2001:db8:1::1"])];
    net.host(Host::new(h1, up("eth7")));
    net.host(Host::new(desired(&[port("h", "eth8", &["10.2.0.9/24", "2001:db8:2::9/64"])]), up("eth8")));
    net.cable(End::Host(H1), End::Node(A, 0));
    net.cable(End::Node(A, 1), End::Node(B, 1));
    net.cable(End::Node(A, 2), End::Node(B, 2));
    net.cable(End::Node(B, 0), End::Host(H2));
    net
}

/// One packet of each of the first `flows` flows from h1 to h2.
fn round(net: &mut Network, flows: u16, sequence: u32) {
    for flow in 0..flows {
        let to = net.hosts[H2].address[usize::from(flow % 2)];
        net.inject(H1, to, flow, sequence);
    }
}

/// Packets sent so far by B's two inner ports, as A's: how flows are spread.
fn spread(net: &Network) -> [u64; 2] {
    let counters = net.nodes[B].router.port_counters();
    [counters[1].rx_packets, counters[2].rx_packets]
}

fn is_reachable(net: &Network, node: usize, address: IpAddr) -> bool {
    let known = net.nodes[node].control.neighbors(net.now);
    known.iter().any(|n| n.address == address && n.mac.is_some())
}

#[test]
fn first_packets_wait_for_the_neighbor_and_arrive() {
    let mut net = network();
    // Before anyone knows anyone; four packets of a family fit the queue of one next hop.
    round(&mut net, 8, 0);
    net.run(SECOND);
    assert_eq!((net.hosts[H2].received, net.dropped_in_all()), (8, 0));
    assert!(is_reachable(&net, B, net.hosts[H2].address[0]));
    assert!(is_reachable(&net, B, net.hosts[H2].address[1]));
    for sequence in 1..100 {
        round(&mut net, 64, sequence);
        net.run(2 * MILLISECOND);
    }
    net.run(SECOND);
    assert_eq!((net.hosts[H2].received, net.dropped_in_all()), (8 + 99 * 64, 0));
}

#[test]
fn hours_of_traffic_lose_nothing_to_ageing() {
    let mut net = network();
    round(&mut net, 2, 0);
    net.run(SECOND);
    for sequence in 1..2_000 {
        round(&mut net, 2, sequence);
        net.run(3 * SECOND + 7 * MILLISECOND);
    }
    assert_eq!((net.hosts[H2].received, net.injected), (4_000, 4_000));
    let failed: u64 = net.nodes.iter().map(|n| n.control.neighbor_counters().failed).sum();
    assert_eq!(failed, 0);
    let changes = net.nodes[B].control.tables().generation;
    assert!(changes < 20, "a neighbour that is only confirmed is no new snapshot: {changes}");
}

/// h2 gets another card; the link tells it, and nobody else.
fn change_card(net: &mut Network, mac: Mac) {
    let h2 = &mut net.hosts[H2];
    h2.mac = mac;
    h2.control.link_changed(net.now, Link { mac, ..up("eth8") });
}

#[test]
fn host_that_changed_its_card_silently_is_found_again() {
    let mut net = network();
    round(&mut net, 2, 0);
    net.run(SECOND);
    change_card(&mut net, [2, 0, 0, 0, 0, 0x99]);
    for sequence in 1..700 {
        round(&mut net, 2, sequence);
        net.run(100 * MILLISECOND);
    }
    net.run(SECOND);
    // Half to one and a half of 30 s to the next probe, three unanswered probes, then found at once.
    let missed = net.hosts[H2].misaddressed;
    assert!(missed > 0 && missed <= 2 * 10 * (45 + 3), "{missed}");
    assert_eq!(net.hosts[H2].received + missed + net.dropped_in_all(), net.injected);
    assert_eq!(net.dropped_in_all(), 0, "the search held what came meanwhile");
    assert_eq!(net.hosts[H2].seen[&0], 699);
}

#[test]
fn host_that_speaks_after_changing_its_card_is_found_at_once() {
    let mut net = network();
    let mut wish = net.hosts[H2].control.desired().clone();
    wish.routes = vec![route("0.0.0.0/0", &["10.2.0.1"]), route("::/0", &["2001:db8:2::1"])];
    net.hosts[H2].control.apply(0, wish).expect("valid");
    round(&mut net, 2, 0);
    net.run(SECOND);
    change_card(&mut net, [2, 0, 0, 0, 0, 0x99]);
    net.run(10 * MILLISECOND);
    for sequence in 1..100 {
        round(&mut net, 2, sequence);
        net.run(SECOND);
    }
    assert_eq!((net.hosts[H2].received, net.hosts[H2].misaddressed), (200, 0));
}

#[test]
fn flows_leave_a_dead_cable_and_only_those_come_back() {
    let mut net = network();
    round(&mut net, 8, 0);
    net.run(SECOND);
    let start = spread(&net);
    for sequence in 1..11 {
        round(&mut net, 200, sequence);
        net.run(10 * MILLISECOND);
    }
    let both = spread(&net);
    let (x, y) = (both[0] - start[0], both[1] - start[1]);
    assert!(x > 600 && y > 600, "both cables are used: {x} {y}");

    // The cable is cut with packets in it; then the links notice.
    round(&mut net, 200, 11);
    net.run(MILLISECOND + 1);
    net.cut(End::Node(A, 1));
    round(&mut net, 200, 12);
    net.run(10 * MILLISECOND);
    for (node, device) in [(A, "eth1"), (B, "eth4")] {
        net.nodes[node].control.link_changed(net.now, Link { up: false, ..up(device) });
    }
    let lost = net.lost_on_cables;
    assert!(lost > 0);
    let start = spread(&net);
    for sequence in 13..23 {
        round(&mut net, 200, sequence);
        net.run(10 * MILLISECOND);
    }
    let one = spread(&net);
    assert_eq!((one[0] - start[0], one[1] - start[1] >= 2000), (0, true), "all by the other");
    assert_eq!(net.lost_on_cables, lost, "nothing more is lost");

    net.mend(End::Node(A, 1));
    for (node, device) in [(A, "eth1"), (B, "eth4")] {
        net.nodes[node].control.link_changed(net.now, up(device));
    }
    net.run(SECOND);
    let start = spread(&net);
    for sequence in 23..33 {
        round(&mut net, 200, sequence);
        net.run(10 * MILLISECOND);
    }
    let again = spread(&net);
    let back = again[0] - start[0];
    assert!(back.abs_diff(x) < 20, "the flows that left are back: {x} before, {back} now");
    net.run(SECOND);
    assert_eq!(net.hosts[H2].received + net.lost_on_cables, net.injected);
    assert_eq!(net.dropped_in_all(), 0);
}

#[test]
fn apply_while_traffic_flows_loses_nothing() {
    let mut net = network();
    round(&mut net, 8, 0);
    net.run(SECOND);
    let blackhole =
        |n: u8| RouteSpec { prefix: format!("10.{n}.0.0/16").parse().expect("prefix"), via: Via::Blackhole };
    for sequence in 1..200u32 {
        round(&mut net, 16, sequence);
        let mut wish = wish_of_a();
        // Routes come and go, next hops change weight and order, a port comes and goes, the MTU varies.
        wish.routes.extend((0..(sequence % 7) as u8).map(|n| blackhole(100 + n)));
        match sequence % 4 {
            0 => wish.routes[0] = route("10.2.0.0/24", &["198.51.100.1*3", "192.0.2.1"]),
            1 => wish.routes[1] = route("2001:db8:2::/64", &["fe80::b@y"]),
            2 => wish.ports.insert(0, port("dmz", "eth0", &["203.0.113.1/24"])),
            _ => wish.ports[0].mtu = Some(1400),
        }
        if let Some(dmz) = wish.ports.iter_mut().find(|p| p.name == "dmz") {
            dmz.vlan = Some(7);
        }
        let now = net.now;
        assert!(!net.nodes[A].control.apply(now, wish).expect("valid").is_empty());
        net.run(2 * MILLISECOND + 1);
    }
    net.run(SECOND);
    assert_eq!((net.hosts[H2].received, net.dropped_in_all()), (8 + 199 * 16, 0));
    assert_eq!(net.nodes[A].control.port_id("lan"), Some(PortId(0)));
}

#[test]
fn host_that_is_not_there_costs_its_packets_and_little_else() {
    let mut net = network();
    round(&mut net, 2, 0);
    net.run(SECOND);
    let asked = |net: &Network| net.nodes[B].control.neighbor_counters().requests_sent;
    let before = asked(&net);
    let nobody: IpAddr = "10.2.0.77".parse().expect("address");
    for sequence in 0..600 {
        net.inject(H1, nobody, 100, sequence);
        round(&mut net, 2, sequence + 1);
        net.run(100 * MILLISECOND);
    }
    net.run(10 * SECOND);
    assert_eq!(net.hosts[H2].received, 2 + 600 * 2, "others do not suffer");
    let (late, full) = (net.dropped(Reason::NeighborUnresolved), net.dropped(Reason::HoldQueueFull));
    assert_eq!((late + full, net.dropped_in_all()), (600, 600));
    assert!(late > 0 && full > 0 && net.hosts[H1].told > 0, "{late} {full} {}", net.hosts[H1].told);
    // Three a hold-down and its three seconds, and the probes of the others.
    let requests = asked(&net) - before;
    assert!(requests <= 3 * 71 / 8 + 3 + 6 * 71 / 15, "{requests}");
    let view = net.nodes[B].control.neighbors(net.now);
    let state = view.iter().find(|n| n.address == nobody).map(|n| n.state);
    assert!(matches!(state, None | Some(State::Incomplete | State::Failed)), "{state:?}");
}

#[test]
fn router_without_a_way_says_so_until_the_way_is_back() {
    let mut net = network();
    round(&mut net, 2, 0);
    net.run(SECOND);
    for device in ["eth1", "eth2"] {
        net.nodes[A].control.link_changed(net.now, Link { up: false, ..up(device) });
    }
    net.run(MILLISECOND);
    round(&mut net, 10, 1);
    net.run(SECOND);
    assert_eq!((net.dropped(Reason::NoRoute), net.hosts[H1].told), (10, 10));
    for device in ["eth1", "eth2"] {
        net.nodes[A].control.link_changed(net.now, up(device));
    }
    net.run(SECOND);
    round(&mut net, 10, 2);
    net.run(SECOND);
    assert_eq!((net.hosts[H2].received, net.dropped_in_all()), (12, 10));
}
