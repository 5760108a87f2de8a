//! Random fragments, most of them of packets that can be made whole.
//!
//! Promises checked: no panic; no frame is lost or held beyond the limits; a packet made whole consists of the
//! bytes its fragments carried.

use super::{Ended, MAX_FRAMES, Reassembly};
use crate::fuzz_input::Input;
use crate::packet::{BUFFER_SIZE, DeviceId, Frame};
use crate::time::{MILLISECOND, Nanos};
use crate::wire::{Ipv4, Ipv6, build};

type Heap = Box<[u8]>;

/// Byte `at` of the payload of packet `ident`.
fn content(ident: u32, at: usize) -> u8 {
    (at as u32).wrapping_mul(0x9e37_79b9).wrapping_add(ident).to_be_bytes()[0]
}

/// Reads `data` as fragments and time that passes.
pub fn fuzz_reassembly(data: &[u8]) {
    let mut input = Input(data);
    let mut reassembly: Reassembly<Heap> = Reassembly::new();
    let mut ended = Vec::new();
    let (mut given, mut returned) = (0, 0);
    let mut now: Nanos = 0;
    let mut all_honest = true;
    while !input.0.is_empty() {
        let (packet, honest) = fragment(&mut input);
        let Ok(frame) = Frame::from_bytes(vec![0; BUFFER_SIZE].into(), &packet, DeviceId(0)) else {
            continue;
        };
        given += 1;
        all_honest &= honest;
        if let Some(whole) = reassembly.push(now, frame, &mut ended) {
            returned += 1;
            if all_honest {
                check(whole.data());
            }
        }
        if input.byte() >= 250 {
            now += Nanos::from(input.byte()) * 16 * MILLISECOND;
        }
        if reassembly.is_due(now) {
            reassembly.expire(now, &mut ended);
            assert!(!reassembly.is_due(now));
        }
        assert_eq!(given, returned + ended.len() + reassembly.held(), "every frame ends once");
        assert!(reassembly.held() <= MAX_FRAMES);
    }
    reassembly.shutdown(&mut ended);
    assert_eq!((reassembly.held(), given), (0, returned + ended.len()));
    assert!(ended.iter().all(|Ended { frame, .. }| frame.buffer().len() == BUFFER_SIZE));
}

/// A fragment, and whether its bytes are where they belong.
fn fragment(input: &mut Input<'_>) -> (Vec<u8>, bool) {
    let kind = input.byte();
    // Few packets, so that fragments meet; their bytes say which they are of.
    let ident = u32::from(input.byte() % 8);
    let mut piece = 8 * (1 + ident as usize % 4);
    let mut total = piece * (1 + ident as usize / 2) + 5;
    if kind >= 220 {
        // Another cut of it, or another length.
        piece = 8 * (1 + usize::from(input.byte()) % 4);
        total = 1 + usize::from(input.byte());
    }
    let offset = piece * (usize::from(input.byte()) % total.div_ceil(piece));
    let len = piece.min(total - offset);
    let payload: Vec<u8> = (offset..offset + len).map(|at| content(ident, at)).collect();
    let frame = match kind % 4 {
        0 => build::Frame::ipv6([0x20; 16].into(), [0x30; 16].into()),
        1 => build::Frame::ipv6([0x20; 16].into(), [0x40; 16].into()).extension(0, &[0, 1, 4, 0, 0, 0, 0]),
        _ => build::Frame::ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()),
    };
    let more = offset + len < total;
    let mut packet = frame.packet().ident(ident).fragment(offset, more).raw(50, &payload);
    if kind < 250 {
        return (packet, true);
    }
    for _ in 0..input.byte() % 4 {
        let at = input.word() % packet.len();
        packet[at] = input.byte();
    }
    if packet[0] == 0x45 {
        Ipv4::new_unchecked(&mut packet[..]).fill_checksum();
    }
    packet.truncate(input.word() % 4096);
    (packet, false)
}

fn check(whole: &[u8]) {
    let payload = match whole[0] >> 4 {
        4 => Ipv4::parse(whole).map(|p| p.payload().to_vec()),
        _ => Ipv6::parse(whole).map(|p| whole[p.chain().map_or(0, |c| c.offset)..].to_vec()),
    };
    let Ok(payload) = payload else { panic!("what is returned is a packet") };
    let is = |ident: u32| payload.iter().enumerate().all(|(at, &byte)| byte == content(ident, at));
    assert!((0..8).any(is), "bytes of one packet, in their places");
}
