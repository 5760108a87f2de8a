//! Fuzz functions of TUN ports: what the kernel could hand over in one piece, and packets that are merged and cut again.

use weir_core::fuzz_input::Input;
use weir_core::wire::{checksum, get16};

use super::cut::Cut;
use super::merge::{HEADERS_MAX, Merge};
use super::vnet::{self, Header};

/// As many as a batch has.
const PACKETS: usize = 64;
/// The longest packet that is merged here.
const LONGEST: usize = 1600;

/// Cuts what may be a packet of the kernel's: every byte of its payload is in one piece, in order.
pub fn fuzz_tun_cut(data: &[u8]) {
    let mut input = Input(data);
    // Long packets of few bytes: what is left repeats.
    let length = input.word() % (super::cut::ROOM + 1);
    let mut cut = Cut::new();
    let room = cut.room();
    let length = if input.byte() & 1 == 0 { input.0.len().min(room.len()) } else { length };
    for (to, from) in room[..length].iter_mut().zip(input.0.iter().cycle()) {
        *to = *from;
    }
    let whole = room[..length].to_vec();
    if !cut.start(length) {
        assert!(!cut.pending(), "what is refused is over");
        return;
    }
    let mut out = vec![0; 65_535];
    let mut payload = Vec::new();
    let mut headers = None;
    while cut.pending() {
        let len = cut.next(&mut out).expect("it fits");
        let piece = &out[..len];
        // Where the payload begins is the same in each.
        let begin = *headers.get_or_insert_with(|| match whole[1] {
            vnet::WHOLE => 0,
            _ => {
                let start = usize::from(Header::read(whole.first_chunk().expect("a header")).checksum_start);
                start + usize::from(piece[start + 12] >> 4) * 4
            }
        });
        if whole[1] == vnet::TCP4 && piece[0] == 0x45 {
            assert!(checksum::is_valid(&piece[..20]), "its header's checksum is right");
            assert_eq!(usize::from(get16(piece, 2)), len, "it says its length");
        }
        payload.extend_from_slice(&piece[begin..]);
        assert!(payload.len() <= length, "no piece comes twice");
    }
    let begin = headers.expect("a packet has a piece");
    if whole[1] != vnet::WHOLE {
        assert_eq!(payload, whole[vnet::LEN + begin..], "all of it, in order");
    }
}

/// The packets of an input: each its length and how it differs from the one before.
fn packets(input: &mut Input<'_>) -> Vec<Vec<u8>> {
    let mut packets: Vec<Vec<u8>> = Vec::new();
    while !input.0.is_empty() && packets.len() < PACKETS {
        let what = input.byte();
        let mut packet = match packets.last() {
            Some(before) if what & 1 == 1 => next(before),
            _ => {
                let length = input.word() % LONGEST;
                let mut packet = input.take(length.min(120)).to_vec();
                packet.resize(length, what);
                packet
            }
        };
        if what & 2 == 2 && !packet.is_empty() {
            let at = input.word() % packet.len();
            packet[at] ^= input.byte();
        }
        if what & 4 == 4 {
            finish(&mut packet);
        }
        packets.push(packet);
    }
    packets
}

/// The segment a sender would send after this one.
fn next(before: &[u8]) -> Vec<u8> {
    let mut packet = before.to_vec();
    let transport = if before.first().is_some_and(|byte| byte >> 4 == 4) { 20 } else { 40 };
    if let Some(offset) = before.get(transport + 12) {
        let payload = before.len().saturating_sub(transport + usize::from(offset >> 4) * 4) as u32;
        let sequence = u32::from_be_bytes(std::array::from_fn(|at| packet[transport + 4 + at]));
        packet[transport + 4..transport + 8].copy_from_slice(&sequence.wrapping_add(payload).to_be_bytes());
        if transport == 20 {
            let ident = get16(before, 4).wrapping_add(1);
            packet[4..6].copy_from_slice(&ident.to_be_bytes());
        }
    }
    finish(&mut packet);
    packet
}

/// Lengths and checksums made right where there are any.
fn finish(packet: &mut [u8]) {
    let len = packet.len();
    let Some(version) = packet.first().map(|byte| byte >> 4) else { return };
    let (transport, addresses) = if version == 4 { (20, 12..20) } else { (40, 8..40) };
    if len < transport + 20 {
        return;
    }
    if version == 4 {
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        packet[10..12].fill(0);
        let sum = checksum::checksum(&packet[..20]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet[9] = 6;
    } else {
        packet[4..6].copy_from_slice(&((len - 40) as u16).to_be_bytes());
        packet[6] = 6;
    }
    packet[transport + 16..transport + 18].fill(0);
    let pseudo = checksum::add(6 + (len - transport) as u64, &packet[addresses]);
    let sum = checksum::finish(checksum::add(pseudo, &packet[transport..]));
    packet[transport + 16..transport + 18].copy_from_slice(&sum.to_be_bytes());
}

/// Merges packets as they would go to the kernel, and cuts what is merged: each comes out once, as it was, of a run in order.
pub fn fuzz_tun_merge(data: &[u8]) {
    let packets = packets(&mut Input(data));
    let mut merge = Merge::default();
    merge.plan(packets.iter().map(Vec::as_slice), |at| &packets[at]);
    let mut seen = vec![false; packets.len()];
    let mut cut = Cut::new();
    let mut piece = [0; LONGEST];
    for &run in merge.runs() {
        let all: Vec<usize> = merge.packets(run).collect();
        assert!(all.is_sorted() && all.len() == run.count && all[0] == run.first);
        for &at in &all {
            assert!(!std::mem::replace(&mut seen[at], true), "packet {at} is in two runs");
        }
        let mut headers = [0; HEADERS_MAX];
        let last = all[all.len() - 1];
        let Some((header, len)) = run.head(&packets[run.first], &packets[last], &mut headers) else {
            assert_eq!(run.count, 1, "several have one head");
            continue;
        };
        let mut whole = [&header.bytes()[..], &headers[..len]].concat();
        all.iter().for_each(|&at| whole.extend_from_slice(&packets[at][run.payload_at()..]));
        cut.room()[..whole.len()].copy_from_slice(&whole);
        assert!(cut.start(whole.len()), "what was merged can be cut");
        for &at in &all {
            let len = cut.next(&mut piece).expect("it fits");
            assert_eq!(piece[..len], packets[at], "packet {at} of {all:?}");
        }
        assert!(!cut.pending(), "nothing is left");
    }
    assert!(seen.iter().all(|&seen| seen), "every packet is in a run");
}
