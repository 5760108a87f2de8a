//! What a router does with ordinary packets: next hop, link header, TTL, VLAN tags, several paths.

use crate::common::world::*;
use weir_core::packet::DeviceId;
use weir_core::router::Router;
use weir_core::wire::ethernet::Ethernet;

#[test]
fn ipv4_packet_goes_to_its_gateway_with_a_lower_ttl() {
    let mut w = World::new();
    let seen = w.send(LAN, &udp(LAN, "10.0.0.2", "10.100.0.9"));
    assert_eq!(seen.forwarded, 1);
    let out = seen.one();
    assert_eq!(seen.sent[0].0, DeviceId(1));
    let link = Ethernet::parse(out).expect("a frame");
    assert_eq!((link.dst(), link.src()), (neighbor_mac(WAN, 254), mac(WAN)));
    assert_eq!(ipv4(out).ttl(), 63, "and the checksum is right, for it parses");
    assert_eq!(ipv4(out).payload(), ipv4(&udp(LAN, "10.0.0.2", "10.100.0.9")).payload());
}

#[test]
fn ipv6_packet_goes_to_a_link_local_gateway_with_a_lower_hop_limit() {
    let mut w = World::new();
    let seen = w.send(LAN, &udp(LAN, "fd00::2", "2001:db8:100::9"));
    let out = seen.one();
    assert_eq!(Ethernet::parse(out).expect("a frame").dst(), neighbor_mac(WAN, 0xfe));
    assert_eq!(ipv6(out).hop_limit(), 63);
}

#[test]
fn connected_destination_is_reached_by_its_own_mac() {
    let mut w = World::new();
    for (src, dst) in [("192.0.2.7", "10.0.0.2"), ("2001:db8:1::7", "fd00::2")] {
        let seen = w.send(WAN, &udp(WAN, src, dst));
        assert_eq!(Ethernet::parse(seen.one()).expect("a frame").dst(), neighbor_mac(LAN, 2));
    }
}

#[test]
fn packet_may_leave_by_the_port_it_came_in_on() {
    let seen = World::new().send(WAN, &udp(WAN, "192.0.2.2", "10.100.0.9"));
    assert_eq!((seen.forwarded, seen.sent[0].0), (1, DeviceId(1)));
}

#[test]
fn what_follows_a_packet_in_its_frame_is_not_forwarded() {
    for fast in [true, false] {
        let mut w = World::new();
        if !fast {
            w.router = Router::new().without_fast_path();
        }
        for (port, src, dst, out) in [
            (LAN, "10.0.0.2", "10.100.0.9", 14),
            (LAN, "fd00::2", "2001:db8:100::9", 14),
            (LAN_10, "10.10.0.2", "10.100.0.9", 14),
            (LAN, "10.0.0.2", "10.95.0.9", 18),
        ] {
            let bytes = frame(port, src, dst).udp(1, 2, b"x");
            let packet = bytes.len() - if port == LAN_10 { 18 } else { 14 };
            let secret = [&bytes[..], b"left in a card's memory by another packet"].concat();
            let seen = w.send(port, &secret);
            assert_eq!(seen.one().len(), out + packet, "{src} to {dst}, fast path {fast}");
        }
    }
}

#[test]
fn tag_is_pushed_and_popped() {
    let mut w = World::new();
    for (src, dst) in [("10.0.0.2", "10.95.0.9"), ("fd00::2", "2001:db8:95::9")] {
        let seen = w.send(LAN, &udp(LAN, src, dst));
        let link = Ethernet::parse(seen.one()).expect("a frame");
        assert_eq!((link.vlan(), link.dst(), link.src()), (Some(10), neighbor_mac(LAN_10, 2), mac(LAN_10)));
    }
    for (src, dst) in [("10.10.0.2", "10.100.0.9"), ("fd00:10::2", "2001:db8:100::9")] {
        let seen = w.send(LAN_10, &udp(LAN_10, src, dst));
        let link = Ethernet::parse(seen.one()).expect("a frame");
        assert_eq!((link.vlan(), link.dst()), (None, neighbor_mac(WAN, 254)));
    }
}

#[test]
fn packet_routed_between_two_vlans_of_a_device_changes_its_tag() {
    let seen = World::new().send(LAN_20, &udp(LAN_20, "10.20.0.2", "10.95.0.9"));
    let link = Ethernet::parse(seen.one()).expect("a frame");
    assert_eq!((link.vlan(), link.src()), (Some(10), mac(LAN_10)));
    assert_eq!(ipv4(seen.one()).ttl(), 63);
}

#[test]
fn priority_tag_counts_as_untagged_and_is_removed() {
    let tagged = frame(LAN, "10.0.0.2", "10.100.0.9").vlan(0).udp(1, 2, b"payload");
    let seen = World::new().send(LAN, &tagged);
    assert!(!Ethernet::parse(seen.one()).expect("a frame").is_tagged());
}

#[test]
fn point_to_point_port_takes_any_mac() {
    let mut w = World::new();
    let filler = frame(TUN, "10.9.0.2", "10.100.0.9").macs([0; 6], [0; 6]).udp(1, 2, b"from the far end");
    assert_eq!(w.send(TUN, &filler).forwarded, 1);
    let seen = w.send(LAN, &udp(LAN, "10.0.0.2", "10.9.0.9"));
    assert_eq!(seen.sent[0].0, DeviceId(2));
}

#[test]
fn several_paths_share_flows_and_each_flow_keeps_its_path() {
    let mut w = World::new();
    for (src, dst) in [("10.0.0.2", "10.200.0.9"), ("fd00::2", "2001:db8:200::9")] {
        let mut gateways = std::collections::HashMap::new();
        for port in 1000..1064 {
            let bytes = frame(LAN, src, dst).udp(port, 2000, b"flow");
            let first = Ethernet::parse(w.send(LAN, &bytes).one()).expect("a frame").dst();
            let again = Ethernet::parse(w.send(LAN, &bytes).one()).expect("a frame").dst();
            assert_eq!(first, again);
            *gateways.entry(first).or_insert(0) += 1;
        }
        assert_eq!(gateways.len(), 2);
        assert!(gateways.values().all(|&flows| flows > 16), "{gateways:?}");
    }
}

#[test]
fn fragments_of_one_packet_take_one_path() {
    let mut w = World::new();
    for (src, dst) in [("10.0.0.2", "10.200.0.9"), ("fd00::2", "2001:db8:200::9")] {
        for ident in 0..32u32 {
            let part = |at, more| frame(LAN, src, dst).ident(ident).fragment(at, more);
            // Bytes where ports would be differ between the two.
            let first = part(0, true).raw(17, &[ident as u8; 64]);
            let last = part(64, false).raw(17, &[0xff - ident as u8; 64]);
            let paths =
                [first, last].map(|bytes| Ethernet::parse(w.send(LAN, &bytes).one()).expect("a frame").dst());
            assert_eq!(paths[0], paths[1]);
        }
    }
}

#[test]
fn ipv4_options_are_forwarded() {
    // Router alert, then a record route with room for two.
    let options = [148, 4, 0, 0, 7, 11, 4, 0, 0, 0, 0, 0, 0, 0, 0];
    let seen =
        World::new().send(LAN, &frame(LAN, "10.0.0.2", "10.100.0.9").options(&options).udp(1, 2, b"x"));
    let packet = ipv4(seen.one());
    assert_eq!((packet.ttl(), packet.header_len()), (63, 36));
}

#[test]
fn ipv6_extension_headers_are_forwarded() {
    let bytes = frame(LAN, "fd00::2", "2001:db8:100::9")
        .extension(0, &[0, 5, 2, 0, 0, 1, 0])
        .extension(60, &[0, 1, 4, 0, 0, 0, 0])
        .udp(1, 2, b"x");
    let seen = World::new().send(LAN, &bytes);
    assert_eq!(ipv6(seen.one()).hop_limit(), 63);
}

#[test]
fn order_is_kept_where_common_and_uncommon_packets_of_a_flow_mix() {
    let mut w = World::new();
    let frames: Vec<_> = (0..64u16)
        .map(|n| {
            let mut packet = frame(LAN, "10.0.0.2", "10.100.0.9").ident(u32::from(n));
            if n % 3 == 1 {
                packet = packet.options(&[148, 4, 0, 0]);
            }
            (DeviceId(0), packet.udp(1000, 2000, b"one flow"))
        })
        .collect();
    let seen = w.send_all(&frames);
    let order: Vec<_> = seen.sent.iter().map(|(_, bytes)| ipv4(bytes).ident()).collect();
    assert_eq!(order, (0..64).collect::<Vec<_>>());
}

#[test]
fn ports_count_what_they_carry() {
    let mut w = World::new();
    let common = udp(LAN, "10.0.0.2", "10.100.0.9");
    let tagged = udp(LAN, "10.0.0.2", "10.95.0.9");
    w.send_all(&[(DeviceId(0), common.clone()), (DeviceId(0), tagged.clone())]);
    let ports = w.router.port_counters();
    let len = (common.len() + tagged.len()) as u64;
    assert_eq!((ports[LAN.index()].rx_packets, ports[LAN.index()].rx_bytes), (2, len));
    assert_eq!((ports[WAN.index()].tx_packets, ports[WAN.index()].tx_bytes), (1, common.len() as u64));
    assert_eq!(
        (ports[LAN_10.index()].tx_packets, ports[LAN_10.index()].tx_bytes),
        (1, tagged.len() as u64 + 4)
    );
}

#[test]
fn full_batches_of_both_families_are_forwarded_whole() {
    let mut w = World::new();
    let frames: Vec<_> = (0..64)
        .map(|n| {
            let (src, dst) =
                if n % 2 == 0 { ("10.0.0.2", "10.100.0.9") } else { ("fd00::2", "2001:db8:100::9") };
            (DeviceId(0), frame(LAN, src, dst).udp(n, 1, b"either family"))
        })
        .collect();
    assert_eq!(w.send_all(&frames).forwarded, 64);
}

#[test]
fn frame_without_headroom_for_a_tag_is_dropped_and_counted() {
    let mut w = World::new();
    let mut buffer = w.pool.take().expect("a buffer");
    let bytes = udp(LAN, "10.0.0.2", "10.95.0.9");
    buffer[..bytes.len()].copy_from_slice(&bytes);
    let mut batch = weir_core::packet::Batch::new();
    batch.push(weir_core::packet::Frame::new(buffer, 0, bytes.len(), DeviceId(0))).expect("room");
    let free = w.pool.free();
    w.router.forward(0, &w.tables, &mut batch, &mut w.pool, &mut w.out);
    let ledger = w.router.ledger();
    assert_eq!(ledger.drops.of(weir_core::verdict::Reason::FrameTooLarge), 1);
    assert_eq!((ledger.balance(), w.pool.free()), (0, free + 1));
}
