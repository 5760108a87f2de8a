//! Translated packets against packets built anew, and what is left alone.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;
use crate::random::SplitMix64;
use crate::wire::ctnetlink::Tuple;

fn address(random: &mut SplitMix64, v4: bool) -> IpAddr {
    // Few bits set, and many: carries of all kinds.
    let bits = random.next_u128() & random.next_u128() | u128::from(random.next_u64() & 1).wrapping_neg();
    if v4 { Ipv4Addr::from(bits as u32).into() } else { Ipv6Addr::from(bits).into() }
}

fn tuple(random: &mut SplitMix64, v4: bool, protocol: u8) -> Tuple {
    let (source, destination) = (address(random, v4), address(random, v4));
    let (source_port, destination_port) = (random.next_u64() as u16, random.next_u64() as u16);
    Tuple { source, destination, protocol, source_port, destination_port }
}

/// A packet of a tuple with right checksums, and its length.
fn packet(tuple: &Tuple, ttl: u8, payload: &[u8], flags: u8) -> Vec<u8> {
    let ports = [tuple.source_port.to_be_bytes(), tuple.destination_port.to_be_bytes()].concat();
    let mut segment = ports;
    let at = if tuple.protocol == protocol::TCP {
        segment.extend([1, 2, 3, 4, 5, 6, 7, 8, 0x50, flags, 9, 9, 0, 0, 0, 0]);
        16
    } else {
        segment.extend(((UDP_HEADER + payload.len()) as u16).to_be_bytes());
        segment.extend([0, 0]);
        6
    };
    segment.extend_from_slice(payload);
    let (mut packet, pseudo) = match (tuple.source, tuple.destination) {
        (IpAddr::V4(s), IpAddr::V4(d)) => {
            let length = (IPV4_HEADER + segment.len()) as u16;
            let mut header =
                vec![0x45, 0xb8, length.to_be_bytes()[0], length.to_be_bytes()[1], 7, 7, 0x40, 0, ttl];
            header.extend([tuple.protocol, 0, 0]);
            header.extend([s.octets(), d.octets()].concat());
            let check = checksum::checksum(&header).to_be_bytes();
            header[10..12].copy_from_slice(&check);
            (header, checksum::pseudo_ipv4(s, d, tuple.protocol, segment.len() as u16))
        }
        (IpAddr::V6(s), IpAddr::V6(d)) => {
            let length = (segment.len() as u16).to_be_bytes();
            let mut header = vec![0x6b, 1, 2, 3, length[0], length[1], tuple.protocol, ttl];
            header.extend([s.octets(), d.octets()].concat());
            (header, checksum::pseudo_ipv6(s, d, tuple.protocol, segment.len() as u32))
        }
        _ => panic!("one family"),
    };
    let check = match checksum::finish(checksum::add(pseudo, &segment)) {
        0 if tuple.protocol == protocol::UDP => 0xffff,
        check => check,
    };
    segment[at..at + 2].copy_from_slice(&check.to_be_bytes());
    packet.extend(segment);
    packet
}

#[test]
fn a_translated_packet_is_the_packet_its_sender_would_have_made() {
    let mut random = SplitMix64::new(27);
    for round in 0..40_000 {
        let (v4, tcp) = (round & 1 == 0, round & 2 == 0);
        let protocol = if tcp { protocol::TCP } else { protocol::UDP };
        let arrives = tuple(&mut random, v4, protocol);
        let leaves = tuple(&mut random, v4, protocol);
        // Only an address, only ports, or nothing: firewalls without translation.
        let leaves = match random.below(4) {
            0 => arrives,
            1 => Tuple { source: leaves.source, ..arrives },
            2 => Tuple { destination_port: leaves.destination_port, ..arrives },
            _ => leaves,
        };
        let payload: Vec<u8> = (0..random.below(40)).map(|_| random.next_u64() as u8).collect();
        let ttl = 2 + random.below(254) as u8;
        let mut translated = packet(&arrives, ttl, &payload, 0x18);
        let padding = random.below(3) as usize;
        translated.extend(vec![0xaa; padding]);
        let expected = packet(&leaves, ttl - 1, &payload, 0x18);
        translate(&mut translated, &Rewrite::new(Direction { arrives, leaves }), 1500).expect("translated");
        assert_eq!(&translated[..expected.len()], expected, "round {round}: {arrives:?} to {leaves:?}");
    }
}

#[test]
fn what_the_kernel_is_to_see_is_left_as_it_came() {
    let mut random = SplitMix64::new(3);
    for v4 in [true, false] {
        let arrives = tuple(&mut random, v4, protocol::TCP);
        let rewrite = Rewrite::new(Direction { arrives, leaves: arrives.reversed() });
        let header = if v4 { IPV4_HEADER } else { IPV6_HEADER };
        let plain = packet(&arrives, 64, b"data", 0x10);
        let mut wrong: Vec<(Vec<u8>, usize, NotTranslated)> = [0x11, 0x12, 0x14, 0x02, 0x00, 0x08]
            .map(|flags| (packet(&arrives, 64, b"", flags), 1500, NotTranslated::Control))
            .into();
        wrong.push((packet(&arrives, 1, b"", 0x10), 1500, NotTranslated::LastHop));
        wrong.push((plain.clone(), plain.len() - 1, NotTranslated::TooBig));
        wrong.push((plain[..plain.len() - 1].to_vec(), 1500, NotTranslated::Malformed));
        let other = Tuple { source_port: arrives.source_port ^ 1, ..arrives };
        wrong.push((packet(&other, 64, b"", 0x10), 1500, NotTranslated::Other));
        let udp = Tuple { protocol: protocol::UDP, ..arrives };
        wrong.push((packet(&udp, 64, b"0123456789abcdef", 0), 1500, NotTranslated::Other));
        let mut offset = plain.clone();
        offset[header + 12] = 0xf0;
        wrong.push((offset, 1500, NotTranslated::Malformed));
        if v4 {
            let mut checksum = plain.clone();
            checksum[10] ^= 1;
            wrong.push((checksum, 1500, NotTranslated::Checksum));
            let mut options = plain.clone();
            options[0] = 0x46;
            wrong.push((options, 1500, NotTranslated::Options));
            let mut fragment = plain;
            fragment[6] |= 0x20;
            wrong.push((fragment, 1500, NotTranslated::Fragment));
        } else {
            let mut options = plain;
            options[6] = 0;
            wrong.push((options, 1500, NotTranslated::Options));
        }
        for (before, mtu, why) in wrong {
            let mut after = before.clone();
            assert_eq!(translate(&mut after, &rewrite, mtu), Err(why));
            assert_eq!(after, before, "{why:?} was changed");
        }
    }
}

#[test]
fn a_datagram_without_a_checksum_keeps_none_over_ipv4_and_is_the_kernels_over_ipv6() {
    let mut random = SplitMix64::new(9);
    for (v4, at, expected) in
        [(true, IPV4_HEADER + 6, Ok(())), (false, IPV6_HEADER + 6, Err(NotTranslated::Checksum))]
    {
        let arrives = tuple(&mut random, v4, protocol::UDP);
        let leaves = tuple(&mut random, v4, protocol::UDP);
        let mut datagram = packet(&arrives, 9, b"x", 0);
        datagram[at..at + 2].fill(0);
        assert_eq!(translate(&mut datagram, &Rewrite::new(Direction { arrives, leaves }), 1500), expected);
        assert_eq!(datagram[at..at + 2], [0, 0]);
    }
}
