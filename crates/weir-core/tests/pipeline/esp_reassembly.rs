//! Outer fragments: made whole in any order, refused where they disagree, bounded in a flood.

use proptest::prelude::*;
use weir_core::ipsec::reassembly::{Ended, MAX_FRAMES, MAX_PACKETS, Reassembly, TIME};
use weir_core::packet::{BUFFER_SIZE, DeviceId, Frame};
use weir_core::time::MILLISECOND;
use weir_core::verdict::Reason;
use weir_core::wire::{build, decode};

type Heap = Box<[u8]>;

/// A packet of `len` bytes behind the headers, cut into pieces of at most `piece`.
#[derive(Clone, Copy)]
struct Cut {
    v6: bool,
    len: usize,
    piece: usize,
    ident: u32,
    tos: u8,
}

const CUT: Cut = Cut { v6: false, len: 1000, piece: 400, ident: 7, tos: 0 };

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256) as u8).collect()
}

impl Cut {
    fn frame(&self) -> build::Frame {
        let frame = if self.v6 {
            build::Frame::ipv6([0x20; 16].into(), [0x30; 16].into()).extension(0, &[0, 1, 4, 0, 0, 0, 0])
        } else {
            build::Frame::ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).ident(self.ident)
        };
        frame.packet().tos(self.tos)
    }

    fn whole(&self) -> Vec<u8> {
        self.frame().raw(50, &payload(self.len))
    }

    fn fragments(&self) -> Vec<Vec<u8>> {
        let payload = payload(self.len);
        let pieces = payload.chunks(self.piece).enumerate();
        pieces.map(|(i, piece)| self.fragment(i * self.piece, piece)).collect()
    }

    fn fragment(&self, offset: usize, piece: &[u8]) -> Vec<u8> {
        let more = offset + piece.len() < self.len;
        self.frame().ident(self.ident).fragment(offset, more).raw(50, piece)
    }
}

fn frame(packet: &[u8]) -> Frame<Heap> {
    Frame::from_bytes(vec![0; BUFFER_SIZE].into(), packet, DeviceId(0)).expect("fits")
}

/// A reassembly whose frames are counted.
#[derive(Default)]
struct Bench {
    fragments: Reassembly<Heap>,
    ended: Vec<Ended<Heap>>,
    given: usize,
    returned: usize,
}

impl Bench {
    fn push(&mut self, now: u64, packet: &[u8]) -> Option<Vec<u8>> {
        self.given += 1;
        let whole = self.fragments.push(now, frame(packet), &mut self.ended);
        self.returned += usize::from(whole.is_some());
        self.check();
        whole.map(|frame| frame.data().to_vec())
    }

    fn expire(&mut self, now: u64) {
        if self.fragments.is_due(now) {
            self.fragments.expire(now, &mut self.ended);
        }
        self.check();
    }

    fn check(&self) {
        assert_eq!(
            self.given,
            self.returned + self.ended.len() + self.fragments.held(),
            "every frame ends once"
        );
        assert!(self.fragments.held() <= MAX_FRAMES);
    }

    fn lost(&self, reason: Reason) -> usize {
        self.ended.iter().filter(|ended| ended.lost == Some(reason)).count()
    }
}

#[test]
fn fragments_in_any_order_become_the_packet() {
    for v6 in [false, true] {
        let cut = Cut { v6, ..CUT };
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut bench = Bench::default();
            let fragments = cut.fragments();
            assert_eq!(bench.push(0, &fragments[order[0]]), None);
            assert_eq!(bench.push(0, &fragments[order[1]]), None);
            let whole = bench.push(0, &fragments[order[2]]).expect("whole");
            assert_eq!(whole, cut.whole(), "{}", decode::decode_packet(&whole));
            assert_eq!((bench.fragments.held(), bench.ended.len()), (0, 2));
            assert!(bench.ended.iter().all(|ended| ended.lost.is_none()));
        }
    }
}

#[test]
fn a_packet_that_is_no_fragment_is_whole() {
    for v6 in [false, true] {
        let cut = Cut { v6, ..CUT };
        assert_eq!(Bench::default().push(0, &cut.whole()), Some(cut.whole()));
    }
    // A fragment header around all of it (RFC 6946).
    let cut = Cut { v6: true, ..CUT };
    assert_eq!(Bench::default().push(0, &cut.fragment(0, &payload(cut.len))), Some(cut.whole()));
}

#[test]
fn packets_are_told_apart() {
    let mut bench = Bench::default();
    let cuts: Vec<_> =
        (0..8).map(|i| Cut { v6: i >= 4, ident: i % 4, len: 700 + 8 * i as usize, ..CUT }).collect();
    for part in [1, 0] {
        for cut in &cuts {
            let whole = bench.push(0, &cut.fragments()[part]);
            assert_eq!(whole, (part == 0).then(|| cut.whole()));
        }
    }
}

#[test]
fn the_same_fragment_twice_does_no_harm() {
    let mut bench = Bench::default();
    let fragments = CUT.fragments();
    assert_eq!(bench.push(0, &fragments[0]), None);
    assert_eq!(bench.push(0, &fragments[0]), None);
    assert_eq!(bench.push(0, &fragments[1]), None);
    assert_eq!(bench.push(0, &fragments[2]), Some(CUT.whole()));
    assert_eq!(bench.lost(Reason::FragmentOverlap), 1);
}

#[test]
fn an_overlap_refuses_the_packet_and_what_still_comes_of_it() {
    for v6 in [false, true] {
        let cut = Cut { v6, ..CUT };
        let fragments = cut.fragments();
        let overlapping = [
            cut.fragment(392, &payload(408)),
            cut.fragment(0, &payload(8)),
            cut.fragment(0, &[0; 400]),
            cut.fragment(0, &payload(992)),
        ];
        for bad in overlapping {
            let mut bench = Bench::default();
            assert_eq!(bench.push(0, &fragments[0]), None);
            assert_eq!(bench.push(0, &bad), None);
            assert_eq!(bench.fragments.held(), 0, "nothing of it waits");
            assert_eq!(bench.push(0, &fragments[1]), None);
            assert_eq!(bench.push(0, &fragments[2]), None);
            assert_eq!(bench.lost(Reason::FragmentOverlap), 4);
            // Its time over, the number is any packet's again.
            bench.expire(TIME);
            for (i, fragment) in fragments.iter().enumerate() {
                assert_eq!(bench.push(TIME, fragment).is_some(), i == 2);
            }
        }
    }
}

#[test]
fn fragments_that_disagree_about_the_end_are_refused() {
    let shorter = Cut { len: 808, ..CUT };
    let longer = Cut { len: 1200, ..CUT };
    let cases = [
        // A second end; more behind the end; an end before what is there.
        [CUT.fragments()[2].clone(), shorter.fragments()[2].clone()],
        [CUT.fragments()[2].clone(), longer.fragment(1000, &[0; 8])],
        [longer.fragment(1000, &[0; 8]), CUT.fragments()[2].clone()],
        // Not the last, and no multiple of 8; without payload.
        [CUT.fragment(0, &[0; 401]), CUT.fragments()[2].clone()],
        [CUT.fragment(400, &[]), CUT.fragments()[2].clone()],
    ];
    for [first, second] in cases {
        let mut bench = Bench::default();
        assert_eq!((bench.push(0, &first), bench.push(0, &second)), (None, None));
        assert_eq!(bench.lost(Reason::FragmentOverlap), 2);
    }
}

#[test]
fn what_fits_in_no_buffer_is_refused() {
    let mut bench = Bench::default();
    let cut = Cut { len: 2400, piece: 1200, ..CUT };
    let fragments = cut.fragments();
    assert_eq!(bench.push(0, &fragments[0]), None);
    assert_eq!(bench.push(0, &fragments[1]), None);
    assert_eq!(bench.lost(Reason::FragmentTooLarge), 2);
}

#[test]
fn a_packet_that_needs_the_headroom_gets_it() {
    for v6 in [false, true] {
        // 2,048 less 32 in front.
        let cut = Cut { v6, len: 1952, piece: 1200, ..CUT };
        let mut bench = Bench::default();
        let fragments = cut.fragments();
        assert_eq!(bench.push(0, &fragments[1]), None);
        assert_eq!(bench.push(0, &fragments[0]), Some(cut.whole()));
    }
}

#[test]
fn a_packet_whose_rest_does_not_come_is_given_up() {
    let mut bench = Bench::default();
    assert_eq!(bench.push(MILLISECOND, &CUT.fragments()[0]), None);
    bench.expire(TIME);
    assert_eq!(bench.fragments.held(), 1);
    bench.expire(TIME + MILLISECOND);
    assert_eq!((bench.fragments.held(), bench.lost(Reason::FragmentTimeout)), (0, 1));
}

#[test]
fn a_flood_of_first_fragments_is_bounded_and_a_packet_gets_through() {
    let mut bench = Bench::default();
    for ident in 0..10_000 {
        let cut = Cut { ident, ..CUT };
        assert_eq!(bench.push(0, &cut.fragments()[0]), None);
        assert!(bench.fragments.held() <= MAX_PACKETS);
    }
    assert_eq!(bench.lost(Reason::FragmentsFull), 10_000 - MAX_PACKETS);
    let fragments = Cut { ident: 20_000, ..CUT }.fragments();
    assert_eq!(bench.push(1, &fragments[0]), None);
    assert_eq!(bench.push(1, &fragments[1]), None);
    assert!(bench.push(1, &fragments[2]).is_some());
}

#[test]
fn a_flood_of_small_fragments_is_bounded() {
    let mut bench = Bench::default();
    for ident in 0..100 {
        let cut = Cut { ident, piece: 8, len: 1600, ..CUT };
        for fragment in cut.fragments() {
            assert_eq!(bench.push(0, &fragment), None);
        }
    }
    assert!(bench.lost(Reason::FragmentsFull) > 0);
}

#[test]
fn a_first_fragment_without_a_whole_esp_header_is_part_of_the_packet() {
    let mut bench = Bench::default();
    let mut cut = Cut { piece: 8, len: 48, ..CUT };
    cut.v6 = true;
    let fragments = cut.fragments();
    let wholes: Vec<_> = fragments.iter().map(|fragment| bench.push(0, fragment)).collect();
    assert_eq!(wholes.last(), Some(&Some(cut.whole())));
}

#[test]
fn a_congestion_mark_on_one_fragment_is_one_on_the_packet() {
    for v6 in [false, true] {
        let capable = Cut { v6, tos: 2, ..CUT };
        let marked = Cut { tos: 3, ..capable };
        let mut bench = Bench::default();
        assert_eq!(bench.push(0, &capable.fragments()[0]), None);
        assert_eq!(bench.push(0, &marked.fragments()[1]), None);
        assert_eq!(bench.push(0, &capable.fragments()[2]), Some(marked.whole()));
        // Marked, and not capable of it.
        let ignorant = Cut { tos: 0, ..capable };
        assert_eq!(bench.push(0, &ignorant.fragments()[0]), None);
        assert_eq!(bench.push(0, &marked.fragments()[1]), None);
        assert_eq!(bench.push(0, &ignorant.fragments()[2]), None);
        assert_eq!(bench.lost(Reason::FragmentOverlap), 3);
    }
}

#[test]
fn giving_up_returns_every_frame() {
    let mut bench = Bench::default();
    for ident in 0..20 {
        bench.push(0, &Cut { ident, ..CUT }.fragments()[1]);
    }
    bench.fragments.shutdown(&mut bench.ended);
    bench.check();
    assert_eq!((bench.fragments.held(), bench.ended.len()), (0, 20));
}

proptest! {
    #[test]
    fn any_cut_in_any_order_becomes_the_packet(
        v6 in any::<bool>(), len in 1usize..1700, units in 14usize..60, seed in any::<u64>(),
    ) {
        let cut = Cut { v6, len, piece: units * 8, ..CUT };
        let mut fragments = cut.fragments();
        let mut state = seed | 1;
        for i in (1..fragments.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            fragments.swap(i, (state >> 33) as usize % (i + 1));
        }
        let mut bench = Bench::default();
        let wholes: Vec<_> = fragments.iter().filter_map(|fragment| bench.push(0, fragment)).collect();
        prop_assert_eq!(wholes, vec![cut.whole()]);
        prop_assert_eq!(bench.fragments.held(), 0);
    }
}
