//! The thread that knows who is connected, and tells the workers.
//!
//! ```text
//!  acceptor: connections ─┐                                ┌─► routes to every worker
//!  workers: who left ─────┴─► registrar (core's Registry) ─┴─► a connection, and its commands, to its worker
//! ```
//!
//! Who talks to a client of another worker may be moved there: [`moves`].
//!
//! Promises: a route is in every worker's queue before its connection's worker sends the first frame; a slot is given
//! again only after its worker has disconnected it; a worker that sleeps is woken once for all commands of a short while.
//! Refuses: to be waited for by a worker. [`Registrar`] decides, without a thread; [`run`] is the thread.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use weir_core::relay::registry::{Effect, Entry, Registry};
use weir_core::relay::{ConnId, Key, Place};
use weir_core::time::Nanos;

use super::inbox::Inbox;
use super::messages::{self, CommandSender};
use super::session::{Command, Event};
use super::{AuthenticatedConn, Role};
use moves::Move;
use room::Room;

mod moves;
mod room;

/// Heard before workers that sleep are woken: a few microseconds' work each.
const HEARD: usize = 32;

/// Slots of one worker.
#[derive(Debug, Default)]
struct Slots {
    free: Vec<u32>,
    next: u32,
    used: usize,
}

impl Slots {
    fn take(&mut self) -> u32 {
        self.used += 1;
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }

    fn give(&mut self, slot: u32) {
        self.used = self.used.saturating_sub(1);
        self.free.push(slot);
    }
}

/// A connection that is not placed yet, as the registry knows it.
#[derive(Clone, Debug)]
pub struct Admission {
    pub key: Key,
    pub role: Role,
    pub prober: bool,
    pub can_ack_pings: bool,
    pub ideal: bool,
    pub address: SocketAddr,
}

/// Commands, and for which worker's session each is.
pub type Commands = Vec<(u16, Command)>;

/// Who is connected, and at which worker: without threads.
#[derive(Debug)]
pub struct Registrar {
    registry: Registry,
    slots: Vec<Slots>,
    next: ConnId,
    effects: Vec<Effect>,
    moving: Option<Move>,
    /// Clients that are to move, and where to.
    waiting: VecDeque<(ConnId, u16)>,
    /// Those that were moved for want of time, and when.
    relieved: Vec<(ConnId, Nanos)>,
    /// The idle share of each worker's CPU, where it is known.
    room: Option<Vec<f64>>,
    /// The last number that workers were asked to answer with.
    fence: u64,
}

impl Registrar {
    pub fn new(own: Key, limit: usize, workers: usize) -> Registrar {
        let slots = std::iter::repeat_with(Slots::default).take(workers).collect();
        Registrar {
            registry: Registry::new(own, limit),
            slots,
            next: 1,
            effects: Vec::new(),
            moving: None,
            waiting: VecDeque::new(),
            relieved: Vec::new(),
            room: None,
            fence: 0,
        }
    }

    /// A connection goes to the worker with the fewest: where, and what is to be done there together with it.
    pub fn admit(&mut self, admission: &Admission, commands: &mut Commands) -> (Place, Vec<Command>) {
        let least = self.slots.iter().enumerate().min_by_key(|(_, slots)| slots.used);
        let worker = least.map_or(0, |(worker, _)| worker);
        let at = Place { worker: worker as u16, slot: self.slots[worker].take(), conn: self.next };
        self.next += 1;
        let entry = Entry {
            key: admission.key,
            mesh: admission.role == Role::Mesh,
            dialled: admission.role == Role::Dialled,
            prober: admission.prober,
            can_ack_pings: admission.can_ack_pings,
            ideal: admission.ideal,
            address: admission.address,
            worker: at.worker,
            slot: at.slot,
        };
        self.registry.connect(at.conn, entry, &mut self.effects);
        let before = commands.len();
        self.take_effects(commands);
        (at, part_of(at.worker, commands, before))
    }

    pub fn observe(&mut self, event: Event, commands: &mut Commands) {
        let effects = &mut self.effects;
        match event {
            Event::Closed { at, sent_to } => {
                self.registry.disconnect(at.conn, &sent_to, effects);
                self.slots[usize::from(at.worker)].give(at.slot);
                self.take_effects(commands);
                self.abandon(at.conn, commands);
            }
            Event::Active(conn) => self.registry.active(conn, effects),
            Event::Watch(conn) => self.registry.watch(conn, effects),
            Event::MeshPresent(conn, key) => self.registry.mesh_present(conn, key, effects),
            Event::MeshGone(conn, key) => self.registry.mesh_gone(conn, key, &[], effects),
            Event::SentTo(key, listener) => self.registry.note_sent_to(key, listener),
            Event::ClosePeer(conn, key) => self.registry.close_peer(conn, key, effects),
            Event::Crossing { conn, with } => self.bring_together(conn, with, commands),
            Event::Fenced(fence) => self.fenced(fence, commands),
        }
        self.take_effects(commands);
    }

    /// Everybody is told to come back, and sent what waits for them for at most `grace`; no new connection is accepted.
    pub fn drain(
        &mut self,
        reconnect_in: Duration,
        try_for: Duration,
        grace: Duration,
        commands: &mut Commands,
    ) {
        let ms = |d: Duration| u32::try_from(d.as_millis()).unwrap_or(u32::MAX);
        self.registry.shutdown(ms(reconnect_in), ms(try_for), &mut self.effects);
        self.take_effects(commands);
        self.tell_all(commands, || Command::Drain(grace));
    }

    /// What the registry wants, as commands; a route is every worker's. Those for a connection that no worker has wait.
    fn take_effects(&mut self, commands: &mut Commands) {
        for effect in self.effects.drain(..) {
            let (at, command) = match effect {
                Effect::Route { key, to } => {
                    let workers = 0..self.slots.len() as u16;
                    commands.extend(workers.map(|worker| (worker, Command::Route { key, to })));
                    continue;
                }
                Effect::Duplicate { at, flagged } => (at, Command::Flag { at, flagged }),
                Effect::Send { to, bytes } => (to, Command::Send { to, bytes }),
                Effect::Close { at, why } => (at, Command::Close { at, why }),
            };
            match self.moving.as_mut().filter(|moving| moving.withholds(at)) {
                Some(moving) => moving.withhold(command),
                None => commands.push((at.worker, command)),
            }
        }
    }
}

/// Takes a worker's commands out of those from the place `from` on.
fn part_of(worker: u16, commands: &mut Commands, from: usize) -> Vec<Command> {
    commands.extract_if(from.., |(to, _)| *to == worker).map(|(_, command)| command).collect()
}

/// The registrar's thread, until it is told to stop. `cpus` are those of the workers, where each is bound to one.
pub fn run(mut registrar: Registrar, inbox: &Inbox, workers: &[CommandSender], cpus: &[u32]) {
    let wake = || workers.iter().for_each(|worker| worker.doorbell.notify());
    let (mut all, mut commands, mut moving) = (Vec::new(), Vec::new(), None);
    let mut room = Room::new(cpus.to_vec());
    loop {
        inbox.take(&mut all);
        for (n, event) in all.drain(..).enumerate() {
            match event {
                messages::Event::Stop => {
                    return workers.iter().for_each(|worker| worker.post(messages::Command::Stop));
                }
                messages::Event::Admit(connection) => {
                    admit(&mut registrar, connection, &mut commands, workers)
                }
                messages::Event::Session(event) => {
                    if let Event::Crossing { .. } = event {
                        registrar.note_room(room.shares());
                    }
                    registrar.observe(event, &mut commands);
                }
                messages::Event::Pressed(worker, conns) => {
                    registrar.note_room(room.shares());
                    registrar.relieve(worker, conns, weir_io::clock::now(), &mut commands);
                }
                messages::Event::Departed(at, connection) => {
                    moving = Some(connection);
                    registrar.departed(at, &mut commands);
                }
                messages::Event::Drain { reconnect_in, try_for, grace } => {
                    registrar.drain(reconnect_in, try_for, grace, &mut commands);
                }
            }
            if let Some((at, then)) = registrar.arrival(&mut commands)
                && let Some(moving) = moving.take()
            {
                workers[usize::from(at.worker)].put(messages::Command::Arrive { at, moving, then });
            }
            put(&mut commands, workers);
            if n % HEARD == HEARD - 1 {
                wake();
            }
        }
        wake();
    }
}

fn put(commands: &mut Commands, workers: &[CommandSender]) {
    for (worker, command) in commands.drain(..) {
        workers[usize::from(worker)].put(messages::Command::Session(command));
    }
}

/// The other workers have the route before its worker has the connection.
fn admit(
    registrar: &mut Registrar,
    connection: Box<AuthenticatedConn>,
    commands: &mut Commands,
    workers: &[CommandSender],
) {
    let admission = Admission {
        key: connection.key,
        role: connection.role,
        prober: connection.info.is_prober,
        can_ack_pings: connection.info.can_ack_pings,
        ideal: connection.ideal,
        address: connection.address,
    };
    let (at, then) = registrar.admit(&admission, commands);
    put(commands, workers);
    workers[usize::from(at.worker)].put(messages::Command::AddClient { at, connection, then });
}
