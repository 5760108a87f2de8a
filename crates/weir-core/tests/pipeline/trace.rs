//! A trace names every decision and the entry behind it.

use crate::common::world::*;
use weir_core::packet::DeviceId;
use weir_core::trace::trace;
use weir_core::verdict::{Reason, Verdict};
use weir_core::wire::flow::FlowKey;

fn traced(port: weir_core::id::PortId, bytes: &[u8]) -> weir_core::trace::Trace {
    let tables = Net::new().tables();
    let device: DeviceId = tables.ports[port.index()].device;
    trace(&tables, &FlowKey::new(0), device, bytes)
}

#[test]
fn forwarded_packet_names_port_route_and_next_hop() {
    let t = traced(LAN, &udp(LAN, "10.0.0.2", "10.100.0.9"));
    assert_eq!(t.verdict, Verdict::Forward(WAN));
    insta::assert_snapshot!(t.to_string(), @r"
    port         lan, no VLAN tag → lan
    ethernet     02:00:00:01:00:02 > 02:00:00:00:00:01 → this port's MAC
    ipv4         IP 10.0.0.2 > 10.100.0.9, ttl 64, proto 17, length 46 → a valid header
    route        10.100.0.9 → via 192.0.2.254 on wan
    next hop     192.0.2.254 → on wan, at 02:00:00:01:01:fe
    verdict      forward by wan → sent to the next hop
    ");
}

#[test]
fn connected_packet_names_its_neighbour_and_tag() {
    let t = traced(WAN, &udp(WAN, "192.0.2.7", "10.10.0.2"));
    assert_eq!(t.verdict, Verdict::Forward(LAN_10));
    insta::assert_snapshot!(t.to_string(), @r"
    port         wan, no VLAN tag → wan
    ethernet     02:00:00:01:01:02 > 02:00:00:00:00:02 → this port's MAC
    ipv4         IP 192.0.2.7 > 10.10.0.2, ttl 64, proto 17, length 46 → a valid header
    route        10.10.0.2 → connected to lan.10
    neighbour    10.10.0.2 → in the table
    next hop     10.10.0.2 → on lan.10, VLAN 10, at 02:00:00:01:03:02
    verdict      forward by lan.10 → sent to the next hop
    ");
}

#[test]
fn multipath_packet_names_its_bucket() {
    let t = traced(LAN, &udp(LAN, "fd00::2", "2001:db8:200::9"));
    insta::assert_snapshot!(t.to_string(), @r"
    port         lan, no VLAN tag → lan
    ethernet     02:00:00:01:00:02 > 02:00:00:00:00:01 → this port's MAC
    ipv6         IP6 fd00::2 > 2001:db8:200::9, hlim 64, proto 17, length 66 → a valid header
    route        2001:db8:200::9 → one of 2 paths
    multipath    flow hash over 2 buckets → bucket 1
    next hop     2001:db8:1::fd → on wan, at 02:00:00:01:01:fd
    verdict      forward by wan → sent to the next hop
    ");
}

#[test]
fn dropped_packet_names_the_reason_and_what_the_sender_hears() {
    let t = traced(LAN, &frame(LAN, "10.0.0.2", "10.100.0.9").ttl(1).udp(1, 2, b"x"));
    assert_eq!(t.verdict, Verdict::Drop(Reason::TtlExpired));
    insta::assert_snapshot!(t.to_string(), @r"
    port         lan, no VLAN tag → lan
    ethernet     02:00:00:01:00:02 > 02:00:00:00:00:01 → this port's MAC
    ipv4         IP 10.0.0.2 > 10.100.0.9, ttl 1, proto 17, length 29 → a valid header
    route        10.100.0.9 → via 192.0.2.254 on wan
    verdict      drop: ttl_expired → the TTL or hop limit ran out; the sender is told by ICMP: TimeExceeded
    ");
    let t = traced(LAN_20, &udp(LAN_20, "10.0.0.9", "10.100.0.9"));
    assert_eq!(t.verdict, Verdict::Drop(Reason::ReversePath));
    insta::assert_snapshot!(t.to_string(), @r"
    port         lan, VLAN 20 → lan.20
    ethernet     02:00:00:01:04:02 > 02:00:00:00:00:05, vlan 20 → this port's MAC
    ipv4         IP 10.0.0.9 > 10.100.0.9, ttl 64, proto 17, length 46 → a valid header
    route        10.100.0.9 → via 192.0.2.254 on wan
    reverse path 10.0.0.9 → connected to lan
    verdict      drop: reverse_path → the source is not reachable through the port it came in on (RFC 3704)
    ");
}

#[test]
fn waiting_packet_names_whom_it_waits_for() {
    let t = traced(LAN, &udp(LAN, "10.0.0.2", "10.96.0.9"));
    assert_eq!(t.verdict, Verdict::Held);
    insta::assert_snapshot!(t.to_string(), @r"
    port         lan, no VLAN tag → lan
    ethernet     02:00:00:01:00:02 > 02:00:00:00:00:01 → this port's MAC
    ipv4         IP 10.0.0.2 > 10.96.0.9, ttl 64, proto 17, length 46 → a valid header
    route        10.96.0.9 → via 192.0.2.66 on wan
    next hop     192.0.2.66 → on wan, unresolved
    verdict      held → held until 192.0.2.66 answers
    ");
}

#[test]
fn unreadable_frame_names_what_is_wrong() {
    let t = traced(LAN, &[0; 9]);
    assert_eq!(t.verdict, Verdict::Drop(Reason::FrameTooShort));
    insta::assert_snapshot!(t.to_string(), @r"
    ethernet     9 bytes → shorter than an Ethernet header
    verdict      drop: frame_too_short → shorter than an Ethernet header
    ");
}
