//! ESP in UDP (RFC 3948): what a datagram is, checksums, keepalives.
//!
//! ```text
//! | UDP | SPI ≠ 0, sequence …     ESP
//! | UDP | 0 0 0 0 | IKE message   not ESP
//! | UDP | 0xff                    keepalive
//! ```
//!
//! Promises: over IPv4 a datagram has no checksum, as RFC 3948 2.1 asks; over IPv6 it has one, for most
//! receivers drop what has none (RFC 8200 8.1; RFC 6935 lets a tunnel do without, if both ends agree). What
//! is received is not judged by it: the ICV says more. Refuses nothing: what is not known is not ESP.

use std::sync::atomic::Ordering::Relaxed;

use crate::ipsec::sa::{Params, Sa};
use crate::time::{Nanos, SECOND};
use crate::wire::{Ipv6, build, checksum, get16, ipv4, ipv6, protocol, udp};

/// Without traffic for so long, a keepalive is due: NATs are known to forget a mapping after 30 s
/// (RFC 3948 4: 20 s is the default).
pub const KEEPALIVE_AFTER: Nanos = 20 * SECOND;

/// A datagram to a port ESP may come in on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datagram {
    Esp,
    Ike,
    Keepalive,
    /// Too short for any of them.
    Unknown,
}

/// What a datagram carries; `None` for what is none, or is to another port, or has IPv4 options, IPv6
/// extensions or fragments.
pub fn datagram_of(packet: &[u8], udp_ports: &[u16]) -> Option<Datagram> {
    let head = packet.first_chunk::<{ ipv4::MIN_HEADER_LEN }>()?;
    let (carried, at, end) = match head[0] {
        0x45 if get16(head, 6) & 0x3fff == 0 => (head[9], ipv4::MIN_HEADER_LEN, usize::from(get16(head, 2))),
        first if first >> 4 == 6 => {
            (head[6], ipv6::HEADER_LEN, usize::from(get16(head, 4)) + ipv6::HEADER_LEN)
        }
        _ => return None,
    };
    let header = packet.get(at..end)?;
    let datagram = udp::Udp::parse(header).ok().filter(|_| carried == protocol::UDP)?;
    if !udp_ports.contains(&datagram.dst_port()) {
        return None;
    }
    Some(match datagram.payload() {
        [0xff] => Datagram::Keepalive,
        [0, 0, 0, 0, ..] => Datagram::Ike,
        [_, _, _, _, _, _, _, _, ..] => Datagram::Esp,
        _ => Datagram::Unknown,
    })
}

/// Fills the checksum of the datagram that a sealed IPv6 packet is.
pub fn fill_checksum(packet: &mut [u8]) {
    let view = Ipv6::new_unchecked(&*packet);
    let Ok(chain) = view.chain() else { return };
    let pseudo_header =
        checksum::pseudo_ipv6(view.src(), view.dst(), protocol::UDP, (packet.len() - chain.offset) as u32);
    let datagram = &mut packet[chain.offset..];
    let (source, destination) = (get16(datagram, 0), get16(datagram, 2));
    let written = udp::write(datagram, source, destination, pseudo_header);
    debug_assert!(written, "the header was there before");
}

/// Whether an SA has sent nothing for so long that a NAT may forget it.
pub fn is_keepalive_due(sa: &Sa, now: Nanos) -> bool {
    let used = sa.state.used.load(Relaxed).max(sa.state.installed.load(Relaxed));
    sa.params.udp.is_some() && now.saturating_sub(used) >= KEEPALIVE_AFTER
}

/// The keepalive of an outbound SA, an IP packet; `None` where there is no UDP around ESP.
pub fn keepalive(params: &Params) -> Option<Vec<u8>> {
    let ports = params.udp?;
    let frame = build::Frame::ip(params.source, params.destination)?;
    Some(frame.packet().ttl(params.hop_limit).udp(ports.source, ports.destination, &[0xff]))
}
