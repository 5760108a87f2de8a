//! The thread that knows who is connected, and tells the workers.
//!
//! ```text
//!  acceptor: connections ─┐                                ┌─► routes to every worker
//!  workers: who left ─────┴─► registrar (core's Registry) ─┴─► a connection, and its commands, to its worker
//! ```
//!
//! Promises: a route is in every worker's queue before its connection's worker sends the first frame; a slot is given
//! again only after its worker has disconnected it; a worker that sleeps is woken once for all commands of a short while.
//! Refuses: to be waited for by a worker.

use std::time::Duration;

use weir_core::relay::registry::{Effect, Entry, Registry};
use weir_core::relay::{ConnId, Key, Place};

use super::inbox::Inbox;
use super::messages::{Command, CommandSender, Event};
use super::{AuthenticatedConn, Role};

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

pub struct Registrar {
    registry: Registry,
    workers: Vec<CommandSender>,
    slots: Vec<Slots>,
    next: ConnId,
    effects: Vec<Effect>,
}

impl Registrar {
    pub fn new(own: Key, limit: usize, workers: Vec<CommandSender>) -> Registrar {
        let slots = workers.iter().map(|_| Slots::default()).collect();
        Registrar { registry: Registry::new(own, limit), workers, slots, next: 1, effects: Vec::new() }
    }

    /// Until it is told to stop.
    pub fn run(mut self, inbox: &Inbox) {
        let mut all = Vec::new();
        loop {
            inbox.take(&mut all);
            for (n, event) in all.drain(..).enumerate() {
                if matches!(event, Event::Stop) {
                    return self.workers.iter().for_each(|worker| worker.post(Command::Stop));
                }
                self.hear(event);
                if n % HEARD == HEARD - 1 {
                    self.wake();
                }
            }
            self.wake();
        }
    }

    /// Wakes the workers that sleep and have commands.
    fn wake(&self) {
        self.workers.iter().for_each(|worker| worker.doorbell.notify());
    }

    fn hear(&mut self, event: Event) {
        let mut effects = std::mem::take(&mut self.effects);
        match event {
            Event::Admit(connection) => self.admit(connection, &mut effects),
            Event::Closed { at, heard_by } => {
                self.registry.disconnect(at.conn, &heard_by, &mut effects);
                self.slots[usize::from(at.worker)].give(at.slot);
            }
            Event::Active(conn) => self.registry.active(conn, &mut effects),
            Event::Watch(conn) => self.registry.watch(conn, &mut effects),
            Event::MeshPresent(conn, key) => self.registry.mesh_present(conn, key, &mut effects),
            Event::MeshGone(conn, key) => self.registry.mesh_gone(conn, key, &[], &mut effects),
            Event::Heard(key, listener) => self.registry.heard(key, listener),
            Event::ClosePeer(conn, key) => self.registry.close_peer(conn, key, &mut effects),
            Event::Drain { reconnect_in, try_for, grace } => {
                let ms = |d: Duration| u32::try_from(d.as_millis()).unwrap_or(u32::MAX);
                self.registry.shutdown(ms(reconnect_in), ms(try_for), &mut effects);
                effects.drain(..).for_each(|effect| self.carry_out(effect));
                self.workers.iter().for_each(|worker| worker.put(Command::Drain(grace)));
            }
            Event::Stop => {}
        }
        effects.drain(..).for_each(|effect| self.carry_out(effect));
        self.effects = effects;
    }

    /// A connection goes to the worker with the fewest.
    fn admit(&mut self, connection: Box<AuthenticatedConn>, effects: &mut Vec<Effect>) {
        let least = self.slots.iter().enumerate().min_by_key(|(_, slots)| slots.used);
        let worker = least.map_or(0, |(worker, _)| worker);
        let at = Place { worker: worker as u16, slot: self.slots[worker].take(), conn: self.next };
        self.next += 1;
        let entry = Entry {
            key: connection.key,
            mesh: connection.role == Role::Mesh,
            dialled: connection.role == Role::Dialled,
            prober: connection.info.is_prober,
            can_ack_pings: connection.info.can_ack_pings,
            ideal: connection.ideal,
            address: connection.address,
            worker: at.worker,
            slot: at.slot,
        };
        self.registry.connect(at.conn, entry, effects);
        let mut then = Vec::new();
        for effect in effects.drain(..) {
            match command_of(effect) {
                (Some(to), command) if to == at.worker => then.push(command),
                (Some(to), command) => self.workers[usize::from(to)].put(command),
                (None, Command::Route { key, to }) => {
                    let others = self.workers.iter().enumerate().filter(|(n, _)| *n != worker);
                    others.for_each(|(_, other)| other.put(Command::Route { key, to }));
                    then.push(Command::Route { key, to });
                }
                (None, _) => {}
            }
        }
        self.workers[worker].put(Command::Adopt { at, connection, then });
    }

    fn carry_out(&self, effect: Effect) {
        match command_of(effect) {
            (Some(worker), command) => self.workers[usize::from(worker)].put(command),
            (None, Command::Route { key, to }) => {
                self.workers.iter().for_each(|worker| worker.put(Command::Route { key, to }));
            }
            (None, _) => {}
        }
    }
}

/// An effect as a command, and for which worker; for all of them when it is none's.
fn command_of(effect: Effect) -> (Option<u16>, Command) {
    match effect {
        Effect::Route { key, to } => (None, Command::Route { key, to }),
        Effect::Duplicate { at, flagged } => (Some(at.worker), Command::Flag { at, flagged }),
        Effect::Send { to, bytes } => (Some(to.worker), Command::Send { to, bytes }),
        Effect::Close { at, why } => (Some(at.worker), Command::Close { at, why }),
    }
}
