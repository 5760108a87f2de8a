//! What the outer header takes from the inner one and gives back: ECN, DSCP, DF, labels, numbers.

use std::sync::Arc;

use crate::common::sas::*;
use weir_core::ipsec::replay::Replay;
use weir_core::ipsec::sa::{Df, Dscp};
use weir_core::ipsec::{Params, Sa, SaId, SaState};
use weir_core::verdict::Reason;
use weir_core::wire::build::Frame;
use weir_core::wire::{Ipv4, Ipv6, checksum};

fn inner4(tos: u8, df: bool) -> Vec<u8> {
    let frame = Frame::ipv4([10, 1, 0, 1].into(), [10, 2, 0, 1].into()).packet().tos(tos);
    if df { frame.dont_fragment() } else { frame }.udp(1, 2, b"payload")
}

fn inner6(tos: u8) -> Vec<u8> {
    Frame::ipv6([0x20; 16].into(), [0x30; 16].into())
        .packet()
        .tos(tos)
        .flow_label(0xabcde)
        .udp(1, 2, b"payload")
}

fn tos(packet: &[u8]) -> u8 {
    match packet[0] >> 4 {
        4 => Ipv4::parse(packet).expect("a right header").tos(),
        _ => Ipv6::parse(packet).expect("a right header").traffic_class(),
    }
}

fn set_tos(packet: &mut [u8], tos: u8) {
    if packet[0] >> 4 == 4 {
        let mut packet = Ipv4::new_unchecked(packet);
        packet.set_tos(tos);
        packet.fill_checksum();
    } else {
        packet[0] = 0x60 | tos >> 4;
        packet[1] = packet[1] & 0x0f | tos << 4;
    }
}

#[test]
fn congestion_marks_are_combined_as_rfc_6040_says() {
    // Rows inner, columns outer: Not-ECT, ECT(1), ECT(0), CE.
    let figure_4 = [
        [Ok(0), Ok(0), Ok(0), Err(Reason::EcnNotCapable)],
        [Ok(1), Ok(1), Ok(1), Ok(3)],
        [Ok(2), Ok(1), Ok(2), Ok(3)],
        [Ok(3), Ok(3), Ok(3), Ok(3)],
    ];
    for outside in [gcm(), outside6(gcm())] {
        let (out, inbound) = pair(outside);
        for (inner, row) in (0u8..).zip(figure_4) {
            for (outer, expected) in (0u8..).zip(row) {
                for packet in [inner4(0xb8 | inner, false), inner6(0xb8 | inner)] {
                    let mut sealed = seal(&out, &packet).expect("sealed");
                    assert_eq!(tos(&sealed), 0xb8 | inner, "marks are copied outwards");
                    // Another DSCP on the way stays outside.
                    set_tos(&mut sealed, 0x20 | outer);
                    let opened = open(&inbound, &sealed);
                    assert_eq!(opened.as_ref().map(|p| tos(p)).map_err(|r| *r), expected.map(|e| 0xb8 | e));
                    let Ok(mut opened) = opened else { continue };
                    set_tos(&mut opened, 0xb8 | inner);
                    assert_eq!(opened, packet, "nothing else changed");
                }
            }
        }
    }
}

#[test]
fn dscp_is_copied_or_set_and_the_mark_is_always_copied() {
    for outside in [gcm(), outside6(gcm())] {
        let (copies, _) = pair(Params { dscp: Dscp::Copy, ..outside.clone() });
        let (sets, _) = pair(Params { dscp: Dscp::Set(46), ..outside });
        for inner in [0x00, 0x22, 0xff] {
            for packet in [inner4(inner, false), inner6(inner)] {
                assert_eq!(tos(&seal(&copies, &packet).expect("sealed")), inner);
                assert_eq!(tos(&seal(&sets, &packet).expect("sealed")), 46 << 2 | inner & 3);
            }
        }
    }
}

#[test]
fn df_is_copied_set_or_cleared() {
    let df = |sa: &Sa, packet: &[u8]| {
        let sealed = seal(sa, packet).expect("sealed");
        Ipv4::parse(&sealed[..]).expect("a right header").dont_fragment()
    };
    let expected = [(Df::Copy, false, true), (Df::Set, true, true), (Df::Clear, false, false)];
    for (rule, without, with) in expected {
        let (out, _) = pair(Params { df: rule, ..gcm() });
        assert_eq!(df(&out, &inner4(0, false)), without);
        assert_eq!(df(&out, &inner4(0, true)), with);
        // Nobody on the way may cut IPv6.
        assert_eq!(df(&out, &inner6(0)), with);
    }
}

#[test]
fn identifications_of_an_sa_do_not_repeat() {
    let (out, _) = pair(gcm());
    let sealed = seal_all(&out, 0, &vec![inner4(0, false); 64]);
    let mut numbers: Vec<_> = sealed
        .iter()
        .map(|p| Ipv4::parse(&p.as_ref().expect("sealed")[..]).expect("a right header").ident())
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 64);
}

#[test]
fn the_flow_label_is_the_sas_and_tells_nothing_of_the_flow_inside() {
    let label = |spi: u32, packet: &[u8]| {
        let (out, _) = pair(Params { spi, ..outside6(gcm()) });
        Ipv6::parse(&seal(&out, packet).expect("sealed")[..]).expect("a right header").flow_label()
    };
    assert_eq!(label(0x1001, &inner6(0)), label(0x1001, &inner4(0, false)));
    assert_ne!(label(0x1001, &inner6(0)), label(0x1002, &inner6(0)));
    assert_ne!(label(0x1001, &inner6(0)), 0);
}

#[test]
fn checksums_of_outer_headers_are_right_for_every_length_and_mark() {
    let (out, _) = pair(gcm());
    out.state.sequence.store(0xfff0, std::sync::atomic::Ordering::Relaxed);
    for i in 0..512u32 {
        let frame = Frame::ipv4([10, 1, 0, 1].into(), [10, 2, 0, 1].into()).packet().tos(i as u8);
        let sealed = seal(&out, &frame.udp(1, 2, &vec![0; i as usize])).expect("sealed");
        assert!(checksum::is_valid(&sealed[..20]));
    }
}

#[test]
fn the_same_key_after_a_restart_has_other_ivs() {
    let aead = |first_iv| {
        let state = SaState::new(&gcm(), 0).with_first_iv(first_iv);
        let cipher = weir_io::cipher::portable().cipher(gcm().suite, false, &keys(gcm().suite));
        Sa::new(SaId(0), "test".into(), gcm(), cipher.expect("a cipher"), Arc::new(state))
    };
    // Behind the outer header and ESP's.
    let iv = |sealed: &[u8]| u64::from_be_bytes(sealed[28..36].try_into().expect("eight bytes"));
    let inbound = pair(gcm()).1;
    for (sequence, first_iv) in [(1, 0), (1, 7_000_000_000), (1, u64::MAX)] {
        let sealed = seal(&aead(first_iv), &inner4(0, false)).expect("sealed");
        assert_eq!(iv(&sealed), first_iv.wrapping_add(sequence));
        assert_eq!(sealed[24..28], [0, 0, 0, 1], "its sequence numbers begin as ever");
        inbound.state.replay.lock().expect("nobody panicked").clone_from(&Replay::new(64));
        assert_eq!(open(&inbound, &sealed), Ok(inner4(0, false)));
    }
}
