//! Packets that do not fit once sealed: who is told, what is cut where, what is learned from the path.

use crate::common::sas;
use crate::common::site::*;
use weir_core::ipsec::sa::FragmentWhen;
use weir_core::ipsec::{Params, esp, pmtu};
use weir_core::packet::DeviceId;
use weir_core::time::SECOND;
use weir_core::verdict::Reason;
use weir_core::wire::{Icmpv4, Icmpv6, Ipv4, icmpv4, icmpv6};

fn after(params: Params) -> Params {
    Params { fragment: FragmentWhen::After, ..params }
}

/// ICMP from a router on the path about a packet of ours, `quote` bytes of it.
fn too_big(outer: &[u8], mtu: u16, quote: usize) -> Vec<u8> {
    let mut bytes = vec![0; 1500];
    let len = match outer[0] >> 4 {
        4 => {
            let error = icmpv4::Error::FragmentationNeeded { mtu };
            icmpv4::write_error(&mut bytes, error, [192, 0, 2, 254].into(), &outer[..quote], 64, 1)
        }
        _ => {
            let from = "2001:db8:1::2".parse().expect("an address");
            let error = icmpv6::Error::PacketTooBig { mtu: mtu.into() };
            icmpv6::write_error(&mut bytes, error, from, &outer[..quote], 64)
        }
    };
    bytes.truncate(len.expect("fits"));
    on_wan(&bytes)
}

/// The whole packet behind the fragments sent, given to the far end through its own reassembly.
fn reassembled(site: &Site, sent: &[(DeviceId, Vec<u8>)]) -> Vec<u8> {
    let mut reassembly = weir_core::ipsec::reassembly::Reassembly::new();
    let mut ended = Vec::new();
    let mut whole = None;
    for (_, bytes) in sent {
        assert!(whole.is_none());
        whole = reassembly.push(0, sas::frame(&bytes[14..]), &mut ended);
    }
    let whole = whole.expect("all fragments were sent");
    sas::open(&site.out.there, whole.data()).expect("the far end opens it")
}

#[test]
fn sender_of_what_may_not_be_cut_is_told_the_mtu_that_fits_inside() {
    for params in [gcm(), outside6(gcm())] {
        for six in [0, 1] {
            let mut site = Site::policy_mode(params.clone());
            let room = esp::inner_mtu(&site.out.here, 1500);
            let headers = if six == 0 { 28 } else { 48 };
            let packet = |len: u16| {
                let payload = vec![1; usize::from(len) - headers];
                frame(LAN, NEAR[six], FAR[six]).dont_fragment().udp(1, 2, &payload)
            };
            let seen = site.w.send(LAN, &packet(room));
            assert_eq!((seen.forwarded, seen.originated), (1, 0));
            let seen = site.w.send(LAN, &packet(room + 1));
            assert_eq!((seen.drops.as_slice(), seen.originated), (&[(Reason::FragmentNeeded, 1)][..], 1));
            assert_eq!(seen.sent[0].0, DeviceId(0));
            if six == 0 {
                let answer = ipv4(seen.one());
                assert_eq!(Icmpv4::parse(answer.payload()).expect("ICMP").next_hop_mtu(), room);
                assert_eq!(answer.src(), std::net::Ipv4Addr::new(10, 0, 0, 1));
            } else {
                let answer = ipv6(seen.one());
                let message = Icmpv6::parse(answer.payload(), answer.src(), answer.dst()).expect("ICMPv6");
                assert_eq!(message.mtu(), u32::from(room));
            }
            assert_eq!(Site::failures(&site.out.here, Reason::FragmentNeeded), 1);
        }
    }
}

#[test]
fn tunnel_tells_its_own_mtu() {
    let mut site = Site::route_mode(gcm());
    let big = frame(LAN, NEAR[0], FAR[0]).dont_fragment().udp(1, 2, &[1; 1400]);
    let seen = site.w.send(LAN, &big);
    assert_eq!(seen.drops, [(Reason::FragmentNeeded, 1)]);
    assert_eq!(Icmpv4::parse(ipv4(seen.one()).payload()).expect("ICMP").next_hop_mtu(), TUNNEL_MTU);
}

#[test]
fn basic_fragment_is_cut_before_sealing_and_each_piece_sealed() {
    for params in [gcm(), outside6(gcm())] {
        let mut site = Site::policy_mode(params);
        let payload: Vec<u8> = (0..1460u32).map(|i| i as u8).collect();
        let sent = site.lan_frame(0, &payload);
        let seen = site.w.send(LAN, &sent);
        assert_eq!((seen.forwarded, seen.originated, seen.sent.len()), (1, 1, 2));
        assert!(seen.sent.iter().all(|(_, bytes)| bytes.len() <= 1514));
        let pieces: Vec<_> = seen.sent.iter().map(|(_, bytes)| site.opened(bytes)).collect();
        let parts: Vec<_> = pieces.iter().map(|p| Ipv4::parse(&p[..]).expect("a piece")).collect();
        assert!(parts[0].more_fragments() && !parts[1].more_fragments());
        assert_eq!(parts[1].fragment_offset(), parts[0].payload().len());
        let whole = [parts[0].payload(), parts[1].payload()].concat();
        assert_eq!(whole, ipv4(&sent).payload());
    }
}

#[test]
fn pieces_of_a_packet_count_on_the_tunnel_without_the_padding_behind_it() {
    let mut site = Site::route_mode(gcm());
    site.w.net.set_mtu(WAN, 900);
    site.publish();
    let mut sent = site.lan_frame(0, &[9; 1200]);
    sent.extend([0xaa; 200]);
    let seen = site.w.send(LAN, &sent);
    let pieces: Vec<_> = seen.sent.iter().map(|(_, bytes)| site.opened(bytes)).collect();
    assert_eq!(pieces.len(), 2);
    let tunnel = site.w.router.port_counters()[site.tunnel.expect("a tunnel").index()];
    let bytes: usize = pieces.iter().map(|piece| piece.len() + 14).sum();
    assert_eq!((tunnel.tx_packets, tunnel.tx_bytes), (2, bytes as u64));
}

#[test]
fn packet_is_sealed_whole_and_the_outer_packet_cut_where_that_is_asked() {
    for params in [after(gcm()), after(outside6(gcm()))] {
        let mut site = Site::policy_mode(params);
        let sent = site.lan_frame(0, &[9; 1460]);
        let seen = site.w.send(LAN, &sent);
        assert_eq!((seen.forwarded, seen.originated, seen.sent.len()), (1, 1, 2), "{}", seen.text());
        assert!(seen.sent.iter().all(|(_, bytes)| bytes.len() <= 1514));
        assert_eq!(reassembled(&site, &seen.sent), forwarded(&sent[14..]));
    }
}

#[test]
fn ipv6_packet_of_1280_passes_whatever_the_path() {
    let mut site = Site::policy_mode(gcm());
    site.w.net.set_mtu(WAN, 1280);
    site.publish();
    let sent = frame(LAN, NEAR[1], FAR[1]).udp(1, 2, &[3; 1280 - 48]);
    let seen = site.w.send(LAN, &sent);
    assert_eq!((seen.forwarded, seen.sent.len()), (1, 2));
    assert_eq!(reassembled(&site, &seen.sent), forwarded(&sent[14..]));
    let seen = site.w.send(LAN, &frame(LAN, NEAR[1], FAR[1]).udp(1, 2, &[3; 1300]));
    let answer = ipv6(seen.one());
    let message = Icmpv6::parse(answer.payload(), answer.src(), answer.dst()).expect("ICMPv6");
    assert_eq!(message.mtu(), 1280);
}

#[test]
fn reassembly_44_and_66_outer_fragments_are_made_whole_and_opened() {
    for params in [gcm(), outside6(gcm())] {
        let mut site = Site::policy_mode(params);
        let packet = site.far_packet(0, &[5; 1460]);
        let sealed = site.sealed(&packet);
        let pieces = cut(&sealed);
        let first = site.w.send(WAN, &pieces[1]);
        assert_eq!((first.forwarded, site.w.router.ledger().held), (0, 1));
        let seen = site.w.send(WAN, &pieces[0]);
        assert_eq!((seen.forwarded, seen.local, site.w.router.ledger().held), (1, 1, 0), "{seen:?}");
        assert_eq!(seen.one()[14..], forwarded(&packet));
    }
}

/// An outer packet in two fragments.
fn cut(sealed: &[u8]) -> [Vec<u8>; 2] {
    let packet = &sealed[14..];
    let at = if packet[0] >> 4 == 4 { 20 } else { 40 };
    let (source, destination) = match Ipv4::parse(packet) {
        Ok(ip) => (ip.src().into(), ip.dst().into()),
        Err(_) => (ipv6(sealed).src().into(), ipv6(sealed).dst().into()),
    };
    let frame = weir_core::wire::build::Frame::ip(source, destination).expect("one family").packet();
    let piece = |from, more, body: &[u8]| on_wan(&frame.clone().ident(7).fragment(from, more).raw(50, body));
    let (first, rest) = packet[at..].split_at(800);
    [piece(0, true, first), piece(800, false, rest)]
}

#[test]
fn outer_fragments_that_stay_alone_are_lost_when_their_time_is_over() {
    let mut site = Site::policy_mode(gcm());
    let sealed = site.sealed(&site.far_packet(0, &[5; 1460]));
    let pieces = cut(&sealed);
    site.w.send(WAN, &pieces[0]);
    assert_eq!(site.w.router.ledger().held, 1);
    let seen = site.w.wait(10 * SECOND);
    assert_eq!(seen.drops, [(Reason::FragmentTimeout, 1)]);
    assert_eq!(site.w.router.ledger().held, 0);
}

#[test]
fn fragments_that_wait_when_the_worker_ends_are_accounted_for() {
    let mut site = Site::policy_mode(gcm());
    let sealed = site.sealed(&site.far_packet(0, &[5; 1460]));
    let pieces = cut(&sealed);
    site.w.send(WAN, &pieces[0]);
    site.w.router.shutdown(&mut site.w.pool);
    assert_eq!((site.w.router.ledger().held, site.w.router.ledger().balance()), (0, 0));
    assert_eq!(site.w.router.held(), 0);
}

#[test]
fn path_mtu_is_learned_from_an_error_about_our_esp_and_told_inside() {
    for params in [gcm(), outside6(gcm())] {
        let mut site = Site::policy_mode(params);
        let packet = frame(LAN, NEAR[0], FAR[0]).dont_fragment().udp(1, 2, &[1; 1372]);
        let outer = site.w.send(LAN, &packet).one()[14..].to_vec();
        let seen = site.w.send(WAN, &too_big(&outer, 1300, 100));
        assert_eq!(seen.local, 1, "{seen:?}");
        let seen = site.w.send(LAN, &packet);
        assert_eq!(seen.drops, [(Reason::FragmentNeeded, 1)]);
        let told = Icmpv4::parse(ipv4(seen.one()).payload()).expect("ICMP").next_hop_mtu();
        assert_eq!(told, esp::inner_mtu(&site.out.here, 1300));
        // And forgotten.
        site.w.wait(pmtu::BELIEVED);
        assert_eq!(site.w.send(LAN, &packet).forwarded, 1);
    }
}

#[test]
fn path_mtu_error_about_what_was_not_sent_is_not_believed() {
    let mut site = Site::policy_mode(gcm());
    let packet = frame(LAN, NEAR[0], FAR[0]).dont_fragment().udp(1, 2, &[1; 1372]);
    let outer = site.w.send(LAN, &packet).one()[14..].to_vec();
    let with = |at: usize, value: u8| {
        let mut forged = outer.clone();
        forged[at] ^= value;
        Ipv4::new_unchecked(&mut forged[..]).fill_checksum();
        forged
    };
    for (name, forged) in [
        ("another SPI", with(23, 1)),
        ("another destination", with(19, 8)),
        ("another source", with(15, 8)),
        ("a number not sent yet", with(27, 0x40)),
        ("a number long ago", with(24, 0x80)),
    ] {
        site.w.send(WAN, &too_big(&forged, 600, 100));
        assert_eq!(site.w.send(LAN, &packet).forwarded, 1, "{name}");
    }
    // An MTU the packet would have fitted.
    site.w.send(WAN, &too_big(&outer, 1499, 100));
    assert_eq!(site.w.send(LAN, &packet).forwarded, 1, "1499");
}

#[test]
fn path_mtu_never_falls_below_what_every_host_takes() {
    let mut site = Site::policy_mode(gcm());
    let packet = frame(LAN, NEAR[0], FAR[0]).dont_fragment().udp(1, 2, &[1; 1372]);
    let outer = site.w.send(LAN, &packet).one()[14..].to_vec();
    site.w.send(WAN, &too_big(&outer, 68, 100));
    let small = frame(LAN, NEAR[0], FAR[0]).dont_fragment().udp(1, 2, &[1; 400]);
    assert_eq!(site.w.send(LAN, &small).forwarded, 1);
    assert_eq!(site.w.send(LAN, &packet).drops, [(Reason::FragmentNeeded, 1)]);
}
