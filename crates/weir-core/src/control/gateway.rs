//! IPsec of the next snapshot: SAs with their ciphers and their state, tunnels, SPDs.
//!
//! ```text
//! SaSpec ─ cipher ─► Sa ──┬─► Sad (inbound)      removed: accepted for [`DRAIN`] more
//! state of before ──┘     └─► tunnels, policies (outbound)
//! ```
//!
//! Promises: what did not change is shared with the snapshot before; `spds.rs` beside it says how of SPDs. What packets changed about an SA (sequence number, replay window, counters)
//! survives as long as its direction, SPI, destination, suite and keys do, whatever else changes and
//! even when it was gone for a while: a sequence number given out twice with one key would break an AEAD,
//! and a window begun again would let old packets pass. An inbound SA that left, or became another, is
//! accepted for [`DRAIN`] more where it was used, unless its SPI is another's now. Counters belong to the
//! name of the policy.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;

use super::durable::Durable;
use super::memory::Memory;
use super::names::Names;
use super::ports::Ports;
use super::spds::Spds;
use super::watch::Limits;
use crate::ipsec::durable::Amounts;
use crate::ipsec::spd::PolicyCounters;
use crate::ipsec::spd::table::SpdTable;
use crate::ipsec::{
    Awaited, Cipher, Ciphers, Direction, Inbound, Ipsec, Policy, Queue, Sa, SaId, SaSpec, Sad, SpdId, Tunnel,
    TunnelId,
};
use crate::packet::DeviceId;
use crate::state::{
    Action, Element, Error, IpsecAction, IpsecElement, IpsecSpec, PolicySpec, SAS_MAX, SaProblem, SpdSpec,
    TunnelSpec,
};
use crate::time::{Nanos, SECOND};
use crate::wire::esp;

/// How long a removed inbound SA is still accepted: what its peer sealed before it heard of the rekey is
/// on its way for less (a segment's life on today's paths is well under a second).
pub const DRAIN: Nanos = 10 * SECOND;

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
    Policies { spd: String, policies: BTreeSet<String> },
}

/// An inbound SA on its way out.
#[derive(Debug)]
pub(super) struct Draining {
    sa: Arc<Sa>,
    user: User,
    until: Nanos,
}

#[derive(Debug)]
pub(super) struct Gateway {
    ciphers: Option<Arc<dyn Ciphers>>,
    names: Names,
    pub(super) kept: HashMap<String, Kept>,
    draining: Vec<Draining>,
    pub(super) memory: Memory,
    pub(super) spds: Spds,
    awaited: Option<Expected>,
    changed: Changed,
}

/// The SPD whose SAs come from elsewhere, and the SPIs and destinations of SAs that others open.
#[derive(Debug)]
struct Expected {
    spd: String,
    others: Arc<HashSet<(u32, IpAddr)>>,
}

/// What of the next snapshot differs from the last.
#[derive(Clone, Copy, Debug, Default)]
struct Changed {
    any: bool,
    /// More than policies: SAs, tunnels, enforced ports, or who uses an SA.
    parts: bool,
    /// SAs that policies name may be others.
    sas: bool,
}

/// What policies name: SAs that are there, and those on their way out.
#[derive(Clone, Copy)]
pub(super) struct Sas<'a> {
    kept: &'a HashMap<String, Kept>,
    draining: &'a [Draining],
}

impl Sas<'_> {
    pub(super) fn policy(self, spd: &str, spec: &PolicySpec, counters: Arc<PolicyCounters>) -> Policy {
        let sa = |name: &String| self.kept.get(name).map(|k| &k.sa);
        let mut inbound: Vec<SaId> = spec.inbound.iter().filter_map(|name| Some(sa(name)?.id)).collect();
        for d in self.draining {
            if let User::Policies { spd: of, policies } = &d.user
                && of == spd
                && policies.contains(&spec.name)
                && !inbound.contains(&d.sa.id)
            {
                inbound.push(d.sa.id);
            }
        }
        let out = spec.out.iter().filter_map(|name| sa(name).cloned()).collect();
        Policy { name: spec.name.clone(), action: spec.action, out, inbound, counters }
    }
}

/// Ciphers of SAs that need a new one.
pub(super) type Prepared<'a> = HashMap<&'a str, Arc<dyn Cipher>>;

impl Gateway {
    pub(super) fn new(ciphers: Option<Arc<dyn Ciphers>>, durable: Option<Durable>) -> Gateway {
        Gateway {
            ciphers,
            names: Names::new(SAS_MAX),
            kept: HashMap::new(),
            draining: Vec::new(),
            memory: Memory::new(durable),
            spds: Spds::default(),
            awaited: None,
            changed: Changed::default(),
        }
    }

    /// What [`crate::state::check`] cannot know: whether there are ciphers, and which keys were used.
    pub(super) fn check(&self, spec: &IpsecSpec, errors: &mut Vec<Error>) {
        if self.ciphers.is_none() && !spec.sas.is_empty() {
            let at = Element::Ipsec(IpsecElement::All);
            let problem = SaProblem::NoCiphers(spec.sas.len()).into();
            errors.push(Error { at, subject: "ipsec".into(), problem });
        }
        let ciphers = self.ciphers.as_deref();
        if let Some(records) = self.memory.too_many(&spec.sas, ciphers) {
            let at = Element::Ipsec(IpsecElement::All);
            let problem = SaProblem::StateFull(records).into();
            errors.push(Error { at, subject: "ipsec".into(), problem });
        }
        for (i, sa) in spec.sas.iter().enumerate() {
            if let Some(spi) = self.memory.spent(sa, ciphers) {
                let problem = SaProblem::KeySpent { spi }.into();
                let at = Element::Ipsec(IpsecElement::Sa(i));
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
                    at: Element::Ipsec(IpsecElement::Sa(i)),
                    subject: format!("sa {}", sa.name),
                    problem: SaProblem::KeyLength { length, suite: sa.params.suite }.into(),
                }),
            }
        }
        if errors.is_empty() { Ok(prepared) } else { Err(errors) }
    }

    /// Makes the SAs and SPDs those of `new`; `old` says where SAs that leave were used, `actions` what differs.
    /// `false`: nothing changed.
    pub(super) fn commit(
        &mut self,
        now: Nanos,
        old: &IpsecSpec,
        new: &IpsecSpec,
        mut prepared: Prepared<'_>,
        actions: &[Action],
    ) -> bool {
        if old == new {
            return false;
        }
        self.changed.any = true;
        self.changed.parts |= !same_parts(old, new) || actions.iter().any(moves_sas);
        self.names.set(new.sas.iter().map(|sa| sa.name.as_str()));
        let mut before = std::mem::take(&mut self.kept);
        let mut left: Vec<Arc<Sa>> = Vec::new();
        for spec in &new.sas {
            let mut was = before.remove(&spec.name);
            if let Some(kept) = was.take_if(|k| k.spec == *spec) {
                self.kept.insert(spec.name.clone(), kept);
                continue;
            }
            self.changed.sas = true;
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
            let state = self.memory.state(now, spec, self.ciphers.as_deref());
            state.resize_window(spec.params.replay_window);
            let sa = Sa::new(SaId(id), spec.name.clone(), spec.params.clone(), cipher, state);
            let kept = Kept { spec: spec.clone(), sa: Arc::new(sa), reached };
            self.kept.insert(spec.name.clone(), kept);
        }
        self.changed.sas |= !before.is_empty();
        left.extend(before.into_values().map(|k| k.sa));
        self.drain(now, left, old);
        let sas = Sas { kept: &self.kept, draining: &self.draining };
        let ciphers = self.ciphers.as_deref();
        // Without ciphers there are no keys to protect, but hashes to key all the same.
        let mut random = || ciphers.map_or_else(|| RandomState::new().hash_one(0), |c| c.random());
        self.spds.follow(actions, new, sas, &mut random);
        self.end_drains(new);
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
                self.changed.parts = true;
                self.draining.push(Draining { sa, user, until: now.saturating_add(DRAIN) });
            }
        }
    }

    /// Removes draining SAs that have nowhere to lead to any more, or whose SPI is in use again.
    pub(super) fn end_drains(&mut self, spec: &IpsecSpec) {
        if self.draining.is_empty() {
            return;
        }
        let before = self.draining.len();
        let spds = &self.spds;
        let taken: HashSet<_> =
            self.kept.values().map(|k| (k.sa.params.spi, k.sa.params.destination)).collect();
        self.draining.retain_mut(|d| {
            let leads = match &mut d.user {
                User::Tunnel(name) => spec.tunnels.iter().any(|t| t.name == *name),
                User::Policies { spd, policies } => {
                    policies.retain(|p| spds.counters(spd, p).is_some());
                    !policies.is_empty()
                }
            };
            leads && !taken.contains(&(d.sa.params.spi, d.sa.params.destination))
        });
        self.note_drains(before);
    }

    /// Notes that there were `before` of them.
    fn note_drains(&mut self, before: usize) {
        if self.draining.len() != before {
            self.changed = Changed { any: true, parts: true, sas: true };
        }
    }

    /// Ends drains that are over.
    pub(super) fn tick(&mut self, now: Nanos) {
        let before = self.draining.len();
        self.draining.retain(|d| d.until > now);
        self.note_drains(before);
    }

    pub(super) fn poll_at(&self) -> Option<Nanos> {
        self.draining.iter().map(|d| d.until).min()
    }

    /// Says whose SAs come from elsewhere, and which others open.
    pub(super) fn await_sas(&mut self, spd: &str, others: HashSet<(u32, IpAddr)>) {
        let same = |awaited: &Expected| awaited.spd == spd && *awaited.others == others;
        if !self.awaited.as_ref().is_some_and(same) {
            self.awaited = Some(Expected { spd: spd.to_owned(), others: Arc::new(others) });
            self.changed.any = true;
        }
    }

    /// What the next snapshot has of that.
    fn awaited(&self, spec: &IpsecSpec) -> Option<Awaited> {
        let Expected { spd, others } = self.awaited.as_ref()?;
        let spd = spec.spds.iter().position(|s| s.name == *spd)?;
        Some(Awaited { spd: SpdId(spd as u16), others: Arc::clone(others) })
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

    /// The highest sequence number that is reserved on disk for an SA.
    pub(super) fn reserved(&self, sa: &SaSpec) -> Option<u64> {
        self.memory.reserved(sa, self.ciphers.as_deref())
    }

    /// Whether a number is the end of what is reserved on disk for an SA.
    pub(super) fn has_reserved(&self, sa: &SaSpec, number: u64) -> bool {
        self.memory.has_reserved(sa, self.ciphers.as_deref(), number)
    }

    /// Has an SA go on from what somebody else used of it.
    pub(super) fn begin_behind(&mut self, sa: &SaSpec, used: Amounts) -> bool {
        self.memory.begin_behind(sa, self.ciphers.as_deref(), used)
    }

    /// Reserves nothing more for an SA that is gone.
    pub(super) fn freeze(&mut self, sa: &SaSpec) {
        self.memory.set_frozen(sa, self.ciphers.as_deref(), true);
    }

    /// Forgets what packets changed about an SA that is gone and whose keys never come back.
    pub(super) fn forget(&mut self, sa: &SaSpec) {
        self.memory.forget_sa(sa, self.ciphers.as_deref());
    }

    pub(super) fn is_changed(&self) -> bool {
        self.changed.any
    }

    /// The SPD of a name, to change policies of it; `f` has what they may name.
    pub(super) fn change_spd(&mut self, spd: &str, f: impl FnOnce(&mut SpdTable, Sas<'_>)) {
        let sas = Sas { kept: &self.kept, draining: &self.draining };
        if let Some(table) = self.spds.table_mut(spd) {
            f(table, sas);
            self.changed.any = true;
        }
    }

    /// What the next snapshot has of IPsec: the last one's as far as nothing differs.
    pub(super) fn snapshot(
        &mut self,
        spec: &IpsecSpec,
        ports: &Ports,
        moved: bool,
        last: Option<Arc<Ipsec>>,
    ) -> Option<Arc<Ipsec>> {
        let changed = std::mem::take(&mut self.changed);
        if spec.sas.is_empty() && spec.tunnels.is_empty() && spec.spds.is_empty() {
            return None;
        }
        if changed.sas {
            let sas = Sas { kept: &self.kept, draining: &self.draining };
            self.spds.refresh(spec, sas);
        }
        let mut next = match last {
            // Ports may have changed, which most often means nothing here.
            Some(last) if !changed.parts && (!moved || stays(&last, spec, ports)) => {
                if !changed.any {
                    return Some(last);
                }
                Ipsec::clone(&last)
            }
            _ => self.parts(spec, ports),
        };
        next.awaited = self.awaited(spec);
        next.spds = self.spds.publish(spec);
        (next.caches, next.oracle) = (self.spds.caches.clone(), spec.lookup.oracle);
        Some(Arc::new(next))
    }

    /// All but SPDs.
    fn parts(&self, spec: &IpsecSpec, ports: &Ports) -> Ipsec {
        let tunnel = |t: &TunnelSpec| {
            let out = t.out.iter().filter_map(|name| self.sa(name)).collect();
            Some(Tunnel { name: t.name.clone(), port: ports.id(&t.name)?, out })
        };
        let outbound = spec.sas.iter().filter(|s| s.params.direction == Direction::Out);
        let tunnels: Arc<[Tunnel]> = spec.tunnels.iter().filter_map(tunnel).collect();
        let users = users(spec);
        let draining = self.draining.iter().map(|d| (&d.sa, &d.user));
        let inbound = self.kept.values().filter(|k| k.sa.params.direction == Direction::In);
        let all = draining.chain(inbound.filter_map(|k| Some((&k.sa, users.get(k.sa.name.as_str())?))));
        let sad = Sad::new(all.filter_map(|(sa, user)| arrives(sa, user, spec, ports)));
        let (queues, enforcement) = queues(&tunnels, spec, ports);
        let host = |spd: &SpdSpec| Some((ports.id(&spd.name)?, ports.host_device(&spd.name)?));
        Ipsec {
            hosts: spec.spds.iter().filter_map(host).collect(),
            sad: Arc::new(sad),
            outbound: Arc::new(outbound.filter_map(|s| self.sa(&s.name)).collect()),
            tunnels,
            queues: queues.into(),
            enforcement: enforcement.into(),
            udp_ports: self.udp_ports().into(),
            ..Ipsec::default()
        }
    }

    fn sa(&self, name: &str) -> Option<Arc<Sa>> {
        self.kept.get(name).map(|k| k.sa.clone())
    }

    fn udp_ports(&self) -> Vec<u16> {
        let live = self.kept.values().map(|k| &k.sa).chain(self.draining.iter().map(|d| &d.sa));
        let inbound = live.filter(|sa| sa.params.direction == Direction::In);
        let mut all: Vec<u16> = inbound.filter_map(|sa| sa.params.udp.map(|u| u.destination)).collect();
        all.push(esp::UDP_PORT);
        all.sort_unstable();
        all.dedup();
        all
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

/// Whether all but policies and how they are asked is the same, the numbers of SPDs included.
fn same_parts(a: &IpsecSpec, b: &IpsecSpec) -> bool {
    let same = |(a, b): (&SpdSpec, &SpdSpec)| {
        (&a.name, &a.ports, &a.route_mode) == (&b.name, &b.ports, &b.route_mode)
    };
    a.sas == b.sas
        && a.tunnels == b.tunnels
        && a.spds.len() == b.spds.len()
        && a.spds.iter().zip(&b.spds).all(same)
}

/// Whether an SA may lead to another SPD.
fn moves_sas(action: &Action) -> bool {
    match action {
        Action::Ipsec(IpsecAction::RemovePolicy { policy, .. } | IpsecAction::AddPolicy { policy, .. }) => {
            !policy.inbound.is_empty()
        }
        Action::Ipsec(IpsecAction::ChangePolicy { change, .. }) => change.old.inbound != change.new.inbound,
        _ => false,
    }
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
                let none = || User::Policies { spd: spd.name.clone(), policies: BTreeSet::new() };
                if let User::Policies { policies, .. } = users.entry(sa).or_insert_with(none) {
                    policies.insert(policy.name.clone());
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

/// Whether everything is still where it was.
fn stays(last: &Ipsec, spec: &IpsecSpec, ports: &Ports) -> bool {
    let (queues, enforcement) = queues(&last.tunnels, spec, ports);
    *last.queues == *queues && *last.enforcement == *enforcement
}

/// What stands behind each device, and which ports are enforced.
fn queues(tunnels: &[Tunnel], spec: &IpsecSpec, ports: &Ports) -> (Vec<Queue>, Vec<Option<SpdId>>) {
    let mut queues = vec![Queue::Hardware; ports.devices.len()];
    let mut enforcement = vec![None; ports.ports.len()];
    let mut put = |device: DeviceId, queue| queues[device.index()] = queue;
    for (i, tunnel) in tunnels.iter().enumerate() {
        put(ports.ports[tunnel.port.index()].device, Queue::Tunnel(TunnelId(i as u16)));
    }
    for (i, spd) in spec.spds.iter().enumerate() {
        let id = SpdId(i as u16);
        if let Some(port) = ports.id(&spd.name).and_then(|id| ports.port(id)) {
            put(port.device, Queue::Policy(id));
            if let Some(host) = ports.host_device(&spd.name) {
                put(host, Queue::Host { device: port.device });
            }
        }
        for port in spd.ports.iter().filter_map(|name| ports.id(name)) {
            let Some(of) = ports.port(port) else { continue };
            put(of.egress, Queue::Enforcement { spd: id, port, device: of.device });
            enforcement[port.index()] = Some(id);
        }
    }
    (queues, enforcement)
}
