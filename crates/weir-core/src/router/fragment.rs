//! IPv4 fragmentation by a router (RFC 791 3.2, RFC 1812 4.2.2.7).
//!
//! ```text
//! | header, all options      | payload 0 … n·8      | MF    the received frame, cut
//! | header, copied options   | payload n·8 … 2n·8   | MF    a buffer of the pool
//! | header, copied options   | rest                 | MF as the original had it
//! ```
//!
//! Promises: fragments leave in order and reassemble to the original with its TTL lowered; the original
//! counts as forwarded once, further fragments as originated. Refuses, whole and counted: a packet for
//! which there are not enough buffers, or whose link carries less than a header and 8 bytes.

use super::Breath;
use super::forwarder::Forwarder;
use crate::packet::{Buffer, Frame, HEADROOM, Pool};
use crate::tables::Adjacency;
use crate::verdict::Reason;
use crate::wire::ethernet::HEADER_LEN as ETHERNET;
use crate::wire::ipv4::{MAX_HEADER_LEN, MIN_HEADER_LEN, option};
use crate::wire::{Ipv4, ipv4};

/// Header of every fragment but the first: only options that ask to be copied.
struct LaterHeader {
    bytes: [u8; MAX_HEADER_LEN],
    len: usize,
}

impl LaterHeader {
    fn of(packet: &Ipv4<&[u8]>) -> Self {
        let mut header = LaterHeader { bytes: [0; MAX_HEADER_LEN], len: MIN_HEADER_LEN };
        header.bytes[..MIN_HEADER_LEN].copy_from_slice(&packet.header()[..MIN_HEADER_LEN]);
        for opt in packet.options().flatten().filter(|o| o.kind & option::COPIED != 0) {
            let whole = 2 + opt.data.len();
            header.bytes[header.len] = opt.kind;
            header.bytes[header.len + 1] = whole as u8;
            header.bytes[header.len + 2..header.len + whole].copy_from_slice(opt.data);
            header.len += whole;
        }
        // Zero is the end-of-options octet: padding to a whole word needs no writing.
        header.len = header.len.next_multiple_of(4);
        header.bytes[0] = 0x40 | (header.len / 4) as u8;
        header
    }
}

impl<B: Buffer> Forwarder<B> {
    pub(super) fn send_fragments(
        &mut self,
        breath: &mut Breath<'_, B>,
        next: &Adjacency,
        mut frame: Frame<B>,
        network: usize,
    ) {
        let mut packet = Ipv4::new_unchecked(frame.data_mut().get_mut(network..).unwrap_or(&mut []));
        packet.decrement_ttl();
        match self.cut(frame, network, next.mtu.into(), breath.pool) {
            Ok(first) => self.send_pieces(breath, next, (first, network), false),
            Err((frame, reason)) => self.drop_frame(frame, reason, breath.pool),
        }
    }

    /// Cuts the packet at `network` into pieces of at most `mtu` bytes: the first where it lies, the others,
    /// with room for a link header, in `self.fragments`; or the frame back.
    pub(super) fn cut(
        &mut self,
        mut frame: Frame<B>,
        network: usize,
        mtu: usize,
        pool: &mut Pool<B>,
    ) -> Result<Frame<B>, (Frame<B>, Reason)> {
        let mtu = mtu.max(ipv4::MIN_MTU.into());
        let packet = Ipv4::new_unchecked(&frame.data()[network..]);
        let later = LaterHeader::of(&packet);
        let (header_len, total, more) = (packet.header_len(), packet.total_len(), packet.more_fragments());
        let base = packet.fragment_offset();
        let first = (mtu - header_len) & !7;
        let step = (mtu - later.len) & !7;
        let payload = total - header_len;
        let count = payload.saturating_sub(first).div_ceil(step);
        if pool.free() < count {
            return Err((frame, Reason::NoBuffer));
        }
        // Built before the first is cut: they copy from it.
        let mut at = first;
        while at < payload {
            let end = payload.min(at + step);
            let body = &frame.data()[network + header_len + at..network + header_len + end];
            let Some(buffer) = pool.take() else { break };
            match write_fragment(buffer, &later, body, base + at, more || end < payload) {
                Ok(fragment) => self.fragments.push(fragment),
                Err(buffer) => {
                    pool.put(buffer);
                    return Err((self.put_back(frame, pool), Reason::FrameTooLarge));
                }
            }
            at = end;
        }
        let mut head = Ipv4::new_unchecked(&mut frame.data_mut()[network..]);
        head.set_total_len((header_len + first) as u16);
        head.set_fragment(false, true, base);
        head.fill_checksum();
        if !frame.set_len(network + header_len + first) {
            return Err((self.put_back(frame, pool), Reason::FrameTooLarge));
        }
        Ok(frame)
    }

    /// A piece does not fit in a buffer: the packet is lost as a whole.
    fn put_back(&mut self, frame: Frame<B>, pool: &mut Pool<B>) -> Frame<B> {
        self.fragments.drain(..).for_each(|fragment| pool.put(fragment.into_buffer()));
        frame
    }
}

/// A later fragment in a buffer of its own, with room for a link header; or the buffer back.
fn write_fragment<B: Buffer>(
    buffer: B,
    header: &LaterHeader,
    body: &[u8],
    offset: usize,
    more: bool,
) -> Result<Frame<B>, B> {
    let len = header.len + body.len();
    let mut frame = Frame::new(buffer, HEADROOM, ETHERNET + len, Default::default());
    if frame.len() < ETHERNET + len {
        return Err(frame.into_buffer());
    }
    frame.own = true;
    let bytes = &mut frame.data_mut()[ETHERNET..];
    bytes[..header.len].copy_from_slice(&header.bytes[..header.len]);
    bytes[header.len..].copy_from_slice(body);
    let mut packet = Ipv4::new_unchecked(bytes);
    packet.set_total_len(len as u16);
    packet.set_fragment(false, more, offset);
    packet.fill_checksum();
    Ok(frame)
}
