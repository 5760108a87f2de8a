//! What a fragment says of itself.

use std::net::IpAddr;

use crate::verdict::Reason;
use crate::wire::{Ipv4, Ipv6, get16, get32, ipv6, protocol};

/// Fragments with the same are of one packet (RFC 791 2.3, RFC 8200 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    source: IpAddr,
    destination: IpAddr,
    ident: u32,
    /// IPv4's protocol; 0 with IPv6, where it does not count.
    protocol: u8,
}

/// One fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Bytes in front of its part of the payload.
    pub head: usize,
    /// Where that part belongs, and its length.
    pub offset: usize,
    pub len: usize,
    pub more: bool,
    pub tos: u8,
    /// IPv6: where the fragment header is, and the field that says so.
    pub header_at: Option<usize>,
    pub next_at: usize,
}

impl Fragment {
    /// The byte behind it, in its frame.
    pub fn end(&self) -> usize {
        self.head + self.len
    }

    /// The byte behind it, in the packet's payload.
    pub fn until(&self) -> usize {
        self.offset + self.len
    }

    /// Whether it has no payload, is not the last and no multiple of 8, or lies beyond the longest packet.
    pub fn is_odd(&self) -> bool {
        self.len == 0
            || self.more && !self.len.is_multiple_of(8)
            || self.head + self.until() > usize::from(u16::MAX)
    }
}

/// Reads the headers; `None` for what is no fragment.
pub fn read(data: &[u8]) -> Result<Option<(Key, Fragment)>, Reason> {
    match data.first().map(|first| first >> 4) {
        Some(4) => read4(data),
        _ => read6(data),
    }
}

fn read4(data: &[u8]) -> Result<Option<(Key, Fragment)>, Reason> {
    let packet = Ipv4::parse(data)?;
    if !packet.is_fragment() {
        return Ok(None);
    }
    let key = Key {
        source: packet.src().into(),
        destination: packet.dst().into(),
        ident: packet.ident().into(),
        protocol: packet.protocol(),
    };
    let fragment = Fragment {
        head: packet.header_len(),
        offset: packet.fragment_offset(),
        len: packet.payload().len(),
        more: packet.more_fragments(),
        tos: packet.tos(),
        header_at: None,
        next_at: 0,
    };
    Ok(Some((key, fragment)))
}

fn read6(data: &[u8]) -> Result<Option<(Key, Fragment)>, Reason> {
    let packet = Ipv6::parse(data)?;
    let end = packet.total_len();
    let (mut next_at, mut at) = (6, ipv6::HEADER_LEN);
    for _ in 0..ipv6::MAX_EXTENSIONS {
        let kind = data[next_at];
        let walks = [protocol::HOP_BY_HOP, protocol::ROUTING, protocol::DESTINATION_OPTIONS].contains(&kind);
        if kind != protocol::FRAGMENT && !walks {
            return Ok(None);
        }
        if at + ipv6::FRAGMENT_HEADER_LEN > end {
            return Err(Reason::Ip6BadExtension);
        }
        if kind == protocol::FRAGMENT {
            let field = get16(data, at + 2);
            let key = Key {
                source: packet.src().into(),
                destination: packet.dst().into(),
                ident: get32(data, at + 4),
                protocol: 0,
            };
            let head = at + ipv6::FRAGMENT_HEADER_LEN;
            let fragment = Fragment {
                head,
                offset: usize::from(field & !7),
                len: end - head,
                more: field & 1 != 0,
                tos: packet.traffic_class(),
                header_at: Some(at),
                next_at,
            };
            return Ok(Some((key, fragment)));
        }
        next_at = at;
        at += (usize::from(data[at + 1]) + 1) * 8;
    }
    Err(Reason::Ip6BadExtension)
}
