//! Where a route leads: into this router's ports, nowhere, or by the kernel.
//!
//! Promises: routes that do the same share one [`Action`], judged once; a million routes over ten gateways cost ten
//! judgements when a link changes.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use super::MirrorLink;
use crate::state::{MULTIPATH_HOPS_MAX, NextHopSpec, Via, WEIGHT_MAX};
use crate::wire::rtnetlink::{Hop, NextHopKind, Protocol, RouteKind};

/// What a route does, before it is known what its next hops are here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    Hops(Vec<Hop>),
    /// A next-hop object.
    Object(u32),
    Discard(RouteKind),
    Keep(Why),
}

/// Where it leads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    Via(Arc<Via>),
    Kernel(Why),
}

/// Why a route is left to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// A next hop is on this link, which is no port.
    Link(u32),
    /// MPLS, SRv6 or another encapsulation.
    Encapsulation,
    /// An address of the kernel, or a broadcast or anycast one.
    Local,
    /// The configuration leaves out routes of this protocol.
    Filtered(Protocol),
    /// A prefix with a route for some TOS.
    Tos,
    /// A prefix with a route for some sources.
    Source,
    /// The search goes on in another table.
    Throw,
    /// What a VRF's table without default route does not have; the search goes on in another table.
    LackingInVrf,
    /// No route: a destination that a policy rule names.
    Rule,
    /// A route in a destination that a policy rule names.
    InRule,
    /// A next hop without gateway beside others, on a port with neighbours.
    OnLinkAmongSeveral,
    /// More next hops than a route of this router has.
    TooManyHops(usize),
    /// A kind of route or next-hop object that this router does not know.
    Kind,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Link(index) => write!(f, "it leads by interface {index}, which is no port"),
            Why::Encapsulation => f.write_str("it encapsulates"),
            Why::Local => f.write_str("it is the kernel's own"),
            Why::Filtered(protocol) => write!(f, "routes of {protocol} are filtered out"),
            Why::Tos => f.write_str("it depends on TOS"),
            Why::Source => f.write_str("it depends on the source"),
            Why::Throw => f.write_str("it leads to another table"),
            Why::LackingInVrf => f.write_str(
                "the VRF has no default route, so the kernel looks further; `unreachable default` in its table ends that",
            ),
            Why::Rule => f.write_str("a policy rule decides about it"),
            Why::InRule => f.write_str("it lies in a destination that a policy rule decides about"),
            Why::OnLinkAmongSeveral => f.write_str("one of its next hops has no gateway"),
            Why::TooManyHops(n) => {
                write!(f, "it has {n} next hops, at most {MULTIPATH_HOPS_MAX} are done here")
            }
            Why::Kind => f.write_str("it is of a kind unknown here"),
        }
    }
}

#[derive(Debug)]
struct SharedAction {
    action: Arc<Action>,
    routes: u32,
    /// None: no next hop is left.
    outcome: Option<Outcome>,
}

/// Every action in use, each once.
#[derive(Debug, Default)]
pub(super) struct Vias {
    slots: Vec<Option<SharedAction>>,
    ids: HashMap<Arc<Action>, u32>,
    free: Vec<u32>,
}

type Links = HashMap<u32, MirrorLink>;
type Objects = HashMap<u32, (NextHopKind, u8)>;

impl Vias {
    pub(super) fn acquire(&mut self, action: Action, links: &Links, objects: &Objects) -> u32 {
        if let Some(&id) = self.ids.get(&action) {
            if let Some(slot) = &mut self.slots[id as usize] {
                slot.routes += 1;
            }
            return id;
        }
        let action = Arc::new(action);
        let slot =
            SharedAction { action: action.clone(), routes: 1, outcome: classify(&action, links, objects) };
        let id = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[id as usize] = Some(slot);
        self.ids.insert(action, id);
        id
    }

    pub(super) fn release(&mut self, id: u32) {
        let Some(slot) = &mut self.slots[id as usize] else { return };
        slot.routes -= 1;
        if slot.routes == 0 {
            self.ids.remove(&slot.action);
            self.slots[id as usize] = None;
            self.free.push(id);
        }
    }

    /// Judges every action again; those that lead elsewhere now.
    pub(super) fn classify_all(&mut self, links: &Links, objects: &Objects) -> HashSet<u32> {
        let mut changed = HashSet::new();
        for (id, slot) in self.slots.iter_mut().enumerate() {
            let Some(slot) = slot else { continue };
            let outcome = classify(&slot.action, links, objects);
            if outcome != slot.outcome {
                slot.outcome = outcome;
                changed.insert(id as u32);
            }
        }
        changed
    }

    /// Judges what leads by one next-hop object again; the action where it leads elsewhere now.
    pub(super) fn classify_object(&mut self, object: u32, links: &Links, objects: &Objects) -> Option<u32> {
        let id = *self.ids.get(&Action::Object(object))?;
        let slot = self.slots[id as usize].as_mut()?;
        let outcome = classify(&slot.action, links, objects);
        if outcome == slot.outcome {
            return None;
        }
        slot.outcome = outcome;
        Some(id)
    }

    fn slot(&self, id: u32) -> Option<&SharedAction> {
        self.slots.get(id as usize)?.as_ref()
    }

    pub(super) fn action(&self, id: u32) -> Option<&Action> {
        self.slot(id).map(|s| &*s.action)
    }

    pub(super) fn outcome(&self, id: u32) -> Option<&Outcome> {
        self.slot(id)?.outcome.as_ref()
    }

    /// Whether every next hop of `part` is one of `whole`'s.
    pub(super) fn is_part(&self, part: u32, whole: u32) -> bool {
        let (Some(Action::Hops(part)), Some(Action::Hops(whole))) = (self.action(part), self.action(whole))
        else {
            return false;
        };
        part.iter().all(|p| whole.iter().any(|w| is_same(p, w)))
    }

    /// Whether a route does the same over the same next hops, whatever else was told of them.
    pub(super) fn is_alike(&self, id: u32, action: &Action) -> bool {
        let (Some(Action::Hops(own)), Action::Hops(other)) = (self.action(id), action) else { return false };
        own.len() == other.len() && own.iter().all(|a| other.iter().any(|b| is_same(a, b)))
    }

    /// The next hops of a route without `gone`; none where that is not part of it.
    pub(super) fn without(&self, id: u32, gone: &[Hop]) -> Option<Vec<Hop>> {
        let Some(Action::Hops(hops)) = self.action(id) else { return None };
        let left: Vec<Hop> = hops.iter().filter(|h| !gone.iter().any(|g| is_same(g, h))).cloned().collect();
        (left.len() < hops.len()).then_some(left)
    }
}

/// Whether two hops are equal but for the weight, which a hop of its own does not have.
fn is_same(a: &Hop, b: &Hop) -> bool {
    (a.link, a.gateway) == (b.link, b.gateway)
}

fn classify(action: &Action, links: &Links, objects: &Objects) -> Option<Outcome> {
    match action {
        Action::Keep(why) => Some(Outcome::Kernel(*why)),
        Action::Discard(RouteKind::Blackhole) => Some(Outcome::Via(Arc::new(Via::Blackhole))),
        Action::Discard(RouteKind::Prohibit) => Some(Outcome::Via(Arc::new(Via::Prohibited))),
        Action::Discard(_) => Some(Outcome::Via(Arc::new(Via::Unreachable))),
        Action::Hops(hops) => over(hops, links),
        Action::Object(id) => match &objects.get(id)?.0 {
            NextHopKind::Hop(hop) => over(std::slice::from_ref(hop), links),
            NextHopKind::Blackhole => Some(Outcome::Via(Arc::new(Via::Blackhole))),
            NextHopKind::Group(members) => group(members, links, objects),
            NextHopKind::Unknown => Some(Outcome::Kernel(Why::Kind)),
        },
    }
}

fn group(members: &[(u32, u32)], links: &Links, objects: &Objects) -> Option<Outcome> {
    let mut hops = Vec::new();
    for (id, weight) in members {
        match objects.get(id).map(|o| &o.0) {
            Some(NextHopKind::Hop(hop)) => hops.push(Hop { weight: *weight, ..hop.clone() }),
            // The kernel takes a blackhole in a group only alone.
            Some(NextHopKind::Blackhole) => return Some(Outcome::Via(Arc::new(Via::Blackhole))),
            // A group of groups, which the kernel refuses.
            Some(_) => return Some(Outcome::Kernel(Why::Kind)),
            None => {}
        }
    }
    over(&hops, links)
}

/// Next hops that the kernel uses, all of them on ports.
fn over(hops: &[Hop], links: &Links) -> Option<Outcome> {
    let up = |h: &&Hop| !h.dead && links.get(&h.link).is_none_or(|l| l.up);
    let hops: Vec<&Hop> = hops.iter().filter(up).collect();
    let most = hops.iter().map(|h| h.weight).max()?;
    if hops.len() > MULTIPATH_HOPS_MAX {
        return Some(Outcome::Kernel(Why::TooManyHops(hops.len())));
    }
    let mut specs: Vec<NextHopSpec> = Vec::new();
    for hop in &hops {
        let Some(port) = links.get(&hop.link).and_then(|l| l.port.as_ref()) else {
            return Some(Outcome::Kernel(Why::Link(hop.link)));
        };
        if hop.encapsulates {
            return Some(Outcome::Kernel(Why::Encapsulation));
        }
        if hop.gateway.is_none() && port.ethernet && hops.len() > 1 {
            return Some(Outcome::Kernel(Why::OnLinkAmongSeveral));
        }
        let weight = scaled(hop.weight, most);
        // Far ends of a device without neighbours are all one.
        let gateway = hop.gateway.filter(|_| port.ethernet);
        let spec = NextHopSpec { gateway, port: Some(port.name.to_string()), weight };
        match specs.iter_mut().find(|s| (s.gateway, &s.port) == (spec.gateway, &spec.port)) {
            Some(known) => known.weight = known.weight.saturating_add(weight).min(WEIGHT_MAX),
            None => specs.push(spec),
        }
    }
    specs.sort();
    if let [only] = &mut specs[..] {
        only.weight = 1;
    }
    Some(Outcome::Via(Arc::new(Via::NextHops(specs))))
}

/// A weight within what buckets are made for, in proportion to the largest.
fn scaled(weight: u32, most: u32) -> u8 {
    let ceiling = u32::from(WEIGHT_MAX);
    if most <= ceiling { weight as u8 } else { (u64::from(weight) * 64 / u64::from(most)).max(1) as u8 }
}
