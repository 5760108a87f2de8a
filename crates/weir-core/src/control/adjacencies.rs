//! Next hops, as ids the data path holds frames under.
//!
//! Promises: one id for a port and next hop for as long as anything needs it (a route's next hop or a
//! neighbour entry), through link changes, MAC changes and applies. An id nobody needs becomes a
//! tombstone that is never ready, and is not given to another next hop before [`QUARANTINE`] has
//! passed: a worker may still hold frames under it.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};

use crate::id::{AdjacencyId, Mac, PortId};
use crate::packet::DeviceId;
use crate::tables::{Adjacency, Port};
use crate::time::{Nanos, SECOND};

/// Twenty times the 3 s after which a frame held for an unanswered neighbour is given up.
const QUARANTINE: Nanos = 60 * SECOND;

#[derive(Debug)]
struct AdjacencyEntry {
    adjacency: Adjacency,
    /// Next hops of routes that lead here.
    hops: u32,
    /// Whether the neighbour table has it.
    neighbor: bool,
}

#[derive(Debug, Default)]
pub(super) struct Adjacencies {
    slots: Vec<AdjacencyEntry>,
    ids: HashMap<(PortId, IpAddr), AdjacencyId>,
    /// Freed ids, in order of time.
    tombs: VecDeque<(Nanos, AdjacencyId)>,
    /// See [`Adjacencies::take_gateways`].
    gateways: Vec<(PortId, IpAddr)>,
    pub(super) changed: bool,
    /// Whether the set of neighbours is another than at the last snapshot.
    pub(super) neighbors_changed: bool,
}

impl Adjacencies {
    /// The id of a route's next hop, for one more route.
    pub(super) fn acquire_hop(&mut self, now: Nanos, port: PortId, next_hop: IpAddr) -> AdjacencyId {
        let id = self.id(now, port, next_hop);
        let slot = &mut self.slots[id.0 as usize];
        slot.hops += 1;
        if slot.hops == 1 {
            self.gateways.push((port, next_hop));
        }
        id
    }

    pub(super) fn release_hop(&mut self, now: Nanos, id: AdjacencyId) {
        let slot = &mut self.slots[id.0 as usize];
        slot.hops -= 1;
        if slot.hops == 0 {
            self.gateways.push((slot.adjacency.port, slot.adjacency.next_hop));
        }
        self.bury_unneeded(now, id);
    }

    /// Next hops that routes began or ceased to lead to since the last call, and whether any does now.
    pub(super) fn take_gateways(&mut self) -> Vec<(PortId, IpAddr, bool)> {
        let keys = std::mem::take(&mut self.gateways);
        let needed = |key: &_| self.ids.get(key).is_some_and(|id| self.slots[id.0 as usize].hops > 0);
        keys.into_iter().map(|key| (key.0, key.1, needed(&key))).collect()
    }

    /// Says whether the neighbour table has this next hop.
    pub(super) fn set_neighbor(&mut self, now: Nanos, port: PortId, next_hop: IpAddr, present: bool) {
        if !present && !self.ids.contains_key(&(port, next_hop)) {
            return;
        }
        let id = self.id(now, port, next_hop);
        let slot = &mut self.slots[id.0 as usize];
        self.neighbors_changed |= slot.neighbor != present;
        slot.neighbor = present;
        self.bury_unneeded(now, id);
    }

    /// Makes an adjacency say what its port and neighbour are now.
    pub(super) fn refresh(&mut self, port: PortId, next_hop: IpAddr, of: Option<&Port>, mac: Option<Mac>) {
        let Some(&id) = self.ids.get(&(port, next_hop)) else { return };
        let fresh = wired(port, next_hop, of, mac);
        let adjacency = &mut self.slots[id.0 as usize].adjacency;
        if *adjacency != fresh {
            *adjacency = fresh;
            self.changed = true;
        }
    }

    /// Next hops on a port.
    pub(super) fn on_port(&self, port: PortId) -> Vec<IpAddr> {
        self.ids.keys().filter(|(p, _)| *p == port).map(|(_, next_hop)| *next_hop).collect()
    }

    pub(super) fn get(&self, id: AdjacencyId) -> &Adjacency {
        &self.slots[id.0 as usize].adjacency
    }

    pub(super) fn snapshot(&self) -> Vec<Adjacency> {
        self.slots.iter().map(|s| s.adjacency.clone()).collect()
    }

    pub(super) fn neighbor_ids(&self) -> HashMap<(PortId, IpAddr), AdjacencyId> {
        let known = self.ids.iter().filter(|(_, id)| self.slots[id.0 as usize].neighbor);
        known.map(|(&key, &id)| (key, id)).collect()
    }

    fn id(&mut self, now: Nanos, port: PortId, next_hop: IpAddr) -> AdjacencyId {
        if let Some(&id) = self.ids.get(&(port, next_hop)) {
            return id;
        }
        let slot = AdjacencyEntry { adjacency: wired(port, next_hop, None, None), hops: 0, neighbor: false };
        self.changed = true;
        let rested = self.tombs.front().filter(|(freed, _)| now >= freed.saturating_add(QUARANTINE));
        let id = match rested.map(|&(_, id)| id) {
            Some(id) => {
                self.tombs.pop_front();
                self.slots[id.0 as usize] = slot;
                id
            }
            None => {
                self.slots.push(slot);
                AdjacencyId(self.slots.len() as u32 - 1)
            }
        };
        self.ids.insert((port, next_hop), id);
        id
    }

    fn bury_unneeded(&mut self, now: Nanos, id: AdjacencyId) {
        let slot = &mut self.slots[id.0 as usize];
        if slot.hops > 0 || slot.neighbor {
            return;
        }
        self.ids.remove(&(slot.adjacency.port, slot.adjacency.next_hop));
        slot.adjacency = wired(slot.adjacency.port, Ipv4Addr::UNSPECIFIED.into(), None, None);
        self.tombs.push_back((now, id));
        self.changed = true;
    }
}

/// The adjacency of a next hop on a port, ready when a frame can be addressed now.
fn wired(port: PortId, next_hop: IpAddr, of: Option<&Port>, mac: Option<Mac>) -> Adjacency {
    let mut header = [0; 12];
    if let (Some(of), Some(mac)) = (of, mac) {
        header[..6].copy_from_slice(&mac);
        header[6..].copy_from_slice(&of.mac);
    }
    Adjacency {
        port,
        device: of.map_or(DeviceId(0), |p| p.device),
        egress: of.map_or(DeviceId(0), |p| p.egress),
        next_hop,
        header,
        ready: of.is_some_and(|p| p.up && (p.point_to_point || mac.is_some())),
        vlan: of.and_then(|p| p.vlan),
        mtu: of.map_or(0, |p| p.mtu),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(n: u8) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, n).into()
    }

    #[test]
    fn id_survives_as_long_as_route_or_neighbor_needs_it() {
        let mut all = Adjacencies::default();
        let id = all.acquire_hop(0, PortId(0), host(1));
        assert_eq!(all.take_gateways(), [(PortId(0), host(1), true)]);
        all.set_neighbor(0, PortId(0), host(1), true);
        all.release_hop(0, id);
        assert_eq!(all.take_gateways(), [(PortId(0), host(1), false)]);
        assert_eq!(all.acquire_hop(0, PortId(0), host(1)), id);
    }

    #[test]
    fn freed_id_rests_before_it_leads_elsewhere() {
        let mut all = Adjacencies::default();
        let id = all.acquire_hop(0, PortId(0), host(1));
        all.release_hop(5, id);
        assert!(!all.get(id).ready);
        let other = all.acquire_hop(5 + QUARANTINE - 1, PortId(0), host(2));
        assert_ne!(other, id);
        let reused = all.acquire_hop(5 + QUARANTINE, PortId(0), host(3));
        assert_eq!(reused, id);
    }
}
