//! UDP headers (RFC 768; over IPv6 RFC 8200 8.1).
//!
//! ```text
//! 0          2          4        6       8
//! | src port | dst port | length | check | payload
//! ```
//!
//! Refuses, as [`Reason::IpTruncated`]: cut headers, a length below 8 or beyond the IP payload. A router
//! reads ports and never checks the checksum; ends do, with [`Udp::is_checksum_valid`].

use std::fmt;

use super::{checksum, get16, put16};
use crate::verdict::Reason;

pub const HEADER_LEN: usize = 8;

/// A UDP datagram, IP header not included.
#[derive(Clone, Copy, Debug)]
pub struct Udp<T> {
    bytes: T,
}

impl<T: AsRef<[u8]>> Udp<T> {
    #[inline]
    pub fn parse(bytes: T) -> Result<Self, Reason> {
        let b = bytes.as_ref();
        if b.len() < HEADER_LEN || usize::from(get16(b, 4)) < HEADER_LEN || usize::from(get16(b, 4)) > b.len()
        {
            return Err(Reason::IpTruncated);
        }
        Ok(Udp { bytes })
    }

    #[inline]
    pub fn src_port(&self) -> u16 {
        get16(self.bytes.as_ref(), 0)
    }

    #[inline]
    pub fn dst_port(&self) -> u16 {
        get16(self.bytes.as_ref(), 2)
    }

    /// Header and payload.
    #[inline]
    pub fn length(&self) -> usize {
        usize::from(get16(self.bytes.as_ref(), 4))
    }

    /// 0 means none was computed (IPv4 only).
    #[inline]
    pub fn checksum(&self) -> u16 {
        get16(self.bytes.as_ref(), 6)
    }

    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.bytes.as_ref()[HEADER_LEN..self.length()]
    }

    /// Whether the checksum is right, with the sum of the pseudo-header ([`checksum::pseudo_ipv4`] or
    /// [`checksum::pseudo_ipv6`]).
    pub fn is_checksum_valid(&self, pseudo_header: u64) -> bool {
        let sum = checksum::add(pseudo_header, &self.bytes.as_ref()[..self.length()]);
        checksum::is_valid_sum(sum)
    }
}

/// Fills header and checksum around the payload already at `out[8..]`; `false` when `out` is shorter
/// than a header or longer than 65,535.
#[must_use]
pub fn write(out: &mut [u8], src_port: u16, dst_port: u16, pseudo_header: u64) -> bool {
    let Ok(length) = u16::try_from(out.len()) else { return false };
    if out.len() < HEADER_LEN {
        return false;
    }
    put16(out, 0, src_port);
    put16(out, 2, dst_port);
    put16(out, 4, length);
    put16(out, 6, 0);
    let check = checksum::finish_transport(checksum::add(pseudo_header, out));
    put16(out, 6, check);
    true
}

impl<T: AsRef<[u8]>> fmt::Display for Udp<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UDP {} > {}, length {}", self.src_port(), self.dst_port(), self.payload().len())
    }
}

#[cfg(feature = "testing")]
pub fn fuzz_udp(data: &[u8]) {
    if let Ok(udp) = Udp::parse(data) {
        assert!(udp.payload().len() + HEADER_LEN <= data.len());
        let _ = udp.is_checksum_valid(0);
        let _ = udp.to_string();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATAGRAM: [u8; 11] = [0x30, 0x39, 0, 53, 0, 11, 0, 0, b'a', b'b', b'c'];

    #[test]
    fn datagram_is_read() {
        let udp = Udp::parse(&DATAGRAM).expect("valid");
        assert_eq!((udp.src_port(), udp.dst_port(), udp.payload()), (12345, 53, &b"abc"[..]));
        assert_eq!(udp.to_string(), "UDP 12345 > 53, length 3");
    }

    #[test]
    fn impossible_lengths_are_refused() {
        for len in 0..DATAGRAM.len() {
            assert_eq!(Udp::parse(&DATAGRAM[..len]).err(), Some(Reason::IpTruncated));
        }
        let mut short = DATAGRAM;
        short[5] = 7;
        assert_eq!(Udp::parse(&short).err(), Some(Reason::IpTruncated));
    }

    #[test]
    fn written_checksum_is_valid_and_never_zero() {
        let pseudo = checksum::pseudo_ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, 10);
        for value in 0..=u16::MAX {
            let mut bytes = [0; 10];
            bytes[8..].copy_from_slice(&value.to_be_bytes());
            assert!(write(&mut bytes, 1, 2, pseudo));
            let udp = Udp::parse(&bytes).expect("valid");
            assert!(udp.is_checksum_valid(pseudo) && udp.checksum() != 0);
        }
    }
}
