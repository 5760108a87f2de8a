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
//! that is disconnected on its way is disconnected as any other. Clients of a worker whose CPU has no time left go to one whose CPU has.
//! Refuses: to move relays of the mesh, more than one client at a time, or a client whose going would make its new worker much fuller
//! than its old one, unless the CPUs say that there is room.

use weir_core::relay::{ConnId, Place};
use weir_core::time::{Nanos, SECOND};

use super::{Commands, Registrar, part_of};
use crate::session::Command;

/// The idle share of a CPU's time from which on there is room for more clients, and with which there is none.
const ROOMY: f64 = 0.1;
const FULL: f64 = 0.05;
/// Who was moved for want of time is not moved for that again for so long.
const REST: Nanos = 10 * SECOND;

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
        let to_there = match (self.room_of(here), self.room_of(there)) {
            (Some(here), Some(there)) if (here - there).abs() > ROOMY => there > here,
            _ => used(here) >= used(there),
        };
        let _ = match to_there {
            true => self.relocate(conn, there, commands) || self.relocate(with, here, commands),
            false => self.relocate(with, here, commands) || self.relocate(conn, there, commands),
        };
    }

    /// The CPU of this worker has no time left; these of its clients have something to do. They go to where there is room.
    pub fn relieve(&mut self, worker: u16, conns: Vec<ConnId>, now: Nanos, commands: &mut Commands) {
        let rooms = self.room.iter().flatten().copied().zip(0_u16..);
        let Some((room, to)) = rooms.max_by(|a, b| a.0.total_cmp(&b.0)) else { return };
        if room < ROOMY || to == worker {
            return;
        }
        self.relieved.retain(|(_, at)| now.saturating_sub(*at) < REST);
        let rested = |conn: &ConnId| self.relieved.iter().all(|(relieved, _)| relieved != conn);
        self.waiting = conns.into_iter().filter(rested).map(|conn| (conn, to)).collect();
        self.relieved.extend(self.waiting.iter().map(|(conn, _)| (*conn, now)));
        self.next_move(commands);
    }

    /// The idle share of each worker's CPU, where it is known.
    pub fn note_room(&mut self, room: Option<&[f64]>) {
        self.room = room.map(<[f64]>::to_vec);
    }

    fn room_of(&self, worker: u16) -> Option<f64> {
        self.room.as_ref()?.get(usize::from(worker)).copied()
    }

    /// Begins to move a client to another worker that may have it; whether it does.
    pub fn relocate(&mut self, conn: ConnId, to: u16, commands: &mut Commands) -> bool {
        let Some(from) = self.registry.entry(conn).map(|entry| entry.worker) else { return false };
        self.may_have_more(to, from) && self.begin(conn, to, commands)
    }

    /// Whether one more client may go from a worker to another.
    fn may_have_more(&self, to: u16, from: u16) -> bool {
        let used = |worker: u16| self.slots.get(usize::from(worker)).map_or(usize::MAX, |slots| slots.used);
        let (leaves, joins) = (used(from), used(to));
        let slack = SLACK.max(leaves.saturating_add(joins) / 16);
        match (self.room_of(to), self.room_of(from)) {
            (Some(to), Some(from)) if to > ROOMY && to > from => true,
            (Some(to), Some(from)) if to < FULL && from > FULL => false,
            _ => joins.saturating_add(2) <= leaves.saturating_add(slack),
        }
    }

    /// Begins the next of the moves that wait, unless one is under way.
    fn next_move(&mut self, commands: &mut Commands) {
        while self.moving.is_none()
            && let Some((conn, to)) = self.waiting.pop_front()
        {
            self.begin(conn, to, commands);
        }
    }

    fn begin(&mut self, conn: ConnId, to: u16, commands: &mut Commands) -> bool {
        let Some(entry) = self.registry.entry(conn) else { return false };
        let from = Place { worker: entry.worker, slot: entry.slot, conn };
        let nowhere = from.worker == to || usize::from(to) >= self.slots.len();
        if self.moving.is_some() || entry.mesh || entry.dialled || nowhere {
            return false;
        }
        self.fence += 1;
        let (fence, awaited) = (self.fence, self.slots.len());
        self.moving = Some(Move { from, to, fence, awaited, step: Step::Holding, withheld: Vec::new() });
        self.tell_all(commands, || Command::Hold { at: from, fence });
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
        self.tell_all(commands, || Command::Fence(fence));
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
        let before = commands.len();
        self.take_effects(commands);
        self.tell_all(commands, || Command::ReleaseHeld(at.conn, Some(at)));
        let mut then = part_of(to, commands, before);
        then.extend(withheld.into_iter().map(|command| command.at(at)));
        self.next_move(commands);
        Some((at, then))
    }

    /// A connection is gone: if it was on its way, it is so no more.
    pub(super) fn abandon(&mut self, conn: ConnId, commands: &mut Commands) {
        if self.moving.take_if(|moving| moving.from.conn == conn).is_some() {
            self.tell_all(commands, || Command::ReleaseHeld(conn, None));
            self.next_move(commands);
        }
    }

    /// Whether a client is on its way.
    pub fn is_moving(&self) -> bool {
        self.moving.is_some()
    }

    pub(super) fn tell_all(&self, commands: &mut Commands, command: impl Fn() -> Command) {
        commands.extend((0..self.slots.len() as u16).map(|worker| (worker, command())));
    }
}

#[cfg(test)]
mod tests {
    use weir_core::relay::Key;

    use super::*;
    use crate::Role;
    use crate::registrar::Admission;
    use crate::session::Event;

    fn registrar(workers: usize, clients: u8) -> Registrar {
        let mut registrar = Registrar::new(Key([0; 32]), 100, workers);
        for n in 1..=clients {
            let admission = Admission {
                key: Key([n; 32]),
                role: Role::Client,
                prober: false,
                can_ack_pings: true,
                ideal: true,
                address: ([192, 0, 2, n], 1).into(),
            };
            registrar.admit(&admission, &mut Vec::new());
        }
        registrar
    }

    /// Everybody answers as soon as it is asked; where the client is in the end.
    fn carry_through(registrar: &mut Registrar, mut commands: Commands) -> Option<Place> {
        let mut arrived = None;
        while !commands.is_empty() {
            for (_, command) in std::mem::take(&mut commands) {
                match command {
                    Command::Hold { fence, .. } | Command::Fence(fence) => {
                        registrar.observe(Event::Fenced(fence), &mut commands);
                    }
                    Command::Leave(at) => registrar.departed(at, &mut commands),
                    _ => {}
                }
            }
            arrived = registrar.arrival(&mut commands).map(|(at, _)| at).or(arrived);
        }
        arrived
    }

    /// Workers of connections, which are numbered from 1.
    fn workers(registrar: &Registrar, clients: u8) -> Vec<u16> {
        let worker = |conn| registrar.registry.entry(conn).expect("it is here").worker;
        (1..=ConnId::from(clients)).map(worker).collect()
    }

    fn cross(registrar: &mut Registrar, conn: ConnId, with: ConnId) {
        let mut commands = Vec::new();
        registrar.observe(Event::Crossing { conn, with }, &mut commands);
        carry_through(registrar, commands);
    }

    #[test]
    fn pairs_come_together_and_workers_stay_equally_full() {
        let mut registrar = registrar(2, 8);
        assert_eq!(workers(&registrar, 8), [0, 1, 0, 1, 0, 1, 0, 1]);
        for pair in 0..4 {
            cross(&mut registrar, 2 * pair + 1, 2 * pair + 2);
        }
        let after = workers(&registrar, 8);
        assert!(after.chunks(2).all(|pair| pair[0] == pair[1]), "{after:?}");
        assert_eq!(after.iter().filter(|worker| **worker == 0).count(), 4, "{after:?}");
    }

    #[test]
    fn whoever_all_others_talk_to_does_not_draw_them_all_to_one_worker() {
        let mut registrar = registrar(2, 20);
        (2..=20).for_each(|conn| cross(&mut registrar, conn, 1));
        let here = workers(&registrar, 20).iter().filter(|worker| **worker == 0).count();
        assert!((9..=11).contains(&here), "{here} of 20");
    }

    #[test]
    fn clients_go_where_the_cpu_has_room_and_those_they_talk_to_follow() {
        let mut registrar = registrar(2, 8);
        registrar.note_room(Some(&[0.0, 0.5]));
        let mut commands = Vec::new();
        registrar.relieve(0, vec![1, 3], 0, &mut commands);
        carry_through(&mut registrar, commands);
        assert_eq!(workers(&registrar, 8), [1, 1, 1, 1, 0, 1, 0, 1]);
        cross(&mut registrar, 5, 1);
        assert_eq!(workers(&registrar, 8)[4], 1);
        // Not back and forth: who was moved rests.
        registrar.note_room(Some(&[0.9, 0.0]));
        registrar.relieve(1, vec![1, 3], SECOND, &mut Vec::new());
        assert!(!registrar.is_moving());
        registrar.relieve(1, vec![1, 3], REST, &mut Vec::new());
        assert!(registrar.is_moving());
    }

    #[test]
    fn nobody_goes_to_a_cpu_that_has_no_time_left_either() {
        let mut registrar = registrar(2, 8);
        for room in [[0.0, 0.0], [0.5, 0.09]] {
            registrar.note_room(Some(&room));
            registrar.relieve(0, vec![1, 3], 0, &mut Vec::new());
            assert!(!registrar.is_moving());
        }
        registrar.note_room(Some(&[0.5, 0.0]));
        assert!(!registrar.relocate(1, 1, &mut Vec::new()), "its own CPU has time");
        registrar.note_room(None);
        registrar.relieve(0, vec![1, 3], 0, &mut Vec::new());
        assert!(!registrar.is_moving(), "nobody knows where there is room");
    }

    #[test]
    fn a_client_that_hangs_up_on_its_way_is_forgotten_and_its_slot_is_free() {
        let mut registrar = registrar(2, 4);
        let mut commands = Vec::new();
        assert!(registrar.relocate(1, 1, &mut commands));
        assert!(!registrar.relocate(3, 1, &mut Vec::new()), "one at a time");
        let at = Place { worker: 0, slot: 0, conn: 1 };
        commands.clear();
        registrar.observe(Event::Closed { at, sent_to: Vec::new() }, &mut commands);
        let released = commands.iter().filter(|(_, c)| matches!(c, Command::ReleaseHeld(1, None))).count();
        assert_eq!((registrar.is_moving(), released), (false, 2));
        registrar.observe(Event::Fenced(1), &mut commands);
        registrar.departed(at, &mut commands);
        assert!(registrar.arrival(&mut Vec::new()).is_none());
    }
}
