//! Waiting for a neighbour: bounded, in order, and not for ever.

use crate::common::world::*;
use weir_core::packet::DeviceId;
use weir_core::router::{Event, HOLD_TIME};
use weir_core::time::{MILLISECOND, SECOND};
use weir_core::verdict::Reason;

fn numbered(n: u32, dst: &str) -> Vec<u8> {
    frame(LAN, "10.0.0.2", dst).ident(n).udp(1000, 2000, b"in order, please")
}

fn idents(seen: &Seen) -> Vec<u16> {
    seen.sent.iter().map(|(_, bytes)| ipv4(bytes).ident()).collect()
}

#[test]
fn packets_wait_for_a_gateway_and_leave_when_it_answers() {
    let mut w = World::new();
    let seen = w.send(LAN, &numbered(1, "10.96.0.9"));
    let gateway = addr("192.0.2.66");
    assert_eq!(seen.events, [Event::Resolve { port: WAN, next_hop: gateway }]);
    assert_eq!((w.router.ledger().held, w.router.held()), (1, 1));
    assert!(w.send(LAN, &numbered(2, "10.96.0.9")).events.is_empty(), "asked once, not twice");
    w.net.resolve(WAN, gateway);
    let seen = w.publish();
    assert_eq!((idents(&seen), seen.forwarded), (vec![1, 2], 2));
    assert_eq!(ipv4(&seen.sent[0].1).ttl(), 63);
    assert_eq!(w.router.ledger().held, 0);
}

#[test]
fn connected_host_is_asked_for_itself() {
    let mut w = World::new();
    for (port, src, dst) in [(WAN, "192.0.2.7", "10.0.0.77"), (WAN, "2001:db8:1::7", "fd00::77")] {
        let seen = w.send(port, &udp(port, src, dst));
        assert_eq!(seen.events, [Event::Resolve { port: LAN, next_hop: addr(dst) }]);
        w.net.resolve(LAN, addr(dst));
        assert_eq!(w.publish().forwarded, 1);
    }
}

#[test]
fn neighbour_that_is_being_asked_for_is_waited_for() {
    let mut w = World::new();
    w.net.expect_neighbor(LAN, addr("10.0.0.78"));
    w.publish();
    assert_eq!(w.send(WAN, &udp(WAN, "192.0.2.7", "10.0.0.78")).events.len(), 1);
    assert_eq!(w.router.held(), 1);
}

#[test]
fn later_packets_do_not_overtake_held_ones() {
    let mut w = World::new();
    (1..=4).for_each(|n| assert_eq!(w.send(LAN, &numbered(n, "10.96.0.9")).forwarded, 0));
    w.net.resolve(WAN, addr("192.0.2.66"));
    // The snapshot is new to the router in the very batch that brings more of the flow.
    w.tables = w.net.tables();
    let more: Vec<_> = (5..=8).map(|n| (DeviceId(0), numbered(n, "10.96.0.9"))).collect();
    assert_eq!(idents(&w.send_all(&more)), [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn held_packets_follow_a_changed_route_in_order() {
    let mut w = World::new();
    (1..=3).for_each(|n| drop(w.send(LAN, &numbered(n, "10.96.0.9"))));
    let other = w.net.adjacency(WAN, addr("192.0.2.254"), true);
    w.net.route("10.96.0.0/16".parse().expect("a prefix"), weir_core::tables::Target::Adjacent(other));
    let seen = w.publish();
    assert_eq!(idents(&seen), [1, 2, 3]);
}

#[test]
fn packets_that_waited_for_different_hosts_leave_in_order_of_arrival() {
    let mut w = World::new();
    for (n, host) in [(1, "10.0.0.90"), (2, "10.0.0.70"), (3, "10.0.0.80"), (4, "10.0.0.70")] {
        let bytes = frame(WAN, "192.0.2.7", host).ident(n).udp(1, 2, b"queue");
        w.send(WAN, &bytes);
    }
    for host in ["10.0.0.70", "10.0.0.80", "10.0.0.90"] {
        w.net.resolve(LAN, addr(host));
    }
    assert_eq!(idents(&w.publish()), [1, 2, 3, 4]);
}

#[test]
fn neighbour_whose_mac_changes_is_reached_at_the_new_one_at_once() {
    let mut w = World::new();
    let bytes = udp(WAN, "192.0.2.7", "10.0.0.2");
    let dst = |seen: &Seen| weir_core::wire::Ethernet::parse(seen.one()).expect("a frame").dst();
    assert_eq!(dst(&w.send(WAN, &bytes)), neighbor_mac(LAN, 2));
    // The next snapshot keeps the neighbour under another id.
    let mut neighbors = (*w.tables.neighbors).clone();
    let id = w.net.adjacency(LAN, addr("10.0.0.153"), true);
    neighbors.insert((LAN, addr("10.0.0.2")), id);
    w.tables = w.net.tables();
    w.tables.neighbors = neighbors.into();
    assert_eq!(dst(&w.send(WAN, &bytes))[5], 0x99);
}

#[test]
fn held_packets_whose_route_is_gone_are_dropped_for_that() {
    let mut w = World::new();
    w.send(LAN, &numbered(1, "10.96.0.9"));
    w.net.route("10.96.0.0/16".parse().expect("a prefix"), weir_core::tables::Target::NoRoute);
    w.publish().dropped(Reason::NoRoute);
    assert_eq!(w.router.held(), 0);
}

#[test]
fn silent_neighbour_costs_the_packet_and_tells_the_sender() {
    for (src, dst, told) in [("10.0.0.2", "10.96.0.9", (3, 1)), ("fd00::2", "2001:db8:96::9", (1, 3))] {
        let mut w = World::new();
        w.send(LAN, &udp(LAN, src, dst));
        assert!(w.wait(HOLD_TIME - MILLISECOND).drops.is_empty());
        let seen = w.wait(200 * MILLISECOND);
        seen.dropped(Reason::NeighborUnresolved);
        let payload = match src {
            "10.0.0.2" => ipv4(seen.one()).payload().to_vec(),
            _ => ipv6(seen.one()).payload().to_vec(),
        };
        assert_eq!((payload[0], payload[1]), told);
        assert_eq!(w.router.held(), 0);
    }
}

#[test]
fn control_side_is_reminded_every_second() {
    let mut w = World::new();
    w.send(LAN, &numbered(1, "10.96.0.9"));
    let reminders: Vec<_> = (0..25).map(|_| w.wait(100 * MILLISECOND).events.len()).collect();
    assert_eq!(reminders.iter().sum::<usize>(), 2, "{reminders:?}");
}

#[test]
fn packet_that_waits_again_keeps_its_deadline() {
    let mut w = World::new();
    w.send(LAN, &numbered(1, "10.96.0.9"));
    w.wait(2 * SECOND);
    // A snapshot that changes nothing for it.
    assert!(w.publish().drops.is_empty());
    w.wait(1100 * MILLISECOND).dropped(Reason::NeighborUnresolved);
}

#[test]
fn full_queue_loses_its_oldest() {
    let mut w = World::new();
    let limit = u32::from(w.tables.settings.hold_per_neighbor);
    for n in 1..=limit {
        assert!(w.send(LAN, &numbered(n, "10.96.0.9")).drops.is_empty());
    }
    w.send(LAN, &numbered(limit + 1, "10.96.0.9")).dropped_silently(Reason::HoldQueueFull);
    w.net.resolve(WAN, addr("192.0.2.66"));
    assert_eq!(idents(&w.publish()), (2..=limit as u16 + 1).collect::<Vec<_>>());
}

#[test]
fn all_queues_together_are_bounded() {
    let mut net = Net::new();
    net.settings.hold_total = 5;
    let mut w = World::of(net);
    for n in 100..105 {
        assert!(w.send(LAN, &udp(LAN, "10.10.0.9", &format!("192.0.2.{n}"))).drops.is_empty());
    }
    w.send(LAN, &udp(LAN, "10.10.0.9", "192.0.2.200")).dropped_silently(Reason::HoldQueueFull);
    assert_eq!(w.router.held(), 5);
}

#[test]
fn error_that_waited_in_vain_is_lost_and_not_answered() {
    let mut w = World::new();
    let seen = w.send(LAN, &udp(LAN, "10.0.0.99", "8.8.8.8"));
    seen.dropped_silently(Reason::NoRoute);
    assert_eq!((w.router.held(), w.router.ledger().held), (1, 0));
    let seen = w.wait(HOLD_TIME + 200 * MILLISECOND);
    assert!(seen.drops.is_empty() && seen.sent.is_empty());
    assert_eq!((w.router.held(), w.router.ledger().originated_lost), (0, 1));
}

#[test]
fn port_that_goes_down_drops_what_waited_for_it() {
    let mut w = World::new();
    w.send(LAN, &numbered(1, "10.96.0.9"));
    w.net.take_down(WAN);
    let seen = w.publish();
    seen.dropped(Reason::PortDown);
    assert_eq!(ipv4(seen.one()).payload()[..2], [3, 1]);
    w.send(LAN, &numbered(2, "10.100.0.9")).dropped(Reason::PortDown);
    w.send(WAN, &udp(WAN, "192.0.2.7", "10.0.0.2")).dropped_silently(Reason::PortDown);
    w.send(LAN, &udp(LAN, "10.0.0.2", "192.0.2.77")).dropped(Reason::PortDown);
}

#[test]
fn ending_worker_gives_every_buffer_back() {
    let mut w = World::new();
    (1..=3).for_each(|n| drop(w.send(LAN, &numbered(n, "10.96.0.9"))));
    w.router.shutdown(&mut w.pool);
    assert_eq!(w.router.ledger().drops.of(Reason::NeighborUnresolved), 3);
    assert_eq!((w.router.held(), w.router.ledger().balance()), (0, 0));
}
