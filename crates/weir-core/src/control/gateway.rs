//! IPsec of the next snapshot: SAs with their ciphers and their state, tunnels, SPDs.
//!
//! ```text
//! SaSpec ─ cipher ─► Sa ──┬─► Sad (inbound)      removed: accepted for [`DRAIN`] more
//! state of before ──┘     └─► tunnels, policies (outbound)
//! ```
//!
//! Promises: what did not change is shared with the snapshot before, down to the rules of an SPD of which
//! only the SAs changed. What packets changed about an SA (sequence number, replay window, counters)
//! survives as long as its direction, SPI, destination, suite and keys do, whatever else changes and
//! even when it was gone for a while: a sequence number given out twice with one key would break an AEAD,
//! and a window begun again would let old packets pass. An inbound SA that left, or became another, is
//! accepted for [`DRAIN`] more where it was used, unless its SPI is another's now. Counters belong to the
//! name of the policy.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::memory::Memory;
use super::names::Names;
use super::ports::Ports;
use super::watch::Limits;
use crate::ipsec::spd::{PolicyCounters, PolicyIndex, RuleSet};
use crate::ipsec::{
    Cipher, Ciphers, Direction, FlowCaches, Inbound, Ipsec, Policy, Queue, Sa, SaId, SaSpec, SaState, Sad,
    Spd, SpdId, Tunnel, TunnelId,
};
use crate::packet::DeviceId;
use crate::state::{Error, IpsecPlace, IpsecSpec, Place, PolicySpec, SAS_MAX, SaProblem, SpdSpec};
use crate::time::{Nanos, SECOND};

/// How long a removed inbound SA is still accepted: what its peer sealed before it heard of the rekey is
/// on its way for less (a segment's life on today's paths is well under a second).
pub const DRAIN: Nanos = 10 * SECOND;

/// RFC 3948 2.1.
pub(super) const NAT_T_PORT: u16 = 4500;

/// An SA and what was asked for.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) spec: SaSpec,
    pub(super) sa: Arc<Sa>,
    /// Which limits it was seen to have reached.
    pub(super) reached: Limits,
}

/// Where the packets of an inbound SA go on.
#[derive(Clone, Debug, PartialEq, Eq)]
enum User {
    Tunnel(String),
    Policies { spd: String, policies: Vec<String> },
}

/// An inbound SA on its way out.
#[derive(Debug)]
struct Draining {
    sa: Arc<Sa>,
    user: User,
    until: Nanos,
}

/// An SPD of the last snapshot and what it was made of.
#[derive(Debug)]
struct Built {
    spec: SpdSpec,
    spd: Arc<Spd>,
}

#[derive(Debug)]
pub(super) struct Gateway {
    ciphers: Option<Arc<dyn Ciphers>>,
    names: Names,
    pub(super) kept: HashMap<String, Kept>,
    draining: Vec<Draining>,
    memory: Memory,
    /// By SPD and policy.
    counters: HashMap<(String, String), Arc<PolicyCounters>>,
    built: HashMap<String, Built>,
    caches: Arc<FlowCaches>,
    /// Whether the next snapshot has other IPsec than the last.
    pub(super) changed: bool,
}

/// Ciphers of SAs that need a new one.
pub(super) type Prepared<'a> = HashMap<&'a str, Arc<dyn Cipher>>;

impl Gateway {
    pub(super) fn new(ciphers: Option<Arc<dyn Ciphers>>) -> Gateway {
        Gateway {
            ciphers,
            names: Names::new(SAS_MAX),
            kept: HashMap::new(),
            draining: Vec::new(),
            memory: Memory::default(),
            counters: HashMap::new(),
            built: HashMap::new(),
            caches: Arc::default(),
            changed: false,
        }
    }

    /// What [`crate::state::check`] cannot know: whether there are ciphers, and which keys were used.
    pub(super) fn check(&self, spec: &IpsecSpec, errors: &mut Vec<Error>) {
        if self.ciphers.is_none() && !spec.sas.is_empty() {
            let at = Place::Ipsec(IpsecPlace::All);
            let problem = SaProblem::NoCiphers(spec.sas.len()).into();
            errors.push(Error { at, subject: "ipsec".into(), problem });
        }
        for (i, sa) in spec.sas.iter().enumerate() {
            if let Some(spi) = self.memory.spent(sa) {
                let problem = SaProblem::KeySpent { spi }.into();
                let at = Place::Ipsec(IpsecPlace::Sa(i));
                errors.push(Error { at, subject: format!("sa {}", sa.name), problem });
            }
        }
    }

    /// Makes the ciphers `spec` needs and that are not there yet; changes nothing.
    pub(super) fn prepare<'a>(&self, spec: &'a IpsecSpec) -> Result<Prepared<'a>, Vec<Error>> {
        let mut prepared = Prepared::new();
        let mut errors = Vec::new();
        let Some(ciphers) = &self.ciphers else { return Ok(prepared) };
        for (i, sa) in spec.sas.iter().enumerate() {
            if self.kept.get(&sa.name).is_some_and(|k| same_cipher(&k.spec, sa)) {
                continue;
            }
            match ciphers.cipher(sa.params.suite, sa.params.esn, &sa.keys) {
                Ok(cipher) => _ = prepared.insert(&sa.name, cipher),
                Err(length) => errors.push(Error {
                    at: Place::Ipsec(IpsecPlace::Sa(i)),
                    subject: format!("sa {}", sa.name),
                    problem: SaProblem::KeyLength { length, suite: sa.params.suite }.into(),
                }),
            }
        }
        if errors.is_empty() { Ok(prepared) } else { Err(errors) }
    }

    /// Makes the SAs those of `new`; `old` says where those that leave were used. `false`: nothing changed.
    pub(super) fn adopt(
        &mut self,
        now: Nanos,
        old: &IpsecSpec,
        new: &IpsecSpec,
        mut prepared: Prepared<'_>,
    ) -> bool {
        if old == new {
            return false;
        }
        self.changed = true;
        self.names.set(new.sas.iter().map(|sa| sa.name.as_str()));
        let mut before = std::mem::take(&mut self.kept);
        let mut left: Vec<Arc<Sa>> = Vec::new();
        for spec in &new.sas {
            let mut was = before.remove(&spec.name);
            if let Some(kept) = was.take_if(|k| k.spec == *spec) {
                self.kept.insert(spec.name.clone(), kept);
                continue;
            }
            let same = was.as_ref().map(|k| k.sa.cipher.clone());
            let (Some(cipher), Some(id)) = (prepared.remove(&*spec.name).or(same), self.names.id(&spec.name))
            else {
                continue;
            };
            let reached = match was {
                Some(kept) if same_identity(&kept.spec, spec) => kept.reached,
                Some(kept) => {
                    left.push(kept.sa);
                    Limits::default()
                }
                None => Limits::default(),
            };
            let state = self.memory.state(spec, || {
                let first_iv = self.ciphers.as_ref().map_or(0, |c| c.random());
                SaState::new(&spec.params, now).with_first_iv(first_iv)
            });
            state.resize_window(spec.params.replay_window);
            let sa = Sa::new(SaId(id), spec.name.clone(), spec.params.clone(), cipher, state);
            let kept = Kept { spec: spec.clone(), sa: Arc::new(sa), reached };
            self.kept.insert(spec.name.clone(), kept);
        }
        left.extend(before.into_values().map(|k| k.sa));
        self.drain(now, left, old);
        self.settle_drains(new);
        let named =
            |s: &SpdSpec| s.policies.iter().map(|p| (s.name.clone(), p.name.clone())).collect::<Vec<_>>();
        let present: HashSet<(String, String)> = new.spds.iter().flat_map(named).collect();
        self.counters.retain(|key, _| present.contains(key));
        true
    }

    fn drain(&mut self, now: Nanos, left: Vec<Arc<Sa>>, old: &IpsecSpec) {
        let inbound: Vec<Arc<Sa>> =
            left.into_iter().filter(|sa| sa.params.direction == Direction::In).collect();
        if inbound.is_empty() {
            return;
        }
        let mut users = users(old);
        for sa in inbound {
            if let Some(user) = users.remove(sa.name.as_str()) {
                self.draining.push(Draining { sa, user, until: now.saturating_add(DRAIN) });
            }
        }
    }

    /// Lets go of draining SAs that have nowhere to lead to any more, or whose SPI is in use again.
    fn settle_drains(&mut self, spec: &IpsecSpec) {
        let taken: HashSet<_> =
            self.kept.values().map(|k| (k.sa.params.spi, k.sa.params.destination)).collect();
        self.draining.retain_mut(|d| {
            let leads = match &mut d.user {
                User::Tunnel(name) => spec.tunnels.iter().any(|t| t.name == *name),
                User::Policies { spd, policies } => {
                    let there = spec.spds.iter().find(|s| s.name == *spd);
                    policies.retain(|p| there.is_some_and(|s| s.policies.iter().any(|q| q.name == *p)));
                    !policies.is_empty()
                }
            };
            leads && !taken.contains(&(d.sa.params.spi, d.sa.params.destination))
        });
    }

    /// Ends drains that are over.
    pub(super) fn tick(&mut self, now: Nanos) {
        let before = self.draining.len();
        self.draining.retain(|d| d.until > now);
        self.changed |= self.draining.len() != before;
    }

    pub(super) fn poll_at(&self) -> Option<Nanos> {
        self.draining.iter().map(|d| d.until).min()
    }

    /// Inbound SAs on their way out, until when, and where they lead.
    pub(super) fn draining(&self) -> impl Iterator<Item = (&Arc<Sa>, Nanos, Vec<String>)> {
        let users = |user: &User| match user {
            User::Tunnel(name) => vec![format!("tunnel {name}")],
            User::Policies { spd, policies } => {
                policies.iter().map(|p| format!("spd {spd} policy {p}")).collect()
            }
        };
        self.draining.iter().map(move |d| (&d.sa, d.until, users(&d.user)))
    }

    pub(super) fn counters(&self, spd: &str, policy: &str) -> Option<&Arc<PolicyCounters>> {
        // A pair of names borrowed is no key of a map of pairs of names.
        self.counters.get(&(spd.to_string(), policy.to_string()))
    }

    /// What the next snapshot has of IPsec: the last one's if nothing differs.
    pub(super) fn snapshot(
        &mut self,
        spec: &IpsecSpec,
        ports: &Ports,
        last: Option<Arc<Ipsec>>,
    ) -> Option<Arc<Ipsec>> {
        let changed = std::mem::take(&mut self.changed);
        let next = self.build(spec, ports);
        match (last, &next) {
            (Some(last), Some(next))
                if !changed && last.queues == next.queues && last.guards == next.guards =>
            {
                Some(last)
            }
            _ => next,
        }
    }

    fn build(&mut self, spec: &IpsecSpec, ports: &Ports) -> Option<Arc<Ipsec>> {
        if *spec == IpsecSpec::default() {
            self.built.clear();
            return None;
        }
        let mut ipsec = Ipsec {
            outbound: spec
                .sas
                .iter()
                .filter(|s| s.params.direction == Direction::Out)
                .filter_map(|s| self.sa(&s.name))
                .collect(),
            tunnels: spec
                .tunnels
                .iter()
                .filter_map(|t| {
                    let out = t.out.iter().filter_map(|name| self.sa(name)).collect();
                    Some(Tunnel { name: t.name.clone(), port: ports.id(&t.name)?, out })
                })
                .collect(),
            udp_ports: self.udp_ports().into(),
            caches: self.caches.clone(),
            oracle: spec.lookup.oracle,
            ..Ipsec::default()
        };
        let built: HashMap<String, Built> = spec.spds.iter().map(|s| (s.name.clone(), self.spd(s))).collect();
        ipsec.spds = spec.spds.iter().filter_map(|s| Some(built.get(&s.name)?.spd.clone())).collect();
        self.built = built;
        let users = users(spec);
        let draining = self.draining.iter().map(|d| (&d.sa, &d.user));
        let inbound = self.kept.values().filter(|k| k.sa.params.direction == Direction::In);
        let all = draining.chain(inbound.filter_map(|k| Some((&k.sa, users.get(k.sa.name.as_str())?))));
        ipsec.sad = Sad::new(all.filter_map(|(sa, user)| arrives(sa, user, spec, ports))).into();
        queues(&mut ipsec, spec, ports);
        Some(Arc::new(ipsec))
    }

    fn sa(&self, name: &str) -> Option<Arc<Sa>> {
        self.kept.get(name).map(|k| k.sa.clone())
    }

    fn udp_ports(&self) -> Vec<u16> {
        let live = self.kept.values().map(|k| &k.sa).chain(self.draining.iter().map(|d| &d.sa));
        let inbound = live.filter(|sa| sa.params.direction == Direction::In);
        let mut all: Vec<u16> = inbound.filter_map(|sa| sa.params.udp.map(|u| u.destination)).collect();
        all.push(NAT_T_PORT);
        all.sort_unstable();
        all.dedup();
        all
    }

    /// An SPD: the one before if it is the same, its rules if only they are.
    fn spd(&mut self, spec: &SpdSpec) -> Built {
        let policies: Vec<Arc<Policy>> =
            spec.policies.iter().map(|p| Arc::new(self.policy(&spec.name, p))).collect();
        let was = self.built.get(&spec.name);
        if let Some(was) = was.filter(|was| was.spec == *spec && same_sas(&was.spd.policies, &policies)) {
            return Built { spec: spec.clone(), spd: was.spd.clone() };
        }
        let rules = was
            .filter(|was| same_rules(&was.spec, spec))
            .map(|was| (was.spd.outbound.clone(), was.spd.inbound.clone()));
        let (outbound, inbound) =
            rules.unwrap_or_else(|| (rule_set(spec, Direction::Out), rule_set(spec, Direction::In)));
        let epochs = [self.caches.next_epoch(), self.caches.next_epoch()];
        let (name, default) = (spec.name.clone(), spec.default);
        let spd = Spd { name, policies, outbound, inbound, default, epochs };
        Built { spec: spec.clone(), spd: Arc::new(spd) }
    }

    fn policy(&mut self, spd: &str, spec: &PolicySpec) -> Policy {
        let mut inbound: Vec<SaId> =
            spec.inbound.iter().filter_map(|name| Some(self.kept.get(name)?.sa.id)).collect();
        for d in &self.draining {
            if let User::Policies { spd: of, policies } = &d.user
                && of == spd
                && policies.contains(&spec.name)
                && !inbound.contains(&d.sa.id)
            {
                inbound.push(d.sa.id);
            }
        }
        let counters = self.counters.entry((spd.to_string(), spec.name.clone())).or_default().clone();
        let out = spec.out.iter().filter_map(|name| self.sa(name)).collect();
        Policy { name: spec.name.clone(), action: spec.action, out, inbound, counters }
    }
}

/// Whether what packets changed about one is true of the other.
fn same_identity(a: &SaSpec, b: &SaSpec) -> bool {
    let params = |s: &SaSpec| (s.params.direction, s.params.spi, s.params.destination, s.params.suite);
    params(a) == params(b) && a.keys == b.keys
}

fn same_cipher(a: &SaSpec, b: &SaSpec) -> bool {
    (a.params.suite, a.params.esn) == (b.params.suite, b.params.esn) && a.keys == b.keys
}

fn same_sas(a: &[Arc<Policy>], b: &[Arc<Policy>]) -> bool {
    let same = |(a, b): (&Arc<Policy>, &Arc<Policy>)| {
        a.inbound == b.inbound
            && a.out.len() == b.out.len()
            && a.out.iter().zip(&b.out).all(|(a, b)| Arc::ptr_eq(a, b))
    };
    a.len() == b.len() && a.iter().zip(b).all(same)
}

fn same_rules(a: &SpdSpec, b: &SpdSpec) -> bool {
    let selects = |p: &PolicySpec, q: &PolicySpec| {
        (p.direction, p.protocol, p.local_ports, p.remote_ports, p.icmp)
            == (q.direction, q.protocol, q.local_ports, q.remote_ports, q.icmp)
            && p.local == q.local
            && p.remote == q.remote
    };
    a.policies.len() == b.policies.len() && a.policies.iter().zip(&b.policies).all(|(p, q)| selects(p, q))
}

fn rule_set(spec: &SpdSpec, direction: Direction) -> Arc<RuleSet> {
    let of = |(i, p): (usize, &PolicySpec)| {
        p.selectors(direction).into_iter().map(move |s| (s, PolicyIndex(i as u32))).collect::<Vec<_>>()
    };
    Arc::new(RuleSet::new(spec.policies.iter().enumerate().flat_map(of).collect()))
}

/// Who lists each inbound SA.
fn users(spec: &IpsecSpec) -> HashMap<&str, User> {
    let mut users: HashMap<&str, User> = HashMap::new();
    for tunnel in &spec.tunnels {
        users.extend(tunnel.inbound.iter().map(|sa| (sa.as_str(), User::Tunnel(tunnel.name.clone()))));
    }
    for spd in &spec.spds {
        for policy in &spd.policies {
            for sa in &policy.inbound {
                let none = || User::Policies { spd: spd.name.clone(), policies: Vec::new() };
                if let User::Policies { policies, .. } = users.entry(sa).or_insert_with(none) {
                    policies.push(policy.name.clone());
                }
            }
        }
    }
    users
}

/// Where what an inbound SA opens arrives.
fn arrives(sa: &Arc<Sa>, user: &User, spec: &IpsecSpec, ports: &Ports) -> Option<Inbound> {
    let (name, spd) = match user {
        User::Tunnel(name) => (name, None),
        User::Policies { spd, .. } => {
            (spd, Some(SpdId(spec.spds.iter().position(|s| s.name == *spd)? as u16)))
        }
    };
    Some(Inbound { sa: sa.clone(), device: ports.port(ports.id(name)?)?.device, spd })
}

/// What stands behind each device, and which ports are guarded.
fn queues(ipsec: &mut Ipsec, spec: &IpsecSpec, ports: &Ports) {
    let mut queues = vec![Queue::Hardware; ports.devices.len()];
    let mut guards = vec![None; ports.ports.len()];
    let mut put = |device: DeviceId, queue| queues[device.index()] = queue;
    for (i, tunnel) in ipsec.tunnels.iter().enumerate() {
        put(ports.ports[tunnel.port.index()].device, Queue::Tunnel(TunnelId(i as u16)));
    }
    for (i, spd) in spec.spds.iter().enumerate() {
        let id = SpdId(i as u16);
        if let Some(port) = ports.id(&spd.name).and_then(|id| ports.port(id)) {
            put(port.device, Queue::Policy(id));
        }
        for port in spd.ports.iter().filter_map(|name| ports.id(name)) {
            let Some(of) = ports.port(port) else { continue };
            put(of.egress, Queue::Guard { spd: id, port, device: of.device });
            guards[port.index()] = Some(id);
        }
    }
    (ipsec.queues, ipsec.guards) = (queues.into(), guards.into());
}
