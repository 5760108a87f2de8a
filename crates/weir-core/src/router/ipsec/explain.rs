//! Which layer of an SPD answers about a packet, and what a colder one would say: for people who trace.
//!
//! Promises: asks as the data path would and changes nothing, neither caches nor counters. A layer that
//! contradicts the ordered scan is named: that is a defect.

use std::iter::once;

use crate::ipsec::Spd;
use crate::ipsec::spd::{Cached, Explained, Layer, Lookup, PolicyIndex, Question};

/// What a packet is given, with the oracle's part in it.
pub(crate) fn given(question: Question<'_>, said: &Explained) -> Option<PolicyIndex> {
    if question.oracle { said.scanned } else { said.answer() }
}

/// The answer with who gave it, as `web: bypass (rule 12, by the classifier; …)`.
pub(crate) fn answer(question: Question<'_>, packet: &[u8]) -> String {
    let Some(said) = Lookup::explain(question, packet) else {
        return "nothing a policy can be asked about".into();
    };
    let spd = question.spd;
    let rules = spd.rules(question.direction);
    let answer = said.answer();
    let mut notes: Vec<String> = Vec::new();
    // Where a whole batch is the first rule's nobody else is asked, and a trace is of a batch of one.
    let first = rules.first_for_all(once(packet), 0).is_some();
    let outside = !first && rules.outside_all(once(packet)).is_some();
    let by = match said.cached {
        _ if first => "which is asked first".to_string(),
        _ if outside => "for its addresses are outside of all rules before".to_string(),
        Cached::Hit(_) => "by the flow cache".into(),
        _ => format!("by the {}", name(said.colder)),
    };
    // Of an answer that is not the scan's, the rule is not known.
    let number = rules.number(&said.flow).filter(|_| answer == said.scanned);
    notes.push(number.map_or(by.clone(), |number| format!("rule {number}, {by}")));
    if !first && !outside {
        notes.extend(why_not_cached(said.cached).map(String::from));
    }
    if !(first || outside) || answer != said.scanned {
        notes.extend(colder(spd, &said, answer));
    }
    if question.oracle {
        notes.push("the oracle is on: the ordered scan's answer goes".into());
    }
    format!("{} ({})", named(spd, given(question, &said)), notes.join("; "))
}

/// What the layers say that were not needed.
fn colder(spd: &Spd, said: &Explained, answer: Option<PolicyIndex>) -> Vec<String> {
    let mut layers = vec![("ordered scan", said.scanned)];
    if matches!(said.cached, Cached::Hit(_)) && said.colder == Layer::Classifier {
        layers.insert(0, (name(said.colder), said.found));
    }
    if said.colder != Layer::Classifier && !matches!(said.cached, Cached::Hit(_)) {
        // The scan itself has answered.
        return Vec::new();
    }
    if layers.iter().all(|&(_, other)| other == answer) {
        let names: Vec<_> = layers.iter().map(|&(name, _)| name).collect();
        let verb = if names.len() > 1 { "say" } else { "says" };
        return vec![format!("the {} {verb} the same", names.join(" and the "))];
    }
    let other = |&(name, other): &(&str, _)| match other == answer {
        true => format!("the {name} says the same"),
        false => format!("the {name} says {}, which is a defect of weir", named(spd, other)),
    };
    layers.iter().map(other).collect()
}

fn why_not_cached(cached: Cached) -> Option<&'static str> {
    match cached {
        Cached::Off | Cached::Hit(_) => None,
        Cached::Stale(_) => Some("the cache has it by rules that have changed since"),
        Cached::Collision => Some("the cache has another flow there"),
        Cached::Empty => Some("the cache has nothing there"),
        Cached::Busy => Some("the cache is being written to there"),
    }
}

fn name(layer: Layer) -> &'static str {
    match layer {
        Layer::Classifier => "classifier",
        Layer::Auto | Layer::Scan => "ordered scan",
    }
}

/// A policy and what it does, or what is done for want of one.
fn named(spd: &Spd, policy: Option<PolicyIndex>) -> String {
    match policy.and_then(|index| spd.policy(index)) {
        Some(policy) => format!("{}: {}", policy.name, policy.action),
        None => format!("no policy matches: {}", spd.default),
    }
}
