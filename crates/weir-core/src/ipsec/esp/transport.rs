//! Transport mode: ESP between a packet's headers and its payload (RFC 4303 3.1.1).
//!
//! ```text
//! | IP, hop-by-hop, destination options, routing | UDP? | SPI, sequence | IV | destination options, payload …
//! ```
//!
//! Promises: what is opened is the packet that was sealed. Destination options in front of a routing header
//! are for every hop it names and stay outside; others are for the end and go inside. Refuses: fragments, of
//! which transport mode carries none (RFC 4303 3.3.4).

use super::open::EspExtent;
use super::seal::{make_room, write_trailer};
use super::{HEADER_LEN, Template};
use crate::packet::{Buffer, Frame};
use crate::verdict::Reason;
use crate::wire::{Ipv4, Ipv6, checksum, get16, ipv6, protocol, put16, tcp, udp};

/// A packet's own headers, which stay in front of ESP.
struct Headers {
    len: usize,
    /// Where the field is that says what follows them.
    next_at: usize,
}

/// `data` is the packet and no more.
fn headers(data: &[u8]) -> Result<Headers, Reason> {
    if data[0] >> 4 == 4 {
        let packet = Ipv4::parse_header(data)?;
        if packet.is_fragment() {
            return Err(Reason::TransportFragment);
        }
        return Ok(Headers { len: packet.header_len(), next_at: 9 });
    }
    let packet = Ipv6::parse(data)?;
    let mut outside = Headers { len: ipv6::HEADER_LEN, next_at: 6 };
    let (mut next_at, mut at) = (6, ipv6::HEADER_LEN);
    for _ in 0..ipv6::MAX_EXTENSIONS {
        let kind = data[next_at];
        if kind == protocol::FRAGMENT {
            return Err(Reason::TransportFragment);
        }
        if ![protocol::HOP_BY_HOP, protocol::ROUTING, protocol::DESTINATION_OPTIONS].contains(&kind) {
            return Ok(outside);
        }
        let Some(&[_, words]) = packet.payload().get(at - ipv6::HEADER_LEN..).and_then(|p| p.first_chunk())
        else {
            return Err(Reason::Ip6BadExtension);
        };
        next_at = at;
        at += (usize::from(words) + 1) * 8;
        if at > data.len() {
            return Err(Reason::Ip6BadExtension);
        }
        if kind != protocol::DESTINATION_OPTIONS {
            outside = Headers { len: at, next_at };
        }
    }
    Err(Reason::Ip6BadExtension)
}

/// Makes room around a packet of `len` bytes and writes what ESP puts there, as tunnel mode does.
pub fn encapsulate<'a, B: Buffer>(
    template: &Template,
    frame: &'a mut Frame<B>,
    len: usize,
    sequence: u64,
) -> Result<&'a mut [u8], Reason> {
    let headers = headers(&frame.data()[..len])?;
    let payload = len.checked_sub(headers.len).ok_or(Reason::IpTruncated)?;
    let padded = template.padded(payload);
    let gap = template.head();
    if !make_room(frame, gap, gap + headers.len + padded + template.icv) {
        return Err(Reason::FrameTooLarge);
    }
    let data = frame.data_mut();
    data.copy_within(gap..gap + headers.len, 0);
    let next = data[headers.next_at];
    data[headers.next_at] = if template.udp_len > 0 { protocol::UDP } else { protocol::ESP };
    set_length(data);
    let (_, behind) = data.split_at_mut(headers.len);
    template.write_esp(behind, sequence);
    let esp = &mut behind[template.udp_len..];
    write_trailer(esp, HEADER_LEN + template.iv + payload, padded - payload, next);
    Ok(esp)
}

/// Puts the headers in front of the `len` bytes of payload at `at` and gives `next` back to them.
pub fn restore<B: Buffer>(
    frame: &mut Frame<B>,
    extent: &EspExtent,
    at: usize,
    len: usize,
    next: u8,
) -> Result<(), Reason> {
    let ip_len = usize::from(extent.ip_len);
    let data = frame.data_mut();
    data[usize::from(extent.next_at)] = next;
    data.copy_within(..ip_len, at - ip_len);
    if !frame.shrink_front(at - ip_len) || !frame.set_len(ip_len + len) {
        return Err(Reason::FrameTooLarge);
    }
    set_length(frame.data_mut());
    if extent.at != extent.ip_len {
        mend_checksum(frame.data_mut(), ip_len, next);
    }
    Ok(())
}

/// Makes the IP header say how long `packet` is.
fn set_length(packet: &mut [u8]) {
    let len = packet.len();
    if packet[0] >> 4 == 4 {
        put16(packet, 2, len as u16);
        Ipv4::new_unchecked(packet).fill_checksum();
    } else {
        put16(packet, 4, (len - ipv6::HEADER_LEN) as u16);
    }
}

/// What came in UDP may have passed a NAT, and then the transport checksum fits the addresses from before it:
/// it is made anew (RFC 3948 3.1.2), which the ICV allows.
#[cold]
fn mend_checksum(packet: &mut [u8], at: usize, next: u8) {
    let len = packet.len() - at;
    let field = match next {
        protocol::UDP if len >= udp::HEADER_LEN && get16(packet, at + 6) != 0 => at + 6,
        protocol::TCP if len >= tcp::MIN_HEADER_LEN => at + 16,
        _ => return,
    };
    put16(packet, field, 0);
    let pseudo_header = if packet[0] >> 4 == 4 {
        let view = Ipv4::new_unchecked(&*packet);
        checksum::pseudo_ipv4(view.src(), view.dst(), next, len as u16)
    } else {
        let view = Ipv6::new_unchecked(&*packet);
        checksum::pseudo_ipv6(view.src(), view.dst(), next, len as u32)
    };
    let check = checksum::finish(checksum::add(pseudo_header, &packet[at..]));
    // In UDP, 0 would say that there is none.
    put16(packet, field, if check == 0 && next == protocol::UDP { 0xffff } else { check });
}
