//! TCP headers, as far as a router reads them (RFC 9293 3.1).
//!
//! ```text
//! 0          2          4     8     12       13      14       16      18       20
//! | src port | dst port | seq | ack | offset | flags | window | check | urgent | options… | payload
//! ```
//!
//! Refuses, as [`Reason::IpTruncated`]: cut headers and a data offset below 5 words or beyond the
//! segment.

use std::fmt;

use super::{checksum, get16, get32, put16, put32};
use crate::verdict::Reason;

pub const MIN_HEADER_LEN: usize = 20;

pub mod flag {
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const PSH: u8 = 0x08;
    pub const ACK: u8 = 0x10;
    pub const URG: u8 = 0x20;
    pub const ECE: u8 = 0x40;
    pub const CWR: u8 = 0x80;
}

/// A TCP segment, IP header not included.
#[derive(Clone, Copy, Debug)]
pub struct Tcp<T> {
    bytes: T,
}

impl<T: AsRef<[u8]>> Tcp<T> {
    #[inline]
    pub fn parse(bytes: T) -> Result<Self, Reason> {
        let b = bytes.as_ref();
        if b.len() < MIN_HEADER_LEN {
            return Err(Reason::IpTruncated);
        }
        let header_len = usize::from(b[12] >> 4) * 4;
        if header_len < MIN_HEADER_LEN || header_len > b.len() {
            return Err(Reason::IpTruncated);
        }
        Ok(Tcp { bytes })
    }

    #[inline]
    pub fn src_port(&self) -> u16 {
        get16(self.bytes.as_ref(), 0)
    }

    #[inline]
    pub fn dst_port(&self) -> u16 {
        get16(self.bytes.as_ref(), 2)
    }

    #[inline]
    pub fn sequence(&self) -> u32 {
        get32(self.bytes.as_ref(), 4)
    }

    #[inline]
    pub fn acknowledgment(&self) -> u32 {
        get32(self.bytes.as_ref(), 8)
    }

    /// Options included.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.bytes.as_ref()[12] >> 4) * 4
    }

    /// A set of [`flag`]s.
    #[inline]
    pub fn flags(&self) -> u8 {
        self.bytes.as_ref()[13]
    }

    #[inline]
    pub fn window(&self) -> u16 {
        get16(self.bytes.as_ref(), 14)
    }

    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.bytes.as_ref()[self.header_len()..]
    }

    /// Whether the checksum is right, with the sum of the pseudo-header.
    pub fn is_checksum_valid(&self, pseudo_header: u64) -> bool {
        checksum::is_valid_sum(checksum::add(pseudo_header, self.bytes.as_ref()))
    }
}

/// What [`write`] puts in a header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    pub src_port: u16,
    pub dst_port: u16,
    pub sequence: u32,
    pub acknowledgment: u32,
    pub flags: u8,
    pub window: u16,
}

/// Fills a header without options and the checksum around the payload already at `out[20..]`; `false`
/// when `out` is shorter than a header.
#[must_use]
pub fn write(out: &mut [u8], header: &Header, pseudo_header: u64) -> bool {
    if out.len() < MIN_HEADER_LEN {
        return false;
    }
    put16(out, 0, header.src_port);
    put16(out, 2, header.dst_port);
    put32(out, 4, header.sequence);
    put32(out, 8, header.acknowledgment);
    out[12] = (MIN_HEADER_LEN as u8 / 4) << 4;
    out[13] = header.flags;
    put16(out, 14, header.window);
    put32(out, 16, 0); // checksum and urgent pointer
    let check = checksum::finish(checksum::add(pseudo_header, out));
    put16(out, 16, check);
    true
}

impl<T: AsRef<[u8]>> fmt::Display for Tcp<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TCP {} > {}, flags [", self.src_port(), self.dst_port())?;
        // As tcpdump writes them, in its order.
        for (bit, letter) in [
            (flag::FIN, "F"),
            (flag::SYN, "S"),
            (flag::RST, "R"),
            (flag::PSH, "P"),
            (flag::ACK, "."),
            (flag::URG, "U"),
            (flag::ECE, "E"),
            (flag::CWR, "W"),
        ] {
            if self.flags() & bit != 0 {
                f.write_str(letter)?;
            }
        }
        write!(f, "], seq {}, win {}, length {}", self.sequence(), self.window(), self.payload().len())
    }
}

#[cfg(feature = "testing")]
pub fn fuzz_tcp(data: &[u8]) {
    if let Ok(tcp) = Tcp::parse(data) {
        assert_eq!(tcp.header_len() + tcp.payload().len(), data.len());
        let _ = tcp.is_checksum_valid(0);
        let _ = tcp.to_string();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_segment_reads_back() {
        let mut bytes = [0x61; 23];
        let header = Header {
            src_port: 40000,
            dst_port: 443,
            sequence: 0x01020304,
            acknowledgment: 9,
            flags: flag::PSH | flag::ACK,
            window: 512,
        };
        assert!(write(&mut bytes, &header, 77));
        let tcp = Tcp::parse(&bytes).expect("valid");
        assert!(tcp.is_checksum_valid(77));
        assert_eq!(tcp.acknowledgment(), 9);
        assert_eq!(tcp.to_string(), "TCP 40000 > 443, flags [P.], seq 16909060, win 512, length 3");
    }

    #[test]
    fn impossible_lengths_are_refused() {
        let mut bytes = [0; 24];
        bytes[12] = 0x60;
        assert_eq!(Tcp::parse(&bytes).map(|t| t.header_len()), Ok(24));
        for len in 0..24 {
            assert_eq!(Tcp::parse(&bytes[..len]).err(), Some(Reason::IpTruncated));
        }
        bytes[12] = 0x40;
        assert_eq!(Tcp::parse(&bytes).err(), Some(Reason::IpTruncated));
    }
}
