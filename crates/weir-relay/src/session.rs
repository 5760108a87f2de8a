//! A worker's share of the relay without its sockets, threads and clock: bytes, events and commands in, actions and events out.
//!
//! ```text
//!  begin_turn(now) ─► command, take_batch, received, sent, writable, ended, failed … ─► end_turn ─┐
//!        ▲                                                                                        ▼
//!        └──────────── whoever has the sockets ◄── actions, events, hand_over, timeout ◄──────────┘
//! ```
//!
//! Promises: the same calls with the same seeds give the same actions; no call blocks, and none reads a clock; no lock and no
//! allocation a frame; what a call asks of a socket is an [`Action`], in order. Of streams it takes for granted what
//! [`weir_io::stream`] promises: one answer to each send, nothing of a stream after its end. Refuses: to let a connection that
//! is gone keep anything: what waited for it is dropped and counted.

use std::net::SocketAddr;

use weir_core::random::SplitMix64;
use weir_core::relay::frame::{Frame, Kind};
use weir_core::relay::{ConnId, Key, Place, Reason};
use weir_core::time::{MILLISECOND, Nanos, SECOND};
use weir_io::stream::{Buffers, Counters};
use weir_io::tls;

use self::client::{Client, SendState, Who, WriteBatch};
use self::moving::Held;
use self::outgoing::Outgoing;
use self::routes::{KeyHash, Routes};
use self::sort::Sorted;
use self::timers::{Due, Timers};
use self::transport::{Tls, Transport};
use super::Role;
use super::backlog::{self, BufferPool};
use super::counters::{End, Tally};
use super::report::{Connection, WorkerReport};
use super::settings::{Engine, Rates};
use super::websocket::Unframer;

mod client;
mod inbound;
mod messages;
mod moving;
mod outbound;
mod outgoing;
mod routes;
mod sort;
mod timers;
mod transport;

pub use self::client::memory_most;
pub use self::messages::{Action, Command, Event};
pub use self::moving::{CROSSINGS, Departed};
pub use self::outgoing::CrossWorkerBatch;

/// How often full sockets are looked at for those that take nothing.
const STALLED_CHECK_EVERY: Nanos = 100 * MILLISECOND;
/// The time between two keepalives of a client is up to this much longer, so that they do not all come at once.
const JITTER: Nanos = 5 * SECOND;
/// Connections whose memory is added up in one second.
const MEASURED: usize = 16 << 10;

/// What a session begins with.
#[derive(Debug)]
pub struct Setup {
    /// Number of the worker whose session it is, among `workers`.
    pub number: u16,
    pub workers: usize,
    pub engine: Engine,
    /// Where received bytes come in, and sealed records are written.
    pub buffers: Buffers,
    /// Seed of the hashes of keys: nobody else may know it.
    pub secret: u64,
    /// Seed of the keepalives' times: spread, not secret.
    pub jitter: u64,
    pub now: Nanos,
}

/// A connection without its socket.
#[derive(Debug)]
pub struct NewConn {
    pub key: Key,
    pub role: Role,
    pub address: SocketAddr,
    pub tls: TlsLayer,
    pub websocket: Option<Box<Unframer>>,
    /// Frames to be sent before all others.
    pub greeting: Vec<u8>,
    /// Plaintext that has come already, and ciphertext.
    pub early: Vec<u8>,
    pub unread: Vec<u8>,
    pub rates: Rates,
}

/// What TLS leaves a session to do.
#[derive(Debug)]
pub enum TlsLayer {
    Off,
    Session(tls::Session),
    /// Bytes that come and go are plaintext.
    Kernel,
}

/// Clients of one worker, and what is known of all others.
#[derive(Debug)]
pub struct Session {
    number: u16,
    engine: Engine,
    buffers: Buffers,
    actions: Vec<Action>,
    events: Vec<Event>,
    /// What goes to each other worker; nothing at this one's own number.
    others: Vec<Outgoing>,

    clients: Vec<Option<Box<Client>>>,
    routes: Routes,
    hash: KeyHash,
    /// Slots with something to send.
    dirty: Vec<u32>,
    /// Connections whose socket is full.
    full_sockets: Vec<(u32, ConnId)>,
    stalled_check_at: Nanos,
    timers: Timers,
    sorted: Sorted,
    pool: BufferPool,
    batches: Vec<WriteBatch>,
    writes_in_flight: usize,
    tally: Tally,
    now: Nanos,
    random: SplitMix64,
    /// Everybody is disconnected, at the latest then.
    drain_until: Option<Nanos>,
    /// What is for a client that is between two workers.
    held: Option<Box<Held>>,
    measure: Measure,
}

/// Memory of connections, added up a part at a time.
#[derive(Debug, Default)]
struct Measure {
    at: usize,
    sum: usize,
    next: Nanos,
}

#[inline]
fn client_of(clients: &mut [Option<Box<Client>>], slot: u32) -> Option<&mut Client> {
    clients.get_mut(slot as usize)?.as_deref_mut()
}

impl Session {
    pub fn new(setup: Setup) -> Session {
        let Setup { number, workers, engine, buffers, secret, jitter, now } = setup;
        let hash = KeyHash::new(&mut SplitMix64::new(secret));
        Session {
            number,
            engine,
            buffers,
            actions: Vec::new(),
            events: Vec::new(),
            others: std::iter::repeat_with(Outgoing::default).take(workers).collect(),
            clients: Vec::new(),
            routes: Routes::new(number, hash),
            hash,
            dirty: Vec::new(),
            full_sockets: Vec::new(),
            stalled_check_at: 0,
            timers: Timers::default(),
            sorted: Sorted::default(),
            pool: BufferPool::default(),
            batches: Vec::new(),
            writes_in_flight: 0,
            tally: Tally::default(),
            now,
            random: SplitMix64::new(jitter),
            drain_until: None,
            held: None,
            measure: Measure::default(),
        }
    }

    /// All that follows happens at `now`.
    pub fn begin_turn(&mut self, now: Nanos) {
        self.now = now;
    }

    /// Does what is due, and sends what waits.
    pub fn end_turn(&mut self) {
        self.tick();
        self.flush_all();
        if self.now >= self.measure.next {
            self.measure();
        }
        self.tally.turns += 1;
    }

    /// The connection at this slot, of a client that may be moved.
    pub fn client_at(&self, slot: u32) -> Option<ConnId> {
        let client = self.clients.get(slot as usize)?.as_deref()?;
        (client.role == Role::Client).then_some(client.conn)
    }

    /// Whether clients may be moved to other workers.
    pub fn may_move(&self) -> bool {
        self.engine.colocate && self.others.len() > 1
    }

    /// What is to be done with streams, in this order.
    pub fn actions(&mut self) -> std::vec::Drain<'_, Action> {
        self.actions.drain(..)
    }

    /// What the registrar is to hear, in this order.
    pub fn events(&mut self) -> std::vec::Drain<'_, Event> {
        self.events.drain(..)
    }

    /// How full the ring to `worker` is: batches that it has not taken, and room for more. Told at the beginning of a turn.
    pub fn note_ring(&mut self, worker: usize, untaken: usize, free: usize) {
        if let Some(other) = self.others.get_mut(worker) {
            other.note_ring(untaken, free);
        }
    }

    /// Gives `push` what there is for the clients of `worker`, in order; what it gives back is dropped and counted. Whether
    /// there was anything.
    pub fn hand_over(
        &mut self,
        worker: usize,
        push: impl FnMut(CrossWorkerBatch) -> Result<(), CrossWorkerBatch>,
    ) -> bool {
        let (tally, pool) = (&mut self.tally, &mut self.pool);
        self.others.get_mut(worker).is_some_and(|other| other.send(push, tally, pool))
    }

    /// How long the next turn may wait for events; `None`: for ever.
    pub fn timeout(&self) -> Option<Nanos> {
        // What was submitted to be sent is answered at once.
        if self.writes_in_flight > 0 || !self.dirty.is_empty() {
            return Some(0);
        }
        let idle = self.full_sockets.is_empty() && self.drain_until.is_none();
        let check = (!idle).then_some(STALLED_CHECK_EVERY);
        // Rounded up, or the last millisecond would be spent asking.
        let next = self.timers.next().map(|at| at.saturating_sub(self.now).saturating_add(MILLISECOND / 2));
        check.into_iter().chain(next).min()
    }

    pub fn command(&mut self, command: Command) {
        match command {
            Command::Route { key, to } => self.routes.set(key, to),
            Command::Flag { at, flagged } => {
                if let Some(client) = self.at(at) {
                    client.flagged = flagged;
                }
            }
            Command::Send { to, bytes } => {
                let found = client_of(&mut self.clients, to.slot).filter(|client| client.conn == to.conn);
                let Some(client) = found else { return };
                count_sent(&mut self.tally, &bytes);
                if client.say_bytes(bytes) {
                    self.mark(to.slot);
                } else {
                    self.close(to.slot, End::Stalled);
                }
            }
            Command::Close { at, why } => {
                if self.at(at).is_some() {
                    tracing::debug!(conn = at.conn, "relay: closed: {}", why.sentence());
                    self.close(at.slot, End::Registrar);
                }
            }
            Command::Hold { at, fence } => self.hold(at, fence),
            Command::Fence(fence) => self.events.push(Event::Fenced(fence)),
            Command::Leave(at) => self.leave(at),
            Command::ReleaseHeld(conn, to) => self.release_held(conn, to),
            Command::Drain(grace) => {
                self.drain_until = Some(self.now.saturating_add(grace.as_nanos() as Nanos));
            }
            Command::Tune(engine) => self.engine = *engine,
        }
    }

    fn at(&mut self, at: Place) -> Option<&mut Client> {
        client_of(&mut self.clients, at.slot).filter(|client| client.conn == at.conn)
    }

    /// Takes a connection over, does `then`, and only then looks at what it has sent already: by now everybody knows it.
    pub fn connect(&mut self, at: Place, connection: NewConn, then: Vec<Command>) {
        let NewConn { key, role, address, tls, websocket, greeting, early, unread, rates } = connection;
        let mut transport = Transport { websocket, ..Transport::default() };
        match tls {
            TlsLayer::Off => {}
            TlsLayer::Session(session) => transport.tls = Some(Box::new(Tls::new(session))),
            TlsLayer::Kernel => transport.by_kernel = true,
        }
        let who = Who { conn: at.conn, key, role, address };
        let mut client = Client::new(who, transport, self.hash, &rates, self.now);
        count_sent(&mut self.tally, &greeting);
        client.control = greeting;
        if role == Role::Dialled {
            client.say(&Frame::WatchConns);
        }
        self.insert(at, client);
        then.into_iter().for_each(|command| self.command(command));
        // Who is refused has said nothing.
        if self.at(at).is_some() {
            self.begin(at.slot, early, unread);
        }
    }

    fn insert(&mut self, at: Place, client: Client) {
        let slot = at.slot as usize;
        if self.clients.len() <= slot {
            self.clients.resize_with(slot + 1, || None);
        }
        self.clients[slot] = Some(Box::new(client));
        self.tally.connections += 1;
        self.keep_alive_later(at.slot, at.conn);
        self.mark(at.slot);
    }

    /// The stream of a connection could not be had.
    pub fn not_connected(&mut self, at: Place, then: Vec<Command>) {
        self.tally.ended[End::Failed as usize] += 1;
        self.events.push(Event::Closed { at, sent_to: Vec::new() });
        then.into_iter().for_each(|command| self.command(command));
    }

    fn begin(&mut self, slot: u32, mut early: Vec<u8>, mut unread: Vec<u8>) {
        let mut done = Ok(());
        if !early.is_empty() {
            done = self.clear_bytes(slot, &mut early);
        }
        if done.is_ok() && !unread.is_empty() {
            done = self.open_bytes(slot, &mut unread);
        }
        if let Err(end) = done {
            self.close(slot, end);
        }
    }

    /// The peer sends no more. Who hung up without a goodbye hears none.
    pub fn ended(&mut self, slot: u32) {
        self.disconnect(slot, End::Peer, false);
    }

    /// The stream is broken.
    pub fn failed(&mut self, slot: u32) {
        self.close(slot, End::Failed);
    }

    /// Nobody is served any more.
    pub fn close_all(&mut self) {
        for slot in 0..self.clients.len() as u32 {
            self.close(slot, End::Drained);
        }
        if let Some(conn) = self.held.as_ref().map(|held| held.conn()) {
            self.release_held(conn, None);
        }
    }

    /// Disconnects, whatever waits for it, and closes gracefully where that can be heard.
    pub fn close(&mut self, slot: u32, end: End) {
        self.disconnect(slot, end, end != End::Failed);
    }

    fn disconnect(&mut self, slot: u32, end: End, graceful: bool) {
        let Some(mut client) = self.clients.get_mut(slot as usize).and_then(Option::take) else { return };
        // Nothing may follow what a socket has not taken whole.
        let graceful = graceful && client.send_state == SendState::Ready && client.in_flight.is_none();
        self.drop_all(
            &mut client,
            if end == End::Failed { Reason::WriteError } else { Reason::GoneDisconnected },
        );
        if graceful {
            self.graceful_close(slot, &mut client, end);
        }
        self.actions.push(Action::Close { slot, notify: graceful && end != End::Transport });
        self.tally.connections -= 1;
        self.tally.ended[end as usize] += 1;
        tracing::debug!(key = %client.key, address = %client.address, "relay: {}", end.name());
        let at = Place { worker: self.number, slot, conn: client.conn };
        self.events.push(Event::Closed { at, sent_to: client.sent_to.drain().collect() });
    }

    #[inline]
    fn mark(&mut self, slot: u32) {
        if let Some(client) = client_of(&mut self.clients, slot)
            && !client.dirty
        {
            client.dirty = true;
            self.dirty.push(slot);
        }
    }

    fn flush_all(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for slot in dirty.drain(..) {
            self.flush(slot);
        }
        // What was marked while flushing is for the next turn.
        dirty.append(&mut self.dirty);
        self.dirty = dirty;
    }

    fn tick(&mut self) {
        while let Some((slot, conn, due)) = self.timers.pop(self.now) {
            let Some(client) = client_of(&mut self.clients, slot).filter(|client| client.conn == conn) else {
                continue;
            };
            match due {
                Due::Keepalive => {
                    client.say(&Frame::KeepAlive);
                    self.tally.sent_kind(Kind::KeepAlive, 1);
                    self.keep_alive_later(slot, conn);
                    self.mark(slot);
                }
                Due::Resume => {
                    client.paused = false;
                    self.actions.push(Action::Resume { slot });
                }
                Due::Release => {
                    if client.send_state == SendState::RateLimited {
                        client.send_state = SendState::Ready;
                        self.mark(slot);
                    }
                }
            }
        }
        if self.now >= self.stalled_check_at {
            self.stalled_check_at = self.now + STALLED_CHECK_EVERY;
            self.close_stalled();
            self.drain();
        }
    }

    fn keep_alive_later(&mut self, slot: u32, conn: ConnId) {
        let keepalive = self.engine.keepalive.as_nanos() as Nanos;
        let jitter = self.random.below(JITTER.min(keepalive));
        self.timers.add(self.now.saturating_add(keepalive + jitter), slot, conn, Due::Keepalive);
    }

    /// A socket is full: it is looked at from time to time.
    fn watch_full(&mut self, slot: u32) {
        if let Some(client) = client_of(&mut self.clients, slot)
            && !client.watched
        {
            client.watched = true;
            self.full_sockets.push((slot, client.conn));
        }
    }

    /// Those that have taken nothing for too long go.
    fn close_stalled(&mut self) {
        let mut full_sockets = std::mem::take(&mut self.full_sockets);
        full_sockets.retain(|&(slot, conn)| {
            let Some(client) = client_of(&mut self.clients, slot).filter(|client| client.conn == conn) else {
                return false;
            };
            let (SendState::SocketFull(since), false) = (client.send_state, client.stalled_since.is_none())
            else {
                client.watched = false;
                return false;
            };
            let limit = match client.role {
                Role::Client => self.engine.write_timeout,
                Role::Mesh | Role::Dialled => self.engine.mesh_write_timeout,
            };
            let stalled = u128::from(self.now.saturating_sub(since)) > limit.as_nanos();
            if stalled {
                self.close(slot, End::Stalled);
            }
            !stalled
        });
        self.full_sockets = full_sockets;
    }

    fn drain(&mut self) {
        let Some(until) = self.drain_until else { return };
        for slot in 0..self.clients.len() as u32 {
            let Some(client) = client_of(&mut self.clients, slot) else { continue };
            if client.is_quiet() || self.now >= until {
                self.close(slot, End::Drained);
            }
        }
    }

    /// Adds up the memory of some connections; of all of them every few seconds.
    fn measure(&mut self) {
        let end = self.clients.len().min(self.measure.at + MEASURED);
        let some = self.clients[self.measure.at.min(end)..end].iter().flatten();
        self.measure.sum += some.map(|client| client.memory()).sum::<usize>();
        self.measure.at = end;
        self.measure.next = self.now + SECOND;
        if end == self.clients.len() {
            let tables = self.clients.capacity() * size_of::<Option<Box<Client>>>()
                + self.routes.memory()
                + self.timers.memory();
            self.tally.memory_connections = (self.measure.sum + tables) as u64;
            (self.measure.at, self.measure.sum) = (0, 0);
        }
    }

    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// What whoever has the streams counted, and how many bytes of memory they take.
    pub fn note_streams(&mut self, counters: Counters, memory: usize) {
        self.tally.streams = counters;
        self.tally.memory_buffers = (memory + self.pool.memory()) as u64;
    }

    /// What was counted, as it is shown to others.
    pub fn report(&self) -> WorkerReport {
        WorkerReport::new(usize::from(self.number), None, "none".to_owned(), &self.tally)
    }

    /// Who is connected.
    pub fn connections(&self) -> Vec<Connection> {
        let of = |client: &Client| Connection {
            key: client.key,
            address: client.address,
            role: client.role,
            worker: usize::from(self.number),
            connected_seconds: client.seconds(self.now),
            home: client.home,
            tls: client.transport.name(),
            websocket: client.transport.websocket.is_some(),
            bytes_received: client.bytes_received,
            bytes_sent: client.bytes_sent,
            packets_dropped: client.dropped,
            queued_bytes: client.queued_bytes() as u64,
            control_bytes: client.control_bytes() as u64,
            memory: client.memory() as u64,
        };
        self.clients.iter().flatten().map(|client| of(client)).collect()
    }
}

/// Counts frames that are not packets. Not the server's key, which most connections had before they came here.
fn count_sent(tally: &mut Tally, frames: &[u8]) {
    let mut rest = frames;
    while !rest.is_empty() {
        let frame = backlog::first_frame(rest);
        if let Some(kind) = Kind::from_code(frame[0]).filter(|kind| *kind != Kind::ServerKey) {
            tally.sent_kind(kind, 1);
        }
        rest = &rest[frame.len()..];
    }
}
