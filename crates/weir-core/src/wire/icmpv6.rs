//! ICMP for IPv6 (RFC 4443). Neighbour discovery is in [`super::ndp`].
//!
//! ```text
//! 0      1      2       4           8
//! | type | code | check | rest      | echo data, or the packet an error is about
//! ```
//!
//! Promises: [`write_error`] quotes as much of the packet as fits in 1,280 bytes (RFC 4443 2.4 c);
//! [`may_answer`] holds every rule of RFC 4443 2.4 e that can be seen in the packet. Refuses, as
//! [`Reason::BadIcmp`]: cut messages and wrong checksums (which cover the addresses).

use std::fmt;
use std::net::Ipv6Addr;

use super::ipv6::{self, Ipv6};
use super::{checksum, get16, get32, protocol, put16, put32};
use crate::verdict::Reason;

pub const HEADER_LEN: usize = 8;
/// RFC 4443 2.4 c: an error message is at most the minimum MTU, IP header included.
pub const MAX_ERROR_LEN: usize = ipv6::MIN_MTU as usize;

pub const DESTINATION_UNREACHABLE: u8 = 1;
pub const PACKET_TOO_BIG: u8 = 2;
pub const TIME_EXCEEDED: u8 = 3;
pub const PARAMETER_PROBLEM: u8 = 4;
pub const ECHO_REQUEST: u8 = 128;
pub const ECHO_REPLY: u8 = 129;
pub const ROUTER_SOLICITATION: u8 = 133;
pub const ROUTER_ADVERTISEMENT: u8 = 134;
pub const NEIGHBOR_SOLICITATION: u8 = 135;
pub const NEIGHBOR_ADVERTISEMENT: u8 = 136;
pub const REDIRECT: u8 = 137;

/// An ICMPv6 message, IP header not included.
#[derive(Clone, Copy, Debug)]
pub struct Icmpv6<T> {
    bytes: T,
}

impl<T: AsRef<[u8]>> Icmpv6<T> {
    pub fn parse(bytes: T, src: Ipv6Addr, dst: Ipv6Addr) -> Result<Self, Reason> {
        let message = Self::parse_header(bytes)?;
        let b = message.bytes.as_ref();
        let sum = checksum::pseudo_ipv6(src, dst, protocol::ICMPV6, b.len() as u32);
        if !checksum::is_valid_sum(checksum::add(sum, b)) {
            return Err(Reason::BadIcmp);
        }
        Ok(message)
    }

    /// Parses a message that is quoted in an error: its checksum is not looked at.
    pub fn parse_header(bytes: T) -> Result<Self, Reason> {
        if bytes.as_ref().len() < HEADER_LEN {
            return Err(Reason::BadIcmp);
        }
        Ok(Icmpv6 { bytes })
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

    /// The MTU that a packet-too-big message tells.
    pub fn mtu(&self) -> u32 {
        get32(self.bytes.as_ref(), 4)
    }

    /// Echo data, or the quoted packet of an error.
    pub fn payload(&self) -> &[u8] {
        &self.bytes.as_ref()[HEADER_LEN..]
    }

    /// RFC 4443 2.1: the high bit of the type is clear.
    pub fn is_error(&self) -> bool {
        self.kind() < 128
    }

    /// Router and neighbour discovery, redirects included (RFC 4861).
    pub fn is_ndp(&self) -> bool {
        is_ndp(self.kind())
    }
}

/// Router and neighbour discovery, redirects included (RFC 4861).
pub fn is_ndp(kind: u8) -> bool {
    (ROUTER_SOLICITATION..=REDIRECT).contains(&kind)
}

/// What a router says about a packet it will not forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    NoRoute,
    Prohibited,
    BeyondScope,
    AddressUnreachable,
    PortUnreachable,
    RejectRoute,
    PacketTooBig {
        mtu: u32,
    },
    HopLimitExceeded,
    /// Code (0 erroneous field, 1 unknown next header, 2 unknown option) and the octet at fault.
    ParameterProblem {
        code: u8,
        pointer: u32,
    },
}

impl Error {
    /// Type, code and the message's second word.
    fn words(self) -> (u8, u8, u32) {
        match self {
            Error::NoRoute => (DESTINATION_UNREACHABLE, 0, 0),
            Error::Prohibited => (DESTINATION_UNREACHABLE, 1, 0),
            Error::BeyondScope => (DESTINATION_UNREACHABLE, 2, 0),
            Error::AddressUnreachable => (DESTINATION_UNREACHABLE, 3, 0),
            Error::PortUnreachable => (DESTINATION_UNREACHABLE, 4, 0),
            Error::RejectRoute => (DESTINATION_UNREACHABLE, 6, 0),
            Error::PacketTooBig { mtu } => (PACKET_TOO_BIG, 0, mtu),
            Error::HopLimitExceeded => (TIME_EXCEEDED, 0, 0),
            Error::ParameterProblem { code, pointer } => (PARAMETER_PROBLEM, code, pointer),
        }
    }

    /// RFC 4443 2.4 e.3: these two may answer a packet to a group.
    fn may_answer_multicast(self) -> bool {
        matches!(self, Error::PacketTooBig { .. } | Error::ParameterProblem { code: 2, .. })
    }
}

/// Whether `error` about `original` (from its IP header) may be sent at all: RFC 4443 2.4 e. The caller
/// adds what only the frame shows: no answer to link-layer multicast, save for packet too big.
pub fn may_answer(error: Error, original: &[u8]) -> bool {
    let Ok(packet) = Ipv6::parse_header(original) else { return false };
    let src = packet.src();
    if src.is_unspecified() || src.is_multicast() || src.is_loopback() {
        return false;
    }
    if packet.dst().is_multicast() && !error.may_answer_multicast() {
        return false;
    }
    match packet.chain() {
        // Behind a later fragment the type cannot be seen: whoever sent it got its error for the first.
        Ok(chain) if !chain.has_transport() => chain.protocol != protocol::ICMPV6,
        Ok(chain) if chain.protocol == protocol::ICMPV6 => {
            original.get(chain.offset).is_some_and(|&kind| kind >= 128 && kind != REDIRECT)
        }
        Ok(_) => true,
        // A chain that cannot be walked may hide an error; a parameter problem is still owed.
        Err(_) => matches!(error, Error::ParameterProblem { .. }),
    }
}

/// Writes an error about `original` (from its IP header on) at the front of `out`, IP header included,
/// for its sender; returns the length, or `None` when `original` is no IPv6 packet or `out` too short
/// for both headers and the quoted header with 8 bytes.
pub fn write_error(
    out: &mut [u8],
    error: Error,
    from: Ipv6Addr,
    original: &[u8],
    hop_limit: u8,
) -> Option<usize> {
    let packet = Ipv6::parse_header(original).ok()?;
    let headers = ipv6::HEADER_LEN + HEADER_LEN;
    let end = packet.total_len().min(original.len());
    let room = out.len().min(MAX_ERROR_LEN).checked_sub(headers)?;
    let quote = end.min(room);
    if quote < end.min(ipv6::HEADER_LEN + 8) {
        return None;
    }
    let header = ipv6::Header {
        src: from,
        dst: packet.src(),
        next_header: protocol::ICMPV6,
        hop_limit,
        traffic_class: 0,
        flow_label: 0,
    };
    ipv6::write(out, &header, HEADER_LEN + quote)?;
    let message = &mut out[ipv6::HEADER_LEN..headers + quote];
    let (kind, code, word) = error.words();
    message[..4].copy_from_slice(&[kind, code, 0, 0]);
    put32(message, 4, word);
    message[HEADER_LEN..].copy_from_slice(&original[..quote]);
    fill_checksum(message, header.src, header.dst);
    Some(headers + quote)
}

/// Computes the checksum of a whole message between these addresses.
pub fn fill_checksum(message: &mut [u8], src: Ipv6Addr, dst: Ipv6Addr) {
    put16(message, 2, 0);
    let sum = checksum::pseudo_ipv6(src, dst, protocol::ICMPV6, message.len() as u32);
    let check = checksum::finish(checksum::add(sum, message));
    put16(message, 2, check);
}

/// Turns an echo request (a whole, valid IPv6 packet without extension headers) into its reply where it
/// lies: addresses swapped, hop limit set, checksum mended. `false`, and nothing changed, for anything
/// else.
#[must_use]
pub fn reply_in_place(packet: &mut [u8], hop_limit: u8) -> bool {
    let Ok(ip) = Ipv6::parse(&*packet) else { return false };
    let (src, dst) = (ip.src(), ip.dst());
    if ip.next_header() != protocol::ICMPV6
        || src.is_unspecified()
        || src.is_multicast()
        || dst.is_multicast()
    {
        return false;
    }
    match Icmpv6::parse(ip.payload(), src, dst) {
        Ok(message) if message.kind() == ECHO_REQUEST && message.code() == 0 => {}
        _ => return false,
    }
    let mut ip = Ipv6::new_unchecked(&mut *packet);
    ip.set_src(dst);
    ip.set_dst(src);
    ip.set_hop_limit(hop_limit);
    // Swapped addresses sum to the same; only the type changed.
    let (at, old, new) = (ipv6::HEADER_LEN, u16::from(ECHO_REQUEST) << 8, u16::from(ECHO_REPLY) << 8);
    let check = get16(packet, at + 2);
    packet[at] = ECHO_REPLY;
    put16(packet, at + 2, checksum::update16(check, old, new));
    true
}

impl<T: AsRef<[u8]>> fmt::Display for Icmpv6<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let b = self.bytes.as_ref();
        match (self.kind(), self.code()) {
            (ECHO_REQUEST, _) => {
                write!(f, "ICMP6 echo request, id {}, seq {}", self.ident(), self.sequence())
            }
            (ECHO_REPLY, _) => write!(f, "ICMP6 echo reply, id {}, seq {}", self.ident(), self.sequence()),
            (DESTINATION_UNREACHABLE, 0) => f.write_str("ICMP6 no route"),
            (DESTINATION_UNREACHABLE, 1) => f.write_str("ICMP6 administratively prohibited"),
            (DESTINATION_UNREACHABLE, 2) => f.write_str("ICMP6 beyond scope"),
            (DESTINATION_UNREACHABLE, 3) => f.write_str("ICMP6 address unreachable"),
            (DESTINATION_UNREACHABLE, 4) => f.write_str("ICMP6 port unreachable"),
            (PACKET_TOO_BIG, _) => write!(f, "ICMP6 packet too big, mtu {}", self.mtu()),
            (TIME_EXCEEDED, 0) => f.write_str("ICMP6 time exceeded in transit"),
            (PARAMETER_PROBLEM, code) => {
                write!(f, "ICMP6 parameter problem, code {code} at {}", get32(b, 4))
            }
            (kind, code) => write!(f, "ICMP6 type {kind}, code {code}"),
        }?;
        match Ipv6::parse_header(self.payload()) {
            Ok(quoted) if self.is_error() => write!(f, " [{quoted}]"),
            _ => write!(f, ", length {}", b.len()),
        }
    }
}

#[cfg(feature = "testing")]
pub fn fuzz_icmpv6(data: &[u8]) {
    let (a, b) = (Ipv6Addr::LOCALHOST, Ipv6Addr::from([7; 16]));
    let mut mended = data.to_vec();
    if mended.len() >= HEADER_LEN {
        fill_checksum(&mut mended, a, b);
    }
    if let Ok(message) = Icmpv6::parse(&mended, a, b) {
        assert_eq!(message.payload().len() + HEADER_LEN, data.len());
        let _ = message.to_string();
    }
    let mut out = [0; MAX_ERROR_LEN];
    if let Some(len) = write_error(&mut out, Error::HopLimitExceeded, b, data, 64) {
        let packet = Ipv6::parse(&out[..len]).expect("an error of ours is valid");
        assert!(Icmpv6::parse(packet.payload(), packet.src(), packet.dst()).is_ok());
        assert!(!may_answer(Error::NoRoute, &out[..len]), "an error is never answered by an error");
    }
    let _ = may_answer(Error::PacketTooBig { mtu: 1280 }, data);
    let mut packet = data.to_vec();
    if reply_in_place(&mut packet, 64) {
        let ip = Ipv6::parse(&packet).expect("a reply of ours is valid");
        let message = Icmpv6::parse(ip.payload(), ip.src(), ip.dst());
        assert!(message.is_ok_and(|m| m.kind() == ECHO_REPLY));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::build::Frame;

    fn addr(text: &str) -> Ipv6Addr {
        text.parse().expect("address")
    }

    fn packet() -> Frame {
        Frame::ipv6(addr("2001:db8::1"), addr("2001:db8::2")).packet()
    }

    #[test]
    fn error_quotes_as_much_as_fits_in_1280_bytes() {
        let mut out = [0; 2048];
        let mut quoted = |payload| {
            let original = packet().udp(1, 2, &vec![7; payload]);
            let error = Error::PacketTooBig { mtu: 1400 };
            let len = write_error(&mut out, error, addr("fe80::1"), &original, 64).expect("fits");
            let ip = Ipv6::parse(&out[..len]).expect("valid");
            assert_eq!(ip.dst(), addr("2001:db8::1"));
            let message = Icmpv6::parse(ip.payload(), ip.src(), ip.dst()).expect("valid");
            assert_eq!((message.kind(), message.mtu()), (PACKET_TOO_BIG, 1400));
            assert!(original.starts_with(message.payload()));
            (len, message.payload().len())
        };
        assert_eq!(quoted(0), (96, 48));
        assert_eq!(quoted(1184), (1280, 1232));
        assert_eq!(quoted(1185), (1280, 1232));
        assert_eq!(quoted(1452), (1280, 1232));
    }

    #[test]
    fn cut_or_corrupt_messages_are_refused() {
        let bytes = packet().echo_request(1, 2, b"abc");
        let ip = Ipv6::parse(&bytes).expect("valid");
        let (src, dst, message) = (ip.src(), ip.dst(), ip.payload());
        assert!(Icmpv6::parse(message, src, dst).is_ok());
        for len in 0..message.len() {
            assert_eq!(Icmpv6::parse(&message[..len], src, dst).err(), Some(Reason::BadIcmp));
        }
        assert_eq!(Icmpv6::parse(message, src, addr("::5")).err(), Some(Reason::BadIcmp));
    }

    #[test]
    fn what_must_not_be_answered_is_not() {
        let udp = |src: &str, dst: &str| Frame::ipv6(addr(src), addr(dst)).packet().udp(1, 2, b"x");
        let too_big = Error::PacketTooBig { mtu: 1280 };
        assert!(may_answer(Error::NoRoute, &udp("2001:db8::1", "2001:db8::2")));
        assert!(!may_answer(Error::NoRoute, &udp("::", "2001:db8::2")));
        assert!(!may_answer(Error::NoRoute, &udp("ff02::1", "2001:db8::2")));
        assert!(!may_answer(Error::NoRoute, &udp("2001:db8::1", "ff0e::1")));
        assert!(may_answer(too_big, &udp("2001:db8::1", "ff0e::1")));
        assert!(may_answer(Error::NoRoute, &packet().echo_request(1, 1, b"")));
        for kind in [1, 2, 3, 4, 100, 127, REDIRECT] {
            let original = packet().raw(protocol::ICMPV6, &[kind, 0, 0, 0, 0, 0, 0, 0]);
            assert!(!may_answer(too_big, &original), "type {kind}");
        }
    }

    #[test]
    fn error_behind_extension_headers_is_not_answered() {
        let ext = [58, 0, 1, 4, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
        assert!(!may_answer(Error::NoRoute, &packet().raw(protocol::DESTINATION_OPTIONS, &ext)));
    }

    #[test]
    fn echo_request_becomes_its_reply() {
        let mut bytes = packet().ttl(3).echo_request(7, 9, b"abc");
        assert!(reply_in_place(&mut bytes, 64));
        let ip = Ipv6::parse(&bytes).expect("valid");
        assert_eq!((ip.src(), ip.hop_limit()), (addr("2001:db8::2"), 64));
        let message = Icmpv6::parse(ip.payload(), ip.src(), ip.dst()).expect("valid");
        assert_eq!(message.to_string(), "ICMP6 echo reply, id 7, seq 9, length 11");
        assert!(!reply_in_place(&mut bytes, 64), "a reply is not answered");
    }
}
