//! What the kernel's rules say of a traced packet.
//!
//! Promises: the rules are read when they are asked; the chain and the rule are named, in nft's own words where `nft` is there.
//! It is said whether the kernel decides, or would have, since what weir forwards it does not see. Refuses: packets whose upper
//! layer is behind extension headers, and ports on devices that belong to others.

use std::net::IpAddr;

use weir_core::firewall::{Decision, FirstPacket, Interface, RuleLocation, RuleSet, decide};
use weir_core::id::PortId;
use weir_core::verdict::Verdict;
use weir_core::wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use weir_core::wire::{Ethernet, Ipv4, Ipv6, protocol};
use weir_io::netlink;
use weir_io::netlink::firewall::rules;

use super::established::{interfaces, words};
use crate::router::Daemon;
use crate::router::links::kernel_device;
use crate::view;

impl Daemon {
    /// Nothing where there are no rules, or the packet is not one that they would meet as transit.
    pub(in crate::router) fn firewall_step(
        &self,
        port: &str,
        frame: &[u8],
        verdict: Verdict,
    ) -> Option<view::Step> {
        let rules = rules().ok().filter(|rules| !rules.chains.is_empty())?;
        let links = netlink::links().ok()?;
        let interface = |name: &str| {
            let port = self.config.ports.iter().find(|p| p.name.value == name)?;
            interfaces(&[&kernel_device(port)], &links).pop()
        };
        let name = |id: PortId| self.control.tables().ports.get(id.index()).map(|p| p.name.clone());
        let output = match verdict {
            Verdict::Forward(id) => Some(interface(&name(id)?)?),
            Verdict::Local | Verdict::Held => None,
            Verdict::Drop(_) => return None,
        };
        let asked = verdict == Verdict::Local;
        step(&rules, interface(port)?, output, frame, asked)
    }
}

fn step(
    rules: &RuleSet,
    input: Interface,
    output: Option<Interface>,
    frame: &[u8],
    asked: bool,
) -> Option<view::Step> {
    let ethernet = Ethernet::parse(frame).ok()?;
    let packet = upper(ethernet.ethertype(), ethernet.payload())?;
    if asked && netlink::addresses().ok()?.iter().any(|a| a.address == packet.destination) {
        return None;
    }
    let looked_at = match &output {
        Some(output) => format!("a first packet, {} to {}", input.name, output.name),
        None => format!("a first packet from {}", input.name),
    };
    let Upper { v6, protocol, network, transport, .. } = packet;
    let decision = decide(rules, &FirstPacket { v6, protocol, input, output, network, transport });
    let who = if asked { "the kernel decides this" } else { "not asked; the kernel would decide" };
    let found = match decision {
        Decision::Accepted { by: None } => format!("{who}: accept, no chain is at forward"),
        Decision::Accepted { by: Some(by) } => format!("{who}: accept by {}", named(&by)),
        Decision::Dropped { by, what } => format!("{who}: {what} by {}", named(&by)),
        Decision::Open { at, what } => format!("{who}: it depends on `{what}` in {}", named(&at)),
    };
    Some(view::Step { stage: "firewall".to_owned(), looked_at, found })
}

fn named(place: &RuleLocation) -> String {
    match words(place) {
        Some(words) => format!("{place} (`{words}`)"),
        None => place.to_string(),
    }
}

/// A packet with the header behind IP's.
struct Upper<'a> {
    v6: bool,
    protocol: u8,
    destination: IpAddr,
    network: &'a [u8],
    transport: &'a [u8],
}

fn upper(ethertype: u16, network: &[u8]) -> Option<Upper<'_>> {
    match ethertype {
        ETHERTYPE_IPV4 => {
            let ip = Ipv4::parse(network).ok()?;
            let (protocol, destination) = (ip.protocol(), IpAddr::V4(ip.dst()));
            let transport = network.get(ip.header_len()..)?;
            Some(Upper { v6: false, protocol, destination, network, transport })
        }
        ETHERTYPE_IPV6 => {
            let ip = Ipv6::parse(network).ok()?;
            let (protocol, destination) = (ip.next_header(), IpAddr::V6(ip.dst()));
            let plain = matches!(protocol, protocol::TCP | protocol::UDP | protocol::ICMPV6);
            let transport = network.get(40..).filter(|_| plain)?;
            Some(Upper { v6: true, protocol, destination, network, transport })
        }
        _ => None,
    }
}
