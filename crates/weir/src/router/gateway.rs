//! IPsec as the daemon tells it: SAs, SPDs and tunnels for the control socket; expiry and hostile packets for
//! the log; where ESP is steered to; path MTUs heard of.
//!
//! Promises: no byte of a key is read here; a limit an SA reaches is logged once, a reason of hostile drops at most
//! every [`TELL_EVERY`], with how many there were.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use weir_core::control::{Limits, PolicyView, SaEvent, SaView, SpdView, TunnelView};
use weir_core::ipsec::sa::{Lifetime, Params, UdpPorts};
use weir_core::ipsec::spd::{AddressRange, PortRange};
use weir_core::ipsec::{Direction, Ipsec, Mode, pmtu};
use weir_core::state::PolicySpec;
use weir_core::time::{Nanos, SECOND};
use weir_core::verdict::{Blame, DropCounters, Reason};
use weir_core::wire::ethernet;

use super::Daemon;
use super::answer::{add, blame};
use super::lookups::Oracle;
use crate::config::ipsec::selector::PROTOCOLS;
use crate::view;

/// How often drops are looked at.
const LOOK_EVERY: Nanos = SECOND;
/// How often one reason is told of: six lines a minute however much arrives.
const TELL_EVERY: Nanos = 10 * SECOND;

/// Reasons that tell of attack, of a peer with other keys or policies, or of a rekey that went wrong.
const TOLD: [Reason; 14] = [
    Reason::EspTooShort,
    Reason::EspBadTrailer,
    Reason::NoSa,
    Reason::Replayed,
    Reason::ReplayTooOld,
    Reason::IntegrityFailed,
    Reason::SaExpired,
    Reason::SequenceExhausted,
    Reason::SaUnreserved,
    Reason::NoOutboundSa,
    Reason::PolicyUnprotected,
    Reason::PolicyMismatch,
    Reason::FragmentsFull,
    Reason::FragmentOverlap,
];

/// What was told already.
#[derive(Debug, Default)]
pub(super) struct Watch {
    looked: Nanos,
    drops: DropCounters,
    told: HashMap<Reason, Nanos>,
    pub(super) oracle: Oracle,
    /// What steering was last told.
    steered: Option<Steered>,
}

/// Where SAs end, the UDP ports ESP comes in on there, and SPIs that only the kernel opens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Steered {
    ends: HashSet<IpAddr>,
    ports: HashSet<u16>,
    kept: HashSet<u32>,
}

impl Watch {
    /// Reasons to tell of now, each with how many there were since it was told last.
    fn news(&mut self, now: Nanos, drops: &DropCounters) -> Vec<(Reason, u64)> {
        let mut news = Vec::new();
        for reason in TOLD {
            let more = drops.of(reason).saturating_sub(self.drops.of(reason));
            let told = self.told.get(&reason).copied();
            if more == 0 || told.is_some_and(|at| now.saturating_sub(at) < TELL_EVERY) {
                continue;
            }
            self.told.insert(reason, now);
            self.drops.add(reason, more);
            news.push((reason, more));
        }
        news
    }
}

impl Daemon {
    /// Tells the log what an operator should hear of.
    pub(super) fn watch_ipsec(&mut self, now: Nanos) {
        for event in self.control.take_sa_events() {
            if self.expire_in_kernel(&event) {
                tracing::info!("{event}; the kernel is told");
                continue;
            }
            match event {
                SaEvent::HardExpired { .. } => tracing::error!("{event}"),
                _ => tracing::warn!("{event}"),
            }
        }
        if self.control.tables().ipsec.is_some() && now.saturating_sub(self.watch.looked) >= LOOK_EVERY {
            self.watch.looked = now;
            self.tell_drops(now);
            self.tell_disagreements(now);
        }
    }

    fn tell_drops(&mut self, now: Nanos) {
        let mut drops = DropCounters::default();
        for report in self.reports() {
            drops.merge(&report.ledger.drops);
        }
        for (reason, more) in self.watch.news(now, &drops) {
            let who = match reason.blame() {
                Blame::Operator => "look at the configuration of both ends",
                _ => "`weir show drops` and `weir show sa` count them",
            };
            tracing::warn!("dropped {more}: {}: {}; {who}", reason.name(), reason.sentence());
        }
    }

    /// Tells the XDP programs where ESP is for weir although the address is the kernel's.
    pub(super) fn steer_esp(&mut self) {
        let Some(local) = &mut self.local else { return };
        let ipsec = self.control.tables().ipsec.as_deref();
        let ends: HashSet<IpAddr> =
            ipsec.iter().flat_map(|i| i.sad.iter()).map(|inbound| inbound.sa.params.destination).collect();
        let ports: HashSet<u16> = match ends.is_empty() {
            true => HashSet::new(),
            false => ipsec.iter().flat_map(|i| i.udp_ports.iter().copied()).collect(),
        };
        let wanted = Steered { ends, ports, kept: ipsec.map(kept_spis).unwrap_or_default() };
        if self.watch.steered.as_ref() == Some(&wanted) {
            return;
        }
        let Steered { ends, ports, kept } = wanted.clone();
        if let Err(error) = local.set_kept_spis(kept).and_then(|_| local.set_esp(ends, ports)) {
            tracing::error!("{error}; ESP to addresses of the kernel may stay with the kernel");
        }
        self.watch.steered = Some(wanted);
    }

    /// An ICMP error a tap heard, about a packet that was too big.
    pub(super) fn on_too_big(&self, now: Nanos, packet: &[u8]) {
        let Some(ipsec) = self.control.tables().ipsec.as_deref() else { return };
        if pmtu::learn(ipsec, now, packet) {
            tracing::debug!("a path MTU for ESP was learned from an ICMP error to the kernel");
        }
    }

    pub(super) fn sas(&self, now: Nanos) -> Vec<view::Sa> {
        let ipsec = &self.control.desired().ipsec;
        let view = |sa: SaView| {
            let spec = ipsec.sas.iter().find(|s| s.name == sa.name);
            let kept = self.keeps_state() && sa.suite.icv_len() > 0;
            view::Sa { kept, ..sa_view(sa, spec.map(|s| &s.params)) }
        };
        self.control.sas(now).into_iter().map(view).collect()
    }

    pub(super) fn tunnels(&self) -> Vec<view::Tunnel> {
        let reports = self.reports();
        let tables = self.control.tables();
        let view = |tunnel: TunnelView| {
            let port = tables.ports.get(tunnel.port.index());
            let addresses = port.map_or(&[][..], |p| &p.addresses);
            let mut traffic = view::Traffic::default();
            for counters in reports.iter().filter_map(|r| r.ports.get(tunnel.port.index())) {
                add(&mut traffic, counters);
            }
            view::Tunnel {
                up: tunnel.up,
                mtu: tunnel.mtu,
                mtu_follows: tunnel.mtu_follows,
                addresses: addresses.iter().map(|a| format!("{}/{}", a.address, a.prefix_len)).collect(),
                out: tunnel.out,
                inbound: tunnel.inbound,
                traffic,
                name: tunnel.name,
            }
        };
        self.control.tunnels().into_iter().map(view).collect()
    }

    pub(super) fn spds(&self) -> Vec<view::Spd> {
        let policies = self.control.policies();
        let view = |spd: SpdView| view::Spd {
            policies: policies.iter().filter(|p| p.spd == spd.name).map(policy_view).collect(),
            name: spd.name,
            ports: spd.ports,
            default: spd.default.to_string(),
        };
        self.control.spds().into_iter().map(view).collect()
    }
}

/// SPIs that only the kernel opens where SAs of ours end. One that an SA of ours has at any address is ours.
fn kept_spis(ipsec: &Ipsec) -> HashSet<u32> {
    let ours: HashSet<u32> = ipsec.sad.iter().map(|inbound| inbound.sa.params.spi).collect();
    let others = ipsec.awaited.iter().flat_map(|awaited| awaited.others.iter());
    let here = others.filter(|(spi, to)| ipsec.sad.takes(*to) && !ours.contains(spi));
    here.map(|&(spi, _)| spi).collect()
}

fn policy_view(p: &PolicyView) -> view::Policy {
    let spec = &p.policy;
    view::Policy {
        name: spec.name.clone(),
        action: spec.action.to_string(),
        direction: direction(spec.direction).to_owned(),
        selector: selector(spec),
        out: spec.out.clone(),
        inbound: spec.inbound.clone(),
        out_packets: p.out_packets,
        out_bytes: p.out_bytes,
        in_packets: p.in_packets,
        in_bytes: p.in_bytes,
    }
}

/// `params` are those of the configuration: an SA that drains may have others of its name there.
fn sa_view(sa: SaView, params: Option<&Params>) -> view::Sa {
    let seconds = |age: Nanos| age as f64 / SECOND as f64;
    let state = match (sa.draining, sa.reached) {
        (Some(_), _) => "draining",
        (None, Limits { hard: true, .. }) => "expired",
        (None, Limits { soft: true, .. } | Limits { sequence: true, .. }) => "rekey",
        (None, _) => "active",
    };
    let params = params.filter(|_| sa.draining.is_none());
    view::Sa {
        direction: direction(Some(sa.direction)).to_owned(),
        spi: format!("{:#x}", sa.spi),
        mode: match sa.mode {
            Mode::Tunnel => "tunnel".to_owned(),
            Mode::Transport => "transport".to_owned(),
        },
        source: sa.source.to_string(),
        destination: sa.destination.to_string(),
        suite: sa.suite.to_string(),
        backend: sa.backend,
        state: state.to_owned(),
        esn: sa.esn,
        replay_window: sa.replay_window,
        udp: sa.udp.map(|UdpPorts { source, destination }| format!("{source}-{destination}")),
        packets: sa.packets,
        bytes: sa.bytes,
        sequence: sa.sequence,
        kept: false,
        age_seconds: seconds(sa.age),
        idle_seconds: sa.idle.map(seconds),
        path_mtu: sa.path_mtu.map(|(mtu, _)| mtu),
        soft: params.map(|p| lifetime(p.soft)).unwrap_or_default(),
        hard: params.map(|p| lifetime(p.hard)).unwrap_or_default(),
        users: sa.users,
        failures: sa
            .failures
            .into_iter()
            .map(|(reason, packets)| view::Drop {
                reason: reason.name().to_owned(),
                packets,
                blame: blame(reason).to_owned(),
                sentence: reason.sentence().to_owned(),
            })
            .collect(),
        name: sa.name,
    }
}

fn lifetime(of: Lifetime) -> view::Lifetime {
    view::Lifetime { bytes: of.bytes, packets: of.packets, seconds: of.seconds }
}

fn direction(of: Option<Direction>) -> &'static str {
    match of {
        None => "both",
        Some(Direction::In) => "in",
        Some(Direction::Out) => "out",
    }
}

/// `10.1.0.0-10.1.255.255 ↔ any tcp 443`
fn selector(p: &PolicySpec) -> String {
    let mut text = format!("{} <> {}", addresses(&p.local), addresses(&p.remote));
    if let Some(protocol) = p.protocol {
        let name = PROTOCOLS.iter().find(|n| n.1 == protocol);
        text += &name.map_or(format!(" protocol {protocol}"), |n| format!(" {}", n.0));
    }
    for (what, range) in [("local", p.local_ports), ("remote", p.remote_ports)] {
        if range != PortRange::ANY {
            text += &format!(" {what} {}", one_or_range(range.first, range.last));
        }
    }
    if p.icmp != PortRange::ANY {
        let [kind, first] = p.icmp.first.to_be_bytes();
        let [_, last] = p.icmp.last.to_be_bytes();
        text += &format!(" type {kind}");
        if (first, last) != (0, u8::MAX) {
            text += &format!(" code {}", one_or_range(first, last));
        }
    }
    text
}

fn addresses(ranges: &[AddressRange]) -> String {
    if ranges.is_empty() {
        return "any".to_owned();
    }
    let shown: Vec<String> = ranges.iter().map(|r| one_or_range(r.first, r.last)).collect();
    shown.join(",")
}

fn one_or_range<T: PartialEq + std::fmt::Display>(first: T, last: T) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

/// The IP packet of a frame a tap heard that is neither ARP nor neighbour discovery.
pub(super) fn too_big(frame: &[u8]) -> Option<&[u8]> {
    let link = weir_core::wire::Ethernet::parse(frame).ok()?;
    let packet = frame.get(frame.len() - link.payload().len()..)?;
    match link.ethertype() {
        ethernet::ETHERTYPE_IPV4 => Some(packet),
        // ICMPv6 type 2 right behind the header.
        ethernet::ETHERTYPE_IPV6 if packet.get(40) == Some(&2) => Some(packet),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_one_reason_is_a_line_now_and_then_that_counts_it() {
        let (mut watch, mut drops) = (Watch::default(), DropCounters::default());
        let mut lines = Vec::new();
        for second in 0..25 {
            drops.add(Reason::NoSa, 1_000_000);
            // Of the router's everyday drops nothing is told here.
            drops.add(Reason::NoRoute, 1);
            lines.extend(watch.news(second * SECOND, &drops));
        }
        let millions = [1, 10, 10].map(|n| (Reason::NoSa, n * 1_000_000));
        assert_eq!(lines, millions);
    }

    #[test]
    fn a_policy_reads_as_it_was_written() {
        let range = |first: [u8; 4], last: [u8; 4]| AddressRange { first: first.into(), last: last.into() };
        let policy = PolicySpec {
            name: "web".into(),
            direction: None,
            local: vec![range([10, 1, 0, 80], [10, 1, 0, 80])],
            remote: vec![range([10, 2, 0, 0], [10, 2, 255, 255])],
            protocol: Some(6),
            local_ports: PortRange { first: 443, last: 443 },
            remote_ports: PortRange { first: 1024, last: 65535 },
            icmp: PortRange::ANY,
            action: weir_core::ipsec::Action::Bypass,
            out: Vec::new(),
            inbound: Vec::new(),
        };
        assert_eq!(selector(&policy), "10.1.0.80 <> 10.2.0.0-10.2.255.255 tcp local 443 remote 1024-65535");
    }
}
