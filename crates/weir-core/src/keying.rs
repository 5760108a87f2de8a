//! The kernel's SAs and policies as this gateway is to have them: messages of XFRM in, IPsec as wished for out.
//!
//! ```text
//! SAs, policies ──────► observe ───────┐                ┌─► merge: SAs and policies of an SPD
//! if_ids of devices ──► set_devices ───┼─► what a key   ┤
//! addresses of ours ──► set_addresses ─┘   daemon wants └─► left: what is not taken, and why
//! ```
//!
//! Promises: a pure function of what was heard, without I/O or clock. Only what has an interface id that no xfrm device
//! has is taken: the kernel looks such SAs up for nobody, so it and weir never number one SA both. A policy whose SAs are
//! not there, or not to be had here, discards. Packets leave by the SA a policy names, or its newest, and may come in by any. Refuses, with the reason ([`Why`]):
//! AH, IPComp, BEET, transport mode, algorithms not had, keys the kernel hides, selectors by interface or user, marks.

mod convert;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;

use crate::ipsec::spd::Action;
use crate::ipsec::{Direction, Params, SaSpec};
use crate::route::Prefix;
use crate::state::{IpsecSpec, Policies, PolicySpec, hidden};
use crate::wire::xfrm::{
    ESP, Mode, News, Policy, PolicyDirection, Sa, SaDirection, SaKey, Selector, Template,
};

/// What names of the kernel's SAs and policies begin with: no name in a file has a colon.
pub const PREFIX: &str = "kernel:";

/// Why something of the kernel's is not taken.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// A policy without interface id: the kernel acts on it.
    NoInterfaceId,
    /// An xfrm device has this interface id.
    Device(u32),
    Marked,
    Selector,
    /// Several templates.
    Bundle,
    Optional,
    Protocol(u8),
    Transport,
    Mode(u8),
    Algorithm(String),
    NoAlgorithm,
    Encapsulation(u16),
    /// The kernel shows zeros instead of the key.
    HiddenKey,
    /// The kernel has used sequence numbers of it.
    Numbered,
    /// Another policy comes before it for all it is about.
    Hidden,
    /// The control side refused it.
    Refused(String),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::NoInterfaceId => f.write_str(
                "it has no interface id, so the kernel acts on it; set `if_id_in` and `if_id_out` of the child in swanctl.conf",
            ),
            Why::Device(id) => write!(f, "an xfrm device has its interface id {id}, so the kernel acts on it"),
            Why::Marked => f.write_str("it is for packets with a mark, which weir does not have"),
            Why::Selector => f.write_str("it selects by interface, user, or a mask of ports"),
            Why::Bundle => f.write_str("it asks for several transformations"),
            Why::Optional => f.write_str("its protection is optional"),
            Why::Protocol(51) => f.write_str("AH is not offered"),
            Why::Protocol(108) => f.write_str("IPComp is not offered"),
            Why::Protocol(number) => write!(f, "protocol {number} is not ESP"),
            Why::Transport => f.write_str("transport mode is for packets of the host itself, which weir does not send"),
            Why::Mode(4) => f.write_str("BEET mode is not offered"),
            Why::Mode(number) => write!(f, "mode {number} is not offered"),
            Why::Algorithm(name) => write!(f, "{name} is not offered"),
            Why::NoAlgorithm => f.write_str("it has no algorithms"),
            Why::Encapsulation(number) => write!(f, "encapsulation {number} is not UDP of RFC 3948"),
            Why::HiddenKey => f.write_str(
                "the kernel tells zeros instead of its key (lockdown or a security policy keeps keys from everybody)",
            ),
            Why::Numbered => {
                f.write_str("the kernel has used sequence numbers of it; another is asked for by a soft expiry")
            }
            Why::Hidden => f.write_str("another policy comes before it for all it is about"),
            Why::Refused(why) => f.write_str(why),
        }
    }
}

/// Something of the kernel's that is not taken.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Left {
    pub subject: String,
    pub why: Why,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.subject, self.why)
    }
}

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
                let known =
                    Known { it: *policy, order: 0, epoch: self.epoch, numbered: Numbered::No, ahead: None };
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
        let (order, numbered, ahead) =
            self.sas.get(&key).map_or((self.order, used, None), |k| (k.order, k.numbered, k.ahead));
        // With less than it was given it is another, whose beginning was not heard.
        let ahead = ahead.filter(|&ahead| sa.replay.is_none_or(|r| r.sent.max(r.received) >= ahead));
        let before = self.sas.insert(key, Known { it: sa, order, epoch, numbered, ahead });
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

    /// The interface ids of xfrm devices.
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
        self.sas.values().filter(|k| k.numbered != Numbered::No && ours(&k.it)).map(|k| k.it.key).collect()
    }

    /// SAs that had numbers when they were heard of first and that no device has: they are to be had where those numbers are
    /// weir's own ([`Keying::take_back`]).
    pub fn used_before(&self) -> Vec<UsedBefore> {
        self.without_device(|known| known.numbered == Numbered::Before)
    }

    /// SAs nobody was heard to use and the kernel was given no number for: one that was made again may have been used here.
    pub fn not_ahead(&self) -> Vec<UsedBefore> {
        self.without_device(|known| known.numbered == Numbered::No && known.ahead.is_none())
    }

    fn without_device(&self, which: impl Fn(&Known<Sa>) -> bool) -> Vec<UsedBefore> {
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
                Ok(spec) => wanted.policies.push(spec),
                Err(why) => wanted.left.push(Left { subject: subject(policy), why }),
            }
        }
        let used: HashSet<&String> =
            wanted.policies.iter().flat_map(|p| p.out.iter().chain(&p.inbound)).collect();
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
            let Known { it: sa, order, numbered, .. } = &self.sas[&key];
            // Of others their policies are said to be left.
            if sa.if_id == 0 || self.devices.contains(&sa.if_id) {
                continue;
            }
            let spec = match self.refused.get(&name) {
                Some(why) => Err(Why::Refused(why.clone())),
                None if *numbered != Numbered::No => Err(Why::Numbered),
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

/// Puts what is wanted into an SPD, behind the file's policies and in the place of what was the kernel's before; nothing of
/// the kernel's where there is no such SPD. What others hide is returned.
pub fn merge(spec: &IpsecSpec, spd: &str, wanted: &Wanted) -> (IpsecSpec, Vec<Left>) {
    let mut spec = spec.clone();
    spec.sas.retain(|sa| !sa.name.starts_with(PREFIX));
    let Some(at) = spec.spds.iter().position(|s| s.name == spd) else { return (spec, Vec::new()) };
    let mut all = Policies::default();
    let own = spec.spds[at].policies.iter().filter(|p| !p.name.starts_with(PREFIX));
    own.for_each(|policy| all.push(policy.clone()));
    let first = all.len();
    wanted.policies.iter().for_each(|policy| all.push(policy.clone()));
    let (mut left, mut kept) = (Vec::new(), Policies::default());
    for (i, (policy, by)) in all.iter().zip(hidden(&all)).enumerate() {
        match by {
            Some(_) if i >= first => {
                left.push(Left { subject: format!("policy {}", policy.name), why: Why::Hidden });
            }
            _ => kept.push(policy.clone()),
        }
    }
    let used: HashSet<&String> = kept.iter().flat_map(|p| p.out.iter().chain(&p.inbound)).collect();
    let sas: Vec<SaSpec> = wanted.sas.iter().filter(|sa| used.contains(&sa.name)).cloned().collect();
    spec.sas.extend(sas);
    spec.spds[at].policies = kept;
    (spec, left)
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
