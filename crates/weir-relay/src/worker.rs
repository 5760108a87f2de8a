//! A data worker: one thread, its own sockets, buffers, queues and table of routes.
//!
//! ```text
//! turn:  submit, wait, reap ─► commands and batches ─► events: sent, received… ─► timers ─► flush ─► show the tally
//! ```
//!
//! Promises: nothing but the turn blocks; one clock read a turn; no lock, allocation or clock read a frame. Commands are read after
//! events were reaped and before they are looked at: whoever learnt from us that a peer is here finds its route.
//! Refuses: to let a connection that is gone keep anything: what waited for it is dropped and counted.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use rtrb::Consumer;
use weir_core::relay::frame::{Frame, Kind};
use weir_core::relay::{ConnId, Place, Reason};
use weir_core::time::{MILLISECOND, Nanos, SECOND};
use weir_io::stream::{Event as StreamEvent, Streams};

use self::client::{Client, SendState, Who, WriteBatch};
use self::routes::{KeyHash, Routes};
use self::sort::Sorted;
use self::timers::{Due, Timers};
use self::transport::{Tls, Transport};
use super::backlog::{self, BufferPool};
use super::counters::{End, Shown, Tally};
use super::cross_worker::{CrossWorkerBatch, Doorbell, Outgoing};
use super::inbox::Inbox;
use super::messages::{Command, Event};
use super::report::Connection;
use super::settings::Engine;
use super::{AuthenticatedConn, Role, TlsMode};

mod client;
mod inbound;
mod outbound;
mod routes;
mod sort;
mod timers;
mod transport;

/// The longest sleep.
const SLEEP: Nanos = SECOND;
/// How often full sockets are looked at for those that take nothing.
const STALLED_CHECK_EVERY: Nanos = 100 * MILLISECOND;
/// Between two keepalives of a client there is up to this much more, so that they do not all come at once.
const JITTER: Nanos = 5 * SECOND;
/// Connections whose memory is added up in one second.
const MEASURED: usize = 16 << 10;

/// What a worker is made of.
pub struct Parts {
    pub number: u16,
    pub engine: Engine,
    pub streams: Streams,
    pub commands: Receiver<Command>,
    pub doorbell: Arc<Doorbell>,
    pub registrar: Arc<Inbox>,
    /// To and from the other workers; `None` at this worker's own place.
    pub others: Vec<Option<Outgoing>>,
    pub incoming: Vec<Option<Consumer<CrossWorkerBatch>>>,
    pub shown: Arc<Shown>,
}

pub struct Worker {
    number: u16,
    engine: Engine,
    streams: Streams,
    commands: Receiver<Command>,
    doorbell: Arc<Doorbell>,
    registrar: Arc<Inbox>,
    /// What the registrar is sent at the end of the turn.
    to_registrar: Vec<Event>,
    others: Vec<Option<Outgoing>>,
    incoming: Vec<Option<Consumer<CrossWorkerBatch>>>,
    shown: Arc<Shown>,

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
    random: u64,
    /// Everybody is disconnected, at the latest then.
    drain_until: Option<Nanos>,
    stopped: bool,
    measure: Measure,
}

/// Memory of connections, added up a part at a time.
#[derive(Default)]
struct Measure {
    at: usize,
    sum: usize,
    next: Nanos,
}

#[inline]
fn client_of(clients: &mut [Option<Box<Client>>], slot: u32) -> Option<&mut Client> {
    clients.get_mut(slot as usize)?.as_deref_mut()
}

impl Worker {
    pub fn new(parts: Parts) -> Worker {
        let Parts { number, engine, streams, commands, doorbell, registrar, others, incoming, shown } = parts;
        Worker {
            number,
            engine,
            streams,
            commands,
            doorbell,
            registrar,
            to_registrar: Vec::new(),
            others,
            incoming,
            shown,
            clients: Vec::new(),
            routes: Routes::new(number),
            hash: KeyHash::random(),
            dirty: Vec::new(),
            full_sockets: Vec::new(),
            stalled_check_at: 0,
            timers: Timers::default(),
            sorted: Sorted::default(),
            pool: BufferPool::default(),
            batches: Vec::new(),
            writes_in_flight: 0,
            tally: Tally::default(),
            now: weir_io::clock::now(),
            random: std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), number) | 1,
            drain_until: None,
            stopped: false,
            measure: Measure::default(),
        }
    }

    /// Until it is told to stop.
    pub fn run(mut self) {
        let mut events = Vec::new();
        while !self.stopped {
            let timeout = self.timeout();
            if let Err(error) = self.streams.turn(Some(Duration::from_nanos(timeout)), &mut events) {
                tracing::error!(worker = self.number, "relay: a turn failed: {error}");
                std::thread::sleep(Duration::from_millis(1));
            }
            self.now = weir_io::clock::now();
            if self.doorbell.wake() {
                self.read_commands();
                self.take_batches();
            }
            events.drain(..).for_each(|event| self.event(event));
            self.tick();
            self.flush_all();
            self.registrar.send_all(&mut self.to_registrar);
            self.show();
        }
        for slot in 0..self.clients.len() as u32 {
            self.close(slot, End::Drained);
        }
        self.registrar.send_all(&mut self.to_registrar);
        // Closing is carried out by a turn.
        let _ = self.streams.turn(Some(Duration::ZERO), &mut events);
        self.show();
    }

    /// How long the next turn may wait.
    fn timeout(&mut self) -> Nanos {
        // What was submitted to be sent is answered at once.
        if self.writes_in_flight > 0 || !self.dirty.is_empty() || !self.doorbell.prepare_sleep() {
            return 0;
        }
        let check = if self.full_sockets.is_empty() && self.drain_until.is_none() {
            SLEEP
        } else {
            STALLED_CHECK_EVERY
        };
        let next = self.timers.next().map_or(SLEEP, |at| at.saturating_sub(self.now));
        // Rounded up, or the last millisecond would be spent asking.
        SLEEP.min(check).min(next.saturating_add(MILLISECOND / 2))
    }

    fn event(&mut self, event: StreamEvent) {
        match event {
            StreamEvent::Received { token, buffer } => self.received(token as u32, buffer),
            StreamEvent::Sent { token, sent, parts } => self.sent(token as u32, sent, parts),
            StreamEvent::Writable { token } => self.writable(token as u32),
            StreamEvent::Control { token, kind, buffer } => self.control(token as u32, kind, &buffer),
            // Who hung up without a goodbye hears none.
            StreamEvent::Ended { token } => self.disconnect(token as u32, End::Peer, false),
            StreamEvent::Failed { token, .. } => self.close(token as u32, End::Failed),
            StreamEvent::Woken => {}
        }
    }

    fn read_commands(&mut self) {
        while let Ok(command) = self.commands.try_recv() {
            self.obey(command);
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Adopt { at, connection, then } => {
                let early = self.adopt(at, *connection);
                then.into_iter().for_each(|command| self.obey(command));
                // Only now does everybody know it.
                if let Some((early, unread)) = early {
                    self.begin(at.slot, early, unread);
                }
            }
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
            Command::Drain(grace) => {
                self.drain_until = Some(self.now.saturating_add(grace.as_nanos() as Nanos));
            }
            Command::Connections(reply) => {
                // Whoever asked may have gone.
                let _ = reply.send(self.connections());
            }
            Command::Tune(engine) => self.engine = *engine,
            Command::Stop => self.stopped = true,
        }
    }

    fn at(&mut self, at: Place) -> Option<&mut Client> {
        client_of(&mut self.clients, at.slot).filter(|client| client.conn == at.conn)
    }

    /// Takes a connection over; gives back what has been received of it already.
    fn adopt(&mut self, at: Place, connection: AuthenticatedConn) -> Option<(Vec<u8>, Vec<u8>)> {
        let AuthenticatedConn {
            socket, key, role, address, tls_mode, greeting, early, unread, rates, ..
        } = connection;
        let mut transport = Transport::default();
        match tls_mode {
            TlsMode::Plain => {}
            TlsMode::User(session) => transport.tls = Some(Box::new(Tls::new(session))),
            TlsMode::Kernel(kernel) => transport.kernel = Some(Box::new(kernel)),
        }
        transport.websocket = connection.websocket;
        let stream = match self.streams.adopt(socket, u64::from(at.slot), transport.kernel.is_some()) {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%address, "relay: the socket could not be taken over: {error}");
                self.tally.ended[End::Failed as usize] += 1;
                self.notify_registrar(Event::Closed { at, heard_by: Vec::new() });
                return None;
            }
        };
        let who = Who { conn: at.conn, key, role, address, guard: connection.guard };
        let mut client = Client::new(who, stream, transport, self.hash, &rates, self.now);
        count_sent(&mut self.tally, &greeting);
        client.control = greeting;
        if role == Role::Dialled {
            client.say(&Frame::WatchConns);
        }
        let slot = at.slot as usize;
        if self.clients.len() <= slot {
            self.clients.resize_with(slot + 1, || None);
        }
        self.clients[slot] = Some(Box::new(client));
        self.tally.connections += 1;
        self.keep_alive_later(at.slot, at.conn);
        self.mark(at.slot);
        Some((early, unread))
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

    /// Disconnects, whatever waits for it, and closes gracefully where that can be heard.
    fn close(&mut self, slot: u32, end: End) {
        self.disconnect(slot, end, end != End::Failed);
    }

    fn disconnect(&mut self, slot: u32, end: End, graceful: bool) {
        let Some(mut client) = self.clients.get_mut(slot as usize).and_then(Option::take) else { return };
        self.drop_all(
            &mut client,
            if end == End::Failed { Reason::WriteError } else { Reason::GoneDisconnected },
        );
        if graceful {
            self.graceful_close(&mut client, end);
        }
        self.streams.close(client.stream);
        self.tally.connections -= 1;
        self.tally.ended[end as usize] += 1;
        tracing::debug!(key = %client.key, address = %client.address, "relay: {}", end.name());
        let at = Place { worker: self.number, slot, conn: client.conn };
        self.notify_registrar(Event::Closed { at, heard_by: client.heard.drain().collect() });
    }

    fn notify_registrar(&mut self, event: Event) {
        self.to_registrar.push(event);
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
        for other in self.others.iter_mut().flatten() {
            other.send(&mut self.tally, &mut self.pool);
        }
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
                    self.streams.resume(client.stream);
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
        // xorshift: spread, not secret.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let keepalive = self.engine.keepalive.as_nanos() as Nanos;
        let jitter = self.random % JITTER.min(keepalive).max(1);
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

    fn show(&mut self) {
        if self.now >= self.measure.next {
            self.measure();
        }
        self.tally.turns += 1;
        self.tally.streams = self.streams.counters();
        self.shown.publish(&self.tally);
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
        self.tally.memory_buffers = (self.streams.memory() + self.pool.memory()) as u64;
    }

    fn connections(&self) -> Vec<Connection> {
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
