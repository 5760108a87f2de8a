//! Outer headers, made once an SA and finished once a packet.
//!
//! Promises: what is the same for all packets of an SA is computed when the SA is made, the sum of the IPv4
//! header's constant words too. ECN is copied to the outer header (RFC 6040 4.1), DSCP and DF as
//! configured; an inner IPv6 packet, which nobody on its way may cut, counts as one with DF. The IPv6 flow
//! label is the SA's: the network sees one flow and learns nothing of those inside.

use std::net::IpAddr;

use super::HEADER_LEN;
use crate::ipsec::sa::{Df, Dscp, Mode, Params};
use crate::wire::{ipv4, ipv6, protocol, put16, put32, udp};

pub const DF: u16 = 0x4000;

/// What an SA's packets have in common.
#[derive(Clone, Debug)]
pub struct Template {
    /// The outer header; unused in transport mode.
    ip: [u8; ipv6::HEADER_LEN],
    /// 20 or 40; 0 in transport mode.
    pub ip_len: usize,
    /// Ports, and 0 for length and checksum.
    udp: [u8; udp::HEADER_LEN],
    /// 8 or 0.
    pub udp_len: usize,
    /// Sum of the words of the IPv4 header that no packet changes.
    sum: u32,
    tos_mask: u8,
    tos_set: u8,
    df_mask: u16,
    df_set: u16,
    spi: u32,
    /// What a sequence number is added to to be its packet's IV.
    first_iv: u64,
    /// The datagram around ESP has a checksum, which covers what the cipher writes.
    pub udp_checksum: bool,
    pub iv: usize,
    pub icv: usize,
    /// A power of two.
    pub alignment: usize,
}

/// What the outer header takes from the packet inside.
#[derive(Clone, Copy, Debug)]
pub struct Inner {
    pub tos: u8,
    /// [`DF`] or 0.
    pub df: u16,
}

impl Template {
    pub fn new(params: &Params, first_iv: u64) -> Template {
        let (tos_mask, tos_set) = match params.dscp {
            Dscp::Copy => (0xff, 0),
            Dscp::Set(dscp) => (3, dscp << 2),
        };
        let (df_mask, df_set) = match params.df {
            Df::Copy => (DF, 0),
            Df::Set => (0, DF),
            Df::Clear => (0, 0),
        };
        let mut template = Template {
            ip: [0; ipv6::HEADER_LEN],
            ip_len: 0,
            udp: [0; udp::HEADER_LEN],
            udp_len: 0,
            sum: 0,
            tos_mask,
            tos_set,
            df_mask,
            df_set,
            spi: params.spi,
            first_iv,
            udp_checksum: params.udp.is_some() && params.destination.is_ipv6(),
            iv: params.suite.iv_len(),
            icv: params.suite.icv_len(),
            alignment: params.suite.alignment(),
        };
        if let Some(ports) = params.udp {
            put16(&mut template.udp, 0, ports.source);
            put16(&mut template.udp, 2, ports.destination);
            template.udp_len = udp::HEADER_LEN;
        }
        if params.mode == Mode::Tunnel {
            template.write_ip(params);
        }
        template
    }

    fn write_ip(&mut self, params: &Params) {
        let carried = if self.udp_len > 0 { protocol::UDP } else { protocol::ESP };
        match (params.source, params.destination) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                self.ip_len = ipv4::MIN_HEADER_LEN;
                self.ip[0] = 0x45;
                self.ip[8] = params.hop_limit;
                self.ip[9] = carried;
                self.ip[12..16].copy_from_slice(&src.octets());
                self.ip[16..20].copy_from_slice(&dst.octets());
                let words = self.ip[..20].chunks_exact(2);
                self.sum = words.map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
            }
            (src, dst) => {
                let header = ipv6::Header {
                    src: v6(src),
                    dst: v6(dst),
                    next_header: carried,
                    hop_limit: params.hop_limit,
                    traffic_class: 0,
                    flow_label: flow_label(params.spi),
                };
                let written = ipv6::write(&mut self.ip, &header, 0);
                self.ip_len = written.expect("the room is a header's");
            }
        }
    }

    /// Bytes in front of the payload.
    #[inline(always)]
    pub fn head(&self) -> usize {
        self.ip_len + self.udp_len + HEADER_LEN + self.iv
    }

    /// Bytes of payload, padding and trailer for a payload of `len`.
    #[inline(always)]
    pub fn padded(&self, len: usize) -> usize {
        (len + super::TRAILER_LEN + self.alignment - 1) & !(self.alignment - 1)
    }

    /// Writes the outer IP header of the tunnel packet that `packet` is.
    #[inline(always)]
    pub fn write_outer(&self, packet: &mut [u8], inner: Inner, sequence: u64) {
        let total = packet.len();
        let tos = inner.tos & self.tos_mask | self.tos_set;
        if self.ip_len == ipv4::MIN_HEADER_LEN {
            let Some(out) = packet.first_chunk_mut::<{ ipv4::MIN_HEADER_LEN }>() else { return };
            let df = inner.df & self.df_mask | self.df_set;
            // Unique for as long as a fragment lives; SAs between the same hosts start apart.
            let ident = (sequence as u16).wrapping_add(self.spi as u16);
            let sum = self.sum + u32::from(tos) + total as u32 + u32::from(ident) + u32::from(df);
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = (sum & 0xffff) + (sum >> 16);
            let Some(ip) = self.ip.first_chunk() else { return };
            *out = *ip;
            out[1] = tos;
            put16(out, 2, total as u16);
            put16(out, 4, ident);
            put16(out, 6, df);
            put16(out, 10, !(sum as u16));
        } else {
            let Some(out) = packet.first_chunk_mut::<{ ipv6::HEADER_LEN }>() else { return };
            *out = self.ip;
            out[0] |= tos >> 4;
            out[1] |= tos << 4;
            put16(out, 4, (total - ipv6::HEADER_LEN) as u16);
        }
    }

    /// Writes what stands between the IP headers and the payload, the number the IV is made of included:
    /// `packet` begins behind the IP headers.
    #[inline(always)]
    pub fn write_esp(&self, packet: &mut [u8], sequence: u64) {
        let total = packet.len();
        let mut esp = packet;
        if self.udp_len > 0 {
            let Some((out, rest)) = esp.split_first_chunk_mut::<{ udp::HEADER_LEN }>() else { return };
            *out = self.udp;
            put16(out, 4, total as u16);
            esp = rest;
        }
        let Some(out) = esp.first_chunk_mut::<HEADER_LEN>() else { return };
        put32(out, 0, self.spi);
        put32(out, 4, sequence as u32);
        // The eight bytes that end with the IV; without an IV they are the header just written.
        if let Some(iv) = esp.get_mut(self.iv..).and_then(|b| b.first_chunk_mut::<HEADER_LEN>())
            && self.iv > 0
        {
            *iv = self.first_iv.wrapping_add(sequence).to_be_bytes();
        }
    }
}

/// A mixed pair of addresses is refused before an SA is made of it.
fn v6(address: IpAddr) -> std::net::Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// 20 bits of the SPI, well mixed: SPIs are often consecutive, and routers spread flows by their labels.
fn flow_label(spi: u32) -> u32 {
    // Fibonacci hashing: 2^32 divided by the golden ratio.
    spi.wrapping_mul(0x9e37_79b9) >> 12
}
