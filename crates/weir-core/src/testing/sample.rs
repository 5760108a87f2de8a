//! A small network of every kind of port and route, for tests and fuzzing.
//!
//! ```text
//! device lan ─┬─ port lan     10.0.0.1/24    fd00::1/64         fe80::1   weir answers
//!             ├─ port lan.10  10.10.0.1/24   fd00:10::1/64      MTU 1300  weir answers
//!             └─ port lan.20  10.20.0.1/24   fd00:20::1/64      reverse path strict
//! device wan ─── port wan     192.0.2.1/24   2001:db8:1::1/64   fe80::2   the kernel answers
//! device tun ─── port tun     10.9.0.1/30    fd00:9::1/64       point-to-point
//! ```
//!
//! Routes are named by their second or third number, alike in both families: 10.N/16 and 2001:db8:N::/48.
//! 100 by a gateway on wan, 200 by two of them, 95 by lan.10, 9 by tun, 96 by a gateway that is unresolved,
//! 97 prohibited, 98 unreachable, 99 blackhole.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::id::{AdjacencyId, Mac, PortId};
use crate::ipsec::Ipsec;
use crate::packet::DeviceId;
use crate::route::{Prefix, RouteTable4, RouteTable6};
use crate::tables::{
    Adjacency, Device, Owner, Port, PortAddress, PortKind, ReversePath, Settings, Tables, Target,
};
use crate::verdict::Reason;

pub const LAN: PortId = PortId(0);
pub const WAN: PortId = PortId(1);
pub const TUN: PortId = PortId(2);
pub const LAN_10: PortId = PortId(3);
pub const LAN_20: PortId = PortId(4);

pub const LAN_DEVICE: DeviceId = DeviceId(0);
pub const WAN_DEVICE: DeviceId = DeviceId(1);
pub const TUN_DEVICE: DeviceId = DeviceId(2);

/// A port's own MAC.
pub fn mac(port: PortId) -> Mac {
    [2, 0, 0, 0, 0, port.0 as u8 + 1]
}

/// The MAC of a neighbour, by the last number of its address.
pub fn neighbor_mac(port: PortId, last: u8) -> Mac {
    [2, 0, 0, 1, port.0 as u8, last]
}

/// The network being built; [`Net::tables`] is a snapshot of it, each with a new generation.
#[derive(Clone, Debug)]
pub struct Net {
    pub ports: Vec<Port>,
    pub settings: Settings,
    pub ipsec: Option<Arc<Ipsec>>,
    devices: Vec<Device>,
    rib4: RouteTable4,
    rib6: RouteTable6,
    targets: Vec<Target>,
    multipath: Vec<AdjacencyId>,
    adjacencies: Vec<Adjacency>,
    neighbors: HashMap<(PortId, IpAddr), AdjacencyId>,
    generation: u64,
}

impl Default for Net {
    fn default() -> Self {
        Net::new()
    }
}

impl Net {
    pub fn new() -> Self {
        let device = |name: &str, untagged, tagged: &[(u16, PortId)]| Device {
            name: name.into(),
            untagged: Some(untagged),
            tagged: tagged.to_vec(),
        };
        let mut net = Net {
            ports: Vec::new(),
            settings: Settings::default(),
            ipsec: None,
            devices: vec![
                device("lan", LAN, &[(10, LAN_10), (20, LAN_20)]),
                device("wan", WAN, &[]),
                device("tun", TUN, &[]),
            ],
            rib4: RouteTable4::default(),
            rib6: RouteTable6::default(),
            targets: vec![Target::NoRoute],
            multipath: Vec::new(),
            adjacencies: Vec::new(),
            neighbors: HashMap::new(),
            generation: 0,
        };
        net.add_ports();
        net.add_routes();
        net
    }

    fn add_ports(&mut self) {
        self.add_port("lan", 0, None, &["10.0.0.1/24", "fd00::1/64", "fe80::1/64"], Owner::Weir);
        self.add_port("wan", 1, None, &["192.0.2.1/24", "2001:db8:1::1/64", "fe80::2/64"], Owner::Kernel);
        self.add_port("tun", 2, None, &["10.9.0.1/30", "fd00:9::1/64"], Owner::Kernel);
        self.add_port("lan.10", 0, Some(10), &["10.10.0.1/24", "fd00:10::1/64"], Owner::Weir);
        self.add_port("lan.20", 0, Some(20), &["10.20.0.1/24", "fd00:20::1/64"], Owner::Weir);
        self.ports[TUN.index()].point_to_point = true;
        self.ports[LAN_10.index()].mtu = 1300;
        self.ports[LAN_20.index()].reverse_path = ReversePath::Strict;
        for id in 0..self.ports.len() {
            self.connect(PortId(id as u16));
        }
        for port in [LAN, WAN, LAN_10, LAN_20] {
            for prefix in self.ports[port.index()].addresses.clone() {
                self.resolve(port, host(prefix.address, 2));
            }
        }
        self.resolve(WAN, address("fe80::fe"));
    }

    fn add_port(&mut self, name: &str, device: u16, vlan: Option<u16>, addresses: &[&str], owner: Owner) {
        let address = |text: &&str| {
            let (address, len) = text.split_once('/').unwrap_or((text, "0"));
            PortAddress { address: self::address(address), prefix_len: len.parse().unwrap_or(0), owner }
        };
        self.ports.push(Port {
            name: name.into(),
            kind: PortKind::Device,
            device: DeviceId(device),
            egress: DeviceId(device),
            vlan,
            mac: mac(PortId(self.ports.len() as u16)),
            mtu: 1500,
            point_to_point: false,
            up: true,
            reverse_path: ReversePath::Off,
            addresses: addresses.iter().map(address).collect(),
        });
    }

    /// A port no hardware stands behind, on a device of its own: an IPsec tunnel, or where packets of an SPD
    /// come out.
    pub fn add_virtual(&mut self, name: &str, kind: PortKind, mtu: u16, addresses: &[&str]) -> PortId {
        let (port, device) = (PortId(self.ports.len() as u16), self.devices.len() as u16);
        self.devices.push(Device { name: name.into(), untagged: Some(port), tagged: Vec::new() });
        self.add_port(name, device, None, addresses, Owner::Weir);
        let added = &mut self.ports[port.index()];
        (added.kind, added.mtu, added.point_to_point) = (kind, mtu, true);
        self.connect(port);
        port
    }

    /// Puts a policy enforcement point before a port: a device of its own that what leaves by the port goes through.
    pub fn add_enforcement_point(&mut self, port: PortId) -> DeviceId {
        let device = DeviceId(self.devices.len() as u16);
        let name = format!("enforcement point of {}", self.ports[port.index()].name);
        self.devices.push(Device { name, untagged: None, tagged: Vec::new() });
        self.ports[port.index()].egress = device;
        self.adjacencies.iter_mut().filter(|a| a.port == port).for_each(|a| a.egress = device);
        device
    }

    /// How many devices there are, those without hardware included.
    pub fn devices(&self) -> usize {
        self.devices.len()
    }

    /// Routes for a port's addresses and networks; link-local ones are the port's own affair.
    fn connect(&mut self, port: PortId) {
        let far_end = self.ports[port.index()].point_to_point;
        for own in self.ports[port.index()].addresses.clone() {
            if matches!(own.address, IpAddr::V6(a) if a.is_unicast_link_local()) {
                continue;
            }
            let target = if far_end {
                Target::Adjacent(self.adjacency(port, own.address, true))
            } else {
                Target::Connected(port)
            };
            self.route(Prefix::new(own.address, own.prefix_len), target);
            let bits = if own.address.is_ipv4() { 32 } else { 128 };
            self.route(Prefix::new(own.address, bits), Target::Local(port));
            if let (IpAddr::V4(a), false) = (own.address, far_end) {
                let last = Ipv4Addr::from(u32::from(a) | u32::MAX >> own.prefix_len);
                self.route(Prefix::new(last.into(), 32), Target::Broadcast(port));
            }
        }
    }

    fn add_routes(&mut self) {
        for (v4, gateways) in
            [(true, ["192.0.2.254", "192.0.2.253"]), (false, ["fe80::fe", "2001:db8:1::fd"])]
        {
            let name = |n: u16| {
                let text = if v4 { format!("10.{n}.0.0/16") } else { format!("2001:db8:{n}::/48") };
                text.parse::<Prefix>().unwrap_or_else(|error| panic!("{error}"))
            };
            let gateways = gateways.map(|text| self.adjacency(WAN, address(text), true));
            let first = self.multipath.len() as u32;
            self.multipath.extend(gateways);
            self.route(name(100), Target::Adjacent(gateways[0]));
            self.route(name(200), Target::Multipath { first, len: 2 });
            let behind_tag = if v4 { "10.10.0.2" } else { "fd00:10::2" };
            let behind_tag = self.adjacency(LAN_10, address(behind_tag), true);
            self.route(name(95), Target::Adjacent(behind_tag));
            let silent = if v4 { "192.0.2.66" } else { "2001:db8:1::66" };
            let silent = self.adjacency(WAN, address(silent), false);
            self.route(name(96), Target::Adjacent(silent));
            let far_end = if v4 { "10.9.0.2" } else { "fd00:9::2" };
            let far_end = self.adjacency(TUN, address(far_end), true);
            self.route(name(9), Target::Adjacent(far_end));
            self.route(name(97), Target::Discard(Reason::Prohibited));
            self.route(name(98), Target::Discard(Reason::Unreachable));
            self.route(name(99), Target::Discard(Reason::Blackhole));
        }
    }

    pub fn route(&mut self, prefix: Prefix, target: Target) {
        self.targets.push(target);
        let value = self.targets.len() as u32 - 1;
        match prefix {
            Prefix::V4(prefix) => self.rib4.insert(prefix, value),
            Prefix::V6(prefix) => self.rib6.insert(prefix, value),
        };
    }

    /// A next hop; its MAC is [`neighbor_mac`].
    pub fn adjacency(&mut self, port: PortId, next_hop: IpAddr, ready: bool) -> AdjacencyId {
        let Port { device, egress, vlan, mtu, mac, .. } = self.ports[port.index()];
        let last = match next_hop {
            IpAddr::V4(a) => a.octets()[3],
            IpAddr::V6(a) => a.octets()[15],
        };
        let mut header = [0; 12];
        header[..6].copy_from_slice(&neighbor_mac(port, last));
        header[6..].copy_from_slice(&mac);
        self.adjacencies.push(Adjacency { port, device, egress, next_hop, header, ready, vlan, mtu });
        AdjacencyId(self.adjacencies.len() as u32 - 1)
    }

    /// The neighbour has answered: every next hop of that address becomes ready.
    pub fn resolve(&mut self, port: PortId, next_hop: IpAddr) {
        let mut known = false;
        for a in self.adjacencies.iter_mut().filter(|a| a.port == port && a.next_hop == next_hop) {
            (a.ready, known) = (true, true);
        }
        if !known {
            let id = self.adjacency(port, next_hop, true);
            self.neighbors.insert((port, next_hop), id);
        }
    }

    /// A neighbour that is being asked for.
    pub fn expect_neighbor(&mut self, port: PortId, next_hop: IpAddr) {
        let id = self.adjacency(port, next_hop, false);
        self.neighbors.insert((port, next_hop), id);
    }

    /// The neighbour is unknown again.
    pub fn forget(&mut self, port: PortId, next_hop: IpAddr) {
        self.adjacencies
            .iter_mut()
            .filter(|a| a.port == port && a.next_hop == next_hop)
            .for_each(|a| a.ready = false);
    }

    /// Changes the MTU of a port and of what leaves by it.
    pub fn set_mtu(&mut self, port: PortId, mtu: u16) {
        self.ports[port.index()].mtu = mtu;
        self.adjacencies.iter_mut().filter(|a| a.port == port).for_each(|a| a.mtu = mtu);
    }

    /// Takes a port down, and what leaves by it.
    pub fn take_down(&mut self, port: PortId) {
        self.ports[port.index()].up = false;
        self.adjacencies.iter_mut().filter(|a| a.port == port).for_each(|a| a.ready = false);
    }

    pub fn tables(&mut self) -> Tables {
        self.generation += 1;
        Tables {
            generation: self.generation,
            devices: self.devices.clone().into(),
            ports: self.ports.clone().into(),
            fib4: self.rib4.publish(),
            fib6: self.rib6.publish(),
            targets: self.targets.clone().into(),
            multipath: self.multipath.clone().into(),
            adjacencies: self.adjacencies.clone().into(),
            neighbors: Arc::new(self.neighbors.clone()),
            settings: self.settings,
            ipsec: self.ipsec.clone(),
        }
    }
}

/// An address from text; the unspecified one from anything else.
pub fn address(text: &str) -> IpAddr {
    text.parse().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
}

/// The host of this last number on an address's network.
fn host(network: IpAddr, last: u8) -> IpAddr {
    match network {
        IpAddr::V4(a) => {
            let [a, b, c, _] = a.octets();
            Ipv4Addr::new(a, b, c, last).into()
        }
        IpAddr::V6(a) => {
            let mut octets = a.octets();
            octets[15] = last;
            Ipv6Addr::from(octets).into()
        }
    }
}
