//! Tunnel mode: what is sealed is opened again, and its outer header is right.

use crate::common::sas::*;
use weir_core::ipsec::{Encryption, Params, Suite, esp};
use weir_core::verdict::Reason;
use weir_core::wire::{Ipv4, Ipv6, Udp, checksum};

fn suites() -> Vec<Suite> {
    let null = Suite::new(Encryption::Null, None, true).expect("allowed out loud");
    Suite::all().into_iter().chain([null]).collect()
}

#[test]
fn every_suite_family_and_size_comes_back_as_it_was() {
    for suite in suites() {
        for outer in [params(suite), outside6(params(suite)), in_udp(params(suite))] {
            let (out, inbound) = pair(outer);
            let sizes = (28..130).chain([500, 576, 1280, 1400, 1499, 1500]);
            let packets: Vec<_> = sizes.flat_map(|len| [packet4(len), packet6(len + 20)]).collect();
            for packets in packets.chunks(64) {
                let sealed = seal_all(&out, 0, packets);
                let sealed: Vec<_> = sealed.into_iter().map(|packet| packet.expect("sealed")).collect();
                let opened = open_all(&inbound, 0, &sealed);
                for (packet, opened) in packets.iter().zip(opened) {
                    assert_eq!(opened.as_ref(), Ok(packet), "{suite}, {} bytes", packet.len());
                }
            }
        }
    }
}

#[test]
fn the_outer_ipv4_header_is_whole_and_its_checksum_right() {
    let (out, _) = pair(Params { hop_limit: 33, ..gcm() });
    for len in 28..300 {
        let sealed = seal(&out, &packet4(len)).expect("sealed");
        let outer = Ipv4::parse(&sealed[..]).expect("a right header");
        assert_eq!((outer.total_len(), outer.ttl(), outer.protocol()), (sealed.len(), 33, 50));
        assert_eq!(outer.src().to_string(), LEFT4);
        assert_eq!(outer.dst().to_string(), RIGHT4);
    }
}

#[test]
fn the_outer_ipv6_header_is_whole() {
    let (out, _) = pair(outside6(gcm()));
    let sealed = seal(&out, &packet4(100)).expect("sealed");
    let outer = Ipv6::parse(&sealed[..]).expect("a right header");
    assert_eq!((outer.total_len(), outer.hop_limit(), outer.next_header()), (sealed.len(), 64, 50));
    assert_eq!((outer.src().to_string(), outer.dst().to_string()), (LEFT6.to_string(), RIGHT6.to_string()));
}

#[test]
fn what_stands_behind_the_packet_is_not_sealed() {
    let (out, inbound) = pair(gcm());
    let packet = packet4(40);
    let mut with_padding = packet.clone();
    with_padding.extend([0xaa; 6]);
    let sealed = seal(&out, &with_padding).expect("sealed");
    assert_eq!(sealed.len(), 20 + 40 + Suite::AES_GCM_128.overhead(40));
    assert_eq!(open(&inbound, &sealed), Ok(packet));
}

#[test]
fn sequence_numbers_count_from_one() {
    let (out, _) = pair(gcm());
    let sealed = seal_all(&out, 0, &[packet4(64), packet4(64), packet4(64)]);
    let numbers: Vec<_> = sealed.iter().map(|p| p.as_ref().expect("sealed")[24..28].to_vec()).collect();
    assert_eq!(numbers, [[0, 0, 0, 1], [0, 0, 0, 2], [0, 0, 0, 3]]);
}

#[test]
fn a_bit_changed_anywhere_in_esp_is_found() {
    let (out, inbound) = pair(gcm());
    let sealed = seal(&out, &packet4(60)).expect("sealed");
    for at in 24..sealed.len() {
        let mut changed = sealed.clone();
        changed[at] ^= 0x10;
        assert_eq!(open(&inbound, &changed), Err(Reason::IntegrityFailed), "byte {at}");
    }
    assert_eq!(open(&inbound, &sealed).as_deref(), Ok(&packet4(60)[..]));
}

#[test]
fn a_packet_cut_short_is_too_short_or_not_authentic() {
    let (out, inbound) = pair(gcm());
    let sealed = seal(&out, &packet4(60)).expect("sealed");
    for len in 0..sealed.len() {
        let mut cut = sealed[..len].to_vec();
        assert!(open(&inbound, &cut).is_err());
        if len >= 20 {
            let mut outer = Ipv4::new_unchecked(&mut cut[..]);
            outer.set_total_len(len as u16);
            outer.fill_checksum();
            let expected = if len < 20 + 8 + 8 + 4 + 16 || !len.is_multiple_of(4) {
                Reason::EspTooShort
            } else {
                Reason::IntegrityFailed
            };
            assert_eq!(open(&inbound, &cut), Err(expected), "{len} bytes");
        }
    }
}

#[test]
fn trailers_that_esp_does_not_allow_are_refused() {
    let (_, inbound) = pair(gcm());
    let inner = packet4(40);
    let suite = inbound.params.suite;
    let mut sequence = 0;
    let mut judged = |body: &[u8]| {
        sequence += 1;
        open(&inbound, &forge(&inbound, sequence, body))
    };
    assert_eq!(judged(&padded(suite, &inner, 4)), Ok(inner.clone()));
    // Says IPv6, is IPv4; says TCP.
    assert_eq!(judged(&padded(suite, &inner, 41)), Err(Reason::EspBadTrailer));
    assert_eq!(judged(&padded(suite, &inner, 6)), Err(Reason::EspBadTrailer));
    // More padding than bytes.
    assert_eq!(judged(&[1, 2, 3, 4, 5, 6, 7, 4]), Err(Reason::EspBadTrailer));
    // Padding that does not count from one: short, and longer than one register.
    let mut body = padded(suite, &inner, 4);
    let at = body.len() - 4;
    body[at] ^= 1;
    assert_eq!(judged(&body), Err(Reason::EspBadTrailer));
    let long = |pad: u8| [&inner[..], &(1..=pad).collect::<Vec<_>>(), &[pad, 4]].concat();
    for pad in [2, 6, 10, 14, 18, 50, 254] {
        assert_eq!(judged(&long(pad)), Ok(inner.clone()), "{pad} bytes of padding");
        let mut bad = long(pad);
        bad[40] = 0;
        assert_eq!(judged(&bad), Err(Reason::EspBadTrailer), "{pad} bytes of padding");
    }
    // Shorter than a header, and a length beyond the payload.
    assert_eq!(judged(&padded(suite, &[0x45], 4)), Err(Reason::EspBadTrailer));
    let mut beyond = inner.clone();
    beyond[3] += 1;
    assert_eq!(judged(&padded(suite, &beyond, 4)), Err(Reason::IpTruncated));
}

#[test]
fn padding_against_traffic_analysis_is_taken_off_and_dummies_are_dropped() {
    let (_, inbound) = pair(gcm());
    let suite = inbound.params.suite;
    for (sequence, inner, next) in [(1, packet4(60), 4), (2, packet6(80), 41)] {
        let long = [&inner[..], &[0x77; 500]].concat();
        assert_eq!(open(&inbound, &forge(&inbound, sequence, &padded(suite, &long, next))), Ok(inner));
    }
    assert_eq!(open(&inbound, &forge(&inbound, 3, &padded(suite, &[9; 70], 59))), Err(Reason::EspDummy));
}

#[test]
fn the_inner_mtu_is_the_largest_packet_that_fits() {
    for suite in suites() {
        for outer in [params(suite), outside6(params(suite)), in_udp(params(suite))] {
            let (out, _) = pair(outer);
            for mtu in [576, 1280, 1400, 1419, 1492, 1500] {
                let inner = usize::from(esp::inner_mtu(&out, mtu));
                assert!(seal(&out, &packet4(inner)).expect("sealed").len() <= usize::from(mtu));
                assert!(seal(&out, &packet4(inner + 1)).expect("sealed").len() > usize::from(mtu));
            }
            assert_eq!(esp::inner_mtu(&out, 20), 0);
        }
    }
}

#[test]
fn a_frame_without_room_is_lost_and_counted() {
    use weir_core::ipsec::esp::Outcome;
    use weir_core::packet::{DeviceId, Frame};
    let (out, _) = pair(gcm());
    let packet = packet4(100);
    let buffer: Heap = packet.clone().into();
    let mut frames = [Frame::new(buffer, 0, packet.len(), DeviceId(0))];
    let mut outcomes = [Outcome::Done];
    esp::seal(&out, 0, &mut frames, &mut outcomes);
    assert_eq!(outcomes, [Outcome::Lost(Reason::FrameTooLarge)]);
    assert!(out.state.failures().any(|f| f == (Reason::FrameTooLarge, 1)));
}

#[test]
fn esp_is_recognised_by_spi_and_destination() {
    for (outer, expected) in [(gcm(), RIGHT4), (outside6(gcm()), RIGHT6), (in_udp(gcm()), RIGHT4)] {
        let (out, _) = pair(outer);
        let sealed = seal(&out, &packet4(60)).expect("sealed");
        assert_eq!(spi_of(&sealed, &[4500]), Some((SPI, address(expected))));
        for len in 0..sealed.len() {
            let _ = spi_of(&sealed[..len], &[4500]);
        }
    }
    assert_eq!(spi_of(&packet4(60), &[4500]), None);
    let sealed = seal(&pair(in_udp(gcm())).0, &packet4(60)).expect("sealed");
    assert_eq!(spi_of(&sealed, &[]), None);
}

#[test]
fn a_packet_of_another_sa_is_not_opened() {
    let (out, _) = pair(Params { spi: 7777, ..gcm() });
    let (_, inbound) = pair(gcm());
    let sealed = seal(&out, &packet4(60)).expect("sealed");
    assert_eq!(open(&inbound, &sealed), Err(Reason::NoSa));
}

#[test]
fn udp_encapsulation_has_the_datagrams_length_and_no_checksum() {
    let (out, _) = pair(in_udp(gcm()));
    let sealed = seal(&out, &packet4(60)).expect("sealed");
    let outer = Ipv4::parse(&sealed[..]).expect("a right header");
    let udp = Udp::parse(outer.payload()).expect("a datagram");
    assert_eq!((udp.src_port(), udp.dst_port(), udp.checksum()), (4500, 4500, 0));
    assert_eq!(udp.length(), outer.payload().len());
    assert!(checksum::is_valid(outer.header()));
}
