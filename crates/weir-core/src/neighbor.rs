//! Neighbours: who has the next hop's address, and which MAC address (ARP: RFC 826, RFC 5227;
//! NDP: RFC 4861 §7). One state machine per port and address, for both families.
//!
//! ```text
//!             ask, ask, ask                  30 s              no answer ×3
//! (traffic) ─► INCOMPLETE ──answer──► REACHABLE ───► PROBE ─────────────────┐
//!                ▲   │ no answer          ▲   ▲        │ unicast answer     │
//!                │   ▼                    │   └────────┘                    │
//!                │ FAILED (held down)     └──answer── PROBE ◄──5 s── STALE  │
//!                └──────────────────────────────────────────────────────────┘
//! ```
//!
//! Promises: every frame is answered or learned from at most once; an address whose MAC changed is used
//! at once and then verified; memory and requests are bounded whatever arrives. The control side cannot
//! see which neighbours carry traffic, so a stale entry is always probed (RFC 4861's DELAY and STALE are
//! one state here) and a reachable one before it ages out: at most [`NEIGHBORS_MAX`] / 15 s, 546 small
//! frames a second.
//!
//! Learns only from answers, from requests for one of our addresses by someone on the link, and about
//! entries that exist; never from an announcement about nobody we know, never a group, zero or our own
//! MAC, never about our own addresses. Answers only for addresses of [`Owner::Weir`]: the kernel answers
//! for its own. Frames out carry the port's VLAN tag; frames in may or may not.
//!
//! Refuses: sending router advertisements and redirects, obeying those of others (RFC 4861 §6.2.7 and
//! §8.2 leave a router no choice in the latter), proxying, probing for our own addresses before use.
//!
//! [`Owner::Weir`]: crate::tables::Owner::Weir

mod arp;
mod kernel;
mod learn;
mod ndp;
mod timers;

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use crate::id::{Mac, PortId};
use crate::state::{link_local, not_a_host};
use crate::tables::{Owner, Port, PortAddress};
use crate::time::{Nanos, SECOND};
use crate::wire::ethernet::{self, Ethernet};

/// Entries besides gateways and static neighbours: eight times Linux's gc_thresh3, at 120 B and an
/// adjacency of 64 B each 1.5 MB.
pub const NEIGHBORS_MAX: usize = 8192;

/// How many entries may be without an answer: a scan of a network (RFC 6583) fills an eighth of the table and
/// never pushes out who answered. Each asks 3 times and rests, so a scan costs at most 384 requests/s.
pub const UNRESOLVED_MAX: usize = 1024;

/// RFC 4861 §10: RETRANS_TIMER, MAX_MULTICAST_SOLICIT and MAX_UNICAST_SOLICIT, DELAY_FIRST_PROBE_TIME,
/// REACHABLE_TIME (drawn from half to one and a half of it).
pub const RETRANSMIT: Nanos = SECOND;
pub const SOLICITATIONS: u8 = 3;
pub const STALE_TIME: Nanos = 5 * SECOND;
pub const REACHABLE_TIME: Nanos = 30 * SECOND;

/// A next hop that did not answer is not asked for again before this: 3 requests every 8 s at most.
pub const HOLD_DOWN: Nanos = 5 * SECOND;

/// RFC 5227 1.1: DEFEND_INTERVAL.
const DEFEND_INTERVAL: Nanos = 10 * SECOND;

/// Frames waiting to be taken: every unresolved neighbour asking at once, four times over, 90 B each.
const TRANSMITS_MAX: usize = 4 * UNRESOLVED_MAX;

/// A neighbour is known by the port it is on and its address.
pub type Key = (PortId, IpAddr);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Asked for by broadcast or multicast; no answer yet.
    Incomplete,
    /// Answered us lately.
    Reachable,
    /// Its MAC was heard, but not as an answer to us.
    Stale,
    /// Asked whether it is still there, by unicast.
    Probe,
    /// Did not answer; not asked again for [`HOLD_DOWN`].
    Failed,
    /// Configured.
    Static,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            State::Incomplete => "incomplete",
            State::Reachable => "reachable",
            State::Stale => "stale",
            State::Probe => "probe",
            State::Failed => "failed",
            State::Static => "static",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbor {
    pub state: State,
    /// Where frames go; none while incomplete or failed.
    pub mac: Option<Mac>,
    /// When the state was entered.
    pub since: Nanos,
    /// A route leads there: asked for without traffic, never evicted.
    pub gateway: bool,
    /// Requests sent in this state.
    asked: u8,
    /// When something has to be done about it.
    due: Option<Nanos>,
}

impl Neighbor {
    /// Whether it counts against [`UNRESOLVED_MAX`].
    fn is_loose_end(&self) -> bool {
        !self.gateway && self.mac.is_none()
    }
}

/// What happened, cumulative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub requests_sent: u64,
    pub replies_sent: u64,
    /// Answers and requests that taught us something.
    pub learned: u64,
    /// A known neighbour's MAC became another.
    pub mac_changes: u64,
    /// Neighbours that did not answer.
    pub failed: u64,
    /// Frames that are no valid ARP or NDP message.
    pub bad: u64,
    /// Valid messages that teach us nothing and ask for nothing of ours.
    pub ignored: u64,
    /// Messages that name a group, zero or our own MAC, or an address no host may have.
    pub insane: u64,
    /// Someone else uses an address of ours.
    pub conflicts: u64,
    /// Requests to resolve during hold-down.
    pub held_down: u64,
    /// Requests to resolve what cannot be: our own address, a port that is down, a network address.
    pub unresolvable: u64,
    /// Requests not sent because the port has no address of the family to ask from.
    pub no_source: u64,
    /// Neighbours not entered because [`NEIGHBORS_MAX`] or [`UNRESOLVED_MAX`] was reached.
    pub table_full: u64,
    /// Stale or failed neighbours that made room.
    pub evicted: u64,
    /// Frames not sent because too many already waited.
    pub transmit_full: u64,
}

/// Every neighbour of every port.
#[derive(Debug, Default)]
pub struct Neighbors {
    entries: HashMap<Key, Neighbor>,
    timers: BTreeSet<(Nanos, Key)>,
    /// Entries that are [`Neighbor::is_loose_end`].
    loose_ends: usize,
    /// Entries that are neither gateways nor static.
    dynamic: usize,
    transmits: Vec<(PortId, Vec<u8>)>,
    /// Keys that came, went, or whose MAC changed since [`Neighbors::take_changes`].
    changes: Vec<Key>,
    /// The kernel finds neighbours: [`Neighbors::follow_kernel`].
    kernel: bool,
    /// See [`Neighbors::take_wanted`].
    wanted: Vec<Key>,
    /// When we last spoke up for an address of ours.
    defended: HashMap<Key, Nanos>,
    counters: Counters,
}

impl Neighbors {
    /// A frame of ARP or NDP that came in on `port`, from its Ethernet header on.
    pub fn handle(&mut self, now: Nanos, id: PortId, port: &Port, frame: &[u8]) {
        let Ok(ethernet) = Ethernet::parse(frame) else {
            self.counters.bad += 1;
            return;
        };
        match ethernet.ethertype() {
            _ if !port.up || port.point_to_point || self.kernel => self.counters.ignored += 1,
            ethernet::ETHERTYPE_ARP => self.handle_arp(now, id, port, ethernet.payload()),
            ethernet::ETHERTYPE_IPV6 => {
                self.handle_ndp(now, id, port, ethernet.src(), ethernet.payload());
            }
            _ => self.counters.bad += 1,
        }
    }

    /// The data path has frames for this next hop.
    pub fn resolve(&mut self, now: Nanos, id: PortId, port: &Port, next_hop: IpAddr) {
        if self.kernel && askable(port, next_hop) {
            return self.want((id, next_hop));
        }
        match self.entries.get(&(id, next_hop)).map(|n| n.state) {
            Some(State::Failed) => self.counters.held_down += 1,
            Some(_) => {}
            None if !askable(port, next_hop) => self.counters.unresolvable += 1,
            None if self.loose_ends >= UNRESOLVED_MAX => self.counters.table_full += 1,
            None if !self.make_room() => self.counters.table_full += 1,
            None => self.ask_first(now, (id, next_hop), port, false),
        }
    }

    /// A route leads to this next hop: it is asked for now, and again whenever it is lost.
    pub fn add_gateway(&mut self, now: Nanos, id: PortId, port: &Port, next_hop: IpAddr) {
        let key = (id, next_hop);
        match self.entries.get(&key).copied() {
            Some(known) => self.put(key, Some(Neighbor { gateway: true, ..known })),
            None if self.kernel => {
                self.put(key, Some(waiting(now)));
                self.want(key);
            }
            None if port.up && askable(port, next_hop) => self.ask_first(now, key, port, true),
            None => self.put(key, Some(waiting(now))),
        }
    }

    /// No route leads there any more; who answers stays as long as it answers.
    pub fn remove_gateway(&mut self, id: PortId, next_hop: IpAddr) {
        let key = (id, next_hop);
        if let Some(&known) = self.entries.get(&key) {
            self.put(key, known.mac.map(|_| Neighbor { gateway: false, ..known }));
        }
    }

    /// The operator says where this neighbour is.
    pub fn set_static(&mut self, now: Nanos, key: Key, mac: Mac) {
        let gateway = self.entries.get(&key).is_some_and(|n| n.gateway);
        let fixed =
            Neighbor { state: State::Static, mac: Some(mac), since: now, gateway, asked: 0, due: None };
        self.put(key, Some(fixed));
    }

    /// The operator no longer says so.
    pub fn remove_static(&mut self, now: Nanos, id: PortId, port: Option<&Port>, address: IpAddr) {
        let key = (id, address);
        let Some(known) = self.entries.get(&key).filter(|n| n.state == State::Static) else { return };
        let gateway = known.gateway;
        self.put(key, None);
        if let Some(port) = port.filter(|_| gateway) {
            self.add_gateway(now, id, port, address);
        }
    }

    /// The port came up, went down, or has another MAC: what was learned there may be wrong. `None`: it
    /// is gone.
    pub fn port_changed(&mut self, now: Nanos, id: PortId, port: Option<&Port>) {
        let there: Vec<(Key, Neighbor)> =
            self.entries.iter().filter(|((p, _), _)| *p == id).map(|(&k, &n)| (k, n)).collect();
        for (key, known) in there {
            match port {
                Some(_) if known.state == State::Static || self.kernel => {}
                Some(port) if known.gateway && port.up && askable(port, key.1) => {
                    self.ask_first(now, key, port, true);
                }
                Some(_) if known.gateway => self.put(key, Some(waiting(now))),
                _ => self.put(key, None),
            }
        }
    }

    /// Where frames for this neighbour go, if that is known.
    pub fn mac(&self, key: Key) -> Option<Mac> {
        self.entries.get(&key).and_then(|n| n.mac)
    }

    pub fn get(&self, key: Key) -> Option<&Neighbor> {
        self.entries.get(&key)
    }

    /// Every entry, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &Neighbor)> {
        self.entries.iter().map(|(&k, n)| (k, n))
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Neighbours that came, went, or whose MAC changed since the last call.
    pub fn take_changes(&mut self) -> Vec<Key> {
        std::mem::take(&mut self.changes)
    }

    /// Frames to send, with the port they leave by.
    pub fn take_transmits(&mut self) -> Vec<(PortId, Vec<u8>)> {
        std::mem::take(&mut self.transmits)
    }

    fn transmit(&mut self, id: PortId, frame: Vec<u8>) {
        if self.transmits.len() < TRANSMITS_MAX {
            self.transmits.push((id, frame));
        } else {
            self.counters.transmit_full += 1;
        }
    }

    /// The only place where an entry changes: timers, counts and changes follow here.
    fn put(&mut self, key: Key, new: Option<Neighbor>) {
        let old = match new {
            Some(new) => self.entries.insert(key, new),
            None => self.entries.remove(&key),
        };
        if let Some(due) = old.and_then(|n| n.due) {
            self.timers.remove(&(due, key));
        }
        if let Some(due) = new.and_then(|n| n.due) {
            self.timers.insert((due, key));
        }
        let is_dynamic = |n: &Neighbor| !n.gateway && n.state != State::Static;
        self.loose_ends += usize::from(new.is_some_and(|n| n.is_loose_end()));
        self.loose_ends -= usize::from(old.is_some_and(|n| n.is_loose_end()));
        self.dynamic += usize::from(new.as_ref().is_some_and(is_dynamic));
        self.dynamic -= usize::from(old.as_ref().is_some_and(is_dynamic));
        if old.is_some() != new.is_some() || old.and_then(|n| n.mac) != new.and_then(|n| n.mac) {
            self.changes.push(key);
        }
    }

    /// Room for one more dynamic entry, made by letting go of the oldest stale or, without one, the
    /// oldest failed neighbour. Who answers stays.
    fn make_room(&mut self) -> bool {
        if self.dynamic < NEIGHBORS_MAX {
            return true;
        }
        let oldest = |state| {
            let candidates = self.entries.iter().filter(|(_, n)| n.state == state && !n.gateway);
            candidates.map(|(&key, n)| (n.since, key)).min().map(|(_, key)| key)
        };
        let Some(key) = oldest(State::Stale).or_else(|| oldest(State::Failed)) else { return false };
        self.put(key, None);
        self.counters.evicted += 1;
        true
    }
}

/// A gateway behind a port that is down.
fn waiting(now: Nanos) -> Neighbor {
    Neighbor { state: State::Failed, mac: None, since: now, gateway: true, asked: 0, due: None }
}

/// Whether anyone on the port could answer for this address.
fn askable(port: &Port, next_hop: IpAddr) -> bool {
    port.up && !port.point_to_point && not_a_host(next_hop).is_none() && !is_reserved_here(port, next_hop)
}

/// Ours, or the broadcast address of a network of the port.
fn is_reserved_here(port: &Port, address: IpAddr) -> bool {
    port.addresses.iter().any(|a| a.address == address || broadcast_of(a) == Some(address))
}

fn broadcast_of(a: &PortAddress) -> Option<IpAddr> {
    match a.address {
        IpAddr::V4(v4) if a.prefix_len <= 30 => {
            Some(IpAddr::V4((u32::from(v4) | u32::MAX >> a.prefix_len).into()))
        }
        _ => None,
    }
}

/// Whether `address` is in a network of the port, so that whoever says it has it can be believed to be near.
fn is_on_link(port: &Port, address: IpAddr) -> bool {
    link_local(address) || port.addresses.iter().any(|a| a.covers(address))
}

/// The address of ours that `address` is on this port.
fn ours(port: &Port, address: IpAddr) -> Option<&PortAddress> {
    port.addresses.iter().find(|a| a.address == address)
}

fn ours_to_answer(port: &Port, address: IpAddr) -> bool {
    ours(port, address).is_some_and(|a| a.owner == Owner::Weir)
}

/// A MAC a single other station may have.
fn is_sane(port: &Port, mac: Mac) -> bool {
    !ethernet::is_multicast(&mac) && mac != [0; 6] && mac != port.mac
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::packet::DeviceId;
    use crate::tables::{PortKind, ReversePath};
    use crate::wire::build;

    #[derive(Clone, Debug)]
    enum Step {
        Observe(Vec<u8>),
        Resolve(IpAddr),
        AddGateway(IpAddr),
        RemoveGateway(IpAddr),
        SetStatic(IpAddr),
        RemoveStatic(IpAddr),
        Link(bool),
        Wait(Nanos),
    }

    fn port() -> Port {
        let own = |text: &str, prefix_len| {
            let address = text.parse().expect("address");
            PortAddress { address, prefix_len, owner: Owner::Weir }
        };
        Port {
            name: "lan".into(),
            kind: PortKind::Device,
            device: DeviceId(0),
            egress: DeviceId(0),
            vlan: None,
            mac: [2, 0, 0, 0, 0, 0xaa],
            mtu: 1500,
            point_to_point: false,
            up: true,
            reverse_path: ReversePath::Off,
            addresses: vec![own("192.0.2.1", 29), own("2001:db8::1", 64)],
        }
    }

    fn address() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            (0u8..9).prop_map(|n| IpAddr::V4([192, 0, 2, n].into())),
            (0u8..4).prop_map(|n| IpAddr::V6([0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(n)].into())),
        ]
    }

    fn frame() -> impl Strategy<Value = Vec<u8>> {
        let mac = (0u8..4).prop_map(|n| [n, 0, 0, 0, 0, 0xa9 + n]);
        let message = (mac, address(), address(), any::<bool>()).prop_map(|(mac, from, to, asks)| {
            match (from, to, asks) {
                (IpAddr::V4(from), IpAddr::V4(to), true) => build::arp_request((mac, from), to, None),
                (IpAddr::V4(from), IpAddr::V4(to), false) => {
                    build::arp_reply((mac, from), ([2, 0, 0, 0, 0, 0xaa], to), None)
                }
                (IpAddr::V6(from), IpAddr::V6(to), true) => {
                    build::neighbor_solicitation((mac, from), to, None)
                }
                (IpAddr::V6(from), IpAddr::V6(to), false) => {
                    build::neighbor_advertisement((mac, from), ([2, 0, 0, 0, 0, 0xaa], to), false, None)
                }
                _ => Vec::new(),
            }
        });
        // One in five is spoiled in one byte.
        let spoil = prop::option::weighted(0.2, (any::<prop::sample::Index>(), any::<u8>()));
        (message, spoil).prop_map(|(mut message, spoil)| {
            if let Some((at, byte)) = spoil.filter(|_| !message.is_empty()) {
                let at = at.index(message.len());
                message[at] = byte;
            }
            message
        })
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => frame().prop_map(Step::Observe),
            3 => address().prop_map(Step::Resolve),
            1 => address().prop_map(Step::AddGateway),
            1 => address().prop_map(Step::RemoveGateway),
            1 => address().prop_map(Step::SetStatic),
            1 => address().prop_map(Step::RemoveStatic),
            1 => any::<bool>().prop_map(Step::Link),
            3 => (0..20 * SECOND).prop_map(Step::Wait),
        ]
    }

    /// What holds between any two calls.
    fn check(all: &Neighbors, port: &Port, gateways: &HashMap<Key, ()>) {
        let entries = || all.entries.iter();
        assert_eq!(all.loose_ends, entries().filter(|(_, n)| n.is_loose_end()).count());
        let dynamic = |n: &&Neighbor| !n.gateway && n.state != State::Static;
        assert_eq!(all.dynamic, entries().map(|(_, n)| n).filter(dynamic).count());
        let timers: BTreeSet<_> = entries().filter_map(|(&k, n)| Some((n.due?, k))).collect();
        assert_eq!(all.timers, timers);
        for (key, n) in entries() {
            let has_mac = !matches!(n.state, State::Incomplete | State::Failed);
            assert_eq!(has_mac, n.mac.is_some(), "{n:?}");
            assert!(n.mac.is_none_or(|mac| is_sane(port, mac)), "{n:?}");
            assert_eq!(n.gateway, gateways.contains_key(key), "{n:?}");
            let rests = n.state == State::Static || (n.gateway && n.state == State::Failed);
            assert!(n.due.is_some() || rests, "nobody will ever look at {n:?}");
            assert!(n.asked <= SOLICITATIONS);
        }
        for key in gateways.keys() {
            assert!(all.entries.contains_key(key), "a gateway is forgotten");
        }
    }

    proptest! {
        #[test]
        fn whatever_happens_the_table_is_sound(steps in prop::collection::vec(step(), 1..80)) {
            let (mut all, mut port, mut now) = (Neighbors::default(), port(), SECOND);
            let mut gateways = HashMap::new();
            let mut mirror: HashMap<Key, Option<Mac>> = HashMap::new();
            let here = PortId(0);
            for step in steps {
                match step {
                    Step::Observe(frame) => all.handle(now, here, &port, &frame),
                    Step::Resolve(a) => all.resolve(now, here, &port, a),
                    Step::AddGateway(a) => {
                        all.add_gateway(now, here, &port, a);
                        gateways.insert((here, a), ());
                    }
                    Step::RemoveGateway(a) => {
                        all.remove_gateway(here, a);
                        gateways.remove(&(here, a));
                    }
                    Step::SetStatic(a) => all.set_static(now, (here, a), [2, 0, 0, 0, 0, 0x77]),
                    Step::RemoveStatic(a) => all.remove_static(now, here, Some(&port), a),
                    Step::Link(up) => {
                        port.up = up;
                        all.port_changed(now, here, Some(&port));
                    }
                    Step::Wait(time) => {
                        now += time;
                        all.tick(now, std::slice::from_ref(&port));
                        prop_assert!(all.poll_at().is_none_or(|due| due > now), "tick left something undone");
                    }
                }
                check(&all, &port, &gateways);
                // Whoever follows the changes knows as much as whoever looks.
                for key in all.take_changes() {
                    match all.get(key) {
                        Some(n) => mirror.insert(key, n.mac),
                        None => mirror.remove(&key),
                    };
                }
                let truth: HashMap<Key, Option<Mac>> = all.iter().map(|(k, n)| (k, n.mac)).collect();
                prop_assert_eq!(&mirror, &truth);
            }
        }
    }
}
