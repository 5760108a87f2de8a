//! Which decisions hold for a pair of addresses, and which never do.

use std::collections::HashSet;

use crate::common::world::*;
use weir_core::id::PortId;
use weir_core::router::lasting::{Lasting, NoWay, Toward, toward};
use weir_core::testing::sample::LAN_DEVICE;
use weir_core::wire::flow::FlowKey;

/// The way out and the MAC addresses there, of a frame that came in on `port`.
fn way(net: &mut Net, port: PortId, bytes: &[u8]) -> Option<(PortId, [u8; 12])> {
    let tables = net.tables();
    let device = tables.ports[port.index()].device;
    let mut lasting = Lasting::new(FlowKey::new(0));
    let way = lasting.way(&tables, device, bytes)?;
    assert_eq!(way.arrived.name, tables.ports[port.index()].name);
    Some((way.next.port, way.next.header))
}

#[test]
fn a_pair_by_one_gateway_lasts_in_both_families() {
    for (source, destination) in [("10.0.0.2", "10.100.0.9"), ("fd00::2", "2001:db8:100::9")] {
        let mut net = Net::new();
        let (port, header) = way(&mut net, LAN, &udp(LAN, source, destination)).expect("lasts");
        assert_eq!(port, WAN);
        assert_eq!(header[6..], mac(WAN));
    }
}

#[test]
fn a_pair_to_a_neighbour_lasts_while_the_snapshot_does() {
    let mut net = Net::new();
    let tables = net.tables();
    let frame = udp(LAN, "10.0.0.2", "192.0.2.2");
    let mut lasting = Lasting::new(FlowKey::new(0));
    assert!(
        lasting.way(&tables, LAN_DEVICE, &frame).is_some_and(|w| w.next.header[..6] == neighbor_mac(WAN, 2))
    );
    net.take_down(WAN);
    assert!(lasting.way(&net.tables(), LAN_DEVICE, &frame).is_none());
}

/// The next hop of a frame is that of all frames with its protocol and ports.
#[test]
fn of_several_next_hops_each_flow_has_its_own() {
    let mut net = Net::new();
    let tables = net.tables();
    let key = FlowKey::new(0);
    for (source, destination) in [("10.0.0.2", "10.200.0.9"), ("fd00::2", "2001:db8:200::9")] {
        let mut seen = HashSet::new();
        for port in 1000..1100 {
            let of = |payload: &[u8]| frame(LAN, source, destination).udp(port, 2000, payload);
            let mut lasting = Lasting::new(key);
            let Some(way) = lasting.way(&tables, LAN_DEVICE, &of(b"a")) else { continue };
            assert_eq!(way.flow, Some((17, u32::from(port) << 16 | 2000)));
            let other = lasting.way(&tables, LAN_DEVICE, &of(b"another")).expect("as the first");
            assert_eq!((way.next, way.flow), (other.next, other.flow));
            seen.insert(way.next.header);
        }
        assert!(!seen.is_empty(), "{destination}");
    }
    let mut labels = Lasting::new(key.with_flow_label(true));
    let frame = udp(LAN, "fd00::2", "2001:db8:200::9");
    assert!(labels.way(&tables, LAN_DEVICE, &frame).is_none(), "labels differ from packet to packet");
}

#[test]
fn a_pair_of_vlans_lasts() {
    let mut net = Net::new();
    let tables = net.tables();
    let mut lasting = Lasting::new(FlowKey::new(0));
    let device = |port: PortId| tables.ports[port.index()].device;
    let came = lasting.way(&tables, device(LAN_10), &udp(LAN_10, "10.10.0.2", "10.100.0.9")).expect("lasts");
    assert_eq!((came.arrived.vlan, came.next.vlan, came.flow), (Some(10), None, None));
    let went = lasting.way(&tables, device(WAN), &udp(WAN, "192.0.2.7", "10.10.0.2")).expect("lasts");
    assert_eq!((went.arrived.vlan, went.next.vlan), (None, Some(10)));
}

#[test]
fn what_rests_on_more_than_the_addresses_does_not_last() {
    let mut net = Net::new();
    for (what, port, bytes) in [
        (
            "a fragment, of several paths",
            LAN,
            frame(LAN, "10.0.0.2", "10.200.0.9").fragment(0, true).raw(17, &[0; 24]),
        ),
        (
            "a fragment, of several paths",
            LAN,
            frame(LAN, "fd00::2", "2001:db8:200::9").fragment(0, true).raw(17, &[0; 24]),
        ),
        ("a point-to-point port", LAN, udp(LAN, "10.0.0.2", "10.9.1.9")),
        ("an unresolved gateway", LAN, udp(LAN, "10.0.0.2", "10.96.0.9")),
        ("a discard route", LAN, udp(LAN, "10.0.0.2", "10.99.0.9")),
        ("one of our addresses", LAN, udp(LAN, "10.0.0.2", "192.0.2.1")),
        ("a source no packet may carry", LAN, udp(LAN, "127.0.0.1", "10.100.0.9")),
        ("our own address as source", LAN, udp(LAN, "192.0.2.1", "10.100.0.9")),
    ] {
        assert!(way(&mut net, port, &bytes).is_none(), "{what}");
    }
    let mut other_host = udp(LAN, "10.0.0.2", "10.100.0.9");
    other_host[5] ^= 1;
    assert!(way(&mut net, LAN, &other_host).is_none(), "another host's MAC");
    assert!(way(&mut net, LAN, &[]).is_none(), "nothing");
}

#[test]
fn of_several_next_hops_the_chosen_one_lasts_and_none_without_a_choice() {
    let mut net = Net::new();
    let mut lasting = Lasting::new(FlowKey::new(0));
    for (source, destination) in [("10.0.0.2", "10.200.0.9"), ("fd00::2", "2001:db8:200::9")] {
        let tables = net.tables();
        let (source, destination) = (addr(source), addr(destination));
        let Some(Toward::Several { hops, .. }) = toward(&tables, destination) else {
            panic!("several next hops lead to {destination}");
        };
        for &hop in hops {
            let way = lasting.between(&tables, LAN, (source, destination), Some(hop));
            match way {
                Ok(way) => assert_eq!(way.next, &tables.adjacencies[hop.0 as usize]),
                Err(no) => {
                    assert_eq!(no, NoWay::Neighbor);
                    assert!(!tables.adjacencies[hop.0 as usize].ready);
                }
            }
        }
        let none = lasting.between(&tables, LAN, (source, destination), None);
        assert_eq!(none.err(), Some(NoWay::Route));
    }
    let tables = net.tables();
    assert_eq!(toward(&tables, addr("10.100.0.9")), Some(Toward::One(WAN)));
    assert_eq!(toward(&tables, addr("192.0.2.2")), Some(Toward::One(WAN)), "a neighbour's");
    assert_eq!(toward(&tables, addr("192.0.2.1")), None, "an address of ours");
}

#[test]
fn a_way_between_vlans_lasts_for_who_knows_tags() {
    let mut net = Net::new();
    let tables = net.tables();
    let mut lasting = Lasting::new(FlowKey::new(0));
    let way = lasting.between(&tables, LAN_10, (addr("10.10.0.2"), addr("10.100.0.9")), None).expect("lasts");
    assert_eq!((way.arrived.vlan, way.next.port), (Some(10), WAN));
}
