//! What the data path reads: one immutable snapshot of ports, routes and neighbours.
//!
//! ```text
//! destination ─► Fib4 / Fib6 ─► value ─► targets[value] ─► Adjacency { port, MAC header }
//!                                                    └──► Connected(port) ─► neighbours ─► Adjacency
//! ```
//!
//! The control side builds a new `Tables` for each change and publishes it; workers pick it up between
//! batches. Nothing in here is changed in place. Large parts sit behind `Arc`, so a change of one
//! neighbour copies no routes.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::id::{AdjacencyId, Mac, PortId};
use crate::ipsec::Ipsec;
use crate::packet::DeviceId;
use crate::route::{Fib4, Fib6, Prefix};
use crate::verdict::Reason;

/// One snapshot.
#[derive(Clone, Debug)]
pub struct Tables {
    /// Raised by one with every snapshot published.
    pub generation: u64,
    pub devices: Arc<[Device]>,
    pub ports: Arc<[Port]>,
    pub fib4: Arc<Fib4>,
    pub fib6: Arc<Fib6>,
    /// What a FIB value means. `targets[0]` is [`Target::NoRoute`].
    pub targets: Arc<[Target]>,
    /// Buckets of multipath targets; a weight of two takes two buckets.
    pub multipath: Arc<[AdjacencyId]>,
    pub adjacencies: Arc<[Adjacency]>,
    /// Resolved and resolving neighbours on connected networks.
    pub neighbors: Arc<HashMap<(PortId, IpAddr), AdjacencyId>>,
    pub settings: Settings,
    pub ipsec: Option<Arc<Ipsec>>,
}

impl Tables {
    /// The port a frame on `device` belongs to, by its VLAN tag (id 0 counts as untagged).
    pub fn port_of(&self, device: DeviceId, frame: &[u8]) -> Option<PortId> {
        let device = self.devices.get(device.index())?;
        let id = match frame.get(12..16) {
            Some(&[0x81, 0x00, upper, lower]) => u16::from_be_bytes([upper & 0x0f, lower]),
            _ => 0,
        };
        if id == 0 {
            return device.untagged;
        }
        let at = device.tagged.binary_search_by_key(&id, |&(id, _)| id).ok()?;
        Some(device.tagged[at].1)
    }
}

/// Which ports a device carries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    pub name: String,
    pub untagged: Option<PortId>,
    /// VLAN id → port, sorted by id.
    pub tagged: Vec<(u16, PortId)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub name: String,
    pub kind: PortKind,
    /// What comes in on it comes from here.
    pub device: DeviceId,
    /// What leaves by it goes here: its device, or the policy enforcement point before it.
    pub egress: DeviceId,
    /// 802.1Q VLAN id, 1…4094.
    pub vlan: Option<u16>,
    pub mac: Mac,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Point-to-point: no neighbours, the MAC header is filler (TUN).
    pub point_to_point: bool,
    pub up: bool,
    pub reverse_path: ReversePath,
    /// Our addresses on this port, with prefix length and who answers for them.
    pub addresses: Vec<PortAddress>,
}

impl Port {
    /// The first IPv4 address, the source of our ICMP errors on this port.
    pub fn first_ipv4(&self) -> Option<Ipv4Addr> {
        self.addresses.iter().find_map(|a| match a.address {
            IpAddr::V4(v4) => Some(v4),
            IpAddr::V6(_) => None,
        })
    }

    /// The first IPv6 address, global before link-local.
    pub fn first_ipv6(&self) -> Option<Ipv6Addr> {
        let all = || {
            self.addresses.iter().filter_map(|a| match a.address {
                IpAddr::V6(v6) => Some(v6),
                IpAddr::V4(_) => None,
            })
        };
        all().find(|a| !a.is_unicast_link_local()).or_else(|| all().next())
    }
}

/// What a port is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PortKind {
    /// A port on a device of the machine.
    #[default]
    Device,
    /// An IPsec tunnel of route mode.
    Tunnel,
    /// Where packets of policy mode arrive once opened.
    Policy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortAddress {
    pub address: IpAddr,
    pub prefix_len: u8,
    pub owner: Owner,
}

impl PortAddress {
    /// The subnet-router anycast address of its network (RFC 4291 2.6.1), where the kernel answers for it: in networks
    /// of more than two addresses (RFC 6164 5).
    pub fn anycast(&self) -> Option<Ipv6Addr> {
        match self.address {
            IpAddr::V6(address) if self.owner == Owner::Kernel => subnet_router(address, self.prefix_len),
            _ => None,
        }
    }

    /// The network this address is in.
    pub fn network(&self) -> Prefix {
        Prefix::new(self.address, self.prefix_len)
    }

    /// Whether `other` is in the same network.
    pub fn covers(&self, other: IpAddr) -> bool {
        self.address.is_ipv4() == other.is_ipv4() && Prefix::new(other, self.prefix_len) == self.network()
    }
}

/// The subnet-router anycast address of the network `address` is in, if that has one (RFC 4291 2.6.1, RFC 6164 5).
pub fn subnet_router(address: Ipv6Addr, prefix_len: u8) -> Option<Ipv6Addr> {
    let host = u128::MAX.checked_shr(prefix_len.into())?;
    (1..=126).contains(&prefix_len).then(|| Ipv6Addr::from(u128::from(address) & !host))
}

/// Who answers ARP, NDP and echo for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The kernel has the address too: what is for it goes to the kernel.
    Kernel,
    /// Only weir has it: weir answers ARP, neighbour solicitation and echo, nothing else.
    Weir,
}

/// RFC 3704 reverse-path check of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReversePath {
    #[default]
    Off,
    /// The best route back leaves by the port the packet came in on.
    Strict,
    /// Some route back exists; a default route counts, a discard does not.
    Loose,
}

/// What a FIB value leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    NoRoute,
    /// A gateway (or the far end of a point-to-point port).
    Adjacent(AdjacencyId),
    /// `multipath[first..first + len]`, chosen by flow hash.
    Multipath {
        first: u32,
        len: u32,
    },
    /// The destination is on this port's own network: ask [`Tables::neighbors`].
    Connected(PortId),
    /// One of our addresses.
    Local(PortId),
    /// Broadcast address of a connected IPv4 network.
    Broadcast(PortId),
    /// [`Reason::Blackhole`], [`Reason::Unreachable`] or [`Reason::Prohibited`].
    Discard(Reason),
}

/// A next hop on a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adjacency {
    pub port: PortId,
    /// The port's device.
    pub device: DeviceId,
    /// The queue frames go to: the device's, or that of the policy enforcement point before it.
    pub egress: DeviceId,
    pub next_hop: IpAddr,
    /// Destination and source MAC; meaningful when `ready`.
    pub header: [u8; 12],
    /// The neighbour's MAC is known (or none is needed) and the port is up.
    pub ready: bool,
    pub vlan: Option<u16>,
    /// The port's MTU.
    pub mtu: u16,
}

/// Limits and rates of the data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// ICMP errors a second a worker may originate (RFC 1812 4.3.2.8, RFC 4443 2.4 f).
    pub icmp_errors_per_second: u32,
    /// ICMP errors a worker may originate in one burst.
    pub icmp_error_burst: u32,
    /// Frames held for one unresolved next hop, per worker.
    pub hold_per_neighbor: u16,
    /// Frames held in all, per worker.
    pub hold_total: u16,
    /// IPv6 transit whose extension headers lead nowhere, or with a type 0 routing header, is dropped. Off: a router
    /// forwards it (RFC 8200 4, RFC 7045 2.1).
    pub check_extensions: bool,
}

impl Default for Settings {
    fn default() -> Self {
        // 1,000/s is Linux's icmp_msgs_per_sec, 50 its burst; 3 per neighbour is Linux's old
        // unres_qlen, doubled for bursts of a window; 1,024 × 2 KiB = 2 MiB a worker.
        Settings {
            icmp_errors_per_second: 1000,
            icmp_error_burst: 50,
            hold_per_neighbor: 6,
            hold_total: 1024,
            check_extensions: false,
        }
    }
}
