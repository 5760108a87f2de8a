//! The control side: what was asked for and what is observed, made into snapshots for workers.
//!
//! ```text
//! Desired ─ check, diff ─┐                                   ┌─► take_snapshot: Arc<Tables>
//! Link changes ──────────┼─► ports ─► targets ─► route tables ┤
//! ARP, NDP, Event ───────┴─► neighbours ─► adjacencies        └─► take_transmits: frames
//! ```
//!
//! Promises: a wish that cannot be built changes nothing; a snapshot is whole; what did not change is
//! shared with the snapshot before (a neighbour costs no route, one route of a million costs what one
//! route costs). Ids of ports and devices belong to names, ids of adjacencies to a port and next
//! hop; `control/ports.rs` and `control/adjacencies.rs` say when they may be given to others. A prefix leads, in this
//! order, to our own address, a broadcast address, a connected network that is up, its static route, or the kernel's
//! route, as long as one of its next hops is on a port that is up. Own addresses stay ours while their port is
//! down.
//!
//! IPv6 link-local addresses are in no route table: which neighbour `fe80::1` is, and whether it is
//! ours, depends on the port (RFC 4007), so the data path asks the port of arrival, and a route that
//! leads there names its port. The subnet-router anycast address of a network (RFC 4291 2.6.1) is the kernel's where the
//! kernel has an address in it; where only weir has one it is not served.
//!
//! Refuses: recursive next hops, and next hops without gateway among several on an Ethernet port.

mod adjacencies;
mod durable;
mod gateway;
mod memory;
mod mirrored;
mod names;
mod policies;
mod ports;
mod rekey;
mod show;
mod spds;
mod targets;
mod tunnels;
mod watch;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use crate::id::PortId;
use crate::ipsec::Ciphers;
use crate::neighbor::Neighbors;
use crate::route::{NO_ROUTE, Prefix, RouteTable4, RouteTable6};
use crate::router::Event;
use crate::state::{
    Action, Desired, Element, Error, HopProblem, Link, Via, check_against, diff, link_local, width,
};
use crate::tables::{Port, Tables};
use crate::time::Nanos;

use adjacencies::Adjacencies;
pub use durable::{BootId, Damaged, Disk, Durable, Record, State as SaStates, StoreId, save};
pub use gateway::DRAIN;
use gateway::Gateway;
pub use policies::PolicyChange;
use policies::Uses;
use ports::Ports;
pub use rekey::Rekey;
pub use show::{
    HopView, Limits, NeighborView, Notice, Origin, PolicyView, RouteView, SaEvent, SaView, SpdView,
    TunnelView,
};
use targets::{Meaning, Targets};
pub use watch::KEEPALIVE;
use watch::Watch;

/// Everything the control side knows.
#[derive(Debug)]
pub struct Control {
    desired: Desired,
    links: HashMap<String, Link>,
    ports: Ports,
    neighbors: Neighbors,
    adjacencies: Adjacencies,
    targets: Targets,
    /// Prefixes that ports bring with them.
    own: HashMap<Prefix, u32>,
    /// Static routes, in the table or not.
    routes: BTreeMap<Prefix, u32>,
    /// Routes of the kernel, in the table or not.
    mirrored: BTreeMap<Prefix, u32>,
    table4: RouteTable4,
    table6: RouteTable6,
    gateway: Gateway,
    /// Made where policies change one by one, and forgotten with other changes.
    uses: Option<Uses>,
    watch: Watch,
    /// What fits into each tunnel without an MTU of its own.
    tunnel_mtus: HashMap<String, u16>,
    changed: Changed,
    tables: Arc<Tables>,
}

/// What differs from the last snapshot, besides what its parts know themselves.
#[derive(Debug, Default)]
struct Changed {
    ports: bool,
    settings: bool,
}

/// What finding next hops reads.
#[derive(Clone, Copy)]
struct Wiring<'a> {
    desired: &'a Desired,
    ports: &'a Ports,
}

impl Control {
    /// Builds `desired` on what `links` says; devices without a link are down until one is seen.
    pub fn new(
        desired: Desired,
        links: impl IntoIterator<Item = Link>,
        now: Nanos,
    ) -> Result<Control, Vec<Error>> {
        Control::build(desired, links, now, (None, None))
    }

    /// Like [`Control::new`], for a `desired` that may have SAs: `ciphers` makes theirs.
    pub fn with_ciphers(
        desired: Desired,
        links: impl IntoIterator<Item = Link>,
        now: Nanos,
        ciphers: Arc<dyn Ciphers>,
    ) -> Result<Control, Vec<Error>> {
        Control::build(desired, links, now, (Some(ciphers), None))
    }

    /// The same where SAs go on from what earlier processes left of them. They carry nothing until
    /// [`Control::state_image`] was written.
    pub fn with_state(
        desired: Desired,
        links: impl IntoIterator<Item = Link>,
        now: Nanos,
        ciphers: Arc<dyn Ciphers>,
        durable: Durable,
    ) -> Result<Control, Vec<Error>> {
        Control::build(desired, links, now, (Some(ciphers), Some(durable)))
    }

    fn build(
        desired: Desired,
        links: impl IntoIterator<Item = Link>,
        now: Nanos,
        (ciphers, durable): (Option<Arc<dyn Ciphers>>, Option<Durable>),
    ) -> Result<Control, Vec<Error>> {
        let (mut table4, mut table6) = (RouteTable4::default(), RouteTable6::default());
        let tables = Arc::new(Tables {
            generation: 0,
            devices: Arc::default(),
            ports: Arc::default(),
            fib4: table4.publish(),
            fib6: table6.publish(),
            targets: Arc::default(),
            multipath: Arc::default(),
            adjacencies: Arc::default(),
            neighbors: Arc::default(),
            settings: desired.settings,
            ipsec: None,
        });
        let mut control = Control {
            desired: Desired { settings: desired.settings, ..Desired::default() },
            links: links.into_iter().map(|l| (l.device.clone(), l)).collect(),
            ports: Ports::default(),
            neighbors: Neighbors::default(),
            adjacencies: Adjacencies::default(),
            targets: Targets::default(),
            own: HashMap::new(),
            routes: BTreeMap::new(),
            mirrored: BTreeMap::new(),
            table4,
            table6,
            gateway: Gateway::new(ciphers, durable),
            uses: None,
            watch: Watch::default(),
            tunnel_mtus: HashMap::new(),
            changed: Changed::default(),
            tables,
        };
        control.apply(now, desired)?;
        Ok(control)
    }

    /// Makes `desired` what is; returns what that took. On errors nothing changed.
    pub fn apply(&mut self, now: Nanos, desired: Desired) -> Result<Vec<Action>, Vec<Error>> {
        let actions = self.plan(&desired)?;
        self.commit(now, desired, actions)
    }

    /// Makes what was desired before so again: it was good then, however it came about.
    pub fn go_back(&mut self, now: Nanos, before: Desired) -> Result<Vec<Action>, Vec<Error>> {
        let actions = diff(&self.desired, &before);
        self.commit(now, before, actions)
    }

    fn commit(
        &mut self,
        now: Nanos,
        desired: Desired,
        actions: Vec<Action>,
    ) -> Result<Vec<Action>, Vec<Error>> {
        if actions.is_empty() {
            return Ok(actions);
        }
        let prepared = self.gateway.prepare(&desired.ipsec)?;
        if self.gateway.commit(now, &self.desired.ipsec, &desired.ipsec, prepared, &actions) {
            self.watch_again(now);
        }
        self.desired = desired;
        self.uses = None;
        let mut touched = Vec::new();
        for action in &actions {
            match action {
                Action::RemoveRoute(route) => self.set_route(now, route.prefix, None, &mut touched),
                Action::RemoveNeighbor(n) => {
                    if let Some(id) = self.ports.id(&n.port) {
                        self.neighbors.remove_static(now, id, self.ports.port(id), n.address);
                    }
                }
                _ => {}
            }
        }
        self.rewire(now, &mut touched);
        for action in &actions {
            match action {
                Action::AddRoute(r) => self.set_route(now, r.prefix, Some(&r.via), &mut touched),
                Action::ChangeRoute { prefix, new, .. } => {
                    self.set_route(now, *prefix, Some(new), &mut touched);
                }
                Action::AddNeighbor(n) | Action::ChangeNeighbor { new: n, .. } => {
                    if let Some(id) = self.ports.id(&n.port) {
                        self.neighbors.set_static(now, (id, n.address), n.mac);
                    }
                }
                Action::ChangeSettings { .. } => self.changed.settings = true,
                _ => {}
            }
        }
        self.install_touched(now, touched);
        self.fit_tunnels(now);
        Ok(actions)
    }

    /// SAs of this SPD come from elsewhere, and their packets may come before them: ESP with an SPI that no SA has waits a
    /// while at the ports where it is enforced, but for SPIs and destinations of `others`.
    pub fn await_sas(&mut self, spd: &str, others: HashSet<(u32, IpAddr)>) {
        self.gateway.await_sas(spd, others);
    }

    /// What [`Control::apply`] would do, or why it would refuse.
    pub fn plan(&self, desired: &Desired) -> Result<Vec<Action>, Vec<Error>> {
        let mut errors = check_against(desired, &self.desired);
        self.check_links(desired, &mut errors);
        self.gateway.check(&desired.ipsec, &mut errors);
        if errors.is_empty() { Ok(diff(&self.desired, desired)) } else { Err(errors) }
    }

    /// A next hop without gateway among several is one bucket only where it is one neighbour.
    fn check_links(&self, desired: &Desired, errors: &mut Vec<Error>) {
        let ethernet = |name: &str| {
            let port = desired.ports.iter().find(|p| p.name == name)?;
            self.links.get(&port.device).map(|link| !link.point_to_point)
        };
        for (r, route) in desired.routes.iter().enumerate() {
            let Via::NextHops(hops) = &route.via else { continue };
            for (h, hop) in hops.iter().enumerate().filter(|_| hops.len() > 1) {
                if let (None, Some(name)) = (hop.gateway, &hop.port)
                    && ethernet(name) == Some(true)
                {
                    let at = Element::NextHop { route: r, hop: h };
                    let subject = format!("route {}: next hop {}", route.prefix, h + 1);
                    let problem = HopProblem::GatewayNeeded { port: name.clone() }.into();
                    errors.push(Error { at, subject, problem });
                }
            }
        }
    }

    /// A device appeared or changed.
    pub fn link_changed(&mut self, now: Nanos, link: Link) {
        if self.links.get(&link.device) != Some(&link) {
            self.links.insert(link.device.clone(), link);
            self.relink(now);
        }
    }

    /// A device vanished.
    pub fn link_removed(&mut self, now: Nanos, device: &str) {
        if self.links.remove(device).is_some() {
            self.relink(now);
        }
    }

    fn relink(&mut self, now: Nanos) {
        let mut touched = Vec::new();
        self.rewire(now, &mut touched);
        self.install_touched(now, touched);
        self.fit_tunnels(now);
    }

    /// A frame of ARP or NDP from a worker.
    pub fn handle_punt(&mut self, now: Nanos, port: PortId, frame: &[u8]) {
        if let Some(of) = self.ports.port(port) {
            self.neighbors.handle(now, port, of, frame);
            self.refresh_neighbors(now);
        }
    }

    /// A request from a worker.
    pub fn handle_event(&mut self, now: Nanos, event: Event) {
        let Event::Resolve { port, next_hop } = event else {
            return self.state_asks();
        };
        if let Some(of) = self.ports.port(port) {
            self.neighbors.resolve(now, port, of, next_hop);
            self.refresh_neighbors(now);
        }
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Nanos) {
        self.neighbors.tick(now, &self.ports.ports);
        self.refresh_neighbors(now);
        self.gateway.tick(now);
        self.watch_sas(now);
    }

    /// When [`Control::tick`] has something to do.
    pub fn poll_at(&self) -> Option<Nanos> {
        [self.neighbors.poll_at(), self.gateway.poll_at(), self.watch_at()].into_iter().flatten().min()
    }

    /// Frames to send, VLAN tag included, with the port they leave by.
    pub fn take_transmits(&mut self) -> Vec<(PortId, Vec<u8>)> {
        let mut transmits = self.neighbors.take_transmits();
        transmits.append(&mut self.take_keepalives());
        transmits
    }

    /// The snapshot taken last.
    pub fn tables(&self) -> &Arc<Tables> {
        &self.tables
    }

    /// A snapshot, if anything changed since the last one.
    pub fn take_snapshot(&mut self) -> Option<Arc<Tables>> {
        let changed = std::mem::take(&mut self.changed);
        let fresh = [
            changed.ports || changed.settings || self.gateway.is_changed(),
            self.targets.changed || self.adjacencies.changed || self.adjacencies.neighbors_changed,
            !self.table4.is_published() || !self.table6.is_published(),
        ];
        if fresh == [false; 3] {
            return None;
        }
        let mut next = Tables { generation: self.tables.generation + 1, ..Tables::clone(&self.tables) };
        next.settings = self.desired.settings;
        if changed.ports {
            next.devices = self.ports.devices.clone().into();
            next.ports = self.ports.ports.clone().into();
        }
        if changed.ports || self.gateway.is_changed() {
            let (spec, last) = (&self.desired.ipsec, next.ipsec.take());
            next.ipsec = self.gateway.snapshot(spec, &self.ports, changed.ports, last);
        }
        if std::mem::take(&mut self.targets.changed) {
            let (targets, multipath) = self.targets.snapshot();
            (next.targets, next.multipath) = (targets.into(), multipath.into());
        }
        if std::mem::take(&mut self.adjacencies.changed) {
            next.adjacencies = self.adjacencies.snapshot().into();
        }
        if std::mem::take(&mut self.adjacencies.neighbors_changed) {
            next.neighbors = Arc::new(self.adjacencies.neighbor_ids());
        }
        if !self.table4.is_published() {
            next.fib4 = self.table4.publish();
        }
        if !self.table6.is_published() {
            next.fib6 = self.table6.publish();
        }
        self.tables = Arc::new(next);
        Some(self.tables.clone())
    }

    /// Makes ports, and all that hangs on them, what the wish and the links say; notes the prefixes whose
    /// route may be another now.
    fn rewire(&mut self, now: Nanos, touched: &mut Vec<Prefix>) {
        let changed = self.ports.build(&self.desired, &self.links, &self.tunnel_mtus);
        if changed.is_empty() {
            return;
        }
        self.changed.ports = true;
        let flipped = {
            let wiring = Wiring { desired: &self.desired, ports: &self.ports };
            self.targets.refresh_all(now, wiring, &mut self.adjacencies)
        };
        if flipped.contains(&true) {
            let of = self.routes.iter().chain(&self.mirrored).chain(&self.own);
            touched.extend(of.filter(|(_, v)| flipped[**v as usize]).map(|(p, _)| *p));
        }
        self.rewire_own(now, touched);
        for (id, was) in changed {
            let port = self.ports.port(id);
            if was.is_none_or(|was| port.is_none_or(|is| must_relearn(&was, is))) {
                self.neighbors.port_changed(now, id, port);
            }
            for next_hop in self.adjacencies.on_port(id) {
                let mac = self.neighbors.mac((id, next_hop));
                self.adjacencies.refresh(id, next_hop, port, mac);
            }
        }
    }

    /// Prefixes that ports bring: addresses, networks, broadcast addresses.
    fn rewire_own(&mut self, now: Nanos, touched: &mut Vec<Prefix>) {
        // Sorted, so that the same wish gives the same values.
        let mut own: BTreeMap<Prefix, Meaning> = BTreeMap::new();
        let addresses = || {
            let all = self.ports.iter().flat_map(|(id, p)| p.addresses.iter().map(move |a| (id, p, a)));
            all.filter(|(_, _, a)| !link_local(a.address))
        };
        // The strongest comes last.
        // The kernel has routes for these itself, unless it was told not to.
        let brings_networks = |_: &_| !self.desired.routes_from_kernel;
        for (id, _, a) in addresses().filter(brings_networks) {
            own.insert(a.network(), Meaning::Connected(id));
        }
        for (id, _, a) in addresses().filter(brings_networks) {
            if let Some(anycast) = a.anycast() {
                own.insert(Prefix::new(anycast.into(), 128), Meaning::Local(id));
            }
        }
        for (id, port, a) in addresses().filter(brings_networks) {
            if let (Prefix::V4(net), false) = (a.network(), port.point_to_point)
                && net.len() <= 30
                && port.up
            {
                let last = IpAddr::V4(Ipv4Addr::from(net.last()));
                own.insert(Prefix::new(last, 32), Meaning::Broadcast(id));
            }
        }
        for (id, _, a) in addresses() {
            own.insert(Prefix::new(a.address, width(a.address)), Meaning::Local(id));
        }
        let before = std::mem::take(&mut self.own);
        let wiring = Wiring { desired: &self.desired, ports: &self.ports };
        for (prefix, meaning) in own {
            let value = self.targets.acquire(now, meaning, wiring, &mut self.adjacencies);
            if before.get(&prefix) != Some(&value) {
                touched.push(prefix);
            }
            self.own.insert(prefix, value);
        }
        for (prefix, value) in before {
            if !self.own.contains_key(&prefix) {
                touched.push(prefix);
            }
            self.targets.release(now, value, &mut self.adjacencies);
        }
    }

    /// Sets or removes the static route of a prefix.
    fn set_route(&mut self, now: Nanos, prefix: Prefix, via: Option<&Via>, touched: &mut Vec<Prefix>) {
        let value = via.map(|via| {
            let wiring = Wiring { desired: &self.desired, ports: &self.ports };
            self.targets.acquire(now, Meaning::Static(via.canonical()), wiring, &mut self.adjacencies)
        });
        let old = match value {
            Some(value) => self.routes.insert(prefix, value),
            None => self.routes.remove(&prefix),
        };
        if let Some(old) = old {
            self.targets.release(now, old, &mut self.adjacencies);
        }
        touched.push(prefix);
    }

    /// Brings tables and neighbours in line with what was touched.
    fn install_touched(&mut self, now: Nanos, mut touched: Vec<Prefix>) {
        // In order, because neighbouring prefixes share the nodes of every tree they are put into.
        touched.sort_unstable();
        touched.dedup();
        for prefix in touched {
            self.install(prefix);
        }
        for (id, next_hop, needed) in self.adjacencies.take_gateways() {
            match self.ports.port(id) {
                Some(port) if needed && !port.point_to_point => {
                    self.neighbors.add_gateway(now, id, port, next_hop);
                }
                _ => self.neighbors.remove_gateway(id, next_hop),
            }
            let mac = self.neighbors.mac((id, next_hop));
            self.adjacencies.refresh(id, next_hop, self.ports.port(id), mac);
        }
        self.refresh_neighbors(now);
    }

    fn refresh_neighbors(&mut self, now: Nanos) {
        for (id, address) in self.neighbors.take_changes() {
            let known = self.neighbors.get((id, address));
            self.adjacencies.set_neighbor(now, id, address, known.is_some());
            self.adjacencies.refresh(id, address, self.ports.port(id), known.and_then(|n| n.mac));
        }
    }

    /// Puts into the table what a prefix leads to now.
    fn install(&mut self, prefix: Prefix) {
        let value = self.best(prefix);
        match (prefix, value) {
            (Prefix::V4(p), NO_ROUTE) => _ = self.table4.remove(p),
            (Prefix::V4(p), value) => _ = self.table4.insert(p, value),
            (Prefix::V6(p), NO_ROUTE) => _ = self.table6.remove(p),
            (Prefix::V6(p), value) => _ = self.table6.insert(p, value),
        }
    }

    fn best(&self, prefix: Prefix) -> u32 {
        let candidates = [self.own.get(&prefix), self.routes.get(&prefix), self.mirrored.get(&prefix)];
        candidates.into_iter().flatten().copied().find(|&v| self.targets.alive(v)).unwrap_or(NO_ROUTE)
    }
}

/// Whether what was learned on a port may be wrong now.
fn must_relearn(was: &Port, is: &Port) -> bool {
    let wire = |p: &Port| (p.up, p.mac, p.device, p.vlan, p.point_to_point);
    wire(was) != wire(is)
}
