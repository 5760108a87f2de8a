//! Replacing SAs without losing a packet: what an operator's rekey and a key exchange both do.
//!
//! ```text
//! install_inbound   the new inbound SA is accepted beside the old        then tell the peer
//! switch_outbound   packets leave by the new outbound SA                 once the peer is ready
//! retire_inbound    the old inbound SA drains, then is gone              once the peer has moved
//! ```
//!
//! Promises: each step does what [`Control::apply`] does with a wish that differs in that much, and costs
//! nothing a route costs; refused steps change nothing; SAs are found by name, so one of many a tunnel or
//! policy has (one a worker, RFC 9611) is replaced in its place. [`Control::rekey`] takes all three steps
//! in one snapshot, which loses nothing where the peer accepts both SAs of its own: ours drains for
//! [`super::DRAIN`].
//!
//! This is where automatic keying plugs in: it needs these steps, [`Control::take_sa_events`] to know
//! when, and nothing of the data path. Refuses to make tunnels and policies: the configuration has those.

use super::Control;
use crate::ipsec::SaSpec;
use crate::state::{
    Action, Element, Error, IpsecElement, IpsecSpec, PolicySpec, UseProblem, check_ipsec, diff_ipsec, nearest,
};
use crate::time::Nanos;

/// New SAs for old, by the names of the old; what is `None` stays.
#[derive(Clone, Debug, Default)]
pub struct Rekey {
    pub inbound: Option<(String, SaSpec)>,
    pub outbound: Option<(String, SaSpec)>,
}

impl Control {
    /// Accepts packets by `new` wherever those by `beside` are accepted.
    pub fn install_inbound(
        &mut self,
        now: Nanos,
        beside: &str,
        new: SaSpec,
    ) -> Result<Vec<Action>, Vec<Error>> {
        self.change_sas(now, &[beside], |spec| {
            name_instead(spec, beside, &[beside, &new.name]);
            spec.sas.push(new);
        })
    }

    /// Sends by `new` what was sent by `old`, which is gone.
    pub fn switch_outbound(&mut self, now: Nanos, old: &str, new: SaSpec) -> Result<Vec<Action>, Vec<Error>> {
        self.change_sas(now, &[old], |spec| replace(spec, old, new))
    }

    /// Stops naming an inbound SA: it drains where it was named.
    pub fn retire_inbound(&mut self, now: Nanos, sa: &str) -> Result<Vec<Action>, Vec<Error>> {
        self.change_sas(now, &[sa], |spec| {
            name_instead(spec, sa, &[]);
            spec.sas.retain(|s| s.name != sa);
        })
    }

    /// All steps at once.
    pub fn rekey(&mut self, now: Nanos, rekey: Rekey) -> Result<Vec<Action>, Vec<Error>> {
        let both = [&rekey.inbound, &rekey.outbound];
        let old: Vec<String> = both.into_iter().flatten().map(|(old, _)| old.clone()).collect();
        let old: Vec<&str> = old.iter().map(String::as_str).collect();
        self.change_sas(now, &old, |spec| {
            for (old, new) in rekey.inbound.into_iter().chain(rekey.outbound) {
                replace(spec, &old, new);
            }
        })
    }

    /// Forgets, in memory and on disk, what an SA used that is gone and whose keys are gone for good, as an IKE daemon's are:
    /// records of them would fill up. An SA that is there with these keys is left alone.
    pub fn forget_sa(&mut self, gone: &SaSpec) {
        if self.desired.ipsec.sas.iter().all(|sa| sa.keys != gone.keys) {
            self.gateway.forget(gone);
        }
    }

    /// Makes IPsec what `edit` makes of it: SAs and the lists that name them, nothing else.
    fn change_sas(
        &mut self,
        now: Nanos,
        old: &[&str],
        edit: impl FnOnce(&mut IpsecSpec),
    ) -> Result<Vec<Action>, Vec<Error>> {
        let sas = &self.desired.ipsec.sas;
        let unknown = old.iter().filter(|name| !sas.iter().any(|s| s.name == **name));
        let errors: Vec<Error> = unknown.map(|name| not_there(name, sas)).collect();
        if !errors.is_empty() {
            return Err(errors);
        }
        let mut next = self.desired.ipsec.clone();
        edit(&mut next);
        let before = std::mem::replace(&mut self.desired.ipsec, next);
        let mut errors = check_ipsec(&self.desired);
        self.gateway.check(&self.desired.ipsec, &mut errors);
        let next = &self.desired.ipsec;
        let prepared = if errors.is_empty() { self.gateway.prepare(next) } else { Err(errors) };
        let adopted = prepared.map(|prepared| {
            let actions = diff_ipsec(&before, next);
            self.gateway.commit(now, &before, next, prepared, &actions);
            actions
        });
        if adopted.is_err() {
            self.desired.ipsec = before;
            return adopted;
        }
        self.uses = None;
        self.watch_again(now);
        // Another suite may leave another MTU.
        self.fit_tunnels(now);
        adopted
    }
}

/// Puts `new` where `old` was named, and in its place.
fn replace(spec: &mut IpsecSpec, old: &str, new: SaSpec) {
    name_instead(spec, old, &[&new.name]);
    spec.sas.retain(|s| s.name != old);
    spec.sas.push(new);
}

/// Puts `names` where `old` is named.
fn name_instead(spec: &mut IpsecSpec, old: &str, names: &[&str]) {
    let instead = |list: &mut Vec<String>| {
        if let Some(at) = list.iter().position(|name| name == old) {
            list.splice(at..=at, names.iter().map(|name| name.to_string()));
        }
    };
    spec.tunnels.iter_mut().flat_map(|t| [&mut t.out, &mut t.inbound]).for_each(instead);
    for spd in &mut spec.spds {
        // The others stay shared with the wish before.
        let named = |p: &PolicySpec| p.out.iter().chain(&p.inbound).any(|name| name == old);
        let all = spd.policies.iter().enumerate().filter(|(_, p)| named(p)).map(|(at, _)| at);
        for at in all.collect::<Vec<_>>() {
            let policy = &mut spd.policies[at];
            [&mut policy.out, &mut policy.inbound].into_iter().for_each(instead);
        }
    }
}

fn not_there(name: &str, sas: &[SaSpec]) -> Error {
    let nearest = nearest(name, sas.iter().map(|s| s.name.as_str())).map(str::to_string);
    Error {
        at: Element::Ipsec(IpsecElement::All),
        subject: "rekey".into(),
        problem: UseProblem::Unknown { sa: name.into(), nearest }.into(),
    }
}
