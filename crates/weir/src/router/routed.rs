//! xfrm devices of the kernel that weir acts for: each is a port of route mode, with the policies of its interface id.
//!
//! Promises: what the kernel routes into such a device leads to an SPD of the device's name here, which lets nothing pass as
//! cleartext, whether its SAs are there or not. Refuses, and leaves to the kernel: devices where routes or keys are not the
//! kernel's, those of another VRF than the ports', and those whose name something of the file has.

use std::collections::BTreeSet;
use std::net::IpAddr;

use weir_core::ipsec::spd::Action;
use weir_core::state::{AddressSpec, Desired, IpsecSpec, Policies, RouteMode, SpdSpec};
use weir_core::tables::Owner;
use weir_io::netlink::LinkInfo;

use super::links::{desired_ports, kernel_device};
use super::mirror::members::Membership;
use super::{Daemon, Kernel};
use crate::config::Config;

/// Those of the kernel's devices.
pub fn devices<'a>(config: &Config, links: &'a [LinkInfo]) -> Vec<&'a LinkInfo> {
    if config.kernel.routes.is_none() || config.kernel.keys.is_none() {
        return Vec::new();
    }
    let ports = config.ports.iter().filter_map(|port| {
        let name = kernel_device(port);
        links.iter().find(|link| link.name == name)
    });
    let tables: Vec<_> = ports.map(|link| Membership::of(link, links).table()).collect();
    let is_taken = |name: &str| {
        let ipsec = &config.ipsec;
        let ports = config.ports.iter().flat_map(|port| [&port.name.value, &port.device.value]);
        let tunnels = ipsec.tunnels.iter().map(|tunnel| &tunnel.name.value);
        let spds = ipsec.spds.iter().map(|spd| &spd.name.value);
        ports.chain(tunnels).chain(spds).any(|other| other == name)
    };
    let here = |link: &&LinkInfo| {
        let table = Membership::of(link, links).table();
        link.if_id.is_some_and(|id| id != 0) && !is_taken(&link.name) && tables.iter().all(|of| *of == table)
    };
    links.iter().filter(here).collect()
}

/// The SPD of each, without policies.
pub fn spds(config: &Config, kernel: &Kernel, ports: &Desired) -> Vec<SpdSpec> {
    let mut taken: BTreeSet<IpAddr> =
        ports.ports.iter().flat_map(|port| port.addresses.iter().map(|a| a.address)).collect();
    let spd = |link: &LinkInfo| {
        let mut addresses = Vec::new();
        for address in kernel.addresses.iter().filter(|a| a.link == link.index) {
            // An address that several devices have is one address.
            if taken.insert(address.address) {
                let (address, prefix_len) = (address.address, address.prefix_len);
                addresses.push(AddressSpec { address, prefix_len, owner: Owner::Kernel });
            }
        }
        let route_mode = RouteMode {
            if_id: link.if_id.unwrap_or(0),
            mtu: link.mtu.min(u32::from(u16::MAX)) as u16,
            up: link.up,
            addresses,
        };
        let (name, default) = (link.name.clone(), Action::Discard);
        SpdSpec {
            name,
            ports: Vec::new(),
            default,
            policies: Policies::default(),
            route_mode: Some(route_mode),
        }
    };
    devices(config, &kernel.links).into_iter().map(spd).collect()
}

/// Their interface ids.
pub fn if_ids(spds: &[SpdSpec]) -> BTreeSet<u32> {
    spds.iter().filter_map(|spd| Some(spd.route_mode.as_ref()?.if_id)).collect()
}

/// Makes the devices' SPDs these, without policies of what they were before.
pub fn replace(ipsec: &mut IpsecSpec, now: &[SpdSpec]) {
    ipsec.spds.retain(|spd| spd.route_mode.is_none());
    ipsec.spds.extend(now.iter().cloned());
}

/// What the file wishes for, with the ports of such devices.
pub fn desired(config: &Config, kernel: &Kernel) -> Desired {
    let mut desired = desired_ports(config, kernel);
    let spds = spds(config, kernel, &desired);
    desired.ipsec.spds.extend(spds);
    desired
}

impl Daemon {
    /// Has each of the devices a port, with the policies it has: one that is new has none yet, and one that is gone, or is for
    /// other policies now, stays as it is until keys are looked at.
    pub(super) fn follow_routed(&self, desired: &mut Desired) {
        let id = |of: &Option<RouteMode>| of.as_ref().map(|of| of.if_id);
        for spd in spds(&self.config, &self.kernel, desired) {
            let there = desired.ipsec.spds.iter_mut().find(|other| other.name == spd.name);
            match there.map(|there| &mut there.route_mode) {
                None => desired.ipsec.spds.push(spd),
                Some(there) if id(there) == id(&spd.route_mode) => *there = spd.route_mode,
                Some(_) => {}
            }
        }
    }
}
