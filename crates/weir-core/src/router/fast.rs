//! The common packet's way, a whole batch at a time.
//!
//! ```text
//! for each frame   classify: our MAC, IPv4 without options or IPv6 without extensions, lengths,
//!                  checksum, TTL, martians ──► class, destination     (anything else: class SLOW)
//! for the batch    Fib4::lookup_batch, Fib6::lookup_batch (of sources too, where a port asks for it)
//! for each frame   target ─► adjacency ready, fits ─► MAC header, TTL, checksum
//! for each run     append to Output.tx[device] (mostly all of the batch, moved at once); SLOW frames go through `slow` at
//!                  their place
//! ```
//!
//! Headers are examined once: whoever has more to ask of a common frame ([`Inspect`]) asks while they are at hand.
//!
//! Promises: what follows a packet in its frame stays behind. Never judges a packet differently from [`super::decide`]; it only declines (tested by
//! `fast_path_and_slow_path_and_trace_agree`). Frames keep their order of arrival. No allocation; no branch
//! that depends on a packet's content except "common or not" and "which family".

use std::net::IpAddr;

use super::PortCounters;
use super::ingress::{Ingress, NeighborCache, OwnAddresses};
use super::next_hop::leads_back;
use crate::id::{AdjacencyId, PortId};
use crate::packet::{BATCH, Buffer, DeviceId, Frame};
use crate::route::NO_ROUTE;
use crate::tables::{Adjacency, Tables, Target};
use crate::wire::checksum::after_ttl_decrement;
use crate::wire::flow::{self, FlowKey};
use crate::wire::{Ipv4, Ipv6, ethernet, get_array, get32};

const ETHERNET: usize = ethernet::HEADER_LEN;
/// Ethernet and IPv4 without options: 14 + 20.
pub(super) const HEAD4: usize = ETHERNET + 20;
/// Ethernet and IPv6: 14 + 40.
pub(super) const HEAD6: usize = ETHERNET + 40;
/// EtherTypes as two bytes read in little-endian order.
const ETHERTYPE_IPV4: u16 = 0x0800u16.swap_bytes();
const ETHERTYPE_IPV6: u16 = 0x86ddu16.swap_bytes();

/// The fast path declines: [`Stage::place`] of a frame the slow path handles. No device has such an id,
/// for `Output::tx` would have to have 65,535 rings.
pub(super) const SLOW: u16 = u16::MAX;
/// Declined after the frame was counted as received on its port.
pub(super) const SLOW_COUNTED: u16 = u16::MAX - 1;

/// ESP by an SA of ours, for the gateway.
#[cfg(feature = "ipsec")]
pub(super) const SEALED: u16 = u16::MAX - 2;
/// A policy lets it go no further.
#[cfg(feature = "ipsec")]
pub(super) const REFUSED: u16 = NO_DEVICE;
/// Places of devices are below.
const NO_DEVICE: u16 = u16::MAX - 3;

/// What is asked of common frames beyond forwarding, while their headers are examined.
pub(super) trait Inspect<B> {
    /// The frames from `place` on came in by `ingress`; `frames` is the whole batch.
    fn enter(&mut self, ingress: &Ingress, place: usize, frames: &[Frame<B>]);

    /// Whether the common IPv4 frame `data`, which begins with `head`, at `place` of the batch leaves the common way.
    fn takes4(&mut self, place: usize, head: &[u8; HEAD4], data: &[u8], destination: u32) -> bool;

    /// Whether the common IPv6 frame `data`, which begins with `head`, at `place` of the batch leaves the common way.
    fn takes6(&mut self, place: usize, head: &[u8; HEAD6], data: &[u8], destination: u128) -> bool;
}

/// Forwarding asks no more.
pub(super) struct Nothing;

impl<B> Inspect<B> for Nothing {
    #[inline(always)]
    fn enter(&mut self, _: &Ingress, _: usize, _: &[Frame<B>]) {}

    #[inline(always)]
    fn takes4(&mut self, _: usize, _: &[u8; HEAD4], _: &[u8], _: u32) -> bool {
        false
    }

    #[inline(always)]
    fn takes6(&mut self, _: usize, _: &[u8; HEAD6], _: &[u8], _: u128) -> bool {
        false
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Slow,
    V4,
    V6,
}

/// Scratch of one batch. What walks it is compiled by itself, never into whoever calls it: a caller with more to do, as
/// builds with IPsec have, changes nothing in these loops. (Small helpers that others call too may be inlined otherwise.)
#[derive(Debug)]
pub(super) struct Stage {
    class: [Class; BATCH],
    /// Destinations in order, each family densely: entry *k* belongs to the *k*-th frame of its class.
    dst4: [u32; BATCH],
    dst6: [u128; BATCH],
    value4: [u32; BATCH],
    value6: [u32; BATCH],
    count4: usize,
    count6: usize,
    /// A frame of the batch came in by a port that asks whether its source leads back to it.
    checks_sources: bool,
    /// The device each frame leaves by, or [`SLOW`].
    pub place: [u16; BATCH],
}

impl Stage {
    pub fn new() -> Self {
        Stage {
            class: [Class::Slow; BATCH],
            dst4: [0; BATCH],
            dst6: [0; BATCH],
            value4: [0; BATCH],
            value6: [0; BATCH],
            count4: 0,
            count6: 0,
            checks_sources: false,
            place: [SLOW; BATCH],
        }
    }

    /// Examines the headers of every frame of the batch, once, and gathers the destinations of the common ones. What
    /// `inspect` takes is common, counted as received, and left to whoever inspects.
    #[inline(never)]
    pub fn classify<B: Buffer>(
        &mut self,
        tables: &Tables,
        own: &OwnAddresses,
        frames: &[Frame<B>],
        counters: &mut [PortCounters],
        inspect: &mut impl Inspect<B>,
    ) {
        let (mut n4, mut n6) = (0, 0);
        let mut ingress = Ingress::of(tables, frames.first().map_or(DeviceId(0), |f| f.device));
        let mut seen = PortCounters::default();
        self.checks_sources = ingress.checks_sources;
        inspect.enter(&ingress, 0, frames);
        for (place, (class, frame)) in self.class.iter_mut().zip(frames).enumerate() {
            if frame.device != ingress.device {
                received(counters, &ingress, &mut seen);
                ingress = Ingress::of(tables, frame.device);
                self.checks_sources |= ingress.checks_sources;
                inspect.enter(&ingress, place, frames);
            }
            let data = frame.data();
            *class = Class::Slow;
            let Some(head) = data.first_chunk::<HEAD4>() else { continue };
            match u16::from_le_bytes([head[12], head[13]]) {
                ETHERTYPE_IPV4 => {
                    let (common, dst) = classify4(head, data.len(), &ingress, own);
                    self.dst4[n4 % BATCH] = dst;
                    if common || mistaken4(head, data.len(), &ingress, own) {
                        seen.rx_packets += 1;
                        seen.rx_bytes += data.len() as u64;
                        if !inspect.takes4(place, head, data, dst) {
                            *class = Class::V4;
                            n4 += 1;
                        }
                    }
                }
                ETHERTYPE_IPV6 => {
                    let Some(head) = data.first_chunk::<HEAD6>() else { continue };
                    let (common, dst) = classify6(head, data.len(), &ingress, own);
                    self.dst6[n6 % BATCH] = dst;
                    if common || mistaken6(head, data.len(), &ingress, own) {
                        seen.rx_packets += 1;
                        seen.rx_bytes += data.len() as u64;
                        if !inspect.takes6(place, head, data, dst) {
                            *class = Class::V6;
                            n6 += 1;
                        }
                    }
                }
                _ => {}
            }
        }
        received(counters, &ingress, &mut seen);
        (self.count4, self.count6) = (n4.min(BATCH), n6.min(BATCH));
    }

    /// The device that all `count` frames of the batch leave by, if it is one: they are moved at once then.
    #[inline(always)]
    pub fn common_device(&self, count: usize) -> Option<u16> {
        let places = self.place.get(..count)?;
        let &first = places.first()?;
        // No early exit: several are compared at a time.
        let differ = places.iter().fold(0, |differ, &place| differ | (place ^ first));
        (differ == 0 && first < NO_DEVICE).then_some(first)
    }

    /// The place of frame `at`, and how many frames from it on, of `count` in the batch, share it.
    #[inline(always)]
    pub fn run(&self, at: usize, count: usize) -> (u16, usize) {
        let place = self.place[at];
        (place, self.place[at..count].iter().take_while(|&&p| p == place).count())
    }

    /// Looks up destinations; and where a port of the batch asks for it, sources.
    #[inline(never)]
    pub fn look_up<B: Buffer>(&mut self, tables: &Tables, frames: &[Frame<B>]) {
        if self.count4 > 0 {
            tables.fib4.lookup_batch(&self.dst4[..self.count4], &mut self.value4[..self.count4]);
        }
        if self.count6 > 0 {
            tables.fib6.lookup_batch(&self.dst6[..self.count6], &mut self.value6[..self.count6]);
        }
        if self.checks_sources {
            self.check_sources(tables, frames);
        }
    }

    /// Takes their route from common frames whose source does not lead back to the port that asks (RFC 3704): so they go the
    /// slow path, which says why they are dropped.
    #[inline(never)]
    fn check_sources<B: Buffer>(&mut self, tables: &Tables, frames: &[Frame<B>]) {
        let (mut src4, mut src6) = ([0; BATCH], [0; BATCH]);
        let (mut back4, mut back6) = ([NO_ROUTE; BATCH], [NO_ROUTE; BATCH]);
        let (mut n4, mut n6) = (0, 0);
        for (class, frame) in self.class.iter().zip(frames) {
            match (class, frame.data()) {
                (Class::V4, data) => {
                    src4[n4 % BATCH] = data.first_chunk::<HEAD4>().map_or(0, |head| get32(head, 26));
                    n4 += 1;
                }
                (Class::V6, data) => {
                    let address = |head: &[u8; HEAD6]| u128::from_be_bytes(get_array(head, 22));
                    src6[n6 % BATCH] = data.first_chunk::<HEAD6>().map_or(0, address);
                    n6 += 1;
                }
                (Class::Slow, _) => {}
            }
        }
        tables.fib4.lookup_batch(&src4[..self.count4], &mut back4[..self.count4]);
        tables.fib6.lookup_batch(&src6[..self.count6], &mut back6[..self.count6]);
        (n4, n6) = (0, 0);
        let mut last = None;
        for (class, frame) in self.class.iter().zip(frames) {
            let (back, value) = match class {
                Class::V4 => (back4[n4 % BATCH], &mut self.value4[n4 % BATCH]),
                Class::V6 => (back6[n6 % BATCH], &mut self.value6[n6 % BATCH]),
                Class::Slow => continue,
            };
            n4 += usize::from(*class == Class::V4);
            n6 += usize::from(*class == Class::V6);
            let judged = (frame.device, back);
            let leads = match last {
                Some((same, leads)) if same == judged => leads,
                _ => {
                    let id =
                        tables.devices.get(frame.device.index()).and_then(|d| d.untagged).unwrap_or_default();
                    let port = tables.ports.get(id.index());
                    port.is_some_and(|port| leads_back(tables, back, (id, port)))
                }
            };
            last = Some((judged, leads));
            if !leads {
                *value = NO_ROUTE;
            }
        }
    }

    /// Calls `with` with the place and destination of each common frame of `count` in the batch, in order.
    #[cfg(feature = "ipsec")]
    #[inline]
    pub fn each_common(&self, count: usize, mut with: impl FnMut(usize, IpAddr)) {
        let (mut n4, mut n6) = (0, 0);
        for (place, class) in self.class.iter().take(count).enumerate() {
            match class {
                Class::Slow => {}
                Class::V4 => {
                    with(place, IpAddr::V4(self.dst4[n4 % BATCH].into()));
                    n4 += 1;
                }
                Class::V6 => {
                    with(place, IpAddr::V6(self.dst6[n6 % BATCH].into()));
                    n6 += 1;
                }
            }
        }
    }

    /// Places of common frames that forwarding declined, of `count` in the batch.
    #[cfg(feature = "ipsec")]
    pub fn declined(&self, count: usize) -> impl Iterator<Item = usize> {
        let places = self.place.iter().take(count).enumerate();
        places.filter(|(_, place)| **place == SLOW_COUNTED).map(|(at, _)| at)
    }

    /// Gives the frames of these bits a place that follows from more than forwarding.
    #[cfg(feature = "ipsec")]
    #[inline]
    pub fn divert(&mut self, mut frames: u64, place: u16) {
        while frames != 0 {
            self.place[frames.trailing_zeros() as usize % BATCH] = place;
            frames &= frames - 1;
        }
    }

    /// Whether every common frame of the batch is IPv4, and so has a header without options.
    #[cfg(feature = "ipsec")]
    pub fn is_all_ipv4(&self) -> bool {
        self.count6 == 0
    }

    /// Destinations of the batch's common frames.
    #[cfg(feature = "ipsec")]
    pub fn destinations(&self) -> (&[u32], &[u128]) {
        (&self.dst4[..self.count4], &self.dst6[..self.count6])
    }

    /// How many of the common frames at `places` are IPv4 and IPv6.
    #[cfg(feature = "ipsec")]
    #[inline]
    pub fn families(&self, places: std::ops::Range<usize>) -> [u64; 2] {
        let all = places.len() as u64;
        if self.count4 == 0 || self.count6 == 0 {
            return if self.count6 == 0 { [all, 0] } else { [0, all] };
        }
        let v6 = self.class[places].iter().filter(|&&class| class == Class::V6).count() as u64;
        [all - v6, v6]
    }

    /// Finds each common frame's adjacency and rewrites the frame for it; sets [`Stage::place`].
    #[inline(never)]
    pub fn rewrite<B: Buffer>(
        &mut self,
        tables: &Tables,
        key: &FlowKey,
        neighbor_cache: &mut NeighborCache,
        frames: &mut [Frame<B>],
        devices: usize,
    ) {
        let (mut n4, mut n6) = (0, 0);
        for ((place, class), frame) in self.place.iter_mut().zip(&self.class).zip(frames) {
            *place = match *class {
                Class::Slow => Some(SLOW),
                Class::V4 => {
                    let (value, dst) = (self.value4[n4 % BATCH], self.dst4[n4 % BATCH]);
                    n4 += 1;
                    let next = adjacency(
                        tables,
                        value,
                        |port| neighbor_cache.find4(tables, port, dst),
                        || key.of_ipv4(&Ipv4::new_unchecked(&frame.data()[ETHERNET..])),
                    );
                    rewrite4(next, frame, devices)
                }
                Class::V6 => {
                    let (value, dst) = (self.value6[n6 % BATCH], self.dst6[n6 % BATCH]);
                    n6 += 1;
                    let next = adjacency(
                        tables,
                        value,
                        |port| neighbor_cache.find6(tables, port, dst),
                        || key.of_ipv6(&Ipv6::new_unchecked(&frame.data()[ETHERNET..])),
                    );
                    rewrite6(next, frame, devices)
                }
            }
            .unwrap_or(SLOW_COUNTED);
        }
    }
}

/// Adds what was seen on an ingress to its port.
#[inline]
fn received(counters: &mut [PortCounters], ingress: &Ingress, seen: &mut PortCounters) {
    if let Some(port) = counters.get_mut(ingress.port.index()) {
        port.rx_packets += seen.rx_packets;
        port.rx_bytes += seen.rx_bytes;
    }
    *seen = PortCounters::default();
}

/// Whether an IPv4 frame is common, and its destination. All checks are taken, none is branched on.
#[inline(always)]
fn classify4(head: &[u8; HEAD4], len: usize, ingress: &Ingress, own: &OwnAddresses) -> (bool, u32) {
    // 0: destination MAC; 14: version … flags; 22: TTL, protocol, checksum, source; 30: destination.
    let (mac, first, second) = (word(head, 0), word(head, 14), word(head, 22));
    let last = u32::from_le_bytes([head[30], head[31], head[32], head[33]]);
    let sum = (first & LOW_HALF) + (first >> 32) + (second & LOW_HALF) + (second >> 32) + u64::from(last);
    let total = usize::from(((first >> 16) as u16).swap_bytes());
    let (src, dst) = (((second >> 32) as u32).swap_bytes(), last.swap_bytes());
    let common = ingress.plain
        & (mac & ingress.mac_mask == ingress.mac)
        & (first as u8 == 0x45)
        & (total >= HEAD4 - ETHERNET)
        & (total + ETHERNET <= len)
        & (second as u8 > 1)
        // The header with its checksum sums to −0: a multiple of 2¹⁶ − 1, and never 0 (byte 0 is 0x45).
        & sum.is_multiple_of(0xffff)
        & unicast4(src)
        & unicast4(dst)
        & !(ingress.foreign & own.maybe4(src));
    (common, dst)
}

/// Whether a frame is common but for its source, which the filter takes for one of ours and which is none. Some sources are, and
/// all their frames would take the slow path.
#[cold]
#[inline(never)]
fn mistaken4(head: &[u8; HEAD4], len: usize, ingress: &Ingress, own: &OwnAddresses) -> bool {
    let src = get32(head, 26);
    ingress.foreign
        && own.maybe4(src)
        && !own.contains(IpAddr::V4(src.into()))
        && classify4(head, len, &Ingress { foreign: false, ..*ingress }, own).0
}

/// The same of an IPv6 frame.
#[cold]
#[inline(never)]
fn mistaken6(head: &[u8; HEAD6], len: usize, ingress: &Ingress, own: &OwnAddresses) -> bool {
    let src = u128::from_be_bytes(get_array(head, 22));
    ingress.foreign
        && own.maybe6(src)
        && !own.contains(IpAddr::V6(src.into()))
        && classify6(head, len, &Ingress { foreign: false, ..*ingress }, own).0
}

/// Eight bytes at a constant offset, in little-endian order: one load.
#[inline(always)]
fn word<const N: usize>(head: &[u8; N], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&head[at..at + 8]);
    u64::from_le_bytes(bytes)
}

const LOW_HALF: u64 = 0xffff_ffff;

/// Neither 0/8, 127/8, multicast nor 240/4 (RFC 1812 4.2.2.11, 5.3.7), nor link-local (RFC 3927 2.7).
#[inline(always)]
fn unicast4(address: u32) -> bool {
    let first = (address >> 24) as u8;
    (first.wrapping_sub(1) < 223) & (first != 127) & (address >> 16 != 0xa9fe)
}

/// Whether an IPv6 frame is common, and its destination.
#[inline(always)]
fn classify6(head: &[u8; HEAD6], len: usize, ingress: &Ingress, own: &OwnAddresses) -> (bool, u128) {
    let mac = word(head, 0);
    let address =
        |at| u128::from(word(head, at).swap_bytes()) << 64 | u128::from(word(head, at + 8).swap_bytes());
    let (src, dst) = (address(22), address(38));
    let payload = usize::from(u16::from_be_bytes([head[18], head[19]]));
    let common = ingress.plain
        & (mac & ingress.mac_mask == ingress.mac)
        & (head[14] >> 4 == 6)
        & (payload + HEAD6 <= len)
        & !EXTENSION[usize::from(head[20])]
        & (head[21] > 1)
        & global6(src)
        & global6(dst)
        & !(ingress.foreign & own.maybe6(src));
    (common, dst)
}

/// Whether an address is not in ::/64 (unspecified, loopback, v4-mapped) and below fe80:: (link-local, site-local, multicast):
/// one comparison.
#[inline(always)]
fn global6(address: u128) -> bool {
    let upper = (address >> 64) as u64;
    upper.wrapping_sub(1) < 0xfe80_0000_0000_0000 - 1
}

/// Next headers that start an extension chain: the slow path walks it.
const EXTENSION: [bool; 256] = {
    let mut table = [false; 256];
    let extensions = [0, 43, 44, 51, 60, 135, 139, 140];
    let mut i = 0;
    while i < extensions.len() {
        table[extensions[i]] = true;
        i += 1;
    }
    table
};

/// The adjacency a FIB value leads to, when it is one the fast path takes.
#[inline(always)]
fn adjacency(
    tables: &Tables,
    value: u32,
    neighbor: impl FnOnce(PortId) -> Option<AdjacencyId>,
    hash: impl FnOnce() -> u32,
) -> Option<&Adjacency> {
    let id = match *tables.targets.get(value as usize)? {
        Target::Adjacent(id) => id,
        Target::Connected(port) => neighbor(port)?,
        Target::Multipath { first, len } => {
            *tables.multipath.get((first + flow::pick(hash(), len.max(1))) as usize)?
        }
        _ => return None,
    };
    tables.adjacencies.get(id.0 as usize).filter(|a| a.ready && a.vlan.is_none())
}

#[inline(always)]
fn rewrite4<B: Buffer>(next: Option<&Adjacency>, frame: &mut Frame<B>, devices: usize) -> Option<u16> {
    let next = next?;
    let head = frame.data_mut().first_chunk_mut::<HEAD4>()?;
    let total = u16::from_be_bytes([head[16], head[17]]);
    if total > next.mtu || next.egress.index() >= devices {
        return None;
    }
    head[..12].copy_from_slice(&next.header);
    head[22] -= 1;
    let check = after_ttl_decrement(u16::from_be_bytes([head[24], head[25]])).to_be_bytes();
    (head[24], head[25]) = (check[0], check[1]);
    frame.truncate(ETHERNET + usize::from(total));
    frame.device = next.device;
    Some(next.egress.0)
}

#[inline(always)]
fn rewrite6<B: Buffer>(next: Option<&Adjacency>, frame: &mut Frame<B>, devices: usize) -> Option<u16> {
    let next = next?;
    let head = frame.data_mut().first_chunk_mut::<HEAD6>()?;
    let total = usize::from(u16::from_be_bytes([head[18], head[19]])) + HEAD6 - ETHERNET;
    if total > usize::from(next.mtu) || next.egress.index() >= devices {
        return None;
    }
    head[..12].copy_from_slice(&next.header);
    head[21] -= 1;
    frame.truncate(ETHERNET + total);
    frame.device = next.device;
    Some(next.egress.0)
}
