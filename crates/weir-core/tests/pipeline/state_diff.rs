//! The difference of two wishes, as actions and as the lines an operator reads.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use crate::testbed::control::{address, desired, neighbor, port, route};
use proptest::prelude::*;
use weir_core::route::Prefix;
use weir_core::state::{
    Action, AddressSpec, Desired, NeighborSpec, NextHopSpec, PortChange, PortSpec, RouteSpec, Via, diff,
};
use weir_core::tables::{Owner, ReversePath, Settings};

/// What each action means, step by step.
fn perform(d: &mut Desired, action: Action) {
    let at =
        |d: &Desired, name: &str| d.ports.iter().position(|p| p.name == name).expect("the port is there");
    match action {
        Action::AddPort(port) => d.ports.push(port),
        Action::RemovePort(port) => _ = d.ports.remove(at(d, &port.name)),
        Action::ChangePort { port, change } => {
            let i = at(d, &port);
            let port = &mut d.ports[i];
            match change {
                PortChange::Carrier { old, new } => {
                    assert_eq!((port.device.clone(), port.vlan), old);
                    (port.device, port.vlan) = new;
                }
                PortChange::Mtu { old, new } => assert_eq!(std::mem::replace(&mut port.mtu, new), old),
                PortChange::ReversePath { old, new } => {
                    assert_eq!(std::mem::replace(&mut port.reverse_path, new), old);
                }
            }
        }
        Action::AddAddress { port, address } => {
            let i = at(d, &port);
            d.ports[i].addresses.push(address);
        }
        Action::RemoveAddress { port, address } => {
            let i = at(d, &port);
            let there =
                d.ports[i].addresses.iter().position(|a| *a == address).expect("the address is there");
            d.ports[i].addresses.remove(there);
        }
        Action::ChangeAddress { port, old, new } => {
            let i = at(d, &port);
            let there = d.ports[i].addresses.iter_mut().find(|a| **a == old).expect("the address is there");
            *there = new;
        }
        Action::OrderAddresses { port, order } => {
            let i = at(d, &port);
            d.ports[i].addresses.sort_by_key(|a| order.iter().position(|o| *o == a.address));
        }
        Action::AddRoute(route) => d.routes.push(route),
        Action::RemoveRoute(route) => d.routes.retain(|r| *r != route),
        Action::ChangeRoute { prefix, old, new } => {
            let there = d.routes.iter_mut().find(|r| r.prefix == prefix).expect("the route is there");
            assert_eq!(std::mem::replace(&mut there.via, new), old);
        }
        Action::AddNeighbor(neighbor) => d.neighbors.push(neighbor),
        Action::RemoveNeighbor(neighbor) => d.neighbors.retain(|n| *n != neighbor),
        Action::ChangeNeighbor { old, new } => {
            *d.neighbors.iter_mut().find(|n| **n == old).expect("the neighbour is there") = new;
        }
        Action::ChangeSettings { old, new } => assert_eq!(std::mem::replace(&mut d.settings, new), old),
        Action::Ipsec(action) => panic!("{action}: there is no IPsec here"),
    }
}

/// The same without the orders that mean nothing.
fn canonical(mut d: Desired) -> Desired {
    d.ports.sort_by(|a, b| a.name.cmp(&b.name));
    d.routes.sort_by_key(|r| r.prefix);
    d.routes.iter_mut().for_each(|r| r.via = r.via.canonical());
    d.neighbors.sort_by(|a, b| (&a.port, a.address).cmp(&(&b.port, b.address)));
    d
}

fn host(n: u8) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, n).into()
}

fn ports() -> impl Strategy<Value = Vec<PortSpec>> {
    let addresses = prop::collection::vec((0u8..6, 24u8..26, any::<bool>()), 0..5).prop_map(|all| {
        let mut seen = BTreeSet::new();
        let spec = |(n, prefix_len, ours)| AddressSpec {
            address: host(n),
            prefix_len,
            owner: if ours { Owner::Weir } else { Owner::Kernel },
        };
        all.into_iter().filter(|a| seen.insert(a.0)).map(spec).collect::<Vec<_>>()
    });
    let fields = (0u8..3, prop::option::of(1u16..3), prop::option::of(1500u16..1502), 0u8..3, addresses);
    prop::collection::btree_map("[a-d]", fields, 0..4).prop_map(|all| {
        let spec = |(name, (device, vlan, mtu, reverse_path, addresses))| PortSpec {
            name,
            device: format!("eth{device}"),
            vlan,
            mtu,
            addresses,
            reverse_path: [ReversePath::Off, ReversePath::Strict, ReversePath::Loose][reverse_path as usize],
        };
        all.into_iter().map(spec).collect()
    })
}

fn via() -> impl Strategy<Value = Via> {
    let hop = (prop::option::of(0u8..4), prop::option::of("[a-d]"), 1u8..3)
        .prop_map(|(gateway, port, weight)| NextHopSpec { gateway: gateway.map(host), port, weight });
    prop_oneof![
        3 => prop::collection::vec(hop, 1..4).prop_map(Via::NextHops),
        1 => prop_oneof![Just(Via::Blackhole), Just(Via::Unreachable), Just(Via::Prohibited)],
    ]
}

fn wish() -> impl Strategy<Value = Desired> {
    let routes = prop::collection::vec((0u8..6, via()), 0..8).prop_map(|all| {
        let unique: BTreeMap<u8, Via> = all.into_iter().collect();
        let spec = |(n, via)| RouteSpec { prefix: Prefix::new(Ipv4Addr::new(10, n, 0, 0).into(), 16), via };
        unique.into_iter().map(spec).collect::<Vec<_>>()
    });
    let neighbors = prop::collection::btree_map(("[a-d]", 0u8..4), 0u8..3, 0..5).prop_map(|all| {
        let spec = |((port, n), mac)| NeighborSpec { port, address: host(n), mac: [2, 0, 0, 0, 0, mac] };
        all.into_iter().map(spec).collect::<Vec<_>>()
    });
    (ports(), routes, neighbors, 0u32..2).prop_map(|(ports, routes, neighbors, burst)| Desired {
        ports,
        routes,
        neighbors,
        settings: Settings { icmp_error_burst: burst, ..Settings::default() },
        ..Desired::default()
    })
}

proptest! {
    #[test]
    fn performing_the_difference_leads_from_one_to_the_other(a in wish(), b in wish()) {
        let mut walked = a.clone();
        diff(&a, &b).into_iter().for_each(|action| perform(&mut walked, action));
        prop_assert_eq!(canonical(walked), canonical(b));
    }

    #[test]
    fn equal_wishes_differ_by_nothing(a in wish(), turn in 0usize..8) {
        prop_assert_eq!(diff(&a, &a), []);
        let mut turned = a.clone();
        let by = |len: usize| turn % len.max(1);
        let (ports, routes, neighbors) = (a.ports.len(), a.routes.len(), a.neighbors.len());
        turned.ports.rotate_left(by(ports));
        turned.routes.rotate_left(by(routes));
        turned.neighbors.rotate_left(by(neighbors));
        for route in &mut turned.routes {
            if let Via::NextHops(hops) = &mut route.via {
                hops.reverse();
            }
        }
        prop_assert_eq!(diff(&a, &turned), [], "orders that mean nothing");
    }

    #[test]
    fn every_action_is_one_line_and_says_what_it_does(a in wish(), b in wish()) {
        for action in diff(&a, &b) {
            let line = action.to_string();
            prop_assert!(line.starts_with(['+', '-', '~']) && !line.contains('\n'), "{}", line);
        }
    }
}

#[test]
fn lines_read_as_an_operator_writes() {
    let mut old = desired(&[port("lan", "eth0", &["192.0.2.1/24"]), port("gone", "eth1", &[])]);
    old.routes = vec![route("10.0.0.0/8", &["192.0.2.9"]), route("10.1.0.0/16", &["192.0.2.9"])];
    old.neighbors = vec![neighbor("lan", "192.0.2.9", 9)];
    let mut lan = port("lan", "eth0", &["2001:db8::1/64", "192.0.2.1/25"]);
    lan.mtu = Some(9000);
    lan.vlan = Some(7);
    lan.reverse_path = ReversePath::Strict;
    let mut new = desired(&[lan, port("wan", "eth2", &["198.51.100.1/31"])]);
    new.ports[1].addresses[0].owner = Owner::Kernel;
    new.routes = vec![
        route("10.0.0.0/8", &["192.0.2.9*3", "198.51.100.0@wan"]),
        RouteSpec { prefix: "10.2.0.0/16".parse().expect("prefix"), via: Via::Blackhole },
        route("10.3.0.0/16", &["@wan"]),
    ];
    new.neighbors = vec![neighbor("lan", "192.0.2.9", 8)];
    new.settings.icmp_error_burst = 10;
    new.settings.hold_total = 2000;
    let lines: Vec<String> = diff(&old, &new).iter().map(|a| a.to_string()).collect();
    assert_eq!(
        lines,
        [
            "- route 10.1.0.0/16 via 192.0.2.9",
            "- port gone on device eth1",
            "~ port lan: device eth0 → device eth0 vlan 7",
            "~ port lan: mtu device's → 9000",
            "~ port lan: reverse path off → strict",
            "~ address 192.0.2.1 on port lan: 192.0.2.1/24 (weir) → 192.0.2.1/25 (weir)",
            "+ address 2001:db8::1/64 (weir) on port lan",
            "~ port lan: address order 2001:db8::1, 192.0.2.1",
            "+ port wan on device eth2, 198.51.100.1/31 (kernel)",
            "~ settings: icmp error burst 50 → 10, hold total 1024 → 2000",
            "~ neighbor 192.0.2.9 on port lan: 02:00:00:00:00:09 → 02:00:00:00:00:08",
            "~ route 10.0.0.0/8: via 192.0.2.9 → via 192.0.2.9 weight 3, via 198.51.100.0 port wan",
            "+ route 10.2.0.0/16 blackhole",
            "+ route 10.3.0.0/16 port wan",
        ]
    );
}

#[test]
fn order_of_addresses_matters_because_the_first_signs_errors() {
    let a = desired(&[port("lan", "eth0", &["192.0.2.1/24", "192.0.2.2/24"])]);
    let b = desired(&[port("lan", "eth0", &["192.0.2.2/24", "192.0.2.1/24"])]);
    let order = vec![address("192.0.2.2/24").address, address("192.0.2.1/24").address];
    assert_eq!(diff(&a, &b), [Action::OrderAddresses { port: "lan".into(), order }]);
}
