//! Headers of test packets, built once and stamped for each packet (RFC 894, 791, 8200, 768).
//!
//! A header keeps the ones' complement sum of everything that does not change (RFC 1071), so a packet's
//! UDP checksum costs the sum of its mark.

use std::net::IpAddr;

use super::Link;
use super::address::Ends;
use super::mark::{self, Mark};
use crate::model::Family;

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;
/// The longest: Ethernet, IPv6, UDP.
const LONGEST: usize = ETHERNET + IPV6 + UDP;

/// Hops a test packet survives: 64, what hosts send with (RFC 1700).
const TTL: u8 = 64;
const PROTOCOL_UDP: u8 = 17;

/// Bytes of headers before the mark.
pub const fn headers_len(family: Family) -> usize {
    match family {
        Family::Inet => ETHERNET + IPV4 + UDP,
        Family::Inet6 => ETHERNET + IPV6 + UDP,
    }
}

/// EtherType, where the byte of the protocol is, and where what the IP header carries begins.
pub const fn ip_layout(family: Family) -> (u16, usize, usize) {
    match family {
        Family::Inet => (0x0800, ETHERNET + 9, ETHERNET + IPV4),
        Family::Inet6 => (0x86dd, ETHERNET + 6, ETHERNET + IPV6),
    }
}

/// The headers of one flow at one frame size.
#[derive(Clone, Debug)]
pub struct Header {
    bytes: [u8; LONGEST],
    len: u8,
    /// Sum of pseudo-header, UDP header, magic and flow; not complemented.
    sum: u32,
}

impl Header {
    /// `size` is the frame's, in memory; it must hold headers and mark.
    pub fn new(link: Link, ends: Ends, flow: u32, size: u16) -> Header {
        let mut bytes = [0; LONGEST];
        bytes[..6].copy_from_slice(&link.destination);
        bytes[6..12].copy_from_slice(&link.source);
        let ip_len = size - ETHERNET as u16;
        let (len, addresses_sum) = match (ends.source, ends.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                bytes[12..14].copy_from_slice(&[0x08, 0x00]);
                ipv4(&mut bytes[14..34], ip_len, source.octets(), destination.octets());
                (ETHERNET + IPV4 + UDP, sum(&source.octets()) + sum(&destination.octets()))
            }
            (source, destination) => {
                let (source, destination) = (v6(source), v6(destination));
                bytes[12..14].copy_from_slice(&[0x86, 0xdd]);
                ipv6(&mut bytes[14..54], ip_len - IPV6 as u16, source, destination);
                (LONGEST, sum(&source) + sum(&destination))
            }
        };
        let udp_len = size - (len - UDP) as u16;
        let udp = &mut bytes[len - UDP..len];
        udp[..2].copy_from_slice(&ends.source_port.to_be_bytes());
        udp[2..4].copy_from_slice(&ends.destination_port.to_be_bytes());
        udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
        let pseudo = addresses_sum + u32::from(PROTOCOL_UDP) + u32::from(udp_len);
        let sum = pseudo + sum(udp) + sum(&mark::MAGIC) + (flow >> 16) + (flow & 0xffff);
        Header { bytes, len: len as u8, sum }
    }

    /// Headers, checksum and mark into the front of `frame`, which must hold them.
    #[inline]
    pub fn write(&self, mark: Mark, frame: &mut [u8]) {
        let len = self.len as usize;
        let frame = &mut frame[..len + mark::LEN];
        frame[..len].copy_from_slice(&self.bytes[..len]);
        frame[len..].copy_from_slice(&mark.bytes());
        frame[len - 2..len].copy_from_slice(&self.checksum(mark).to_be_bytes());
    }

    #[inline]
    fn checksum(&self, mark: Mark) -> u16 {
        let time = mark.sent_ns;
        let sum = u64::from(self.sum)
            + (u64::from(mark.run) << 8)
            + u64::from(mark.sequence >> 16)
            + u64::from(mark.sequence & 0xffff)
            + (time >> 48)
            + (time >> 32 & 0xffff)
            + (time >> 16 & 0xffff)
            + (time & 0xffff);
        // Two folds: at most 2²⁴ before, at most 0x1_00fe after the first.
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = ((sum & 0xffff) + (sum >> 16)) as u16;
        // RFC 768: a computed zero is sent as all ones.
        if sum == 0xffff { 0xffff } else { !sum }
    }
}

fn ipv4(header: &mut [u8], total_len: u16, source: [u8; 4], destination: [u8; 4]) {
    header[0] = 0x45;
    header[2..4].copy_from_slice(&total_len.to_be_bytes());
    header[8] = TTL;
    header[9] = PROTOCOL_UDP;
    header[12..16].copy_from_slice(&source);
    header[16..20].copy_from_slice(&destination);
    let mut checksum = sum(header);
    while checksum > 0xffff {
        checksum = (checksum & 0xffff) + (checksum >> 16);
    }
    header[10..12].copy_from_slice(&(!(checksum as u16)).to_be_bytes());
}

fn ipv6(header: &mut [u8], payload_len: u16, source: [u8; 16], destination: [u8; 16]) {
    header[0] = 0x60;
    header[4..6].copy_from_slice(&payload_len.to_be_bytes());
    header[6] = PROTOCOL_UDP;
    header[7] = TTL;
    header[8..24].copy_from_slice(&source);
    header[24..40].copy_from_slice(&destination);
}

fn v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V6(address) => address.octets(),
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
    }
}

/// Sum of 16-bit words; the length is even.
fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum()
}
