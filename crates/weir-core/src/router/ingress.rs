//! What the data path keeps from a snapshot so that the common packet asks it nothing twice.
//!
//! [`OwnAddresses`] answers "is this source address one of ours?" with one bit test; [`Ingress`] is
//! what a device expects of an untagged frame; [`NeighborCache`] puts a direct-mapped table before
//! the neighbours' map. All three are rebuilt or emptied when the snapshot changes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::id::{AdjacencyId, PortId};
use crate::packet::DeviceId;
use crate::tables::{PortKind, ReversePath, Tables};

/// 4,096 bits: with 100 addresses of our own, one foreign address in 40 takes the slow path.
const FILTER_WORDS: usize = 64;

/// Our addresses and the broadcast addresses of our networks: no packet from outside may carry one
/// as its source (RFC 1812 5.3.7).
#[derive(Clone, Debug)]
pub(crate) struct OwnAddresses {
    filter: Box<[u64; FILTER_WORDS]>,
    /// Sorted.
    exact: Vec<IpAddr>,
}

impl Default for OwnAddresses {
    fn default() -> Self {
        OwnAddresses { filter: Box::new([0; FILTER_WORDS]), exact: Vec::new() }
    }
}

impl OwnAddresses {
    pub fn new(tables: &Tables) -> Self {
        let mut own = OwnAddresses::default();
        for address in tables.ports.iter().flat_map(|p| &p.addresses) {
            own.insert(address.address);
            if let (IpAddr::V4(a), 1..=30) = (address.address, address.prefix_len) {
                own.insert(Ipv4Addr::from(u32::from(a) | u32::MAX >> address.prefix_len).into());
            }
        }
        own.exact.sort_unstable();
        own
    }

    fn insert(&mut self, address: IpAddr) {
        let bit = match address {
            IpAddr::V4(a) => Self::bit4(a.into()),
            IpAddr::V6(a) => Self::bit6(a.into()),
        };
        self.filter[bit / 64 % FILTER_WORDS] |= 1 << (bit % 64);
        self.exact.push(address);
    }

    #[inline]
    pub fn contains(&self, address: IpAddr) -> bool {
        let maybe = match address {
            IpAddr::V4(a) => self.maybe4(a.into()),
            IpAddr::V6(a) => self.maybe6(a.into()),
        };
        maybe && self.exact.binary_search(&address).is_ok()
    }

    /// Whether an address may be ours; never false for one that is.
    #[inline(always)]
    pub fn maybe4(&self, address: u32) -> bool {
        self.test(Self::bit4(address))
    }

    #[inline(always)]
    pub fn maybe6(&self, address: u128) -> bool {
        self.test(Self::bit6(address))
    }

    #[inline(always)]
    fn test(&self, bit: usize) -> bool {
        self.filter[bit / 64 % FILTER_WORDS] >> (bit % 64) & 1 != 0
    }

    /// Fibonacci hashing: the upper 12 bits of the product.
    #[inline(always)]
    fn bit4(address: u32) -> usize {
        (address.wrapping_mul(0x9e37_79b1) >> 20) as usize
    }

    #[inline(always)]
    fn bit6(address: u128) -> usize {
        let folded = (address >> 64) as u64 ^ (address as u64).rotate_left(32);
        (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize
    }
}

/// What the fast path expects of untagged frames from one device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ingress {
    pub device: DeviceId,
    pub port: PortId,
    /// The port's MAC as the low 48 bits of the first eight bytes, or 0 under a mask of 0 where any
    /// MAC will do.
    pub mac: u64,
    pub mac_mask: u64,
    /// The far end of a point-to-point port may be this very host, whose source addresses are ours.
    pub foreign: bool,
    /// The fast path may take these frames.
    pub plain: bool,
    /// The port asks whether sources lead back to it (RFC 3704).
    pub checks_sources: bool,
}

impl Ingress {
    pub fn of(tables: &Tables, device: DeviceId) -> Self {
        let none = Ingress {
            device,
            port: PortId(0),
            mac: 0,
            mac_mask: 0,
            foreign: true,
            plain: false,
            checks_sources: false,
        };
        let Some(id) = tables.devices.get(device.index()).and_then(|d| d.untagged) else { return none };
        let Some(port) = tables.ports.get(id.index()) else { return none };
        let checks_sources = port.reverse_path != ReversePath::Off;
        // Its policies count packets after their sources were looked at: the slow path has that order.
        let guarded = port.egress != port.device;
        let plain = port.up && !(checks_sources && guarded);
        if port.point_to_point {
            let foreign = port.kind != PortKind::Device;
            return Ingress { port: id, foreign, plain, checks_sources, ..none };
        }
        let mut mac = [0; 8];
        mac[..6].copy_from_slice(&port.mac);
        let mac = u64::from_le_bytes(mac);
        Ingress { port: id, mac, mac_mask: 0xffff_ffff_ffff, plain, checks_sources, ..none }
    }
}

/// 1,024 × 32 B: 32 KiB a worker, enough for a few /24 networks.
const NEIGHBOR_SLOTS: usize = 1024;

/// A direct-mapped cache of [`Tables::neighbors`]; a collision overwrites. The address alone is the key:
/// within one snapshot the route table says which port an address is connected to.
#[derive(Clone, Debug)]
pub(crate) struct NeighborCache {
    slots: Box<[Neighbor]>,
}

#[derive(Clone, Copy, Debug)]
struct Neighbor {
    /// 0, an address nothing is forwarded to, marks a free slot.
    address: u128,
    adjacency: AdjacencyId,
}

const FREE: Neighbor = Neighbor { address: 0, adjacency: AdjacencyId(0) };

impl NeighborCache {
    pub fn new() -> Self {
        NeighborCache { slots: vec![FREE; NEIGHBOR_SLOTS].into() }
    }

    pub fn clear(&mut self) {
        self.slots.fill(FREE);
    }

    /// IPv4 addresses are kept v4-mapped, which no IPv6 packet on a wire may carry.
    #[inline]
    pub fn find4(&mut self, tables: &Tables, port: PortId, address: u32) -> Option<AdjacencyId> {
        self.find(tables, port, 0xffff_0000_0000 | u128::from(address), || Ipv4Addr::from(address).into())
    }

    #[inline]
    pub fn find6(&mut self, tables: &Tables, port: PortId, address: u128) -> Option<AdjacencyId> {
        self.find(tables, port, address, || Ipv6Addr::from(address).into())
    }

    #[inline]
    fn find(
        &mut self,
        tables: &Tables,
        port: PortId,
        address: u128,
        key: impl FnOnce() -> IpAddr,
    ) -> Option<AdjacencyId> {
        let folded = (address >> 64) as u64 ^ address as u64;
        let at = (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize % NEIGHBOR_SLOTS;
        let slot = &mut self.slots[at];
        if slot.address == address {
            return Some(slot.adjacency);
        }
        let adjacency = *tables.neighbors.get(&(port, key()))?;
        *slot = Neighbor { address, adjacency };
        Some(adjacency)
    }
}
