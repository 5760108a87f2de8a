//! Congestion marks through a tunnel (RFC 6040, normal mode): copied outwards, combined inwards.
//!
//! Promises: a mark made on the way reaches the inner packet, and one who cannot understand it is not
//! given it. Refuses: "congestion experienced" around a packet that does not know ECN, which only a drop
//! can tell its sender.

use crate::wire::{Ipv4, checksum, get16};

/// Inner ECN field by inner (row) and outer (column) one, RFC 6040 figure 4. Not-ECT, ECT(1), ECT(0), CE are
/// 0, 1, 2, 3.
const COMBINED: [[Option<u8>; 4]; 4] = [
    [Some(0), Some(0), Some(0), None],
    [Some(1), Some(1), Some(1), Some(3)],
    [Some(2), Some(1), Some(2), Some(3)],
    [Some(3), Some(3), Some(3), Some(3)],
];

/// Carries the mark of an outer header into the inner packet, an IPv4 or IPv6 header at least; `false`
/// where the packet must be dropped.
#[inline]
#[must_use]
pub fn decapsulate(outer_tos: u8, inner: &mut [u8]) -> bool {
    let v4 = inner[0] >> 4 == 4;
    let ecn = if v4 { inner[1] & 3 } else { inner[1] >> 4 & 3 };
    match COMBINED[usize::from(ecn)][usize::from(outer_tos & 3)] {
        None => false,
        Some(new) if new == ecn => true,
        Some(new) => {
            mark(inner, v4, new);
            true
        }
    }
}

#[cold]
fn mark(inner: &mut [u8], v4: bool, ecn: u8) {
    if !v4 {
        inner[1] = inner[1] & !0x30 | ecn << 4;
        return;
    }
    let old = get16(inner, 0);
    let mut packet = Ipv4::new_unchecked(inner);
    packet.set_tos(old as u8 & !3 | ecn);
    let check = checksum::update16(packet.header_checksum(), old, old & !3 | u16::from(ecn));
    packet.set_header_checksum(check);
}
