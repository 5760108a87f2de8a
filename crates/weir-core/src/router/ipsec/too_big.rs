//! Packets that do not fit once sealed, and outer packets that have to be cut (RFC 4301 8, RFC 2473 7).
//!
//! ```text
//! inner      IPv4, may be cut   IPv4, DF             IPv6 > 1280        IPv6 ≤ 1280
//! does       before or after    ICMP, inner MTU      ICMP, inner MTU    after, if the inner MTU is
//! not fit    sealing, as asked                       or 1280            below 1280
//! ```
//!
//! Promises: the sender of what may not be cut is told the MTU that fits inside; pieces leave in order.
//! Refuses: to send what is longer than the path takes.

use super::{Env, packet_len, rules};
use crate::ipsec::esp;
use crate::ipsec::sa::FragmentWhen;
use crate::ipsec::{Mode, Sa};
use crate::packet::{Buffer, Frame, HEADROOM};
use crate::router::decide::IcmpError;
use crate::tables::Adjacency;
use crate::verdict::Reason;
use crate::wire::ethernet::HEADER_LEN as ETHERNET;
use crate::wire::{Ipv4, Ipv6, icmpv4, icmpv6, ipv4, ipv6, protocol};

/// RFC 8200 5: every link carries this.
const IPV6_MIN_MTU: usize = 1280;
const FRAGMENT_HEADER: usize = 8;

/// What to do with a packet that does not fit.
pub(crate) enum Remedy {
    /// Seal it as it is; the outer packet is cut.
    After,
    /// Cut it into pieces that fit.
    Before,
    SendError(IcmpError),
    Nothing,
}

pub(crate) fn remedy(sa: &Sa, sealed: bool, packet: &[u8], room: usize) -> Remedy {
    if packet.first().is_some_and(|byte| byte >> 4 == 4) {
        let Ok(ip) = Ipv4::parse_header(packet) else { return Remedy::Nothing };
        return match sa.params.fragment {
            // We are its source: there is nobody else to tell.
            _ if sealed => Remedy::After,
            _ if ip.dont_fragment() => {
                Remedy::SendError(icmpv4::Error::FragmentationNeeded { mtu: room as u16 }.into())
            }
            // RFC 4303 3.1.1: transport mode takes no fragments.
            FragmentWhen::Before if sa.params.mode == Mode::Tunnel => {
                if room < usize::from(ipv4::MIN_MTU) {
                    Remedy::Nothing
                } else {
                    Remedy::Before
                }
            }
            _ => Remedy::After,
        };
    }
    match packet_len(packet) {
        _ if sealed => Remedy::After,
        len if room < IPV6_MIN_MTU && len <= IPV6_MIN_MTU => Remedy::After,
        _ => Remedy::SendError(icmpv6::Error::PacketTooBig { mtu: room.max(IPV6_MIN_MTU) as u32 }.into()),
    }
}

/// Identifications of outer IPv6 packets that are cut here.
#[derive(Debug, Default)]
pub(super) struct Ident {
    /// Workers share an SA's addresses: each has identifications of its own.
    pub worker: usize,
    last: u32,
}

impl Ident {
    fn next(&mut self) -> u32 {
        self.last = self.last.wrapping_add(1);
        (self.worker as u32) << 24 ^ (self.last & 0x00ff_ffff)
    }
}

impl<B: Buffer> Env<'_, '_, B> {
    /// Moves IP packets from `run` to `fitting`, each so that it fits once sealed by `sa`.
    #[cold]
    pub(super) fn make_fit(
        &mut self,
        sa: &Sa,
        outer_mtu: u16,
        run: &mut Vec<Frame<B>>,
        fitting: &mut Vec<Frame<B>>,
    ) {
        let room = usize::from(esp::inner_mtu(sa, outer_mtu));
        for frame in run.drain(..) {
            if packet_len(frame.data()) <= room {
                fitting.push(frame);
                continue;
            }
            match remedy(sa, frame.sealed, frame.data(), room) {
                Remedy::After => fitting.push(frame),
                Remedy::Before => self.cut_inner(frame, room, fitting),
                Remedy::SendError(error) => {
                    sa.state.fail(Reason::FragmentNeeded);
                    self.tell_too_big(frame, error);
                }
                Remedy::Nothing => {
                    sa.state.fail(Reason::FragmentNeeded);
                    self.drop_packet(frame, Reason::FragmentNeeded);
                }
            }
        }
    }

    fn tell_too_big(&mut self, frame: Frame<B>, error: IcmpError) {
        let tables = self.breath.tables;
        let arrived = rules::source(frame.data()).and_then(|src| rules::port_towards(tables, src));
        if !frame.own {
            self.forwarder.send_error(self.breath, arrived.unwrap_or_default(), error, frame.data());
        }
        self.drop_packet(frame, Reason::FragmentNeeded);
    }

    /// Cuts an inner IPv4 packet.
    fn cut_inner(&mut self, frame: Frame<B>, room: usize, fitting: &mut Vec<Frame<B>>) {
        match self.forwarder.cut(frame, 0, room, self.breath.pool) {
            Ok(first) => {
                fitting.push(first);
                for mut piece in self.forwarder.fragments.drain(..) {
                    let _ = piece.shrink_front(ETHERNET);
                    fitting.push(piece);
                }
            }
            Err((frame, reason)) => self.drop_packet(frame, reason),
        }
    }

    /// Cuts an outer packet and sends the pieces.
    pub(super) fn send_cut(&mut self, next: &Adjacency, mtu: u16, frame: Frame<B>, ident: &mut Ident) {
        let cut = if frame.data()[0] >> 4 == 4 {
            self.forwarder.cut(frame, 0, usize::from(mtu), self.breath.pool)
        } else {
            let ident = ident.next();
            self.cut6(frame, usize::from(mtu), ident)
        };
        match cut {
            Ok(first) => self.forwarder.send_pieces(self.breath, next, (first, 0), true),
            Err((frame, reason)) => self.drop_packet(frame, reason),
        }
    }

    /// Cuts an IPv6 packet of our own making (RFC 8200 4.5): the first piece where it lies, the others, with
    /// room for a link header, in the forwarder's `fragments`.
    fn cut6(&mut self, mut frame: Frame<B>, mtu: usize, ident: u32) -> Result<Frame<B>, (Frame<B>, Reason)> {
        let (fragments, pool) = (&mut self.forwarder.fragments, &mut *self.breath.pool);
        let Some((head, next_at)) = unfragmentable(frame.data()) else {
            return Err((frame, Reason::Ip6BadExtension));
        };
        let payload = frame.len() - head;
        let step = mtu.saturating_sub(head + FRAGMENT_HEADER) & !7;
        if step == 0 {
            return Err((frame, Reason::FragmentNeeded));
        }
        let count = payload.div_ceil(step);
        if pool.free() + 1 < count {
            return Err((frame, Reason::NoBuffer));
        }
        let mut extension = [0; FRAGMENT_HEADER];
        extension[0] = frame.data()[next_at];
        extension[4..].copy_from_slice(&ident.to_be_bytes());
        frame.data_mut()[next_at] = protocol::FRAGMENT;
        for piece in 1..count {
            let (from, to) = (piece * step, payload.min((piece + 1) * step));
            put_offset(&mut extension, from, to < payload);
            let parts = [&frame.data()[..head], &extension[..], &frame.data()[head + from..head + to]];
            let Some(buffer) = pool.take() else { break };
            match assemble(buffer, &parts) {
                Ok(piece) => fragments.push(piece),
                Err(buffer) => {
                    pool.put(buffer);
                    fragments.drain(..).for_each(|piece| pool.put(piece.into_buffer()));
                    return Err((frame, Reason::FrameTooLarge));
                }
            }
        }
        put_offset(&mut extension, 0, count > 1);
        let first = head + payload.min(step);
        if !frame.grow_front(FRAGMENT_HEADER) || !frame.set_len(first + FRAGMENT_HEADER) {
            fragments.drain(..).for_each(|piece| pool.put(piece.into_buffer()));
            return Err((frame, Reason::FrameTooLarge));
        }
        let data = frame.data_mut();
        data.copy_within(FRAGMENT_HEADER..FRAGMENT_HEADER + head, 0);
        data[head..head + FRAGMENT_HEADER].copy_from_slice(&extension);
        let len = (data.len() - ipv6::HEADER_LEN) as u16;
        Ipv6::new_unchecked(data).set_payload_len(len);
        Ok(frame)
    }
}

/// The length of what each fragment repeats, and where in it the next header is named (RFC 8200 4.5): the
/// header, and the extensions routers on the way look at.
fn unfragmentable(packet: &[u8]) -> Option<(usize, usize)> {
    let (mut at, mut next_at) = (ipv6::HEADER_LEN, 6);
    while matches!(*packet.get(next_at)?, protocol::HOP_BY_HOP | protocol::ROUTING) {
        next_at = at;
        at += (usize::from(*packet.get(at + 1)?) + 1) * 8;
    }
    (at <= packet.len()).then_some((at, next_at))
}

fn put_offset(extension: &mut [u8; FRAGMENT_HEADER], offset: usize, more: bool) {
    // In units of 8 bytes, above three bits: bytes as they are.
    extension[2..4].copy_from_slice(&(offset as u16 | u16::from(more)).to_be_bytes());
}

/// A packet of our own in a buffer of its own, behind room for a link header; or the buffer back.
fn assemble<B: Buffer>(buffer: B, parts: &[&[u8]; 3]) -> Result<Frame<B>, B> {
    let len = parts.iter().map(|part| part.len()).sum::<usize>();
    let mut frame = Frame::new(buffer, HEADROOM, ETHERNET + len, Default::default());
    if frame.len() < ETHERNET + len {
        return Err(frame.into_buffer());
    }
    frame.own = true;
    let mut at = ETHERNET;
    for part in parts {
        frame.data_mut()[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    let payload_len = (len - ipv6::HEADER_LEN) as u16;
    Ipv6::new_unchecked(&mut frame.data_mut()[ETHERNET..]).set_payload_len(payload_len);
    Ok(frame)
}
