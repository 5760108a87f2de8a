//! The kernel's links where ports are: what its rules and routes call them.
//!
//! Promises: a port with a VLAN tag is the kernel's device `DEVICE.VLAN` if that is this VLAN of this device, with the same MAC address,
//! tags that say nothing but the VLAN (802.1Q, without priorities of its own), and nobody above it. Refuses: everything else of
//! that name, whose frames would not look as the kernel's.

use std::collections::HashMap;

use weir_core::id::PortId;
use weir_core::packet::DeviceId;
use weir_core::tables::{Port, Tables};
use weir_core::wire::rtnetlink::links::LinkInfo;
use weir_io::netlink;

/// Where packets of a port come in or leave, as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PortLink {
    /// The device that XDP is on.
    pub device: u32,
    /// The kernel's link: the device, or the VLAN on it.
    pub index: u32,
    /// Largest IP packet the link takes, bytes.
    pub mtu: u16,
}

/// The links of a moment.
#[derive(Default)]
pub(super) struct PortLinks {
    by_name: HashMap<String, LinkInfo>,
}

impl PortLinks {
    /// Links may be others.
    pub fn forget(&mut self) {
        self.by_name.clear();
    }

    /// The link of a port whose device is `joined`; `None` where it is not one that frames may pass by.
    pub fn of(
        &mut self,
        tables: &Tables,
        port: PortId,
        joined: impl Fn(DeviceId) -> Option<u32>,
    ) -> Option<PortLink> {
        let port = tables.ports.get(port.index())?;
        let device = joined(port.device)?;
        let Some(vlan) = port.vlan else { return Some(PortLink { device, index: device, mtu: port.mtu }) };
        if self.by_name.is_empty() {
            let links = netlink::links().unwrap_or_default();
            self.by_name = links.into_iter().map(|link| (link.name.clone(), link)).collect();
        }
        let name = format!("{}.{vlan}", tables.devices.get(port.device.index())?.name);
        let link = self.by_name.get(&name).filter(|link| carries(link, (device, vlan), port))?;
        let mtu = link.mtu.min(port.mtu.into()) as u16;
        Some(PortLink { device, index: link.index, mtu })
    }
}

/// Whether a link's frames are those of this VLAN of this device, and nothing more.
fn carries(link: &LinkInfo, (device, vlan): (u32, u16), port: &Port) -> bool {
    let of_device = link.vlan.is_some_and(|v| (v.lower, v.id, v.plain) == (device, vlan, true));
    of_device && link.up && link.mac == port.mac && link.master.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::testing::sample::{LAN_10, Net};
    use weir_core::wire::rtnetlink::links::Vlan;

    #[test]
    fn a_link_is_a_ports_vlan_only_if_its_frames_look_the_same() {
        let mut net = Net::new();
        let tables = net.tables();
        let port = &tables.ports[LAN_10.index()];
        let link = LinkInfo {
            index: 9,
            name: format!("{}.10", tables.devices[port.device.index()].name),
            mac: port.mac,
            mtu: 1280,
            up: true,
            running: true,
            ethernet: true,
            loopback: false,
            master: None,
            if_id: None,
            vrf: None,
            bond: false,
            vlan: Some(Vlan { id: 10, lower: 3, plain: true }),
        };
        let of = |link: LinkInfo| {
            let mut links = PortLinks { by_name: [(link.name.clone(), link)].into() };
            links.of(&tables, LAN_10, |device| (device == port.device).then_some(3))
        };
        let vlan = |id, lower, plain| Some(Vlan { id, lower, plain });
        assert_eq!(of(link.clone()), Some(PortLink { device: 3, index: 9, mtu: 1280 }));
        let large = of(LinkInfo { mtu: 9000, ..link.clone() });
        assert_eq!(large.map(|link| link.mtu), Some(port.mtu), "no more than the port");
        for (what, other) in [
            ("another name", LinkInfo { name: "vlan10".into(), ..link.clone() }),
            ("no VLAN", LinkInfo { vlan: None, ..link.clone() }),
            ("another VLAN", LinkInfo { vlan: vlan(11, 3, true), ..link.clone() }),
            ("on another device", LinkInfo { vlan: vlan(10, 4, true), ..link.clone() }),
            ("tags with priorities", LinkInfo { vlan: vlan(10, 3, false), ..link.clone() }),
            ("another MAC address", LinkInfo { mac: [2, 9, 9, 9, 9, 9], ..link.clone() }),
            ("a port of a bridge", LinkInfo { master: Some(8), ..link.clone() }),
            ("down", LinkInfo { up: false, ..link.clone() }),
        ] {
            assert_eq!(of(other), None, "{what}");
        }
    }
}
