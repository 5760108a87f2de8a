//! Whole frames with every checksum right: for tests, the lab's generator and the control side's own
//! packets. They allocate; the data path writes into buffers it has.
//!
//! ```
//! use weir_core::wire::build::Frame;
//! let frame = Frame::ipv4([10, 0, 0, 1].into(), [10, 0, 1, 1].into()).vlan(5).ttl(3).udp(1000, 2000, b"hello");
//! assert_eq!(frame.len(), 14 + 4 + 20 + 8 + 5);
//! ```
//!
//! Promises: what is built parses. Refuses, by panicking, a packet beyond 65,535 bytes or options beyond
//! 40: a frame of our own making that cannot exist is a defect.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::ipv4::{self, Ipv4};
use super::ipv6::{self, FRAGMENT_HEADER_LEN};
use super::{arp, checksum, ethernet, icmpv4, icmpv6, ndp, protocol, put16, put32, tcp, udp};
use crate::id::Mac;

/// Locally administered, as are all MACs made here.
pub const DEFAULT_SRC_MAC: Mac = [2, 0, 0, 0, 0, 1];
pub const DEFAULT_DST_MAC: Mac = [2, 0, 0, 0, 0, 2];

/// Everything of a frame but its upper-layer protocol.
#[derive(Clone, Debug)]
pub struct Frame {
    macs: Option<(Mac, Mac)>,
    vlan: Option<u16>,
    addresses: Addresses,
    ttl: u8,
    tos: u8,
    ident: u32,
    dont_fragment: bool,
    fragment: Option<(usize, bool)>,
    flow_label: u32,
    options: Vec<u8>,
    extensions: Vec<(u8, Vec<u8>)>,
}

#[derive(Clone, Copy, Debug)]
enum Addresses {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

impl Frame {
    pub fn ipv4(src: Ipv4Addr, dst: Ipv4Addr) -> Self {
        Self::new(Addresses::V4(src, dst))
    }

    pub fn ipv6(src: Ipv6Addr, dst: Ipv6Addr) -> Self {
        Self::new(Addresses::V6(src, dst))
    }

    /// Either family; `None` when the two are of different ones.
    pub fn ip(src: IpAddr, dst: IpAddr) -> Option<Self> {
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Self::ipv4(src, dst)),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Self::ipv6(src, dst)),
            _ => None,
        }
    }

    fn new(addresses: Addresses) -> Self {
        Frame {
            macs: Some((DEFAULT_DST_MAC, DEFAULT_SRC_MAC)),
            vlan: None,
            addresses,
            ttl: 64,
            tos: 0,
            ident: 0,
            dont_fragment: false,
            fragment: None,
            flow_label: 0,
            options: Vec::new(),
            extensions: Vec::new(),
        }
    }

    /// No Ethernet header: the IP packet alone.
    #[must_use]
    pub fn packet(self) -> Self {
        Frame { macs: None, ..self }
    }

    #[must_use]
    pub fn macs(self, dst: Mac, src: Mac) -> Self {
        Frame { macs: Some((dst, src)), ..self }
    }

    #[must_use]
    pub fn vlan(self, id: u16) -> Self {
        Frame { vlan: Some(id), ..self }
    }

    /// TTL or hop limit.
    #[must_use]
    pub fn ttl(self, ttl: u8) -> Self {
        Frame { ttl, ..self }
    }

    /// Type of service or traffic class.
    #[must_use]
    pub fn tos(self, tos: u8) -> Self {
        Frame { tos, ..self }
    }

    /// Identification, of which IPv4 has 16 bits.
    #[must_use]
    pub fn ident(self, ident: u32) -> Self {
        Frame { ident, ..self }
    }

    /// IPv4 only.
    #[must_use]
    pub fn dont_fragment(self) -> Self {
        Frame { dont_fragment: true, ..self }
    }

    /// A fragment at `offset` bytes (a multiple of 8); IPv6 gets a fragment header.
    #[must_use]
    pub fn fragment(self, offset: usize, more: bool) -> Self {
        Frame { fragment: Some((offset, more)), ..self }
    }

    /// IPv6 only.
    #[must_use]
    pub fn flow_label(self, flow_label: u32) -> Self {
        Frame { flow_label, ..self }
    }

    /// IPv4 only: padded to a multiple of 4 with end markers.
    #[must_use]
    pub fn options(self, options: &[u8]) -> Self {
        let mut options = options.to_vec();
        options.resize(options.len().next_multiple_of(4), ipv4::option::END);
        Frame { options, ..self }
    }

    /// IPv6 only: an extension header of type `kind` whose bytes behind the next-header octet are `body`.
    #[must_use]
    pub fn extension(mut self, kind: u8, body: &[u8]) -> Self {
        self.extensions.push((kind, body.to_vec()));
        self
    }

    pub fn udp(&self, src_port: u16, dst_port: u16, payload: &[u8]) -> Vec<u8> {
        let mut datagram = vec![0; udp::HEADER_LEN + payload.len()];
        datagram[udp::HEADER_LEN..].copy_from_slice(payload);
        let pseudo_header = self.pseudo(protocol::UDP, datagram.len());
        let written = udp::write(&mut datagram, src_port, dst_port, pseudo_header);
        assert!(written, "udp: payload is {} bytes, a datagram takes 65527", payload.len());
        self.raw(protocol::UDP, &datagram)
    }

    pub fn tcp(&self, header: &tcp::Header, payload: &[u8]) -> Vec<u8> {
        let mut segment = vec![0; tcp::MIN_HEADER_LEN + payload.len()];
        segment[tcp::MIN_HEADER_LEN..].copy_from_slice(payload);
        let pseudo_header = self.pseudo(protocol::TCP, segment.len());
        let written = tcp::write(&mut segment, header, pseudo_header);
        assert!(written, "the segment has a header's length");
        self.raw(protocol::TCP, &segment)
    }

    pub fn echo_request(&self, ident: u16, sequence: u16, payload: &[u8]) -> Vec<u8> {
        self.echo(true, ident, sequence, payload)
    }

    pub fn echo_reply(&self, ident: u16, sequence: u16, payload: &[u8]) -> Vec<u8> {
        self.echo(false, ident, sequence, payload)
    }

    fn echo(&self, request: bool, ident: u16, sequence: u16, payload: &[u8]) -> Vec<u8> {
        let mut message = vec![0; icmpv4::HEADER_LEN];
        put16(&mut message, 4, ident);
        put16(&mut message, 6, sequence);
        message.extend_from_slice(payload);
        match self.addresses {
            Addresses::V4(..) => {
                message[0] = if request { icmpv4::ECHO_REQUEST } else { icmpv4::ECHO_REPLY };
                icmpv4::fill_checksum(&mut message);
                self.raw(protocol::ICMPV4, &message)
            }
            Addresses::V6(src, dst) => {
                message[0] = if request { icmpv6::ECHO_REQUEST } else { icmpv6::ECHO_REPLY };
                icmpv6::fill_checksum(&mut message, src, dst);
                self.raw(protocol::ICMPV6, &message)
            }
        }
    }

    /// Any upper-layer protocol, its bytes given whole.
    pub fn raw(&self, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        if let Some((dst, src)) = self.macs {
            let ethertype = match self.addresses {
                Addresses::V4(..) => ethernet::ETHERTYPE_IPV4,
                Addresses::V6(..) => ethernet::ETHERTYPE_IPV6,
            };
            frame = link_header(dst, src, self.vlan, ethertype);
        }
        match self.addresses {
            Addresses::V4(src, dst) => self.push_ipv4(&mut frame, src, dst, protocol, payload),
            Addresses::V6(src, dst) => self.push_ipv6(&mut frame, src, dst, protocol, payload),
        }
        frame
    }

    fn push_ipv4(&self, frame: &mut Vec<u8>, src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, payload: &[u8]) {
        assert!(self.options.len() <= 40, "ipv4: options are {} bytes, at most 40 fit", self.options.len());
        let at = frame.len();
        let header = ipv4::Header {
            src,
            dst,
            protocol,
            ttl: self.ttl,
            tos: self.tos,
            ident: self.ident as u16,
            dont_fragment: self.dont_fragment,
        };
        frame.resize(at + ipv4::MIN_HEADER_LEN, 0);
        let len = self.options.len() + payload.len();
        ipv4::write(&mut frame[at..], &header, len).expect("a packet of at most 65535 bytes");
        frame.extend_from_slice(&self.options);
        frame[at] += (self.options.len() / 4) as u8;
        let mut packet = Ipv4::new_unchecked(&mut frame[at..]);
        if let Some((offset, more)) = self.fragment {
            packet.set_fragment(self.dont_fragment, more, offset);
        }
        packet.fill_checksum();
        frame.extend_from_slice(payload);
    }

    fn push_ipv6(&self, frame: &mut Vec<u8>, src: Ipv6Addr, dst: Ipv6Addr, protocol: u8, payload: &[u8]) {
        let mut extensions = self.extensions.clone();
        if let Some((offset, more)) = self.fragment {
            let mut body = vec![0; FRAGMENT_HEADER_LEN];
            put16(&mut body, 2, offset as u16 & !7 | u16::from(more));
            put32(&mut body, 4, self.ident);
            extensions.push((protocol::FRAGMENT, body[1..].to_vec()));
        }
        let at = frame.len();
        let header = ipv6::Header {
            src,
            dst,
            next_header: extensions.first().map_or(protocol, |(kind, _)| *kind),
            hop_limit: self.ttl,
            traffic_class: self.tos,
            flow_label: self.flow_label,
        };
        let len = extensions.iter().map(|(_, body)| 1 + body.len()).sum::<usize>() + payload.len();
        frame.resize(at + ipv6::HEADER_LEN, 0);
        ipv6::write(&mut frame[at..], &header, len).expect("a packet of at most 65535 bytes");
        for (i, (_, body)) in extensions.iter().enumerate() {
            frame.push(extensions.get(i + 1).map_or(protocol, |(kind, _)| *kind));
            frame.extend_from_slice(body);
        }
        frame.extend_from_slice(payload);
    }

    fn pseudo(&self, protocol: u8, len: usize) -> u64 {
        match self.addresses {
            Addresses::V4(src, dst) => checksum::pseudo_ipv4(src, dst, protocol, len as u16),
            Addresses::V6(src, dst) => checksum::pseudo_ipv6(src, dst, protocol, len as u32),
        }
    }
}

/// Asks for `target`. With the sender's own address as target it is an announcement, with an unspecified
/// sender address a probe.
pub fn arp_request(sender: (Mac, Ipv4Addr), target: Ipv4Addr, vlan: Option<u16>) -> Vec<u8> {
    arp_frame(ethernet::BROADCAST, vlan, arp::Operation::Request, sender, ([0; 6], target))
}

/// Builds an [`arp_request`] to a neighbour known already (a probe of its reachability).
pub fn arp_request_unicast(sender: (Mac, Ipv4Addr), target: (Mac, Ipv4Addr), vlan: Option<u16>) -> Vec<u8> {
    arp_frame(target.0, vlan, arp::Operation::Request, sender, ([0; 6], target.1))
}

pub fn arp_reply(sender: (Mac, Ipv4Addr), target: (Mac, Ipv4Addr), vlan: Option<u16>) -> Vec<u8> {
    arp_frame(target.0, vlan, arp::Operation::Reply, sender, target)
}

fn arp_frame(
    dst: Mac,
    vlan: Option<u16>,
    operation: arp::Operation,
    sender: (Mac, Ipv4Addr),
    target: (Mac, Ipv4Addr),
) -> Vec<u8> {
    let mut frame = link_header(dst, sender.0, vlan, ethernet::ETHERTYPE_ARP);
    let at = frame.len();
    frame.resize(at + arp::LEN, 0);
    arp::write(&mut frame[at..], operation, sender, target).expect("room was made");
    frame
}

/// Asks the group of `target`; with an unspecified sender address it is duplicate address detection.
pub fn neighbor_solicitation(sender: (Mac, Ipv6Addr), target: Ipv6Addr, vlan: Option<u16>) -> Vec<u8> {
    let group = ipv6::solicited_node(target);
    solicitation_to((ethernet::multicast_mac6(group), group), sender, target, vlan)
}

/// Builds a [`neighbor_solicitation`] to a neighbour known already (a probe of its reachability).
pub fn neighbor_solicitation_unicast(
    sender: (Mac, Ipv6Addr),
    target: (Mac, Ipv6Addr),
    vlan: Option<u16>,
) -> Vec<u8> {
    solicitation_to(target, sender, target.1, vlan)
}

fn solicitation_to(
    to: (Mac, Ipv6Addr),
    sender: (Mac, Ipv6Addr),
    target: Ipv6Addr,
    vlan: Option<u16>,
) -> Vec<u8> {
    let mut frame = link_header(to.0, sender.0, vlan, ethernet::ETHERTYPE_IPV6);
    let mut packet = [0; 128];
    let len = ndp::write_solicitation(&mut packet, sender, to.1, target).expect("at most 72 bytes");
    frame.extend_from_slice(&packet[..len]);
    frame
}

/// Says that `sender`'s address is at its MAC: solicited when `to` is one host, unsolicited when it is a
/// group (all nodes, `ff02::1`).
pub fn neighbor_advertisement(
    sender: (Mac, Ipv6Addr),
    to: (Mac, Ipv6Addr),
    router: bool,
    vlan: Option<u16>,
) -> Vec<u8> {
    let mut frame = link_header(to.0, sender.0, vlan, ethernet::ETHERTYPE_IPV6);
    let advertisement = ndp::NeighborAdvertisement {
        target: sender.1,
        router,
        solicited: !to.1.is_multicast(),
        overrides: true,
        target_mac: Some(sender.0),
    };
    let mut packet = [0; 128];
    let len = ndp::write_advertisement(&mut packet, sender.1, to.1, &advertisement).expect("72 bytes");
    frame.extend_from_slice(&packet[..len]);
    frame
}

fn link_header(dst: Mac, src: Mac, vlan: Option<u16>, ethertype: u16) -> Vec<u8> {
    let mut header = vec![0; ethernet::HEADER_LEN + ethernet::TAG_LEN];
    let len = ethernet::write(&mut header, dst, src, vlan, ethertype).expect("room for a tag");
    header.truncate(len);
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Ethernet, Ipv6, Udp, decode};

    fn addr6(text: &str) -> Ipv6Addr {
        text.parse().expect("address")
    }

    #[test]
    fn built_udp_has_valid_checksums_in_both_families() {
        let frame = Frame::ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).vlan(9).options(&[1, 1, 1]);
        let bytes = frame.udp(7, 8, b"odd");
        let eth = Ethernet::parse(&bytes[..]).expect("valid");
        let ip = Ipv4::parse(eth.payload()).expect("valid");
        assert_eq!((eth.vlan(), ip.header_len()), (Some(9), 24));
        let pseudo = checksum::pseudo_ipv4(ip.src(), ip.dst(), 17, ip.payload().len() as u16);
        assert!(Udp::parse(ip.payload()).expect("valid").is_checksum_valid(pseudo));

        let bytes = Frame::ipv6(addr6("fd00::1"), addr6("fd00::2")).packet().udp(7, 8, b"odd");
        let ip = Ipv6::parse(&bytes[..]).expect("valid");
        let pseudo = checksum::pseudo_ipv6(ip.src(), ip.dst(), 17, ip.payload().len() as u32);
        assert!(Udp::parse(ip.payload()).expect("valid").is_checksum_valid(pseudo));
    }

    #[test]
    fn addresses_of_two_families_build_nothing() {
        assert!(Frame::ip(IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)).is_none());
    }

    #[test]
    fn built_neighbour_messages_decode() {
        let (a, b) = (([2, 0, 0, 0, 0, 1], addr6("fe80::1")), ([2, 0, 0, 0, 0, 2], addr6("fe80::2")));
        assert_eq!(
            decode(&neighbor_solicitation(a, b.1, None)).to_string(),
            "02:00:00:00:00:01 > 33:33:ff:00:00:02, IP6 fe80::1 > ff02::1:ff00:2, hlim 255, proto 58, \
             length 72: NDP who has fe80::2?, mac 02:00:00:00:00:01"
        );
        assert_eq!(
            decode(&neighbor_advertisement(b, a, true, Some(3))).to_string(),
            "02:00:00:00:00:02 > 02:00:00:00:00:01, vlan 3, IP6 fe80::2 > fe80::1, hlim 255, proto 58, \
             length 72: NDP advertisement of fe80::2, flags [RSO], mac 02:00:00:00:00:02"
        );
    }
}
