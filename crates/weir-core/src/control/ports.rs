//! Which ports and devices there are, as ids.
//!
//! Promises: an id belongs to a name, as `control/names.rs` says, so that a worker's counters and held
//! frames never change owner behind its back; a port that is removed leaves a hole (an empty name, down,
//! without addresses).
//!
//! IPsec brings ports without hardware, each on a device of its own named after what stands there:
//! `tunnel/<name>`, `policy/<spd>`, the `host/<spd>` by which an SPD of route mode is connected with this host's own stack, and
//! the `enforce/<port>` that frames of an enforced port leave by. Names
//! of real devices never begin so ([`VIRTUAL`]).

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use super::names::Names;
use crate::id::PortId;
use crate::packet::DeviceId;
use crate::state::{
    AddressSpec, Desired, Link, PORTS_MAX, PortSpec, RouteMode, SpdSpec, TunnelSpec, VIRTUAL,
};
use crate::tables::{Device, Port, PortAddress, PortKind, ReversePath};

/// MTU of a port whose device was not seen yet and whose configuration names none: Ethernet's.
pub(super) const MTU_UNSEEN: u16 = 1500;

/// Devices of all ports, and another for each: an enforcement device, or one to this host's own stack.
const DEVICES_MAX: usize = 2 * PORTS_MAX;

/// The ports and devices of the next snapshot.
#[derive(Debug)]
pub(super) struct Ports {
    names: Names,
    device_names: Names,
    pub(super) ports: Vec<Port>,
    pub(super) devices: Vec<Device>,
}

impl Default for Ports {
    fn default() -> Self {
        Ports {
            names: Names::new(PORTS_MAX),
            device_names: Names::new(DEVICES_MAX),
            ports: Vec::new(),
            devices: Vec::new(),
        }
    }
}

impl Ports {
    /// Makes ports and devices what `desired` and `links` say, with tunnels as large as `tunnel_mtus`
    /// says; returns the ids whose port is another than before, with what it was (`None` for a new id).
    pub(super) fn build(
        &mut self,
        desired: &Desired,
        links: &HashMap<String, Link>,
        tunnel_mtus: &HashMap<String, u16>,
    ) -> Vec<(PortId, Option<Port>)> {
        let ipsec = &desired.ipsec;
        let virtuals = ipsec.tunnels.iter().map(|t| &t.name).chain(ipsec.spds.iter().map(|s| &s.name));
        self.names.set(desired.ports.iter().map(|p| &p.name).chain(virtuals).map(String::as_str));
        let enforced: HashSet<&str> = ipsec.spds.iter().flat_map(|s| &s.ports).map(String::as_str).collect();
        self.device_names.set(device_names(desired, &enforced).iter().map(String::as_str));
        let before = std::mem::replace(&mut self.ports, vec![hole(); self.names.len()]);
        self.devices = vec![Device::default(); self.device_names.len()];
        for spec in &desired.ports {
            let link = links.get(&spec.device);
            let egress = enforced.contains(spec.name.as_str()).then(|| enforcement_device(&spec.name));
            self.put(wired(spec, link), &spec.device, egress.as_deref());
        }
        for spec in &ipsec.tunnels {
            let mtu = spec.mtu.or_else(|| tunnel_mtus.get(&spec.name).copied());
            self.put(tunnelled(spec, mtu), &tunnel(&spec.name), None);
        }
        for spec in &ipsec.spds {
            self.put(opened(spec), &policy(&spec.name), None);
            let host = spec.route_mode.as_ref().and_then(|_| self.host_device(&spec.name));
            if let Some(host) = host {
                self.devices[host.index()].name = host_device(&spec.name);
            }
        }
        self.devices.iter_mut().for_each(|d| d.tagged.sort_unstable());
        let mut was = before.into_iter().map(Some);
        let mut changed = Vec::new();
        for (id, port) in self.ports.iter().enumerate() {
            let was = was.next().flatten();
            if was.as_ref() != Some(port) {
                changed.push((PortId(id as u16), was));
            }
        }
        changed
    }

    /// Puts a port where its name says, on a device and behind its enforcement device if it has one.
    fn put(&mut self, port: Port, device: &str, egress: Option<&str>) {
        // Names were set before and check() bounds how many there are.
        let (Some(id), Some(carrier)) = (self.id(&port.name), self.device_id(device)) else { return };
        let egress = egress.map_or(Some(carrier), |name| {
            let egress = self.device_id(name)?;
            name.clone_into(&mut self.devices[egress.index()].name);
            Some(egress)
        });
        let Some(egress) = egress else { return };
        let on = &mut self.devices[carrier.index()];
        device.clone_into(&mut on.name);
        match port.vlan {
            None => on.untagged = Some(id),
            Some(vlan) => on.tagged.push((vlan, id)),
        }
        self.ports[id.index()] = Port { device: carrier, egress, ..port };
    }

    fn device_id(&self, name: &str) -> Option<DeviceId> {
        self.device_names.id(name).map(|id| DeviceId(id as u16))
    }

    /// What connects an SPD of route mode with this host's own stack.
    pub(super) fn host_device(&self, spd: &str) -> Option<DeviceId> {
        self.device_id(&host_device(spd))
    }

    pub(super) fn id(&self, name: &str) -> Option<PortId> {
        self.names.id(name).map(|id| PortId(id as u16))
    }

    /// The port of an id, holes excluded.
    pub(super) fn port(&self, id: PortId) -> Option<&Port> {
        self.ports.get(id.index()).filter(|p| !p.name.is_empty())
    }

    /// Every port there is, holes excluded.
    pub(super) fn iter(&self) -> impl Iterator<Item = (PortId, &Port)> {
        let all = self.ports.iter().enumerate().map(|(i, p)| (PortId(i as u16), p));
        all.filter(|(_, p)| !p.name.is_empty())
    }

    /// The port whose connected network holds `gateway`.
    pub(super) fn toward(&self, desired: &Desired, gateway: IpAddr) -> Option<PortId> {
        desired.connected(gateway).and_then(|(port, _)| self.id(port))
    }
}

fn tunnel(name: &str) -> String {
    format!("{}{name}", VIRTUAL[0])
}

fn policy(spd: &str) -> String {
    format!("{}{spd}", VIRTUAL[1])
}

fn enforcement_device(port: &str) -> String {
    format!("{}{port}", VIRTUAL[2])
}

fn host_device(spd: &str) -> String {
    format!("{}{spd}", VIRTUAL[3])
}

/// Every device, each once: real ones first, so that what they are numbered does not hang on IPsec.
fn device_names(desired: &Desired, enforced: &HashSet<&str>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let mut seen = HashSet::new();
    names.extend(desired.ports.iter().filter(|p| seen.insert(&p.device)).map(|p| p.device.clone()));
    names.extend(desired.ipsec.tunnels.iter().map(|t| tunnel(&t.name)));
    names.extend(desired.ipsec.spds.iter().map(|s| policy(&s.name)));
    let routed = desired.ipsec.spds.iter().filter(|s| s.route_mode.is_some());
    names.extend(routed.map(|s| host_device(&s.name)));
    let ports = desired.ports.iter().filter(|p| enforced.contains(p.name.as_str()));
    names.extend(ports.map(|p| enforcement_device(&p.name)));
    names
}

/// A port as configured, on its link.
fn wired(spec: &PortSpec, link: Option<&Link>) -> Port {
    let device_mtu = link.map_or(MTU_UNSEEN, |l| l.mtu);
    Port {
        name: spec.name.clone(),
        vlan: spec.vlan,
        mac: link.map_or([0; 6], |l| l.mac),
        mtu: match (spec.mtu, link) {
            (Some(mtu), Some(_)) => mtu.min(device_mtu),
            (Some(mtu), None) => mtu,
            (None, _) => device_mtu,
        },
        point_to_point: link.is_some_and(|l| l.point_to_point),
        up: link.is_some_and(|l| l.up),
        reverse_path: spec.reverse_path,
        addresses: addresses(&spec.addresses),
        ..hole()
    }
}

/// The port of a tunnel: its far end is whoever opens what its SAs seal.
fn tunnelled(spec: &TunnelSpec, mtu: Option<u16>) -> Port {
    Port {
        name: spec.name.clone(),
        kind: PortKind::Tunnel,
        mtu: mtu.unwrap_or(MTU_UNSEEN),
        point_to_point: true,
        up: !spec.out.is_empty(),
        reverse_path: spec.reverse_path,
        addresses: addresses(&spec.addresses),
        ..hole()
    }
}

/// The port of an SPD, by which nothing leaves but where it is one of route mode.
fn opened(spec: &SpdSpec) -> Port {
    let port = Port { name: spec.name.clone(), point_to_point: true, ..hole() };
    match &spec.route_mode {
        None => Port { kind: PortKind::Policy, mtu: u16::MAX, up: true, ..port },
        Some(RouteMode { mtu, up, addresses: ours, .. }) => {
            Port { kind: PortKind::Tunnel, mtu: *mtu, up: *up, addresses: addresses(ours), ..port }
        }
    }
}

fn addresses(specs: &[AddressSpec]) -> Vec<PortAddress> {
    let address =
        |a: &AddressSpec| PortAddress { address: a.address, prefix_len: a.prefix_len, owner: a.owner };
    specs.iter().map(address).collect()
}

fn hole() -> Port {
    Port {
        name: String::new(),
        kind: PortKind::Device,
        device: DeviceId(0),
        egress: DeviceId(0),
        vlan: None,
        mac: [0; 6],
        mtu: 0,
        point_to_point: false,
        up: false,
        reverse_path: ReversePath::Off,
        addresses: Vec::new(),
    }
}
