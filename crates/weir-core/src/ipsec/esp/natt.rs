//! The datagram around ESP (RFC 3948): its checksum, where it has one.
//!
//! Promises: over IPv4 there is none, as RFC 3948 2.1 asks; over IPv6 there is one, for most receivers drop
//! what has none (RFC 8200 8.1; RFC 6935 lets a tunnel do without where both ends agree). What is received is
//! not judged by it: the ICV says more.

use crate::wire::{Ipv6, checksum, get16, protocol, udp};

/// Fills the checksum of the datagram that a sealed IPv6 packet carries.
pub fn fill_checksum(packet: &mut [u8]) {
    let view = Ipv6::new_unchecked(&*packet);
    let Ok(chain) = view.chain() else { return };
    let pseudo_header =
        checksum::pseudo_ipv6(view.src(), view.dst(), protocol::UDP, (packet.len() - chain.offset) as u32);
    let datagram = &mut packet[chain.offset..];
    let (source, destination) = (get16(datagram, 0), get16(datagram, 2));
    let written = udp::write(datagram, source, destination, pseudo_header);
    debug_assert!(written, "the header was there before");
}
