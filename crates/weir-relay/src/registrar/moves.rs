//! A client goes to the worker of those it talks to, so that its packets need not cross.
//!
//! ```text
//!  registrar           every worker                        its old worker            its new worker
//!  Hold ─────────────► packets for it wait ─► Fenced
//!  Leave ────────────────────────────────────────────────► receives no more ─► Departed
//!  Fence ────────────► takes what was in rings ─► Fenced
//!  Route, ReleaseHeld► packets for it go on          Arrive ──────────────────────► receives
//! ```
//!
//! Promises: packets of each pair keep their order, whichever of the two moves, and none is lost by it: all that was sent to the old
//! place is there before the client leaves, and all that it sent from there has been taken before it sends from the new one. A client
//! that is disconnected on its way is disconnected as any other. Refuses: to move relays of the mesh, more than one client at a time,
//! or a client whose going would make its new worker much fuller than its old one.

use weir_core::relay::{ConnId, Place};

use super::{Commands, Registrar};
use crate::session::Command;

/// The difference in clients between two workers that moves may lead to at least; of more clients, a sixteenth of them.
const SLACK: usize = 2;

/// A client on its way.
#[derive(Debug)]
pub(super) struct Move {
    from: Place,
    to: u16,
    /// Answers with another number are of a move that was abandoned.
    fence: u64,
    /// Workers that have not answered.
    awaited: usize,
    step: Step,
    /// What it is to be told once it has arrived.
    withheld: Vec<Command>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Some worker does not hold yet what is for it.
    Holding,
    /// Its old worker has not let it go yet.
    Leaving,
    /// Some worker has not taken yet what it sent from there.
    Settling,
}

impl Move {
    /// Whether commands for the connection of this place have to wait: nobody has it.
    pub(super) fn withholds(&self, at: Place) -> bool {
        at.conn == self.from.conn && self.step != Step::Holding
    }

    pub(super) fn withhold(&mut self, command: Command) {
        self.withheld.push(command);
    }
}

impl Registrar {
    /// Two clients at different workers talk to each other: the one at the fuller worker is to go to the other's.
    pub(super) fn bring_together(&mut self, conn: ConnId, with: ConnId, commands: &mut Commands) {
        let worker = |conn| self.registry.entry(conn).map(|entry| entry.worker);
        let (Some(here), Some(there)) = (worker(conn), worker(with)) else { return };
        let used = |worker: u16| self.slots[usize::from(worker)].used;
        let _ = match used(here) >= used(there) {
            true => self.relocate(conn, there, commands) || self.relocate(with, here, commands),
            false => self.relocate(with, here, commands) || self.relocate(conn, there, commands),
        };
    }

    /// Begins to move a client to another worker; whether it does.
    pub fn relocate(&mut self, conn: ConnId, to: u16, commands: &mut Commands) -> bool {
        let Some(entry) = self.registry.entry(conn) else { return false };
        let from = Place { worker: entry.worker, slot: entry.slot, conn };
        let used = |worker: u16| self.slots.get(usize::from(worker)).map_or(usize::MAX, |slots| slots.used);
        let (leaves, joins) = (used(from.worker), used(to));
        let slack = SLACK.max(leaves.saturating_add(joins) / 16);
        let refused = self.moving.is_some()
            || entry.mesh
            || entry.dialled
            || from.worker == to
            || joins.saturating_add(2) > leaves.saturating_add(slack);
        if refused {
            return false;
        }
        self.fence += 1;
        let (fence, awaited) = (self.fence, self.slots.len());
        self.moving = Some(Move { from, to, fence, awaited, step: Step::Holding, withheld: Vec::new() });
        self.tell_all(commands, |_| Command::Hold { at: from, fence });
        true
    }

    /// A worker is past this fence.
    pub(super) fn fenced(&mut self, fence: u64, commands: &mut Commands) {
        let Some(moving) = self.moving.as_mut().filter(|moving| moving.fence == fence) else { return };
        moving.awaited = moving.awaited.saturating_sub(1);
        if moving.awaited == 0 && moving.step == Step::Holding {
            moving.step = Step::Leaving;
            commands.push((moving.from.worker, Command::Leave(moving.from)));
        }
    }

    /// The client that moves has left its old worker.
    pub fn departed(&mut self, at: Place, commands: &mut Commands) {
        let Some(moving) = self.moving.as_mut().filter(|moving| moving.from == at) else { return };
        self.fence += 1;
        let fence = self.fence;
        (moving.step, moving.fence, moving.awaited) = (Step::Settling, fence, self.slots.len());
        self.tell_all(commands, |_| Command::Fence(fence));
    }

    /// The place of a client that has left its old worker, once its new one can have it, and what is to be done there together with
    /// that. `commands` are to be given after it.
    pub fn arrival(&mut self, commands: &mut Commands) -> Option<(Place, Vec<Command>)> {
        let settled = |moving: &mut Move| moving.step == Step::Settling && moving.awaited == 0;
        let Move { from, to, withheld, .. } = self.moving.take_if(settled)?;
        let slot = self.slots[usize::from(to)].take();
        self.slots[usize::from(from.worker)].give(from.slot);
        let at = Place { worker: to, slot, conn: from.conn };
        self.registry.moved(at.conn, to, slot, &mut self.effects);
        let mut all = Vec::new();
        self.take_effects(&mut all);
        self.tell_all(&mut all, |_| Command::ReleaseHeld(at.conn, Some(at)));
        let mut then = Vec::new();
        for (worker, command) in all {
            if worker == to { then.push(command) } else { commands.push((worker, command)) }
        }
        then.extend(withheld.into_iter().map(|command| command.at(at)));
        Some((at, then))
    }

    /// A connection is gone: if it was on its way, it is so no more.
    pub(super) fn abandon(&mut self, conn: ConnId, commands: &mut Commands) {
        if self.moving.take_if(|moving| moving.from.conn == conn).is_some() {
            self.tell_all(commands, |_| Command::ReleaseHeld(conn, None));
        }
    }

    /// Whether a client is on its way.
    pub fn is_moving(&self) -> bool {
        self.moving.is_some()
    }

    fn tell_all(&self, commands: &mut Commands, command: impl Fn(u16) -> Command) {
        commands.extend((0..self.slots.len() as u16).map(|worker| (worker, command(worker))));
    }
}
