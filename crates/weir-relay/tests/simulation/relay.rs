//! A relay's sessions and registrar, with everything between them in lists that chance empties.

use std::collections::VecDeque;

use weir_core::random::SplitMix64;
use weir_core::relay::{ConnId, Key, Place};
use weir_core::time::Nanos;
use weir_relay::Engine;
use weir_relay::counters::Tally;
use weir_relay::registrar::{Admission, Commands, Registrar};
use weir_relay::session::{Command, CrossWorkerBatch, Departed, Event, NewConn, Session, Setup, memory_most};

use crate::streams::{self, Links, Streams};

pub enum WorkerCommand {
    AddClient { at: Place, link: u64, connection: Box<NewConn>, then: Vec<Command> },
    Arrive { at: Place, moving: Moving, then: Vec<Command> },
    Session(Command),
}

/// A client between two workers, with its link.
type Moving = (u64, Box<Departed>);

enum Heard {
    Session(Event),
    Departed(Place, Moving),
}

pub struct SimulatedWorker {
    pub session: Session,
    pub streams: Streams,
    commands: VecDeque<WorkerCommand>,
    /// Rings, by the worker they come from.
    incoming: Vec<VecDeque<CrossWorkerBatch>>,
}

pub struct SimulatedRelay {
    /// What a client's queue held at most, by any of its settings.
    queue_most: usize,
    registrar: Registrar,
    pub workers: Vec<SimulatedWorker>,
    events: VecDeque<Heard>,
    moving: Option<Moving>,
    conns: Vec<ConnId>,
    /// Batches in a ring.
    ring: usize,
    buffers: u16,
    /// One in so many sockets cannot be taken over; 0: none.
    register_fails: u64,
}

/// How a relay is built.
#[derive(Clone, Debug)]
pub struct Build {
    pub engine: Engine,
    pub ring: usize,
    pub buffers: u16,
    pub register_fails: u64,
}

impl SimulatedRelay {
    pub fn new(build: &Build, now: Nanos, random: &mut SplitMix64) -> SimulatedRelay {
        let engine = build.engine.clone();
        let worker = |number| {
            let streams = Streams::new(build.buffers);
            let setup = Setup {
                number: number as u16,
                workers: engine.workers,
                engine: engine.clone(),
                buffers: streams.buffers.clone(),
                secret: random.next_u64(),
                jitter: random.next_u64(),
                now,
            };
            let incoming = (0..engine.workers).map(|_| VecDeque::new()).collect();
            SimulatedWorker { session: Session::new(setup), streams, commands: VecDeque::new(), incoming }
        };
        let workers = (0..engine.workers).map(worker).collect();
        let registrar = Registrar::new(engine.own, engine.clients, engine.workers);
        let (ring, buffers) = (build.ring, build.buffers);
        let queue_most = engine.queue_bytes;
        SimulatedRelay {
            queue_most,
            registrar,
            workers,
            events: VecDeque::new(),
            moving: None,
            conns: Vec::new(),
            ring,
            buffers,
            register_fails: build.register_fails,
        }
    }

    pub fn admit(&mut self, admission: &Admission, link: u64, connection: NewConn) {
        let mut commands = Vec::new();
        let (at, then) = self.registrar.admit(admission, &mut commands);
        self.conns.push(at.conn);
        self.put(commands);
        let add = WorkerCommand::AddClient { at, link, connection: Box::new(connection), then };
        self.workers[usize::from(at.worker)].commands.push_back(add);
    }

    /// Somebody is to go to some worker, or some worker's CPU has no time left.
    pub fn relocate(&mut self, now: Nanos, random: &mut SplitMix64) {
        if self.conns.is_empty() {
            return;
        }
        let some = |random: &mut SplitMix64| self.conns[random.below(self.conns.len() as u64) as usize];
        let worker = random.below(self.workers.len() as u64) as u16;
        let mut commands = Vec::new();
        if random.below(8) == 0 {
            let room: Vec<f64> = self.workers.iter().map(|_| random.below(20) as f64 / 100.0).collect();
            let conns = (0..random.below(6)).map(|_| some(random)).collect();
            self.registrar.note_room(Some(&room));
            self.registrar.relieve(worker, conns, now, &mut commands);
        } else {
            self.registrar.relocate(some(random), worker, &mut commands);
        }
        self.put(commands);
    }

    fn put(&mut self, commands: Commands) {
        for (worker, command) in commands {
            self.workers[usize::from(worker)].commands.push_back(WorkerCommand::Session(command));
        }
    }

    pub fn drain(&mut self, grace: std::time::Duration) {
        let mut commands = Vec::new();
        self.registrar.drain(grace, grace, grace, &mut commands);
        self.put(commands);
    }

    pub fn tune(&mut self, engine: &Engine) {
        self.queue_most = self.queue_most.max(engine.queue_bytes);
        let tune = || WorkerCommand::Session(Command::Tune(Box::new(engine.clone())));
        self.workers.iter_mut().for_each(|worker| worker.commands.push_back(tune()));
    }

    /// The registrar hears `most` events.
    pub fn observe(&mut self, most: usize) {
        for _ in 0..most {
            let Some(event) = self.events.pop_front() else { return };
            let mut commands = Vec::new();
            match event {
                Heard::Session(event) => self.registrar.observe(event, &mut commands),
                Heard::Departed(at, moving) => {
                    self.moving = Some(moving);
                    self.registrar.departed(at, &mut commands);
                }
            }
            if let Some((at, then)) = self.registrar.arrival(&mut commands) {
                let moving = self.moving.take().expect("who arrives has departed");
                let arrive = WorkerCommand::Arrive { at, moving, then };
                self.workers[usize::from(at.worker)].commands.push_back(arrive);
            }
            self.put(commands);
        }
    }

    /// A turn of one worker, in the order of the real one. What happened, as a number.
    pub fn turn(&mut self, number: usize, now: Nanos, links: &mut Links, random: &mut SplitMix64) -> u64 {
        let untaken: Vec<_> = self.workers.iter().map(|other| other.incoming[number].len()).collect();
        let worker = &mut self.workers[number];
        let happened = worker.streams.turn(links, random);
        let (mut trace, mut departed) = (now ^ number as u64, Vec::new());
        worker.session.begin_turn(now);
        for (to, untaken) in untaken.into_iter().enumerate() {
            worker.session.note_ring(to, untaken, self.ring - untaken);
        }
        for command in worker.commands.drain(..) {
            match command {
                WorkerCommand::Session(command) => worker.session.command(command),
                WorkerCommand::AddClient { at, link, then, .. } if random.below(self.register_fails) == 1 => {
                    if let Some(link) = links.get_mut(&link) {
                        link.down_ended = true;
                    }
                    worker.session.not_connected(at, then);
                }
                WorkerCommand::Arrive { at, moving: (link, client), then }
                    if random.below(self.register_fails) == 1 =>
                {
                    if let Some(link) = links.get_mut(&link) {
                        link.down_ended = true;
                    }
                    worker.session.not_arrived(at, *client, then);
                }
                WorkerCommand::Arrive { at, moving: (link, client), then } => {
                    worker.streams.register(at.slot, link);
                    worker.session.arrive(at, *client, then);
                }
                WorkerCommand::AddClient { at, link, connection, then } => {
                    worker.streams.register(at.slot, link);
                    worker.session.connect(at, *connection, then);
                }
            }
        }
        for batch in worker.incoming.iter_mut().flat_map(|ring| ring.drain(..)) {
            worker.session.take_batch(batch);
        }
        for event in happened {
            trace = trace.wrapping_mul(0x0100_0000_01b3) ^ number_of(&event);
            match event {
                streams::Event::Received(slot, buffer) => worker.session.received(slot, buffer),
                streams::Event::Sent(slot, sent, parts) => worker.session.sent(slot, sent, parts),
                streams::Event::Writable(slot) => worker.session.writable(slot),
                streams::Event::Ended(slot) => worker.session.ended(slot),
                streams::Event::Failed(slot) => worker.session.failed(slot),
                streams::Event::Released(slot, link) => match worker.session.depart(slot) {
                    Some((at, client)) => departed.push(Heard::Departed(at, (link, Box::new(client)))),
                    // Its socket is dropped, and so closed.
                    None => links.get_mut(&link).expect("a stream has a link").down_ended = true,
                },
            }
        }
        worker.session.end_turn();
        self.carry_out(number, links, random);
        self.events.extend(departed);
        self.check(number);
        trace
    }

    /// What the session wants done.
    fn carry_out(&mut self, number: usize, links: &mut Links, random: &mut SplitMix64) {
        for to in 0..self.workers.len() {
            let mut batches = Vec::new();
            let room = self.ring - self.workers[to].incoming[number].len();
            self.workers[number].session.hand_over(to, |batch| {
                if batches.len() == room {
                    return Err(batch);
                }
                batches.push(batch);
                Ok(())
            });
            self.workers[to].incoming[number].extend(batches);
        }
        let SimulatedWorker { session, streams, .. } = &mut self.workers[number];
        session.actions().for_each(|action| streams.carry_out(action, links, random));
        self.events.extend(session.events().map(Heard::Session));
    }

    /// What is true after every turn.
    fn check(&self, number: usize) {
        let t = self.workers[number].session.tally();
        assert_eq!(
            t.packets_in + t.taken,
            t.packets_forwarded + t.drops.packets() + t.held + t.handed,
            "worker {number}: {t:?}"
        );
    }

    /// Memory of each client stays below its bound.
    pub fn check_memory(&self) {
        let most = memory_most(self.queue_most) as u64;
        for c in self.workers.iter().flat_map(|worker| worker.session.connections()) {
            assert!(
                c.role != weir_relay::Role::Client || c.memory <= most + 2 * c.control_bytes,
                "a client takes {} bytes of memory, at most {most} are allowed: {c:?}",
                c.memory
            );
        }
    }

    pub fn tallies(&self) -> impl Iterator<Item = &Tally> {
        self.workers.iter().map(|worker| worker.session.tally())
    }

    pub fn sum(&self, of: impl Fn(&Tally) -> u64) -> u64 {
        self.tallies().map(of).sum()
    }

    /// How long nothing is due.
    pub fn timeout(&self) -> Option<Nanos> {
        self.workers.iter().filter_map(|worker| worker.session.timeout()).min()
    }

    /// Nothing is under way between threads, or waits for a client.
    pub fn is_quiet(&self) -> bool {
        let quiet = |w: &SimulatedWorker| {
            let sent =
                w.session.timeout() != Some(0) && w.session.connections().iter().all(|c| c.queued_bytes == 0);
            sent && w.commands.is_empty() && w.incoming.iter().all(VecDeque::is_empty)
        };
        self.events.is_empty()
            && !self.registrar.is_moving()
            && self.workers.iter().all(quiet)
            && self.sum(|t| t.held) == 0
    }

    /// The end: nobody is left, nothing is held, every buffer has come back.
    pub fn close(mut self, links: &mut Links, random: &mut SplitMix64) -> Vec<Tally> {
        for number in 0..self.workers.len() {
            for batch in self.workers[number].incoming.iter_mut().flat_map(std::mem::take) {
                drop(batch);
            }
            self.workers[number].session.close_all();
            self.carry_out(number, links, random);
            self.check(number);
        }
        for (number, worker) in self.workers.iter().enumerate() {
            let tally = worker.session.tally();
            assert_eq!((tally.held, tally.connections), (0, 0), "worker {number}");
            assert_eq!(worker.streams.len(), 0, "worker {number} has streams of nobody");
            assert_eq!(
                worker.streams.buffers.free(),
                usize::from(self.buffers),
                "worker {number} keeps buffers"
            );
        }
        self.workers.iter().map(|worker| worker.session.tally().clone()).collect()
    }
}

fn number_of(event: &streams::Event) -> u64 {
    match event {
        streams::Event::Received(slot, buffer) => 1 + (u64::from(*slot) << 8) + ((buffer.len() as u64) << 20),
        streams::Event::Sent(slot, sent, parts) => {
            let bytes: usize = parts.iter().map(|part| part.bytes().len()).sum();
            2 + (u64::from(*slot) << 8) + ((*sent as u64) << 20) + ((bytes as u64) << 42)
        }
        streams::Event::Writable(slot) => 3 + (u64::from(*slot) << 8),
        streams::Event::Ended(slot) => 4 + (u64::from(*slot) << 8),
        streams::Event::Failed(slot) => 5 + (u64::from(*slot) << 8),
        streams::Event::Released(slot, link) => 6 + (u64::from(*slot) << 8) + (link << 40),
    }
}

/// The relay's own key.
pub const OWN: Key = Key([77; 32]);
