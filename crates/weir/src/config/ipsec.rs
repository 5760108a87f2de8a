//! `[ipsec]`, `[[sa]]`, `[[tunnel]]`, `[[spd]]` and `[[policy]]`: the gateway's part of the file.
//!
//! Promises: an SA is read whole or not at all; what names another entry keeps its place, so that a wrong
//! name is shown where it stands. Keys are in a file of their own ([`super::keys`]); here are their names.
//! Refuses: algorithms that are no suite, keys that are missing or of another length, one key for two SAs
//! of a cipher whose nonces would repeat.

pub mod lifetime;
pub mod lookup;
pub mod policy;
pub mod sa;
pub mod selector;
pub mod spelling;
pub mod state;

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::ops::Range;

use weir_core::ipsec::cipher::{KeyLength, Keys, Secret};
use weir_core::ipsec::sa::Direction;
use weir_core::ipsec::spd::LookupSpec;
use weir_core::state::{AddressSpec, IpsecElement, IpsecSpec, TunnelSpec};
use weir_core::tables::{Owner, ReversePath};

pub use lookup::{Ciphers, Lookup};
pub use policy::{Policy, Spd, Tunnel};
pub use sa::Sa;
pub use state::State;

use super::Placed;
use super::keys::{Keyring, NAME_MAX, name_fits};
use super::read::{Value, alternatives};
use super::source::{Complaints, nearest};

/// Everything the file says of IPsec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ipsec {
    /// The keys file as written: relative to the configuration's folder.
    pub keys: Option<Placed<String>>,
    pub lookup: Lookup,
    pub state: State,
    pub ciphers: Ciphers,
    pub sas: Vec<Sa>,
    pub tunnels: Vec<Tunnel>,
    pub spds: Vec<Spd>,
    pub policies: Vec<Policy>,
}

/// The name of an SA, a tunnel, an SPD or a policy, or of a key.
pub(super) fn name(value: &Value<'_>, example: &str, complaints: &mut Complaints) -> Option<Placed<String>> {
    let text = value.text("a name", &format!("name = \"{example}\""), complaints)?;
    if !name_fits(text) {
        value.refuse(
            format!("1 to {NAME_MAX} letters, digits, `_`, `-` or `.`"),
            format!("write a short name such as `\"{example}\"`"),
            complaints,
        );
        return None;
    }
    Some(Placed::new(text.to_owned(), value.span.clone()))
}

/// One name or a list of them.
pub(super) fn names(value: &Value<'_>, example: &str, complaints: &mut Complaints) -> Vec<Placed<String>> {
    value.one_or_many().iter().filter_map(|item| name(item, example, complaints)).collect()
}

impl Ipsec {
    pub fn is_empty(&self) -> bool {
        self.sas.is_empty() && self.tunnels.is_empty() && self.spds.is_empty() && self.policies.is_empty()
    }

    /// The policies of an SPD, in their order.
    pub fn policies_of<'a>(&'a self, spd: &'a str) -> impl Iterator<Item = &'a Policy> {
        self.policies.iter().filter(move |p| p.spd.value == spd)
    }

    /// Where an element of [`Ipsec::spec`] stands.
    pub fn span_of(&self, at: IpsecElement) -> Range<usize> {
        let tunnel = |i: usize| self.tunnels.get(i);
        let found = match at {
            IpsecElement::All => self.keys.as_ref().map(|k| &k.span),
            IpsecElement::Sa(i) => self.sas.get(i).map(|s| &s.name.span),
            IpsecElement::Tunnel(i) => tunnel(i).map(|t| &t.name.span),
            IpsecElement::TunnelAddress { tunnel: i, address } => {
                tunnel(i).and_then(|t| t.addresses.get(address)).map(|a| &a.span)
            }
            IpsecElement::Lookup(way) => return self.lookup.span(way),
            IpsecElement::Spd(i) => self.spds.get(i).map(|s| &s.name.span),
            IpsecElement::Policy { spd, policy } => {
                let spd = self.spds.get(spd).map(|s| s.name.value.as_str());
                spd.and_then(|spd| self.policies_of(spd).nth(policy)).map(|p| &p.name.span)
            }
        };
        found.cloned().unwrap_or_default()
    }

    /// What the core is to build, with the keys `keys` gives each SA.
    pub fn spec(&self, keys: &dyn Fn(&Sa) -> Keys) -> IpsecSpec {
        IpsecSpec {
            sas: self.sas.iter().map(|sa| sa.spec(keys(sa))).collect(),
            tunnels: self.tunnels.iter().map(Tunnel::spec).collect(),
            spds: self.spds.iter().map(|spd| spd.spec(self.policies_of(&spd.name.value))).collect(),
            lookup: self.asked(),
        }
    }

    /// How its SPDs are asked; without one there is nothing to make.
    pub fn asked(&self) -> LookupSpec {
        if self.spds.is_empty() { LookupSpec::default() } else { self.lookup.spec() }
    }

    /// Names that name nothing, or SAs of the other direction.
    pub fn check_names(&self, ports: &[&str], complaints: &mut Complaints) {
        let (out, inbound) = (self.going(Direction::Out), self.going(Direction::In));
        let known = |subject: &str, [named_out, named_in]: [&[Placed<String>]; 2], complaints: &mut _| {
            known_sas((subject, "out", "an outbound sa"), named_out, (&out, &inbound), complaints);
            known_sas((subject, "in", "an inbound sa"), named_in, (&inbound, &out), complaints);
        };
        for tunnel in &self.tunnels {
            let subject = format!("tunnel {}", tunnel.name.value);
            if ports.iter().filter(|p| **p == tunnel.name.value).count() > 1 {
                complaints.add(
                    tunnel.name.span.clone(),
                    format!("{subject}: another port or tunnel has this name; write another one"),
                );
            }
            known(&subject, [&tunnel.out, &tunnel.inbound], complaints);
        }
        let spds: Vec<&str> = self.spds.iter().map(|s| s.name.value.as_str()).collect();
        for policy in &self.policies {
            let subject = format!("policy {}", policy.name.value);
            if !spds.contains(&policy.spd.value.as_str()) {
                no_such("an spd", "spd", &subject, &policy.spd, &spds, complaints);
            }
            known(&subject, [&policy.out, &policy.inbound], complaints);
        }
    }

    /// Names of the SAs of a direction.
    fn going(&self, direction: Direction) -> BTreeSet<&str> {
        let that_way = self.sas.iter().filter(|sa| sa.params.direction == direction);
        that_way.map(|sa| sa.name.value.as_str()).collect()
    }

    /// Complaints about keys: missing, of another length, used twice.
    pub fn check_keys(&self, ring: &Keyring, complaints: &mut Complaints) {
        for sa in &self.sas {
            let mut all_there = true;
            for key in [&sa.key, &sa.integrity_key].into_iter().flatten() {
                all_there &= known_key(sa, key, ring, complaints);
            }
            if all_there && let Err(wrong) = keys_of(sa, ring).check(sa.params.suite) {
                complaints
                    .add(key_span(sa, wrong), format!("sa {}: {}", sa.name.value, key_length(sa, wrong)));
            }
        }
        self.one_key_twice(ring, complaints);
    }

    /// AEAD nonces are a key's salt and a counter: a second SA with the same key repeats them, and with
    /// them the key stream (RFC 4106 2.1).
    fn one_key_twice(&self, ring: &Keyring, complaints: &mut Complaints) {
        let mut first: HashMap<&[u8], &Sa> = HashMap::new();
        for sa in self.sas.iter().filter(|sa| sa.params.suite.encryption().is_aead()) {
            let Some(key) = sa.key.as_ref().and_then(|key| ring.find(&key.value)) else { continue };
            let other = *first.entry(key.bytes()).or_insert(sa);
            if std::ptr::eq(other, sa) {
                continue;
            }
            let at = sa.key.as_ref().map_or(sa.name.span.clone(), |k| k.span.clone());
            complaints.add(
                at,
                format!(
                    "sa {}: its key is that of sa {} too, and two senders with one key undo {}'s encryption; make one of its own with `weir genkey`",
                    sa.name.value,
                    other.name.value,
                    sa.params.suite.encryption().name()
                ),
            );
        }
    }
}

/// Complains of names of SAs that are none, or go the other way: where they stand (subject, key, what is expected), the names,
/// and those of SAs that go this way and the other.
fn known_sas(
    (subject, key, expected): (&str, &str, &str),
    named: &[Placed<String>],
    (this_way, other_way): (&BTreeSet<&str>, &BTreeSet<&str>),
    complaints: &mut Complaints,
) {
    for name in named.iter().filter(|name| !this_way.contains(name.value.as_str())) {
        if other_way.contains(name.value.as_str()) {
            complaints.add(
                name.span.clone(),
                format!(
                    "{subject}: {key}: sa {} goes the other way, expected {expected}; name the other one of the pair",
                    name.value
                ),
            );
        } else {
            let known: Vec<&str> = this_way.iter().copied().collect();
            no_such(expected, "sa", subject, name, &known, complaints);
        }
    }
}

fn no_such(
    what: &str,
    table: &str,
    subject: &str,
    name: &Placed<String>,
    known: &[&str],
    complaints: &mut Complaints,
) {
    let expected = match known {
        [] => format!("{what} of this file"),
        some => alternatives(&some[..some.len().min(8)]),
    };
    let remedy = match nearest(&name.value, known) {
        Some(near) => format!("write `{near}`"),
        None => format!("add a `[[{table}]]` with `name = \"{}\"`", name.value),
    };
    complaints.add(
        name.span.clone(),
        format!("{subject}: there is no {table} `{}`, expected {expected}; {remedy}", name.value),
    );
}

fn known_key(sa: &Sa, key: &Placed<String>, ring: &Keyring, complaints: &mut Complaints) -> bool {
    if ring.find(&key.value).is_some() {
        return true;
    }
    let known: Vec<&str> = ring.names().collect();
    let remedy = match nearest(&key.value, &known) {
        Some(near) => format!("write `{near}`"),
        None => format!("add it with `weir genkey {} --write {}`", key.value, ring.path().display()),
    };
    complaints.add(
        key.span.clone(),
        format!(
            "sa {}: there is no key `{}` in {}; {remedy}",
            sa.name.value,
            key.value,
            ring.path().display()
        ),
    );
    false
}

/// Where the key with the wrong length is named.
fn key_span(sa: &Sa, wrong: KeyLength) -> Range<usize> {
    let key = match wrong {
        KeyLength::Encryption { .. } => &sa.key,
        KeyLength::Integrity { .. } => &sa.integrity_key,
    };
    key.as_ref().map_or(sa.name.span.clone(), |k| k.span.clone())
}

fn key_length(sa: &Sa, wrong: KeyLength) -> String {
    let encryption = sa.params.suite.encryption();
    match wrong {
        KeyLength::Encryption { got, expected } => {
            let parts = match encryption.salt_len() {
                0 => String::new(),
                salt => format!(" ({} key + {salt} salt)", encryption.key_len()),
            };
            format!(
                "key is {got} bytes, {} takes {expected}{parts}; make one with `weir genkey --cipher {}`",
                encryption.name(),
                encryption.name()
            )
        }
        KeyLength::Integrity { got, expected } => {
            let name = sa.params.suite.integrity().map_or("no integrity", |i| i.name());
            format!(
                "integrity key is {got} bytes, {name} takes {expected}; make one with `weir genkey --integrity {name}`"
            )
        }
    }
}

/// The keys of an SA; empty where the file names none.
pub fn keys_of(sa: &Sa, ring: &Keyring) -> Keys {
    let find = |key: &Option<Placed<String>>| {
        key.as_ref().and_then(|k| ring.find(&k.value)).cloned().unwrap_or_else(|| Secret::new(Vec::new()))
    };
    Keys { encryption: find(&sa.key), integrity: find(&sa.integrity_key) }
}

/// Keys of the right lengths and no worth, for judging a file whose keys are not to be read.
pub fn stand_in(sa: &Sa) -> Keys {
    let encryption = sa.params.suite.encryption();
    let of = |len: usize| Secret::new(sa.name.value.bytes().cycle().take(len).collect());
    Keys {
        encryption: of(encryption.key_len() + encryption.salt_len()),
        integrity: of(sa.params.suite.integrity().map_or(0, |i| i.key_len())),
    }
}

impl Tunnel {
    fn spec(&self) -> TunnelSpec {
        TunnelSpec {
            name: self.name.value.clone(),
            out: values(&self.out),
            inbound: values(&self.inbound),
            addresses: self.addresses.iter().map(|a| address(a.value)).collect(),
            mtu: self.mtu.as_ref().map(|m| m.value),
            reverse_path: self.reverse_path,
        }
    }
}

/// No device of the kernel is behind a tunnel: weir answers for its addresses.
fn address((address, prefix_len): (IpAddr, u8)) -> AddressSpec {
    AddressSpec { address, prefix_len, owner: Owner::Weir }
}

fn values(names: &[Placed<String>]) -> Vec<String> {
    names.iter().map(|n| n.value.clone()).collect()
}

/// Words of `rpf`, as ports have them.
pub(super) const RPF: [(&str, ReversePath); 3] =
    [("off", ReversePath::Off), ("strict", ReversePath::Strict), ("loose", ReversePath::Loose)];
