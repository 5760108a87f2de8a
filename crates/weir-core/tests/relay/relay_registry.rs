//! What the relay's registry decides, seen from outside: the frames and routes that come of what happens.
//!
//! Promises checked: behaviours one by one, and any sequence of inputs against a model that keeps no state but what
//! happened, in order.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use weir_core::relay::frame::{self, Frame, Gone, HEADER, KEY, Key, present};
use weir_core::relay::registry::{Closing, DUPLICATE, Destination, Effect, Entry, Registry};
use weir_core::relay::{ConnId, Place};

const OWN: Key = Key([0; KEY]);
const ALICE: Key = Key([1; KEY]);
const BOB: Key = Key([2; KEY]);
const CAROL: Key = Key([3; KEY]);
/// Another relay.
const OTHER: Key = Key([8; KEY]);

fn entry(key: Key, conn: ConnId) -> Entry {
    Entry {
        key,
        mesh: false,
        dialled: false,
        prober: false,
        can_ack_pings: false,
        ideal: true,
        address: ([192, 0, 2, 1], conn as u16).into(),
        worker: (conn % 2) as u16,
        slot: conn as u32,
    }
}

fn place(conn: ConnId) -> Place {
    Place { worker: (conn % 2) as u16, slot: conn as u32, conn }
}

/// A registry, and what became of its effects.
struct NaiveRelay {
    registry: Registry,
    routes: BTreeMap<Key, Destination>,
    flagged: BTreeSet<ConnId>,
    closed: Vec<(ConnId, Closing)>,
    /// Everything sent since it was last looked at.
    sent: Vec<(ConnId, Notice)>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Notice {
    Gone(Key),
    /// Port and flags.
    Present(Key, u16, u8),
    Health(String),
    Restarting(u32, u32),
}

fn said(bytes: &[u8]) -> Vec<Notice> {
    let (mut at, mut all) = (0, Vec::new());
    while let Some((code, length)) = frame::head(&bytes[at..]) {
        let payload = &bytes[at + HEADER..at + HEADER + length];
        all.push(match Frame::parse(code, payload).expect("well formed") {
            Frame::PeerGone(key, Gone::Disconnected) => Notice::Gone(key),
            Frame::PeerPresent(key, Some(at)) => Notice::Present(key, at.port, at.flags),
            Frame::Health(text) => Notice::Health(String::from_utf8_lossy(text).into_owned()),
            Frame::Restarting(reconnect, attempt) => Notice::Restarting(reconnect, attempt),
            other => panic!("the registry does not say {other:?}"),
        });
        at += HEADER + length;
    }
    assert_eq!(at, bytes.len(), "whole frames");
    all
}

impl NaiveRelay {
    fn new() -> NaiveRelay {
        NaiveRelay {
            registry: Registry::new(OWN, 1000),
            routes: BTreeMap::new(),
            flagged: BTreeSet::new(),
            closed: Vec::new(),
            sent: Vec::new(),
        }
    }

    fn run(&mut self, input: impl FnOnce(&mut Registry, &mut Vec<Effect>)) {
        let mut effects = Vec::new();
        input(&mut self.registry, &mut effects);
        for effect in effects {
            match effect {
                Effect::Route { key, to: Some(to) } => assert_ne!(self.routes.insert(key, to), Some(to)),
                Effect::Route { key, to: None } => assert!(self.routes.remove(&key).is_some()),
                Effect::Duplicate { at, flagged: true } => assert!(self.flagged.insert(at.conn)),
                Effect::Duplicate { at, flagged: false } => drop(self.flagged.remove(&at.conn)),
                Effect::Send { to, bytes } => {
                    assert_eq!(to, place(to.conn));
                    self.sent.extend(said(&bytes).into_iter().map(|said| (to.conn, said)));
                }
                Effect::Close { at, why } => self.closed.push((at.conn, why)),
            }
        }
    }

    fn connect(&mut self, conn: ConnId, key: Key) {
        self.run(|registry, effects| registry.connect(conn, entry(key, conn), effects));
    }

    fn connect_mesh(&mut self, conn: ConnId, key: Key) {
        let entry = Entry { mesh: true, ..entry(key, conn) };
        self.run(|registry, effects| registry.connect(conn, entry, effects));
    }

    fn dial(&mut self, conn: ConnId, key: Key) {
        let entry = Entry { mesh: true, dialled: true, ..entry(key, conn) };
        self.run(|registry, effects| registry.connect(conn, entry, effects));
    }

    fn disconnect(&mut self, conn: ConnId, sent_to: &[Key]) {
        self.flagged.remove(&conn);
        self.run(|registry, effects| registry.disconnect(conn, sent_to, effects));
    }

    fn active(&mut self, conn: ConnId) {
        self.run(|registry, effects| registry.active(conn, effects));
    }

    fn watch(&mut self, conn: ConnId) {
        self.run(|registry, effects| registry.watch(conn, effects));
    }

    fn mesh_present(&mut self, conn: ConnId, key: Key) {
        self.run(|registry, effects| registry.mesh_present(conn, key, effects));
    }

    fn mesh_gone(&mut self, conn: ConnId, key: Key, sent_to: &[Key]) {
        self.run(|registry, effects| registry.mesh_gone(conn, key, sent_to, effects));
    }

    fn local(&self, key: Key) -> Option<ConnId> {
        match self.routes.get(&key) {
            Some(Destination::Local(at)) => Some(at.conn),
            _ => None,
        }
    }

    fn mesh(&self, key: Key) -> Option<ConnId> {
        match self.routes.get(&key) {
            Some(Destination::Mesh(at)) => Some(at.conn),
            _ => None,
        }
    }

    /// What was said to one connection; the rest is forgotten too.
    fn heard(&mut self, conn: ConnId) -> Vec<Notice> {
        self.sent.drain(..).filter(|(to, _)| *to == conn).map(|(_, said)| said).collect()
    }
}

#[test]
fn a_client_is_routed_to_while_it_is_connected() {
    let mut relay = NaiveRelay::new();
    relay.connect(1, ALICE);
    assert_eq!(relay.routes.get(&ALICE), Some(&Destination::Local(place(1))));
    relay.disconnect(1, &[]);
    assert_eq!(relay.routes.get(&ALICE), None);
    assert_eq!(relay.registry.iter().count(), 0);
}

#[test]
fn those_who_received_from_a_peer_hear_that_it_is_gone_and_nobody_else() {
    let mut relay = NaiveRelay::new();
    [(1, ALICE), (2, BOB), (3, CAROL)].into_iter().for_each(|(conn, key)| relay.connect(conn, key));
    relay.disconnect(1, &[BOB, OTHER]);
    assert_eq!(relay.sent, [(2, Notice::Gone(ALICE))]);
}

#[test]
fn a_client_that_reconnects_receives_on_its_new_connection_and_nobody_hears_of_it() {
    let mut relay = NaiveRelay::new();
    relay.connect(2, BOB);
    relay.connect(1, ALICE);
    relay.connect(3, ALICE);
    assert_eq!(relay.local(ALICE), Some(3));
    relay.disconnect(1, &[BOB]);
    assert_eq!(relay.local(ALICE), Some(3));
    assert_eq!(relay.heard(2), []);
    assert!(relay.flagged.is_empty() && relay.closed.is_empty());
    // What the old connection's peers received is not forgotten with it.
    relay.disconnect(3, &[]);
    assert_eq!(relay.heard(2), [Notice::Gone(ALICE)]);
}

#[test]
fn of_a_key_connected_twice_the_one_that_sent_last_receives_and_both_stay() {
    let mut relay = NaiveRelay::new();
    relay.connect(1, ALICE);
    relay.connect(2, ALICE);
    assert_eq!(relay.flagged, BTreeSet::from([1]));
    relay.active(1);
    assert_eq!(relay.local(ALICE), Some(1));
    assert_eq!(relay.flagged, BTreeSet::from([2]));
    relay.active(2);
    assert_eq!(relay.local(ALICE), Some(2));
    assert!(relay.closed.is_empty());
    relay.disconnect(2, &[]);
    assert_eq!(relay.local(ALICE), Some(1));
    assert!(relay.flagged.is_empty());
}

#[test]
fn the_one_active_before_receives_when_the_active_one_leaves() {
    let mut relay = NaiveRelay::new();
    (1..=3).for_each(|conn| relay.connect(conn, ALICE));
    relay.active(1);
    assert_eq!(relay.flagged, BTreeSet::from([2, 3]));
    relay.disconnect(1, &[]);
    assert_eq!(relay.local(ALICE), Some(3));
    assert_eq!(relay.flagged, BTreeSet::from([2]));
}

#[test]
fn two_that_fight_over_a_key_are_told_and_the_one_that_stays_is_told_when_it_is_over() {
    let mut relay = NaiveRelay::new();
    relay.connect(1, ALICE);
    relay.connect(2, ALICE);
    relay.active(1);
    assert_eq!(relay.sent, [], "last words of a connection are no fight");
    relay.active(2);
    let ill = Notice::Health(DUPLICATE.into());
    assert_eq!(relay.sent, [(1, ill.clone()), (2, ill.clone())]);
    relay.sent.clear();
    relay.active(1);
    assert_eq!(relay.sent, [], "it is said once");
    relay.connect(3, ALICE);
    assert_eq!(relay.heard(3), [ill]);
    relay.disconnect(3, &[]);
    relay.disconnect(1, &[]);
    assert_eq!(relay.sent, [(2, Notice::Health(String::new()))]);
}

#[test]
fn a_watcher_hears_who_is_here_and_then_who_comes_and_goes() {
    let mut relay = NaiveRelay::new();
    relay.connect(1, ALICE);
    relay.connect_mesh(9, OTHER);
    relay.watch(9);
    let here = [Notice::Present(ALICE, 1, present::REGULAR), Notice::Present(OTHER, 9, present::MESH)];
    assert_eq!(relay.heard(9), here);
    relay.watch(9);
    assert_eq!(relay.heard(9), [], "asking again changes nothing");
    let prober = Entry { prober: true, ideal: false, ..entry(BOB, 2) };
    relay.run(|registry, effects| registry.connect(2, prober, effects));
    assert_eq!(relay.heard(9), [Notice::Present(BOB, 2, present::PROBER | present::NOT_IDEAL)]);
    relay.connect(3, BOB);
    relay.sent.clear();
    relay.disconnect(2, &[]);
    assert_eq!(relay.heard(9), [], "another connection of it is here");
    relay.disconnect(3, &[]);
    assert_eq!(relay.heard(9), [Notice::Gone(BOB)]);
    relay.disconnect(9, &[]);
    relay.disconnect(1, &[]);
    assert_eq!(relay.sent, []);
}

#[test]
fn frames_of_the_mesh_from_a_client_end_its_connection() {
    let mut relay = NaiveRelay::new();
    relay.connect(1, ALICE);
    relay.connect(2, BOB);
    relay.watch(1);
    relay.run(|registry, effects| registry.close_peer(2, ALICE, effects));
    assert_eq!(relay.closed, [(1, Closing::NotMesh), (2, Closing::NotMesh)]);
    assert_eq!(relay.sent, []);
    relay.mesh_present(1, CAROL);
    assert_eq!(relay.mesh(CAROL), None);
}

#[test]
fn the_mesh_can_have_every_connection_of_a_key_closed() {
    let mut relay = NaiveRelay::new();
    relay.connect(1, ALICE);
    relay.connect(2, ALICE);
    relay.connect(3, BOB);
    relay.connect_mesh(9, OTHER);
    relay.run(|registry, effects| registry.close_peer(9, ALICE, effects));
    assert_eq!(relay.closed, [(1, Closing::ClosePeer), (2, Closing::ClosePeer)]);
}

#[test]
fn a_key_that_another_relay_has_is_reached_there_unless_it_is_here() {
    let mut relay = NaiveRelay::new();
    relay.dial(8, OTHER);
    assert_eq!(relay.routes.get(&OTHER), None, "a relay that was dialled is no client");
    relay.mesh_present(8, ALICE);
    assert_eq!(relay.mesh(ALICE), Some(8));
    relay.connect(1, ALICE);
    assert_eq!(relay.local(ALICE), Some(1));
    relay.disconnect(1, &[]);
    assert_eq!(relay.mesh(ALICE), Some(8));
    relay.mesh_gone(8, ALICE, &[]);
    assert_eq!(relay.routes.get(&ALICE), None);
}

#[test]
fn who_moved_to_another_relay_is_not_gone() {
    let mut relay = NaiveRelay::new();
    relay.dial(8, OTHER);
    relay.connect(1, ALICE);
    relay.connect(2, BOB);
    relay.mesh_present(8, ALICE);
    relay.disconnect(1, &[BOB]);
    assert_eq!(relay.heard(2), []);
    relay.mesh_gone(8, ALICE, &[]);
    assert_eq!(relay.heard(2), [Notice::Gone(ALICE)]);
}

#[test]
fn who_received_from_the_mesh_hears_when_that_peer_is_gone() {
    let mut relay = NaiveRelay::new();
    relay.dial(8, OTHER);
    relay.connect(2, BOB);
    relay.connect(3, CAROL);
    relay.mesh_present(8, ALICE);
    relay.registry.note_sent_to(ALICE, BOB);
    relay.mesh_gone(8, ALICE, &[CAROL]);
    assert_eq!(relay.sent, [(2, Notice::Gone(ALICE)), (3, Notice::Gone(ALICE))]);
}

#[test]
fn a_relay_that_is_lost_takes_its_keys_with_it() {
    let mut relay = NaiveRelay::new();
    relay.dial(7, CAROL);
    relay.dial(8, OTHER);
    relay.mesh_present(7, ALICE);
    relay.mesh_present(8, ALICE);
    relay.mesh_present(8, BOB);
    assert_eq!(relay.mesh(ALICE), Some(7), "the first to have it");
    relay.disconnect(7, &[]);
    assert_eq!(relay.mesh(ALICE), Some(8));
    relay.disconnect(8, &[]);
    assert!(relay.routes.is_empty());
}

#[test]
fn a_relay_that_dials_itself_notices() {
    let mut relay = NaiveRelay::new();
    relay.dial(8, OWN);
    assert_eq!(relay.closed, [(8, Closing::Itself)]);
    relay.connect(1, ALICE);
    relay.connect_mesh(9, OWN);
    relay.watch(9);
    assert_eq!(relay.heard(9), [], "it is told nothing it knows itself");
    relay.dial(7, OTHER);
    relay.mesh_present(7, OWN);
    assert_eq!(relay.mesh(OWN), None);
}

#[test]
fn no_more_than_the_limit_are_served() {
    let mut relay = NaiveRelay { registry: Registry::new(OWN, 2), ..NaiveRelay::new() };
    (1..=3).for_each(|conn| relay.connect(conn, Key([conn as u8; KEY])));
    assert_eq!(relay.closed, [(3, Closing::Full)]);
    relay.disconnect(3, &[]);
    relay.disconnect(1, &[]);
    relay.connect(4, ALICE);
    assert_eq!(relay.local(ALICE), Some(4));
}

#[test]
fn everyone_is_told_of_a_shutdown_and_nobody_new_is_taken() {
    let mut relay = NaiveRelay::new();
    relay.connect(1, ALICE);
    relay.connect_mesh(9, OTHER);
    relay.dial(8, OTHER);
    relay.run(|registry, effects| registry.shutdown(10, 2000, effects));
    assert_eq!(relay.sent, [(1, Notice::Restarting(10, 2000)), (9, Notice::Restarting(10, 2000))]);
    relay.connect(2, BOB);
    assert_eq!(relay.closed, [(2, Closing::ShuttingDown)]);
}

#[test]
fn a_long_list_for_a_watcher_comes_in_parts_and_whole() {
    let mut relay = NaiveRelay::new();
    let mut registry = Registry::new(OWN, 10_000);
    for conn in 1..=5000u64 {
        let mut key = [0; KEY];
        key[..8].copy_from_slice(&conn.to_be_bytes());
        registry.connect(conn, entry(Key(key), conn), &mut Vec::new());
    }
    registry.connect(9000, Entry { mesh: true, ..entry(OTHER, 9000) }, &mut Vec::new());
    relay.registry = registry;
    let mut parts = 0;
    relay.run(|registry, effects| {
        registry.watch(9000, effects);
        parts = effects.len();
    });
    assert_eq!(relay.heard(9000).len(), 5001);
    assert!(parts > 1, "{parts} part");
}

#[test]
fn counts_are_of_what_is_there() {
    let mut relay = NaiveRelay::new();
    relay.connect(1, ALICE);
    relay.connect(2, ALICE);
    relay.connect(3, BOB);
    relay.connect_mesh(9, OTHER);
    relay.dial(8, OTHER);
    relay.mesh_present(8, ALICE);
    relay.mesh_present(8, CAROL);
    relay.watch(9);
    let counts = relay.registry.counts();
    assert_eq!((counts.connections, counts.local_keys, counts.mesh_keys), (4, 3, 1));
    assert_eq!((counts.duplicate_keys, counts.duplicate_connections), (1, 2));
    assert_eq!((counts.watchers, counts.dialled, counts.not_ideal), (1, 1, 0));
}

/// What can happen; connections are named by their place among all there ever were.
#[derive(Clone, Debug)]
enum Input {
    Connect(u8, Sort),
    Disconnect(usize, Vec<u8>),
    Active(usize),
    Watch(usize),
    MeshPresent(usize, u8),
    MeshGone(usize, u8, Vec<u8>),
    SentTo(u8, u8),
    ClosePeer(usize, u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    Client,
    Mesh,
    Dialled,
}

fn input() -> impl Strategy<Value = Input> {
    let key = || 1..6u8;
    let keys = || prop::collection::vec(1..6u8, 0..3);
    let conn = || any::<prop::sample::Index>().prop_map(|index| index.index(1 << 16));
    let sort = prop_oneof![5 => Just(Sort::Client), 1 => Just(Sort::Mesh), 1 => Just(Sort::Dialled)];
    prop_oneof![
        6 => (key(), sort).prop_map(|(key, sort)| Input::Connect(key, sort)),
        4 => (conn(), keys()).prop_map(|(conn, keys)| Input::Disconnect(conn, keys)),
        4 => conn().prop_map(Input::Active),
        2 => conn().prop_map(Input::Watch),
        4 => (conn(), key()).prop_map(|(conn, key)| Input::MeshPresent(conn, key)),
        3 => (conn(), key(), keys()).prop_map(|(conn, key, keys)| Input::MeshGone(conn, key, keys)),
        2 => (key(), key()).prop_map(|(key, by)| Input::SentTo(key, by)),
        1 => (conn(), key()).prop_map(|(conn, key)| Input::ClosePeer(conn, key)),
    ]
}

/// Who is there and since when, in plain lists: everything else is worked out when asked for.
#[derive(Default)]
struct Model {
    /// Connection, key, sort, when it was last active.
    here: Vec<(ConnId, Key, Sort, usize)>,
    /// What dialled relays said they have, in that order.
    mesh: Vec<(ConnId, Key)>,
    watchers: Vec<ConnId>,
    /// Key, and who received from it.
    heard: BTreeSet<(Key, Key)>,
    time: usize,
}

impl Model {
    fn sort(&self, conn: ConnId) -> Option<Sort> {
        self.here.iter().find(|here| here.0 == conn).map(|here| here.2)
    }

    fn conns(&self, key: Key) -> Vec<ConnId> {
        let mut all: Vec<_> =
            self.here.iter().filter(|here| here.1 == key && here.2 != Sort::Dialled).collect();
        all.sort_by_key(|here| here.3);
        all.into_iter().map(|here| here.0).collect()
    }

    fn route(&self, key: Key) -> Option<Destination> {
        let local = self.conns(key).last().map(|&conn| Destination::Local(place(conn)));
        let mesh = self.mesh.iter().find(|mesh| mesh.1 == key);
        local.or(mesh.map(|mesh| Destination::Mesh(place(mesh.0))))
    }

    /// Who hears of keys that are gone now, and were not before.
    fn farewells(&mut self, before: &[Key]) -> BTreeSet<(ConnId, Notice)> {
        let mut told = BTreeSet::new();
        let now = self.keys();
        for &key in before.iter().filter(|key| !now.contains(key)) {
            let listeners: Vec<Key> = self.heard.iter().filter(|h| h.0 == key).map(|h| h.1).collect();
            told.extend(
                listeners.into_iter().flat_map(|l| self.conns(l)).map(|conn| (conn, Notice::Gone(key))),
            );
            self.heard.retain(|heard| heard.0 != key);
        }
        told
    }

    fn keys(&self) -> Vec<Key> {
        (1..6).map(|n| Key([n; KEY])).filter(|&key| self.route(key).is_some()).collect()
    }

    fn local_keys(&self) -> BTreeSet<Key> {
        self.here.iter().filter(|here| here.2 != Sort::Dialled).map(|here| here.1).collect()
    }

    /// Carries an input out, on both sides; who must be told that a peer is gone.
    fn step(
        &mut self,
        relay: &mut NaiveRelay,
        input: &Input,
        next: &mut ConnId,
    ) -> BTreeSet<(ConnId, Notice)> {
        let key = |n: &u8| Key([*n; KEY]);
        let keys = |all: &[u8]| all.iter().map(key).collect::<Vec<Key>>();
        let conn = |at: &usize| *at as ConnId % *next;
        let before = self.keys();
        self.time += 1;
        match input {
            Input::Connect(n, sort) => {
                match sort {
                    Sort::Client => relay.connect(*next, key(n)),
                    Sort::Mesh => relay.connect_mesh(*next, key(n)),
                    Sort::Dialled => relay.dial(*next, key(n)),
                }
                self.here.push((*next, key(n), *sort, self.time));
                *next += 1;
            }
            Input::Disconnect(at, by) => {
                relay.disconnect(conn(at), &keys(by));
                if let Some(&(_, key, sort, _)) = self.here.iter().find(|here| here.0 == conn(at))
                    && sort != Sort::Dialled
                {
                    self.heard.extend(keys(by).into_iter().map(|by| (key, by)));
                }
                self.here.retain(|here| here.0 != conn(at));
                self.mesh.retain(|mesh| mesh.0 != conn(at));
                self.watchers.retain(|&watcher| watcher != conn(at));
            }
            Input::Active(at) => {
                relay.active(conn(at));
                let time = self.time;
                self.here.iter_mut().filter(|here| here.0 == conn(at)).for_each(|here| here.3 = time);
            }
            Input::Watch(at) => {
                relay.watch(conn(at));
                if self.sort(conn(at)) == Some(Sort::Mesh) && !self.watchers.contains(&conn(at)) {
                    self.watchers.push(conn(at));
                }
            }
            Input::MeshPresent(at, n) => {
                relay.mesh_present(conn(at), key(n));
                if self.sort(conn(at)) == Some(Sort::Dialled) && !self.mesh.contains(&(conn(at), key(n))) {
                    self.mesh.push((conn(at), key(n)));
                }
            }
            Input::MeshGone(at, n, by) => {
                relay.mesh_gone(conn(at), key(n), &keys(by));
                if self.mesh.contains(&(conn(at), key(n))) {
                    self.heard.extend(keys(by).into_iter().map(|by| (key(n), by)));
                    self.mesh.retain(|mesh| *mesh != (conn(at), key(n)));
                }
            }
            Input::SentTo(n, by) => {
                relay.registry.note_sent_to(key(n), key(by));
                if self.route(key(n)).is_some() {
                    self.heard.insert((key(n), key(by)));
                }
            }
            Input::ClosePeer(at, n) => {
                relay.closed.clear();
                relay.run(|registry, effects| registry.close_peer(conn(at), key(n), effects));
                let closed: BTreeSet<_> = relay.closed.drain(..).map(|(conn, _)| conn).collect();
                let expected: Vec<ConnId> = match self.sort(conn(at)) {
                    Some(Sort::Mesh) => self.conns(key(n)),
                    Some(_) => vec![conn(at)],
                    None => Vec::new(),
                };
                assert_eq!(closed, expected.into_iter().collect());
            }
        }
        self.farewells(&before)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 300 } else { 5000 }))]

    #[test]
    fn any_sequence_ends_as_a_plain_list_of_what_happened_says(inputs in prop::collection::vec(input(), 1..80)) {
        let (mut relay, mut model, mut next) = (NaiveRelay::new(), Model::default(), 1);
        // What each watcher believes, and who was told that its key is used twice.
        let mut beliefs: BTreeMap<ConnId, BTreeSet<Key>> = BTreeMap::new();
        let mut ill: BTreeSet<ConnId> = BTreeSet::new();
        for input in &inputs {
            let mut farewells = model.step(&mut relay, input, &mut next);
            for (conn, said) in relay.sent.drain(..).collect::<Vec<_>>() {
                let watches = model.watchers.contains(&conn);
                match said {
                    Notice::Present(key, ..) => drop(beliefs.entry(conn).or_default().insert(key)),
                    Notice::Health(text) if text.is_empty() => prop_assert!(ill.remove(&conn)),
                    Notice::Health(_) => prop_assert!(ill.insert(conn)),
                    Notice::Gone(key) => {
                        // A watcher may hear it in both its roles.
                        let known = watches && beliefs.entry(conn).or_default().remove(&key);
                        prop_assert!(known || farewells.remove(&(conn, Notice::Gone(key))), "{conn} hears of {key}");
                    }
                    Notice::Restarting(..) => prop_assert!(false),
                }
            }
            prop_assert!(farewells.is_empty(), "untold: {farewells:?}");
            for n in 0..6 {
                let key = Key([n; KEY]);
                prop_assert_eq!(relay.routes.get(&key).copied(), model.route(key));
                prop_assert_eq!(relay.registry.route(&key), model.route(key));
            }
            for watcher in &model.watchers {
                prop_assert_eq!(beliefs.get(watcher).cloned().unwrap_or_default(), model.local_keys());
            }
            for here in model.here.iter().filter(|here| here.2 != Sort::Dialled) {
                let conns = model.conns(here.1);
                prop_assert_eq!(relay.flagged.contains(&here.0), conns.last() != Some(&here.0));
                prop_assert!(conns.len() > 1 || !ill.contains(&here.0), "alone, and not told so");
            }
        }
    }
}
