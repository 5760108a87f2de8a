//! The inbound SAs, by SPI and destination (RFC 4301 4.1: unicast, two of the three).
//!
//! Promises: an answer after at most [`PROBES_MAX`] neighbouring slots, 8 B each, whatever is asked: who
//! scans SPIs meets a bound, and which slots a pair falls on hangs on a key drawn for each table. Refuses
//! two SAs with one SPI and destination: the later replaces the earlier.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;

use super::sa::Sa;
use super::spd::SpdId;
use crate::packet::DeviceId;
use crate::wire::flow::FlowKey;
use crate::wire::protocol;

/// Two cache lines of slots. A quarter full, a table of 65,536 SAs has runs of about a dozen; a longer one
/// makes it draw another key.
const PROBES_MAX: usize = 16;

/// Keys drawn before the table is made larger instead.
const DRAWS: u64 = 8;

/// Larger than any table: 2^22 slots are 16 for each of [`crate::state::SAS_MAX`] SAs and 32 MiB.
const SLOTS_MAX: usize = 1 << 22;

const EMPTY: u32 = u32::MAX;

/// Where a packet that came by an SA goes on.
#[derive(Clone, Debug)]
pub struct Inbound {
    pub sa: Arc<Sa>,
    /// The virtual device it arrives on: its tunnel's, or its SPD's.
    pub device: DeviceId,
    /// Policy mode: the SPD that must have a PROTECT rule for it with this SA.
    pub spd: Option<SpdId>,
}

/// Which inbound SA of a snapshot: an index into its [`Sad`], for as long as that is in hand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct InboundId(u32);

#[derive(Clone, Copy, Debug)]
struct Bucket {
    spi: u32,
    /// An index into [`Sad::entries`], or [`EMPTY`].
    at: u32,
}

/// Every inbound SA of a snapshot.
#[derive(Clone, Debug)]
pub struct Sad {
    key: FlowKey,
    /// A power of two, and at least [`PROBES_MAX`] more, so that no run wraps.
    slots: Vec<Bucket>,
    mask: u32,
    /// Slots looked at, at most.
    probes: usize,
    entries: Vec<(IpAddr, Inbound)>,
    /// Where they take packets, and whether any there does in UDP.
    destinations: HashMap<IpAddr, bool>,
}

impl Default for Sad {
    fn default() -> Self {
        Sad::new([])
    }
}

impl Sad {
    pub fn new(entries: impl IntoIterator<Item = Inbound>) -> Sad {
        let key = |i: &Inbound| (i.sa.params.spi, i.sa.params.destination);
        let unique: HashMap<(u32, IpAddr), Inbound> = entries.into_iter().map(|i| (key(&i), i)).collect();
        let entries: Vec<(IpAddr, Inbound)> =
            unique.into_iter().map(|((_, destination), inbound)| (destination, inbound)).collect();
        let mut destinations = HashMap::new();
        for (destination, inbound) in &entries {
            *destinations.entry(*destination).or_default() |= inbound.sa.params.udp.is_some();
        }
        let mut size = (4 * entries.len()).next_power_of_two().max(PROBES_MAX);
        let seed = RandomState::new();
        loop {
            for draw in 0..DRAWS {
                let key = FlowKey::new(seed.hash_one((size, draw)));
                // The last resort: every slot may have to be looked at.
                let probes = if size >= SLOTS_MAX { size } else { PROBES_MAX };
                if let Some(slots) = place(&entries, key, size, probes) {
                    return Sad { key, slots, mask: size as u32 - 1, probes, entries, destinations };
                }
            }
            size *= 2;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The SA of a packet with this SPI and destination.
    #[inline]
    pub fn find(&self, spi: u32, destination: IpAddr) -> Option<&Inbound> {
        self.get(self.id(spi, destination)?)
    }

    /// The SA that [`Sad::id`] found.
    #[inline]
    pub fn get(&self, id: InboundId) -> Option<&Inbound> {
        self.entries.get(id.0 as usize).map(|(_, inbound)| inbound)
    }

    /// Which SA a packet with this SPI and destination is of.
    #[inline]
    pub fn id(&self, spi: u32, destination: IpAddr) -> Option<InboundId> {
        let first = (hash(self.key, spi, destination) & self.mask) as usize;
        for slot in self.slots.get(first..)?.iter().take(self.probes) {
            if slot.at == EMPTY {
                return None;
            }
            if slot.spi == spi
                && let Some((at, _)) = self.entries.get(slot.at as usize)
                && *at == destination
            {
                return Some(InboundId(slot.at));
            }
        }
        None
    }

    /// Where SAs take packets, each address once.
    pub fn destinations(&self) -> impl Iterator<Item = IpAddr> {
        self.destinations.keys().copied()
    }

    /// Whether some SA takes packets to `destination`.
    pub fn takes(&self, destination: IpAddr) -> bool {
        self.destinations.contains_key(&destination)
    }

    /// Whether some SA takes packets of this protocol (ESP, or UDP around it) to `destination`.
    pub fn serves(&self, destination: IpAddr, protocol: u8) -> bool {
        self.destinations.get(&destination).is_some_and(|&udp| udp || protocol == protocol::ESP)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Inbound> {
        self.entries.iter().map(|(_, inbound)| inbound)
    }
}

/// Slots of a table; `None` when something would be more than `probes` away from where it belongs.
fn place(entries: &[(IpAddr, Inbound)], key: FlowKey, size: usize, probes: usize) -> Option<Vec<Bucket>> {
    let mut slots = vec![Bucket { spi: 0, at: EMPTY }; size + probes];
    for (at, (destination, inbound)) in entries.iter().enumerate() {
        let spi = inbound.sa.params.spi;
        let first = (hash(key, spi, *destination) & (size as u32 - 1)) as usize;
        let free = slots[first..first + probes].iter_mut().find(|s| s.at == EMPTY)?;
        *free = Bucket { spi, at: at as u32 };
    }
    Some(slots)
}

#[inline]
fn hash(key: FlowKey, spi: u32, destination: IpAddr) -> u32 {
    match destination {
        IpAddr::V4(a) => key.hash4(spi, a.to_bits(), 0, 0),
        IpAddr::V6(a) => key.hash6(u128::from(spi), a.to_bits(), 0, 0, 0),
    }
}
