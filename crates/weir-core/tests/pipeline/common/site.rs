//! A gateway on a virtual clock and the far end of its SAs: the sample network with a tunnel, an SPD before
//! its WAN port, or both. What the gateway sends, the far end opens with SAs of its own.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::sas;
pub use super::sas::{gcm, in_udp, outside6, transport};
pub use super::world::*;
use weir_core::id::PortId;
use weir_core::ipsec::spd::{AddressRange, LookupSpec, PolicyCounters, PolicyIndex, RuleSet, Selector};
use weir_core::ipsec::{
    Action, Awaited, Direction, FlowCaches, Inbound, Ipsec, Mode, Params, Policy, Queue, Sa, SaId, SaState,
    Sad, Spd, SpdId, Tunnel, TunnelId,
};
use weir_core::packet::DeviceId;
use weir_core::route::Prefix;
use weir_core::tables::{PortKind, Tables, Target};
use weir_core::verdict::Reason;

/// Our outer addresses on the WAN port, and the far end's there.
pub const HERE: [&str; 2] = ["192.0.2.1", "2001:db8:1::1"];
pub const THERE: [&str; 2] = ["192.0.2.2", "2001:db8:1::2"];
/// A host on our LAN, and one behind the far end.
pub const NEAR: [&str; 2] = ["10.0.0.2", "fd00::2"];
pub const FAR: [&str; 2] = ["10.30.0.9", "2001:db8:30::9"];
pub const SPI_OUT: u32 = 0x2001;
pub const SPI_IN: u32 = 0x2002;
pub const TUNNEL_MTU: u16 = 1400;

/// One SA at both ends.
#[derive(Clone)]
pub struct Ends {
    pub here: Arc<Sa>,
    pub there: Arc<Sa>,
}

pub fn new_sa(id: u32, params: Params) -> Arc<Sa> {
    let keys = sas::keys(params.suite);
    let cipher = weir_io::cipher::portable().cipher(params.suite, params.esn, &keys).expect("a cipher");
    let state = Arc::new(SaState::new(&params, 0));
    Arc::new(Sa::new(SaId(id), format!("sa-{id}"), params, cipher, state))
}

/// An SA from here to there.
pub fn outbound(id: u32, spi: u32, params: &Params) -> Ends {
    let six = params.source.is_ipv6() as usize;
    let (source, destination) = match params.mode {
        Mode::Tunnel => (addr(HERE[six]), addr(THERE[six])),
        Mode::Transport => (params.source, params.destination),
    };
    let params = Params { spi, source, destination, direction: Direction::Out, ..params.clone() };
    let there = Params { direction: Direction::In, ..params.clone() };
    Ends { here: new_sa(id, params), there: new_sa(id, there) }
}

/// An SA from there to here.
pub fn inbound(id: u32, spi: u32, params: &Params) -> Ends {
    let six = params.source.is_ipv6() as usize;
    let (source, destination) = match params.mode {
        Mode::Tunnel => (addr(THERE[six]), addr(HERE[six])),
        Mode::Transport => (params.destination, params.source),
    };
    let params = Params { spi, source, destination, direction: Direction::In, ..params.clone() };
    let there = Params { direction: Direction::Out, ..params.clone() };
    Ends { here: new_sa(id, params), there: new_sa(id, there) }
}

/// Everything in both directions, as a rule for narrower ones to start from.
pub fn any() -> Selector {
    Selector::within(AddressRange::ANY_V4)
}

pub fn any6() -> Selector {
    let all = AddressRange { first: addr("::"), last: addr("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff") };
    Selector { source: all, destination: all, ..any() }
}

pub fn range(first: &str, last: &str) -> AddressRange {
    AddressRange { first: addr(first), last: addr(last) }
}

/// A rule: what it matches on the way out; on the way in, source and destination are swapped.
#[derive(Clone)]
pub struct Rule {
    pub out: Option<Selector>,
    pub inward: Option<Selector>,
    pub action: Action,
    pub sas_out: Vec<Arc<Sa>>,
    pub sas_in: Vec<SaId>,
    /// The same whatever becomes of the rule's place.
    pub counters: Arc<PolicyCounters>,
}

impl Rule {
    pub fn new(action: Action, selector: Selector) -> Rule {
        let swapped = Selector {
            source: selector.destination,
            destination: selector.source,
            source_ports: selector.destination_ports,
            destination_ports: selector.source_ports,
            ..selector
        };
        Rule {
            out: Some(selector),
            inward: Some(swapped),
            action,
            sas_out: Vec::new(),
            sas_in: Vec::new(),
            counters: Arc::default(),
        }
    }

    pub fn protect(selector: Selector, out: &Ends, back: &Ends) -> Rule {
        let rule = Rule::new(Action::Protect, selector);
        Rule { sas_out: vec![out.here.clone()], sas_in: vec![back.here.id], ..rule }
    }
}

pub struct Site {
    pub w: World,
    pub out: Ends,
    pub back: Ends,
    /// Further outbound SAs of the tunnel.
    pub more_out: Vec<Arc<Sa>>,
    /// Outbound SAs that replace all of those.
    pub sas_out: Option<Vec<Arc<Sa>>>,
    /// Further inbound SAs, of the tunnel or of the SPD.
    pub more_in: Vec<Arc<Sa>>,
    pub tunnel: Option<PortId>,
    pub policies: Vec<Rule>,
    pub default: Action,
    /// SAs come from the kernel, which opens these itself.
    pub awaited: Option<HashSet<(u32, IpAddr)>>,
    /// How the SPD is asked, and by what.
    pub lookup: LookupSpec,
    pub caches: Arc<FlowCaches>,
    /// Epochs that replace new ones with every change.
    pub epochs: Option<[u64; 2]>,
    egress: Option<(DeviceId, PortId)>,
    /// The SPD is a port, connected with the host's own stack by the other one's device.
    pub device: Option<(PortId, PortId)>,
}

impl Site {
    fn new(params: &Params) -> Site {
        Site {
            w: World::of(Net::new()),
            out: outbound(1, SPI_OUT, params),
            back: inbound(2, SPI_IN, params),
            more_out: Vec::new(),
            sas_out: None,
            more_in: Vec::new(),
            tunnel: None,
            policies: Vec::new(),
            default: Action::Discard,
            awaited: None,
            lookup: LookupSpec::default(),
            caches: Arc::default(),
            epochs: None,
            egress: None,
            device: None,
        }
    }

    /// A tunnel that 10.30/16 and 2001:db8:30::/48 are behind.
    pub fn route_mode(params: Params) -> Site {
        let mut site = Site::new(&params);
        site.add_tunnel();
        site.publish();
        site
    }

    /// An SPD before the WAN port, the way to 10.30/16 and 2001:db8:30::/48; by default it protects all.
    pub fn policy_mode(params: Params) -> Site {
        let mut site = Site::new(&params);
        site.add_spd();
        let rules = [any(), any6()].map(|selector| Rule::protect(selector, &site.out, &site.back));
        site.policies = rules.to_vec();
        site.publish();
        site
    }

    /// An SPD that is a port, as an xfrm device of the kernel, which 10.30/16 and 2001:db8:30::/48 are behind; it protects all.
    pub fn device_mode(params: Params) -> Site {
        let mut site = Site::new(&params);
        let port = site.w.net.add_virtual("ipsec0", PortKind::Tunnel, TUNNEL_MTU, &[]);
        let host = site.w.net.add_virtual("host", PortKind::Device, TUNNEL_MTU, &[]);
        site.device = Some((port, host));
        site.route_by(port, &["10.30.0.0/16", "2001:db8:30::/48"]);
        let rules = [any(), any6()].map(|selector| Rule::protect(selector, &site.out, &site.back));
        site.policies = rules.to_vec();
        site.publish();
        site
    }

    pub fn add_tunnel(&mut self) {
        let addresses = ["10.8.0.1/30", "fd00:8::1/64"];
        let port = self.w.net.add_virtual("vti", PortKind::Tunnel, TUNNEL_MTU, &addresses);
        self.tunnel = Some(port);
        self.route_by(port, &["10.30.0.0/16", "2001:db8:30::/48"]);
    }

    pub fn add_spd(&mut self) {
        let egress = self.w.net.add_enforcement_point(WAN);
        let inside = self.w.net.add_virtual("spd", PortKind::Policy, 1500, &[]);
        self.egress = Some((egress, inside));
        for (prefix, gateway) in [("10.30.0.0/16", "192.0.2.254"), ("2001:db8:30::/48", "fe80::fe")] {
            let id = self.w.net.adjacency(WAN, addr(gateway), true);
            self.w.net.route(prefix.parse().expect("a prefix"), Target::Adjacent(id));
        }
    }

    /// Routes to a point-to-point port.
    pub fn route_by(&mut self, port: PortId, prefixes: &[&str]) {
        for prefix in prefixes {
            let prefix: Prefix = prefix.parse().expect("a prefix");
            let id = self.w.net.adjacency(port, addr("0.0.0.0"), true);
            self.w.net.route(prefix, Target::Adjacent(id));
        }
    }

    /// Publishes the gateway as it is now.
    pub fn publish(&mut self) -> Seen {
        self.prepare();
        self.w.wait(0)
    }

    /// Has the gateway as it is now be the next step's.
    pub fn prepare(&mut self) {
        self.w.net.ipsec = Some(Arc::new(self.ipsec()));
        self.w.tables = self.w.net.tables();
    }

    /// Publishes changes of policies alone, which need no new routes.
    pub fn publish_policies(&mut self) -> Seen {
        let ipsec = Arc::new(self.ipsec());
        self.w.net.ipsec = Some(ipsec.clone());
        let generation = self.w.tables.generation + 1;
        self.w.tables = Tables { generation, ipsec: Some(ipsec), ..self.w.tables.clone() };
        self.w.wait(0)
    }

    /// Changes the lookup from the next snapshot on, with empty caches.
    pub fn ask_by(&mut self, lookup: LookupSpec) {
        self.caches = Arc::new(FlowCaches::new(&lookup, 0x5eed));
        self.lookup = lookup;
    }

    fn device_of(&self, port: PortId) -> DeviceId {
        self.w.net.ports[port.index()].device
    }

    fn ipsec(&self) -> Ipsec {
        let mut queues = vec![Queue::Hardware; self.w.net.devices()];
        let mut ipsec = Ipsec { udp_ports: [4500].into(), ..Ipsec::default() };
        (ipsec.caches, ipsec.oracle) = (self.caches.clone(), self.lookup.oracle);
        let outbound: Vec<_> = [&self.out.here].into_iter().chain(&self.more_out).cloned().collect();
        ipsec.outbound = Arc::new(outbound.iter().cloned().collect());
        let mut device = DeviceId(u16::MAX);
        let mut spd = None;
        if let Some(port) = self.tunnel {
            device = self.device_of(port);
            queues[device.index()] = Queue::Tunnel(TunnelId(0));
            let out = self.sas_out.clone().unwrap_or(outbound);
            ipsec.tunnels = [Tunnel { name: "vti".into(), port, out }].into();
        }
        if let Some((egress, inside)) = self.egress {
            let real = self.device_of(WAN);
            queues[egress.index()] = Queue::Enforcement { spd: SpdId(0), port: WAN, device: real };
            queues[self.device_of(inside).index()] = Queue::Policy(SpdId(0));
            let mut enforcement = vec![None; self.w.net.ports.len()];
            enforcement[WAN.index()] = Some(SpdId(0));
            ipsec.enforcement = enforcement.into();
            ipsec.spds.push(Arc::new(self.spd()));
            if self.tunnel.is_none() {
                (device, spd) = (self.device_of(inside), Some(SpdId(0)));
            }
        }
        if let Some((port, host)) = self.device {
            device = self.device_of(port);
            queues[device.index()] = Queue::Policy(SpdId(0));
            queues[self.device_of(host).index()] = Queue::Host { device };
            ipsec.hosts = [(port, self.device_of(host))].into();
            ipsec.spds.push(Arc::new(self.spd()));
            spd = Some(SpdId(0));
        }
        let others = self.awaited.as_ref().map(|others| Arc::new(others.clone()));
        ipsec.awaited = others.map(|others| Awaited { spd: SpdId(0), others });
        ipsec.queues = queues.into();
        let inbound = [&self.back.here].into_iter().chain(&self.more_in);
        ipsec.sad = Sad::new(inbound.map(|sa| Inbound { sa: sa.clone(), device, spd })).into();
        ipsec
    }

    fn spd(&self) -> Spd {
        let rules = |side: fn(&Rule) -> Option<Selector>| {
            let all = self.policies.iter().enumerate();
            let all = all.filter_map(|(i, r)| Some((side(r)?, PolicyIndex(i as u32))));
            RuleSet::new(all.collect()).with_layer(self.lookup.layer)
        };
        let policies = self.policies.iter().enumerate().map(|(i, rule)| {
            let (out, inbound) = (rule.sas_out.clone(), rule.sas_in.clone());
            let (name, action) = (format!("policy-{i}"), rule.action);
            Arc::new(Policy { name, action, out, inbound, counters: rule.counters.clone() })
        });
        Spd {
            name: "site".into(),
            policies: policies.collect(),
            outbound: rules(|rule| rule.out).into(),
            inbound: rules(|rule| rule.inward).into(),
            default: self.default,
            epochs: self.epochs.unwrap_or_else(|| [0; 2].map(|_| self.caches.next_epoch())),
        }
    }

    /// A packet from our LAN's host to the far one, as it is received.
    pub fn lan_frame(&self, six: usize, payload: &[u8]) -> Vec<u8> {
        frame(LAN, NEAR[six], FAR[six]).udp(1000, 2000, payload)
    }

    /// A packet from the far host to ours, from its IP header on.
    pub fn far_packet(&self, six: usize, payload: &[u8]) -> Vec<u8> {
        let frame = weir_core::wire::build::Frame::ip(addr(FAR[six]), addr(NEAR[six])).expect("one family");
        frame.packet().udp(2000, 1000, payload)
    }

    /// Sealed by the far end, in a frame on the WAN.
    pub fn sealed(&self, packet: &[u8]) -> Vec<u8> {
        on_wan(&sas::seal(&self.back.there, packet).expect("the far end seals"))
    }

    /// What the far end finds in a frame of ours.
    #[track_caller]
    pub fn opened(&self, frame: &[u8]) -> Vec<u8> {
        sas::open(&self.out.there, &frame[14..]).expect("the far end opens it")
    }

    /// How often an SA failed for a reason.
    pub fn failures(sa: &Sa, reason: Reason) -> u64 {
        sa.state.failures().find(|&(r, _)| r == reason).map_or(0, |(_, n)| n)
    }
}

/// An IP packet in a frame from the far end to our WAN port.
pub fn on_wan(packet: &[u8]) -> Vec<u8> {
    let mut frame = [mac(WAN), neighbor_mac(WAN, 2)].concat();
    frame.extend(if packet[0] >> 4 == 4 { [0x08, 0x00] } else { [0x86, 0xdd] });
    frame.extend_from_slice(packet);
    frame
}

/// The IP packet of a frame as a router forwards it: its TTL or hop limit lower.
pub fn forwarded(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    match packet[0] >> 4 {
        4 => weir_core::wire::Ipv4::new_unchecked(&mut packet[..]).decrement_ttl(),
        _ => weir_core::wire::Ipv6::new_unchecked(&mut packet[..]).decrement_hop_limit(),
    }
    packet
}
