//! The internet checksum: whole (RFC 1071), with pseudo-headers (RFC 768, 8200 8.1), incremental
//! (RFC 1624).
//!
//! A running sum is a `u64` of little-endian 32-bit halves: one's complement addition does not care in
//! which byte order it is done as long as the result is swapped at the end (RFC 1071 2.B), and wide words
//! let the compiler use vector adds. A slice of odd length may only be the last one added.
//!
//! Promises: an incremental update equals full recomputation for every header that is not all zero
//! (property-tested). Checksums are values: `0x1c46` is written to the packet as `1c 46`.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Adds `data` to a running sum. Sums below 2³⁴ bytes never overflow.
#[inline]
pub fn add(mut sum: u64, data: &[u8]) -> u64 {
    let (words, rest) = data.as_chunks::<8>();
    for word in words {
        let w = u64::from_le_bytes(*word);
        sum += (w & 0xffff_ffff) + (w >> 32);
    }
    // The tail by halves; an odd last byte is the low one of a little-endian word, as if zero-padded.
    let (words, rest) = rest.as_chunks::<4>();
    for word in words {
        sum += u64::from(u32::from_le_bytes(*word));
    }
    let (words, rest) = rest.as_chunks::<2>();
    for word in words {
        sum += u64::from(u16::from_le_bytes(*word));
    }
    sum + rest.first().map_or(0, |&last| u64::from(last))
}

/// One's complement of the folded sum: the checksum's value.
#[inline]
pub fn finish(sum: u64) -> u16 {
    !fold(sum).swap_bytes()
}

/// The checksum of any transport. UDP's 0 would mean that there is none (RFC 768); to the others both zeros are the same.
#[inline]
pub fn finish_transport(sum: u64) -> u16 {
    match finish(sum) {
        0 => 0xffff,
        check => check,
    }
}

/// Folds to 16 bits with end-around carries, still in little-endian order.
#[inline]
fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// The checksum of `data`, whose own checksum field is zero.
#[inline]
pub fn checksum(data: &[u8]) -> u16 {
    finish(add(0, data))
}

/// Whether `data`, with its checksum field in place, sums to −0.
#[inline]
pub fn is_valid(data: &[u8]) -> bool {
    fold(add(0, data)) == 0xffff
}

/// Whether data summed elsewhere (pseudo-header first, say) is right.
#[inline]
pub fn is_valid_sum(sum: u64) -> bool {
    fold(sum) == 0xffff
}

/// [`is_valid`] for an IPv4 header without options: no branch, no loop.
#[inline]
pub fn ipv4_header_20(header: &[u8; 20]) -> bool {
    let half = |at: usize| {
        u64::from(u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]))
    };
    fold(half(0) + half(4) + half(8) + half(12) + half(16)) == 0xffff
}

/// The IPv4 pseudo-header of UDP and TCP; `len` is the length of the transport header and payload.
#[inline]
pub fn pseudo_ipv4(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, len: u16) -> u64 {
    let sum = add(add(0, &src.octets()), &dst.octets());
    let len = len.to_be_bytes();
    add(sum, &[0, protocol, len[0], len[1]])
}

/// The IPv6 pseudo-header of UDP, TCP and ICMPv6 (RFC 8200 8.1).
#[inline]
pub fn pseudo_ipv6(src: Ipv6Addr, dst: Ipv6Addr, protocol: u8, len: u32) -> u64 {
    let sum = add(add(0, &src.octets()), &dst.octets());
    add(add(sum, &len.to_be_bytes()), &[0, 0, 0, protocol])
}

/// The checksum after a 16-bit word it covers changed from `old` to `new` (RFC 1624 equation 3).
#[inline]
#[must_use]
pub fn update16(check: u16, old: u16, new: u16) -> u16 {
    let sum = u32::from(!check) + u32::from(!old) + u32::from(new);
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// The checksum after an aligned 32-bit word it covers (an IPv4 address, say) changed.
#[inline]
#[must_use]
pub fn update32(check: u16, old: u32, new: u32) -> u16 {
    let check = update16(check, (old >> 16) as u16, (new >> 16) as u16);
    update16(check, old as u16, new as u16)
}

/// The IPv4 header checksum after the TTL, the high byte of its word, went down by one: equation 3 with
/// `~m + m' = −0x0100` becomes an addition with end-around carry. A sum of 0xffff is −0, which full
/// recomputation writes as 0: the comparison is with 0xffff, not 0x10000.
#[inline]
#[must_use]
pub fn after_ttl_decrement(check: u16) -> u16 {
    let sum = u32::from(check) + 0x0100;
    (sum + u32::from(sum >= 0xffff)) as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// RFC 1071 4.1, word by word: the oracle.
    fn reference(data: &[u8]) -> u16 {
        let mut sum = 0u64;
        for pair in data.chunks(2) {
            sum += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
        }
        while sum >> 16 != 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    const HEADER: [u8; 20] = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00, 0x01, 0xc0,
        0xa8, 0x00, 0xc7,
    ];

    #[test]
    fn known_header_is_right_and_one_changed_bit_is_wrong() {
        assert!(ipv4_header_20(&HEADER) && is_valid(&HEADER));
        for bit in 0..160 {
            let mut broken = HEADER;
            broken[bit / 8] ^= 1 << (bit % 8);
            assert!(!ipv4_header_20(&broken) && !is_valid(&broken), "bit {bit}");
        }
    }

    #[test]
    fn rfc_1071_example_sums_to_ddf2() {
        assert_eq!(!checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
    }

    #[test]
    fn rfc_1624_example_keeps_minus_zero_out() {
        // Section 4: HC = 0xdd2f, m = 0x5555, m' = 0x3285 gives 0x0000, not 0xffff.
        assert_eq!(update16(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn every_ttl_decrement_equals_recomputation() {
        for ident in 0..=0xffffu16 {
            let mut header = HEADER;
            header[4..6].copy_from_slice(&ident.to_be_bytes());
            header[8] = (ident % 255) as u8 + 1;
            header[10..12].fill(0);
            let before = checksum(&header);
            header[8] -= 1;
            assert_eq!(after_ttl_decrement(before), checksum(&header), "ident {ident}");
        }
    }

    proptest! {
        #[test]
        fn sum_equals_the_reference(data in proptest::collection::vec(any::<u8>(), 0..2000)) {
            prop_assert_eq!(checksum(&data), reference(&data));
        }

        #[test]
        fn sum_of_parts_equals_sum_of_whole(
            data in proptest::collection::vec(any::<u8>(), 0..300), cut in 0usize..150,
        ) {
            let cut = (cut * 2).min(data.len() & !1);
            prop_assert_eq!(finish(add(add(0, &data[..cut]), &data[cut..])), checksum(&data));
        }

        #[test]
        fn short_header_check_equals_the_general_one(mut header in any::<[u8; 20]>(), fix in any::<bool>()) {
            if fix {
                header[10..12].fill(0);
                let check = checksum(&header);
                header[10..12].copy_from_slice(&check.to_be_bytes());
                prop_assert!(ipv4_header_20(&header));
            }
            prop_assert_eq!(ipv4_header_20(&header), is_valid(&header));
        }

        #[test]
        fn updates_equal_recomputation(mut header in any::<[u8; 20]>(), new in any::<u32>(), at in 0usize..4) {
            header[9] = 17; // never all zero
            header[10..12].fill(0);
            let before = checksum(&header);
            let at = [0, 4, 12, 16][at]; // every aligned word but the checksum's own
            let old = u32::from_be_bytes(header[at..at + 4].try_into().expect("four"));
            header[at..at + 4].copy_from_slice(&new.to_be_bytes());
            prop_assert_eq!(update32(before, old, new), checksum(&header));
        }

        #[test]
        fn pseudo_headers_equal_their_bytes(
            src in any::<[u8; 16]>(), dst in any::<[u8; 16]>(), protocol in any::<u8>(), len in any::<u16>(),
        ) {
            let mut bytes = [src, dst].concat();
            bytes.extend_from_slice(&[0, 0]);
            bytes.extend_from_slice(&len.to_be_bytes());
            bytes.extend_from_slice(&[0, 0, 0, protocol]);
            prop_assert_eq!(
                finish(pseudo_ipv6(src.into(), dst.into(), protocol, len.into())), reference(&bytes));
            let (s, d): ([u8; 4], [u8; 4]) =
                (src[..4].try_into().expect("four"), dst[..4].try_into().expect("four"));
            let mut bytes = [s, d].concat();
            bytes.extend_from_slice(&[0, protocol]);
            bytes.extend_from_slice(&len.to_be_bytes());
            prop_assert_eq!(finish(pseudo_ipv4(s.into(), d.into(), protocol, len)), reference(&bytes));
        }
    }
}
