//! Who is connected: which connection receives for a key, who watches, who must hear that a peer is gone.
//!
//! A state machine without a clock or a socket: each input appends to a list of [`Effect`]s, which the workers carry out
//! in that order. Promises: a key's route is the connection of it that was active last, and another relay's only when
//! none is here; a route is said again only when it changes; everyone who received from a key hears that it is gone
//! once nobody can reach it, here or by the mesh. Refuses (and closes): more connections than its limit, mesh frames of
//! those who are not of the mesh, a connection to itself.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::frame::{Frame, Gone, Key, Presence, present};
use super::{ConnId, Place};

/// What is known of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: Key,
    /// It knows the mesh key.
    pub mesh: bool,
    /// This side made the connection, to another relay: it carries what is forwarded, and receives nothing for a key.
    pub dialled: bool,
    pub prober: bool,
    pub can_ack_pings: bool,
    /// Whether this is the relay of the region that the client likes best.
    pub ideal: bool,
    pub address: SocketAddr,
    pub worker: u16,
    pub slot: u32,
}

/// Where packets for a key go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    /// A client of this relay.
    Local(Place),
    /// Another relay has it: a packet goes there as `ForwardPacket`, unless it came from the mesh itself.
    Mesh(Place),
}

/// What is to be done, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Tells every worker that packets for `key` go there from now on, or nowhere.
    Route {
        key: Key,
        to: Option<Destination>,
    },
    /// Tells a connection whose key is connected more than once. Flagged: it does not receive, and its next frame is to be reported
    /// ([`Registry::active`]). Not flagged: it receives, and need not report.
    Duplicate {
        at: Place,
        flagged: bool,
    },
    /// Whole frames.
    Send {
        to: Place,
        bytes: Vec<u8>,
    },
    Close {
        at: Place,
        why: Closing,
    },
}

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Closing {
    /// Another relay or a tool with the mesh key asked for it.
    ClosePeer,
    /// It sent a frame that is the mesh's, and does not know the mesh key.
    NotMesh,
    /// The relay serves as many connections as it may.
    Full,
    /// The relay is shutting down.
    ShuttingDown,
    /// The relay dialled itself.
    Itself,
}

impl Closing {
    pub fn sentence(self) -> &'static str {
        match self {
            Closing::ClosePeer => "a relay of the mesh asked for it to be closed",
            Closing::NotMesh => "sent a frame that only the mesh may send, without the mesh key",
            Closing::Full => "the relay serves as many connections as it may",
            Closing::ShuttingDown => "the relay is shutting down",
            Closing::Itself => "the relay dialled itself; leave it out of its own mesh",
        }
    }
}

/// What a client is told whose key is used by another client at the same time.
pub const DUPLICATE: &str = "duplicate node key: another device is connected with the key of this one, and packets go to the one \
     that sent last; give each device its own key";
/// How many times connections of one key must have taken over from each other by sending, until their client is told.
///
/// One may be the last frames of a connection that its client has given up; two mean that both are alive.
const CONTESTED: u8 = 2;
/// Frames of one [`Effect::Send`] add up to about this much at most.
const SEND_BYTES: usize = 64 << 10;

/// What there is of a key, here and in the mesh; one of both at least.
#[derive(Debug, Default)]
struct Peer {
    /// Connections of this relay, by when they were active: the last receives.
    here: Vec<ConnId>,
    /// Connections to relays that have it: the first has had it longest, and is used.
    mesh: Vec<ConnId>,
    /// Received from connections that are gone, while the key is not.
    sent_to: BTreeSet<Key>,
    /// Times that another connection became the active one by sending.
    changes: u8,
}

#[derive(Debug)]
pub struct Registry {
    own: Key,
    limit: usize,
    peers: BTreeMap<Key, Peer>,
    connections: BTreeMap<ConnId, Entry>,
    watchers: BTreeSet<ConnId>,
    /// What dialled relays have.
    dialled: BTreeMap<ConnId, BTreeSet<Key>>,
    shutting_down: bool,
}

/// Gauges, counted when asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections of clients and of relays that dialled this one.
    pub connections: usize,
    pub local_keys: usize,
    /// Keys that only other relays have.
    pub mesh_keys: usize,
    /// Keys with more than one connection here, and those connections.
    pub duplicate_keys: usize,
    pub duplicate_connections: usize,
    pub watchers: usize,
    /// Relays dialled.
    pub dialled: usize,
    pub not_ideal: usize,
}

impl Entry {
    fn place(&self, conn: ConnId) -> Place {
        Place { worker: self.worker, slot: self.slot, conn }
    }

    fn presence(&self) -> Presence {
        let flag = |flag, on| if on { flag } else { 0 };
        let flags = flag(present::PROBER, self.prober)
            | flag(present::MESH, self.mesh)
            | flag(present::NOT_IDEAL, !self.ideal);
        let flags = if flags == 0 { present::REGULAR } else { flags };
        Presence { address: self.address.ip(), port: self.address.port(), flags }
    }
}

fn bytes_of(frame: Frame<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.write(&mut bytes);
    bytes
}

impl Registry {
    /// `own` is the server's public key; `limit` counts connections.
    pub fn new(own: Key, limit: usize) -> Registry {
        Registry {
            own,
            limit,
            peers: BTreeMap::new(),
            connections: BTreeMap::new(),
            watchers: BTreeSet::new(),
            dialled: BTreeMap::new(),
            shutting_down: false,
        }
    }

    /// A connection is through its handshake. `conn` was never given before.
    pub fn connect(&mut self, conn: ConnId, entry: Entry, effects: &mut Vec<Effect>) {
        debug_assert!(!self.connections.contains_key(&conn), "connection {conn} is here already");
        let at = entry.place(conn);
        let refused = [
            (self.shutting_down, Closing::ShuttingDown),
            (entry.dialled && entry.key == self.own, Closing::Itself),
            (!entry.dialled && self.connections.len() >= self.limit, Closing::Full),
        ];
        if let Some((_, why)) = refused.into_iter().find(|(refused, _)| *refused) {
            effects.push(Effect::Close { at, why });
            return;
        }
        if entry.dialled {
            self.dialled.insert(conn, BTreeSet::new());
            self.connections.insert(conn, entry);
            return;
        }
        let key = entry.key;
        let presence = entry.presence();
        self.connections.insert(conn, entry);
        let before = self.route(&key);
        self.peers.entry(key).or_default().here.push(conn);
        self.say_route(key, before, effects);
        if let Some(Destination::Local(was)) = before {
            effects.push(Effect::Duplicate { at: was, flagged: true });
            effects.push(Effect::Duplicate { at, flagged: false });
        }
        if self.peers.get(&key).is_some_and(|peer| peer.changes >= CONTESTED) {
            effects.push(Effect::Send { to: at, bytes: bytes_of(Frame::Health(DUPLICATE.as_bytes())) });
        }
        self.tell_watchers(Frame::PeerPresent(key, Some(presence)), effects);
    }

    /// A connection ended; `sent_to` are the keys that received packets from it.
    pub fn disconnect(&mut self, conn: ConnId, sent_to: &[Key], effects: &mut Vec<Effect>) {
        let Some(entry) = self.connections.get(&conn) else { return };
        let key = entry.key;
        if let Some(keys) = self.dialled.remove(&conn) {
            keys.into_iter().for_each(|key| self.forget_mesh(conn, key, &[], effects));
            self.connections.remove(&conn);
            return;
        }
        let before = self.route(&key);
        self.connections.remove(&conn);
        self.watchers.remove(&conn);
        let Some(peer) = self.peers.get_mut(&key) else { return };
        peer.here.retain(|&c| c != conn);
        peer.sent_to.extend(sent_to);
        let settled = peer.here.len() == 1 && std::mem::take(&mut peer.changes) >= CONTESTED;
        let left = peer.here.last().copied();
        self.say_route(key, before, effects);
        match left.and_then(|conn| self.place(conn)) {
            Some(at) => {
                if before != Some(Destination::Local(at)) {
                    effects.push(Effect::Duplicate { at, flagged: false });
                }
                if settled {
                    effects.push(Effect::Send { to: at, bytes: bytes_of(Frame::Health(b"")) });
                }
            }
            None => {
                self.tell_watchers(Frame::PeerGone(key, Gone::Disconnected), effects);
                self.forget_if_gone(key, effects);
            }
        }
    }

    /// A connection is at another worker from now on.
    pub fn moved(&mut self, conn: ConnId, worker: u16, slot: u32, effects: &mut Vec<Effect>) {
        let Some(key) = self.connections.get(&conn).map(|entry| entry.key) else { return };
        let before = self.route(&key);
        if let Some(entry) = self.connections.get_mut(&conn) {
            (entry.worker, entry.slot) = (worker, slot);
        }
        self.say_route(key, before, effects);
    }

    /// What is known of a connection.
    pub fn entry(&self, conn: ConnId) -> Option<&Entry> {
        self.connections.get(&conn)
    }

    /// A connection that was flagged ([`Effect::Duplicate`]) sent something: it receives from now on.
    pub fn active(&mut self, conn: ConnId, effects: &mut Vec<Effect>) {
        let Some(key) = self.connections.get(&conn).map(|entry| entry.key) else { return };
        let Some(peer) = self.peers.get_mut(&key) else { return };
        let before = Registry::route_of(peer, &self.connections);
        let Some(at) = peer.here.iter().position(|&c| c == conn) else { return };
        if at + 1 == peer.here.len() {
            return;
        }
        peer.here.remove(at);
        peer.here.push(conn);
        peer.changes = peer.changes.saturating_add(1);
        let contested = peer.changes == CONTESTED;
        let all = if contested { peer.here.clone() } else { Vec::new() };
        self.say_route(key, before, effects);
        if let Some(Destination::Local(was)) = before {
            effects.push(Effect::Duplicate { at: was, flagged: true });
        }
        effects.extend(self.place(conn).map(|at| Effect::Duplicate { at, flagged: false }));
        for to in all.into_iter().filter_map(|conn| self.place(conn)) {
            effects.push(Effect::Send { to, bytes: bytes_of(Frame::Health(DUPLICATE.as_bytes())) });
        }
    }

    /// A connection asks to hear who is here, now and from now on.
    pub fn watch(&mut self, conn: ConnId, effects: &mut Vec<Effect>) {
        let Some(to) = self.mesh_only(conn, effects) else { return };
        let itself = self.connections.get(&conn).is_some_and(|entry| entry.key == self.own);
        if itself || !self.watchers.insert(conn) {
            return;
        }
        let mut bytes = Vec::new();
        for (&key, peer) in &self.peers {
            let Some(entry) = peer.here.last().and_then(|last| self.connections.get(last)) else { continue };
            Frame::PeerPresent(key, Some(entry.presence())).write(&mut bytes);
            if bytes.len() >= SEND_BYTES {
                effects.push(Effect::Send { to, bytes: std::mem::take(&mut bytes) });
            }
        }
        if !bytes.is_empty() {
            effects.push(Effect::Send { to, bytes });
        }
    }

    /// The relay dialled by `mesh` says that it has `key`.
    pub fn mesh_present(&mut self, mesh: ConnId, key: Key, effects: &mut Vec<Effect>) {
        let Some(keys) = self.dialled.get_mut(&mesh) else { return };
        if key == self.own || !keys.insert(key) {
            return;
        }
        let before = self.route(&key);
        self.peers.entry(key).or_default().mesh.push(mesh);
        self.say_route(key, before, effects);
    }

    /// The relay dialled by `mesh` says that it no longer has `key`; `sent_to` are the keys that received from it.
    pub fn mesh_gone(&mut self, mesh: ConnId, key: Key, sent_to: &[Key], effects: &mut Vec<Effect>) {
        if self.dialled.get_mut(&mesh).is_some_and(|keys| keys.remove(&key)) {
            self.forget_mesh(mesh, key, sent_to, effects);
        }
    }

    /// `listener` received a packet of `key` that came from the mesh: it hears when `key` is gone.
    pub fn note_sent_to(&mut self, key: Key, listener: Key) {
        if let Some(peer) = self.peers.get_mut(&key) {
            peer.sent_to.insert(listener);
        }
    }

    /// A connection of the mesh asks for all connections of a key to be closed.
    pub fn close_peer(&mut self, by: ConnId, key: Key, effects: &mut Vec<Effect>) {
        if self.mesh_only(by, effects).is_none() {
            return;
        }
        let here = self.peers.get(&key).map_or(&[][..], |peer| &peer.here);
        let places = here.iter().filter_map(|&conn| self.place(conn));
        effects.extend(places.map(|at| Effect::Close { at, why: Closing::ClosePeer }));
    }

    /// Everyone is told to come back in `reconnect_in`, and to try for `try_for` (milliseconds); no new connection is accepted.
    pub fn shutdown(&mut self, reconnect_in: u32, try_for: u32, effects: &mut Vec<Effect>) {
        self.shutting_down = true;
        let bytes = bytes_of(Frame::Restarting(reconnect_in, try_for));
        for (&conn, entry) in self.connections.iter().filter(|(_, entry)| !entry.dialled) {
            effects.push(Effect::Send { to: entry.place(conn), bytes: bytes.clone() });
        }
    }

    /// Where packets for a key go now.
    pub fn route(&self, key: &Key) -> Option<Destination> {
        Registry::route_of(self.peers.get(key)?, &self.connections)
    }

    /// A connection, while it is there.
    pub fn get(&self, conn: ConnId) -> Option<&Entry> {
        self.connections.get(&conn)
    }

    /// Every connection, dialled ones too.
    pub fn iter(&self) -> impl Iterator<Item = (ConnId, &Entry)> + '_ {
        self.connections.iter().map(|(&conn, entry)| (conn, entry))
    }

    /// Every key and where its packets go.
    pub fn routes(&self) -> impl Iterator<Item = (Key, Destination)> + '_ {
        let route = |peer| Registry::route_of(peer, &self.connections);
        self.peers.iter().filter_map(move |(&key, peer)| Some((key, route(peer)?)))
    }

    pub fn counts(&self) -> Counts {
        let mut counts = Counts {
            connections: self.connections.len() - self.dialled.len(),
            watchers: self.watchers.len(),
            dialled: self.dialled.len(),
            not_ideal: self.connections.values().filter(|entry| !entry.dialled && !entry.ideal).count(),
            ..Counts::default()
        };
        for peer in self.peers.values() {
            match peer.here.len() {
                0 => counts.mesh_keys += 1,
                1 => counts.local_keys += 1,
                n => {
                    counts.local_keys += 1;
                    counts.duplicate_keys += 1;
                    counts.duplicate_connections += n;
                }
            }
        }
        counts
    }

    fn route_of(peer: &Peer, connections: &BTreeMap<ConnId, Entry>) -> Option<Destination> {
        let place = |conn: &ConnId| connections.get(conn).map(|entry| entry.place(*conn));
        let local = peer.here.last().and_then(place).map(Destination::Local);
        local.or_else(|| peer.mesh.first().and_then(place).map(Destination::Mesh))
    }

    fn place(&self, conn: ConnId) -> Option<Place> {
        self.connections.get(&conn).map(|entry| entry.place(conn))
    }

    /// Where `conn` is, if it may do what only the mesh may; it is closed if not.
    fn mesh_only(&self, conn: ConnId, effects: &mut Vec<Effect>) -> Option<Place> {
        let entry = self.connections.get(&conn)?;
        let at = entry.place(conn);
        if entry.mesh && !entry.dialled {
            return Some(at);
        }
        effects.push(Effect::Close { at, why: Closing::NotMesh });
        None
    }

    fn say_route(&self, key: Key, before: Option<Destination>, effects: &mut Vec<Effect>) {
        let to = self.route(&key);
        if to != before {
            effects.push(Effect::Route { key, to });
        }
    }

    fn tell_watchers(&self, frame: Frame<'_>, effects: &mut Vec<Effect>) {
        if self.watchers.is_empty() {
            return;
        }
        let bytes = bytes_of(frame);
        let places = self.watchers.iter().filter_map(|&conn| self.place(conn));
        effects.extend(places.map(|to| Effect::Send { to, bytes: bytes.clone() }));
    }

    /// `mesh` has `key` no longer.
    fn forget_mesh(&mut self, mesh: ConnId, key: Key, sent_to: &[Key], effects: &mut Vec<Effect>) {
        let before = self.route(&key);
        let Some(peer) = self.peers.get_mut(&key) else { return };
        peer.mesh.retain(|&m| m != mesh);
        peer.sent_to.extend(sent_to);
        self.say_route(key, before, effects);
        self.forget_if_gone(key, effects);
    }

    /// Once a key is neither here nor in the mesh, those hear of it who received from it.
    fn forget_if_gone(&mut self, key: Key, effects: &mut Vec<Effect>) {
        let gone = |peer: &Peer| peer.here.is_empty() && peer.mesh.is_empty();
        if !self.peers.get(&key).is_some_and(gone) {
            return;
        }
        let Some(Peer { sent_to, .. }) = self.peers.remove(&key) else { return };
        let bytes = bytes_of(Frame::PeerGone(key, Gone::Disconnected));
        for listener in sent_to.iter().filter_map(|listener| self.peers.get(listener)) {
            let places = listener.here.iter().filter_map(|&conn| self.place(conn));
            effects.extend(places.map(|to| Effect::Send { to, bytes: bytes.clone() }));
        }
    }
}
