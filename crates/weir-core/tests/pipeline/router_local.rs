//! What is for this host: echo, neighbour discovery and ARP, and what only the kernel serves.

use crate::common::world::*;
use weir_core::packet::DeviceId;
use weir_core::verdict::Reason;
use weir_core::wire::ethernet::Ethernet;
use weir_core::wire::{Icmpv4, Icmpv6, build};

#[test]
fn echo_request_to_weirs_own_address_is_answered() {
    let mut w = World::new();
    let seen = w.send(LAN, &frame(LAN, "10.0.0.2", "10.0.0.1").ttl(7).echo_request(42, 3, b"how far?"));
    assert_eq!((seen.local, seen.originated), (1, 1));
    let reply = ipv4(seen.one());
    assert_eq!((reply.src(), reply.dst(), reply.ttl()), ([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 64));
    let message = Icmpv4::parse(reply.payload()).expect("a valid message");
    assert_eq!((message.kind(), message.ident(), message.sequence()), (0, 42, 3));
    assert_eq!(message.payload(), b"how far?");
    assert_eq!(Ethernet::parse(seen.one()).expect("a frame").dst(), neighbor_mac(LAN, 2));
}

#[test]
fn echo_works_for_ipv6_and_over_a_tag_and_from_far_away() {
    let mut w = World::new();
    let seen = w.send(LAN, &frame(LAN, "fd00::2", "fd00::1").echo_request(42, 3, b"how far?"));
    let reply = ipv6(seen.one());
    assert_eq!((reply.src(), reply.dst(), reply.hop_limit()), (addr6("fd00::1"), addr6("fd00::2"), 64));
    let message = Icmpv6::parse(reply.payload(), reply.src(), reply.dst()).expect("a valid message");
    assert_eq!((message.kind(), message.sequence()), (129, 3));
    let seen = w.send(LAN_10, &frame(LAN_10, "10.10.0.2", "10.10.0.1").echo_request(1, 1, b"tagged"));
    assert_eq!(Ethernet::parse(seen.one()).expect("a frame").vlan(), Some(10));
    // Asked on wan for an address of lan: the answer takes the route back.
    let seen = w.send(WAN, &frame(WAN, "10.100.0.5", "10.0.0.1").echo_request(1, 1, b"from afar"));
    assert_eq!(seen.sent[0].0, DeviceId(1));
}

fn addr6(text: &str) -> std::net::Ipv6Addr {
    text.parse().expect("an address")
}

#[test]
fn echo_to_a_link_local_address_is_answered_on_the_link() {
    let mut w = World::new();
    w.net.resolve(LAN, addr("fe80::77"));
    w.publish();
    let seen = w.send(LAN, &frame(LAN, "fe80::77", "fe80::1").echo_request(1, 1, b"near"));
    assert_eq!(ipv6(seen.one()).dst(), addr6("fe80::77"));
}

#[test]
fn echo_waits_for_the_neighbour_like_any_packet() {
    let mut w = World::new();
    let seen = w.send(LAN, &frame(LAN, "10.0.0.50", "10.0.0.1").echo_request(1, 1, b"who are you"));
    assert_eq!((seen.local, seen.sent.len(), w.router.held()), (1, 0, 1));
    assert_eq!(seen.events.len(), 1);
    w.net.resolve(LAN, addr("10.0.0.50"));
    let seen = w.publish();
    assert_eq!((seen.originated, ipv4(seen.one()).dst()), (1, [10, 0, 0, 50].into()));
}

#[test]
fn fragmented_echo_to_us_is_not_served() {
    let bytes = frame(LAN, "10.0.0.2", "10.0.0.1").fragment(0, true).raw(1, &[8, 0, 0xf7, 0xff, 0, 0, 0, 0]);
    World::new().send(LAN, &bytes).dropped_silently(Reason::LocalNotServed);
}

#[test]
fn other_icmp_to_us_is_not_served_and_not_answered() {
    let reply = frame(LAN, "10.0.0.2", "10.0.0.1").echo_reply(1, 1, b"unasked");
    World::new().send(LAN, &reply).dropped_silently(Reason::LocalNotServed);
    let reply = frame(LAN, "fd00::2", "fd00::1").echo_reply(1, 1, b"unasked");
    World::new().send(LAN, &reply).dropped_silently(Reason::LocalNotServed);
}

#[test]
fn everything_to_the_kernels_address_is_the_kernels() {
    let mut w = World::new();
    for bytes in [
        udp(LAN, "10.0.0.2", "192.0.2.1"),
        frame(LAN, "10.0.0.2", "192.0.2.1").echo_request(1, 1, b"x"),
        frame(LAN, "10.0.0.2", "192.0.2.1").raw(50, &[0; 32]),
        udp(LAN, "fd00::2", "2001:db8:1::1"),
    ] {
        let seen = w.send(LAN, &bytes);
        assert_eq!((seen.local, seen.sent.len()), (1, 0));
    }
}

#[test]
fn arp_and_neighbour_discovery_go_to_the_control_side() {
    let mut w = World::new();
    let asker = neighbor_mac(LAN, 9);
    for (port, bytes) in [
        (LAN, build::arp_request((asker, [10, 0, 0, 9].into()), [10, 0, 0, 1].into(), None)),
        (LAN_10, build::arp_request((asker, [10, 10, 0, 9].into()), [10, 10, 0, 1].into(), Some(10))),
        (LAN, build::neighbor_solicitation((asker, addr6("fd00::9")), addr6("fd00::1"), None)),
        (WAN, build::neighbor_solicitation((asker, addr6("fe80::9")), addr6("fe80::2"), None)),
    ] {
        let seen = w.send(port, &bytes);
        assert_eq!(seen.local, 1);
        assert_eq!(seen.punted, [(port, bytes)]);
    }
}

#[test]
fn punt_queue_is_bounded_and_its_overflow_counted() {
    let mut w = World::new();
    let arp = build::arp_request((neighbor_mac(LAN, 9), [10, 0, 0, 9].into()), [10, 0, 0, 1].into(), None);
    let count = 70;
    let mut punted = 0;
    // Nobody empties the queue: frames pile up over several batches.
    let mut pool = weir_core::packet::Pool::boxed(300);
    for _ in 0..count {
        let mut batch = weir_core::packet::Batch::new();
        for _ in 0..4 {
            let buffer = pool.take().expect("enough");
            let frame = weir_core::packet::Frame::from_bytes(buffer, &arp, DeviceId(0)).expect("fits");
            batch.push(frame).expect("room");
        }
        w.router.forward(0, &w.tables, &mut batch, &mut pool, &mut w.out);
        punted += 4;
        assert_eq!(w.router.ledger().balance(), w.out.punt.len() as i64, "on their way, and in no counter");
    }
    w.router.taken(&w.tables, &w.out);
    assert_eq!((w.router.ledger().local, w.router.ledger().balance()), (w.out.punt.len() as u64, 0));
    let full = w.router.ledger().drops.of(Reason::PuntQueueFull);
    assert_eq!((w.out.punt.len() as u64 + full, full > 0), (punted, true));
}
