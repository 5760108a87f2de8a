//! Transport mode and UDP encapsulation: headers stay, what they carry is protected, and comes back.

use crate::common::sas::*;
use weir_core::ipsec::{Params, Suite, esp};
use weir_core::verdict::Reason;
use weir_core::wire::build::Frame;
use weir_core::wire::{Ipv4, Ipv6, Udp, checksum, protocol};

fn frame4() -> Frame {
    Frame::ipv4([192, 0, 2, 1].into(), [192, 0, 2, 2].into()).packet().ident(99).tos(0x28)
}

fn frame6() -> Frame {
    let Some(frame) = Frame::ip(address(LEFT6), address(RIGHT6)) else { unreachable!("both are IPv6") };
    frame.packet().flow_label(0x12345)
}

/// An extension header of 8 bytes: padding as an option, or a routing header of type 2.
const OPTIONS: [u8; 7] = [0, 1, 4, 0, 0, 0, 0];
const ROUTING: [u8; 7] = [0, 2, 0, 0, 0, 0, 0];

fn both(packet: &[u8]) -> Params {
    transport(if packet[0] >> 4 == 4 { gcm() } else { outside6(gcm()) })
}

fn packets() -> Vec<Vec<u8>> {
    let payload = [7; 33];
    let tcp = weir_core::wire::tcp::Header { src_port: 1, dst_port: 2, ..Default::default() };
    vec![
        frame4().udp(1, 2, &payload),
        frame4().tcp(&tcp, &payload),
        frame4().echo_request(1, 2, &payload),
        frame4().options(&[7, 7, 4, 0, 0, 0, 0]).udp(1, 2, &payload),
        frame6().udp(1, 2, &payload),
        frame6().tcp(&tcp, &payload),
        frame6().extension(0, &OPTIONS).udp(1, 2, &payload),
        frame6().extension(0, &OPTIONS).extension(43, &ROUTING).udp(1, 2, &payload),
        frame6().extension(60, &OPTIONS).extension(43, &ROUTING).extension(60, &OPTIONS).udp(1, 2, &payload),
        frame6().extension(60, &OPTIONS).udp(1, 2, &payload),
    ]
}

#[test]
fn packets_with_options_and_extension_headers_come_back_as_they_were() {
    for packet in packets() {
        for params in [both(&packet), in_udp(both(&packet))] {
            let (out, inbound) = pair(params);
            let sealed = seal(&out, &packet).expect("sealed");
            assert_eq!(open(&inbound, &sealed), Ok(packet.clone()));
        }
    }
}

#[test]
fn every_suite_and_size_comes_back() {
    for suite in Suite::all() {
        for params in [transport(params(suite)), transport(outside6(params(suite)))] {
            let v4 = params.source.is_ipv4();
            let (out, inbound) = pair(params);
            let sizes = (0..70).chain([1400]).map(|len| vec![3; len]);
            let packets: Vec<_> =
                sizes.map(|payload| if v4 { frame4() } else { frame6() }.raw(17, &payload)).collect();
            for packets in packets.chunks(64) {
                let sealed: Vec<_> =
                    seal_all(&out, 0, packets).into_iter().map(|p| p.expect("sealed")).collect();
                for (opened, packet) in open_all(&inbound, 0, &sealed).iter().zip(packets) {
                    assert_eq!(opened.as_ref(), Ok(packet), "{suite}");
                }
            }
        }
    }
}

#[test]
fn the_header_keeps_its_addresses_and_says_esp() {
    let packet = frame4().options(&[7, 7, 4, 0, 0, 0, 0]).udp(1, 2, b"x");
    let sealed = seal(&pair(transport(gcm())).0, &packet).expect("sealed");
    let outer = Ipv4::parse(&sealed[..]).expect("a right header");
    assert_eq!((outer.protocol(), outer.header_len(), outer.ident(), outer.tos()), (50, 28, 99, 0x28));
    assert_eq!(outer.total_len(), sealed.len());
}

#[test]
fn esp_stands_behind_hop_by_hop_and_routing_headers_and_before_the_last_options() {
    let packet =
        frame6().extension(60, &OPTIONS).extension(43, &ROUTING).extension(60, &OPTIONS).udp(1, 2, b"x");
    let sealed = seal(&pair(both(&packet)).0, &packet).expect("sealed");
    let outer = Ipv6::parse(&sealed[..]).expect("a right header");
    let chain = outer.chain().expect("a right chain");
    assert_eq!((chain.protocol, chain.offset), (protocol::ESP, 40 + 8 + 8));
    assert_eq!((sealed[6], sealed[40], sealed[48]), (60, 43, 50));
    assert_eq!(outer.total_len(), sealed.len());
}

#[test]
fn fragments_are_not_for_transport_mode() {
    let payload = [7; 32];
    for packet in [frame4().fragment(0, true).raw(17, &payload), frame6().fragment(0, true).raw(17, &payload)]
    {
        assert_eq!(seal(&pair(both(&packet)).0, &packet), Err(Reason::TransportFragment));
    }
}

#[test]
fn any_protocol_is_carried_and_a_dummy_is_dropped() {
    let (_, inbound) = pair(transport(gcm()));
    let suite = inbound.params.suite;
    let opened = open(&inbound, &forge(&inbound, 1, &padded(suite, b"anything", 253))).expect("opened");
    let packet = Ipv4::parse(&opened[..]).expect("a right header");
    assert_eq!((packet.protocol(), packet.payload()), (253, &b"anything"[..]));
    assert_eq!(open(&inbound, &forge(&inbound, 2, &padded(suite, b"", 59))), Err(Reason::EspDummy));
}

#[test]
fn the_inner_mtu_holds_for_every_header_length() {
    for suite in Suite::all() {
        let (out, _) = pair(transport(params(suite)));
        for mtu in 1280..1320 {
            let inner = usize::from(esp::inner_mtu(&out, mtu));
            let mut fullest = 0;
            for options in 0..=10 {
                let frame = frame4().options(&[1; 40][..options * 4]);
                let packet = frame.raw(17, &vec![0; inner - 20 - options * 4]);
                let sealed = seal(&out, &packet).expect("sealed").len();
                assert!(sealed <= usize::from(mtu), "{suite}, {options} words of options");
                fullest = fullest.max(sealed);
            }
            assert!(fullest + 4 > usize::from(mtu) - 16, "{suite}: {fullest} of {mtu}");
        }
    }
}

#[test]
fn over_ipv6_the_datagram_has_a_right_checksum() {
    for params in [in_udp(outside6(gcm())), in_udp(transport(outside6(gcm())))] {
        let (out, inbound) = pair(params);
        for len in 0..64 {
            let packet = frame6().udp(1, 2, &vec![5; len]);
            let sealed = seal(&out, &packet).expect("sealed");
            let outer = Ipv6::parse(&sealed[..]).expect("a right header");
            let pseudo = checksum::pseudo_ipv6(outer.src(), outer.dst(), 17, outer.payload().len() as u32);
            let udp = Udp::parse(outer.payload()).expect("a datagram");
            assert!(udp.is_checksum_valid(pseudo) && udp.checksum() != 0);
            assert_eq!(open(&inbound, &sealed), Ok(packet));
        }
    }
}

#[test]
fn a_datagrams_checksum_is_not_believed_either_way() {
    for (params, at) in [(in_udp(gcm()), 26), (in_udp(outside6(gcm())), 46)] {
        let (out, inbound) = pair(params);
        for check in [[0, 0], [0x12, 0x34]] {
            let packet = packet4(60);
            let mut sealed = seal(&out, &packet).expect("sealed");
            sealed[at..at + 2].copy_from_slice(&check);
            assert_eq!(open(&inbound, &sealed), Ok(packet));
        }
    }
}

#[test]
fn plain_esp_is_taken_where_udp_is_expected_and_the_other_way_round() {
    let plain = seal(&pair(gcm()).0, &packet4(60)).expect("sealed");
    assert_eq!(open(&pair(in_udp(gcm())).1, &plain), Ok(packet4(60)));
    let encapsulated = seal(&pair(in_udp(gcm())).0, &packet4(60)).expect("sealed");
    assert_eq!(open(&pair(gcm()).1, &encapsulated), Ok(packet4(60)));
}

#[test]
fn after_a_nat_the_transport_checksum_fits_the_new_address() {
    let tcp = weir_core::wire::tcp::Header { src_port: 1, dst_port: 2, ..Default::default() };
    for packet in [frame4().udp(1, 2, b"translated"), frame4().tcp(&tcp, b"translated")] {
        let (out, inbound) = pair(in_udp(transport(gcm())));
        let mut sealed = seal(&out, &packet).expect("sealed");
        let mut outer = Ipv4::new_unchecked(&mut sealed[..]);
        outer.set_src([203, 0, 113, 9].into());
        outer.fill_checksum();
        let opened = open(&inbound, &sealed).expect("opened");
        let opened = Ipv4::parse(&opened[..]).expect("a right header");
        let len = opened.payload().len() as u16;
        let sum = checksum::pseudo_ipv4(opened.src(), opened.dst(), opened.protocol(), len);
        assert!(checksum::is_valid_sum(checksum::add(sum, opened.payload())));
    }
    // None stays none.
    let mut packet = frame4().udp(1, 2, b"translated");
    packet[26..28].fill(0);
    let (out, inbound) = pair(in_udp(transport(gcm())));
    let sealed = seal(&out, &packet).expect("sealed");
    assert_eq!(open(&inbound, &sealed), Ok(packet));
}

#[test]
fn ike_and_keepalives_are_not_esp() {
    for frame in [frame4(), frame6()] {
        let spi = |payload: &[u8]| spi_of(&frame.udp(777, 4500, payload), &[4500]).map(|(spi, _)| spi);
        assert_eq!(spi(&[1; 28]), Some(0x0101_0101));
        assert_eq!((spi(&[0; 28]), spi(&[0xff]), spi(&[])), (None, None, None));
        assert_eq!(spi_of(&frame.udp(4500, 777, &[1; 28]), &[4500]), None);
    }
}
