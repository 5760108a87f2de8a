//! What the pipeline routes by: two ports, eight gateways, and routes drawn like the Internet's.
//!
//! The control side of the core builds the tables from a desired state, as in the daemon.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use weir_core::control::Control;
use weir_core::id::Mac;
use weir_core::route::synthetic::{Draw, covered4, covered6, routes4, routes6};
use weir_core::route::{Prefix, Prefix4, Prefix6};
use weir_core::state::{AddressSpec, Desired, Link, NeighborSpec, NextHopSpec, PortSpec, RouteSpec, Via};
use weir_core::tables::{Owner, ReversePath, Settings, Tables};

use super::ipsec;
use crate::model::{Family, LabError, Protection};
use crate::workload::address::{self, GATEWAYS};

/// Which of all possible tables: the same for every run, so that runs differ in nothing they need not.
const SEED: u64 = 1;

pub const IN_MAC: Mac = [2, 0, 0, 0, 0, 1];
pub const OUT_MAC: Mac = [2, 0, 0, 0, 0, 2];

/// Tables, and the prefixes destinations are drawn from.
#[derive(Clone)]
pub struct Net {
    pub tables: Arc<Tables>,
    prefixes: Prefixes,
}

#[derive(Clone)]
enum Prefixes {
    V4(Arc<[(Prefix4, u32)]>),
    V6(Arc<[(Prefix6, u32)]>),
}

impl Net {
    /// The routes' prefixes as text.
    pub fn prefixes(&self) -> Vec<String> {
        match &self.prefixes {
            Prefixes::V4(routes) => routes.iter().map(|&(p, _)| Prefix::V4(p).to_string()).collect(),
            Prefixes::V6(routes) => routes.iter().map(|&(p, _)| Prefix::V6(p).to_string()).collect(),
        }
    }

    /// The routes' prefixes as text, with the number of each one's gateway.
    pub fn routes(&self) -> Vec<(String, u32)> {
        match &self.prefixes {
            Prefixes::V4(routes) => {
                routes.iter().map(|&(p, value)| (Prefix::V4(p).to_string(), value - 1)).collect()
            }
            Prefixes::V6(routes) => {
                routes.iter().map(|&(p, value)| (Prefix::V6(p).to_string(), value - 1)).collect()
            }
        }
    }

    /// One destination a flow, spread over the routes.
    pub fn destinations(&self, flows: u32) -> Vec<IpAddr> {
        let flows = flows as usize;
        match &self.prefixes {
            Prefixes::V4(routes) => covered4(routes, Draw::ByRoute, flows, SEED)
                .into_iter()
                .map(|bits| IpAddr::V4(Ipv4Addr::from(bits)))
                .collect(),
            Prefixes::V6(routes) => covered6(routes, Draw::ByRoute, flows, SEED)
                .into_iter()
                .map(|bits| IpAddr::V6(Ipv6Addr::from(bits)))
                .collect(),
        }
    }
}

/// Tables with `routes` routes of a family, and what protects packets in so many workers; and who can change
/// them.
pub fn build(
    family: Family,
    routes: u32,
    protection: Option<(&Protection, usize)>,
) -> Result<(Net, Control), LabError> {
    let count = routes as usize;
    let (prefixes, specs): (Prefixes, Vec<RouteSpec>) = match family {
        Family::Inet => {
            let made = routes4(count, GATEWAYS, SEED);
            let specs = made.iter().map(|&(p, value)| spec(Prefix::V4(p), family, value)).collect();
            (Prefixes::V4(made.into()), specs)
        }
        Family::Inet6 => {
            let made = routes6(count, GATEWAYS, SEED);
            let specs = made.iter().map(|&(p, value)| spec(Prefix::V6(p), family, value)).collect();
            (Prefixes::V6(made.into()), specs)
        }
    };
    if specs.len() != count {
        return Err(LabError::new(format!(
            "memory: {routes} routes of {family:?}, the address space drawn from holds {}: lower `routes`",
            specs.len()
        )));
    }
    let mut desired = Desired {
        ports: vec![
            port("in", address::IN_V4, address::IN_V6),
            port("out", address::OUT_V4, address::OUT_V6),
        ],
        routes: specs,
        neighbors: (0..GATEWAYS)
            .flat_map(|n| [neighbor(Family::Inet, n), neighbor(Family::Inet6, n)])
            .collect(),
        settings: Settings::default(),
        ..Desired::default()
    };
    let mut links = [("in", IN_MAC), ("out", OUT_MAC)]
        .map(|(device, mac)| Link { device: device.into(), mac, mtu: 1500, up: true, point_to_point: false })
        .to_vec();
    let made = match protection {
        None => Control::new(desired, links, 0),
        Some((protection, workers)) => {
            ipsec::add(&mut desired, &mut links, (protection, workers), family);
            let ciphers = ipsec::ciphers(protection.backend)?;
            Control::with_ciphers(desired, links, 0, ciphers)
        }
    };
    let mut control = made.map_err(|errors| {
        let first = errors.first().map_or(String::new(), ToString::to_string);
        LabError::new(format!("memory: the tables cannot be built: {first}"))
    })?;
    let tables = control
        .take_snapshot()
        .ok_or_else(|| LabError::new("memory: the control side published no tables".into()))?;
    Ok((Net { tables, prefixes }, control))
}

fn port(name: &str, v4: (Ipv4Addr, u8), v6: (Ipv6Addr, u8)) -> PortSpec {
    let address = |address: IpAddr, prefix_len| AddressSpec { address, prefix_len, owner: Owner::Kernel };
    PortSpec {
        name: name.into(),
        device: name.into(),
        vlan: None,
        mtu: Some(1500),
        addresses: vec![address(v4.0.into(), v4.1), address(v6.0.into(), v6.1)],
        reverse_path: ReversePath::Off,
    }
}

fn spec(prefix: Prefix, family: Family, value: u32) -> RouteSpec {
    let gateway = Some(address::gateway(family, value - 1));
    RouteSpec { prefix, via: Via::NextHops(vec![NextHopSpec { gateway, port: None, weight: 1 }]) }
}

fn neighbor(family: Family, n: u32) -> NeighborSpec {
    NeighborSpec { port: "out".into(), address: address::gateway(family, n), mac: gateway_mac(family, n) }
}

/// The link-layer address of a gateway.
pub fn gateway_mac(family: Family, n: u32) -> Mac {
    [2, 0, 0, 1, u8::from(family == Family::Inet6), n as u8]
}
