//! ESP as it is carried, plain or in UDP (RFC 3948): which SPI it has, and the checksum of the datagram around it.
//!
//! Promises: over IPv4 there is none, as RFC 3948 2.1 asks; over IPv6 there is one, for most receivers drop
//! what has none (RFC 8200 8.1; RFC 6935 lets a tunnel do without where both ends agree). What is received is
//! not judged by it: the ICV says more.

use super::HEADER_LEN;
use crate::wire::{Ipv6, checksum, get16, get32, protocol, udp};

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

/// The SPI of ESP that is the payload of an IP packet with the protocol `carried`, or lies there in UDP to one of
/// `udp_ports`. Lengths beyond the SPI and the sequence number are for [`super::open`] to check.
#[inline(always)]
pub fn spi_of(carried: u8, payload: &[u8], udp_ports: &[u16]) -> Option<u32> {
    if carried == protocol::ESP {
        return Some(get32(payload.first_chunk::<HEADER_LEN>()?, 0));
    }
    let header = payload.first_chunk::<{ udp::HEADER_LEN + HEADER_LEN }>()?;
    let marker = get32(header, udp::HEADER_LEN);
    // Four zero octets are the marker of IKE (RFC 3948 2.2).
    (carried == protocol::UDP && udp_ports.contains(&get16(header, 2)) && marker != 0).then_some(marker)
}
