//! A relay on the device under test, its clients on the generator's host: start, connect, windows, counters, reset.
//!
//! ```text
//! lab ─► generator: run ───────► pairs send and receive, one clock ──► what came
//!     ─► device:    watch ─────► CPU time of a window as long ───────► what it cost
//! ```
//!
//! Promises: what is measured and said is what the topology `relay` measures and says. Both windows open within a round
//! trip of each other. Refuses: what needs relay and generator on one machine.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use weir_core::time::Nanos;

use super::fleet::Fleet;
use crate::agent::protocol::relay::{ClientsReady, RelayEnd, RelayRequest, RelayStarted, Watched};
use crate::agent::protocol::{Counted, Interface, Request};
use crate::experiment::hosts::{Role, Timeouts};
use crate::generator::derp::pairs::{Outcome, PairTraffic};
use crate::generator::derp::visits::Connected;
use crate::model::relay::{Load, RelayScenario, Tls};
use crate::model::{Configuration, Family, LabError, Prepared, Sample, Sut, Trial, kebab};
use crate::netns::counters::Counters;
use crate::sut::{self, tcp_forwarder, weir};
use crate::testbed::relay::blame;
use crate::testbed::relay::measure::{self, Paired};
use crate::testbed::relay::reading::{Basis, Cost};

/// Hosts that a relay needs, the clients' first: they leave before it ends.
const ROLES: [Role; 2] = [Role::Generator, Role::DeviceUnderTest];
/// Stragglers are waited for, at most five seconds; those of stalled receivers as long again.
const DRAINS: Duration = Duration::from_secs(10);

/// Why a configuration cannot be measured on hosts, with the remedy. What a host lacks is said when it is asked.
pub fn missing(configuration: &Configuration, relay: &RelayScenario) -> Option<String> {
    if configuration.workload.family == Family::Inet6 {
        return Some("relay: its clients use IPv4; use family = \"inet\"".into());
    }
    if let Err(mixed) = configuration.workload.frame.of_relay() {
        return Some(mixed.said);
    }
    match configuration.sut() {
        Sut::Weir => weir::program().is_none().then(|| sut::MISSING_WEIR.into()),
        Sut::Derper if relay.tls == Tls::Kernel => {
            Some("derper: has no TLS in the kernel: use tls = \"user\"".into())
        }
        Sut::Derper => None,
        Sut::TcpForwarder => tcp_forwarder::missing(relay),
        Sut::HyperDerp => Some(
            "hyper-derp: would listen on every address of its host, not on the test wire alone: use topology = \"relay\""
                .into(),
        ),
        Sut::Baseline => Some(
            "baseline: on hosts clients reach each other through the device under test alone: measure them on the \
             topology \"relay\", or compare with sut = \"tcp-forwarder\""
                .into(),
        ),
        other => Some(format!(
            "{}: is no relay here: use sut = \"weir\", \"derper\" or \"tcp-forwarder\"",
            kebab(&other)
        )),
    }
}

pub struct RelayDeployed {
    fleet: Rc<RefCell<Fleet>>,
    limits: Timeouts,
    relay: RelayScenario,
    /// The name of the SUT.
    name: String,
    clients: u32,
    basis: Basis,
    /// Relay and clients work on one CPU.
    shares: bool,
    notes: Vec<String>,
    /// Which of them say that something better was refused.
    fallbacks: Vec<String>,
    run: u32,
}

impl RelayDeployed {
    pub fn new(
        fleet: Rc<RefCell<Fleet>>,
        configuration: &Configuration,
        relay: RelayScenario,
    ) -> Result<RelayDeployed, LabError> {
        let limits = fleet.borrow().limits();
        // From here on whatever fails is reset.
        let mut deployed = RelayDeployed {
            fleet,
            limits,
            relay,
            name: kebab(&configuration.sut()),
            clients: configuration.workload.flows,
            basis: Basis::Machine,
            shares: false,
            notes: Vec::new(),
            fallbacks: Vec::new(),
            run: 0,
        };
        let is_one_machine = deployed.connect()?;
        deployed.set_up(configuration, is_one_machine).map_err(|error| deployed.blamed(error))?;
        Ok(deployed)
    }

    /// Connects both hosts; whether they are one machine.
    fn connect(&mut self) -> Result<bool, LabError> {
        let mut fleet = self.fleet.borrow_mut();
        let [near, far] = ROLES.map(|role| fleet.connect(role).map(|channel| channel.hello.clock.clone()));
        Ok(near? == far?)
    }

    fn set_up(&mut self, configuration: &Configuration, is_one_machine: bool) -> Result<(), LabError> {
        let near = self.claim(Role::Generator)?;
        let far = self.claim(Role::DeviceUnderTest)?;
        let end =
            |interface: Interface| Box::new(RelayEnd { configuration: configuration.clone(), interface });
        let (apply, answer) = (self.limits.apply.0, self.limits.answer.0);
        let started: RelayStarted =
            self.ask(Role::DeviceUnderTest, "apply", RelayRequest::Start(end(far)), apply + answer)?;
        let health = self.limits.health.0;
        let connect = RelayRequest::Connect { end: end(near), within_ms: health.as_millis() as u64 };
        let ready: ClientsReady =
            self.ask(Role::Generator, "connect clients", connect, health + apply + answer)?;
        self.shares = is_one_machine && started.cpus.contains(&ready.cpu);
        self.notes.extend(ready.notes);
        self.notes.extend(started.notes);
        self.fallbacks.extend(ready.fallbacks);
        self.fallbacks.extend(started.fallbacks);
        if is_one_machine {
            self.basis = Basis::Process;
            self.notes.push(
                "generator and device under test are one machine: the cost of a packet is the CPU time of the \
                 relay's process, without what the kernel does for it elsewhere"
                    .into(),
            );
        } else {
            self.notes.push(format!(
                "the cost of a packet is the busy time of all {} CPUs of the device under test, for its interrupts \
                 run where its host has them: what else the host does is in it",
                started.machine
            ));
        }
        if self.shares {
            self.notes
                .push("relay and generator share a cpu: values say little about the relay alone".into());
        }
        Ok(())
    }

    /// The host's end of the wire between clients and relay.
    fn claim(&self, role: Role) -> Result<Interface, LabError> {
        let mut fleet = self.fleet.borrow_mut();
        let interfaces = fleet.interfaces(role).into_iter().take(1).collect();
        let request = Request::Claim { interfaces, silent: role == Role::Generator };
        let claimed: Vec<Interface> = fleet.ask(role, "interfaces", &request, self.limits.answer.0)?;
        claimed
            .into_iter()
            .next()
            .ok_or_else(|| LabError::new("hosts: an agent claimed no interface, expected one".into()))
    }

    fn ask<T: DeserializeOwned>(
        &self,
        role: Role,
        step: &str,
        request: RelayRequest,
        within: Duration,
    ) -> Result<T, LabError> {
        self.fleet.borrow_mut().ask(role, step, &Request::Relay(request), within)
    }

    fn counters(&self) -> Result<Counted, LabError> {
        self.ask(Role::DeviceUnderTest, "counters", RelayRequest::Counters, self.limits.answer.0)
    }

    fn memory(&self) -> Result<u64, LabError> {
        self.ask(Role::DeviceUnderTest, "memory", RelayRequest::Memory, self.limits.answer.0)
    }

    /// Has the generator work for `length` while the device under test reads what a window costs it.
    fn watched<T: DeserializeOwned>(
        &self,
        step: &str,
        work: RelayRequest,
        [after, window]: [Duration; 2],
        within: Duration,
    ) -> Result<(T, Cost), LabError> {
        let mut fleet = self.fleet.borrow_mut();
        let nanos = |length: Duration| length.as_nanos() as Nanos;
        let watch = RelayRequest::Watch { after_ns: nanos(after), window_ns: nanos(window) };
        let (watch, answer) = (Request::Relay(watch), self.limits.answer.0);
        fleet.channel(Role::Generator)?.tell(step, &Request::Relay(work))?;
        let watched = fleet.ask(Role::DeviceUnderTest, "watch", &watch, after + window + answer);
        // Heard whatever became of the other: the next question would get this answer.
        let came = fleet.channel(Role::Generator)?.answer(step, within)?;
        let Watched { opened, closed } = watched?;
        Ok((came, Cost { opened, closed, basis: self.basis }))
    }

    /// Clients connect and are silent.
    fn idle(&mut self, trial: &Trial) -> Result<Sample, LabError> {
        let (count, pause) = (u64::from(self.clients), trial.warm_up + trial.window);
        let before = self.memory()?;
        let hold = RelayRequest::Hold { seed: 2 + u64::from(self.run), count };
        self.run += 1;
        let within = self.limits.apply.0 + self.limits.answer.0;
        let took: Nanos = self.ask(Role::Generator, "connect clients", hold, within)?;
        std::thread::sleep(pause);
        let after = self.memory();
        self.ask::<()>(Role::Generator, "release", RelayRequest::Release, self.limits.answer.0)?;
        let metrics = measure::of_idle([before, after?], count, took);
        Ok(silent(metrics, pause.as_secs_f64()))
    }

    /// Clients connect and leave.
    fn connects(&mut self, trial: &Trial) -> Result<Sample, LabError> {
        let stay = measure::stay(&self.relay, self.clients, trial);
        let within = self.limits.apply.0 + self.limits.answer.0;
        self.ask::<()>(Role::Generator, "make keys", RelayRequest::Invite(stay), within)?;
        let lengths = [trial.warm_up, trial.window];
        let within = trial.warm_up + trial.window + DRAINS + self.limits.answer.0;
        let (came, cost): (Connected, Cost) = self.watched("visit", RelayRequest::Visit, lengths, within)?;
        let (metrics, note) = measure::of_visits(&came, Some(cost));
        let mut sample = silent(metrics, came.ended.saturating_sub(came.began).max(1) as f64 / 1e9);
        sample.notes.extend(note);
        Ok(sample)
    }

    /// What a relay did that made a run fail, if it did. A host that cannot be asked is the error there was.
    fn blamed(&self, error: LabError) -> LabError {
        let alive =
            self.fleet.borrow_mut().channel(Role::DeviceUnderTest).is_ok_and(|channel| channel.alive());
        let ended = alive.then(|| {
            self.ask(Role::DeviceUnderTest, "relay", RelayRequest::Ended, self.limits.answer.0).ok().flatten()
        });
        blame(&self.name, ended.flatten(), error)
    }
}

/// A run without packets.
fn silent(metrics: BTreeMap<String, f64>, seconds: f64) -> Sample {
    Sample { seconds, metrics, ..Sample::default() }
}

impl Paired for RelayDeployed {
    fn drops(&mut self) -> Result<Counters, LabError> {
        Ok(self.counters()?.drops)
    }

    fn load(&mut self, plan: PairTraffic) -> Result<(Outcome, Option<Cost>), LabError> {
        self.run += 1;
        let run = RelayRequest::Run(PairTraffic { run: self.run, ..plan });
        let within = plan.window + DRAINS + self.limits.answer.0;
        let (came, cost) = self.watched("run", run, [Duration::ZERO, plan.window], within)?;
        Ok((came, Some(cost)))
    }
}

impl Prepared for RelayDeployed {
    fn run(&mut self, trial: &Trial) -> Result<Sample, LabError> {
        let (relay, shares) = (self.relay, self.shares);
        let measured = match relay.load {
            Load::ClosedLoop | Load::Open => measure::measure(self, &relay, shares, trial),
            Load::Idle => self.idle(trial),
            Load::Connects | Load::Reconnects => self.connects(trial),
            Load::SimulatedCaches => Err(LabError::new("relay: no simulator is brought to a host".into())),
        };
        let mut sample = measured.map_err(|error| self.blamed(error))?;
        // By the generator's clock, which need not be the lab's.
        sample.window_ns = None;
        sample.notes.splice(0..0, self.notes.iter().cloned());
        sample.notes.extend(self.counters().map_err(|error| self.blamed(error))?.warnings);
        sample.notes.append(&mut self.fleet.borrow_mut().warnings);
        sample.fallbacks = Some(self.fallbacks.clone());
        Ok(sample)
    }
}

impl Drop for RelayDeployed {
    fn drop(&mut self) {
        self.fleet.borrow_mut().reset(&ROLES);
    }
}
