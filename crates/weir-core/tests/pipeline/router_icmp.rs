//! ICMP errors: which packet earns which, which none, and how many (RFC 1812 4.3, RFC 4443 2.4).

use crate::common::world::*;
use weir_core::time::SECOND;
use weir_core::verdict::Reason;
use weir_core::wire::ethernet::Ethernet;
use weir_core::wire::{Icmpv4, Icmpv6};

/// Type, code and second word of the one error sent, whose every checksum is right and which quotes the
/// packet it is about.
#[track_caller]
fn error_of(seen: &Seen, about: &[u8]) -> (u8, u8, u32) {
    let out = seen.one();
    let link = Ethernet::parse(about).expect("a frame");
    let original = &about[link.header_len()..];
    let (head, quoted) = match original[0] >> 4 {
        4 => {
            let message = Icmpv4::parse(ipv4(out).payload().to_vec()).expect("a valid message");
            (ipv4(out).payload()[..8].to_vec(), message.payload().to_vec())
        }
        _ => {
            let packet = ipv6(out);
            let message = Icmpv6::parse(packet.payload().to_vec(), packet.src(), packet.dst());
            (packet.payload()[..8].to_vec(), message.expect("a valid message").payload().to_vec())
        }
    };
    assert!(quoted.len() >= 28 && original.starts_with(&quoted), "{}", seen.text());
    (head[0], head[1], u32::from_be_bytes([head[4], head[5], head[6], head[7]]))
}

#[test]
fn each_refusal_has_its_type_and_code() {
    for (dst4, dst6, reason, v4, v6) in [
        ("8.8.8.8", "2001:db8:8::8", Reason::NoRoute, (3, 0), (1, 0)),
        ("10.98.0.1", "2001:db8:98::1", Reason::Unreachable, (3, 1), (1, 6)),
        ("10.97.0.1", "2001:db8:97::1", Reason::Prohibited, (3, 13), (1, 1)),
        ("10.0.0.1", "fd00::1", Reason::LocalNotServed, (3, 3), (1, 4)),
    ] {
        for (src, dst, expected) in [("10.0.0.2", dst4, v4), ("fd00::2", dst6, v6)] {
            let bytes = udp(LAN, src, dst);
            let seen = World::new().send(LAN, &bytes);
            seen.dropped(reason);
            let (kind, code, word) = error_of(&seen, &bytes);
            assert_eq!(((kind, code), word, seen.originated), (expected, 0, 1), "{dst}");
        }
    }
}

#[test]
fn blackhole_is_silent() {
    World::new().send(LAN, &udp(LAN, "10.0.0.2", "10.99.0.1")).dropped_silently(Reason::Blackhole);
    World::new().send(LAN, &udp(LAN, "fd00::2", "2001:db8:99::1")).dropped_silently(Reason::Blackhole);
}

#[test]
fn expired_ttl_is_told_from_the_port_it_came_in_on() {
    for ttl in [0, 1] {
        let bytes = frame(LAN, "10.0.0.2", "10.100.0.9").ttl(ttl).udp(1, 2, b"traceroute");
        let seen = World::new().send(LAN, &bytes);
        seen.dropped(Reason::TtlExpired);
        assert_eq!(error_of(&seen, &bytes), (11, 0, 0));
        let reply = ipv4(seen.one());
        assert_eq!((reply.src(), reply.dst()), ([10, 0, 0, 1].into(), [10, 0, 0, 2].into()));
        assert_eq!(Ethernet::parse(seen.one()).expect("a frame").dst(), neighbor_mac(LAN, 2));
        let bytes = frame(LAN, "fd00::2", "2001:db8:100::9").ttl(ttl).udp(1, 2, b"traceroute");
        let seen = World::new().send(LAN, &bytes);
        assert_eq!(error_of(&seen, &bytes), (3, 0, 0));
        assert_eq!(ipv6(seen.one()).src(), addr("fd00::1"));
    }
}

#[test]
fn error_about_a_tagged_packet_is_tagged() {
    let bytes = frame(LAN_10, "10.10.0.2", "10.100.0.9").ttl(1).udp(1, 2, b"x");
    let seen = World::new().send(LAN_10, &bytes);
    assert_eq!(Ethernet::parse(seen.one()).expect("a frame").vlan(), Some(10));
    assert_eq!(error_of(&seen, &bytes).0, 11);
}

#[test]
fn packet_to_us_with_ttl_1_is_for_us() {
    let seen = World::new().send(LAN, &frame(LAN, "10.0.0.2", "10.0.0.1").ttl(1).echo_request(1, 1, b"near"));
    assert_eq!((seen.local, seen.originated), (1, 1));
}

#[test]
fn too_large_packet_is_told_the_mtu() {
    let bytes = frame(LAN, "10.0.0.2", "10.95.0.9").dont_fragment().udp(1, 2, &[0; 1300]);
    let seen = World::new().send(LAN, &bytes);
    seen.dropped(Reason::FragmentNeeded);
    assert_eq!(error_of(&seen, &bytes), (3, 4, 1300));
    let bytes = frame(LAN, "fd00::2", "2001:db8:95::9").udp(1, 2, &[0; 1300]);
    let seen = World::new().send(LAN, &bytes);
    seen.dropped(Reason::FragmentNeeded);
    assert_eq!(error_of(&seen, &bytes), (2, 0, 1300));
}

#[test]
fn unknown_protocol_to_us_is_told_so() {
    let bytes = frame(LAN, "10.0.0.2", "10.0.0.1").raw(89, &[0; 24]);
    assert_eq!(error_of(&World::new().send(LAN, &bytes), &bytes), (3, 2, 0));
    let bytes = frame(LAN, "fd00::2", "fd00::1").raw(89, &[0; 24]);
    assert_eq!(error_of(&World::new().send(LAN, &bytes), &bytes), (4, 1, 6), "points at next header");
    let bytes = frame(LAN, "fd00::2", "fd00::1").extension(60, &[0, 1, 4, 0, 0, 0, 0]).raw(89, &[0; 24]);
    assert_eq!(error_of(&World::new().send(LAN, &bytes), &bytes), (4, 1, 40), "in the last extension");
}

#[test]
fn errors_later_fragments_and_groups_are_never_answered() {
    let mut w = World::new();
    let to = |src: &str, dst: &str| frame(LAN, src, dst);
    // ICMP errors for a destination without a route.
    for kind in [3, 4, 5, 11, 12] {
        let bytes = to("10.0.0.2", "8.8.8.8").raw(1, &[kind, 0, 0, 0, 0, 0, 0, 0]);
        w.send(LAN, &bytes).dropped_silently(Reason::NoRoute);
    }
    for kind in [1, 2, 3, 4, 127, 137] {
        let bytes = to("fd00::2", "2001:db8:8::8").raw(58, &[kind, 0, 0, 0, 0, 0, 0, 0]);
        w.send(LAN, &bytes).dropped_silently(Reason::NoRoute);
    }
    let later = to("10.0.0.2", "8.8.8.8").fragment(64, false).raw(17, &[0; 64]);
    w.send(LAN, &later).dropped_silently(Reason::NoRoute);
    let first = to("10.0.0.2", "8.8.8.8").fragment(0, true).raw(17, &[0; 64]);
    assert_eq!(w.send(LAN, &first).originated, 1);
    // An echo request that cannot be forwarded is answered by an error, it is none itself.
    assert_eq!(w.send(LAN, &to("10.0.0.2", "8.8.8.8").echo_request(1, 1, b"x")).originated, 1);
    assert_eq!(w.send(LAN, &to("fd00::2", "2001:db8:8::8").echo_request(1, 1, b"x")).originated, 1);
}

#[test]
fn errors_are_limited_and_counted() {
    let mut net = Net::new();
    net.settings.icmp_errors_per_second = 10;
    net.settings.icmp_error_burst = 3;
    let mut w = World::of(net);
    let refused = udp(LAN, "10.0.0.2", "8.8.8.8");
    let send_ten = |w: &mut World| (0..10).map(|_| w.send(LAN, &refused).originated).sum::<u64>();
    assert_eq!(send_ten(&mut w), 3);
    assert_eq!(w.router.ledger().icmp_limited, 7);
    w.wait(SECOND / 10);
    assert_eq!(send_ten(&mut w), 1);
    w.wait(60 * SECOND);
    assert_eq!(send_ten(&mut w), 3);
    assert_eq!(w.router.ledger().drops.of(Reason::NoRoute), 30);
}

#[test]
fn port_without_an_address_speaks_with_another_ports() {
    let mut net = Net::new();
    net.ports[LAN.index()].addresses.clear();
    let mut w = World::of(net);
    let bytes = udp(LAN, "10.0.0.2", "8.8.8.8");
    assert_eq!(ipv4(w.send(LAN, &bytes).one()).src(), addr("192.0.2.1"));
}

#[test]
fn error_without_a_buffer_or_a_route_is_counted_as_lost() {
    let mut w = World::new();
    let lost = |w: &World| w.router.ledger().originated_lost;
    // The sender cannot be reached: its route is a blackhole.
    w.send(LAN, &udp(LAN, "10.99.0.1", "8.8.8.8")).dropped_silently(Reason::NoRoute);
    assert_eq!(lost(&w), 1);
    let buffers: Vec<_> = std::iter::from_fn(|| w.pool.take()).collect();
    let (mut rest, kept) = (buffers.into_iter(), w.pool.take());
    assert!(kept.is_none());
    w.pool.put(rest.next().expect("a buffer for the packet itself"));
    let device = weir_core::packet::DeviceId(0);
    let mut batch = weir_core::packet::Batch::new();
    let buffer = w.pool.take().expect("one");
    let bytes = udp(LAN, "10.0.0.2", "8.8.8.8");
    let packet = weir_core::packet::Frame::from_bytes(buffer, &bytes, device).expect("fits");
    batch.push(packet).expect("room");
    w.router.forward(0, &w.tables, &mut batch, &mut w.pool, &mut w.out);
    assert_eq!((lost(&w), w.router.ledger().balance(), w.pool.free()), (2, 0, 1));
}
