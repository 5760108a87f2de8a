//! IPv4 fragmentation: the pieces make the packet again (RFC 791 3.2).

use crate::common::world::*;
use proptest::prelude::*;
use weir_core::packet::DeviceId;
use weir_core::verdict::Reason;

/// Puts payloads together by offset; every piece fits `mtu`, all but the last say that more follow.
fn reassemble(sent: &[(DeviceId, Vec<u8>)], mtu: usize, base: usize, more_follow: bool) -> Vec<u8> {
    let mut payload = Vec::new();
    for (i, (_, bytes)) in sent.iter().enumerate() {
        let piece = ipv4(bytes);
        assert!(piece.total_len() <= mtu);
        assert_eq!(piece.fragment_offset(), base + payload.len(), "in order and without a gap");
        let last = i + 1 == sent.len();
        assert_eq!(piece.more_fragments(), !last || more_follow);
        assert!(last || piece.payload().len().is_multiple_of(8));
        payload.extend_from_slice(piece.payload());
    }
    payload
}

#[test]
fn large_packet_is_cut_and_makes_the_original_again() {
    let data: Vec<u8> = (0..1472u32).map(|n| n as u8).collect();
    let bytes = frame(LAN, "10.0.0.2", "10.95.0.9").ident(7).tos(0x28).udp(1, 2, &data);
    let mut w = World::new();
    let seen = w.send(LAN, &bytes);
    assert_eq!((seen.sent.len(), seen.forwarded, seen.originated), (2, 1, 1));
    assert_eq!(reassemble(&seen.sent, 1300, 0, false), ipv4(&bytes).payload());
    for (_, piece) in &seen.sent {
        let piece = ipv4(piece);
        assert_eq!((piece.ident(), piece.ttl(), piece.tos(), piece.dont_fragment()), (7, 63, 0x28, false));
    }
}

#[test]
fn fragment_of_a_fragment_keeps_its_place() {
    for more in [true, false] {
        let bytes = frame(LAN, "10.0.0.2", "10.95.0.9").fragment(2960, more).raw(17, &[5; 1480]);
        let seen = World::new().send(LAN, &bytes);
        assert_eq!(reassemble(&seen.sent, 1300, 2960, more), [5; 1480]);
    }
}

#[test]
fn only_copied_options_are_in_later_fragments() {
    // Record route (not copied), then router alert (copied).
    let options = [7, 7, 4, 0, 0, 0, 0, 148, 4, 0, 0];
    let bytes = frame(LAN, "10.0.0.2", "10.95.0.9").options(&options).udp(1, 2, &[9; 1400]);
    let seen = World::new().send(LAN, &bytes);
    assert_eq!(reassemble(&seen.sent, 1300, 0, false), ipv4(&bytes).payload());
    assert_eq!(ipv4(&seen.sent[0].1).header_len(), 32);
    let later = ipv4(&seen.sent[1].1);
    assert_eq!(later.header()[20..], [148, 4, 0, 0]);
}

#[test]
fn without_buffers_for_all_pieces_none_is_sent() {
    let mut net = Net::new();
    net.ports[WAN.index()].mtu = 576;
    let gateway = net.adjacency(WAN, addr("192.0.2.254"), true);
    net.route("10.94.0.0/16".parse().expect("a prefix"), weir_core::tables::Target::Adjacent(gateway));
    let mut w = World::of(net);
    let mut kept: Vec<_> = std::iter::from_fn(|| w.pool.take()).collect();
    let bytes = frame(LAN, "10.0.0.2", "10.94.0.9").udp(1, 2, &[0; 1472]);
    let mut batch = weir_core::packet::Batch::new();
    let buffer = kept.pop().expect("a buffer");
    batch
        .push(weir_core::packet::Frame::from_bytes(buffer, &bytes, DeviceId(0)).expect("fits"))
        .expect("room");
    w.pool.put(kept.pop().expect("one more: two are needed"));
    w.router.forward(0, &w.tables, &mut batch, &mut w.pool, &mut w.out);
    assert_eq!(w.router.ledger().drops.of(Reason::NoBuffer), 1);
    assert_eq!((w.router.ledger().balance(), w.pool.free(), w.out.tx[1].len()), (0, 2, 0));
}

proptest! {
    #[test]
    fn any_payload_over_any_mtu_reassembles(
        data in proptest::collection::vec(any::<u8>(), 1..1480), mtu in 68u16..1500, options in 0usize..=40,
    ) {
        let mut net = Net::new();
        net.ports[WAN.index()].mtu = mtu;
        let gateway = net.adjacency(WAN, addr("192.0.2.250"), true);
        net.route("10.94.0.0/16".parse().expect("a prefix"), weir_core::tables::Target::Adjacent(gateway));
        let mut w = World::of(net);
        // Copied options of no operation in particular: type 0x9e, two bytes each.
        let options = [0x9e, 2].repeat(options / 2);
        let bytes = frame(LAN, "10.0.0.2", "10.94.0.9").options(&options).raw(17, &data);
        prop_assume!(bytes.len() <= 1500);
        let seen = w.send(LAN, &bytes);
        prop_assert_eq!(seen.forwarded, 1);
        prop_assert_eq!(seen.originated as usize, seen.sent.len() - 1);
        prop_assert_eq!(reassemble(&seen.sent, mtu.into(), 0, false), data);
    }
}
