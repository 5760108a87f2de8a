//! What the kernel hands over in one piece is cut into packets: TCP segments, each as its sender would have
//! sent it.
//!
//! Promises: the pieces in their order have the payload of the whole; each has its own length, identification,
//! sequence number and finished checksum; FIN and PSH are the last one's, CWR the first one's (as
//! Documentation/networking/segmentation-offloads.rst asks). Refuses, as [`Cut::start`]'s `false`: headers that
//! do not hang together.

use std::ops::Range;

use weir_core::wire::{checksum, get16, get32, put16};

use super::vnet::{self, Header};

/// The largest packet there is, and its header.
pub const ROOM: usize = vnet::LEN + 65_535;

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;
/// A TCP header without options, and the place of its checksum.
const TCP: usize = 20;
const TCP_CHECKSUM: usize = 16;
const IPV6: usize = 40;

/// A packet as read, and how far it has been cut.
pub struct Cut {
    bytes: Box<[u8]>,
    packet: usize,
    header: Header,
    /// Where the transport header and its payload begin.
    transport: usize,
    payload: usize,
    /// Payload a piece.
    segment: usize,
    at: usize,
    pieces: u16,
}

impl Cut {
    pub fn new() -> Cut {
        Cut {
            bytes: vec![0; ROOM].into(),
            packet: 0,
            header: Header::default(),
            transport: 0,
            payload: 0,
            segment: 0,
            at: 0,
            pieces: 0,
        }
    }

    /// Where a packet is to be read to, with its header before it.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Takes `read` bytes that were put there; whether there is a packet in them.
    pub fn start(&mut self, read: usize) -> bool {
        self.packet = read.saturating_sub(vnet::LEN);
        (self.at, self.pieces) = (usize::MAX, 0);
        let Some(header) = self.bytes.first_chunk().filter(|_| self.packet >= TCP) else { return false };
        self.header = Header::read(header);
        let start = usize::from(self.header.checksum_start);
        let packet = &self.bytes[vnet::LEN..vnet::LEN + self.packet];
        (self.transport, self.payload, self.segment) = (start, 0, self.packet);
        match (self.header.kind, packet[0] >> 4) {
            (vnet::WHOLE, _) => {
                let field = start + usize::from(self.header.checksum_offset);
                if self.header.flags & vnet::NEEDS_CHECKSUM != 0 && field + 2 > self.packet {
                    return false;
                }
            }
            (vnet::TCP4, 4) | (vnet::TCP6, 6) => {
                let least = if packet[0] >> 4 == 4 { usize::from(packet[0] & 0xf) * 4 } else { IPV6 };
                let Some(&offset) = packet.get(start + 12).filter(|_| least >= 20 && start >= least) else {
                    return false;
                };
                self.payload = start + usize::from(offset >> 4) * 4;
                self.segment = usize::from(self.header.segment);
                if self.payload < start + TCP || self.payload >= self.packet || self.segment == 0 {
                    return false;
                }
            }
            _ => return false,
        }
        self.at = self.payload;
        true
    }

    /// Whether there is more to come.
    pub fn pending(&self) -> bool {
        self.at < self.packet
    }

    /// Writes the next piece to the front of `out`; its length, or `None` where `out` is too small for it,
    /// which passes it over.
    pub fn next(&mut self, out: &mut [u8]) -> Option<usize> {
        let (from, number) = (self.at, self.pieces);
        let end = self.packet.min(from + self.segment);
        self.at = end;
        self.pieces += 1;
        let packet = &self.bytes[vnet::LEN..vnet::LEN + self.packet];
        let len = self.payload + (end - from);
        let out = out.get_mut(..len)?;
        out[..self.payload].copy_from_slice(&packet[..self.payload]);
        out[self.payload..].copy_from_slice(&packet[from..end]);
        if self.header.kind != vnet::WHOLE {
            self.number(out, from..end, number);
        } else if self.header.flags & vnet::NEEDS_CHECKSUM != 0 {
            let field = self.transport + usize::from(self.header.checksum_offset);
            put16(out, field, checksum::finish_transport(checksum::add(0, &packet[self.transport..])));
        }
        Some(len)
    }

    /// Makes the headers of `out` those of this piece. They are reckoned from the whole: whoever reads what was
    /// just stored waits until all stores before it have reached a buffer that the cache may not have.
    fn number(&self, out: &mut [u8], piece: Range<usize>, number: u16) {
        let packet = &self.bytes[vnet::LEN..vnet::LEN + self.packet];
        let (len, start) = (out.len(), self.transport);
        if packet[0] >> 4 == 4 {
            let header = &packet[..usize::from(packet[0] & 0xf) * 4];
            let ident = get16(packet, 4).wrapping_add(number);
            let parts = [&header[..2], &(len as u16).to_be_bytes(), &ident.to_be_bytes(), &header[6..10]];
            put16(out, 2, len as u16);
            put16(out, 4, ident);
            put16(out, 10, checksum::finish(checksum::add(added(parts), &header[12..])));
        } else {
            put16(out, 4, (len - IPV6) as u16);
        }
        let header = &packet[start..self.payload];
        let sequence = get32(header, 4).wrapping_add((piece.start - self.payload) as u32).to_be_bytes();
        let mut flags = header[13];
        if piece.end != self.packet {
            flags &= !(FIN | PSH);
        }
        if number > 0 {
            flags &= !CWR;
        }
        // The checksum field has the pseudo-header's sum with the length of the whole.
        let (old, new) = ((self.packet - start) as u16, (len - start) as u16);
        let lengths = [&(!old).to_be_bytes()[..], &new.to_be_bytes()];
        let parts = [&header[..4], &sequence, &header[8..12], &[header[12], flags]];
        let sum = checksum::add(added(parts) + added(lengths), &header[14..]);
        out[start + 4..start + 8].copy_from_slice(&sequence);
        out[start + 13] = flags;
        put16(out, start + TCP_CHECKSUM, checksum::finish(checksum::add(sum, &packet[piece])));
    }
}

/// The sum of slices of even length.
fn added<const N: usize>(parts: [&[u8]; N]) -> u64 {
    parts.into_iter().fold(0, checksum::add)
}
