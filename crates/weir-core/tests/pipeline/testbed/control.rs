//! Short ways to write what an operator would.

use std::net::IpAddr;

use weir_core::state::{AddressSpec, Desired, Link, NeighborSpec, NextHopSpec, PortSpec, RouteSpec, Via};
use weir_core::tables::{Owner, ReversePath, Tables, Target};

pub fn desired(ports: &[PortSpec]) -> Desired {
    Desired { ports: ports.to_vec(), ..Desired::default() }
}

/// Addresses as `192.0.2.1/24`, all weir's own.
pub fn port(name: &str, device: &str, addresses: &[&str]) -> PortSpec {
    PortSpec {
        name: name.into(),
        device: device.into(),
        vlan: None,
        mtu: None,
        addresses: addresses.iter().map(|a| address(a)).collect(),
        reverse_path: ReversePath::Off,
    }
}

pub fn address(text: &str) -> AddressSpec {
    let (address, len) = text.split_once('/').expect("a slash");
    AddressSpec {
        address: address.parse().expect("address"),
        prefix_len: len.parse().expect("length"),
        owner: Owner::Weir,
    }
}

/// Next hops as `gateway`, `@port`, `gateway@port`, each with `*weight` if it is not one.
pub fn route(prefix: &str, hops: &[&str]) -> RouteSpec {
    let hop = |text: &&str| {
        let (text, weight) = text.split_once('*').unwrap_or((text, "1"));
        let (gateway, port) = match text.split_once('@') {
            Some((gateway, port)) => (gateway, Some(port.to_string())),
            None => (text, None),
        };
        NextHopSpec {
            gateway: (!gateway.is_empty()).then(|| gateway.parse().expect("gateway")),
            port,
            weight: weight.parse().expect("weight"),
        }
    };
    RouteSpec { prefix: prefix.parse().expect("prefix"), via: Via::NextHops(hops.iter().map(hop).collect()) }
}

pub fn neighbor(port: &str, address: &str, mac: u8) -> NeighborSpec {
    NeighborSpec { port: port.into(), address: address.parse().expect("address"), mac: [2, 0, 0, 0, 0, mac] }
}

/// `eth3` has the MAC 02:00:00:00:00:e3.
pub fn link(device: &str, up: bool) -> Link {
    let number = device.bytes().last().map_or(0, |b| b.wrapping_sub(b'0'));
    Link { device: device.into(), mac: [2, 0, 0, 0, 0, 0xe0 + number], mtu: 1500, up, point_to_point: false }
}

pub fn up(device: &str) -> Link {
    link(device, true)
}

pub fn lookup(tables: &Tables, to: &str) -> Target {
    let value = match to.parse().expect("address") {
        IpAddr::V4(a) => tables.fib4.lookup(a),
        IpAddr::V6(a) => tables.fib6.lookup(a),
    };
    tables.targets[value as usize]
}
