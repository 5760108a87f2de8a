//! The express lane: the XDP program itself forwards what the router has decided before.
//!
//! ```text
//! first packet of (in, source, destination) ─► router ─► learn ─┐
//! the next ones ─► XDP: same pair, same snapshot, plain header? ┴─► rewrite ─► out, no socket buffer
//!                                                       └─ no ──► router, as ever
//! ```
//!
//! Why: in copy mode a frame sent through a socket costs a socket buffer (some 330 ns), more than the
//! rest of its way together. A frame redirected by the program costs none.
//!
//! Promises: only what the router would do with the frame happens to it. An entry holds for one
//! snapshot of the tables ([`Express::set_generation`]), one incoming interface and one pair of
//! addresses; the program itself checks what differs from packet to packet: the MAC address, IPv4
//! header checksum, lengths, TTL and the outgoing MTU. Everything else (options, fragments, extension
//! headers, VLAN tags, TTL 1, too big, unknown) goes to the router. Frames and bytes are counted by
//! device, for the ledger.
//!
//! No frame overtakes another of its pair. Frames on their way to the router are numbered, the worker
//! says up to which number everything has left ([`Progress::done`]), and the program remembers with each
//! pair its last frame that went that way: until it has left, the next ones follow it.
//!
//! Refuses: interfaces with several queues (one could overtake another), next hops chosen by flow (ECMP looks at ports), and interfaces that cannot take frames
//! from XDP ([`crate::bpf::features::can_transmit`]); the caller must not teach such pairs.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use weir_core::id::Mac;
use weir_core::packet::{Buffer, DeviceId, Frame};

use super::SteerError;
use crate::bpf::object::{Map, MapKind, SharedWords};

/// Pairs of addresses of one family: 65,536 × some 120 B = 8 MiB; the least recently used go first.
pub const MAX_PAIRS: u32 = 1 << 16;

/// Devices with express counters.
pub const MAX_DEVICES: u32 = 256;

/// One entry as the program reads it, 56 bytes. Offsets are the program's too.
pub(super) mod entry {
    pub const GENERATION: i16 = 0;
    pub const IN_IFINDEX: i16 = 8;
    pub const OUT_IFINDEX: i16 = 12;
    pub const MTU: i16 = 16;
    pub const OUT_DEVICE: i16 = 20;
    pub const IN_MAC: i16 = 24;
    /// Destination and source, as they leave.
    pub const OUT_MACS: i16 = 32;
    /// Number of the pair's last frame that went to the router; 0 when none is known. The
    /// program's to write.
    pub const LAST_SLOW: i16 = 48;
    pub const SIZE: usize = 56;
}

/// What program and worker tell each other, a cache line each.
pub(super) mod progress {
    /// The number given last.
    pub const STEERED: i16 = 0;
    /// Every frame up to this number has left the router, or is lost.
    pub const DONE: i16 = 64;
    pub const SIZE: usize = 128;
    /// Metadata before a steered frame: its number.
    pub const NUMBER_SIZE: usize = 8;
}

/// How far the worker of an interface has come.
#[derive(Debug)]
pub struct Progress(pub(super) SharedWords);

impl Progress {
    /// Every frame up to `number` has been sent, dropped or lost.
    #[inline]
    pub fn done(&self, number: u64) {
        // Release: the system calls that sent the frames come before.
        self.0.word(progress::DONE as usize / 8).store(number, Ordering::Release);
    }

    /// The number a steered frame carries before its first byte.
    #[inline]
    pub fn number<B: Buffer>(frame: &Frame<B>) -> Option<u64> {
        let before = frame.buffer().bytes().get(..frame.start())?;
        before.last_chunk::<{ progress::NUMBER_SIZE }>().map(|bytes| u64::from_ne_bytes(*bytes))
    }
}

/// Counters of one device on one CPU.
pub(super) mod counter {
    pub const RX_PACKETS: i16 = 0;
    pub const RX_BYTES: i16 = 8;
    pub const TX_PACKETS: i16 = 16;
    pub const TX_BYTES: i16 = 24;
    pub const SIZE: usize = 32;
}

/// What the router decided about a pair of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decided {
    /// [`weir_core::tables::Tables::generation`] of the snapshot it was decided by.
    pub generation: u64,
    pub source: IpAddr,
    pub destination: IpAddr,
    pub in_ifindex: u32,
    /// The port's own MAC address.
    pub in_mac: Mac,
    pub out_ifindex: u32,
    pub out_device: DeviceId,
    /// The outgoing port's MTU: IP bytes.
    pub mtu: u16,
    /// Destination and source MAC address of the outgoing frame.
    pub out_macs: [u8; 12],
}

/// What went by the express lane on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpressCounters {
    pub rx_packets: u64,
    pub rx_bytes: u64,
    pub tx_packets: u64,
    pub tx_bytes: u64,
}

/// The maps behind the express lane, shared by the programs of all interfaces.
#[derive(Debug)]
pub struct Express {
    pub(super) pairs4: Map,
    pub(super) pairs6: Map,
    pub(super) generation: Map,
    pub(super) counters: Map,
}

/// No snapshot has this number: nothing is express until one is set.
const NO_GENERATION: u64 = u64::MAX;

impl Express {
    pub fn new() -> Result<Express, SteerError> {
        let express = Express {
            pairs4: Map::new("weir_pairs4", MapKind::LruHash, 8, entry::SIZE, MAX_PAIRS)?,
            pairs6: Map::new("weir_pairs6", MapKind::LruHash, 32, entry::SIZE, MAX_PAIRS)?,
            generation: Map::new("weir_generation", MapKind::Array, 4, 8, 1)?,
            counters: Map::new("weir_express", MapKind::PerCpuArray, 4, counter::SIZE, MAX_DEVICES)?,
        };
        express.set_generation(NO_GENERATION)?;
        Ok(express)
    }

    /// From the next frame on only decisions of this snapshot hold. Call it right after publishing.
    pub fn set_generation(&self, generation: u64) -> Result<(), SteerError> {
        Ok(self.generation.update(&0u32.to_ne_bytes(), &generation.to_ne_bytes())?)
    }

    /// Sends everything to the router again.
    pub fn close(&self) -> Result<(), SteerError> {
        self.set_generation(NO_GENERATION)
    }

    /// Remembers a decision, unless it is remembered already; the least recently used one may go for
    /// it. One or two system calls.
    pub fn learn(&self, decided: &Decided) -> Result<(), SteerError> {
        match (decided.source, decided.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                remember(&self.pairs4, &[source.octets(), destination.octets()].concat(), decided)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                remember(&self.pairs6, &[source.octets(), destination.octets()].concat(), decided)
            }
            // Two families are no pair: nothing to remember.
            _ => Ok(()),
        }
    }

    /// What a device received and sent by the express lane.
    pub fn counters(&self, device: DeviceId) -> Result<ExpressCounters, SteerError> {
        let words = self.counters.sum(u32::from(device.0))?;
        let word = |at: i16| words.get(at as usize / 8).copied().unwrap_or(0);
        Ok(ExpressCounters {
            rx_packets: word(counter::RX_PACKETS),
            rx_bytes: word(counter::RX_BYTES),
            tx_packets: word(counter::TX_PACKETS),
            tx_bytes: word(counter::TX_BYTES),
        })
    }
}

fn remember(pairs: &Map, key: &[u8], decided: &Decided) -> Result<(), SteerError> {
    let wanted = value(decided);
    let mut known = [0; entry::SIZE];
    // Writing it again would forget which frame of the pair is on its way.
    let same = pairs.read(key, &mut known).is_ok()
        && known[..entry::LAST_SLOW as usize] == wanted[..entry::LAST_SLOW as usize];
    if same { Ok(()) } else { Ok(pairs.update(key, &wanted)?) }
}

pub(super) fn value(decided: &Decided) -> [u8; entry::SIZE] {
    let mut value = [0; entry::SIZE];
    let mut put =
        |at: i16, bytes: &[u8]| value[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    put(entry::GENERATION, &decided.generation.to_ne_bytes());
    put(entry::IN_IFINDEX, &decided.in_ifindex.to_ne_bytes());
    put(entry::OUT_IFINDEX, &decided.out_ifindex.to_ne_bytes());
    put(entry::MTU, &u32::from(decided.mtu).to_ne_bytes());
    put(entry::OUT_DEVICE, &u32::from(decided.out_device.0).to_ne_bytes());
    put(entry::IN_MAC, &decided.in_mac);
    put(entry::OUT_MACS, &decided.out_macs);
    value
}
