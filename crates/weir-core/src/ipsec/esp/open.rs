//! Inbound: replay check, the cipher once a batch, replay window, trailer, congestion marks.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{MutexGuard, PoisonError};

use super::lifetime::Allowance;
use super::seal::{NEXT_IPV4, NEXT_IPV6};
use super::{FEW, HEADER_LEN, Outcome, TRAILER_LEN, ecn, transport};
use crate::ipsec::cipher::Job;
use crate::ipsec::replay::Replay;
use crate::ipsec::sa::{Mode, Sa, SaState};
use crate::packet::{BATCH, Buffer, Frame};
use crate::time::Nanos;
use crate::verdict::Reason;
use crate::wire::{Ipv6, get16, get32, ipv4, ipv6, protocol, udp};

/// What came out of the packets of a run that are `Done`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    pub packets: usize,
    pub bytes: u64,
    /// How many of `packets` came out of a tunnel and are known to have an IPv4 header without options, and a
    /// length that covers it.
    pub common: usize,
}

/// Opens packets of `sa` in extent; `outcomes` is as long as `frames`. What is `Done` begins at its IP
/// header, the inner one in tunnel mode, and ends with its packet.
pub fn open<B: Buffer>(sa: &Sa, now: Nanos, frames: &mut [Frame<B>], outcomes: &mut [Outcome]) -> Opened {
    assert_eq!(frames.len(), outcomes.len(), "an outcome for each frame");
    let mut opened = Opened::default();
    for (frames, outcomes) in frames.chunks_mut(BATCH).zip(outcomes.chunks_mut(BATCH)) {
        let more = if frames.len() <= FEW {
            open_batch::<B, FEW>(sa, now, frames, outcomes)
        } else {
            open_batch::<B, BATCH>(sa, now, frames, outcomes)
        };
        opened.packets += more.packets;
        opened.bytes += more.bytes;
        opened.common += more.common;
    }
    opened
}

/// A packet that may be looked at, until it is known to be authentic.
#[derive(Clone, Copy, Default)]
struct Pending {
    sequence: u64,
    /// Its index in the batch.
    frame: u8,
    authentic: bool,
    extent: EspExtent,
}

/// Where an ESP packet lies in the packet that carries it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EspExtent {
    /// Length of IP headers.
    pub ip_len: u16,
    /// Where the field is that says what follows them.
    pub next_at: u16,
    /// First byte of the SPI, and the byte behind the ICV.
    pub at: u16,
    pub end: u16,
    /// DSCP and ECN of the outer header.
    pub tos: u8,
}

/// Opens at most `N` frames.
fn open_batch<B: Buffer, const N: usize>(
    sa: &Sa,
    now: Nanos,
    frames: &mut [Frame<B>],
    outcomes: &mut [Outcome],
) -> Opened {
    let mut pending = [Pending::default(); N];
    let count = authenticate(sa, frames, outcomes, &mut pending);
    let pending = &pending[..count];
    accept(sa, pending, outcomes);
    let mut allowance = Allowance::of(sa, now);
    let mut opened = Opened::default();
    for packet in pending {
        let (frame, outcome) =
            (&mut frames[usize::from(packet.frame)], &mut outcomes[usize::from(packet.frame)]);
        if *outcome != Outcome::Done {
            continue;
        }
        match finish(sa, frame, &packet.extent) {
            Ok(_) if !allowance.take(frame.len()) => *outcome = Outcome::Lost(allowance.reason()),
            Ok(common) => {
                opened.packets += 1;
                opened.bytes += frame.len() as u64;
                opened.common += usize::from(common);
            }
            Err(reason) => *outcome = Outcome::Lost(reason),
        }
    }
    if opened.packets < frames.len() {
        count_losses(sa, outcomes);
    }
    if opened.packets > 0 {
        sa.state.packets.fetch_add(opened.packets as u64, Relaxed);
        sa.state.bytes.fetch_add(opened.bytes, Relaxed);
        sa.state.used.store(now, Relaxed);
    }
    opened
}

/// Finds the ESP packets, asks the replay window about all of them and gives the others to the cipher;
/// how many those are.
#[inline(always)]
fn authenticate<B: Buffer, const N: usize>(
    sa: &Sa,
    frames: &mut [Frame<B>],
    outcomes: &mut [Outcome],
    pending: &mut [Pending; N],
) -> usize {
    let mut jobs: [Job<'_>; N] = std::array::from_fn(|_| Job::default());
    let mut count = 0;
    let replay = window(sa);
    for (index, (frame, outcome)) in frames.iter_mut().zip(outcomes).enumerate() {
        let asked = esp_extent(frame.data(), sa).and_then(|extent| {
            let low = get32(frame.data(), usize::from(extent.at) + 4);
            let sequence = if sa.params.esn { replay.extend(low) } else { u64::from(low) };
            replay.check(sequence)?;
            Ok((extent, sequence))
        });
        *outcome = match asked {
            Ok((extent, sequence)) => {
                let at = count % N;
                pending[at] = Pending { sequence, frame: index as u8, authentic: false, extent };
                let packet = &mut frame.data_mut()[usize::from(extent.at)..usize::from(extent.end)];
                jobs[at] = Job { packet, sequence, authentic: false };
                count += 1;
                Outcome::Done
            }
            Err(reason) => Outcome::Lost(reason),
        };
    }
    drop(replay);
    if count > 0 {
        sa.cipher.open(&mut jobs[..count]);
    }
    for (pending, job) in pending[..count].iter_mut().zip(&jobs) {
        pending.authentic = job.authentic;
    }
    count
}

/// What a panic elsewhere left of the window is a window.
fn window(sa: &Sa) -> MutexGuard<'_, Replay> {
    sa.state.replay.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Remembers the numbers of authentic packets; here one of two with the same number is found out, whether
/// they came in one batch or to two workers. The highest is noted where it outlives the process before any
/// packet goes on.
fn accept(sa: &Sa, pending: &[Pending], outcomes: &mut [Outcome]) {
    let mut replay = window(sa);
    for packet in pending {
        let reason = if !packet.authentic {
            Reason::IntegrityFailed
        } else if let Err(reason) = admit(&sa.state, &mut replay, packet.sequence) {
            reason
        } else {
            continue;
        };
        outcomes[usize::from(packet.frame)] = Outcome::Lost(reason);
    }
    sa.state.sequence.store(replay.top(), Relaxed);
}

/// Takes the number of an authentic packet: once, and none that a power cut would have us forget. Whoever holds
/// the window stores its top in [`SaState::sequence`](crate::ipsec::durable::Counters) before letting go of it.
#[doc(hidden)]
#[inline]
pub fn admit(state: &SaState, replay: &mut Replay, sequence: u64) -> Result<(), Reason> {
    if sequence > state.lease.sequence() {
        state.lease.want(sequence);
        return Err(Reason::SaUnreserved);
    }
    replay.accept(sequence)
}

#[cold]
fn count_losses(sa: &Sa, outcomes: &[Outcome]) {
    for outcome in outcomes {
        if let Outcome::Lost(reason) = outcome {
            sa.state.fail(*reason);
        }
    }
}

/// Finds the ESP packet behind IP headers and perhaps UDP, and sees that it is of `sa` and can be one.
#[inline(always)]
fn esp_extent(data: &[u8], sa: &Sa) -> Result<EspExtent, Reason> {
    let (mut extent, carried) = match data.first() {
        Some(first) if first >> 4 == 4 => behind_ipv4(data)?,
        _ => behind_ipv6(data)?,
    };
    let mut at = usize::from(extent.at);
    let mut end = usize::from(extent.end);
    if carried == protocol::UDP {
        let Some(header) = data.get(at..end).and_then(|d| d.first_chunk::<{ udp::HEADER_LEN }>()) else {
            return Err(Reason::EspTooShort);
        };
        // The datagram's own length: something may stand behind it.
        end = end.min(at + usize::from(get16(header, 4)));
        at += udp::HEADER_LEN;
    } else if carried != protocol::ESP {
        return Err(Reason::NoSa);
    }
    let template = &sa.template;
    let fixed = HEADER_LEN + template.iv + template.icv;
    // Room for the trailer: at least one unit, and whole ones.
    let body = end.saturating_sub(at + fixed);
    if body == 0 || body & (template.alignment - 1) != 0 {
        return Err(Reason::EspTooShort);
    }
    if get32(data, at) != sa.params.spi {
        return Err(Reason::NoSa);
    }
    extent.at = at as u16;
    extent.end = end as u16;
    Ok(extent)
}

/// How many bytes of an ESP packet of `sa` a cipher that refused it has left as they came: all in front of the payload.
#[cold]
pub fn untouched(sa: &Sa, data: &[u8]) -> usize {
    esp_extent(data, sa).map_or(0, |extent| usize::from(extent.at) + HEADER_LEN + sa.template.iv)
}

/// Where the payload lies, and its protocol.
#[inline(always)]
fn behind_ipv4(data: &[u8]) -> Result<(EspExtent, u8), Reason> {
    let Some(head) = data.first_chunk::<{ ipv4::MIN_HEADER_LEN }>() else { return Err(Reason::IpTooShort) };
    let len = usize::from(head[0] & 15) * 4;
    let end = usize::from(get16(head, 2));
    // A fragment is not whole: reassembly comes before.
    if len < ipv4::MIN_HEADER_LEN || end < len || end > data.len() || get16(head, 6) & 0x3fff != 0 {
        return Err(Reason::IpTruncated);
    }
    let extent = EspExtent { ip_len: len as u16, next_at: 9, at: len as u16, end: end as u16, tos: head[1] };
    Ok((extent, head[9]))
}

#[inline(always)]
fn behind_ipv6(data: &[u8]) -> Result<(EspExtent, u8), Reason> {
    let packet = Ipv6::parse(data)?;
    let carried = packet.next_header();
    if carried != protocol::ESP && carried != protocol::UDP {
        return behind_extensions(&packet);
    }
    Ok((extent6(&packet, ipv6::HEADER_LEN, 6), carried))
}

#[cold]
fn behind_extensions(packet: &Ipv6<&[u8]>) -> Result<(EspExtent, u8), Reason> {
    let chain = packet.chain()?;
    if chain.fragment.is_some_and(|f| f.offset != 0 || f.more) {
        return Err(Reason::IpTruncated);
    }
    let next_at = if chain.next_header_at == 0 { 6 } else { chain.next_header_at };
    Ok((extent6(packet, chain.offset, next_at), chain.protocol))
}

/// The payload begins at `at`, and its protocol stands at `next_at`.
#[inline(always)]
fn extent6(packet: &Ipv6<&[u8]>, at: usize, next_at: usize) -> EspExtent {
    EspExtent {
        ip_len: at as u16,
        next_at: next_at as u16,
        at: at as u16,
        end: packet.total_len().min(usize::from(u16::MAX)) as u16,
        tos: packet.traffic_class(),
    }
}

/// Takes off what ESP put around an authentic packet; whether it counts for [`Opened::common`].
#[inline(always)]
fn finish<B: Buffer>(sa: &Sa, frame: &mut Frame<B>, extent: &EspExtent) -> Result<bool, Reason> {
    let at = usize::from(extent.at) + HEADER_LEN + sa.template.iv;
    let end = usize::from(extent.end) - sa.template.icv;
    let (len, next) = payload(&frame.data()[at..end])?;
    if next == protocol::NO_NEXT_HEADER {
        return Err(Reason::EspDummy);
    }
    match sa.params.mode {
        Mode::Tunnel => {
            let (len, common) = tunnelled(&mut frame.data_mut()[at..at + len], next, extent.tos)?;
            let cut = frame.shrink_front(at) && frame.set_len(len);
            debug_assert!(cut, "the inner packet lies within the outer one");
            Ok(common)
        }
        Mode::Transport => transport::restore(frame, extent, at, len, next).map(|()| false),
    }
}

/// Length of what stands in front of the padding, and its protocol. `body` holds a trailer.
#[inline(always)]
fn payload(body: &[u8]) -> Result<(usize, u8), Reason> {
    let Some((rest, &[pad, next])) = body.split_last_chunk::<TRAILER_LEN>() else {
        return Err(Reason::EspBadTrailer);
    };
    let Some(len) = rest.len().checked_sub(usize::from(pad)) else { return Err(Reason::EspBadTrailer) };
    if is_padding(rest, pad) { Ok((len, next)) } else { Err(Reason::EspBadTrailer) }
}

/// Whether the last `pad` bytes are 1, 2, 3…, as RFC 4303 2.4 has every receiver check: what is authentic
/// and padded in another way is of a peer that does not do ESP as we do.
#[inline(always)]
fn is_padding(rest: &[u8], pad: u8) -> bool {
    match (rest.last_chunk::<16>(), PADDING.get(usize::from(pad))) {
        (Some(last), Some(&(mask, padding))) => u128::from_ne_bytes(*last) & mask == padding,
        _ => rest[rest.len() - usize::from(pad)..].iter().zip(1..).all(|(&byte, n)| byte == n),
    }
}

/// The last 16 bytes in front of a trailer, for each length of padding: which of them are padding, and what they are.
static PADDING: [(u128, u128); 16] = {
    let (mut all, mut pad) = ([(0, 0); 16], 0);
    while pad < all.len() {
        let (mut mask, mut padding) = ([0; 16], [0; 16]);
        let mut n = 0;
        while n < pad {
            mask[16 - pad + n] = 0xff;
            padding[16 - pad + n] = n as u8 + 1;
            n += 1;
        }
        all[pad] = (u128::from_ne_bytes(mask), u128::from_ne_bytes(padding));
        pad += 1;
    }
    all
};

/// Judges the packet that a tunnel carried and gives it the congestion mark of the outer header; its length,
/// behind which there may be padding against traffic analysis (RFC 4303 2.7), and whether it counts for
/// [`Opened::common`].
#[inline(always)]
fn tunnelled(inner: &mut [u8], next: u8, outer_tos: u8) -> Result<(usize, bool), Reason> {
    let (least, len, common) = match (next, inner.first().map(|b| b >> 4)) {
        (NEXT_IPV4, Some(4)) if inner.len() >= ipv4::MIN_HEADER_LEN => {
            (ipv4::MIN_HEADER_LEN, usize::from(get16(inner, 2)), inner[0] == 0x45)
        }
        (NEXT_IPV6, Some(6)) if inner.len() >= ipv6::HEADER_LEN => {
            (ipv6::HEADER_LEN, usize::from(get16(inner, 4)) + ipv6::HEADER_LEN, false)
        }
        _ => return Err(Reason::EspBadTrailer),
    };
    if len < least || len > inner.len() {
        return Err(Reason::IpTruncated);
    }
    if ecn::decapsulate(outer_tos, inner) { Ok((len, common)) } else { Err(Reason::EcnNotCapable) }
}
