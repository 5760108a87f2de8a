//! Links and addresses of the kernel: what they mean for ports, and what to do when they change.

use std::net::{IpAddr, Ipv4Addr};

use weir_core::packet::{DeviceId, HEADROOM};
use weir_core::state::{Desired, Link};
use weir_core::tables::{Owner, Tables, subnet_router};
use weir_core::time::Nanos;
use weir_io::netlink::{self, AddressInfo, Change, LinkInfo};
use weir_io::umem::LINK_HEADER;

use super::error::AttachError;
use super::ports::{self, With};
use super::worker::{Absent, OpenDevice, WorkerCommand, cpus_of};
use super::{Daemon, Kernel, Open, device_id};
use crate::config::{Config, Kind, Port};

/// MTU of a port that is a file.
const PCAP_MTU: u16 = 1500;
/// A locally administered address for ports that have no hardware: `02:77:65:69:72:xx` ("weir").
const FILE_MAC: [u8; 6] = [0x02, 0x77, 0x65, 0x69, 0x72, 0x00];

/// Largest IP packet a chunk holds behind headroom, Ethernet header and a VLAN tag.
pub fn mtu_max(chunk: usize) -> u16 {
    (chunk - HEADROOM - LINK_HEADER) as u16
}

pub fn index_of(device: &str, links: &[LinkInfo]) -> Option<u32> {
    links.iter().find(|l| l.name == device).map(|l| l.index)
}

/// The index of a device that opening may have made (TUN).
pub fn index_now(device: &str) -> Option<u32> {
    netlink::link(device).ok().flatten().map(|l| l.index)
}

/// What the core should know of a port's device, if it is there.
pub fn link_of(port: &Port, links: &[LinkInfo]) -> Option<Link> {
    let device = port.device.value.clone();
    if port.kind.value == Kind::Pcap {
        return Some(Link { device, mac: FILE_MAC, mtu: PCAP_MTU, up: true, point_to_point: false });
    }
    let link = links.iter().find(|l| l.name == device)?;
    Some(Link {
        device,
        mac: link.mac,
        mtu: link.mtu.min(u32::from(u16::MAX)) as u16,
        up: link.running,
        point_to_point: !link.ethernet,
    })
}

/// The kernel's device where this port is: the port's, or for a VLAN `device.vlan`.
pub fn kernel_device(port: &Port) -> String {
    match &port.vlan {
        None => port.device.value.clone(),
        Some(vlan) => format!("{}.{}", port.device.value, vlan.value),
    }
}

/// Whether one of these links is another than before in anything, or what it belongs to is. Tables have not all of it.
fn links_differ(names: &[String], before: &[LinkInfo], now: &[LinkInfo]) -> bool {
    let seen = |name: &str, links: &[LinkInfo]| {
        let link = links.iter().find(|link| link.name == name).cloned();
        let master = link.as_ref().and_then(|link| link.master);
        let master = links.iter().find(|link| Some(link.index) == master).cloned();
        (link, master)
    };
    names.iter().any(|name| seen(name, before) != seen(name, now))
}

/// The addresses the kernel has where this port is.
pub fn kernel_addresses(port: &Port, kernel: &Kernel) -> Vec<(IpAddr, u8)> {
    let Some(index) = index_of(&kernel_device(port), &kernel.links) else { return Vec::new() };
    let here = kernel.addresses.iter().filter(|a| a.link == index);
    here.map(|a| (a.address, a.prefix_len)).collect()
}

/// What the file wishes for, with what the kernel says of its ports' devices. A VLAN whose MTU the file does not say has that of
/// the kernel's VLAN device, where there is one.
pub fn desired_ports(config: &Config, kernel: &Kernel) -> Desired {
    let mut desired = config.desired(&|port| kernel_addresses(port, kernel));
    for (spec, port) in desired.ports.iter_mut().zip(&config.ports) {
        if port.vlan.is_none() || spec.mtu.is_some() {
            continue;
        }
        let name = kernel_device(port);
        let link = kernel.links.iter().find(|l| l.name == name);
        spec.mtu = link.map(|l| l.mtu.min(u32::from(u16::MAX)) as u16);
    }
    desired
}

/// The addresses, subnet-router anycast ones too, the XDP program leaves to the kernel or brings to weir in spite of being local.
pub fn steered(tables: &Tables, kernel: &[AddressInfo]) -> Vec<(IpAddr, Owner)> {
    let mut all: Vec<(IpAddr, Owner)> = Vec::new();
    for a in kernel {
        all.push((a.address, Owner::Kernel));
        match a.address {
            IpAddr::V4(v4) if a.prefix_len <= 30 => {
                let broadcast = u32::from(v4) | u32::MAX.checked_shr(a.prefix_len.into()).unwrap_or(0);
                all.push((Ipv4Addr::from(broadcast).into(), Owner::Kernel));
            }
            IpAddr::V6(v6) => {
                all.extend(subnet_router(v6, a.prefix_len).map(|anycast| (anycast.into(), Owner::Kernel)));
            }
            IpAddr::V4(_) => {}
        }
    }
    for port in tables.ports.iter() {
        all.extend(port.addresses.iter().map(|a| (a.address, a.owner)));
    }
    all
}

impl Daemon {
    /// News from netlink.
    pub(super) fn on_link_changes(&mut self, now: Nanos) {
        let changes = match self.kernel.monitor.changes() {
            Ok(changes) => changes,
            Err(error) => {
                tracing::warn!("netlink: {error}; links and addresses are listed again");
                vec![Change::Lost]
            }
        };
        if changes.is_empty() {
            return;
        }
        // Few and rare: the lists are short, and listing again cannot drift from what is.
        // Most news is of links that are no port's, or of things not looked at.
        let before = self.kernel.links.clone();
        if self.list() {
            let ports = self.config.ports.iter();
            let names: Vec<String> = ports.flat_map(|p| [p.device.value.clone(), kernel_device(p)]).collect();
            if links_differ(&names, &before, &self.kernel.links) {
                self.flows_judge_again();
            }
            self.reconcile(now);
        }
    }

    /// Lists links and addresses; false when they are as before, or not to be had.
    pub(super) fn list(&mut self) -> bool {
        match (netlink::links(), netlink::addresses()) {
            (Ok(links), Ok(addresses)) => {
                let changed = links != self.kernel.links || addresses != self.kernel.addresses;
                self.kernel.links = links;
                self.kernel.addresses = addresses;
                changed
            }
            (Err(error), _) | (_, Err(error)) => {
                tracing::warn!("netlink: {error}; links and addresses are as they were heard last");
                false
            }
        }
    }

    /// Brings ports and tables in line with what was listed last.
    pub(super) fn reconcile(&mut self, now: Nanos) {
        let devices: Vec<Port> = self.config.devices().into_iter().cloned().collect();
        for port in &devices {
            self.follow(now, port);
        }
        let mut desired = desired_ports(&self.config, &self.kernel);
        // No address of a port is in there, but policies that came and went since the file was read.
        desired.ipsec = self.control.desired().ipsec.clone();
        self.follow_routed(&mut desired);
        match self.control.apply(now, desired) {
            Ok(actions) => {
                actions.iter().for_each(|action| tracing::info!("the kernel's addresses: {action}"))
            }
            Err(errors) => errors.iter().for_each(|error| {
                tracing::warn!("the kernel's addresses do not fit the configuration: {error}; kept what was");
            }),
        }
        self.publish();
        self.set_steered();
        self.ports_changed(now);
        self.keys_look_around(now);
        self.follow_hosts();
    }

    pub(super) fn set_steered(&mut self) {
        let wanted = steered(self.control.tables(), &self.kernel.addresses);
        let Some(local) = &mut self.local else { return };
        match (local.set(wanted), &self.flow_offload) {
            (Ok(0), _) | (Ok(_), None) => {}
            // What was transit may be local now.
            (Ok(_), Some(flow_offload)) => flow_offload.shared.forget(),
            (Err(error), _) => {
                tracing::error!("{error}; the kernel's new addresses are treated as transit");
            }
        }
        self.flows_look_around();
    }

    /// One device: gone, back, or changed.
    fn follow(&mut self, now: Nanos, port: &Port) {
        let name = &port.device.value;
        let index = index_of(name, &self.kernel.links);
        let before = self.control.tables().clone();
        match link_of(port, &self.kernel.links) {
            None => {
                if self.close_device(name) {
                    tracing::warn!("port {}: {name} vanished; waiting for it to come back", port.name.value);
                }
                self.control.link_removed(now, name);
            }
            Some(mut link) => {
                if self.open.get(name).is_some_and(|o| o.index != index) {
                    tracing::warn!("port {}: {name} is another interface now", port.name.value);
                    self.close_device(name);
                }
                if !self.open.contains_key(name) {
                    link.up &= self.reopen(port, index);
                }
                let zero_copy = self.open.get(name).is_some_and(|open| open.port.zero_copy);
                let most = self.umems.first().map_or(u16::MAX, |umem| match zero_copy {
                    true => (umem.card_room() - LINK_HEADER) as u16,
                    false => mtu_max(umem.chunk_size()),
                });
                if link.mtu > most {
                    tracing::warn!(
                        "port {}: {name} has MTU {}, its buffers hold {most}; larger frames are lost; restart weir, which chooses buffers and mode by the MTU",
                        port.name.value,
                        link.mtu
                    );
                    link.mtu = most;
                }
                self.control.link_changed(now, link);
            }
        }
        self.publish();
        let after = self.control.tables();
        for (was, is) in
            before.ports.iter().zip(after.ports.iter()).filter(|(_, is)| is.name == port.name.value)
        {
            if was.up != is.up {
                tracing::warn!("port {}: {}", is.name, if is.up { "up" } else { "down" });
            }
            if was.mtu != is.mtu {
                tracing::warn!("port {}: mtu {} → {}", is.name, was.mtu, is.mtu);
            }
        }
    }

    /// Gives a device back to the kernel, if it was ours.
    pub(super) fn close_device(&mut self, name: &str) -> bool {
        let Some(open) = self.open.remove(name) else { return false };
        self.resleep = true;
        if let Some(flow_offload) = &self.flow_offload {
            flow_offload.shared.leave(open.id);
        }
        for worker in &self.workers {
            let absent = OpenDevice { device: Box::new(Absent), poll: Vec::new() };
            worker.post(WorkerCommand::Replace(open.id, absent));
        }
        open.port.give_back(name);
        true
    }

    /// A device that came (back); false when it cannot be opened.
    fn reopen(&mut self, port: &Port, index: Option<u32>) -> bool {
        let name = &port.device.value;
        let Some(id) = device_id(self.control.tables(), name) else { return false };
        match self.attach(port, id, index) {
            Ok(()) => {
                tracing::info!("port {}: {name} is ours again", port.name.value);
                true
            }
            Err(error) => {
                tracing::error!("port {}: {name} is there but does not open: {error}", port.name.value);
                false
            }
        }
    }

    /// Opens a device and gives its queues to the workers.
    pub(super) fn attach(
        &mut self,
        port: &Port,
        id: DeviceId,
        index: Option<u32>,
    ) -> Result<(), AttachError> {
        let name = &port.device.value;
        let index = index.or_else(|| index_now(name));
        let enforced = self.config.enforced_devices().iter().any(|p| p.device.value == *name);
        if let Some(index) = index.filter(|_| enforced) {
            self.points.arm(port, index, self.local.as_ref()).map_err(AttachError::Enforcement)?;
        }
        let names = self.points.names();
        let cpus = cpus_of(&self.workers);
        let with = With {
            cpus: &cpus,
            umems: &self.umems,
            local: self.local.as_ref(),
            flow_offload: self.flow_offload.as_ref(),
            workers: &self.config.workers,
            live: &self.live,
            policies: enforced,
            held: false,
            enforced: &names,
        };
        let (opened, queues) = ports::open(port, id, &with).map_err(AttachError::Open)?;
        if queues.len() < self.workers.len() {
            return Err(AttachError::TooFewQueues {
                device: name.clone(),
                queues: queues.len(),
                workers: self.workers.len(),
            });
        }
        opened.log();
        for (worker, queue) in self.workers.iter().zip(queues) {
            worker.post(WorkerCommand::Replace(id, queue));
        }
        self.points.opened_as(name, opened.kind);
        let index = index.or_else(|| index_now(name));
        self.open.insert(name.clone(), Open::new(opened, id, index));
        self.resleep = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::wire::rtnetlink::links::Vlan;

    #[test]
    fn a_ports_link_is_another_with_whatever_of_it_changes_and_nobody_elses() {
        let link = |index, name: &str| LinkInfo {
            index,
            name: name.to_owned(),
            mac: [2, 0, 0, 0, 0, 1],
            mtu: 1500,
            up: true,
            running: true,
            ethernet: true,
            loopback: false,
            master: None,
            if_id: None,
            vrf: None,
            bond: false,
            vlan: None,
        };
        let vlan = Vlan { id: 7, lower: 2, plain: true };
        let tagged = LinkInfo { vlan: Some(vlan), master: Some(4), ..link(3, "r0.7") };
        let all = [link(2, "r0"), tagged.clone(), link(4, "vrf1"), link(5, "docker0")];
        let names = ["r0", "r0.7"].map(str::to_owned);
        let with = |at: usize, link: LinkInfo| {
            let mut links = all.to_vec();
            links[at] = link;
            links_differ(&names, &all, &links)
        };
        assert!(!links_differ(&names, &all, &all));
        for (what, at, other) in [
            ("another MAC address", 1, LinkInfo { mac: [2, 9, 9, 9, 9, 9], ..tagged.clone() }),
            ("another MTU", 1, LinkInfo { mtu: 1280, ..tagged.clone() }),
            ("priorities", 1, LinkInfo { vlan: Some(Vlan { plain: false, ..vlan }), ..tagged.clone() }),
            ("of nothing", 1, LinkInfo { master: None, ..tagged.clone() }),
            ("another name", 1, LinkInfo { name: "guests".to_owned(), ..tagged }),
            ("its VRF has another name", 2, link(4, "blue")),
            ("the device is another", 0, link(9, "r0")),
        ] {
            assert!(with(at, other), "{what}");
        }
        assert!(!with(3, LinkInfo { mtu: 9000, ..link(5, "docker0") }), "no port's");
    }
}
