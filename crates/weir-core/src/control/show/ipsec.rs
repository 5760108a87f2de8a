//! What an operator may ask about SAs, tunnels and policies.
//!
//! Promises: names instead of numbers, in the order of the configuration, SAs that drain last; counters as
//! they are now; of a key nothing at all.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::super::Control;
use super::super::watch::Limits;
use crate::id::PortId;
use crate::ipsec::sa::{Direction, Lifetime, Mode, Sa, UdpPorts};
use crate::ipsec::spd::{Action, PolicyCounters};
use crate::ipsec::{SaId, Suite};
use crate::state::{PolicySpec, SpdSpec, TunnelSpec};
use crate::time::{Nanos, SECOND};
use crate::verdict::Reason;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaView {
    pub name: String,
    pub id: SaId,
    pub spi: u32,
    pub direction: Direction,
    pub mode: Mode,
    pub source: IpAddr,
    pub destination: IpAddr,
    pub udp: Option<UdpPorts>,
    pub suite: Suite,
    /// The implementation of its cipher.
    pub backend: String,
    pub esn: bool,
    pub replay_window: u16,
    /// The last number given out, or the highest authenticated.
    pub sequence: u64,
    pub packets: u64,
    /// Bytes of inner packets.
    pub bytes: u64,
    /// Reasons with a count above zero.
    pub failures: Vec<(Reason, u64)>,
    pub age: Nanos,
    /// Time since a packet last used it; `None` when none did.
    pub idle: Option<Nanos>,
    /// What is left of its lifetimes.
    pub soft_left: Lifetime,
    pub hard_left: Lifetime,
    pub reached: Limits,
    /// Time left in which a removed SA is still accepted.
    pub draining: Option<Nanos>,
    /// Learned for the outer packet, and how long it is still believed.
    pub path_mtu: Option<(u16, Nanos)>,
    /// `tunnel east`, `spd border policy site`.
    pub users: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyView {
    pub spd: String,
    /// The policy as configured: selectors, action, SAs.
    pub policy: PolicySpec,
    pub out_packets: u64,
    pub out_bytes: u64,
    pub in_packets: u64,
    pub in_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpdView {
    pub name: String,
    /// The ports it is enforced on.
    pub ports: Vec<String>,
    pub default: Action,
    pub policies: usize,
    /// Rules its policies come to, outbound and inbound.
    pub rules: (usize, usize),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelView {
    pub name: String,
    pub port: PortId,
    pub up: bool,
    pub mtu: u16,
    /// Whether the MTU follows the routes.
    pub mtu_follows: bool,
    pub out: Vec<String>,
    pub inbound: Vec<String>,
    /// Sums over its SAs, those that drain included.
    pub out_packets: u64,
    pub out_bytes: u64,
    pub in_packets: u64,
    pub in_bytes: u64,
}

impl Control {
    pub fn sas(&self, now: Nanos) -> Vec<SaView> {
        let mut named: HashMap<&str, Vec<String>> = HashMap::new();
        for t in &self.desired.ipsec.tunnels {
            for sa in t.out.iter().chain(&t.inbound) {
                named.entry(sa).or_default().push(format!("tunnel {}", t.name));
            }
        }
        let spds = self.desired.ipsec.spds.iter();
        for (s, p) in spds.flat_map(|s| s.policies.iter().map(move |p| (s, p))) {
            for sa in p.out.iter().chain(&p.inbound) {
                named.entry(sa).or_default().push(format!("spd {} policy {}", s.name, p.name));
            }
        }
        let users = |sa: &str| named.get(sa).cloned().unwrap_or_default();
        let live = self.desired.ipsec.sas.iter().filter_map(|spec| self.gateway.kept.get(&spec.name));
        let mut all: Vec<SaView> = live
            .map(|kept| SaView { users: users(&kept.sa.name), reached: kept.reached, ..view(&kept.sa, now) })
            .collect();
        all.extend(self.gateway.draining().map(|(sa, until, users)| SaView {
            draining: Some(until.saturating_sub(now)),
            users,
            ..view(sa, now)
        }));
        all
    }

    pub fn policies(&self) -> Vec<PolicyView> {
        let policies = self.desired.ipsec.spds.iter().flat_map(|s| s.policies.iter().map(move |p| (s, p)));
        let view = |(spd, policy): (&SpdSpec, &PolicySpec)| {
            let counters = self.gateway.spds.counters(&spd.name, &policy.name);
            let read = |of: fn(&PolicyCounters) -> &AtomicU64| counters.map_or(0, |c| of(c).load(Relaxed));
            PolicyView {
                spd: spd.name.clone(),
                policy: policy.clone(),
                out_packets: read(|c| &c.out_packets),
                out_bytes: read(|c| &c.out_bytes),
                in_packets: read(|c| &c.in_packets),
                in_bytes: read(|c| &c.in_bytes),
            }
        };
        policies.map(view).collect()
    }

    pub fn spds(&self) -> Vec<SpdView> {
        let rules = |spec: &SpdSpec, direction| {
            self.gateway.spds.table(&spec.name).map_or(0, |table| table.rules(direction))
        };
        let view = |spec: &SpdSpec| SpdView {
            name: spec.name.clone(),
            ports: spec.ports.clone(),
            default: spec.default,
            policies: spec.policies.len(),
            rules: (rules(spec, Direction::Out), rules(spec, Direction::In)),
        };
        self.desired.ipsec.spds.iter().map(view).collect()
    }

    pub fn tunnels(&self) -> Vec<TunnelView> {
        let view = |spec: &TunnelSpec| {
            let port = self.ports.id(&spec.name)?;
            let of = self.ports.port(port)?;
            let sum = |names: &[String]| {
                let sas = names.iter().filter_map(|name| self.gateway.kept.get(name));
                let all = sas.map(|k| (k.sa.state.packets.load(Relaxed), k.sa.state.bytes.load(Relaxed)));
                all.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
            };
            let ((out_packets, out_bytes), (in_packets, in_bytes)) = (sum(&spec.out), sum(&spec.inbound));
            Some(TunnelView {
                name: spec.name.clone(),
                port,
                up: of.up,
                mtu: of.mtu,
                mtu_follows: spec.mtu.is_none(),
                out: spec.out.clone(),
                inbound: spec.inbound.clone(),
                out_packets,
                out_bytes,
                in_packets,
                in_bytes,
            })
        };
        self.desired.ipsec.tunnels.iter().filter_map(view).collect()
    }
}

fn view(sa: &Sa, now: Nanos) -> SaView {
    let (params, state) = (&sa.params, &sa.state);
    let (packets, bytes) = (state.packets.load(Relaxed), state.bytes.load(Relaxed));
    let age = state.age(now);
    let left = |limit: Lifetime| Lifetime {
        bytes: limit.bytes.map(|most| most.saturating_sub(bytes)),
        packets: limit.packets.map(|most| most.saturating_sub(packets)),
        seconds: limit.seconds.map(|most| most.saturating_sub(age / SECOND)),
    };
    let used = state.used.load(Relaxed);
    let believed = state.path_mtu_until.load(Relaxed).checked_sub(now).filter(|&left| left > 0);
    SaView {
        name: sa.name.clone(),
        id: sa.id,
        spi: params.spi,
        direction: params.direction,
        mode: params.mode,
        source: params.source,
        destination: params.destination,
        udp: params.udp,
        suite: params.suite,
        backend: sa.cipher.backend(),
        esn: params.esn,
        replay_window: params.replay_window,
        sequence: match params.direction {
            Direction::Out => state.sequence.load(Relaxed),
            Direction::In => state.replay.lock().unwrap_or_else(PoisonError::into_inner).top(),
        },
        packets,
        bytes,
        failures: state.failures().filter(|&(_, n)| n > 0).collect(),
        age,
        idle: (used > 0).then(|| now.saturating_sub(used)),
        soft_left: left(params.soft),
        hard_left: left(params.hard),
        reached: Limits::default(),
        draining: None,
        path_mtu: believed.and_then(|left| {
            let mtu = u16::try_from(state.path_mtu.load(Relaxed)).ok().filter(|&mtu| mtu > 0)?;
            Some((mtu, left))
        }),
        users: Vec::new(),
    }
}
