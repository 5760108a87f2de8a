//! Which ports and devices there are, as ids.
//!
//! Promises: an id belongs to a name. A port or device keeps its id for as long as its name is in the
//! configuration, whatever else changes about it; one that is removed leaves a hole (an empty name,
//! down, without addresses) and gets the same id back when its name returns. A hole is given to another
//! name only when all [`PORTS_MAX`] ids were given out, the one longest empty first. So a worker's
//! counters and held frames never change owner behind its back.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::packet::DeviceId;
use crate::state::{Desired, Link, PORTS_MAX};
use crate::tables::{Device, Port, PortAddress, PortId, PortKind, ReversePath};

/// MTU of a port whose device was not seen yet and whose configuration names none: Ethernet's.
const MTU_UNSEEN: u16 = 1500;

/// Names and the ids they hold.
#[derive(Debug, Default)]
struct Names {
    ids: HashMap<String, u16>,
    /// By id: the name, and when it left if it did.
    held: Vec<(String, Option<u64>)>,
    departures: u64,
}

impl Names {
    fn set(&mut self, present: &[&str]) {
        for (name, left) in &mut self.held {
            if left.is_none() && !present.contains(&name.as_str()) {
                self.departures += 1;
                *left = Some(self.departures);
            }
        }
        for &name in present {
            if let Some(&id) = self.ids.get(name) {
                self.held[usize::from(id)].1 = None;
            } else if self.held.len() < PORTS_MAX {
                self.ids.insert(name.to_string(), self.held.len() as u16);
                self.held.push((name.to_string(), None));
            } else if let Some((id, slot)) = self
                .held
                .iter_mut()
                .enumerate()
                .filter(|(_, (name, left))| left.is_some() && !present.contains(&name.as_str()))
                .min_by_key(|(_, (_, left))| *left)
            {
                self.ids.remove(&slot.0);
                self.ids.insert(name.to_string(), id as u16);
                *slot = (name.to_string(), None);
            }
        }
    }

    fn id(&self, name: &str) -> Option<u16> {
        self.ids.get(name).copied().filter(|&id| self.held[usize::from(id)].1.is_none())
    }
}

/// The ports and devices of the next snapshot.
#[derive(Debug, Default)]
pub(super) struct Ports {
    names: Names,
    device_names: Names,
    pub(super) ports: Vec<Port>,
    pub(super) devices: Vec<Device>,
}

impl Ports {
    /// Makes ports and devices what `desired` and `links` say; returns the ids whose port is another
    /// than before, with what it was (`None` for a new id).
    pub(super) fn build(
        &mut self,
        desired: &Desired,
        links: &HashMap<String, Link>,
    ) -> Vec<(PortId, Option<Port>)> {
        let names: Vec<&str> = desired.ports.iter().map(|p| p.name.as_str()).collect();
        self.names.set(&names);
        let mut devices: Vec<&str> = Vec::new();
        for port in &desired.ports {
            if !devices.contains(&port.device.as_str()) {
                devices.push(&port.device);
            }
        }
        self.device_names.set(&devices);
        let mut ports = vec![hole(); self.names.held.len()];
        let mut carriers = vec![Device::default(); self.device_names.held.len()];
        for spec in &desired.ports {
            // Both names were set above and check() bounds how many there are.
            let (Some(id), Some(device)) = (self.names.id(&spec.name), self.device_names.id(&spec.device))
            else {
                continue;
            };
            let carrier = &mut carriers[usize::from(device)];
            carrier.name.clone_from(&spec.device);
            match spec.vlan {
                None => carrier.untagged = Some(PortId(id)),
                Some(vlan) => carrier.tagged.push((vlan, PortId(id))),
            }
            let link = links.get(&spec.device);
            let device_mtu = link.map_or(MTU_UNSEEN, |l| l.mtu);
            ports[usize::from(id)] = Port {
                name: spec.name.clone(),
                kind: PortKind::Device,
                device: DeviceId(device),
                egress: DeviceId(device),
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
                addresses: spec
                    .addresses
                    .iter()
                    .map(|a| PortAddress { address: a.address, prefix_len: a.prefix_len, owner: a.owner })
                    .collect(),
            };
        }
        carriers.iter_mut().for_each(|d| d.tagged.sort_unstable());
        self.devices = carriers;
        let before = std::mem::replace(&mut self.ports, ports);
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

    pub(super) fn id(&self, name: &str) -> Option<PortId> {
        self.names.id(name).map(PortId)
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
        desired.connected(gateway).and_then(|(port, _)| self.id(&port.name))
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_keeps_its_id_and_gets_it_back() {
        let mut names = Names::default();
        names.set(&["a", "b", "c"]);
        names.set(&["c", "d"]);
        assert_eq!((names.id("a"), names.id("c"), names.id("d")), (None, Some(2), Some(3)));
        names.set(&["d", "b", "c"]);
        assert_eq!((names.id("b"), names.id("c"), names.id("d")), (Some(1), Some(2), Some(3)));
    }

    #[test]
    fn hole_is_reused_only_when_ids_ran_out_and_the_oldest_first() {
        let mut names = Names::default();
        let all: Vec<String> = (0..PORTS_MAX).map(|i| i.to_string()).collect();
        let mut present: Vec<&str> = all.iter().map(String::as_str).collect();
        names.set(&present);
        present.retain(|&n| n != "7");
        names.set(&present);
        present.retain(|&n| n != "3");
        names.set(&present);
        present.push("new");
        names.set(&present);
        assert_eq!((names.id("new"), names.id("3"), names.id("7")), (Some(7), None, None));
    }
}
