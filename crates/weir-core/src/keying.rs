//! The kernel's SAs and policies as this gateway is to have them: messages of XFRM in, IPsec as wished for out.
//!
//! ```text
//! SAs, policies ──────► observe ───────┐                ┌─► merge: SAs and policies of an SPD
//! if_ids of devices ──► set_devices ───┼─► what a key   ┤
//! addresses of ours ──► set_addresses ─┘   daemon wants └─► left: what is not taken, and why
//! ```
//!
//! Promises: a pure function of what was heard, without I/O or clock. Only what has an interface id is taken that no xfrm device
//! has, for the kernel looks such SAs up for nobody; or one that a device of route mode has, once the SA is fenced
//! ([`Keying::set_fenced`]), for the kernel numbers nothing by it then. So it and weir never number one SA both. A policy whose SAs are
//! not there, or not to be had here, discards. Packets leave by the SA a policy names, or its newest, and may come in by any. Refuses, with the reason ([`Why`]):
//! AH, IPComp, BEET, transport mode, algorithms not had, keys the kernel hides, selectors by interface or user, marks.

mod convert;
pub mod fence;
mod merge;
mod why;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use crate::ipsec::spd::Action;
use crate::ipsec::{Direction, Params, SaSpec};
use crate::route::Prefix;
use crate::state::PolicySpec;
use crate::wire::xfrm::{
    ESP, Mode, News, Policy, PolicyDirection, Sa, SaDirection, SaKey, Selector, Template,
};

pub use merge::merge;
pub use why::{Left, Why};

/// What names of the kernel's SAs and policies begin with: no name in a file has a colon.
pub const PREFIX: &str = "kernel:";

#[derive(Clone, Debug)]
struct Known<T> {
    it: T,
    /// The newer, the higher.
    order: u64,
    /// Number of the last dump that named it.
    epoch: u64,
    numbered: Numbered,
    /// The kernel was given this number for the SA, which is the same since.
    ahead: Option<u64>,
    /// The kernel numbers and takes nothing by it that weir does: outbound it was given the last number there is.
    fenced: bool,
}

/// Whether the kernel may have used an SA: what numbers and packets, only the kernel knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbered {
    No,
    /// It had numbers when it was heard of first: its own, or those weir gave it in an earlier life.
    Before,
    /// A device had its interface id.
    ByDevice,
}

/// An SA with the number it had when it was heard of.
#[derive(Clone, Debug)]
pub struct UsedBefore {
    pub key: SaKey,
    /// The last number given out, or the highest received.
    pub number: u64,
    pub spec: SaSpec,
}

/// What the kernel finds a policy by, once it is there.
type PolicyKey = (PolicyDirection, u32);

/// Everything heard of the kernel's SAs and policies.
#[derive(Debug, Default)]
pub struct Keying {
    sas: HashMap<SaKey, Known<Sa>>,
    policies: BTreeMap<PolicyKey, Known<Policy>>,
    devices: BTreeSet<u32>,
    /// Interface ids of devices weir acts for.
    routed: BTreeSet<u32>,
    /// Interface ids of devices that went: until a dump, a message about an SA may be older than what its device did with it.
    departed: BTreeSet<u32>,
    addresses: HashSet<IpAddr>,
    /// What the control side would not have, by name.
    refused: BTreeMap<String, String>,
    order: u64,
    epoch: u64,
}

/// What of the kernel's is to be had.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub sas: Vec<SaSpec>,
    pub policies: Vec<PolicySpec>,
    /// Policies of devices of route mode, by interface id.
    pub routed: BTreeMap<u32, Vec<PolicySpec>>,
    pub left: Vec<Left>,
}

/// Policies that protect and have no SA to send by: packets wait for a key daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trap {
    pub policy: String,
    pub acquire: Vec<u8>,
}

impl Keying {
    /// Takes in a message; true where something may be another now.
    pub fn observe(&mut self, news: News) -> bool {
        match news {
            News::Sa(sa) => self.observe_sa(*sa),
            News::SaGone(key) | News::SaExpired { key, hard: true } => {
                // What was refused because of it may be had now.
                self.refused.clear();
                self.sas.remove(&key).is_some()
            }
            News::SasFlushed(_) if news.flushes_esp() => !std::mem::take(&mut self.sas).is_empty(),
            News::Policy(policy) => {
                let key = (policy.direction, policy.index);
                let (epoch, numbered) = (self.epoch, Numbered::No);
                let known = Known { it: *policy, order: 0, epoch, numbered, ahead: None, fenced: false };
                let before = self.policies.insert(key, known);
                before.is_none_or(|b| b.it != self.policies[&key].it)
            }
            News::PolicyGone(policy) => {
                self.refused.clear();
                self.policies.remove(&(policy.direction, policy.index)).is_some()
            }
            News::PoliciesFlushed => !std::mem::take(&mut self.policies).is_empty(),
            News::SaExpired { .. } | News::SasFlushed(_) | News::Defaults(_) | News::Other => false,
        }
    }

    fn observe_sa(&mut self, sa: Sa) -> bool {
        // An SPI that is only reserved (XFRM_MSG_ALLOCSPI), or packets wait for: it has no keys.
        if sa.aead.is_none() && sa.encryption.is_none() && sa.integrity.is_none() {
            return false;
        }
        let (key, epoch) = (sa.key, self.epoch);
        self.order += 1;
        let used = if self.departed.contains(&sa.if_id) {
            Numbered::ByDevice
        } else if sa.replay.is_some_and(|r| r.sent > 0 || r.received > 0) {
            Numbered::Before
        } else {
            Numbered::No
        };
        let (order, numbered, ahead, fenced) = match self.sas.get(&key) {
            Some(k) => (k.order, k.numbered, k.ahead, k.fenced),
            None => (self.order, used, None, false),
        };
        // With less than it was given it is another, whose beginning was not heard.
        let ahead = ahead.filter(|&ahead| sa.replay.is_none_or(|r| r.sent.max(r.received) >= ahead));
        let fenced = fenced && ahead.is_some();
        let before = self.sas.insert(key, Known { it: sa, order, epoch, numbered, ahead, fenced });
        let now = &self.sas[&key].it;
        before.is_none_or(|b| Sa { lifetime: now.lifetime, replay: now.replay, ..b.it } != *now)
    }

    /// A dump begins: what neither it nor a later message tells of is gone at its end.
    pub fn begin_resync(&mut self) {
        self.epoch += 1;
    }

    /// The dump has ended. Returns how many SAs and policies were gone without a message.
    pub fn end_resync(&mut self) -> usize {
        let (before, epoch) = (self.sas.len() + self.policies.len(), self.epoch);
        self.departed.clear();
        self.sas.retain(|_, known| known.epoch == epoch);
        self.policies.retain(|_, known| known.epoch == epoch);
        before - self.sas.len() - self.policies.len()
    }

    /// The interface ids of xfrm devices that are the kernel's.
    pub fn set_devices(&mut self, devices: BTreeSet<u32>) -> bool {
        for known in self.sas.values_mut() {
            // The device that goes may have used SAs that came after it.
            let id = &known.it.if_id;
            if devices.contains(id) || self.devices.contains(id) {
                known.numbered = Numbered::ByDevice;
            }
        }
        self.departed.extend(&self.devices - &devices);
        std::mem::replace(&mut self.devices, devices) != self.devices
    }

    /// The interface ids of xfrm devices weir acts for. Of SAs that were there when such a device came, and when it went, nobody
    /// knows what the kernel used.
    pub fn set_routed(&mut self, routed: BTreeSet<u32>) -> bool {
        for known in self.sas.values_mut() {
            let id = &known.it.if_id;
            if routed.contains(id) != self.routed.contains(id) {
                known.numbered = Numbered::ByDevice;
            }
        }
        self.departed.extend(&self.routed - &routed);
        std::mem::replace(&mut self.routed, routed) != self.routed
    }

    /// A device went since the last dump: all messages that wait are to be observed, and then a dump.
    pub fn asks_for_dump(&self) -> bool {
        !self.departed.is_empty()
    }

    /// The addresses of this host, the kernel's and weir's.
    pub fn set_addresses(&mut self, addresses: HashSet<IpAddr>) -> bool {
        std::mem::replace(&mut self.addresses, addresses) != self.addresses
    }

    /// The control side would not have an SA or policy of this name: it is left out from now on, as long as it is there.
    /// False where it was left out already.
    pub fn refuse(&mut self, name: &str, why: String) -> bool {
        self.refused.insert(name.to_owned(), why).is_none()
    }

    pub fn is_empty(&self) -> bool {
        self.sas.is_empty()
    }

    /// Every SA of the kernel's that has a name here.
    pub fn named(&self) -> HashMap<String, &Sa> {
        self.names().into_iter().map(|(key, name)| (name.text, &self.sas[&key].it)).collect()
    }

    /// The SA the kernel finds by this.
    pub fn sa(&self, key: &SaKey) -> Option<&Sa> {
        self.sas.get(key).map(|known| &known.it)
    }

    /// SAs that would be taken, had the kernel not used them.
    pub fn to_be_replaced(&self) -> Vec<SaKey> {
        let ours = |sa: &Sa| sa.if_id != 0 && !self.devices.contains(&sa.if_id);
        let used = |k: &&Known<Sa>| k.numbered != Numbered::No && !self.is_usable(k);
        self.sas.values().filter(|k| used(k) && ours(&k.it)).map(|k| k.it.key).collect()
    }

    /// Whether the kernel numbers nothing by an SA, and is known to have numbered nothing that weir does not know of.
    fn is_usable(&self, known: &Known<Sa>) -> bool {
        match known.numbered {
            Numbered::ByDevice => false,
            _ if self.routed.contains(&known.it.if_id) => known.fenced,
            numbered => numbered == Numbered::No,
        }
    }

    /// SAs of devices of route mode that the kernel may still number, or take packets by.
    pub fn unfenced(&self) -> Vec<UsedBefore> {
        let may_be = |k: &Known<Sa>| !k.fenced && !k.it.offloaded && k.numbered != Numbered::ByDevice;
        let mut all = self.chosen(|known| self.routed.contains(&known.it.if_id) && may_be(known));
        all.retain(|sa| !self.refused.contains_key(&sa.spec.name));
        all
    }

    /// The kernel was given this number for an SA, and numbers, or takes, nothing up to it: outbound it is the last there is.
    pub fn set_fenced(&mut self, key: &SaKey, number: u64) {
        if let Some(known) = self.sas.get_mut(key) {
            (known.fenced, known.ahead) = (true, Some(number));
        }
    }

    /// An SA cannot be fenced: it is not taken, and is to be replaced.
    pub fn set_numbered(&mut self, key: &SaKey) {
        if let Some(known) = self.sas.get_mut(key) {
            (known.fenced, known.numbered) = (false, Numbered::ByDevice);
        }
    }

    pub fn is_fenced(&self, key: &SaKey) -> bool {
        self.sas.get(key).is_some_and(|known| known.fenced)
    }

    /// SAs that had numbers when they were heard of first and that no device has: they are to be had where those numbers are
    /// weir's own ([`Keying::take_back`]).
    pub fn used_before(&self) -> Vec<UsedBefore> {
        self.chosen(|known| known.numbered == Numbered::Before && !self.routed.contains(&known.it.if_id))
    }

    /// SAs nobody was heard to use and the kernel was given no number for: one that was made again may have been used here.
    pub fn not_ahead(&self) -> Vec<UsedBefore> {
        let not_ahead = |k: &Known<Sa>| k.numbered == Numbered::No && k.ahead.is_none();
        self.chosen(|known| not_ahead(known) && !self.routed.contains(&known.it.if_id))
    }

    fn chosen(&self, which: impl Fn(&Known<Sa>) -> bool) -> Vec<UsedBefore> {
        let known = self.names().into_iter().filter_map(|(key, name)| {
            let known = &self.sas[&key];
            let sa = &known.it;
            let ours = which(known) && sa.if_id != 0 && !self.devices.contains(&sa.if_id);
            let replay = sa.replay.filter(|_| ours)?;
            let number = match name.direction {
                Direction::Out => replay.sent,
                Direction::In => replay.received,
            };
            Some(UsedBefore { key, number, spec: convert::sa(sa, name.text, name.direction).ok()? })
        });
        known.collect()
    }

    /// The number of this SA is weir's own: the kernel has not used it.
    pub fn take_back(&mut self, key: &SaKey, number: u64) {
        if let Some(known) = self.sas.get_mut(key).filter(|k| k.numbered == Numbered::Before) {
            (known.numbered, known.ahead) = (Numbered::No, Some(number));
        }
    }

    /// The number the kernel was given for an SA; none since the SA was made, where it is made again the same too.
    pub fn ahead(&self, key: &SaKey) -> Option<u64> {
        self.sas.get(key)?.ahead
    }

    /// The kernel was given this number for an SA.
    pub fn set_ahead(&mut self, key: &SaKey, number: u64) {
        if let Some(known) = self.sas.get_mut(key) {
            known.ahead = Some(number);
        }
    }

    /// Every SA and policy to be had, whatever else is configured.
    pub fn wanted(&self) -> Wanted {
        let mut wanted = Wanted::default();
        let sas = self.usable_sas(&mut wanted.left);
        let mut policies: Vec<&Policy> = self.policies.values().map(|k| &k.it).collect();
        // The kernel takes the least number, and of one number the eldest.
        policies.sort_by_key(|p| (p.priority, p.index));
        let forwarded = self.forwarded();
        for policy in policies {
            // Weir's own, and what another policy of the kernel's tells already.
            let told = policy.direction == PolicyDirection::In
                && forwarded.contains(&(policy.if_id, &policy.selector));
            if told || is_block(policy) {
                continue;
            }
            match self.policy(policy, &policy_name(policy), &sas) {
                Ok(spec) if self.routed.contains(&policy.if_id) => {
                    wanted.routed.entry(policy.if_id).or_default().push(spec);
                }
                Ok(spec) => wanted.policies.push(spec),
                Err(why) => wanted.left.push(Left { subject: subject(policy), why }),
            }
        }
        let policies = wanted.policies.iter().chain(wanted.routed.values().flatten());
        let used: HashSet<&String> = policies.flat_map(|p| p.out.iter().chain(&p.inbound)).collect();
        let mut usable: Vec<&SaSpec> = sas.values().flatten().map(|s| &s.spec).collect();
        usable.retain(|spec| used.contains(&spec.name));
        usable.sort_by(|a, b| a.name.cmp(&b.name));
        wanted.sas = usable.into_iter().cloned().collect();
        wanted.left.sort();
        wanted.left.dedup();
        wanted
    }

    /// SPIs and destinations of the kernel's SAs that are not to be had here: only the kernel opens what comes by them.
    pub fn others(&self) -> HashSet<(u32, IpAddr)> {
        let usable = self.usable_sas(&mut Vec::new());
        let of = |params: &Params| (params.spi, params.destination);
        let ours: HashSet<_> = usable.values().flatten().map(|usable| of(&usable.spec.params)).collect();
        let all = self.sas.keys().map(|key| (key.spi, key.destination));
        all.filter(|key| !ours.contains(key)).collect()
    }

    /// Selectors of policies about what is forwarded: a key daemon makes one for what the host itself takes in, and one
    /// for what it forwards, alike.
    fn forwarded(&self) -> HashSet<(u32, &Selector)> {
        let all = self.policies.values().map(|k| &k.it);
        all.filter(|p| p.direction == PolicyDirection::Forward).map(|p| (p.if_id, &p.selector)).collect()
    }

    /// Why a policy is the kernel's, if it is.
    fn owned_by_kernel(&self, policy: &Policy) -> Option<Why> {
        match policy.if_id {
            0 => Some(Why::NoInterfaceId),
            id if self.devices.contains(&id) => Some(Why::Device(id)),
            _ => None,
        }
    }

    /// Whether the kernel has an SA with this SPI, whatever became of it here.
    pub fn has_spi(&self, spi: u32) -> bool {
        self.sas.keys().any(|key| key.spi == spi)
    }

    fn policy(&self, policy: &Policy, name: &str, sas: &Usables) -> Result<PolicySpec, Why> {
        if let Some(why) = self.owned_by_kernel(policy) {
            return Err(why);
        }
        if let Some(why) = self.refused.get(name) {
            return Err(Why::Refused(why.clone()));
        }
        let direction = direction_of(policy);
        let mut spec = convert::policy(policy, name, direction)?;
        let template = match policy.templates.as_slice() {
            _ if !policy.allowed => return Ok(spec),
            [] => return Ok(spec),
            [template] => template,
            _ => return Err(Why::Bundle),
        };
        protects(template)?;
        let ours = sas.get(&(direction, policy.if_id, template.request)).map_or(&[][..], Vec::as_slice);
        let names = |some: &[Usable]| some.iter().map(|s| s.spec.name.clone()).collect::<Vec<String>>();
        match direction {
            Direction::In => spec.inbound = names(ours),
            Direction::Out if template.spi == 0 => spec.out = names(&ours[ours.len().saturating_sub(1)..]),
            // Who answers a rekey has the new SA before its peer does, and says by this when to use it.
            Direction::Out => {
                let named = ours.iter().filter(|s| s.spec.params.spi == template.spi);
                spec.out = named.map(|s| s.spec.name.clone()).take(1).collect();
            }
        }
        if spec.out.is_empty() && spec.inbound.is_empty() {
            spec.action = Action::Discard;
        }
        Ok(spec)
    }

    /// Those of each policy, the newest last.
    fn usable_sas(&self, left: &mut Vec<Left>) -> Usables {
        let mut usable = Usables::new();
        for (key, Name { text: name, direction }) in self.names() {
            let known = &self.sas[&key];
            let Known { it: sa, order, .. } = known;
            // Of others their policies are said to be left.
            if sa.if_id == 0 || self.devices.contains(&sa.if_id) {
                continue;
            }
            let spec = match self.refused.get(&name) {
                Some(why) => Err(Why::Refused(why.clone())),
                None if sa.offloaded && self.routed.contains(&sa.if_id) => Err(Why::Offloaded),
                None if !self.is_usable(known) => Err(Why::Numbered),
                None => convert::sa(sa, name.clone(), direction),
            };
            match spec {
                Ok(spec) => {
                    let of = usable.entry((direction, sa.if_id, sa.request)).or_default();
                    of.push(Usable { spec, order: *order });
                }
                Err(why) => left.push(Left { subject: format!("sa {name}"), why }),
            }
        }
        usable.values_mut().for_each(|of| of.sort_by_key(|s| s.order));
        usable
    }

    /// What each SA is called here; none where neither end is ours. An SA keeps its name when its addresses change
    /// (MOBIKE), but where another has its SPI: that is its receiver's choice.
    fn names(&self) -> HashMap<SaKey, Name> {
        let mut first: HashMap<u32, SaKey> = HashMap::new();
        for key in self.sas.keys() {
            let of = first.entry(key.spi).or_insert(*key);
            *of = (*of).min(*key);
        }
        let name = |(key, known): (&SaKey, &Known<Sa>)| {
            let direction = match known.it.direction {
                Some(SaDirection::Out) => Direction::Out,
                Some(SaDirection::In) => Direction::In,
                None if self.addresses.contains(&key.destination) => Direction::In,
                None if self.addresses.contains(&known.it.source) => Direction::Out,
                None => return None,
            };
            let word = if direction == Direction::Out { "out" } else { "in" };
            let mut text = format!("{PREFIX}{word}:{:08x}", key.spi);
            if first.get(&key.spi) != Some(key) {
                text += &format!(":{}", key.destination);
            }
            Some((*key, Name { text, direction }))
        };
        self.sas.iter().filter_map(name).collect()
    }

    /// What the kernel drops because weir had it do so.
    pub fn blocked(&self) -> impl Iterator<Item = &Selector> {
        let all = self.policies.values().map(|k| &k.it);
        all.filter(|p| p.direction == PolicyDirection::Out && is_block(p)).map(|p| &p.selector)
    }

    /// What the kernel shall no longer send by itself, and what it may again: of the packets of policies that are taken it
    /// has none it looks up for them, so its own would leave in cleartext.
    pub fn blocks(&self) -> (Vec<Selector>, Vec<Selector>) {
        let all = || self.policies.values().map(|k| &k.it);
        let out = |p: &&Policy| p.direction == PolicyDirection::Out;
        let wanted: HashSet<&Selector> = all()
            .filter(out)
            .filter(|p| p.allowed && !p.templates.is_empty() && self.owned_by_kernel(p).is_none())
            // What the host sends into a device its policies without interface id are not about.
            .filter(|p| !self.routed.contains(&p.if_id))
            .map(|p| &p.selector)
            // The network at hand is part of the far one: the host would lose it too.
            .filter(|s| !contains(s.destination, s.source))
            .collect();
        let there: HashSet<&Selector> = self.blocked().collect();
        // Where the kernel has a policy of its own for them that one decides.
        let own: HashSet<&Selector> =
            all().filter(out).filter(|p| p.if_id == 0 && !is_block(p)).map(|p| &p.selector).collect();
        let lacking = wanted.iter().filter(|s| !there.contains(*s) && !own.contains(*s));
        let over = there.iter().filter(|s| !wanted.contains(*s));
        (lacking.map(|s| (*s).clone()).collect(), over.map(|s| (*s).clone()).collect())
    }

    /// Outbound policies that ask for an SA and have none.
    pub fn traps(&self) -> Vec<Trap> {
        let mut left = Vec::new();
        let sas = self.usable_sas(&mut left);
        let out = self.policies.values().map(|k| &k.it).filter(|p| p.direction == PolicyDirection::Out);
        out.filter_map(|policy| {
            let name = policy_name(policy);
            let spec = self.policy(policy, &name, &sas).ok()?;
            let waits = spec.action == Action::Discard && policy.allowed;
            let acquire = crate::wire::xfrm::acquire(policy).filter(|_| waits)?;
            Some(Trap { policy: name, acquire })
        })
        .collect()
    }
}

/// Puts weir's own policies of the kernel last: the largest number decides least. Which they are is known by it.
pub const BLOCK_PRIORITY: u32 = 0xffff_fffe;

/// An SA that can be had here.
struct Usable {
    spec: SaSpec,
    order: u64,
}

/// The SAs that policies can name, by direction, interface id and request.
type Usables = HashMap<(Direction, u32, u32), Vec<Usable>>;

struct Name {
    text: String,
    direction: Direction,
}

fn contains(whole: Prefix, part: Prefix) -> bool {
    let (whole, part) = (convert::range(whole), convert::range(part));
    whole.contains(part.first) && whole.contains(part.last)
}

/// A policy of weir's own.
fn is_block(policy: &Policy) -> bool {
    policy.priority == BLOCK_PRIORITY && policy.if_id == 0 && !policy.allowed
}

fn direction_of(policy: &Policy) -> Direction {
    match policy.direction {
        PolicyDirection::Out => Direction::Out,
        PolicyDirection::In | PolicyDirection::Forward => Direction::In,
    }
}

fn policy_name(policy: &Policy) -> String {
    let direction = match policy.direction {
        PolicyDirection::Out => "out",
        PolicyDirection::In => "in",
        PolicyDirection::Forward => "fwd",
    };
    format!("{PREFIX}{direction}:{}", policy.index)
}

/// The policy's name in messages.
fn subject(policy: &Policy) -> String {
    let (name, selector) = (policy_name(policy), &policy.selector);
    format!("policy {name} ({} to {})", selector.source, selector.destination)
}

fn protects(template: &Template) -> Result<(), Why> {
    match template {
        Template { protocol, .. } if *protocol != ESP => Err(Why::Protocol(*protocol)),
        Template { mode: Mode::Transport, .. } => Err(Why::Transport),
        Template { mode: Mode::Other(mode), .. } => Err(Why::Mode(*mode)),
        Template { optional: true, .. } => Err(Why::Optional),
        Template { .. } => Ok(()),
    }
}
