//! Outbound: padding, trailer, sequence number, headers, and the cipher once a batch.

use std::sync::atomic::Ordering::Relaxed;

use super::lifetime::Allowance;
use super::outer::{DF, Inner, Template};
use super::{FEW, HEADER_LEN, Outcome, TRAILER_LEN, natt, transport};
use crate::ipsec::cipher::Job;
use crate::ipsec::sa::{Mode, Sa};
use crate::packet::{BATCH, Buffer, Frame};
use crate::time::Nanos;
use crate::verdict::Reason;
use crate::wire::{get16, ipv4, ipv6};

/// IPv4 and IPv6 as the next header of a tunnel's payload (RFC 4303 2.6).
pub const NEXT_IPV4: u8 = 4;
pub const NEXT_IPV6: u8 = 41;

/// What padding consists of (RFC 4303 2.4), as far as one store reaches.
const PADDING: [u8; 14] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];

/// The last sequence number an SA gives out. With ESN far enough below 2^64 that workers who all add a batch
/// at once do not wrap it.
pub(crate) fn last_sequence(esn: bool) -> u64 {
    if esn { u64::MAX - (1 << 32) } else { u64::from(u32::MAX) }
}

/// Seals packets for `sa` in place, and says how many; `outcomes` is as long as `frames`. A frame may be longer
/// than its packet: what is behind the IP header's length is cut off. What is not sealed keeps its window.
pub fn seal<B: Buffer>(sa: &Sa, now: Nanos, frames: &mut [Frame<B>], outcomes: &mut [Outcome]) -> usize {
    assert_eq!(frames.len(), outcomes.len(), "an outcome for each frame");
    let mut sealed = 0;
    for (frames, outcomes) in frames.chunks_mut(BATCH).zip(outcomes.chunks_mut(BATCH)) {
        sealed += if frames.len() <= FEW {
            seal_batch::<B, FEW>(sa, now, frames, outcomes)
        } else {
            seal_batch::<B, BATCH>(sa, now, frames, outcomes)
        };
    }
    sealed
}

/// Seals at most `N` frames and returns how many.
fn seal_batch<B: Buffer, const N: usize>(
    sa: &Sa,
    now: Nanos,
    frames: &mut [Frame<B>],
    outcomes: &mut [Outcome],
) -> usize {
    let (mut sequence, mut granted) = take_sequence(sa, frames.len() as u64);
    let mut allowance = Allowance::of(sa, now);
    let mut jobs: [Job<'_>; N] = std::array::from_fn(|_| Job::default());
    let (mut count, mut bytes) = (0, 0);
    for (frame, outcome) in frames.iter_mut().zip(outcomes.iter_mut()) {
        let packet = match Packet::read(frame.data()) {
            _ if granted == 0 => Err(no_number(sa)),
            Ok(packet) if !allowance.take(packet.len) => Err(allowance.reason()),
            other => other,
        };
        let sealed = packet.and_then(|packet| {
            let esp = encapsulate(&sa.template, frame, packet, sequence)?;
            Ok((packet.len, esp))
        });
        match sealed {
            Ok((len, packet)) => {
                jobs[count % N] = Job { packet, sequence, authentic: false };
                count += 1;
                bytes += len as u64;
                sequence += 1;
                granted -= 1;
                *outcome = Outcome::Done;
            }
            Err(reason) => {
                sa.state.fail(reason);
                *outcome = Outcome::Lost(reason);
            }
        }
    }
    if count == 0 {
        return 0;
    }
    sa.cipher.seal(&mut jobs[..count]);
    if sa.template.udp_checksum {
        let done = frames.iter_mut().zip(outcomes.iter()).filter(|(_, o)| **o == Outcome::Done);
        done.for_each(|(frame, _)| natt::fill_checksum(frame.data_mut()));
    }
    sa.state.packets.fetch_add(count as u64, Relaxed);
    sa.state.bytes.fetch_add(bytes, Relaxed);
    sa.state.used.store(now, Relaxed);
    count
}

/// The first of `n` sequence numbers that are now the caller's, and how many of them there are: none that is
/// not reserved on disk, where numbers are.
#[doc(hidden)]
pub fn take_sequence(sa: &Sa, n: u64) -> (u64, u64) {
    let limit = last_sequence(sa.params.esn).min(sa.state.lease.sequence());
    sa.state.take_sequence(limit, n)
}

/// Why there is no number.
#[cold]
fn no_number(sa: &Sa) -> Reason {
    let used = sa.state.sequence.load(Relaxed);
    if used >= last_sequence(sa.params.esn) { Reason::SequenceExhausted } else { Reason::SaUnreserved }
}

/// What the header of the packet to seal says.
#[derive(Clone, Copy)]
struct Packet {
    /// Whole, header included.
    len: usize,
    next_header: u8,
    inner: Inner,
}

impl Packet {
    #[inline(always)]
    fn read(data: &[u8]) -> Result<Packet, Reason> {
        let Some(head) = data.first_chunk::<{ ipv4::MIN_HEADER_LEN }>() else {
            return Err(Reason::IpTooShort);
        };
        let packet = match head[0] >> 4 {
            4 => Packet {
                len: usize::from(get16(head, 2)),
                next_header: NEXT_IPV4,
                inner: Inner { tos: head[1], df: get16(head, 6) & DF },
            },
            6 => Packet {
                len: usize::from(get16(head, 4)) + ipv6::HEADER_LEN,
                next_header: NEXT_IPV6,
                inner: Inner { tos: (get16(head, 0) >> 4) as u8, df: DF },
            },
            _ => return Err(Reason::IpBadVersion),
        };
        let fits = packet.len >= ipv4::MIN_HEADER_LEN && packet.len <= data.len();
        if fits { Ok(packet) } else { Err(Reason::IpTruncated) }
    }
}

/// Makes room around the packet and writes everything but what the cipher does; the bytes from the SPI on.
#[inline(always)]
fn encapsulate<'a, B: Buffer>(
    template: &Template,
    frame: &'a mut Frame<B>,
    packet: Packet,
    sequence: u64,
) -> Result<&'a mut [u8], Reason> {
    if template.ip_len == 0 {
        return transport::encapsulate(template, frame, packet.len, sequence);
    }
    let padded = template.padded(packet.len);
    let head = template.head();
    if !make_room(frame, head, head + padded + template.icv) {
        return Err(Reason::FrameTooLarge);
    }
    let data = frame.data_mut();
    template.write_outer(data, packet.inner, sequence);
    let (_, behind) = data.split_at_mut(template.ip_len);
    template.write_esp(behind, sequence);
    let esp = &mut behind[template.udp_len..];
    write_trailer(esp, HEADER_LEN + template.iv + packet.len, padded - packet.len, packet.next_header);
    Ok(esp)
}

/// Moves the start back by `head` bytes and makes the frame `len` bytes long; `false`, and all is as it was,
/// without room for that.
#[inline(always)]
pub(super) fn make_room<B: Buffer>(frame: &mut Frame<B>, head: usize, len: usize) -> bool {
    if !frame.grow_front(head) {
        return false;
    }
    let fits = frame.set_len(len);
    if !fits {
        let _ = frame.shrink_front(head);
    }
    fits
}

/// Writes `len` bytes of padding and trailer at `at`. What follows them is room for the ICV, which may be
/// overwritten: one store of the longest padding beats a loop.
#[inline(always)]
pub(super) fn write_trailer(esp: &mut [u8], at: usize, len: usize, next_header: u8) {
    let pad = len - TRAILER_LEN;
    match esp[at..].first_chunk_mut() {
        Some(room) if pad <= PADDING.len() => *room = PADDING,
        _ => esp[at..at + pad].iter_mut().zip(1..).for_each(|(byte, n)| *byte = n),
    }
    esp[at + pad] = pad as u8;
    esp[at + pad + 1] = next_header;
}

/// The largest packet whose sealed form is at most `outer_mtu` bytes; 0 where none is.
pub fn inner_mtu(sa: &Sa, outer_mtu: u16) -> u16 {
    let template = &sa.template;
    let room = usize::from(outer_mtu).saturating_sub(template.head() + template.icv);
    let whole = match sa.params.mode {
        Mode::Tunnel => room & !(template.alignment - 1),
        // The packet's own header is not encrypted, and its length, any multiple of 4, shifts the padding:
        // this much always fits, and up to a block less 4 bytes more does for some headers.
        Mode::Transport => (room & !3).saturating_sub(template.alignment - 4),
    };
    whole.saturating_sub(TRAILER_LEN) as u16
}
