//! The `relay` topology: clients and a DERP relay in one network namespace.
//!
//! ```text
//!  relay ns   generator's CPU                              relay's CPU
//!             sender 1 … N ──────── TCP, [TLS], DERP ─────► relay
//!             receiver 1 … N ◄───────────────────────────── (one process)
//!  baseline    sender 1 … N ─► receiver 1 … N, no relay
//! ```
//!
//! Promises: every relay has the same clients, packets and CPUs. Connections go over the loopback device: what a
//! CPU sends it also receives for the other side, so each of the two pays for one direction. The generator says
//! how busy it was, and what it can do alone is the baseline. What is lost is in the ledger, the relay's own
//! reasons where it tells them.
//!
//! Refuses: values of a stream that lost its frames: the run fails.

use std::collections::BTreeMap;

use weir_io::cpu;

use crate::cachesim;
use crate::experiment::kebab;
use crate::generator::derp::client;
use crate::generator::derp::pairs::{Moment, Outcome, PairTraffic, Pairs};
use crate::generator::derp::visits;
use crate::model::relay::{Load, RelayScenario};
use crate::model::{Configuration, Family, LabError, Misbehaviour, Prepared, Sample, Scope, Sut, Trial};
use crate::netns::counters::Counters;
use crate::netns::cpus::{self, Cpus};
use crate::netns::namespace::Namespace;
use crate::netns::residue::Sweep;
use crate::sut::peer;
use crate::sut::relay::{self, ADDRESS, Environment, Relaying};
use crate::sut::{derper, hyper_derp, tcp_forwarder, weir};

pub mod measure;
pub mod reading;
mod simulated;
mod stalled;
#[cfg(test)]
mod tests;

use measure::Paired;
use reading::{Cost, Reading};

#[derive(Debug, Default)]
pub struct RelayTestbed {
    sweep: Sweep,
}

impl RelayTestbed {
    pub fn missing(&mut self, configuration: &Configuration, relay: &RelayScenario) -> Option<String> {
        if configuration.workload.family == Family::Inet6 {
            return Some("relay: its clients use IPv4; use family = \"inet\"".into());
        }
        if relay.load == Load::SimulatedCaches {
            if configuration.sut() != Sut::Weir {
                return Some("relay: only weir's caches are simulated: use sut = \"weir\"".into());
            }
            if let Err(lacks) = cachesim::valgrind() {
                return Some(lacks.said);
            }
        }
        cpus::missing_privilege().or_else(|| match configuration.sut() {
            Sut::Baseline => None,
            Sut::Derper => derper::missing(relay.tls),
            Sut::HyperDerp => hyper_derp::missing(relay.tls),
            Sut::Weir => weir::relay::missing(relay.tls),
            Sut::TcpForwarder => tcp_forwarder::missing(relay),
            other => Some(format!(
                "{}: is no relay here: use sut = \"weir\", \"derper\", \"hyper-derp\" or \"tcp-forwarder\"",
                crate::experiment::kebab(&other)
            )),
        })
    }

    pub fn prepare(
        &mut self,
        configuration: &Configuration,
        relay: &RelayScenario,
    ) -> Result<Box<dyn Prepared>, LabError> {
        let missing = self.missing(configuration, relay);
        self.sweep.deploy(missing, |swept| {
            Ok(Box::new(Deployed::new(configuration, *relay, swept)?) as Box<dyn Prepared>)
        })
    }
}

/// A relay and its clients.
struct Deployed {
    // Dropped first: clients and relay end before their namespace does.
    pairs: Option<Pairs>,
    running: Option<Box<dyn Relaying>>,
    /// The name of the SUT.
    name: String,
    namespace: Namespace,
    cpus: Cpus,
    relay: RelayScenario,
    clients: u32,
    notes: Vec<String>,
    /// Which of them say that something better was refused.
    fallbacks: Vec<String>,
    run: u32,
}

impl Deployed {
    fn new(
        configuration: &Configuration,
        relay: RelayScenario,
        swept: Vec<String>,
    ) -> Result<Deployed, LabError> {
        let mut cpus = Cpus::choose(&configuration.placement)?;
        if configuration.placement.cpus.is_empty() && relay.workers > 1 {
            cpus.sut = more(&cpus, relay.workers)?;
        }
        let namespace = Namespace::new("relay")?;
        // ten thousand clients of one address, again and again
        namespace.sysctl("net/ipv4/ip_local_port_range", "1024 65535")?;
        let mut notes = swept;
        notes.extend(cpus_said(&cpus));
        let tcp = namespace.untuned()?;
        let fallbacks = tcp.fell_back.then(|| tcp.said.clone()).into_iter().collect();
        notes.push(tcp.said);
        let environment = Environment { namespace: &namespace, cpus: &cpus.sut, address: ADDRESS, relay };
        let running = relay::start(configuration.sut(), &environment)?;
        notes.extend(running.iter().flat_map(|r| r.notes()));
        let mut deployed = Deployed {
            pairs: None,
            running,
            name: kebab(&configuration.sut()),
            namespace,
            cpus,
            relay,
            clients: configuration.workload.flows,
            notes,
            fallbacks,
            run: 0,
        };
        if relay.load.has_pairs() {
            deployed.connect(configuration)?;
        }
        Ok(deployed)
    }

    fn connect(&mut self, configuration: &Configuration) -> Result<(), LabError> {
        let data = configuration.workload.frame.of_relay()?;
        let (count, sut, cpu) = (self.clients, configuration.sut(), self.cpus.generator);
        let relay = self.relay;
        let pairs = self.namespace.run(move || {
            pin(cpu)?;
            match sut {
                Sut::Baseline => Pairs::direct(count, data, relay.tls.is_on()),
                sut => Pairs::relayed(sut, ADDRESS, count, data, &relay),
            }
        })?;
        self.pairs = Some(pairs?);
        Ok(())
    }

    fn reader(&self) -> Reading {
        Reading::of(self.cpus.clone(), self.running.as_ref().map(|r| r.process()))
    }

    /// Pairs send to each other.
    fn relay(&mut self, trial: &Trial) -> Result<Sample, LabError> {
        let (relay, shares) = (self.relay, self.cpus.sut.contains(&self.cpus.generator));
        let mut sample = measure::measure(self, &relay, shares, trial)?;
        let warnings = self.running.as_mut().map(|r| r.warnings()).unwrap_or_default();
        sample.notes.splice(0..0, self.notes.iter().cloned());
        sample.notes.extend(warnings);
        sample.fallbacks = Some(self.fallbacks.clone());
        Ok(sample)
    }

    /// Clients connect and are silent.
    fn idle(&mut self, trial: &Trial) -> Result<Sample, LabError> {
        let (Some(process), count, cpu) =
            (self.running.as_ref().map(|r| r.process()), u64::from(self.clients), self.cpus.generator)
        else {
            return Err(LabError::new("relay: idle clients need a relay: name one as `sut`".into()));
        };
        let unread = || LabError::new("relay: its memory cannot be read: has it ended?".into());
        let before = relay::memory(process).ok_or_else(unread)?;
        let (run, pause) = (self.run, trial.warm_up + trial.window);
        self.run += 1;
        let server = client::Server::new(ADDRESS, self.relay.tls.is_on())?;
        let began = weir_io::clock::now();
        let clients = self.namespace.run(move || {
            pin(cpu)?;
            client::connect(&server, 2 + u64::from(run), count)
        })??;
        let connected = weir_io::clock::now();
        std::thread::sleep(pause);
        let after = relay::memory(process).ok_or_else(unread)?;
        let ended = weir_io::clock::now();
        drop(clients);
        let metrics = measure::of_idle([before, after], count, connected - began);
        Ok(self.silent(metrics, (connected, ended)))
    }

    /// Clients connect and leave.
    fn connects(&mut self, trial: &Trial) -> Result<Sample, LabError> {
        let (cpu, mut reading) = (self.cpus.generator, self.reader());
        let server = client::Server::new(ADDRESS, self.relay.tls.is_on())?;
        let stay = measure::stay(&self.relay, self.clients, trial);
        let (came, reading) = self.namespace.run(move || {
            let came = pin(cpu).and_then(|()| visits::come_and_go(&server, stay, || reading.open()));
            reading.close();
            (came, reading)
        })?;
        let came = came?;
        let (metrics, note) = measure::of_visits(&came, reading.cost());
        let mut sample = self.silent(metrics, (came.began, came.ended));
        sample.notes.extend(note);
        Ok(sample)
    }

    /// A run without packets.
    fn silent(&self, metrics: BTreeMap<String, f64>, window: (u64, u64)) -> Sample {
        Sample {
            seconds: window.1.saturating_sub(window.0).max(1) as f64 / 1e9,
            metrics,
            notes: self.notes.clone(),
            fallbacks: Some(self.fallbacks.clone()),
            window_ns: Some(window),
            ..Sample::default()
        }
    }
}

impl Paired for Deployed {
    fn drops(&mut self) -> Result<Counters, LabError> {
        match &mut self.running {
            Some(running) => running.drops(&self.namespace),
            None => Ok(Counters::new()),
        }
    }

    fn load(&mut self, plan: PairTraffic) -> Result<(Outcome, Option<Cost>), LabError> {
        self.run += 1;
        let plan = PairTraffic { run: self.run, ..plan };
        let mut pairs = self
            .pairs
            .take()
            .ok_or_else(|| LabError::new("relay: its connections ended in a run before this one".into()))?;
        let (cpu, mut reading) = (self.cpus.generator, self.reader());
        let (pairs, reading, came) = self.namespace.run(move || {
            let came = pin(cpu).and_then(|()| {
                pairs.run(&plan, |moment| match moment {
                    Moment::Opens => reading.open(),
                    Moment::Closes => reading.close(),
                })
            });
            (pairs, reading, came)
        })?;
        let came = came?;
        self.pairs = Some(pairs);
        Ok((came, reading.cost()))
    }
}

impl Deployed {
    /// What a relay did that made a run fail, if it did.
    fn blamed(&mut self, error: LabError) -> LabError {
        match &mut self.running {
            Some(running) => blame(&self.name, running.ended(), error),
            None => error,
        }
    }
}

/// The error of a run whose relay ended, or broke a stream, is the relay's.
pub fn blame(name: &str, ended: Option<LabError>, error: LabError) -> LabError {
    match ended {
        Some(ended) => ended,
        None if error.misbehaviour == Some(Misbehaviour::BrokeStream) => peer::broke_a_stream(name, &error),
        None => error,
    }
}

impl Prepared for Deployed {
    fn run(&mut self, trial: &Trial) -> Result<Sample, LabError> {
        let measured = match self.relay.load {
            Load::ClosedLoop | Load::Open => self.relay(trial),
            Load::Idle => self.idle(trial),
            Load::Connects | Load::Reconnects => self.connects(trial),
            Load::SimulatedCaches => self.simulated(trial),
        };
        measured.map_err(|error| self.blamed(error))
    }

    fn scope(&self) -> Option<Scope> {
        self.running.as_ref().map(|_| Scope::Cpus(self.cpus.sut.clone()))
    }
}

/// A CPU for each worker: the SUT's own first, then the rest of the machine, the generator's last.
fn more(cpus: &Cpus, workers: u32) -> Result<Vec<u32>, LabError> {
    let topology =
        cpu::Topology::read(std::path::Path::new(cpu::SYSFS)).map_err(|e| LabError::new(e.to_string()))?;
    let cores = cpu::Placement::by_core(&topology, None).cpus;
    let mut all = cpus.sut.clone();
    all.extend(cores.iter().filter(|c| !cpus.sut.contains(c) && **c != cpus.generator));
    all.extend(cores.iter().filter(|c| **c == cpus.generator && !cpus.sut.contains(c)));
    if all.len() < workers as usize {
        return Err(LabError::new(format!(
            "relay: {workers} workers, this machine has {} cores: lower `workers`",
            all.len()
        )));
    }
    all.truncate(workers as usize);
    Ok(all)
}

fn cpus_said(cpus: &Cpus) -> Vec<String> {
    let list = cpus.sut.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let mut notes = vec![format!("cpus: generator {}, relay {list}; TCP over loopback", cpus.generator)];
    if cpus.sut.contains(&cpus.generator) {
        notes.push("relay and generator share a cpu: values say little about the relay alone".into());
    }
    notes
}

fn pin(cpu: u32) -> Result<(), LabError> {
    crate::netns::drive::pin(cpu)
}
