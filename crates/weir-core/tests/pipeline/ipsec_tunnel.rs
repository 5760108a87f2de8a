//! Route mode: a tunnel is a port, and the route table decides what goes into it.

use crate::common::site::*;
use weir_core::packet::DeviceId;
use weir_core::router::Router;
use weir_core::tables::ReversePath;
use weir_core::verdict::Reason;
use weir_core::wire::Ethernet;

/// Outer and inner family in every combination: 44, 66, 4-in-6, 6-in-4.
fn combinations() -> impl Iterator<Item = (weir_core::ipsec::Params, usize)> {
    [gcm(), outside6(gcm())].into_iter().flat_map(|params| [0, 1].map(|inner| (params.clone(), inner)))
}

#[test]
fn packet_routed_to_a_tunnel_leaves_sealed_by_the_port_its_far_end_is_behind() {
    for (params, six) in combinations() {
        let mut site = Site::route_mode(params);
        let sent = site.lan_frame(six, b"through the tunnel");
        let seen = site.w.send(LAN, &sent);
        assert_eq!((seen.forwarded, seen.sent.len()), (1, 1));
        assert_eq!(seen.sent[0].0, DeviceId(1));
        let link = Ethernet::parse(seen.one()).expect("a frame");
        assert_eq!((link.dst(), link.src()), (neighbor_mac(WAN, 2), mac(WAN)));
        assert_eq!(site.opened(seen.one()), forwarded(&sent[14..]));
    }
}

#[test]
fn packet_that_comes_by_the_tunnel_is_opened_and_routed() {
    for (params, six) in combinations() {
        let mut site = Site::route_mode(params);
        let packet = site.far_packet(six, b"from the far end");
        let sealed = site.sealed(&packet);
        let seen = site.w.send(WAN, &sealed);
        assert_eq!((seen.forwarded, &seen.drops[..]), (1, &[][..]), "{seen:?}");
        assert_eq!(seen.sent[0].0, DeviceId(0));
        assert_eq!(seen.one()[14..], forwarded(&packet));
        assert_eq!(Ethernet::parse(seen.one()).expect("a frame").dst(), neighbor_mac(LAN, 2));
    }
}

/// After a batch without ESP it is looked for among what forwarding declines, after one with some before forwarding.
#[test]
fn esp_is_opened_whatever_the_batch_before_it_had() {
    for (params, six) in combinations().chain([(in_udp(gcm()), 0)]) {
        let mut site = Site::route_mode(params);
        for round in 0..4 {
            let clear = site.lan_frame(six, b"through the tunnel");
            let sealed: Vec<_> = (0..3u8)
                .map(|n| {
                    let packet = site.far_packet(six, &[n; 20]);
                    (DeviceId(1), site.sealed(&packet))
                })
                .collect();
            let [first, second, third] = &sealed[..] else { panic!("three") };
            assert_eq!(site.w.send(LAN, &clear).forwarded, 1, "round {round}");
            let seen = site.w.send_all(std::slice::from_ref(first));
            assert_eq!((seen.forwarded, seen.sent[0].0), (1, DeviceId(0)), "round {round}: {seen:?}");
            assert_eq!(site.w.send(LAN, &clear).forwarded, 1, "round {round}");
            let mixed = [(DeviceId(0), clear.clone()), second.clone(), (DeviceId(0), clear), third.clone()];
            let seen = site.w.send_all(&mixed);
            assert_eq!((seen.forwarded, &seen.drops[..]), (4, &[][..]), "round {round}: {seen:?}");
            let inward = seen.sent.iter().filter(|(device, _)| *device == DeviceId(0)).count();
            assert_eq!(inward, 2, "round {round}: {seen:?}");
        }
    }
}

#[test]
fn inner_source_that_is_not_behind_the_tunnel_goes_no_further_where_it_asks() {
    for fast in [true, false] {
        let mut site = Site::route_mode(gcm());
        if !fast {
            site.w.router = Router::new().without_fast_path();
        }
        let tunnel = site.tunnel.expect("a tunnel").index();
        let pretended =
            [("10.0.0.7", NEAR[0]), ("fd00::7", NEAR[1]), ("10.100.0.1", NEAR[0])].map(|(src, dst)| {
                frame(WAN, src, dst).udp(2000, 1000, b"from somebody else's network")[14..].to_vec()
            });
        for packet in &pretended {
            let sealed = site.sealed(packet);
            assert_eq!(site.w.send(WAN, &sealed).forwarded, 1, "without rpf any source passes");
        }
        site.w.net.ports[tunnel].reverse_path = ReversePath::Strict;
        site.publish();
        for packet in &pretended {
            let sealed = site.sealed(packet);
            site.w.send(WAN, &sealed).dropped_silently(Reason::ReversePath);
        }
        for six in [0, 1] {
            let packet = site.far_packet(six, b"from behind the tunnel");
            let sealed = site.sealed(&packet);
            assert_eq!(site.w.send(WAN, &sealed).forwarded, 1);
        }
    }
}

#[test]
fn tunnel_counts_what_it_carries_and_the_wan_port_what_is_sealed() {
    let mut site = Site::route_mode(gcm());
    let tunnel = site.tunnel.expect("a tunnel").index();
    let sent = site.lan_frame(0, &[7; 100]);
    let seen = site.w.send(LAN, &sent);
    let counters = site.w.router.port_counters();
    assert_eq!((counters[tunnel].tx_packets, counters[tunnel].tx_bytes), (1, sent.len() as u64));
    assert_eq!(
        (counters[WAN.index()].tx_packets, counters[WAN.index()].tx_bytes),
        (1, seen.one().len() as u64)
    );
    let packet = site.far_packet(0, &[7; 100]);
    let sealed = site.sealed(&packet);
    site.w.send(WAN, &sealed);
    let counters = site.w.router.port_counters();
    assert_eq!((counters[tunnel].rx_packets, counters[tunnel].rx_bytes), (1, packet.len() as u64 + 14));
    assert_eq!((counters[WAN.index()].rx_packets, counters[WAN.index()].rx_bytes), (1, sealed.len() as u64));
}

#[test]
fn tunnel_without_an_sa_drops_and_counts_nothing_as_sent() {
    let mut site = Site::route_mode(gcm());
    site.sas_out = Some(Vec::new());
    site.publish();
    let sent = site.lan_frame(0, b"no way out");
    site.w.send(LAN, &sent).dropped_silently(Reason::NoOutboundSa);
    let tunnel = site.tunnel.expect("a tunnel").index();
    assert_eq!(site.w.router.port_counters()[tunnel].tx_packets, 0);
    assert_eq!(site.w.router.port_counters()[tunnel].tx_bytes, 0);
}

#[test]
fn packets_of_a_burst_keep_their_order_and_numbers() {
    for six in [0, 1] {
        let mut site = Site::route_mode(if six == 0 { gcm() } else { outside6(gcm()) });
        let device = DeviceId(0);
        let mut opened = 0u16;
        // Burst 44 and burst 66: 257 packets, more than four batches.
        let bytes: Vec<_> = (0..257u16).map(|n| (device, site.lan_frame(six, &n.to_be_bytes()))).collect();
        for batch in bytes.chunks(64) {
            let seen = site.w.send_all(batch);
            assert_eq!(seen.forwarded as usize, batch.len());
            for (_, frame) in &seen.sent {
                let inner = site.opened(frame);
                assert_eq!(inner[inner.len() - 2..], opened.to_be_bytes());
                opened += 1;
            }
        }
        assert_eq!(opened, 257);
        let back: Vec<_> = (0..257u16)
            .map(|n| (DeviceId(1), site.sealed(&site.far_packet(six, &n.to_be_bytes()))))
            .collect();
        let forwarded: u64 = back.chunks(64).map(|batch| site.w.send_all(batch).forwarded).sum();
        assert_eq!(forwarded, 257);
    }
}

#[test]
fn esp_without_an_sa_is_the_kernels_on_its_address() {
    let mut site = Site::route_mode(gcm());
    let mut sealed = site.sealed(&site.far_packet(0, b"whose?"));
    sealed[14 + 20] ^= 0x40;
    let seen = site.w.send(WAN, &sealed);
    assert_eq!((seen.local, &seen.drops[..]), (1, &[][..]));
    assert!(seen.sent.is_empty());
}

#[test]
fn sealed_packet_waits_for_its_neighbour_and_then_leaves() {
    let mut site = Site::route_mode(gcm());
    site.w.net.forget(WAN, addr("192.0.2.2"));
    site.publish();
    let sent = site.lan_frame(0, b"waits");
    let seen = site.w.send(LAN, &sent);
    assert_eq!((seen.forwarded, site.w.router.ledger().held, seen.events.len()), (0, 1, 1), "{seen:?}");
    site.w.net.resolve(WAN, addr("192.0.2.2"));
    let seen = site.publish();
    assert_eq!((seen.forwarded, site.w.router.ledger().held), (1, 0));
    assert_eq!(site.opened(seen.one()), forwarded(&sent[14..]));
}

#[test]
fn sealed_packet_whose_neighbour_stays_silent_is_lost_without_a_word() {
    let mut site = Site::route_mode(gcm());
    site.w.net.forget(WAN, addr("192.0.2.2"));
    site.publish();
    site.w.send(LAN, &site.lan_frame(0, b"waits in vain"));
    let seen = site.w.wait(weir_core::router::HOLD_TIME + weir_core::time::SECOND);
    seen.dropped_silently(Reason::NeighborUnresolved);
}
