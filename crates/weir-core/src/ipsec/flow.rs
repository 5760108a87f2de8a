//! What a packet is, as selectors see it: addresses, protocol, and ports or ICMP type (RFC 4301 4.4.1.1).
//!
//! Promises: never panics, whatever the bytes; ports and types only from where the packet really has
//! them: behind IPv4 options and IPv6 extension headers, not beyond the packet's own length, never from a
//! later fragment. Refuses (`None`) what is no IP packet or whose extension headers lead nowhere: no
//! policy can be asked about it. Checksums are the router's affair.

use super::spd::{Flow, Transport};
use crate::wire::ipv6::HEADER_LEN as HEADER6_LEN;
use crate::wire::{Ipv6, get_array, get16, protocol};

/// 13 bits, in units of 8 bytes.
const OFFSET_MASK: u16 = 0x1fff;

/// Whether packets of this protocol start with a source and a destination port.
pub fn has_ports(protocol: u8) -> bool {
    matches!(protocol, protocol::TCP | protocol::UDP | protocol::SCTP)
}

/// Whether packets of this protocol start with an ICMP type and code.
pub fn has_icmp_type(protocol: u8) -> bool {
    matches!(protocol, protocol::ICMPV4 | protocol::ICMPV6)
}

impl Flow {
    /// The flow of an IP packet, from its header on; what follows its own length is ignored.
    #[inline]
    pub fn of(packet: &[u8]) -> Option<Flow> {
        Flow::of_common(packet).or_else(|| Flow::of_any(packet))
    }

    /// The flow of nearly every packet: TCP or UDP, whole, without options or extension headers. `None` says only
    /// that it is another.
    #[inline(always)]
    pub fn of_common(packet: &[u8]) -> Option<Flow> {
        match packet {
            [0x45, ..] => common4(packet.first_chunk()?),
            [version, ..] if version >> 4 == 6 => common6(packet.first_chunk()?),
            _ => None,
        }
    }

    /// The flow of any packet.
    #[inline(never)]
    pub fn of_any(packet: &[u8]) -> Option<Flow> {
        match packet.first()? >> 4 {
            4 => of_ipv4(packet),
            6 => of_ipv6(packet),
            _ => None,
        }
    }
}

#[inline(always)]
fn common4(header: &[u8; 24]) -> Option<Flow> {
    let protocol = header[9];
    let whole = get16(header, 6) & OFFSET_MASK == 0 && get16(header, 2) >= 24;
    if !whole || !matches!(protocol, protocol::TCP | protocol::UDP) {
        return None;
    }
    let (source, destination) = (get_array::<4>(header, 12).into(), get_array::<4>(header, 16).into());
    let transport = Transport::Ports { source: get16(header, 20), destination: get16(header, 22) };
    Some(Flow { source, destination, protocol, transport })
}

#[inline(always)]
fn common6(header: &[u8; HEADER6_LEN + 4]) -> Option<Flow> {
    let protocol = header[6];
    if get16(header, 4) < 4 || !matches!(protocol, protocol::TCP | protocol::UDP) {
        return None;
    }
    let (source, destination) = (get_array::<16>(header, 8).into(), get_array::<16>(header, 24).into());
    let transport = Transport::Ports { source: get16(header, 40), destination: get16(header, 42) };
    Some(Flow { source, destination, protocol, transport })
}

fn of_ipv4(packet: &[u8]) -> Option<Flow> {
    let header: &[u8; 20] = packet.first_chunk()?;
    let header_len = usize::from(header[0] & 0xf) * 4;
    let end = usize::from(get16(header, 2)).min(packet.len());
    if header_len < 20 || header_len > end {
        return None;
    }
    let protocol = header[9];
    let transport = if get16(header, 6) & OFFSET_MASK == 0 {
        transport(protocol, &packet[header_len..end])
    } else {
        Transport::Opaque
    };
    let (source, destination) = (get_array::<4>(header, 12).into(), get_array::<4>(header, 16).into());
    Some(Flow { source, destination, protocol, transport })
}

fn of_ipv6(packet: &[u8]) -> Option<Flow> {
    let header: &[u8; HEADER6_LEN] = packet.first_chunk()?;
    let (source, destination) = (get_array::<16>(header, 8).into(), get_array::<16>(header, 24).into());
    let end = (HEADER6_LEN + usize::from(get16(header, 4))).min(packet.len());
    let chain = Ipv6::new_unchecked(packet).chain().ok()?;
    let transport = if chain.has_transport() {
        transport(chain.protocol, packet.get(chain.offset..end).unwrap_or(&[]))
    } else {
        Transport::Opaque
    };
    Some(Flow { source, destination, protocol: chain.protocol, transport })
}

#[inline]
fn transport(protocol: u8, bytes: &[u8]) -> Transport {
    match *bytes {
        [a, b, c, d, ..] if has_ports(protocol) => {
            Transport::Ports { source: u16::from_be_bytes([a, b]), destination: u16::from_be_bytes([c, d]) }
        }
        [kind, code, ..] if has_icmp_type(protocol) => Transport::Icmp(u16::from_be_bytes([kind, code])),
        _ if has_ports(protocol) || has_icmp_type(protocol) => Transport::Opaque,
        _ => Transport::None,
    }
}

#[cfg(feature = "testing")]
pub fn fuzz_selectors(data: &[u8]) {
    if let Some(common) = Flow::of_common(data) {
        assert_eq!(Flow::of_any(data), Some(common));
    }
    let Some(flow) = Flow::of(data) else { return };
    assert_eq!(flow.source.is_ipv4(), flow.destination.is_ipv4());
    assert_eq!(flow.source.is_ipv4(), data[0] >> 4 == 4);
    match flow.transport {
        Transport::Ports { .. } => assert!(has_ports(flow.protocol)),
        Transport::Icmp(_) => assert!(has_icmp_type(flow.protocol)),
        Transport::None | Transport::Opaque => {}
    }
    // What lies behind the packet's own length says nothing about it.
    let mut padded = data.to_vec();
    padded.extend_from_slice(&[0xa5; 8]);
    let whole = match data[0] >> 4 {
        4 => usize::from(get16(data, 2)),
        _ => HEADER6_LEN + usize::from(get16(data, 4)),
    };
    if whole <= data.len() {
        assert_eq!(Flow::of(&padded), Some(flow));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::build::Frame;

    fn v4() -> Frame {
        Frame::ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).packet()
    }

    fn v6() -> Frame {
        Frame::ipv6("2001:db8::1".parse().expect("a"), "2001:db8::2".parse().expect("a")).packet()
    }

    fn transport_of(packet: &[u8]) -> (u8, Transport) {
        let flow = Flow::of(packet).expect("a packet");
        (flow.protocol, flow.transport)
    }

    const PORTS: Transport = Transport::Ports { source: 1000, destination: 53 };

    #[test]
    fn ports_are_found_behind_options_and_extension_headers() {
        let flow = Flow::of(&v4().udp(1000, 53, b"x")).expect("a packet");
        assert_eq!(flow.source, std::net::IpAddr::from([10, 0, 0, 1]));
        assert_eq!(flow.destination, std::net::IpAddr::from([10, 0, 0, 2]));
        assert_eq!((flow.protocol, flow.transport), (protocol::UDP, PORTS));
        assert_eq!(transport_of(&v4().options(&[7, 7, 4, 0, 0, 0, 0]).udp(1000, 53, b"")).1, PORTS);
        assert_eq!(transport_of(&v6().udp(1000, 53, b"")), (protocol::UDP, PORTS));
        let behind = v6().extension(protocol::DESTINATION_OPTIONS, &[0, 1, 4, 0, 0, 0, 0]).udp(1000, 53, b"");
        assert_eq!(transport_of(&behind), (protocol::UDP, PORTS));
    }

    #[test]
    fn later_fragments_are_opaque_and_the_first_is_not() {
        for frame in [v4(), v6()] {
            let first = frame.clone().fragment(0, true).udp(1000, 53, b"12345678");
            assert_eq!(transport_of(&first), (protocol::UDP, PORTS));
            let later = frame.fragment(16, false).raw(protocol::UDP, &[9; 20]);
            assert_eq!(transport_of(&later), (protocol::UDP, Transport::Opaque));
        }
    }

    #[test]
    fn icmp_type_and_code_are_one_number() {
        assert_eq!(transport_of(&v4().echo_request(1, 2, b"")), (1, Transport::Icmp(0x0800)));
        assert_eq!(transport_of(&v6().echo_request(1, 2, b"")), (58, Transport::Icmp(0x8000)));
        assert_eq!(transport_of(&v4().raw(47, &[0; 8])), (47, Transport::None));
    }

    #[test]
    fn ports_are_never_read_from_padding() {
        let mut short = v4().raw(protocol::UDP, &[1, 2, 3]);
        assert_eq!(transport_of(&short).1, Transport::Opaque);
        short.extend_from_slice(&[0; 23]);
        assert_eq!(transport_of(&short).1, Transport::Opaque);
    }

    #[test]
    fn what_is_no_packet_has_no_flow() {
        assert_eq!(Flow::of(&[]), None);
        assert_eq!(Flow::of(&[0x45; 19]), None);
        assert_eq!(Flow::of(&[0x60; 39]), None);
        assert_eq!(Flow::of(&[0x10; 60]), None);
        let cut = v6().raw(protocol::DESTINATION_OPTIONS, &[17, 9, 1, 4, 0, 0, 0, 0]);
        assert_eq!(Flow::of(&cut), None, "extension headers that lead nowhere");
    }
}
