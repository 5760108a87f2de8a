//! What is merged and cut again is what it was, whatever else comes between.

use proptest::prelude::*;
use weir_core::wire::build::Frame;
use weir_core::wire::{get16, put16, tcp};

use super::cut::Cut;
use super::merge::{HEADERS_MAX, Merge};
use super::vnet::{self, Header};

const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
const FIN: u8 = 0x01;

/// A packet of one of three flows, of which two are of IPv4.
#[derive(Clone, Debug)]
struct Said {
    flow: usize,
    payload: usize,
    flags: u8,
    gap: bool,
    window: u16,
    spoilt: bool,
}

fn said() -> impl Strategy<Value = Said> {
    let payload = prop_oneof![6 => Just(1000usize), 2 => 1usize..1000, 1 => Just(0usize)];
    let flags = prop_oneof![12 => Just(ACK), 2 => Just(ACK | PSH), 1 => Just(ACK | FIN), 1 => Just(0x02u8)];
    let rare = || prop::bool::weighted(0.05);
    (0usize..3, payload, flags, rare(), rare(), rare()).prop_map(
        |(flow, payload, flags, gap, window, spoilt)| Said {
            flow,
            payload,
            flags,
            gap,
            window: if window { 7 } else { 512 },
            spoilt,
        },
    )
}

/// The packets, numbered as their senders would.
fn packets(all: &[Said]) -> Vec<Vec<u8>> {
    let mut next = [u32::MAX - 1500, 0, 77];
    let mut ident = [0xfffe_u32, 5, 0];
    let mut packets = Vec::new();
    for (at, s) in all.iter().enumerate() {
        let frame = match s.flow {
            2 => Frame::ipv6("2001:db8::1".parse().expect("a"), "2001:db8::2".parse().expect("a")),
            flow => Frame::ipv4([10, 0, 0, flow as u8].into(), [10, 9, 9, 9].into()).ident(ident[flow]),
        };
        let frame = if s.flow == 0 { frame.dont_fragment() } else { frame };
        next[s.flow] = next[s.flow].wrapping_add(u32::from(s.gap));
        let (sequence, window) = (next[s.flow], s.window);
        let (src_port, dst_port, acknowledgment, flags) = (80, 443, 9, s.flags);
        let header = tcp::Header { src_port, dst_port, sequence, acknowledgment, flags, window };
        let payload: Vec<u8> = (0..s.payload).map(|n| (n * 7 + at) as u8).collect();
        let mut packet = frame.packet().tcp(&header, &payload);
        if s.spoilt {
            *packet.last_mut().expect("not empty") ^= 1;
        }
        next[s.flow] = next[s.flow].wrapping_add(s.payload as u32);
        ident[s.flow] = (ident[s.flow] + 1) & 0xffff;
        packets.push(packet);
    }
    packets
}

/// What the kernel would get for a run, and what it would cut it into.
fn through(merge: &Merge, packets: &[Vec<u8>], cut: &mut Cut) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    for &run in merge.runs() {
        let mut headers = [0; HEADERS_MAX];
        let last = merge.packets(run).last().expect("a run has a packet");
        let mut whole = match run.head(&packets[run.first], &packets[last], &mut headers) {
            Some((header, len)) => [&header.bytes()[..], &headers[..len]].concat(),
            None => [&Header::default().bytes()[..], &packets[run.first]].concat(),
        };
        if run.count > 1 {
            merge.packets(run).for_each(|at| whole.extend(&packets[at][run.payload_at()..]));
        }
        cut.room()[..whole.len()].copy_from_slice(&whole);
        assert!(cut.start(whole.len()), "what was merged can be cut");
        let mut piece = [0; 2048];
        while cut.pending() {
            let len = cut.next(&mut piece).expect("it fits");
            out.push(piece[..len].to_vec());
        }
    }
    out
}

#[test]
fn a_segment_whose_checksum_is_zero_is_cut_with_it() {
    for flow in [0, 2] {
        let said = Said { flow, payload: 1000, flags: ACK, gap: false, window: 512, spoilt: false };
        let mut packets = packets(&[said.clone(), said.clone(), said]);
        for packet in &mut packets {
            // What the checksum says, the payload may say as well.
            let (end, field) = (packet.len() - 2, packet.len() - 1000 - 4);
            let sum = u32::from(get16(packet, field)) + u32::from(get16(packet, end));
            put16(packet, end, (sum + (sum >> 16)) as u16);
            put16(packet, field, 0);
        }
        let mut merge = Merge::default();
        merge.plan(packets.iter().map(Vec::as_slice), |at| &packets[at]);
        assert_eq!(merge.runs().len(), 1, "a right checksum");
        assert_eq!(through(&merge, &packets, &mut Cut::new()), packets);
    }
}

proptest! {
    #[test]
    fn what_was_merged_is_cut_into_what_it_was(all in prop::collection::vec(said(), 1..64)) {
        let packets = packets(&all);
        let mut merge = Merge::default();
        merge.plan(packets.iter().map(Vec::as_slice), |at| &packets[at]);
        let mut cut = Cut::new();
        let out = through(&merge, &packets, &mut cut);
        prop_assert_eq!(out.len(), packets.len());
        for flow in 0..3 {
            let of = |all: &[Vec<u8>]| -> Vec<Vec<u8>> {
                let is = |p: &&Vec<u8>| match flow {
                    2 => p[0] >> 4 == 6,
                    flow => p[0] == 0x45 && usize::from(p[15]) == flow,
                };
                all.iter().filter(is).cloned().collect()
            };
            prop_assert_eq!(of(&out), of(&packets), "flow {}", flow);
        }
    }

    #[test]
    fn nothing_the_kernel_could_say_is_fatal(mut bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0u8..6, out in 0usize..300) {
        if let Some(byte) = bytes.get_mut(1) {
            *byte = kind;
        }
        let mut cut = Cut::new();
        cut.room()[..bytes.len()].copy_from_slice(&bytes);
        if cut.start(bytes.len()) {
            let mut piece = vec![0; out];
            while cut.pending() {
                let _ = cut.next(&mut piece);
            }
        }
    }

    #[test]
    fn header_is_read_as_it_was_written(flags: u8, kind: u8, halves: [u16; 4]) {
        let [headers, segment, checksum_start, checksum_offset] = halves;
        let header = Header { flags, kind, headers, segment, checksum_start, checksum_offset };
        prop_assert_eq!(Header::read(&header.bytes()), header);
    }
}

#[test]
fn a_row_of_segments_is_one_packet_and_a_lone_one_is_itself() {
    let plain = Said { flow: 1, payload: 1000, flags: ACK, gap: false, window: 512, spoilt: false };
    let all: Vec<Said> = (0..40).map(|_| plain.clone()).collect();
    let packets = packets(&all);
    let mut merge = Merge::default();
    merge.plan(packets.iter().map(Vec::as_slice), |at| &packets[at]);
    assert_eq!(merge.runs().iter().map(|run| run.count).collect::<Vec<_>>(), [40]);
    merge.plan(packets[..1].iter().map(Vec::as_slice), |at| &packets[at]);
    assert_eq!(merge.runs().len(), 1);
    assert!(merge.runs()[0].head(&packets[0], &packets[0], &mut [0; HEADERS_MAX]).is_none());
}

#[test]
fn a_checksum_left_to_us_is_finished() {
    let packet = Frame::ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).packet().udp(1, 2, b"abc");
    let mut left = packet.clone();
    // The pseudo-header's sum, as the kernel leaves it: addresses, protocol 17, length 11.
    let sum = 0x0a00_u32 + 1 + 0x0a00 + 2 + 17 + 11;
    left[26..28].copy_from_slice(&(sum as u16).to_be_bytes());
    let header =
        Header { flags: vnet::NEEDS_CHECKSUM, checksum_start: 20, checksum_offset: 6, ..Header::default() };
    let mut cut = Cut::new();
    let whole = [&header.bytes()[..], &left].concat();
    cut.room()[..whole.len()].copy_from_slice(&whole);
    assert!(cut.start(whole.len()));
    let mut out = [0; 64];
    let len = cut.next(&mut out).expect("it fits");
    assert_eq!(out[..len], packet);
    assert!(!cut.pending());
}
