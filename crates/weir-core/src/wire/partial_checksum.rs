//! TCP and UDP checksums that a sender left to its card, where there is no card: between virtual machines of one host, or
//! over a virtual cable. The field then holds the folded sum of the pseudo-header (Linux calls it `CHECKSUM_PARTIAL`, virtio
//! `NEEDS_CSUM`), and that is all there is to know it by where whoever hands the frame over does not say so.
//!
//! Promises: a frame whose checksum is right stays as it is. Refuses: fragments, which senders finish themselves, and frames
//! that are cut. One frame in 65,536 that came with a wrong checksum is taken for unfinished, and gets a right one.

use super::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use super::{Ethernet, Ipv4, Ipv6, checksum, protocol};

/// Where the checksum is in a transport header (RFC 9293 3.1, RFC 768).
const TCP_FIELD: usize = 16;
const UDP_FIELD: usize = 6;

/// Finishes the checksum of a frame whose sender left it to a card; whether it was so.
pub fn finish(frame: &mut [u8]) -> bool {
    let Some((at, protocol, pseudo)) = transport(frame) else { return false };
    let field = match protocol {
        protocol::TCP => TCP_FIELD,
        protocol::UDP => UDP_FIELD,
        _ => return false,
    };
    let Some(segment) = frame.get_mut(at..) else { return false };
    let Some(&[high, low]) = segment.get(field..field + 2) else { return false };
    // The complement of what `finish` makes of a sum is the folded sum itself.
    let folded = !checksum::finish(pseudo.sum);
    if u16::from_be_bytes([high, low]) != folded {
        return false;
    }
    let Some(segment) = segment.get_mut(..pseudo.len) else { return false };
    let sum = checksum::add(0, segment);
    // The field has the pseudo-header in it. With it once more, a packet that was right sums to −0.
    if checksum::is_valid_sum(sum + pseudo.sum) {
        return false;
    }
    segment[field..field + 2].copy_from_slice(&checksum::finish_transport(sum).to_be_bytes());
    true
}

/// A pseudo-header's sum, and how many bytes of transport header and payload it speaks of.
struct Pseudo {
    sum: u64,
    len: usize,
}

/// Where the transport header of a whole packet begins in the frame, its protocol, and its pseudo-header.
fn transport(frame: &[u8]) -> Option<(usize, u8, Pseudo)> {
    let ethernet = Ethernet::parse(frame).ok()?;
    let network = ethernet.header_len();
    let packet = ethernet.payload();
    match ethernet.ethertype() {
        ETHERTYPE_IPV4 => {
            let ip = Ipv4::parse(packet).ok().filter(|ip| !ip.is_fragment())?;
            let (protocol, len) = (ip.protocol(), ip.payload().len());
            let sum = checksum::pseudo_ipv4(ip.src(), ip.dst(), protocol, u16::try_from(len).ok()?);
            Some((network + ip.header_len(), protocol, Pseudo { sum, len }))
        }
        ETHERTYPE_IPV6 => {
            let ip = Ipv6::parse(packet).ok()?;
            let chain = ip.chain().ok().filter(|chain| chain.fragment.is_none())?;
            let len = ip.total_len().checked_sub(chain.offset)?;
            let sum = checksum::pseudo_ipv6(ip.src(), ip.dst(), chain.protocol, u32::try_from(len).ok()?);
            Some((network + chain.offset, chain.protocol, Pseudo { sum, len }))
        }
        _ => None,
    }
}

#[cfg(feature = "testing")]
pub fn fuzz_partial_checksum(data: &[u8]) {
    let mut frame = data.to_vec();
    if finish(&mut frame) {
        assert_eq!(frame.len(), data.len());
        assert!(!finish(&mut frame), "what is finished is right");
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;
    use crate::wire::build::Frame;
    use crate::wire::tcp;

    const SEGMENT: &[u8] = b"0123456789abcdef";

    /// A frame, and where its checksum is.
    fn made(addresses: (IpAddr, IpAddr), is_tcp: bool, vlan: bool, payload: &[u8]) -> (Vec<u8>, usize) {
        let frame = Frame::ip(addresses.0, addresses.1).expect("one family");
        let frame = if vlan { frame.vlan(5) } else { frame };
        let header = if addresses.0.is_ipv4() { 20 } else { 40 };
        let at = 14 + if vlan { 4 } else { 0 } + header;
        if is_tcp {
            (
                frame.tcp(&tcp::Header { src_port: 1000, dst_port: 2000, ..tcp::Header::default() }, payload),
                at + TCP_FIELD,
            )
        } else {
            (frame.udp(1000, 2000, payload), at + UDP_FIELD)
        }
    }

    /// What a sender leaves: the folded sum of the pseudo-header in place of the checksum.
    fn left(frame: &[u8], field: usize) -> Vec<u8> {
        let mut frame = frame.to_vec();
        let (_, _, pseudo) = transport(&frame).expect("a transport header");
        frame[field..field + 2].copy_from_slice(&(!checksum::finish(pseudo.sum)).to_be_bytes());
        frame
    }

    fn addresses(v6: bool, last: u8) -> (IpAddr, IpAddr) {
        if v6 {
            ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into(), [0x2001, 0xdb8, 1, 0, 0, 0, 0, last.into()].into())
        } else {
            ([10, 0, 0, 1].into(), [10, 1, 0, last].into())
        }
    }

    #[test]
    fn fragments_other_protocols_and_cut_frames_stay_as_they_are() {
        let (whole, field) = made(addresses(false, 2), false, false, SEGMENT);
        let unfinished = left(&whole, field);
        for cut in 0..unfinished.len() {
            let mut frame = unfinished[..cut].to_vec();
            assert!(!finish(&mut frame) && frame == unfinished[..cut], "cut at {cut}");
        }
        let mut padded = unfinished.clone();
        padded.extend([0xaa; 7]);
        assert!(finish(&mut padded));
        assert_eq!((&padded[..whole.len()], &padded[whole.len()..]), (&whole[..], &[0xaa; 7][..]));
        let mut echo = Frame::ipv4([10, 0, 0, 1].into(), [10, 1, 0, 2].into()).echo_request(1, 1, SEGMENT);
        let before = echo.clone();
        assert!(!finish(&mut echo) && echo == before);
    }

    proptest! {
        #[test]
        fn what_was_left_is_finished_and_what_was_right_is_untouched(
            v6 in any::<bool>(), is_tcp in any::<bool>(), vlan in any::<bool>(), last in 1u8..,
            payload in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let (right, field) = made(addresses(v6, last), is_tcp, vlan, &payload);
            let mut frame = right.clone();
            prop_assert!(!finish(&mut frame));
            prop_assert_eq!(&frame, &right);
            let unfinished = left(&right, field);
            let mut frame = unfinished.clone();
            // A packet may be right with that very value in its field.
            prop_assert_eq!(finish(&mut frame), unfinished != right);
            prop_assert_eq!(frame, right);
        }
    }
}
