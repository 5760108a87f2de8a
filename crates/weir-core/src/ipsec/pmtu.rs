//! The path MTU of outer packets, learned from ICMP errors (RFC 4301 8.2, RFC 1191, RFC 8201).
//!
//! Promises: believed is only an error that quotes a packet this SA really sent lately: its SPI, both
//! addresses and a sequence number among the last [`SENT_LATELY`]; an MTU is only lowered, never below what
//! every link carries, and forgotten after [`BELIEVED`].

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::{Ipsec, Mode, Sa};
use crate::time::{Nanos, SECOND};
use crate::wire::{Icmpv4, Icmpv6, Ipv4, Ipv6, get16, get32, icmpv6, protocol};

/// RFC 1191 6.3, RFC 8201 4: ten minutes, twice the shortest allowed.
pub const BELIEVED: Nanos = 600 * SECOND;
/// What every host takes (RFC 791), and what every IPv6 link carries (RFC 8200 5).
pub const FLOOR_IPV4: u16 = 576;
pub const FLOOR_IPV6: u16 = 1280;
/// How far back a quoted sequence number may be: at 6 Mpps, ten milliseconds, as long as an error takes to come back from
/// afar, and few enough that one
/// guess in 65,536 hits.
const SENT_LATELY: u32 = 1 << 16;

/// The largest outer packet an SA may send over a link of this MTU.
#[inline]
pub fn of(sa: &Sa, now: Nanos, link_mtu: u16) -> u16 {
    let learned = sa.state.path_mtu.load(Relaxed);
    if learned == 0 || now >= sa.state.path_mtu_until.load(Relaxed) {
        return link_mtu;
    }
    link_mtu.min(learned as u16)
}

/// What an ICMP error says about a packet of ours.
struct QuotedPacket {
    mtu: u32,
    source: IpAddr,
    destination: IpAddr,
    /// The length of the packet that was too big.
    len: usize,
    spi: u32,
    sequence: u32,
    udp: Option<(u16, u16)>,
}

impl QuotedPacket {
    /// The report before the quoted ESP header is read.
    fn blank(mtu: u32, (source, destination): (IpAddr, IpAddr), len: usize) -> QuotedPacket {
        QuotedPacket { mtu, source, destination, len, spi: 0, sequence: 0, udp: None }
    }
}

/// Learns from an ICMP error (from its IP header on); whether it changed anything.
pub fn learn(ipsec: &Ipsec, now: Nanos, packet: &[u8]) -> bool {
    let Some((sa, mtu)) = concerned(ipsec, packet) else { return false };
    let state = &sa.state;
    let current = state.path_mtu.load(Relaxed);
    let believed = current != 0 && now < state.path_mtu_until.load(Relaxed);
    if believed && current < u64::from(mtu) {
        return false;
    }
    state.path_mtu.store(mtu.into(), Relaxed);
    state.path_mtu_until.store(now + BELIEVED, Relaxed);
    true
}

/// The outbound SA an ICMP error is about, and the MTU it tells; `None` for every other packet.
pub fn concerned<'a>(ipsec: &'a Ipsec, packet: &[u8]) -> Option<(&'a Arc<Sa>, u16)> {
    let report = match packet.first()? >> 4 {
        4 => report4(packet),
        6 => report6(packet),
        _ => None,
    }?;
    let sa = ipsec.outbound.find(report.spi, report.destination).iter().find(|sa| is_sender(sa, &report))?;
    let sent = sa.state.sequence.load(Relaxed);
    let age = (sent as u32).wrapping_sub(report.sequence);
    if u64::from(age) >= sent || age >= SENT_LATELY {
        return None;
    }
    let floor = if report.destination.is_ipv4() { FLOOR_IPV4 } else { FLOOR_IPV6 };
    // A packet that was not larger than the MTU told was not too big.
    if report.mtu as usize >= report.len {
        return None;
    }
    let mtu = u16::try_from(report.mtu).unwrap_or(u16::MAX).max(floor);
    Some((sa, mtu))
}

/// Whether an SA that has the report's SPI and destination sent what it quotes.
fn is_sender(sa: &Sa, report: &QuotedPacket) -> bool {
    let p = &sa.params;
    (p.mode == Mode::Transport || p.source == report.source)
        && p.udp.map(|udp| (udp.source, udp.destination)) == report.udp
}

fn report4(packet: &[u8]) -> Option<QuotedPacket> {
    let ip = Ipv4::parse(packet).ok()?;
    if ip.protocol() != protocol::ICMPV4 || ip.is_fragment() {
        return None;
    }
    let message = Icmpv4::parse(ip.payload()).ok()?;
    // Destination unreachable, fragmentation needed.
    if (message.kind(), message.code()) != (3, 4) {
        return None;
    }
    let quote = Ipv4::parse_header(message.payload()).ok()?;
    let transport = message.payload().get(quote.header_len()..)?;
    // RFC 1191 5: a router that tells no MTU is old; what every host takes is safe.
    let mtu = match message.next_hop_mtu() {
        0 => FLOOR_IPV4,
        mtu => mtu,
    };
    let ends = (quote.src().into(), quote.dst().into());
    let blank = QuotedPacket::blank(mtu.into(), ends, quote.total_len());
    quoted(blank, quote.protocol(), transport)
}

fn report6(packet: &[u8]) -> Option<QuotedPacket> {
    let ip = Ipv6::parse(packet).ok()?;
    if ip.next_header() != protocol::ICMPV6 {
        return None;
    }
    let message = Icmpv6::parse(ip.payload(), ip.src(), ip.dst()).ok()?;
    if message.kind() != icmpv6::PACKET_TOO_BIG {
        return None;
    }
    let quote = Ipv6::parse_header(message.payload()).ok()?;
    let chain = quote.chain().ok()?;
    let transport = message.payload().get(chain.offset..)?;
    let ends = (quote.src().into(), quote.dst().into());
    let blank = QuotedPacket::blank(message.mtu(), ends, quote.total_len());
    quoted(blank, chain.protocol, transport)
}

/// SPI and sequence number of the quoted packet, which may be behind a UDP header (RFC 3948).
fn quoted(blank: QuotedPacket, proto: u8, transport: &[u8]) -> Option<QuotedPacket> {
    let (udp, esp) = match proto {
        protocol::ESP => (None, transport),
        protocol::UDP if transport.len() >= 8 => {
            (Some((get16(transport, 0), get16(transport, 2))), &transport[8..])
        }
        _ => return None,
    };
    if esp.len() < 8 {
        return None;
    }
    Some(QuotedPacket { spi: get32(esp, 0), sequence: get32(esp, 4), udp, ..blank })
}
