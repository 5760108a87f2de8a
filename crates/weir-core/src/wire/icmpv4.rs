//! ICMP for IPv4 (RFC 792; errors of a router: RFC 1812 4.3, RFC 1191 for the next-hop MTU).
//!
//! ```text
//! 0      1      2       4           8
//! | type | code | check | rest      | echo data, or the packet an error is about
//! ```
//!
//! Promises: [`write_error`] quotes as much of the packet as fits in 576 bytes (RFC 1812 4.3.2.3);
//! [`may_answer`] holds every rule of RFC 1812 4.3.2.7 that can be seen in the packet. Refuses, as
//! [`Reason::BadIcmp`]: cut messages and wrong checksums.

use std::fmt;
use std::net::Ipv4Addr;

use super::ipv4::{self, Ipv4};
use super::{checksum, get16, get32, protocol, put16, put32};
use crate::verdict::Reason;

pub const HEADER_LEN: usize = 8;
/// RFC 1812 4.3.2.3: an error message is at most this long, IP header included.
pub const MAX_ERROR_LEN: usize = 576;
/// RFC 1812 4.3.2.5: errors carry precedence 6, internetwork control.
const ERROR_TOS: u8 = 0xc0;

pub const ECHO_REPLY: u8 = 0;
pub const DESTINATION_UNREACHABLE: u8 = 3;
pub const SOURCE_QUENCH: u8 = 4;
pub const REDIRECT: u8 = 5;
pub const ECHO_REQUEST: u8 = 8;
pub const TIME_EXCEEDED: u8 = 11;
pub const PARAMETER_PROBLEM: u8 = 12;

/// An ICMP message, IP header not included.
#[derive(Clone, Copy, Debug)]
pub struct Icmpv4<T> {
    bytes: T,
}

impl<T: AsRef<[u8]>> Icmpv4<T> {
    pub fn parse(bytes: T) -> Result<Self, Reason> {
        let message = Self::parse_header(bytes)?;
        if !checksum::is_valid(message.bytes.as_ref()) {
            return Err(Reason::BadIcmp);
        }
        Ok(message)
    }

    /// Parses a message that is quoted in an error: its checksum is not looked at.
    pub fn parse_header(bytes: T) -> Result<Self, Reason> {
        if bytes.as_ref().len() < HEADER_LEN {
            return Err(Reason::BadIcmp);
        }
        Ok(Icmpv4 { bytes })
    }

    pub fn kind(&self) -> u8 {
        self.bytes.as_ref()[0]
    }

    pub fn code(&self) -> u8 {
        self.bytes.as_ref()[1]
    }

    /// The identifier of an echo message.
    pub fn ident(&self) -> u16 {
        get16(self.bytes.as_ref(), 4)
    }

    /// The sequence number of an echo message.
    pub fn sequence(&self) -> u16 {
        get16(self.bytes.as_ref(), 6)
    }

    /// The MTU that a fragmentation-needed message tells; 0 from routers before RFC 1191.
    pub fn next_hop_mtu(&self) -> u16 {
        get16(self.bytes.as_ref(), 6)
    }

    /// Echo data, or the quoted packet of an error.
    pub fn payload(&self) -> &[u8] {
        &self.bytes.as_ref()[HEADER_LEN..]
    }

    pub fn is_error(&self) -> bool {
        is_error(self.kind())
    }
}

/// Message types that report an error and are themselves never answered by one.
pub fn is_error(kind: u8) -> bool {
    matches!(kind, DESTINATION_UNREACHABLE | SOURCE_QUENCH | REDIRECT | TIME_EXCEEDED | PARAMETER_PROBLEM)
}

/// What a router says about a packet it will not forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    NetUnreachable,
    HostUnreachable,
    ProtocolUnreachable,
    PortUnreachable,
    /// Larger than this MTU and not to be fragmented.
    FragmentationNeeded {
        mtu: u16,
    },
    SourceRouteFailed,
    /// Communication administratively prohibited (RFC 1812 5.2.7.1).
    Prohibited,
    TimeExceeded,
    /// The octet of the header at fault.
    ParameterProblem {
        pointer: u8,
    },
}

impl Error {
    /// Type, code and the message's second word.
    fn words(self) -> (u8, u8, u32) {
        match self {
            Error::NetUnreachable => (DESTINATION_UNREACHABLE, 0, 0),
            Error::HostUnreachable => (DESTINATION_UNREACHABLE, 1, 0),
            Error::ProtocolUnreachable => (DESTINATION_UNREACHABLE, 2, 0),
            Error::PortUnreachable => (DESTINATION_UNREACHABLE, 3, 0),
            Error::FragmentationNeeded { mtu } => (DESTINATION_UNREACHABLE, 4, mtu.into()),
            Error::SourceRouteFailed => (DESTINATION_UNREACHABLE, 5, 0),
            Error::Prohibited => (DESTINATION_UNREACHABLE, 13, 0),
            Error::TimeExceeded => (TIME_EXCEEDED, 0, 0),
            Error::ParameterProblem { pointer } => (PARAMETER_PROBLEM, 0, u32::from(pointer) << 24),
        }
    }
}

/// Whether an error about `original` (from its IP header) may be sent at all: RFC 1812 4.3.2.7. The
/// caller adds what only the frame shows: no answer to link-layer broadcast or multicast.
pub fn may_answer(original: &[u8]) -> bool {
    let Ok(packet) = Ipv4::parse_header(original) else { return false };
    let (src, dst) = (packet.src(), packet.dst());
    let single_host = |a: Ipv4Addr| {
        // 0/8 and class E name no host, and neither does a group or the limited broadcast.
        a.octets()[0] != 0 && a.octets()[0] < 224 && !a.is_loopback()
    };
    if !single_host(src) || dst.is_multicast() || dst.is_broadcast() || packet.fragment_offset() != 0 {
        return false;
    }
    // An ICMP message cut before its type cannot be shown to be harmless.
    packet.protocol() != protocol::ICMPV4 || packet.payload().first().is_some_and(|&kind| !is_error(kind))
}

/// Writes an error about `original` (from its IP header on) at the front of `out`, IP header included,
/// for its sender; returns the length, or `None` when `original` is no IPv4 packet or `out` too short
/// for both headers and the quoted header with 8 bytes.
pub fn write_error(
    out: &mut [u8],
    error: Error,
    from: Ipv4Addr,
    original: &[u8],
    ttl: u8,
    ident: u16,
) -> Option<usize> {
    let packet = Ipv4::parse_header(original).ok()?;
    let (headers, end) =
        (ipv4::MIN_HEADER_LEN + HEADER_LEN, packet.total_len().clamp(packet.header_len(), original.len()));
    let room = out.len().min(MAX_ERROR_LEN).checked_sub(headers)?;
    let quote = end.min(room);
    if quote < end.min(packet.header_len() + 8) {
        return None;
    }
    let header = ipv4::Header {
        src: from,
        dst: packet.src(),
        protocol: protocol::ICMPV4,
        ttl,
        tos: ERROR_TOS,
        ident,
        dont_fragment: false,
    };
    ipv4::write(out, &header, HEADER_LEN + quote)?;
    let message = &mut out[ipv4::MIN_HEADER_LEN..headers + quote];
    let (kind, code, word) = error.words();
    message[..4].copy_from_slice(&[kind, code, 0, 0]);
    put32(message, 4, word);
    message[HEADER_LEN..].copy_from_slice(&original[..quote]);
    fill_checksum(message);
    Some(headers + quote)
}

/// Computes the checksum of a whole message.
pub fn fill_checksum(message: &mut [u8]) {
    put16(message, 2, 0);
    let check = checksum::checksum(message);
    put16(message, 2, check);
}

/// Turns an echo request (a whole, valid IPv4 packet) into its reply where it lies: addresses swapped,
/// TTL set, both checksums mended. `false`, and nothing changed, when it is no echo request to a single
/// host or is a fragment.
#[must_use]
pub fn reply_in_place(packet: &mut [u8], ttl: u8) -> bool {
    let Ok(ip) = Ipv4::parse(&*packet) else { return false };
    let one_host = |a: Ipv4Addr| !a.is_multicast() && !a.is_broadcast() && !a.is_unspecified();
    if ip.protocol() != protocol::ICMPV4 || ip.is_fragment() || ip.check_options().is_err() {
        return false;
    }
    if !one_host(ip.src()) || !one_host(ip.dst()) {
        return false;
    }
    match Icmpv4::parse(ip.payload()) {
        Ok(message) if message.kind() == ECHO_REQUEST && message.code() == 0 => {}
        _ => return false,
    }
    let (src, dst, at) = (ip.src(), ip.dst(), ip.header_len());
    let mut ip = Ipv4::new_unchecked(&mut *packet);
    ip.set_src(dst);
    ip.set_dst(src);
    ip.set_ttl(ttl);
    ip.set_fragment(false, false, 0);
    ip.fill_checksum();
    let check = get16(packet, at + 2);
    packet[at] = ECHO_REPLY;
    put16(
        packet,
        at + 2,
        checksum::update16(check, u16::from(ECHO_REQUEST) << 8, u16::from(ECHO_REPLY) << 8),
    );
    true
}

impl<T: AsRef<[u8]>> fmt::Display for Icmpv4<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let b = self.bytes.as_ref();
        match (self.kind(), self.code()) {
            (ECHO_REQUEST, _) => write!(f, "ICMP echo request, id {}, seq {}", self.ident(), self.sequence()),
            (ECHO_REPLY, _) => write!(f, "ICMP echo reply, id {}, seq {}", self.ident(), self.sequence()),
            (DESTINATION_UNREACHABLE, 0) => f.write_str("ICMP net unreachable"),
            (DESTINATION_UNREACHABLE, 1) => f.write_str("ICMP host unreachable"),
            (DESTINATION_UNREACHABLE, 2) => f.write_str("ICMP protocol unreachable"),
            (DESTINATION_UNREACHABLE, 3) => f.write_str("ICMP port unreachable"),
            (DESTINATION_UNREACHABLE, 4) => {
                write!(f, "ICMP fragmentation needed, mtu {}", self.next_hop_mtu())
            }
            (DESTINATION_UNREACHABLE, 13) => f.write_str("ICMP administratively prohibited"),
            (TIME_EXCEEDED, 0) => f.write_str("ICMP time exceeded in transit"),
            (PARAMETER_PROBLEM, 0) => write!(f, "ICMP parameter problem at {}", get32(b, 4) >> 24),
            (kind, code) => write!(f, "ICMP type {kind}, code {code}"),
        }?;
        match Ipv4::parse_header(self.payload()) {
            Ok(quoted) if self.is_error() => write!(f, " [{quoted}]"),
            _ => write!(f, ", length {}", b.len()),
        }
    }
}

#[cfg(feature = "testing")]
pub fn fuzz_icmpv4(data: &[u8]) {
    let mut mended = data.to_vec();
    if mended.len() >= HEADER_LEN {
        fill_checksum(&mut mended);
    }
    if let Ok(message) = Icmpv4::parse(&mended) {
        assert_eq!(message.payload().len() + HEADER_LEN, data.len());
        let _ = message.to_string();
    }
    let mut out = [0; MAX_ERROR_LEN];
    let from = Ipv4Addr::new(192, 0, 2, 1);
    if let Some(len) = write_error(&mut out, Error::TimeExceeded, from, data, 64, 0) {
        let packet = Ipv4::parse(&out[..len]).expect("an error of ours is valid");
        assert!(Icmpv4::parse(packet.payload()).is_ok());
        assert!(!may_answer(&out[..len]), "an error is never answered by an error");
    }
    let _ = may_answer(data);
    let mut packet = data.to_vec();
    if let Ok(mut ip) = Ipv4::parse_header(&mut packet[..]) {
        ip.fill_checksum();
    }
    if reply_in_place(&mut packet, 64) {
        let ip = Ipv4::parse(&packet).expect("a reply of ours is valid");
        assert!(Icmpv4::parse(ip.payload()).is_ok_and(|m| m.kind() == ECHO_REPLY));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::build::Frame;

    const REQUEST: [u8; 12] = [8, 0, 0x29, 0x9e, 0x12, 0x34, 0, 1, 0x61, 0x62, 0x5a, 0x67];

    fn ip_udp(payload: usize) -> Vec<u8> {
        Frame::ipv4([10, 0, 0, 1].into(), [10, 0, 9, 9].into()).packet().udp(1, 2, &vec![7; payload])
    }

    #[test]
    fn echo_request_is_read() {
        let mut bytes = REQUEST;
        fill_checksum(&mut bytes);
        let m = Icmpv4::parse(&bytes).expect("valid");
        assert_eq!((m.kind(), m.code(), m.ident(), m.sequence()), (8, 0, 0x1234, 1));
        assert_eq!(m.to_string(), "ICMP echo request, id 4660, seq 1, length 12");
    }

    #[test]
    fn cut_or_corrupt_messages_are_refused() {
        let mut bytes = REQUEST;
        fill_checksum(&mut bytes);
        for len in 0..HEADER_LEN {
            assert_eq!(Icmpv4::parse(&bytes[..len]).err(), Some(Reason::BadIcmp));
        }
        bytes[9] ^= 1;
        assert_eq!(Icmpv4::parse(&bytes).err(), Some(Reason::BadIcmp));
    }

    #[test]
    fn error_quotes_as_much_as_fits_in_576_bytes() {
        let mut out = [0; 2048];
        let mut quoted = |payload| {
            let original = ip_udp(payload);
            let len = write_error(&mut out, Error::TimeExceeded, [10, 0, 0, 254].into(), &original, 64, 1);
            let len = len.expect("fits");
            let ip = Ipv4::parse(&out[..len]).expect("valid");
            assert_eq!(ip.dst(), Ipv4Addr::new(10, 0, 0, 1));
            let message = Icmpv4::parse(ip.payload()).expect("valid");
            assert!(original.starts_with(message.payload()));
            (len, message.payload().len())
        };
        assert_eq!(quoted(0), (56, 28));
        assert_eq!(quoted(520), (576, 548));
        assert_eq!(quoted(521), (576, 548));
        assert_eq!(quoted(1400), (576, 548));
    }

    #[test]
    fn fragmentation_needed_carries_the_mtu() {
        let mut out = [0; 600];
        let error = Error::FragmentationNeeded { mtu: 1400 };
        let len = write_error(&mut out, error, [10, 0, 0, 254].into(), &ip_udp(1472), 64, 1).expect("fits");
        let ip = Ipv4::parse(&out[..len]).expect("valid");
        let message = Icmpv4::parse(ip.payload()).expect("valid");
        assert_eq!((message.kind(), message.code(), message.next_hop_mtu()), (3, 4, 1400));
        assert_eq!(ip.tos(), 0xc0);
    }

    #[test]
    fn error_that_does_not_fit_is_not_written() {
        let original = ip_udp(100);
        let mut out = [0; 55];
        let from = [10, 0, 0, 254].into();
        assert_eq!(write_error(&mut out, Error::HostUnreachable, from, &original, 64, 1), None);
        assert_eq!(write_error(&mut [0; 600], Error::HostUnreachable, from, &original[..19], 64, 1), None);
    }

    #[test]
    fn what_must_not_be_answered_is_not() {
        let answer = |src: [u8; 4], dst: [u8; 4]| {
            may_answer(&Frame::ipv4(src.into(), dst.into()).packet().udp(1, 2, b"x"))
        };
        assert!(answer([10, 0, 0, 1], [10, 0, 0, 2]));
        assert!(!answer([10, 0, 0, 1], [224, 0, 0, 5]));
        assert!(!answer([10, 0, 0, 1], [255, 255, 255, 255]));
        for src in [[0, 0, 0, 0], [127, 0, 0, 1], [224, 0, 0, 1], [240, 0, 0, 1], [255; 4]] {
            assert!(!answer(src, [10, 0, 0, 2]), "{src:?}");
        }
        let mut later = ip_udp(8);
        Ipv4::new_unchecked(&mut later[..]).set_fragment(false, false, 8);
        assert!(!may_answer(&later));
        let host = Frame::ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).packet();
        assert!(may_answer(&host.echo_request(1, 1, b"")));
        for kind in [3, 4, 5, 11, 12] {
            assert!(!may_answer(&host.raw(protocol::ICMPV4, &[kind, 0, 0, 0, 0, 0, 0, 0])));
        }
        assert!(!may_answer(&host.raw(protocol::ICMPV4, &[])), "a type that cannot be seen");
    }

    #[test]
    fn echo_request_becomes_its_reply() {
        let frame = Frame::ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).packet();
        let mut packet = frame.clone().ttl(3).echo_request(7, 9, b"abc");
        assert!(reply_in_place(&mut packet, 64));
        let ip = Ipv4::parse(&packet).expect("valid");
        assert_eq!((ip.src(), ip.dst(), ip.ttl()), ([10, 0, 0, 2].into(), [10, 0, 0, 1].into(), 64));
        let message = Icmpv4::parse(ip.payload()).expect("valid");
        assert_eq!((message.kind(), message.ident(), message.sequence()), (ECHO_REPLY, 7, 9));
        assert_eq!(message.payload(), b"abc");
        assert!(!reply_in_place(&mut packet, 64), "a reply is not answered");
        assert!(!reply_in_place(&mut frame.udp(1, 2, b""), 64));
    }
}
