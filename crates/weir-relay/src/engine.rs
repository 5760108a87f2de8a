//! The engine's handle: starts workers and registrar, hands connections over, gathers reports, ends all.
//!
//! Promises: every thread it starts has ended when it is dropped. Refuses: zero workers, and more than
//! [`WORKERS_MAX`].

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rtrb::{Consumer, Producer, RingBuffer};
use weir_io::stream::{Backend, Streams};
use weir_io::wake::Waker;

use super::AuthenticatedConn;
use super::counters::Shown;
use super::cross_worker::{Doorbell, Mailbox, RING};
use super::error::{StartError, WORKERS_MAX};
use super::inbox::Inbox;
use super::messages::{Command, CommandSender, Event};
use super::registrar::{self, Registrar};
use super::report::{Connection, RelayReport, WorkerReport};
use super::session::{self, CrossWorkerBatch};
use super::settings::Engine;
use super::worker::{Parts, RelayWorker};

/// A running engine.
#[derive(Debug)]
pub struct Relay {
    registrar: Arc<Inbox>,
    workers: Vec<Hand>,
    threads: Vec<JoinHandle<()>>,
}

/// What is known of a worker from outside.
#[derive(Debug)]
struct Hand {
    commands: CommandSender,
    shown: Arc<Shown>,
    backend: String,
    cpu: Option<u32>,
}

impl Relay {
    /// Starts the threads. Every worker has its sockets' kernel side before this returns.
    pub fn start(engine: &Engine) -> Result<Relay, StartError> {
        let count = engine.workers;
        if count == 0 || count > WORKERS_MAX {
            return Err(StartError::Workers(count));
        }
        let mut relay = Relay { registrar: Arc::default(), workers: Vec::new(), threads: Vec::new() };
        let mut rings = rings(count);
        let mut waiting = Vec::new();
        for number in 0..count {
            // A worker's ring and epoll belong to its thread, so it makes them there.
            let (queue, commands) = channel();
            let (ready, started) = channel();
            let shown = Arc::new(Shown::default());
            let start = Start {
                number: number as u16,
                engine: engine.clone(),
                cpu: engine.cpus.get(number).copied(),
                commands,
                registrar: relay.registrar.clone(),
                shown: shown.clone(),
                ready,
            };
            let (go, parts) = channel();
            let thread = std::thread::Builder::new()
                .name(format!("relay-{number}"))
                .spawn(move || start.run(&parts))
                .map_err(|e| StartError::Worker(number, e))?;
            relay.threads.push(thread);
            let (backend, waker) = started
                .recv()
                .unwrap_or_else(|_| Err(io::Error::other("its thread ended")))
                .map_err(|e| StartError::Worker(number, e))?;
            let doorbell = Arc::new(Doorbell::new(waker));
            let cpu = engine.cpus.get(number).copied();
            relay.workers.push(Hand { commands: CommandSender { queue, doorbell }, shown, backend, cpu });
            waiting.push(go);
        }
        let doorbells: Vec<_> = relay.workers.iter().map(|hand| hand.commands.doorbell.clone()).collect();
        for (number, go) in waiting.into_iter().enumerate() {
            let (out, incoming) = std::mem::take(&mut rings[number]);
            let others = out.into_iter().zip(&doorbells);
            let others = others
                .map(|(ring, doorbell)| Some(Mailbox { ring: ring?, doorbell: doorbell.clone() }))
                .collect();
            // A thread that ended meanwhile is found when it is joined.
            let _ = go.send(Rings { doorbell: doorbells[number].clone(), others, incoming });
        }
        let senders: Vec<_> = relay.workers.iter().map(|hand| hand.commands.clone()).collect();
        let registrar = Registrar::new(engine.own, engine.clients, count);
        let (inbox, cpus) = (relay.registrar.clone(), engine.cpus.clone());
        let thread = std::thread::Builder::new()
            .name("relay-registrar".to_owned())
            .spawn(move || registrar::run(registrar, &inbox, &senders, &cpus))
            .map_err(StartError::Registrar)?;
        relay.threads.push(thread);
        Ok(relay)
    }

    /// Hands a connection to the worker with the fewest.
    pub fn admit(&self, connection: AuthenticatedConn) {
        self.send(Event::Admit(Box::new(connection)));
    }

    /// Hands over several at once: threads are woken once.
    pub fn admit_all(&self, connections: Vec<AuthenticatedConn>) {
        let all: Vec<_> =
            connections.into_iter().map(|connection| Event::Admit(Box::new(connection))).collect();
        self.registrar.send_all(all.into_iter());
    }

    /// Counters of all workers.
    pub fn report(&self) -> RelayReport {
        let of = |(number, hand): (usize, &Hand)| {
            WorkerReport::new(number, hand.cpu, hand.backend.clone(), &hand.shown.read())
        };
        RelayReport { workers: self.workers.iter().enumerate().map(of).collect() }
    }

    /// Who is connected. Waits for the workers, each of which answers at the end of its turn.
    pub fn connections(&self) -> Vec<Connection> {
        let (reply, answers) = channel();
        for hand in &self.workers {
            hand.commands.post(Command::Connections(reply.clone()));
        }
        drop(reply);
        answers.iter().flatten().collect()
    }

    /// Queue limits and times are these from now on, for everybody. Workers, CPUs, buffers, the key and the number of
    /// connections stay as they were at the start.
    pub fn reload(&self, engine: &Engine) {
        for hand in &self.workers {
            hand.commands.post(Command::Session(session::Command::Tune(Box::new(engine.clone()))));
        }
    }

    /// Whether every thread runs.
    pub fn is_well(&self) -> bool {
        self.threads.iter().all(|thread| !thread.is_finished())
    }

    /// Tells everybody to come back after `reconnect_in`, trying for `try_for`, sends what waits for them for at
    /// most `grace`, and closes. New connections are refused from now on. Returns when nobody is left.
    pub fn drain(&self, reconnect_in: Duration, try_for: Duration, grace: Duration) {
        self.send(Event::Drain { reconnect_in, try_for, grace });
        let end = Instant::now() + grace + Duration::from_secs(1);
        let left = || self.workers.iter().any(|hand| hand.shown.read().connections > 0);
        while left() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn send(&self, event: Event) {
        self.registrar.send(event);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.send(Event::Stop);
        // Workers of a relay that did not come to have a registrar.
        self.workers.iter().for_each(|hand| hand.commands.post(Command::Stop));
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("relay: a thread panicked");
            }
        }
    }
}

/// What a worker's thread begins with.
struct Start {
    number: u16,
    engine: Engine,
    cpu: Option<u32>,
    commands: Receiver<Command>,
    registrar: Arc<Inbox>,
    shown: Arc<Shown>,
    ready: Sender<io::Result<(String, Arc<Waker>)>>,
}

/// What a worker is given once all the others are there.
struct Rings {
    doorbell: Arc<Doorbell>,
    others: Vec<Option<Mailbox>>,
    incoming: Vec<Option<Consumer<CrossWorkerBatch>>>,
}

impl Start {
    fn run(self, rings: &Receiver<Rings>) {
        let made = self.cpu.map_or(Ok(()), weir_io::cpu::pin).and_then(|()| {
            let backend = if self.engine.epoll { Backend::Epoll } else { Backend::Auto };
            Streams::new(backend, self.engine.buffers)
        });
        let streams = match made {
            Ok(streams) => streams,
            Err(error) => {
                let _ = self.ready.send(Err(error));
                return;
            }
        };
        if self.ready.send(Ok((streams.backend().to_string(), streams.waker()))).is_err() {
            return;
        }
        // Nobody gives any when another worker could not start.
        let Ok(Rings { doorbell, others, incoming }) = rings.recv() else { return };
        let Start { number, engine, commands, registrar, shown, .. } = self;
        RelayWorker::new(Parts {
            number,
            engine,
            streams,
            commands,
            doorbell,
            registrar,
            others,
            incoming,
            shown,
        })
        .run();
    }
}

/// One worker's ends of the rings, by the other worker.
type Ends = (Vec<Option<Producer<CrossWorkerBatch>>>, Vec<Option<Consumer<CrossWorkerBatch>>>);

/// A ring for each direction between each two workers.
fn rings(count: usize) -> Vec<Ends> {
    let none = || (0..count).map(|_| None).collect::<Vec<_>>();
    let mut ends: Vec<Ends> =
        (0..count).map(|_| (none(), (0..count).map(|_| None).collect::<Vec<_>>())).collect();
    for from in 0..count {
        for to in (0..count).filter(|&to| to != from) {
            let (producer, consumer) = RingBuffer::new(RING);
            ends[from].0[to] = Some(producer);
            ends[to].1[from] = Some(consumer);
        }
    }
    ends
}
