//! What the steering program is said to do, in Rust, over the same tables.

use std::collections::BTreeMap;
use std::net::IpAddr;

use weir_core::route::Prefix;
use weir_core::tables::Owner;
use weir_xdp::Action;
use weir_xdp::layout::{FLOW_ENFORCED, FLOW_SPREAD, Flow};

use super::{ENDS, ESP_PORTS, KEPT, KEPT_SPIS, checksum, ip, owner};
use crate::steer::{Cause, flow_offload::OffloadCounters};

/// A test run is of queue 0 of this interface.
pub const INGRESS: u32 = 1;

/// Every way through the flow offload.
pub const WAYS: [&str; 19] = [
    "unknown pair",
    "unknown flow of the pair",
    "offloaded",
    "offloaded between VLANs",
    "held: not IPv4 without options, or not IPv6",
    "held: no hop left",
    "held: a fragment",
    "held: wrong checksum",
    "held: not TCP, UDP or ESP",
    "held: longer than the frame, or shorter than its header",
    "held: older tables",
    "held: another interface",
    "held: another MAC address",
    "held: another VLAN",
    "held: above the MTU",
    "held: nothing known of the last frame",
    "held: an earlier frame is on its way",
    "held: one of unknown flow is on its way",
    "held: nobody follows policies",
];

/// A pair of addresses, or a protocol and ports of it, that a flow is the way of.
pub type Whose = ((IpAddr, IpAddr), Option<(u8, u32)>);

/// The state a program has, and how often each way was taken.
#[derive(Default)]
pub struct Model {
    pub offload: bool,
    pub socket: bool,
    pub generation: u64,
    pub policies_followed: bool,
    pub steered: u64,
    pub done: u64,
    pub flows: BTreeMap<Whose, Flow>,
    pub causes: BTreeMap<&'static str, u64>,
    pub ways: BTreeMap<&'static str, u64>,
    pub counters: BTreeMap<u32, OffloadCounters>,
    pub device: u32,
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]))
}

fn v4(packet: &[u8], at: usize) -> Option<IpAddr> {
    packet.get(at..)?.first_chunk::<4>().map(|a| IpAddr::from(*a))
}

fn v6(packet: &[u8], at: usize) -> Option<IpAddr> {
    packet.get(at..)?.first_chunk::<16>().map(|a| IpAddr::from(*a))
}

impl Model {
    /// What the program returns, and what it leaves of the frame.
    pub fn run(&mut self, frame: &[u8]) -> (Action, Vec<u8>) {
        let cause = match self.decide(frame) {
            Ok(cause) => cause,
            Err(offloaded) => return (Action::Redirect, offloaded),
        };
        let mut action = Action::Pass;
        let mut counted = cause;
        if matches!(cause, Cause::Transit | Cause::Esp | Cause::Resolve) {
            self.steered += u64::from(self.offload);
            action = if self.socket { Action::Redirect } else { Action::Pass };
            counted = if self.socket { cause } else { Cause::NoSocket };
        }
        *self.causes.entry(counted.name()).or_default() += 1;
        (action, frame.to_vec())
    }

    /// Where the frame goes, or what it leaves the device as.
    fn decide(&mut self, frame: &[u8]) -> Result<Cause, Vec<u8>> {
        let Some(mut kind) = be16(frame, 12) else { return Ok(Cause::Short) };
        let mut packet = &frame[14..];
        let mut tag = None;
        if kind == 0x8100 {
            let Some(inner) = be16(frame, 16) else { return Ok(Cause::Short) };
            (kind, packet) = (inner, &frame[18..]);
            tag = be16(frame, 14);
        }
        let ours = |address: Option<IpAddr>| address.and_then(owner) == Some(Owner::Weir);
        Ok(match kind {
            0x0806 if packet.len() >= 28 && ours(v4(packet, 24)) => Cause::Resolve,
            0x0806 => Cause::Arp,
            _ if frame[0] & 1 == 1 => {
                let asks = kind == 0x86dd && packet.len() >= 64 && (packet[6], packet[40]) == (58, 135);
                if asks && ours(v6(packet, 48)) { Cause::Resolve } else { Cause::Group }
            }
            0x0800 | 0x86dd => {
                let (header, from) = if kind == 0x0800 { (20, 12) } else { (40, 8) };
                if packet.len() < header {
                    return Ok(Cause::Transit);
                }
                let address = if kind == 0x0800 { v4 } else { v6 };
                let to = from + (header - from) / 2;
                let (Some(source), Some(destination)) = (address(packet, from), address(packet, to)) else {
                    unreachable!("inside the header");
                };
                if self.offload {
                    let (way, whose) = self.offload((source, destination), frame, packet, tag);
                    *self.ways.entry(way).or_default() += 1;
                    if way.starts_with("offloaded") {
                        return Err(self.forward(whose, frame, packet));
                    }
                }
                steer(packet, destination)
            }
            _ => Cause::NotIp,
        })
    }

    fn offload(
        &mut self,
        pair: (IpAddr, IpAddr),
        frame: &[u8],
        packet: &[u8],
        tag: Option<u16>,
    ) -> (&'static str, Whose) {
        let mut whose = (pair, None);
        let Some(mut flow) = self.flows.get(&whose).copied() else { return ("unknown pair", whose) };
        let mut held = plain(packet, pair.0.is_ipv4()).err();
        if held.is_none() && flow.flags & FLOW_SPREAD as u16 != 0 {
            let before = flow.last_slow;
            whose.1 = Some(flow_of(packet));
            let Some(one) = self.flows.get(&whose).copied() else {
                return ("unknown flow of the pair", whose);
            };
            flow = one;
            held = (before > self.done).then_some("held: one of unknown flow is on its way");
        }
        let Some(held) = held.or_else(|| self.in_force(&flow, frame, packet, tag)) else {
            let between = tag.is_some() || flow.tag != [0; 2];
            return (if between { "offloaded between VLANs" } else { "offloaded" }, whose);
        };
        if let Some(flow) = self.flows.get_mut(&whose) {
            flow.last_slow = self.steered + 1;
        }
        (held, whose)
    }

    fn in_force(&self, flow: &Flow, frame: &[u8], packet: &[u8], tag: Option<u16>) -> Option<&'static str> {
        let length =
            if packet[0] >> 4 == 4 { be16(packet, 2)?.into() } else { u32::from(be16(packet, 4)?) + 40 };
        let vlan = tag.map(|tag| tag & 0xfff);
        [
            (flow.generation != self.generation, "held: older tables"),
            (flow.in_ifindex != INGRESS, "held: another interface"),
            (vlan == Some(0) || vlan.unwrap_or(0) != flow.in_vlan, "held: another VLAN"),
            (flow.in_mac != frame[..6], "held: another MAC address"),
            (length > flow.mtu, "held: above the MTU"),
            (flow.last_slow == 0, "held: nothing known of the last frame"),
            (flow.last_slow > self.done, "held: an earlier frame is on its way"),
            (
                flow.flags & FLOW_ENFORCED as u16 != 0 && !self.policies_followed,
                "held: nobody follows policies",
            ),
        ]
        .into_iter()
        .find_map(|(held, way)| held.then_some(way))
    }

    /// A hop less, other MAC addresses, the tag it leaves with, nothing behind the packet, counted on both devices. The checksum
    /// is made from scratch.
    fn forward(&mut self, whose: Whose, frame: &[u8], packet: &[u8]) -> Vec<u8> {
        let flow = self.flows[&whose];
        let is_v4 = whose.0.0.is_ipv4();
        let (at, more) = if is_v4 { (2, 0) } else { (4, 40) };
        let mut packet = packet.to_vec();
        packet.truncate(usize::from(be16(&packet, at).unwrap_or(0)) + more);
        if is_v4 {
            packet[8] -= 1;
            packet[10..12].fill(0);
            let sum = !checksum(&packet[..20]);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            packet[7] -= 1;
        }
        let tag = if flow.tag == [0; 2] { Vec::new() } else { [&[0x81, 0], &flow.tag[..]].concat() };
        let kind: &[u8] = if is_v4 { &[8, 0] } else { &[0x86, 0xdd] };
        let out = [&flow.out_macs[..], &tag, kind, &packet].concat();
        let received = self.counters.entry(self.device).or_default();
        received.rx_packets += 1;
        received.rx_bytes += frame.len() as u64;
        let sent = self.counters.entry(flow.out_device).or_default();
        sent.tx_packets += 1;
        sent.tx_bytes += out.len() as u64;
        if flow.in_policy != 0 {
            let let_in = self.counters.entry(flow.in_policy.into()).or_default();
            let_in.rx_packets += 1;
            let_in.rx_bytes += packet.len() as u64;
        }
        if flow.out_policy != 0 {
            let let_out = self.counters.entry(flow.out_policy.into()).or_default();
            let_out.tx_packets += 1;
            let_out.tx_bytes += packet.len() as u64;
        }
        out
    }
}

/// Protocol of a plain packet, and its ports if it is one that has some.
fn flow_of(packet: &[u8]) -> (u8, u32) {
    let (protocol, header, length) = if packet[0] >> 4 == 4 {
        (packet[9], 20, usize::from(be16(packet, 2).unwrap_or(0)))
    } else {
        (packet[6], 40, usize::from(be16(packet, 4).unwrap_or(0)) + 40)
    };
    let ports = packet[..length].get(header..header + 4).filter(|_| [6, 17, 132].contains(&protocol));
    (protocol, ports.map_or(0, |p| u32::from_be_bytes([p[0], p[1], p[2], p[3]])))
}

/// A packet whose only difference from the last is its payload.
fn plain(packet: &[u8], is_v4: bool) -> Result<(), &'static str> {
    let refuse = |refused: bool, way: &'static str| if refused { Err(way) } else { Ok(()) };
    let length = "held: longer than the frame, or shorter than its header";
    let word = |at| usize::from(be16(packet, at).unwrap_or(0));
    if is_v4 {
        refuse(packet[0] != 0x45, "held: not IPv4 without options, or not IPv6")?;
        refuse(packet[8] <= 1, "held: no hop left")?;
        refuse(word(6) & 0x3fff != 0, "held: a fragment")?;
        refuse(checksum(&packet[..20]) != 0xffff, "held: wrong checksum")?;
        return refuse(word(2) < 20 || word(2) > packet.len(), length);
    }
    refuse(packet[0] >> 4 != 6, "held: not IPv4 without options, or not IPv6")?;
    refuse(packet[7] <= 1, "held: no hop left")?;
    refuse(![6, 17, 50].contains(&packet[6]), "held: not TCP, UDP or ESP")?;
    refuse(word(4) + 40 > packet.len(), length)
}

/// Says where a packet is steered, and why.
fn steer(packet: &[u8], destination: IpAddr) -> Cause {
    let group = match destination {
        IpAddr::V4(v4) => v4.is_multicast() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_multicast(),
    };
    if group {
        return Cause::Group;
    }
    if owner(destination) != Some(Owner::Kernel) {
        let covers = |prefix: &str| {
            let prefix: Prefix = prefix.parse().expect("a prefix");
            (Prefix::new(destination, prefix.len()) == prefix).then(|| prefix.len())
        };
        let longest = KEPT.iter().filter_map(|(p, kernel)| Some((covers(p)?, *kernel))).max();
        let kept = owner(destination).is_none() && longest.is_some_and(|(_, kernel)| kernel);
        return if kept { Cause::Kept } else { Cause::Transit };
    }
    if !ENDS.map(ip).contains(&destination) {
        return Cause::Local;
    }
    let is_esp = match destination {
        IpAddr::V4(_) => {
            let at = 4 * usize::from(packet[0] & 15);
            let whole = be16(packet, 6).is_some_and(|word| word & 0x3fff == 0);
            match packet[9] {
                50 => !whole || is_ours(packet, at),
                17 => whole && esp_in_udp(packet, at) && is_ours(packet, at + 8),
                _ => false,
            }
        }
        IpAddr::V6(_) => match packet[6] {
            50 => is_ours(packet, 40),
            17 => esp_in_udp(packet, 40) && is_ours(packet, 48),
            44 => packet.len() >= 48 && packet[40] == 50,
            _ => false,
        },
    };
    if is_esp { Cause::Esp } else { Cause::Local }
}

/// The SPI there, if there is one, is not the kernel's alone.
fn is_ours(packet: &[u8], at: usize) -> bool {
    let spi = packet.get(at..).and_then(|rest| rest.first_chunk::<4>());
    !spi.is_some_and(|spi| KEPT_SPIS.contains(&u32::from_be_bytes(*spi)))
}

/// RFC 3948: a port of ESP's, room for an SPI and a number, and no marker of four zeros.
fn esp_in_udp(packet: &[u8], at: usize) -> bool {
    let Some(udp) = packet.get(at..at + 16) else { return false };
    let port = be16(udp, 2).is_some_and(|port| ESP_PORTS.contains(&port));
    port && be16(udp, 4).is_some_and(|length| length >= 16) && udp[8..12] != [0; 4]
}
