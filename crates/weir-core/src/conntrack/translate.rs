//! What becomes of one packet of a flow that is taken: its translation, packet by packet.
//!
//! ```text
//! IP: TTL − 1, addresses, header checksum │ TCP, UDP: ports, checksum │ rest as it came
//! ```
//!
//! Promises: the packet that leaves differs in addresses, ports, TTL and checksums and in nothing else (RFC 1624, RFC 768);
//! a checksum that was wrong stays wrong. Refuses, each by its name, what the kernel is to see: what begins or
//! ends a connection, fragments, options, the last hop, anything that is not whole. The XDP program does the same
//! (`bpf/include/weir/tracked.h` of `weir-xdp`), and is held against this.

use std::net::IpAddr;

use super::Direction;
use crate::wire::checksum;
use crate::wire::protocol;

/// Why a packet of a taken flow goes to the kernel all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTranslated {
    /// It is shorter than its headers say, or has none that could be right.
    Malformed,
    /// IPv4 options.
    Options,
    Fragment,
    LastHop,
    /// The IPv4 header's checksum is wrong.
    Checksum,
    /// SYN, FIN or RST, or no ACK.
    Control,
    /// It is larger than what the outgoing port takes.
    TooBig,
    /// It is of another flow.
    Other,
}

/// A direction's translation, worked out once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewrite {
    pub direction: Direction,
    /// What to add to the complement of the IPv4 header's checksum, for addresses and TTL.
    pub ip_delta: u16,
    /// The same for the transport checksum, for addresses and ports.
    pub transport_delta: u16,
}

impl Rewrite {
    pub fn new(direction: Direction) -> Rewrite {
        let Direction { arrives, leaves } = direction;
        let addresses = [(arrives.source, leaves.source), (arrives.destination, leaves.destination)]
            .into_iter()
            .fold(0, |sum, (old, new)| match (old, new) {
                (IpAddr::V4(old), IpAddr::V4(new)) => difference(sum, &old.octets(), &new.octets()),
                (IpAddr::V6(old), IpAddr::V6(new)) => difference(sum, &old.octets(), &new.octets()),
                // Entries have one family.
                _ => sum,
            });
        let ports =
            [(arrives.source_port, leaves.source_port), (arrives.destination_port, leaves.destination_port)];
        let both = ports
            .into_iter()
            .fold(addresses, |sum, (old, new)| difference(sum, &old.to_be_bytes(), &new.to_be_bytes()));
        // The TTL is the upper byte of its word.
        let ttl = difference(addresses, &[1, 0], &[0, 0]);
        Rewrite { direction, ip_delta: folded(ttl), transport_delta: folded(both) }
    }
}

/// RFC 1624, equation 3: the old words' complements and the new words.
fn difference(sum: u64, old: &[u8], new: &[u8]) -> u64 {
    let complement: Vec<u8> = old.iter().map(|byte| !byte).collect();
    checksum::add(checksum::add(sum, &complement), new)
}

/// A sum as a word in network order.
fn folded(sum: u64) -> u16 {
    !checksum::finish(sum)
}

/// A checksum that covers what was changed by `delta`.
fn adjusted(check: [u8; 2], delta: u16) -> u16 {
    let sum = u32::from(!u16::from_be_bytes(check)) + u32::from(delta);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// Translates a packet that fits a port of this MTU, or leaves it as it was. Bytes behind the packet are not touched.
pub fn translate(packet: &mut [u8], rewrite: &Rewrite, mtu: usize) -> Result<(), NotTranslated> {
    match packet.first().map(|first| first >> 4) {
        Some(4) => translate4(packet, rewrite, mtu),
        Some(6) => translate6(packet, rewrite, mtu),
        _ => Err(NotTranslated::Malformed),
    }
}

fn word(bytes: &[u8], at: usize) -> Result<u16, NotTranslated> {
    let bytes = bytes.get(at..at + 2).and_then(|b| b.first_chunk::<2>());
    bytes.map(|b| u16::from_be_bytes(*b)).ok_or(NotTranslated::Malformed)
}

const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const UDP_HEADER: usize = 8;
const TCP_HEADER: usize = 20;
/// FIN, SYN and RST; ACK.
const TCP_CONTROL: u8 = 0x07;
const TCP_ACK: u8 = 0x10;

fn translate4(packet: &mut [u8], rewrite: &Rewrite, mtu: usize) -> Result<(), NotTranslated> {
    let header: [u8; IPV4_HEADER] = *packet.first_chunk().ok_or(NotTranslated::Malformed)?;
    let length = usize::from(word(&header, 2)?);
    if header[0] != 0x45 {
        return Err(NotTranslated::Options);
    }
    if header[8] <= 1 {
        return Err(NotTranslated::LastHop);
    }
    if word(&header, 6)? & 0x3fff != 0 {
        return Err(NotTranslated::Fragment);
    }
    if !checksum::ipv4_header_20(&header) {
        return Err(NotTranslated::Checksum);
    }
    let (IpAddr::V4(source), IpAddr::V4(destination)) =
        (rewrite.direction.leaves.source, rewrite.direction.leaves.destination)
    else {
        return Err(NotTranslated::Other);
    };
    let whole = packet.get_mut(..length).ok_or(NotTranslated::Malformed)?;
    if length > mtu {
        return Err(NotTranslated::TooBig);
    }
    let (header, transport) = whole.split_at_mut_checked(IPV4_HEADER).ok_or(NotTranslated::Malformed)?;
    let [from, to] = [rewrite.direction.arrives.source, rewrite.direction.arrives.destination];
    let addresses = [IpAddr::from(at4(header, 12)), IpAddr::from(at4(header, 16))];
    if addresses != [from, to] {
        return Err(NotTranslated::Other);
    }
    ports(transport, header[9], rewrite, true)?;
    header[8] -= 1;
    header[12..16].copy_from_slice(&source.octets());
    header[16..20].copy_from_slice(&destination.octets());
    let check = adjusted([header[10], header[11]], rewrite.ip_delta);
    header[10..12].copy_from_slice(&check.to_be_bytes());
    Ok(())
}

fn at4(header: &[u8], at: usize) -> [u8; 4] {
    header.get(at..).and_then(|h| h.first_chunk().copied()).unwrap_or_default()
}

fn at16(header: &[u8], at: usize) -> [u8; 16] {
    header.get(at..).and_then(|h| h.first_chunk().copied()).unwrap_or_default()
}

fn translate6(packet: &mut [u8], rewrite: &Rewrite, mtu: usize) -> Result<(), NotTranslated> {
    let header: [u8; IPV6_HEADER] = *packet.first_chunk().ok_or(NotTranslated::Malformed)?;
    let length = IPV6_HEADER + usize::from(word(&header, 4)?);
    let next = header[6];
    if !matches!(next, protocol::TCP | protocol::UDP) {
        return Err(NotTranslated::Options);
    }
    if header[7] <= 1 {
        return Err(NotTranslated::LastHop);
    }
    let (IpAddr::V6(source), IpAddr::V6(destination)) =
        (rewrite.direction.leaves.source, rewrite.direction.leaves.destination)
    else {
        return Err(NotTranslated::Other);
    };
    let whole = packet.get_mut(..length).ok_or(NotTranslated::Malformed)?;
    if length > mtu {
        return Err(NotTranslated::TooBig);
    }
    let (header, transport) = whole.split_at_mut_checked(IPV6_HEADER).ok_or(NotTranslated::Malformed)?;
    let [from, to] = [rewrite.direction.arrives.source, rewrite.direction.arrives.destination];
    if [IpAddr::from(at16(header, 8)), IpAddr::from(at16(header, 24))] != [from, to] {
        return Err(NotTranslated::Other);
    }
    ports(transport, next, rewrite, false)?;
    header[7] -= 1;
    header[8..24].copy_from_slice(&source.octets());
    header[24..40].copy_from_slice(&destination.octets());
    Ok(())
}

/// Checks the transport header and rewrites it; nothing is written where something is refused.
fn ports(segment: &mut [u8], protocol: u8, rewrite: &Rewrite, v4: bool) -> Result<(), NotTranslated> {
    let Direction { arrives, leaves } = rewrite.direction;
    if protocol != arrives.protocol {
        return Err(NotTranslated::Other);
    }
    let at = match protocol {
        protocol::TCP => tcp(segment)?,
        protocol::UDP => udp(segment, v4)?,
        _ => return Err(NotTranslated::Other),
    };
    if (word(segment, 0)?, word(segment, 2)?) != (arrives.source_port, arrives.destination_port) {
        return Err(NotTranslated::Other);
    }
    segment[0..2].copy_from_slice(&leaves.source_port.to_be_bytes());
    segment[2..4].copy_from_slice(&leaves.destination_port.to_be_bytes());
    let check = [segment[at], segment[at + 1]];
    // RFC 768: no checksum stays none, and a sum of 0 is written as its other form.
    if protocol == protocol::UDP && check == [0, 0] {
        return Ok(());
    }
    let new = match adjusted(check, rewrite.transport_delta) {
        0 if protocol == protocol::UDP => 0xffff,
        new => new,
    };
    segment[at..at + 2].copy_from_slice(&new.to_be_bytes());
    Ok(())
}

/// Where the checksum is in a segment that neither begins nor ends a connection.
fn tcp(segment: &[u8]) -> Result<usize, NotTranslated> {
    let header: &[u8; TCP_HEADER] = segment.first_chunk().ok_or(NotTranslated::Malformed)?;
    let offset = usize::from(header[12] >> 4) * 4;
    if offset < TCP_HEADER || offset > segment.len() {
        return Err(NotTranslated::Malformed);
    }
    if header[13] & TCP_CONTROL != 0 || header[13] & TCP_ACK == 0 {
        return Err(NotTranslated::Control);
    }
    Ok(16)
}

/// Where the checksum is in a datagram. Over IPv6 it has one (RFC 8200 8.1).
fn udp(segment: &[u8], v4: bool) -> Result<usize, NotTranslated> {
    let header: &[u8; UDP_HEADER] = segment.first_chunk().ok_or(NotTranslated::Malformed)?;
    let length = usize::from(word(header, 4)?);
    if length < UDP_HEADER || length > segment.len() {
        return Err(NotTranslated::Malformed);
    }
    if !v4 && header[6..8] == [0, 0] {
        return Err(NotTranslated::Checksum);
    }
    Ok(6)
}

#[cfg(test)]
mod tests;
