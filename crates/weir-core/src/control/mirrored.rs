//! What comes from the kernel instead of from a file: routes ([`crate::mirror`]) and neighbours.
//!
//! Promises: a route of the file goes before the kernel's of the same prefix, an address of ours before both; a prefix
//! left to the kernel is never forwarded here, whatever covers it.

use std::net::IpAddr;

use super::targets::Meaning;
use super::{Control, Wiring};
use crate::id::Mac;
use crate::mirror::KernelRoute;
use crate::neighbor::State;
use crate::route::Prefix;
use crate::time::Nanos;

impl Control {
    /// Makes these prefixes lead where they lead in the kernel; without a route they are gone.
    pub fn set_mirrored(&mut self, now: Nanos, changes: Vec<(Prefix, Option<KernelRoute>)>) {
        let mut touched = Vec::with_capacity(changes.len());
        for (prefix, route) in changes {
            let value = route.map(|route| {
                let wiring = Wiring { desired: &self.desired, ports: &self.ports };
                let meaning = Meaning::Mirrored(route.outcome, route.protocol);
                self.targets.acquire(now, meaning, wiring, &mut self.adjacencies)
            });
            let old = match value {
                Some(value) => self.mirrored.insert(prefix, value),
                None => self.mirrored.remove(&prefix),
            };
            if let Some(old) = old {
                self.targets.release(now, old, &mut self.adjacencies);
            }
            if old != value {
                touched.push(prefix);
            }
        }
        self.install_touched(now, touched);
        self.fit_tunnels(now);
    }

    /// How many routes are the kernel's.
    pub fn mirrored(&self) -> usize {
        self.mirrored.len()
    }

    /// Whether a route of this very prefix is known other than from the kernel.
    pub fn has_prefix(&self, prefix: Prefix) -> bool {
        self.own.contains_key(&prefix) || self.routes.contains_key(&prefix)
    }

    /// Leaves finding neighbours to the kernel from now on: see [`Control::kernel_neighbor`].
    pub fn follow_kernel_neighbors(&mut self, now: Nanos) {
        self.neighbors.follow_kernel();
        self.refresh_neighbors(now);
    }

    /// What the kernel knows of a neighbour; nothing, where it has forgotten it.
    pub fn kernel_neighbor(
        &mut self,
        now: Nanos,
        (port, address): (&str, IpAddr),
        known: Option<(State, Option<Mac>)>,
    ) {
        let Some(id) = self.ports.id(port) else { return };
        let Some(of) = self.ports.port(id) else { return };
        self.neighbors.set_kernel(now, (id, address), of, known);
        self.refresh_neighbors(now);
    }

    /// Neighbours the kernel is to find, or to see whether they are still there.
    pub fn take_wanted(&mut self) -> Vec<(String, IpAddr)> {
        let named = |(id, address)| Some((self.ports.port(id)?.name.clone(), address));
        self.neighbors.take_wanted().into_iter().filter_map(named).collect()
    }
}
