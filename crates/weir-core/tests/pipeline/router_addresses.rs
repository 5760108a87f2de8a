//! Addresses a router refuses: martians, groups, broadcasts, link-local ones (RFC 1812 5.3, RFC 4291).

use crate::common::world::*;
use weir_core::tables::Owner;
use weir_core::verdict::Reason;

#[test]
fn martian_sources_are_dropped_silently() {
    let mut w = World::new();
    // The last three are ours: an address of this port, of another, and a broadcast address.
    for src in ["0.0.0.0", "0.1.2.3", "127.0.0.1", "224.0.0.1", "239.1.2.3", "240.0.0.1", "255.255.255.255"]
        .into_iter()
        .chain(["10.0.0.1", "192.0.2.1", "10.20.0.255"])
    {
        w.send(LAN, &udp(LAN, src, "10.100.0.9")).dropped_silently(Reason::MartianSource);
    }
    for src in
        ["::", "::1", "::10.0.0.2", "::ffff:10.0.0.2", "ff02::1", "ff0e::1", "fd00::1", "2001:db8:1::1"]
    {
        w.send(LAN, &udp(LAN, src, "2001:db8:100::9")).dropped_silently(Reason::MartianSource);
    }
}

#[test]
fn martian_destinations_are_dropped_silently() {
    let mut w = World::new();
    for dst in ["0.0.0.0", "0.1.2.3", "127.0.0.1", "240.0.0.1", "255.255.255.254"] {
        w.send(LAN, &udp(LAN, "10.0.0.2", dst)).dropped_silently(Reason::MartianDestination);
    }
    for dst in ["::", "::1", "::10.0.0.2", "::ffff:10.0.0.2"] {
        w.send(LAN, &udp(LAN, "fd00::2", dst)).dropped_silently(Reason::MartianDestination);
    }
}

#[test]
fn neighbours_of_martian_ranges_are_ordinary() {
    let mut w = World::new();
    for src in
        ["1.0.0.1", "126.255.255.255", "128.0.0.1", "223.255.255.255", "169.253.255.255", "169.255.0.1"]
    {
        assert_eq!(w.send(LAN, &udp(LAN, src, "10.100.0.9")).forwarded, 1, "{src}");
    }
    for src in ["64:ff9b::10.0.0.2", "::1:0:0:0:2", "fec0::1", "fe7f::1"] {
        assert_eq!(w.send(LAN, &udp(LAN, src, "2001:db8:100::9")).forwarded, 1, "{src}");
    }
}

#[test]
fn far_end_of_a_point_to_point_port_may_be_this_hosts_kernel() {
    let mut w = World::new();
    assert_eq!(w.send(TUN, &udp(TUN, "10.9.0.1", "10.100.0.9")).forwarded, 1);
    assert_eq!(w.send(TUN, &udp(TUN, "fd00:9::1", "2001:db8:100::9")).forwarded, 1);
}

#[test]
fn link_local_addresses_stay_on_their_link() {
    let mut w = World::new();
    w.send(LAN, &udp(LAN, "169.254.1.1", "10.100.0.9")).dropped_silently(Reason::LinkLocalScope);
    w.send(LAN, &udp(LAN, "10.0.0.2", "169.254.1.1")).dropped_silently(Reason::LinkLocalScope);
    w.net.resolve(LAN, addr("fe80::77"));
    w.publish();
    let seen = w.send(LAN, &udp(LAN, "fe80::77", "2001:db8:100::9"));
    seen.dropped(Reason::LinkLocalScope);
    // Destination unreachable, beyond scope of source address (RFC 4443 3.1).
    assert_eq!(ipv6(seen.one()).payload()[..2], [1, 2]);
    w.send(LAN, &udp(LAN, "fd00::2", "fe80::99")).dropped(Reason::LinkLocalScope);
    // fe80::2 is ours, but on another link.
    w.send(LAN, &udp(LAN, "fd00::2", "fe80::2")).dropped(Reason::LinkLocalScope);
}

#[test]
fn subnet_router_anycast_address_of_a_link_is_the_kernels() {
    let mut w = World::new();
    // The kernel has fe80::2/64 on wan, weir fe80::1/64 on lan.
    assert_eq!(w.send(WAN, &udp(WAN, "fe80::77", "fe80::")).local, 1);
    w.send(LAN, &udp(LAN, "fe80::77", "fe80::")).dropped(Reason::LinkLocalScope);
}

#[test]
fn multicast_is_not_routed_and_groups_of_the_link_are_the_kernels() {
    let mut w = World::new();
    // The kernel has an address on wan and none on lan.
    for (port, src, dst, local) in [
        (WAN, "192.0.2.7", "224.0.0.5", true),
        (LAN, "10.0.0.2", "224.0.0.5", false),
        (WAN, "192.0.2.7", "239.1.1.1", false),
        (WAN, "2001:db8:1::7", "ff02::5", true),
        (WAN, "2001:db8:1::7", "ff01::1", true),
        (LAN, "fd00::2", "ff02::5", false),
        (WAN, "2001:db8:1::7", "ff0e::1", false),
    ] {
        let bytes =
            frame(port, src, dst).macs([1, 0, 0x5e, 0, 0, 5], neighbor_mac(port, 2)).raw(89, &[0; 20]);
        let seen = w.send(port, &bytes);
        if local {
            assert_eq!((seen.local, seen.sent.len()), (1, 0), "{dst}");
        } else {
            seen.dropped_silently(Reason::Multicast);
        }
    }
}

#[test]
fn broadcasts_are_local_where_the_kernel_listens_and_go_nowhere_else() {
    let mut w = World::new();
    let broadcast = |port, src, dst| {
        frame(port, src, dst).macs([0xff; 6], neighbor_mac(port, 2)).udp(68, 67, b"discover")
    };
    for dst in ["255.255.255.255", "192.0.2.255"] {
        assert_eq!(w.send(WAN, &broadcast(WAN, "192.0.2.7", dst)).local, 1);
    }
    assert_eq!(w.send(WAN, &broadcast(WAN, "0.0.0.0", "255.255.255.255")).local, 1);
    for dst in ["255.255.255.255", "10.0.0.255"] {
        w.send(LAN, &broadcast(LAN, "10.0.0.2", dst)).dropped_silently(Reason::LocalNotServed);
    }
}

#[test]
fn directed_broadcast_to_another_network_is_refused() {
    let mut w = World::new();
    w.send(LAN, &udp(LAN, "10.0.0.2", "192.0.2.255")).dropped_silently(Reason::DirectedBroadcast);
    w.send(WAN, &udp(WAN, "192.0.2.7", "10.0.0.255")).dropped_silently(Reason::DirectedBroadcast);
}

#[test]
fn unicast_in_a_link_layer_broadcast_or_multicast_is_refused_without_an_answer() {
    let mut w = World::new();
    for mac in [[0xff; 6], [1, 0, 0x5e, 1, 2, 3]] {
        for dst in ["10.100.0.9", "10.0.0.1", "8.8.8.8"] {
            let bytes = frame(LAN, "10.0.0.2", dst).macs(mac, neighbor_mac(LAN, 2)).udp(1, 2, b"x");
            w.send(LAN, &bytes).dropped_silently(Reason::LinkBroadcast);
        }
        let bytes = frame(LAN, "fd00::2", "2001:db8:100::9").macs(mac, neighbor_mac(LAN, 2)).udp(1, 2, b"x");
        w.send(LAN, &bytes).dropped_silently(Reason::LinkBroadcast);
    }
}

#[test]
fn reverse_path_strict_wants_the_port_back() {
    let mut w = World::new();
    assert_eq!(w.send(LAN_20, &udp(LAN_20, "10.20.0.2", "10.100.0.9")).forwarded, 1);
    assert_eq!(w.send(LAN_20, &udp(LAN_20, "fd00:20::2", "2001:db8:100::9")).forwarded, 1);
    for src in ["10.0.0.2", "10.100.0.1", "10.200.0.1", "10.99.0.1", "8.8.8.8"] {
        w.send(LAN_20, &udp(LAN_20, src, "10.100.0.9")).dropped_silently(Reason::ReversePath);
    }
    w.send(LAN_20, &udp(LAN_20, "fd00::2", "2001:db8:100::9")).dropped_silently(Reason::ReversePath);
}

#[test]
fn reverse_path_loose_wants_any_way_back() {
    let mut net = Net::new();
    net.ports[LAN_20.index()].reverse_path = weir_core::tables::ReversePath::Loose;
    let mut w = World::of(net);
    for src in ["10.20.0.2", "10.0.0.2", "10.100.0.1", "10.200.0.1"] {
        assert_eq!(w.send(LAN_20, &udp(LAN_20, src, "10.100.0.9")).forwarded, 1, "{src}");
    }
    for src in ["10.99.0.1", "8.8.8.8"] {
        w.send(LAN_20, &udp(LAN_20, src, "10.100.0.9")).dropped_silently(Reason::ReversePath);
    }
}

#[test]
fn strict_reverse_path_accepts_any_member_of_several_paths() {
    let mut net = Net::new();
    net.ports[WAN.index()].reverse_path = weir_core::tables::ReversePath::Strict;
    let mut w = World::of(net);
    assert_eq!(w.send(WAN, &udp(WAN, "10.200.0.1", "10.0.0.2")).forwarded, 1);
    assert_eq!(w.send(WAN, &udp(WAN, "10.100.0.1", "10.0.0.2")).forwarded, 1);
    w.send(WAN, &udp(WAN, "10.95.0.1", "10.0.0.2")).dropped_silently(Reason::ReversePath);
}

#[test]
fn reverse_path_is_asked_of_each_packet_of_a_batch_by_the_port_it_came_in_on() {
    for fast in [true, false] {
        let mut net = Net::new();
        net.ports[LAN.index()].reverse_path = weir_core::tables::ReversePath::Strict;
        let mut w = World::of(net);
        if !fast {
            w.router = weir_core::router::Router::new().without_fast_path();
        }
        let [lan, wan] = [LAN, WAN].map(|port| w.tables.ports[port.index()].device);
        let seen = w.send_all(&[
            (lan, udp(LAN, "10.0.0.2", "10.100.0.9")),
            (lan, udp(LAN, "10.100.0.1", "10.100.0.9")),
            (wan, udp(WAN, "10.95.0.1", "10.0.0.2")),
            (lan, udp(LAN, "fd00::2", "2001:db8:100::9")),
            (lan, udp(LAN, "2001:db8:100::1", "2001:db8:100::9")),
            (wan, udp(WAN, "2001:db8:95::1", "fd00::2")),
            (lan, udp(LAN, "10.0.0.2", "10.100.0.9")),
        ]);
        assert_eq!(
            (seen.forwarded, &seen.drops[..]),
            (5, &[(Reason::ReversePath, 2)][..]),
            "fast path {fast}"
        );
    }
}

#[test]
fn owner_decides_who_answers_for_an_address() {
    let mut net = Net::new();
    net.ports[LAN.index()].addresses[0].owner = Owner::Kernel;
    let mut w = World::of(net);
    let seen = w.send(LAN, &udp(LAN, "10.0.0.2", "10.0.0.1"));
    assert_eq!((seen.local, seen.sent.len()), (1, 0));
    w.send(LAN, &udp(LAN, "fd00::2", "fd00::1")).dropped(Reason::LocalNotServed);
}
