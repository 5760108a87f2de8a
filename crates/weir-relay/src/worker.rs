//! A data worker: one thread, its own sockets and mailboxes around its [`Session`].
//!
//! ```text
//! turn:  submit, wait, reap ─► commands and batches ─► events: sent, received… ─► timers, flush ─► actions ─► show the tally
//!                              └──────────────────── Session ───────────────────────────────┘
//! ```
//!
//! Promises: nothing but the turn blocks; one clock read a turn; no lock, allocation or clock read a frame. Commands are read after
//! events were reaped and before they are looked at: whoever learnt from us that a peer is here finds its route.
//! Refuses: to decide anything about frames; that is the session's.

use std::hash::{BuildHasher, RandomState};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use rtrb::Consumer;
use weir_core::relay::{ConnId, Place};
use weir_core::time::{Nanos, SECOND};
use weir_io::stream::{Event as StreamEvent, Streams};
use weir_io::tls::Kernel;

use self::link::Link;
use self::pressure::Pressure;
use super::counters::{End, Shown};
use super::cross_worker::{Doorbell, Mailbox, RING};
use super::inbox::Inbox;
use super::messages::{Command, Event, Moving};
use super::session::{self, Action, CrossWorkerBatch, NewConn, Session, Setup, TlsLayer};
use super::settings::Engine;
use super::{AuthenticatedConn, TlsMode};

mod link;
mod pressure;

/// The longest sleep.
const SLEEP: Nanos = SECOND;

/// What a worker is made of.
pub struct Parts {
    pub number: u16,
    pub engine: Engine,
    pub streams: Streams,
    pub commands: Receiver<Command>,
    pub doorbell: Arc<Doorbell>,
    pub registrar: Arc<Inbox>,
    /// Mailboxes to and from the other workers; `None` at this worker's own number.
    pub others: Vec<Option<Mailbox>>,
    pub incoming: Vec<Option<Consumer<CrossWorkerBatch>>>,
    pub shown: Arc<Shown>,
}

pub struct RelayWorker {
    number: u16,
    session: Session,
    streams: Streams,
    /// The links, by slot.
    links: Vec<Option<Link>>,
    commands: Receiver<Command>,
    doorbell: Arc<Doorbell>,
    registrar: Arc<Inbox>,
    others: Vec<Option<Mailbox>>,
    incoming: Vec<Option<Consumer<CrossWorkerBatch>>>,
    shown: Arc<Shown>,
    /// Connections that go to other workers, until the turn's end.
    departed: Vec<Event>,
    stopped: bool,
}

impl RelayWorker {
    pub fn new(parts: Parts) -> RelayWorker {
        let Parts { number, engine, streams, commands, doorbell, registrar, others, incoming, shown } = parts;
        let random = || RandomState::new().hash_one(number);
        let session = Session::new(Setup {
            number,
            workers: others.len(),
            engine,
            buffers: streams.buffers(),
            secret: random(),
            jitter: random(),
            now: weir_io::clock::now(),
        });
        RelayWorker {
            number,
            session,
            streams,
            links: Vec::new(),
            commands,
            doorbell,
            registrar,
            others,
            incoming,
            shown,
            departed: Vec::new(),
            stopped: false,
        }
    }

    /// Runs until it is told to stop.
    pub fn run(mut self) {
        let mut events = Vec::new();
        let mut pressure = Pressure::of_this_thread(weir_io::clock::now());
        while !self.stopped {
            let timeout = self.timeout();
            if let Err(error) = self.streams.turn(Some(Duration::from_nanos(timeout)), &mut events) {
                tracing::error!(worker = self.number, "relay: a turn failed: {error}");
                std::thread::sleep(Duration::from_millis(1));
            }
            let now = weir_io::clock::now();
            self.session.begin_turn(now);
            self.note_rings();
            if self.doorbell.wake() {
                self.read_commands();
                self.take_batches();
            }
            if self.session.may_move()
                && let Some(clients) = pressure.look(now, |all| self.note_senders(&events, all))
            {
                self.registrar.send(Event::Pressed(self.number, clients));
            }
            events.drain(..).for_each(|event| self.event(event));
            self.session.end_turn();
            self.carry_out();
            self.show();
        }
        self.session.close_all();
        self.carry_out();
        // Closing is carried out by a turn.
        let _ = self.streams.turn(Some(Duration::ZERO), &mut events);
        self.show();
    }

    /// Adds the clients that these events brought something of.
    fn note_senders(&self, events: &[StreamEvent], all: &mut Vec<ConnId>) {
        let sender = |event: &StreamEvent| match event {
            StreamEvent::Received { token, .. } => self.session.client_at(*token as u32),
            _ => None,
        };
        all.extend(events.iter().filter_map(sender));
    }

    /// How long the next turn may wait.
    fn timeout(&mut self) -> Nanos {
        match self.session.timeout() {
            Some(0) => 0,
            _ if !self.doorbell.prepare_sleep() => 0,
            timeout => timeout.map_or(SLEEP, |timeout| timeout.min(SLEEP)),
        }
    }

    fn event(&mut self, event: StreamEvent) {
        match event {
            StreamEvent::Received { token, buffer } => {
                let slot = token as u32;
                // A record of the kernel's that is not whole: no data may come before its rest.
                let taken = self.kernel(slot).map_or(Ok(()), |(kernel, _)| kernel.data_came());
                match taken {
                    Ok(()) => self.session.received(slot, buffer),
                    Err(_) => self.session.close(slot, End::Transport),
                }
            }
            StreamEvent::Sent { token, sent, parts } => {
                let slot = token as u32;
                let key = self
                    .kernel(slot)
                    .map_or(Ok(()), |(kernel, socket)| link::after_send(kernel, socket, sent));
                self.session.sent(slot, sent, parts);
                if let Err(end) = key {
                    self.session.close(slot, end);
                }
            }
            StreamEvent::Writable { token } => self.session.writable(token as u32),
            StreamEvent::Control { token, kind, buffer } => {
                let slot = token as u32;
                let done = self.kernel(slot).map_or(Err(End::Transport), |(kernel, socket)| {
                    link::control(kernel, socket, kind, &buffer)
                });
                if let Err(end) = done {
                    self.session.close(slot, end);
                }
            }
            StreamEvent::Ended { token } => self.session.ended(token as u32),
            StreamEvent::Failed { token, .. } => self.session.failed(token as u32),
            StreamEvent::Released { token, socket } => self.depart(token as u32, socket),
            StreamEvent::Woken => {}
        }
    }

    /// A connection's TLS, when the kernel does it.
    fn kernel(&mut self, slot: u32) -> Option<(&mut Kernel, BorrowedFd<'_>)> {
        let link = self.links.get_mut(slot as usize)?.as_mut()?;
        let kernel = link.kernel.as_deref_mut()?;
        Some((kernel, self.streams.socket(link.stream)?))
    }

    fn read_commands(&mut self) {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::AddClient { at, connection, then } => self.add_client(at, *connection, then),
                Command::Arrive { at, moving, then } => self.arrive(at, *moving, then),
                Command::Session(command) => self.session.command(command),
                // Whoever asked may have gone.
                Command::Connections(reply) => drop(reply.send(self.session.connections())),
                Command::Stop => self.stopped = true,
            }
        }
    }

    /// Takes a connection over: its socket stays here, the rest is the session's.
    fn add_client(&mut self, at: Place, connection: AuthenticatedConn, then: Vec<session::Command>) {
        let AuthenticatedConn { socket, key, role, address, tls_mode, websocket, .. } = connection;
        let (tls, kernel) = match tls_mode {
            TlsMode::Plain => (TlsLayer::Off, None),
            TlsMode::User(session) => (TlsLayer::Session(session), None),
            TlsMode::Kernel(kernel) => (TlsLayer::Kernel, Some(Box::new(kernel))),
        };
        let stream = match self.streams.register(socket, u64::from(at.slot), kernel.is_some()) {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%address, "relay: the socket could not be taken over: {error}");
                return self.session.not_connected(at, then);
            }
        };
        self.put_link(at.slot, Link::new(stream, kernel, connection.guard));
        let AuthenticatedConn { greeting, early, unread, rates, .. } = connection;
        let connection = NewConn { key, role, address, tls, websocket, greeting, early, unread, rates };
        self.session.connect(at, connection, then);
    }

    fn put_link(&mut self, slot: u32, link: Link) {
        let slot = slot as usize;
        if self.links.len() <= slot {
            self.links.resize_with(slot + 1, || None);
        }
        self.links[slot] = Some(link);
    }

    /// A socket is free for another worker. Whoever was disconnected meanwhile is told so by its being closed.
    fn depart(&mut self, slot: u32, socket: OwnedFd) {
        let Some((at, client)) = self.session.depart(slot) else { return };
        let Some(Link { kernel, guard, .. }) = self.links.get_mut(slot as usize).and_then(Option::take)
        else {
            return;
        };
        self.departed.push(Event::Departed(at, Box::new(Moving { socket, kernel, guard, client })));
    }

    /// Takes over a connection that another worker had.
    fn arrive(&mut self, at: Place, moving: Moving, then: Vec<session::Command>) {
        let Moving { socket, kernel, guard, client } = moving;
        match self.streams.register(socket, u64::from(at.slot), kernel.is_some()) {
            Ok(stream) => {
                self.put_link(at.slot, Link::new(stream, kernel, guard));
                self.session.arrive(at, client, then);
            }
            Err(error) => {
                let address = client.address();
                tracing::warn!(%address, "relay: the socket could not be taken over: {error}");
                self.session.not_arrived(at, client, then);
            }
        }
    }

    /// How far other workers have come with what they were handed.
    fn note_rings(&mut self) {
        for (number, other) in self.others.iter().enumerate() {
            let Some(Mailbox { ring, .. }) = other else { continue };
            let free = ring.slots();
            self.session.note_ring(number, RING - free, free);
        }
    }

    /// What other workers have for clients of this one.
    fn take_batches(&mut self) {
        for ring in self.incoming.iter_mut().flatten() {
            // Not more than were there: others get their turn.
            for _ in 0..ring.slots() {
                let Ok(batch) = ring.pop() else { break };
                self.session.take_batch(batch);
            }
        }
    }

    /// What the session wants done.
    fn carry_out(&mut self) {
        for (number, other) in self.others.iter_mut().enumerate() {
            let Some(other) = other else { continue };
            if self.session.hand_over(number, |batch| other.push(batch)) {
                other.doorbell.ring();
            }
        }
        let (streams, links) = (&mut self.streams, &mut self.links);
        for action in self.session.actions() {
            let Some(place) = links.get_mut(action.slot() as usize) else { continue };
            let Some(link) = place.as_mut() else { continue };
            match action {
                Action::Send { parts, .. } => streams.send(link.stream, parts),
                Action::NotifyWritable { .. } => streams.notify_writable(link.stream),
                Action::Pause { .. } => streams.pause(link.stream),
                Action::Resume { .. } => streams.resume(link.stream),
                Action::Release { .. } => streams.release(link.stream),
                Action::Close { notify, .. } => {
                    if let (true, Some(kernel), Some(socket)) =
                        (notify, &link.kernel, streams.socket(link.stream))
                    {
                        // Tried once: who cannot be told finds out.
                        let _ = kernel.close_notify(socket);
                    }
                    streams.close(link.stream);
                    *place = None;
                }
            }
        }
        self.registrar.send_all(self.session.events().map(Event::Session));
        self.registrar.send_all(self.departed.drain(..));
    }

    fn show(&mut self) {
        self.session.note_streams(self.streams.counters(), self.streams.memory());
        self.shown.publish(self.session.tally());
    }
}
