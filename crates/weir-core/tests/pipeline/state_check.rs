//! Every mistake an operator can make, where it is and what to do about it.

use crate::testbed::control as testbed;
use testbed::{desired, neighbor, port, route};
use weir_core::state::{Desired, Element, Problem, RouteSpec, Via, check};

fn good() -> Desired {
    let mut d = desired(&[
        port("lan", "eth0", &["192.0.2.1/24", "2001:db8::1/64", "fe80::1/64"]),
        port("uplink", "eth1", &["198.51.100.1/31", "2001:db8:1::1/127", "fe80::1/64"]),
    ]);
    d.routes = vec![
        route("0.0.0.0/0", &["198.51.100.0"]),
        route("::/0", &["fe80::2@uplink"]),
        route("10.0.0.0/8", &["192.0.2.9*3", "@uplink"]),
        route("10.9.0.0/16", &["172.31.0.1@lan"]),
    ];
    d.neighbors = vec![neighbor("lan", "192.0.2.9", 9)];
    d
}

/// The errors of the good wish after `spoil`.
fn said(spoil: impl Fn(&mut Desired)) -> Vec<String> {
    let mut d = good();
    spoil(&mut d);
    check(&d).iter().map(|e| e.to_string()).collect()
}

fn hop(text: &'static str) -> Vec<String> {
    said(|d| d.routes[2] = route("10.0.0.0/8", &[text]))
}

#[test]
fn good_wish_has_no_errors() {
    assert_eq!(check(&good()), []);
    assert_eq!(check(&Desired::default()), []);
}

#[test]
fn names_and_carriers_are_unique() {
    assert_eq!(
        said(|d| d.ports[1].name = "lan".into())[0],
        "port lan: is configured twice; keep one or rename one"
    );
    assert_eq!(
        said(|d| d.ports[1].device = "eth0".into()),
        ["port uplink: untagged traffic of device eth0 is port lan's already; give one a vlan"]
    );
    assert_eq!(
        said(|d| for p in &mut d.ports {
            (p.device, p.vlan) = ("eth0".into(), Some(7));
        }),
        ["port uplink: vlan 7 on device eth0 is port lan's already; choose another tag"]
    );
    assert_eq!(
        said(|d| d.ports.push(port("a b", "", &[]))),
        [
            "port a b: name is `a b`, expected 1 to 64 printable characters without spaces; rename it",
            "port a b: names no device; name the interface that carries it"
        ]
    );
}

#[test]
fn numbers_have_ranges() {
    assert_eq!(
        said(|d| d.ports[0].vlan = Some(4095)),
        ["port lan: vlan is 4095, expected 1 to 4094; use a valid 802.1Q tag"]
    );
    assert_eq!(
        said(|d| d.ports[0].mtu = Some(1279)),
        [
            "port lan: mtu is 1279, expected at least 1280 with IPv6 addresses (RFC 8200 5); raise it or remove them"
        ]
    );
    assert_eq!(
        said(|d| d.ports.push(weir_core::state::PortSpec { mtu: Some(67), ..port("x", "eth9", &[]) })),
        ["port x: mtu is 67, expected at least 68 for IPv4 (RFC 791); raise it"]
    );
    assert_eq!(
        said(|d| d.ports[0].addresses[0].prefix_len = 33)[0],
        "port lan: address 192.0.2.1/33 has prefix length 33, expected 1 to 32; correct it"
    );
    assert_eq!(
        hop("192.0.2.9*65"),
        ["route 10.0.0.0/8: next hop 1: weight is 65, expected 1 to 64; scale the weights"]
    );
    assert_eq!(
        said(|d| (d.settings.hold_total, d.settings.hold_per_neighbor) = (5, 6)),
        ["settings: hold total is 5, expected at least the 6 held per neighbour; raise it"]
    );
}

#[test]
fn address_of_a_port_is_a_hosts() {
    for (address, what) in [
        ("203.0.113.0/24", "the network address of 203.0.113.0/24"),
        ("203.0.113.255/24", "the broadcast address of 203.0.113.0/24"),
        ("2001:db8:5::/64", "the network address of 2001:db8:5::/64"),
        ("127.0.0.1/8", "a loopback address"),
        ("224.0.0.1/24", "a multicast address"),
        ("ff02::1/64", "a multicast address"),
        ("240.0.0.1/24", "a reserved address (240.0.0.0/4)"),
        ("::ffff:192.0.2.77/128", "an IPv4 address written as IPv6"),
        ("0.0.0.0/32", "the unspecified address"),
    ] {
        let said = said(|d| d.ports.push(port("x", "eth9", &[address])));
        let bare = address.split('/').next().expect("an address");
        assert_eq!(said, [format!("port x: address {bare} is {what}, expected a host's; choose another")]);
    }
    // Two-address networks have no other addresses than hosts' (RFC 3021, RFC 6164).
    let both = ["203.0.113.0/31", "2001:db8:5::/127"];
    assert_eq!(said(|d| d.ports.push(port("x", "eth9", &both))), [""; 0]);
}

#[test]
fn networks_and_addresses_are_on_one_port() {
    assert_eq!(
        said(|d| d.ports.push(port("x", "eth9", &["192.0.2.130/25"]))),
        [
            "port x: network 192.0.2.128/25 overlaps 192.0.2.0/24 on port lan, expected each network on one port; \
          renumber one or lengthen its prefix"
        ]
    );
    assert_eq!(
        said(|d| d.ports.push(port("x", "eth9", &["192.0.2.1/32"]))),
        ["port x: address 192.0.2.1 is on port lan already; remove one"]
    );
    assert_eq!(
        said(|d| d.ports[0].addresses.push(testbed::address("fe80::1/64"))),
        ["port lan: address fe80::1 is on port lan already; remove one"]
    );
    // A second address in the same network of the same port, and a host address inside another's.
    assert_eq!(said(|d| d.ports[0].addresses.push(testbed::address("192.0.2.2/24"))), [""; 0]);
    assert_eq!(said(|d| d.ports[1].addresses.push(testbed::address("192.0.2.77/32"))), [""; 0]);
}

#[test]
fn overlap_is_seen_through_a_network_in_between() {
    let said = said(|d| {
        d.ports.push(port("x", "eth8", &["10.0.0.1/8", "10.1.0.1/16"]));
        d.ports.push(port("y", "eth9", &["10.200.0.1/16"]));
    });
    assert!(
        said.iter().any(|s| s.contains("port y: network 10.200.0.0/16 overlaps 10.0.0.0/8 on port x")),
        "{said:?}"
    );
}

#[test]
fn gateway_is_a_neighbor() {
    let says = |text, expected: &str| {
        assert_eq!(hop(text), [format!("route 10.0.0.0/8: next hop 1: {expected}")]);
    };
    says(
        "203.0.113.1",
        "gateway 203.0.113.1 is on no connected network; name its port or add an address near it",
    );
    says("192.0.2.1", "gateway 192.0.2.1 is our own address on port lan; name the neighbour's address");
    says(
        "192.0.2.255",
        "gateway 192.0.2.255 is the broadcast address of 192.0.2.0/24, expected a neighbour's address; correct it",
    );
    says(
        "2001:db8::9",
        "gateway 2001:db8::9 is IPv6, expected the family of the prefix; use a gateway of that family",
    );
    says("224.0.0.5", "gateway 224.0.0.5 is a multicast address, expected a neighbour's address; correct it");
    says("192.0.2.9@uplnik", "port `uplnik` does not exist; did you mean `uplink`?");
    says("192.0.2.9@dmz", "port `dmz` does not exist; configure it or correct the name");
    says(
        "192.0.2.9@uplink",
        "gateway 192.0.2.9 is on port lan's network, but the next hop names port uplink; correct one of them",
    );
    says("", "has neither gateway nor port; name at least one");
    assert_eq!(
        said(|d| d.routes[1] = route("::/0", &["fe80::2"])),
        [
            "route ::/0: next hop 1: gateway fe80::2 is link-local and names no port (RFC 4007); add the port it is on"
        ]
    );
    assert_eq!(
        said(|d| d.routes[1] = route("::/0", &["fe80::1@lan"])),
        [
            "route ::/0: next hop 1: gateway fe80::1 is our own address on port lan; name the neighbour's address"
        ]
    );
}

#[test]
fn routes_are_unique_and_lead_somewhere() {
    assert_eq!(
        said(|d| d.routes.push(route("10.0.0.0/8", &["192.0.2.8"]))),
        ["route 10.0.0.0/8: is configured twice; keep one, with several next hops if both are meant"]
    );
    assert_eq!(
        said(|d| d.routes.push(route("192.0.2.1/32", &["192.0.2.8"]))),
        ["route 192.0.2.1/32: is our own address on port lan; remove the route"]
    );
    assert_eq!(
        said(|d| d.routes[2].via = Via::NextHops(Vec::new())),
        ["route 10.0.0.0/8: has no next hop, expected one or more; add one or say `blackhole`"]
    );
    assert_eq!(
        said(|d| d.routes[2] = route("10.0.0.0/8", &["192.0.2.9", "192.0.2.9*2"])),
        ["route 10.0.0.0/8: next hop 2: is listed twice in the route; use one with a higher weight"]
    );
    for (prefix, what) in [
        ("224.0.0.0/8", "multicast addresses"),
        ("ff00::/8", "multicast addresses"),
        ("fe80::/64", "link-local addresses (RFC 4291 2.5.6)"),
        ("127.0.0.0/8", "loopback addresses"),
        ("240.0.0.0/4", "reserved addresses (240.0.0.0/4)"),
    ] {
        let route = RouteSpec { prefix: prefix.parse().expect("prefix"), via: Via::Unreachable };
        let expected = format!("route {prefix}: covers only {what}, expected a unicast prefix; remove it");
        assert_eq!(said(|d| d.routes.push(route.clone())), [expected]);
    }
}

#[test]
fn static_neighbor_is_someone_else_on_a_port_there_is() {
    assert_eq!(
        said(|d| d.neighbors[0].port = "lna".into()),
        ["neighbor 192.0.2.9 on lna: port `lna` does not exist; did you mean `lan`?"]
    );
    assert_eq!(
        said(|d| d.neighbors.push(neighbor("lan", "192.0.2.9", 8))),
        ["neighbor 192.0.2.9 on lan: is configured twice on the port; keep one"]
    );
    assert_eq!(
        said(|d| d.neighbors[0] = neighbor("lan", "192.0.2.1", 8)),
        ["neighbor 192.0.2.1 on lan: address is our own on port lan; remove the neighbour"]
    );
    assert_eq!(
        said(|d| d.neighbors[0].mac = [0x33, 0x33, 0, 0, 0, 1]),
        [
            "neighbor 192.0.2.9 on lan: mac address 33:33:00:00:00:01 is a group address, expected a station's own; correct it"
        ]
    );
    assert_eq!(
        said(|d| d.neighbors[0].mac = [0; 6]),
        [
            "neighbor 192.0.2.9 on lan: mac address 00:00:00:00:00:00 is all zeros, expected a station's own; correct it"
        ]
    );
}

#[test]
fn every_mistake_is_told_at_once_with_its_place() {
    let mut d = good();
    d.ports[0].vlan = Some(0);
    d.routes[2] = route("10.0.0.0/8", &["192.0.2.9", "192.0.2.8@nowhere"]);
    d.neighbors[0].mac = [0; 6];
    let errors = check(&d);
    let places: Vec<Element> = errors.iter().map(|e| e.at).collect();
    assert_eq!(places, [Element::Port(0), Element::NextHop { route: 2, hop: 1 }, Element::Neighbor(0)]);
    assert_eq!(errors[1].problem, Problem::UnknownPort { name: "nowhere".into(), nearest: None });
}
