//! IPv6 headers and extension header chains (RFC 8200).
//!
//! ```text
//! 0              4         6      7     8     24    40
//! | 6 class flow | pay len | next | hop | src | dst | extension headers… | payload
//! ```
//!
//! Promises: `parse` makes every getter and the payload in bounds; [`Ipv6::chain`] reads at most
//! [`MAX_EXTENSIONS`] headers. Refuses: jumbograms (RFC 2675), type 0 routing headers (RFC 5095), a
//! hop-by-hop header anywhere but first.

use std::fmt;
use std::net::Ipv6Addr;

use super::{get_array, get16, get32, protocol, put16, put32};
use crate::verdict::Reason;

pub const HEADER_LEN: usize = 40;
pub const FRAGMENT_HEADER_LEN: usize = 8;
/// RFC 8200 5: every link carries this much.
pub const MIN_MTU: u16 = 1280;
/// RFC 8200 4.1 names six kinds, destination options twice: seven in one packet, and one spare.
pub const MAX_EXTENSIONS: usize = 8;

/// An IPv6 packet.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6<T> {
    bytes: T,
}

impl<T: AsRef<[u8]>> Ipv6<T> {
    /// Bytes behind the payload length (Ethernet padding) are ignored.
    #[inline]
    pub fn parse(bytes: T) -> Result<Self, Reason> {
        let packet = Self::parse_header(bytes)?;
        if packet.total_len() > packet.bytes.as_ref().len() {
            return Err(Reason::IpTruncated);
        }
        Ok(packet)
    }

    /// Only what reading the header needs: for the packet quoted in an ICMPv6 error.
    #[inline]
    pub fn parse_header(bytes: T) -> Result<Self, Reason> {
        let b = bytes.as_ref();
        if b.len() < HEADER_LEN {
            return Err(Reason::IpTooShort);
        }
        if b[0] >> 4 != 6 {
            return Err(Reason::IpBadVersion);
        }
        Ok(Ipv6 { bytes })
    }

    /// A view of bytes that hold at least the 40-byte header.
    #[inline]
    pub fn new_unchecked(bytes: T) -> Self {
        Ipv6 { bytes }
    }

    #[inline]
    pub fn traffic_class(&self) -> u8 {
        (get16(self.bytes.as_ref(), 0) >> 4) as u8
    }

    /// 20 bits.
    #[inline]
    pub fn flow_label(&self) -> u32 {
        get32(self.bytes.as_ref(), 0) & 0x000f_ffff
    }

    #[inline]
    pub fn payload_len(&self) -> usize {
        usize::from(get16(self.bytes.as_ref(), 4))
    }

    /// Header and payload.
    #[inline]
    pub fn total_len(&self) -> usize {
        HEADER_LEN + self.payload_len()
    }

    #[inline]
    pub fn next_header(&self) -> u8 {
        self.bytes.as_ref()[6]
    }

    #[inline]
    pub fn hop_limit(&self) -> u8 {
        self.bytes.as_ref()[7]
    }

    #[inline]
    pub fn src(&self) -> Ipv6Addr {
        get_array::<16>(self.bytes.as_ref(), 8).into()
    }

    #[inline]
    pub fn dst(&self) -> Ipv6Addr {
        get_array::<16>(self.bytes.as_ref(), 24).into()
    }

    /// Everything behind the fixed header, extension headers included.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        let b = self.bytes.as_ref();
        &b[HEADER_LEN..self.total_len().clamp(HEADER_LEN, b.len())]
    }

    /// Walks the extension headers to the upper-layer protocol. Behind a fragment header that is not
    /// the first there is nothing to walk: the walk ends there.
    #[inline]
    pub fn chain(&self) -> Result<Chain, Reason> {
        let chain = Chain { protocol: self.next_header(), offset: HEADER_LEN, ..Chain::default() };
        match chain.protocol {
            protocol::TCP | protocol::UDP | protocol::ICMPV6 | protocol::ESP => Ok(chain),
            _ => self.walk(chain),
        }
    }

    fn walk(&self, mut chain: Chain) -> Result<Chain, Reason> {
        let b = self.bytes.as_ref();
        let end = self.total_len().min(b.len());
        for count in 0..=MAX_EXTENSIONS {
            // An extension header is at least 8 bytes and counts its length in units of 8 or 4.
            let unit = match chain.protocol {
                protocol::HOP_BY_HOP if count > 0 => return Err(Reason::Ip6BadExtension),
                protocol::HOP_BY_HOP
                | protocol::ROUTING
                | protocol::DESTINATION_OPTIONS
                | protocol::MOBILITY
                | protocol::HIP
                | protocol::SHIM6 => 8,
                protocol::AH => 4,
                protocol::FRAGMENT => 0,
                _ => return Ok(chain),
            };
            let at = chain.offset;
            if count == MAX_EXTENSIONS || at + 8 > end {
                return Err(Reason::Ip6BadExtension);
            }
            let len = match unit {
                8 => (usize::from(b[at + 1]) + 1) * 8,
                4 => (usize::from(b[at + 1]) + 2) * 4, // RFC 4302 2.2: in words, minus two
                _ => FRAGMENT_HEADER_LEN,
            };
            if at + len > end {
                return Err(Reason::Ip6BadExtension);
            }
            match chain.protocol {
                protocol::ROUTING if b[at + 2] == 0 => return Err(Reason::Ip6RoutingHeader),
                protocol::FRAGMENT if chain.fragment.is_some() => return Err(Reason::Ip6BadExtension),
                protocol::FRAGMENT => chain.fragment = Some(Fragment::read(b, at)),
                protocol::HOP_BY_HOP => chain.hop_by_hop = true,
                _ => {}
            }
            chain.next_header_at = at;
            chain.protocol = b[at];
            chain.offset = at + len;
            if chain.fragment.is_some_and(|f| f.offset != 0) {
                return Ok(chain);
            }
        }
        Err(Reason::Ip6BadExtension)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Ipv6<T> {
    /// Lowers the hop limit, which must be above zero, by one.
    #[inline]
    pub fn decrement_hop_limit(&mut self) {
        let b = self.bytes.as_mut();
        b[7] = b[7].wrapping_sub(1);
    }

    #[inline]
    pub fn set_hop_limit(&mut self, hop_limit: u8) {
        self.bytes.as_mut()[7] = hop_limit;
    }

    #[inline]
    pub fn set_payload_len(&mut self, len: u16) {
        put16(self.bytes.as_mut(), 4, len);
    }

    #[inline]
    pub fn set_src(&mut self, addr: Ipv6Addr) {
        self.bytes.as_mut()[8..24].copy_from_slice(&addr.octets());
    }

    #[inline]
    pub fn set_dst(&mut self, addr: Ipv6Addr) {
        self.bytes.as_mut()[24..40].copy_from_slice(&addr.octets());
    }

    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let total = self.total_len();
        let b = self.bytes.as_mut();
        let end = total.clamp(HEADER_LEN, b.len());
        &mut b[HEADER_LEN..end]
    }
}

/// What an extension header chain leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// The upper-layer protocol, or what a later fragment says it is.
    pub protocol: u8,
    /// Where it starts, from the front of the IPv6 header; at most the packet's length.
    pub offset: usize,
    /// Where the last extension header starts; 0 without any.
    pub next_header_at: usize,
    pub hop_by_hop: bool,
    pub fragment: Option<Fragment>,
}

impl Chain {
    /// The transport header is there to be read: no fragment, or the first.
    pub fn has_transport(&self) -> bool {
        self.fragment.is_none_or(|f| f.offset == 0)
    }
}

/// A fragment header (RFC 8200 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The fragment's offset in bytes.
    pub offset: usize,
    pub more: bool,
    pub ident: u32,
}

impl Fragment {
    fn read(b: &[u8], at: usize) -> Self {
        let field = get16(b, at + 2);
        // The upper 13 bits count units of 8 bytes: masking leaves bytes.
        Fragment { offset: usize::from(field & !7), more: field & 1 != 0, ident: get32(b, at + 4) }
    }
}

/// What [`write`] puts in a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub src: Ipv6Addr,
    pub dst: Ipv6Addr,
    pub next_header: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub flow_label: u32,
}

/// Writes a header at the front of `out` for `payload_len` bytes to follow; `None` when `out` is shorter
/// or the payload longer than 65,535.
pub fn write(out: &mut [u8], header: &Header, payload_len: usize) -> Option<usize> {
    let payload_len = u16::try_from(payload_len).ok()?;
    let out = out.get_mut(..HEADER_LEN)?;
    put32(out, 0, 6 << 28 | u32::from(header.traffic_class) << 20 | (header.flow_label & 0x000f_ffff));
    put16(out, 4, payload_len);
    out[6] = header.next_header;
    out[7] = header.hop_limit;
    out[8..24].copy_from_slice(&header.src.octets());
    out[24..40].copy_from_slice(&header.dst.octets());
    Some(HEADER_LEN)
}

/// RFC 4291 2.7.1: where neighbour solicitations for `target` are sent.
pub fn solicited_node(target: Ipv6Addr) -> Ipv6Addr {
    let o = target.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, o[13], o[14], o[15]])
}

impl<T: AsRef<[u8]>> fmt::Display for Ipv6<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IP6 {} > {}, hlim {}", self.src(), self.dst(), self.hop_limit())?;
        match self.chain() {
            Ok(chain) => {
                write!(f, ", proto {}, length {}", chain.protocol, self.total_len())?;
                if let Some(frag) = chain.fragment {
                    let more = if frag.more { "+" } else { "" };
                    write!(f, ", frag {}:{}{more}", frag.ident, frag.offset)?;
                }
            }
            Err(reason) => write!(f, ", length {}, {}", self.total_len(), reason.name())?,
        }
        if self.traffic_class() != 0 {
            write!(f, ", class 0x{:02x}", self.traffic_class())?;
        }
        if self.flow_label() != 0 {
            write!(f, ", flow 0x{:05x}", self.flow_label())?;
        }
        Ok(())
    }
}

#[cfg(feature = "testing")]
pub fn fuzz_ipv6(data: &[u8]) {
    if let Ok(packet) = Ipv6::parse_header(data) {
        if let Ok(chain) = packet.chain() {
            assert!(chain.offset >= HEADER_LEN && chain.offset <= data.len());
            assert!(chain.next_header_at < chain.offset);
        }
        assert!(packet.payload().len() <= data.len());
        let _ = packet.to_string();
    }
    if let Ok(packet) = Ipv6::parse(data) {
        assert_eq!(packet.payload().len() + HEADER_LEN, packet.total_len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet whose payload is `extensions`, the first of which is of type `next`.
    fn packet(next: u8, extensions: &[u8]) -> Vec<u8> {
        let header = Header {
            src: "2001:db8::1".parse().expect("address"),
            dst: "2001:db8::2".parse().expect("address"),
            next_header: next,
            hop_limit: 64,
            traffic_class: 0xb8,
            flow_label: 0x12345,
        };
        let mut bytes = vec![0; HEADER_LEN];
        assert_eq!(write(&mut bytes, &header, extensions.len()), Some(HEADER_LEN));
        bytes.extend_from_slice(extensions);
        bytes
    }

    fn chain_of(next: u8, extensions: &[u8]) -> Result<Chain, Reason> {
        Ipv6::parse(packet(next, extensions)).expect("the header is valid").chain()
    }

    #[test]
    fn header_is_read() {
        let bytes = packet(protocol::UDP, &[0; 8]);
        let p = Ipv6::parse(&bytes).expect("valid");
        assert_eq!((p.hop_limit(), p.next_header(), p.payload_len()), (64, protocol::UDP, 8));
        assert_eq!((p.traffic_class(), p.flow_label()), (0xb8, 0x12345));
        assert_eq!(
            p.to_string(),
            "IP6 2001:db8::1 > 2001:db8::2, hlim 64, proto 17, length 48, class 0xb8, flow 0x12345"
        );
    }

    #[test]
    fn each_broken_length_has_its_reason() {
        let bytes = packet(protocol::UDP, &[0; 8]);
        for len in 0..HEADER_LEN {
            assert_eq!(Ipv6::parse(&bytes[..len]).err(), Some(Reason::IpTooShort));
        }
        assert_eq!(Ipv6::parse(&bytes[..47]).err(), Some(Reason::IpTruncated));
        let mut wrong = bytes.clone();
        wrong[0] = 0x45;
        assert_eq!(Ipv6::parse(&wrong).err(), Some(Reason::IpBadVersion));
    }

    #[test]
    fn chain_is_walked_to_the_transport() {
        // hop-by-hop (16 bytes), destination options (8), AH (12), UDP
        let mut ext = vec![60, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        ext.extend_from_slice(&[51, 0, 1, 4, 0, 0, 0, 0]);
        ext.extend_from_slice(&[17, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1]);
        ext.extend_from_slice(&[0; 8]);
        let chain = chain_of(protocol::HOP_BY_HOP, &ext).expect("valid");
        assert_eq!((chain.protocol, chain.offset, chain.hop_by_hop), (protocol::UDP, 76, true));
        assert!(chain.has_transport());
    }

    #[test]
    fn later_fragment_ends_the_walk() {
        // Its payload would read as a broken header if walked.
        let ext = [60, 0, 0x05, 0xc9, 0, 0, 0, 7, 0xff, 0xff];
        let chain = chain_of(protocol::FRAGMENT, &ext).expect("valid");
        assert_eq!(chain.fragment, Some(Fragment { offset: 1480, more: true, ident: 7 }));
        assert!(!chain.has_transport());
    }

    #[test]
    fn type_0_routing_header_is_refused_and_type_4_passes() {
        let routing = |kind| [17, 0, kind, 1, 0, 0, 0, 0];
        assert_eq!(chain_of(protocol::ROUTING, &routing(0)), Err(Reason::Ip6RoutingHeader));
        assert_eq!(chain_of(protocol::ROUTING, &routing(4)).map(|c| c.protocol), Ok(17));
    }

    #[test]
    fn hop_by_hop_is_refused_after_the_first_place() {
        let ext = [0, 0, 1, 4, 0, 0, 0, 0, 17, 0, 1, 4, 0, 0, 0, 0];
        assert_eq!(chain_of(protocol::DESTINATION_OPTIONS, &ext), Err(Reason::Ip6BadExtension));
    }

    #[test]
    fn chain_longer_than_the_limit_is_refused() {
        let link = [60, 0, 1, 4, 0, 0, 0, 0];
        let mut ext = link.repeat(MAX_EXTENSIONS);
        let last = ext.len() - 8;
        ext[last] = 17;
        assert_eq!(chain_of(60, &ext).map(|c| c.protocol), Ok(17));
        ext[last] = 60;
        ext.extend_from_slice(&[17, 0, 1, 4, 0, 0, 0, 0]);
        assert_eq!(chain_of(60, &ext), Err(Reason::Ip6BadExtension));
    }

    #[test]
    fn cut_chains_are_refused() {
        assert_eq!(chain_of(60, &[17, 0, 1, 4, 0, 0, 0]), Err(Reason::Ip6BadExtension));
        assert_eq!(chain_of(60, &[17, 1, 1, 4, 0, 0, 0, 0]), Err(Reason::Ip6BadExtension));
        assert_eq!(chain_of(44, &[17, 0, 0, 0]), Err(Reason::Ip6BadExtension));
    }

    #[test]
    fn solicited_node_group_ends_in_the_last_three_bytes() {
        let group = solicited_node("2001:db8::aa:bbcc".parse().expect("address"));
        assert_eq!(group, "ff02::1:ffaa:bbcc".parse::<Ipv6Addr>().expect("address"));
    }
}
