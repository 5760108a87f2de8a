//! One line of text for a whole frame, for traces, tests and golden captures.
//!
//! Promises: any bytes decode; what cannot be read is named by its reason in brackets, with whatever
//! could be read before it. Refuses nothing. The text is for people: nothing parses it.

use std::fmt;

use super::ethernet::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use super::{Arp, Esp, Ethernet, Icmpv4, Icmpv6, Ipv4, Ipv6, Tcp, Udp, esp, icmpv6, ipv6, ndp, protocol};
use crate::verdict::Reason;

/// An Ethernet frame as one line.
pub fn decode(frame: &[u8]) -> Decoded<'_> {
    Decoded { bytes: frame, link: true }
}

/// An IP packet without a link-layer header as one line.
pub fn decode_packet(packet: &[u8]) -> Decoded<'_> {
    Decoded { bytes: packet, link: false }
}

/// Bytes that print as what they mean.
#[derive(Clone, Copy, Debug)]
pub struct Decoded<'a> {
    bytes: &'a [u8],
    link: bool,
}

impl fmt::Display for Decoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.link {
            return match self.bytes.first().map(|b| b >> 4) {
                Some(6) => ipv6(f, self.bytes),
                _ => ipv4(f, self.bytes),
            };
        }
        let frame = match Ethernet::parse(self.bytes) {
            Ok(frame) => frame,
            Err(reason) => return refused(f, reason),
        };
        write!(f, "{frame}")?;
        match frame.ethertype() {
            ETHERTYPE_ARP => {
                f.write_str(", ")?;
                show(f, Arp::parse(frame.payload()))
            }
            ETHERTYPE_IPV4 => {
                f.write_str(", ")?;
                ipv4(f, frame.payload())
            }
            ETHERTYPE_IPV6 => {
                f.write_str(", ")?;
                ipv6(f, frame.payload())
            }
            _ => Ok(()),
        }
    }
}

fn ipv4(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    let packet = match Ipv4::parse(bytes) {
        Ok(packet) => packet,
        Err(reason) => return refused(f, reason),
    };
    write!(f, "{packet}")?;
    if packet.fragment_offset() != 0 {
        return Ok(());
    }
    match packet.protocol() {
        protocol::ICMPV4 if packet.is_fragment() => Ok(()),
        protocol::ICMPV4 => {
            f.write_str(": ")?;
            show(f, Icmpv4::parse(packet.payload()))
        }
        protocol => transport(f, protocol, packet.payload(), packet.is_fragment()),
    }
}

fn ipv6(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    let packet = match Ipv6::parse(bytes) {
        Ok(packet) => packet,
        Err(reason) => return refused(f, reason),
    };
    write!(f, "{packet}")?;
    let Ok(chain) = packet.chain() else { return Ok(()) };
    if !chain.has_transport() {
        return Ok(());
    }
    let payload = packet.payload().get(chain.offset - ipv6::HEADER_LEN..).unwrap_or(&[]);
    match chain.protocol {
        protocol::ICMPV6 if chain.fragment.is_some() => Ok(()),
        protocol::ICMPV6 if payload.first().is_some_and(|&kind| icmpv6::is_ndp(kind)) => {
            f.write_str(": ")?;
            show(f, ndp::parse(&packet))
        }
        protocol::ICMPV6 => {
            f.write_str(": ")?;
            show(f, Icmpv6::parse(payload, packet.src(), packet.dst()))
        }
        protocol => transport(f, protocol, payload, chain.fragment.is_some()),
    }
}

/// The first fragment of a datagram is shorter than the datagram says: no length is to be believed.
fn transport(f: &mut fmt::Formatter<'_>, protocol: u8, payload: &[u8], fragment: bool) -> fmt::Result {
    match protocol {
        protocol::UDP if !fragment => {
            f.write_str(": ")?;
            show(f, Udp::parse(payload))?;
            match Udp::parse(payload) {
                Ok(udp) if [udp.src_port(), udp.dst_port()].contains(&esp::UDP_PORT) => {
                    write!(f, ": {}", esp::InUdp(udp.payload()))
                }
                _ => Ok(()),
            }
        }
        protocol::ESP => {
            f.write_str(": ")?;
            show(f, Esp::parse(payload))
        }
        protocol::TCP if !fragment => {
            f.write_str(": ")?;
            show(f, Tcp::parse(payload))
        }
        _ => Ok(()),
    }
}

fn show<T: fmt::Display>(f: &mut fmt::Formatter<'_>, parsed: Result<T, Reason>) -> fmt::Result {
    match parsed {
        Ok(view) => write!(f, "{view}"),
        Err(reason) => refused(f, reason),
    }
}

fn refused(f: &mut fmt::Formatter<'_>, reason: Reason) -> fmt::Result {
    write!(f, "[{}]", reason.name())
}

#[cfg(feature = "testing")]
pub fn fuzz_decode(data: &[u8]) {
    let _ = decode(data).to_string();
    let _ = decode_packet(data).to_string();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::build::{self, Frame};

    #[test]
    fn frames_read_from_outside_in() {
        let frame = Frame::ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).vlan(5);
        assert_eq!(
            decode(&frame.udp(1000, 2000, b"hello")).to_string(),
            "02:00:00:00:00:01 > 02:00:00:00:00:02, vlan 5, IP 10.0.0.1 > 10.0.0.2, ttl 64, proto 17, \
             length 33: UDP 1000 > 2000, length 5"
        );
        assert_eq!(
            decode(&build::arp_request(([2; 6], [10, 0, 0, 1].into()), [10, 0, 0, 2].into(), None))
                .to_string(),
            "02:02:02:02:02:02 > ff:ff:ff:ff:ff:ff, ARP who has 10.0.0.2? tell 10.0.0.1"
        );
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        assert_eq!(decode(&[0; 5]).to_string(), "[frame_too_short]");
        let mut frame = Frame::ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).packet().udp(1, 2, b"");
        frame[8] ^= 1;
        assert_eq!(decode_packet(&frame).to_string(), "[ip_bad_checksum]");
    }
}
