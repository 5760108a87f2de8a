//! IPv4 headers and options (RFC 791; what a router checks: RFC 1812 5.2.2).
//!
//! ```text
//! 0    1    2        4     6           8    9      10     12    16    20
//! | 4 ihl | tos | total len | ident | flags+offset | ttl | proto | check | src | dst | options…
//! ```
//!
//! Promises: `parse` checks version, lengths and header checksum, so every getter and the payload are
//! in bounds. Options are checked apart by [`Ipv4::check_options`], since nearly no packet has any.
//! Refuses: source route options ([`Reason::IpSourceRoute`], RFC 7126 4.3).

use std::fmt;
use std::net::Ipv4Addr;

use super::{checksum, get_array, get16, put16, put32};
use crate::verdict::Reason;

pub const MIN_HEADER_LEN: usize = 20;
/// The header length field counts 15 words of 4 bytes at most.
pub const MAX_HEADER_LEN: usize = 60;
/// RFC 791: every link carries 68 bytes, so a fragment always fits one full header and 8 bytes.
pub const MIN_MTU: u16 = 68;

const FLAG_DONT_FRAGMENT: u16 = 0x4000;
const FLAG_MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET_MASK: u16 = 0x1fff;

/// Option types (the whole octet, copied flag and class included).
pub mod option {
    pub const END: u8 = 0;
    pub const NOP: u8 = 1;
    pub const RECORD_ROUTE: u8 = 7;
    pub const TIMESTAMP: u8 = 68;
    pub const LOOSE_SOURCE_ROUTE: u8 = 131;
    pub const STRICT_SOURCE_ROUTE: u8 = 137;
    pub const ROUTER_ALERT: u8 = 148;
    /// RFC 791 3.1: copied into every fragment when the top bit is set.
    pub const COPIED: u8 = 0x80;
}

/// An IPv4 packet.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4<T> {
    bytes: T,
}

impl<T: AsRef<[u8]>> Ipv4<T> {
    /// RFC 1812 5.2.2, all five checks. Bytes behind the total length (Ethernet padding) are ignored.
    #[inline]
    pub fn parse(bytes: T) -> Result<Self, Reason> {
        let packet = Self::parse_header(bytes)?;
        let total = packet.total_len();
        if total < packet.header_len() || total > packet.bytes.as_ref().len() {
            return Err(Reason::IpTruncated);
        }
        let right = match packet.header() {
            header if header.len() > MIN_HEADER_LEN => checksum::is_valid(header),
            header => header.first_chunk().is_some_and(checksum::ipv4_header_20),
        };
        if right { Ok(packet) } else { Err(Reason::IpBadChecksum) }
    }

    /// Only what reading the header needs: for the packet quoted in an ICMP error, which is cut short
    /// and whose checksum may be from before a rewrite.
    #[inline]
    pub fn parse_header(bytes: T) -> Result<Self, Reason> {
        let b = bytes.as_ref();
        if b.len() < MIN_HEADER_LEN {
            return Err(Reason::IpTooShort);
        }
        if b[0] >> 4 != 4 {
            return Err(Reason::IpBadVersion);
        }
        let header_len = usize::from(b[0] & 0xf) * 4;
        if header_len < MIN_HEADER_LEN || header_len > b.len() {
            return Err(Reason::IpBadHeaderLength);
        }
        Ok(Ipv4 { bytes })
    }

    /// A view of bytes that hold at least the header they declare.
    #[inline]
    pub fn new_unchecked(bytes: T) -> Self {
        Ipv4 { bytes }
    }

    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.bytes.as_ref()[0] & 0xf) * 4
    }

    #[inline]
    pub fn header(&self) -> &[u8] {
        &self.bytes.as_ref()[..self.header_len()]
    }

    /// DSCP and ECN.
    #[inline]
    pub fn tos(&self) -> u8 {
        self.bytes.as_ref()[1]
    }

    #[inline]
    pub fn total_len(&self) -> usize {
        usize::from(get16(self.bytes.as_ref(), 2))
    }

    #[inline]
    pub fn ident(&self) -> u16 {
        get16(self.bytes.as_ref(), 4)
    }

    #[inline]
    pub fn dont_fragment(&self) -> bool {
        get16(self.bytes.as_ref(), 6) & FLAG_DONT_FRAGMENT != 0
    }

    #[inline]
    pub fn more_fragments(&self) -> bool {
        get16(self.bytes.as_ref(), 6) & FLAG_MORE_FRAGMENTS != 0
    }

    /// The fragment's offset in bytes.
    #[inline]
    pub fn fragment_offset(&self) -> usize {
        usize::from(get16(self.bytes.as_ref(), 6) & OFFSET_MASK) * 8
    }

    /// First, middle or last fragment of something larger.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        get16(self.bytes.as_ref(), 6) & (FLAG_MORE_FRAGMENTS | OFFSET_MASK) != 0
    }

    #[inline]
    pub fn ttl(&self) -> u8 {
        self.bytes.as_ref()[8]
    }

    #[inline]
    pub fn protocol(&self) -> u8 {
        self.bytes.as_ref()[9]
    }

    #[inline]
    pub fn header_checksum(&self) -> u16 {
        get16(self.bytes.as_ref(), 10)
    }

    #[inline]
    pub fn src(&self) -> Ipv4Addr {
        get_array::<4>(self.bytes.as_ref(), 12).into()
    }

    #[inline]
    pub fn dst(&self) -> Ipv4Addr {
        get_array::<4>(self.bytes.as_ref(), 16).into()
    }

    /// The bytes from the header to the total length, or to the end of the bytes where that is nearer.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        let b = self.bytes.as_ref();
        let end = self.total_len().min(b.len());
        b.get(self.header_len()..end).unwrap_or(&[])
    }

    #[inline]
    pub fn has_options(&self) -> bool {
        self.header_len() > MIN_HEADER_LEN
    }

    pub fn options(&self) -> Options<'_> {
        Options { rest: &self.header()[MIN_HEADER_LEN..] }
    }

    /// Walks the options: malformed ones and source routes are refused; says whether a router alert
    /// (RFC 2113) asks for a closer look.
    pub fn check_options(&self) -> Result<OptionsSeen, Reason> {
        let mut seen = OptionsSeen::default();
        for option in self.options() {
            match option?.kind {
                option::LOOSE_SOURCE_ROUTE | option::STRICT_SOURCE_ROUTE => {
                    return Err(Reason::IpSourceRoute);
                }
                option::ROUTER_ALERT => seen.router_alert = true,
                _ => {}
            }
        }
        Ok(seen)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Ipv4<T> {
    /// Lowers the TTL by one and mends the checksum. The TTL must be above zero.
    #[inline]
    pub fn decrement_ttl(&mut self) {
        let check = checksum::after_ttl_decrement(self.header_checksum());
        let b = self.bytes.as_mut();
        b[8] = b[8].wrapping_sub(1);
        put16(b, 10, check);
    }

    #[inline]
    pub fn set_tos(&mut self, tos: u8) {
        self.bytes.as_mut()[1] = tos;
    }

    #[inline]
    pub fn set_total_len(&mut self, len: u16) {
        put16(self.bytes.as_mut(), 2, len);
    }

    #[inline]
    pub fn set_ident(&mut self, ident: u16) {
        put16(self.bytes.as_mut(), 4, ident);
    }

    /// `offset` in bytes, a multiple of 8.
    #[inline]
    pub fn set_fragment(&mut self, dont: bool, more: bool, offset: usize) {
        let flags = if dont { FLAG_DONT_FRAGMENT } else { 0 } | if more { FLAG_MORE_FRAGMENTS } else { 0 };
        put16(self.bytes.as_mut(), 6, flags | ((offset / 8) as u16 & OFFSET_MASK));
    }

    #[inline]
    pub fn set_ttl(&mut self, ttl: u8) {
        self.bytes.as_mut()[8] = ttl;
    }

    #[inline]
    pub fn set_src(&mut self, addr: Ipv4Addr) {
        put32(self.bytes.as_mut(), 12, addr.to_bits());
    }

    #[inline]
    pub fn set_dst(&mut self, addr: Ipv4Addr) {
        put32(self.bytes.as_mut(), 16, addr.to_bits());
    }

    #[inline]
    pub fn set_header_checksum(&mut self, check: u16) {
        put16(self.bytes.as_mut(), 10, check);
    }

    /// Computes the header checksum anew.
    #[inline]
    pub fn fill_checksum(&mut self) {
        let len = self.header_len();
        let b = self.bytes.as_mut();
        put16(b, 10, 0);
        let check = checksum::checksum(&b[..len]);
        put16(b, 10, check);
    }

    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let (at, total) = (self.header_len(), self.total_len());
        let b = self.bytes.as_mut();
        let end = total.min(b.len());
        b.get_mut(at..end).unwrap_or(&mut [])
    }
}

/// What [`write`] puts in a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub src: Ipv4Addr,
    pub dst: Ipv4Addr,
    pub protocol: u8,
    pub ttl: u8,
    pub tos: u8,
    pub ident: u16,
    pub dont_fragment: bool,
}

/// Writes a header without options and its checksum at the front of `out`, for `payload_len` bytes to
/// follow; `None` when `out` is shorter than the header or the packet longer than 65,535.
pub fn write(out: &mut [u8], header: &Header, payload_len: usize) -> Option<usize> {
    let total = u16::try_from(MIN_HEADER_LEN + payload_len).ok()?;
    let out = out.get_mut(..MIN_HEADER_LEN)?;
    out[0] = 0x45;
    out[1] = header.tos;
    put16(out, 2, total);
    put16(out, 4, header.ident);
    put16(out, 6, if header.dont_fragment { FLAG_DONT_FRAGMENT } else { 0 });
    out[8] = header.ttl;
    out[9] = header.protocol;
    out[12..16].copy_from_slice(&header.src.octets());
    out[16..20].copy_from_slice(&header.dst.octets());
    Ipv4::new_unchecked(out).fill_checksum();
    Some(MIN_HEADER_LEN)
}

/// One option with the bytes behind its length octet (none for a NOP).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opt<'a> {
    pub kind: u8,
    pub data: &'a [u8],
}

/// What [`Ipv4::check_options`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OptionsSeen {
    pub router_alert: bool,
}

/// Options in order, up to the end marker; an error ends the walk.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Options<'a> {
    type Item = Result<Opt<'a>, Reason>;

    fn next(&mut self) -> Option<Self::Item> {
        let (&kind, rest) = self.rest.split_first()?;
        match kind {
            option::END => {
                self.rest = &[];
                None
            }
            option::NOP => {
                self.rest = rest;
                Some(Ok(Opt { kind, data: &[] }))
            }
            _ => {
                // The length octet counts itself and the type.
                let len = rest.first().map_or(0, |&len| usize::from(len));
                if len < 2 || len > self.rest.len() {
                    self.rest = &[];
                    return Some(Err(Reason::IpBadOption));
                }
                let (this, rest) = self.rest.split_at(len);
                self.rest = rest;
                Some(Ok(Opt { kind, data: &this[2..] }))
            }
        }
    }
}

impl<T: AsRef<[u8]>> fmt::Display for Ipv4<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IP {} > {}", self.src(), self.dst())?;
        write!(f, ", ttl {}, proto {}, length {}", self.ttl(), self.protocol(), self.total_len())?;
        if self.tos() != 0 {
            write!(f, ", tos 0x{:02x}", self.tos())?;
        }
        if self.dont_fragment() {
            f.write_str(", DF")?;
        }
        if self.is_fragment() {
            let more = if self.more_fragments() { "+" } else { "" };
            write!(f, ", frag {}:{}{more}", self.ident(), self.fragment_offset())?;
        }
        for option in self.options() {
            match option {
                Ok(Opt { kind: option::NOP, .. }) => f.write_str(", option nop")?,
                Ok(Opt { kind: option::ROUTER_ALERT, .. }) => f.write_str(", option router-alert")?,
                Ok(Opt { kind: option::RECORD_ROUTE, .. }) => f.write_str(", option record-route")?,
                Ok(Opt { kind: option::LOOSE_SOURCE_ROUTE, .. }) => f.write_str(", option lsrr")?,
                Ok(Opt { kind: option::STRICT_SOURCE_ROUTE, .. }) => f.write_str(", option ssrr")?,
                Ok(Opt { kind, .. }) => write!(f, ", option {kind}")?,
                Err(reason) => write!(f, ", {}", reason.name())?,
            }
        }
        Ok(())
    }
}

#[cfg(feature = "testing")]
pub fn fuzz_ipv4(data: &[u8]) {
    if let Ok(packet) = Ipv4::parse_header(data) {
        let _ = packet.check_options();
        assert!(packet.options().count() <= MAX_HEADER_LEN - MIN_HEADER_LEN);
        assert!(packet.payload().len() <= data.len());
        let _ = packet.to_string();
    }
    // With a checksum mended, so that mutations are not all refused by it.
    let mut mended = data.to_vec();
    if let Ok(mut packet) = Ipv4::parse_header(&mut mended[..]) {
        packet.fill_checksum();
        if let Ok(mut packet) = Ipv4::parse(&mut mended[..]) {
            assert_eq!(packet.header_len() + packet.payload().len(), packet.total_len());
            if packet.ttl() > 0 {
                packet.decrement_ttl();
                assert!(Ipv4::parse(&mended[..]).is_ok());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A DNS query as a resolver sends it: 20 bytes of header, 8 of UDP.
    const PACKET: [u8; 28] = [
        0x45, 0x00, 0x00, 0x1c, 0x12, 0x34, 0x40, 0x00, 0x40, 0x11, 0x14, 0x9b, 10, 0, 0, 1, 10, 0, 0, 2,
        0x30, 0x39, 0x00, 0x35, 0x00, 0x08, 0x00, 0x00,
    ];

    fn with_options(options: &[u8]) -> Vec<u8> {
        let mut bytes = PACKET[..20].to_vec();
        bytes.extend_from_slice(options);
        bytes.extend_from_slice(&PACKET[20..]);
        bytes[0] = 0x45 + (options.len() / 4) as u8;
        bytes[3] += options.len() as u8;
        Ipv4::new_unchecked(&mut bytes[..]).fill_checksum();
        bytes
    }

    #[test]
    fn header_is_read() {
        let p = Ipv4::parse(&PACKET).expect("valid");
        assert_eq!((p.src(), p.dst()), ([10, 0, 0, 1].into(), [10, 0, 0, 2].into()));
        assert_eq!((p.ttl(), p.protocol(), p.total_len(), p.header_len()), (64, 17, 28, 20));
        assert!(p.dont_fragment() && !p.is_fragment() && !p.has_options());
        assert_eq!(p.payload().len(), 8);
        assert_eq!(p.to_string(), "IP 10.0.0.1 > 10.0.0.2, ttl 64, proto 17, length 28, DF");
    }

    #[test]
    fn each_broken_length_has_its_reason() {
        for len in 0..20 {
            assert_eq!(Ipv4::parse(&PACKET[..len]).err(), Some(Reason::IpTooShort));
        }
        assert_eq!(Ipv4::parse(&PACKET[..27]).err(), Some(Reason::IpTruncated));
        let broken = |at: usize, value: u8| {
            let mut bytes = PACKET;
            bytes[at] = value;
            Ipv4::parse(bytes).err()
        };
        assert_eq!(broken(0, 0x65), Some(Reason::IpBadVersion));
        assert_eq!(broken(0, 0x44), Some(Reason::IpBadHeaderLength));
        assert_eq!(broken(0, 0x48), Some(Reason::IpBadHeaderLength));
        assert_eq!(broken(3, 19), Some(Reason::IpTruncated));
        assert_eq!(broken(3, 29), Some(Reason::IpTruncated));
        assert_eq!(broken(11, 0), Some(Reason::IpBadChecksum));
    }

    #[test]
    fn options_are_walked_to_the_end_marker() {
        let bytes = with_options(&[1, 148, 4, 0, 0, 0, 7, 99]);
        let p = Ipv4::parse(&bytes).expect("valid");
        let seen: Vec<_> = p.options().map(|o| o.expect("well formed").kind).collect();
        assert_eq!(seen, [option::NOP, option::ROUTER_ALERT]);
        assert_eq!(p.check_options(), Ok(OptionsSeen { router_alert: true }));
    }

    #[test]
    fn malformed_options_are_refused() {
        for options in [[7, 0, 0, 0], [7, 1, 0, 0], [7, 5, 4, 0], [1, 1, 1, 7]] {
            let bytes = with_options(&options);
            let p = Ipv4::parse(&bytes).expect("the header is valid");
            assert_eq!(p.check_options(), Err(Reason::IpBadOption), "{options:?}");
        }
    }

    #[test]
    fn source_routes_are_refused() {
        for kind in [option::LOOSE_SOURCE_ROUTE, option::STRICT_SOURCE_ROUTE] {
            let bytes = with_options(&[kind, 7, 4, 10, 0, 0, 9, 0]);
            let p = Ipv4::parse(&bytes).expect("the header is valid");
            assert_eq!(p.check_options(), Err(Reason::IpSourceRoute));
        }
    }

    #[test]
    fn ttl_decrement_keeps_the_checksum_right() {
        let mut bytes = PACKET;
        for ttl in (0..64).rev() {
            Ipv4::new_unchecked(&mut bytes).decrement_ttl();
            assert_eq!(Ipv4::parse(&bytes).map(|p| p.ttl()), Ok(ttl));
        }
    }

    #[test]
    fn fragment_fields_read_back() {
        let mut bytes = PACKET;
        let mut p = Ipv4::new_unchecked(&mut bytes);
        p.set_fragment(false, true, 1480);
        assert!(p.is_fragment() && p.more_fragments() && !p.dont_fragment());
        assert_eq!(p.fragment_offset(), 1480);
    }
}
