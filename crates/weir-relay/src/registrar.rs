//! The thread that knows who is connected, and tells the workers.
//!
//! ```text
//!  front: newcomers ──┐                                ┌─► routes to every worker
//!  workers: who left ─┴─► registrar (core's Registry) ─┴─► a connection, and what it is told, to its worker
//! ```
//!
//! Promises: a route is in every worker's mailbox before its connection's worker sends the first frame; a slot is given
//! again only after its worker has let it go; a worker that sleeps is woken once for all that is told in a short while.
//! Refuses: to be waited for by a worker.

use std::time::Duration;

use weir_core::relay::registry::{Effect, Entry, Registry};
use weir_core::relay::{ConnId, Key, Place};

use super::inbox::Inbox;
use super::messages::{Mail, Mailbox, Told};
use super::{Newcomer, Role};

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
    workers: Vec<Mailbox>,
    slots: Vec<Slots>,
    next: ConnId,
    effects: Vec<Effect>,
}

impl Registrar {
    pub fn new(own: Key, limit: usize, workers: Vec<Mailbox>) -> Registrar {
        let slots = workers.iter().map(|_| Slots::default()).collect();
        Registrar { registry: Registry::new(own, limit), workers, slots, next: 1, effects: Vec::new() }
    }

    /// Until it is told to stop.
    pub fn run(mut self, inbox: &Inbox) {
        let mut all = Vec::new();
        loop {
            inbox.take(&mut all);
            for (n, told) in all.drain(..).enumerate() {
                if matches!(told, Told::Stop) {
                    return self.workers.iter().for_each(|worker| worker.post(Mail::Stop));
                }
                self.hear(told);
                if n % HEARD == HEARD - 1 {
                    self.wake();
                }
            }
            self.wake();
        }
    }

    /// Wakes the workers that sleep and have mail.
    fn wake(&self) {
        self.workers.iter().for_each(|worker| worker.desk.wake());
    }

    fn hear(&mut self, told: Told) {
        let mut effects = std::mem::take(&mut self.effects);
        match told {
            Told::Admit(newcomer) => self.admit(newcomer, &mut effects),
            Told::Closed { at, heard_by } => {
                self.registry.disconnect(at.conn, &heard_by, &mut effects);
                self.slots[usize::from(at.worker)].give(at.slot);
            }
            Told::Active(conn) => self.registry.active(conn, &mut effects),
            Told::Watch(conn) => self.registry.watch(conn, &mut effects),
            Told::MeshPresent(conn, key) => self.registry.mesh_present(conn, key, &mut effects),
            Told::MeshGone(conn, key) => self.registry.mesh_gone(conn, key, &[], &mut effects),
            Told::Heard(key, listener) => self.registry.heard(key, listener),
            Told::ClosePeer(conn, key) => self.registry.close_peer(conn, key, &mut effects),
            Told::Drain { reconnect_in, try_for, grace } => {
                let ms = |d: Duration| u32::try_from(d.as_millis()).unwrap_or(u32::MAX);
                self.registry.shutdown(ms(reconnect_in), ms(try_for), &mut effects);
                effects.drain(..).for_each(|effect| self.carry_out(effect));
                self.workers.iter().for_each(|worker| worker.put(Mail::Drain(grace)));
            }
            Told::Stop => {}
        }
        effects.drain(..).for_each(|effect| self.carry_out(effect));
        self.effects = effects;
    }

    /// A newcomer goes to the worker with the fewest.
    fn admit(&mut self, newcomer: Box<Newcomer>, effects: &mut Vec<Effect>) {
        let least = self.slots.iter().enumerate().min_by_key(|(_, slots)| slots.used);
        let worker = least.map_or(0, |(worker, _)| worker);
        let at = Place { worker: worker as u16, slot: self.slots[worker].take(), conn: self.next };
        self.next += 1;
        let entry = Entry {
            key: newcomer.key,
            mesh: newcomer.role == Role::Mesh,
            dialled: newcomer.role == Role::Dialled,
            prober: newcomer.info.is_prober,
            can_ack_pings: newcomer.info.can_ack_pings,
            ideal: newcomer.ideal,
            address: newcomer.address,
            worker: at.worker,
            slot: at.slot,
        };
        self.registry.connect(at.conn, entry, effects);
        let mut then = Vec::new();
        for effect in effects.drain(..) {
            match mail_of(effect) {
                (Some(to), mail) if to == at.worker => then.push(mail),
                (Some(to), mail) => self.workers[usize::from(to)].put(mail),
                (None, Mail::Route { key, to }) => {
                    let others = self.workers.iter().enumerate().filter(|(n, _)| *n != worker);
                    others.for_each(|(_, other)| other.put(Mail::Route { key, to }));
                    then.push(Mail::Route { key, to });
                }
                (None, _) => {}
            }
        }
        self.workers[worker].put(Mail::Adopt { at, newcomer, then });
    }

    fn carry_out(&self, effect: Effect) {
        match mail_of(effect) {
            (Some(worker), mail) => self.workers[usize::from(worker)].put(mail),
            (None, Mail::Route { key, to }) => {
                self.workers.iter().for_each(|worker| worker.put(Mail::Route { key, to }));
            }
            (None, _) => {}
        }
    }
}

/// An effect as mail, and for which worker; for all of them when it is none's.
fn mail_of(effect: Effect) -> (Option<u16>, Mail) {
    match effect {
        Effect::Route { key, to } => (None, Mail::Route { key, to }),
        Effect::Duplicate { at, flagged } => (Some(at.worker), Mail::Flag { at, flagged }),
        Effect::Send { to, bytes } => (Some(to.worker), Mail::Send { to, bytes }),
        Effect::Close { at, why } => (Some(at.worker), Mail::Close { at, why }),
    }
}
