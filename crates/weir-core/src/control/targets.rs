//! What routes lead to: the values of the route tables.
//!
//! ```text
//! routes ──many to one──► value ─► meaning (next hops by name) ─► hops (port, adjacency) ─► Target
//! ```
//!
//! Promises: routes with the same next hops share one value, so that a link change touches one target,
//! not a million routes. A group keeps its number of buckets while next hops come and go: only flows of
//! a next hop that left, or came back, move. Refuses recursive next hops.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

use super::Wiring;
use super::adjacencies::Adjacencies;
use crate::id::{AdjacencyId, PortId};
use crate::mirror;
use crate::route::NO_ROUTE;
use crate::state::{NextHopSpec, Via};
use crate::tables::Target;
use crate::time::Nanos;
use crate::verdict::Reason;
use crate::wire::rtnetlink::Protocol;

/// Buckets a group has at least, so that what a lost next hop carried spreads evenly over the rest:
/// with 64, three equal next hops stay within 1/22 of each other, and after one left, within 1/33.
const BUCKETS_MIN: usize = 64;

/// The next hop of a point-to-point port: whoever is at the other end.
pub(super) const FAR_END: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// What a value stands for, before ids: what routes share it by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Meaning {
    /// A static route; next hops in canonical order.
    Static(Via),
    /// A route of the kernel, and whose it is there.
    Mirrored(mirror::Outcome, Protocol),
    /// The network of a port.
    Connected(PortId),
    Local(PortId),
    Broadcast(PortId),
}

impl Meaning {
    /// What the route of a file or of the kernel says.
    pub(super) fn via(&self) -> Option<&Via> {
        match self {
            Meaning::Static(via) => Some(via),
            Meaning::Mirrored(mirror::Outcome::Via(via), _) => Some(via),
            _ => None,
        }
    }
}

/// A next hop, found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hop {
    pub(super) port: PortId,
    /// `None`: the destination itself is the next hop.
    pub(super) adjacency: Option<AdjacencyId>,
    pub(super) weight: u8,
    pub(super) up: bool,
}

#[derive(Debug)]
struct TargetEntry {
    meaning: Meaning,
    routes: u32,
    /// Parallel to the meaning's next hops; `None` where the port or the network is gone.
    hops: Vec<Option<Hop>>,
    outcome: Outcome,
}

/// What a value leads to now.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    /// No next hop is left: its routes are withdrawn.
    Dead,
    Target(Target),
    Multipath(Vec<AdjacencyId>),
}

#[derive(Debug)]
pub(super) struct Targets {
    slots: Vec<Option<TargetEntry>>,
    values: HashMap<Meaning, u32>,
    free: Vec<u32>,
    pub(super) changed: bool,
}

impl Default for Targets {
    fn default() -> Self {
        // Value 0 is NO_ROUTE and means nothing else.
        Targets { slots: vec![None], values: HashMap::new(), free: Vec::new(), changed: true }
    }
}

impl Targets {
    /// The value of a meaning, for one more route.
    pub(super) fn acquire(
        &mut self,
        now: Nanos,
        meaning: Meaning,
        wiring: Wiring,
        all: &mut Adjacencies,
    ) -> u32 {
        if let Some(&value) = self.values.get(&meaning) {
            if let Some(slot) = &mut self.slots[value as usize] {
                slot.routes += 1;
            }
            return value;
        }
        let slot =
            TargetEntry { meaning: meaning.clone(), routes: 1, hops: Vec::new(), outcome: Outcome::Dead };
        let value = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[value as usize] = Some(slot);
        self.values.insert(meaning, value);
        self.refresh(now, value, wiring, all);
        self.changed = true;
        value
    }

    /// One route less; a value without routes may be used for another meaning in the next snapshot.
    pub(super) fn release(&mut self, now: Nanos, value: u32, all: &mut Adjacencies) {
        let Some(slot) = &mut self.slots[value as usize] else { return };
        slot.routes -= 1;
        if slot.routes > 0 {
            return;
        }
        let ids: Vec<_> = slot.hops.iter().flatten().filter_map(|h| h.adjacency).collect();
        self.values.remove(&slot.meaning);
        self.slots[value as usize] = None;
        self.free.push(value);
        self.changed = true;
        ids.into_iter().for_each(|id| all.release_hop(now, id));
    }

    /// Finds the next hops of a value again; `true` when its routes have to come or go.
    fn refresh(&mut self, now: Nanos, value: u32, wiring: Wiring, all: &mut Adjacencies) -> bool {
        let Some(slot) = &mut self.slots[value as usize] else { return false };
        // New ones are taken before old ones are given back, so that an id in both stays.
        let hops: Vec<Option<Hop>> = match (slot.meaning.via(), &slot.meaning) {
            (Some(Via::NextHops(specs)), _) => {
                specs.iter().map(|s| find(now, s, specs.len() > 1, wiring, all)).collect()
            }
            (None, Meaning::Connected(port)) => vec![on_link(now, *port, 1, false, wiring, all)],
            _ => Vec::new(),
        };
        let old = std::mem::replace(&mut slot.hops, hops);
        for id in old.iter().flatten().filter_map(|h| h.adjacency) {
            all.release_hop(now, id);
        }
        let outcome = outcome(&slot.meaning, &slot.hops);
        let flipped = (outcome == Outcome::Dead) != (slot.outcome == Outcome::Dead);
        self.changed |= outcome != slot.outcome;
        slot.outcome = outcome;
        flipped
    }

    /// Finds every next hop again; the values whose routes have to come or go.
    pub(super) fn refresh_all(&mut self, now: Nanos, wiring: Wiring, all: &mut Adjacencies) -> Vec<bool> {
        (0..self.slots.len()).map(|v| self.refresh(now, v as u32, wiring, all)).collect()
    }

    /// Whether routes with this value belong in the table.
    pub(super) fn alive(&self, value: u32) -> bool {
        let slot = self.slots.get(value as usize).and_then(Option::as_ref);
        slot.is_some_and(|s| s.outcome != Outcome::Dead)
    }

    pub(super) fn meaning(&self, value: u32) -> Option<&Meaning> {
        Some(&self.slots.get(value as usize)?.as_ref()?.meaning)
    }

    /// The next hops of a value, parallel to its meaning's.
    pub(super) fn hops(&self, value: u32) -> &[Option<Hop>] {
        let slot = self.slots.get(value as usize).and_then(Option::as_ref);
        slot.map_or(&[], |s| &s.hops)
    }

    /// `Tables::targets` and `Tables::multipath`.
    pub(super) fn snapshot(&self) -> (Vec<Target>, Vec<AdjacencyId>) {
        let mut multipath = Vec::new();
        let target = |slot: &Option<TargetEntry>| match slot.as_ref().map(|s| &s.outcome) {
            None | Some(Outcome::Dead) => Target::NoRoute,
            Some(Outcome::Target(target)) => *target,
            Some(Outcome::Multipath(buckets)) => {
                let first = multipath.len() as u32;
                multipath.extend_from_slice(buckets);
                Target::Multipath { first, len: buckets.len() as u32 }
            }
        };
        let targets: Vec<Target> = self.slots.iter().map(target).collect();
        debug_assert_eq!(targets[NO_ROUTE as usize], Target::NoRoute);
        (targets, multipath)
    }
}

fn find(now: Nanos, spec: &NextHopSpec, several: bool, wiring: Wiring, all: &mut Adjacencies) -> Option<Hop> {
    let named = spec.port.as_ref().map(|name| wiring.ports.id(name));
    match (spec.gateway, named) {
        (None, named) => on_link(now, named??, spec.weight, several, wiring, all),
        (Some(gateway), named) => {
            let id = match named {
                Some(id) => id?,
                None => wiring.ports.toward(wiring.desired, gateway)?,
            };
            let port = wiring.ports.port(id)?;
            let next_hop = if port.point_to_point { FAR_END } else { gateway };
            let adjacency = all.acquire_hop(now, id, next_hop);
            Some(Hop { port: id, adjacency: Some(adjacency), weight: spec.weight, up: port.up })
        }
    }
}

/// A port without a gateway: its far end, or whoever has the destination address. Among several next
/// hops only the former can be a bucket.
fn on_link(
    now: Nanos,
    id: PortId,
    weight: u8,
    several: bool,
    wiring: Wiring,
    all: &mut Adjacencies,
) -> Option<Hop> {
    let port = wiring.ports.port(id)?;
    if !port.point_to_point {
        return (!several).then_some(Hop { port: id, adjacency: None, weight, up: port.up });
    }
    let adjacency = all.acquire_hop(now, id, FAR_END);
    Some(Hop { port: id, adjacency: Some(adjacency), weight, up: port.up })
}

fn outcome(meaning: &Meaning, hops: &[Option<Hop>]) -> Outcome {
    match (meaning.via(), meaning) {
        (_, Meaning::Local(port)) => Outcome::Target(Target::Local(*port)),
        (_, Meaning::Broadcast(port)) => Outcome::Target(Target::Broadcast(*port)),
        (_, Meaning::Mirrored(mirror::Outcome::Kernel(_), _)) => {
            Outcome::Target(Target::Discard(Reason::LeftToKernel))
        }
        (Some(Via::Blackhole), _) => Outcome::Target(Target::Discard(Reason::Blackhole)),
        (Some(Via::Unreachable), _) => Outcome::Target(Target::Discard(Reason::Unreachable)),
        (Some(Via::Prohibited), _) => Outcome::Target(Target::Discard(Reason::Prohibited)),
        (Some(Via::NextHops(_)) | None, _) => {
            let mut up = hops.iter().flatten().filter(|h| h.up);
            match (up.next(), up.next()) {
                (None, _) => Outcome::Dead,
                (Some(Hop { port, adjacency: None, .. }), _) => Outcome::Target(Target::Connected(*port)),
                (Some(Hop { adjacency: Some(id), .. }), None) => Outcome::Target(Target::Adjacent(*id)),
                _ => Outcome::Multipath(buckets(hops)),
            }
        }
    }
}

/// Buckets of a group by weight over every next hop found, then those of next hops that are down given
/// to the others, again by weight.
fn buckets(hops: &[Option<Hop>]) -> Vec<AdjacencyId> {
    let found: Vec<(AdjacencyId, u8, bool)> =
        hops.iter().flatten().filter_map(|h| Some((h.adjacency?, h.weight, h.up))).collect();
    let weights: usize = found.iter().map(|h| usize::from(h.1)).sum();
    let rounds = BUCKETS_MIN.div_ceil(weights.max(1));
    let once: Vec<(AdjacencyId, bool)> =
        found.iter().flat_map(|&(id, weight, up)| vec![(id, up); usize::from(weight)]).collect();
    let up: Vec<AdjacencyId> = once.iter().filter(|h| h.1).map(|h| h.0).collect();
    let mut heirs = up.iter().cycle();
    let all = std::iter::repeat_n(&once, rounds).flatten();
    all.filter_map(|&(id, alive)| if alive { Some(id) } else { heirs.next().copied() }).collect()
}
