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
use std::time::Duration;

use weir_io::cpu;

use crate::cachesim;
use crate::experiment::kebab;
use crate::generator::derp::client;
use crate::generator::derp::pairs::{Moment, Outcome, PairTraffic, Pairs};
use crate::generator::derp::stalled::Stalled;
use crate::generator::derp::visits;
use crate::model::relay::{Load, RelayScenario};
use crate::model::{
    Configuration, Family, FrameSize, LabError, Misbehaviour, Prepared, Sample, Scope, Sut, Trial,
};
use crate::netns::counters::{self, Counters};
use crate::netns::cpus::{self, Cpus};
use crate::netns::namespace::Namespace;
use crate::netns::residue::Sweep;
use crate::result::bounds::GENERATOR_LIMIT;
use crate::sut::derper::{self, Derper};
use crate::sut::hyper_derp::{self, HyperDerp};
use crate::sut::peer;
use crate::sut::relay::{self, ADDRESS, Environment, Relaying};
use crate::sut::tcp_forwarder::{self, TcpForwarder};
use crate::sut::weir;
use weir_stats::search::{LossLedger, Rate};

mod reading;
mod simulated;
mod stalled;
#[cfg(test)]
mod tests;

use reading::Reading;

/// The share of the generator's turns that are idle: with less than this, it and not the relay is measured.
const SPARE_PERCENT: f64 = 3.0;
const NEVER_IDLE: &str = "it was never idle";
/// Offered less than this share of a rate: it fell behind.
const KEPT_PERCENT: f64 = 99.0;

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
        let environment = Environment { namespace: &namespace, cpus: &cpus.sut, relay };
        let running: Option<Box<dyn Relaying>> = match configuration.sut() {
            Sut::Derper => Some(Box::new(Derper::start(&environment)?)),
            Sut::HyperDerp => Some(Box::new(HyperDerp::start(&environment)?)),
            Sut::Weir => Some(Box::new(weir::relay::Weir::start(&environment)?)),
            Sut::TcpForwarder => Some(Box::new(TcpForwarder::start(&environment)?)),
            _ => None,
        };
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
        let FrameSize::Fixed(data) = configuration.workload.frame else {
            return Err(LabError::new("relay: packets of one size: write `frame = 1400`".into()));
        };
        let (count, sut, cpu) = (self.clients, configuration.sut(), self.cpus.generator);
        let stalled = self.relay.stalled;
        let tls = self.relay.tls.is_on();
        let pairs = self.namespace.run(move || {
            pin(cpu)?;
            match sut {
                Sut::Baseline => return Pairs::direct(count, data, tls),
                Sut::TcpForwarder => return Pairs::through(ADDRESS, count, data, tls),
                _ => {}
            }
            let server = client::Server::new(ADDRESS, tls)?;
            let mut clients = client::connect(&server, 1, u64::from(count + stalled) * 2)?;
            let beside = clients.split_off(count as usize * 2);
            let mut pairs = Pairs::new(clients, data)?;
            pairs.stalled = Stalled::new(beside, data)?;
            Ok(pairs)
        })?;
        self.pairs = Some(pairs?);
        Ok(())
    }

    fn drops(&mut self) -> Result<Counters, LabError> {
        match &mut self.running {
            Some(running) => running.drops(&self.namespace),
            None => Ok(Counters::new()),
        }
    }

    fn reader(&self) -> Reading {
        Reading::of(self.cpus.clone(), self.running.as_ref().map(|r| r.process()))
    }

    /// Pairs send to each other.
    fn relay(&mut self, trial: &Trial) -> Result<Sample, LabError> {
        let rate = match trial.rate {
            Rate::FlatOut => None,
            Rate::Pps(rate) => Some(rate),
            Rate::Burst(_) => {
                return Err(LabError::new(
                    "relay: TCP has no bursts to lose: use another method than \"back-to-back\"".into(),
                ));
            }
        };
        let plan = PairTraffic {
            rate,
            under_way: (self.relay.load == Load::ClosedLoop).then_some(u64::from(self.relay.under_way)),
            window: trial.window,
            run: 0,
            shares: self.cpus.sut.contains(&self.cpus.generator),
            empties: true,
        };
        let (held, before) = self.warm_up(trial.warm_up, plan)?;
        let (came, reading) = self.load(plan)?;
        let after = self.drops()?;
        let warnings = self.running.as_mut().map(|r| r.warnings()).unwrap_or_default();
        let mut sample = self.sample(&came, &reading, counters::difference(&before, &after));
        if let Some(n) = self.pairs.as_ref().map(|pairs| pairs.stalled.disconnected).filter(|n| *n > 0) {
            sample.notes.push(format!("the relay let {n} of {} stalled receivers go", self.relay.stalled));
        }
        if self.relay.stalled > 0 {
            stalled::enter(&mut sample, came.stalled, held);
        }
        sample.notes.extend(warnings);
        Ok(sample)
    }

    /// What of it is still under way to stalled receivers, and the drops up to then.
    fn warm_up(&mut self, window: Duration, plan: PairTraffic) -> Result<(i64, Counters), LabError> {
        if window.is_zero() {
            return Ok((0, self.drops()?));
        }
        let plan = PairTraffic { window, empties: false, ..plan };
        if self.relay.stalled == 0 {
            self.load(plan)?;
            return Ok((0, self.drops()?));
        }
        let before = self.drops()?;
        let (came, _) = self.load(plan)?;
        let after = self.drops()?;
        Ok((stalled::held(&came, &counters::difference(&before, &after)), after))
    }

    /// One window, drained.
    fn load(&mut self, plan: PairTraffic) -> Result<(Outcome, Reading), LabError> {
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
        Ok((came, reading))
    }

    fn sample(&self, came: &Outcome, reading: &Reading, drops: Counters) -> Sample {
        let tally = &came.tally;
        let seconds = (came.ended - came.began).max(1) as f64 / 1e9;
        let mut metrics = BTreeMap::new();
        let mut metric = |name: &str, value: f64| {
            metrics.insert(name.to_string(), value);
        };
        metric("mbps", tally.bytes as f64 * 8.0 / 1e6 / seconds);
        metric("offered_pps", came.offered as f64 / seconds);
        metric("sent_pps", came.sent as f64 / seconds);
        let busy = 100.0 - came.idle as f64 / 1e9 / seconds * 100.0;
        metric("generator_busy_percent", busy);
        metric("late_max_us", came.late_max as f64 / 1e3);
        if came.intended > 0 {
            let lost = came.intended.saturating_sub(tally.delivered) as f64;
            metric("undelivered_percent", lost * 100.0 / came.intended as f64);
        }
        metrics.extend(reading.metrics(tally.arrived, tally.bytes, seconds));
        let mut sample = Sample {
            seconds,
            pps: tally.arrived as f64 / seconds,
            ledger: LossLedger {
                intended: came.intended,
                offered: came.offered,
                sent: came.sent,
                drops,
                delivered: tally.delivered,
            },
            reordered: tally.reordered,
            duplicated: tally.duplicated,
            metrics,
            notes: self.notes.clone(),
            fallbacks: Some(self.fallbacks.clone()),
            window_ns: Some((came.began, came.ended)),
            ..Sample::default()
        };
        if !tally.latency.is_empty() {
            for (name, quantile) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)] {
                sample.latency_ns.insert(name.into(), tally.latency.value_at_quantile(quantile));
            }
            sample.latency_ns.insert("max".into(), tally.latency.max());
        }
        self.warnings(came, busy, &mut sample);
        sample
    }

    /// What is to be known of a run beside its values.
    fn warnings(&self, came: &Outcome, busy: f64, sample: &mut Sample) {
        let kept = came.offered as f64 * 100.0 / came.intended.max(1) as f64;
        if came.group > 0 {
            sample.notes.push(format!("paced: {} packets of a pair at a time, pairs in turn", came.group));
            if kept < KEPT_PERCENT {
                sample.notes.push(format!(
                    "{GENERATOR_LIMIT}: it was late for {:.0} % of what was due",
                    100.0 - kept
                ));
            }
        } else if self.running.is_some() && 100.0 - busy < SPARE_PERCENT {
            sample.notes.push(format!("{GENERATOR_LIMIT}: {NEVER_IDLE}; compare with the baseline"));
        }
        if came.tally.corrupted > 0 {
            sample.notes.push("packets came back other than they were sent: see corrupted_packets".into());
        }
        sample.metrics.insert("corrupted_packets".into(), came.tally.corrupted as f64);
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
        let metrics = BTreeMap::from([
            ("memory_bytes_per_client".to_string(), after.saturating_sub(before) as f64 / count as f64),
            ("memory_bytes_before".to_string(), before as f64),
            ("memory_bytes_after".to_string(), after as f64),
            ("connecting_seconds".to_string(), (connected - began) as f64 / 1e9),
        ]);
        Ok(self.silent(metrics, (connected, ended)))
    }

    /// Clients connect and leave.
    fn connects(&mut self, trial: &Trial) -> Result<Sample, LabError> {
        let (cpu, mut reading) = (self.cpus.generator, self.reader());
        let server = client::Server::new(ADDRESS, self.relay.tls.is_on())?;
        let at_once = self.clients as usize;
        let stay = visits::Stay {
            at_once,
            warm_up: trial.warm_up,
            window: trial.window,
            come_back: self.relay.load == Load::Reconnects,
            seed: trial.seed,
        };
        let (came, reading) = self.namespace.run(move || {
            let came = pin(cpu).and_then(|()| visits::come_and_go(&server, stay, || reading.open()));
            reading.close();
            (came, reading)
        })?;
        let came = came?;
        let seconds = came.ended.saturating_sub(came.began).max(1) as f64 / 1e9;
        let mut metrics = reading.metrics(came.connects, 0, seconds);
        metrics.remove("ns_per_packet").map(|ns| metrics.insert("cpu_ms_per_connect".into(), ns / 1e6));
        metrics.insert("connects_per_second".into(), came.connects as f64 / seconds);
        let busy = came.busy as f64 / 1e7 / seconds;
        metrics.insert("generator_busy_percent".into(), busy);
        let mut sample = self.silent(metrics, (came.began, came.ended));
        if 100.0 - busy < SPARE_PERCENT {
            sample.notes.push(format!("{GENERATOR_LIMIT}: {NEVER_IDLE}"));
        }
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

impl Deployed {
    /// What a relay did that made a run fail, if it did.
    fn blamed(&mut self, error: LabError) -> LabError {
        let Some(running) = &mut self.running else { return error };
        match running.ended() {
            Some(ended) => ended,
            None if error.misbehaviour == Some(Misbehaviour::BrokeStream) => {
                peer::broke_a_stream(&self.name, &error)
            }
            None => error,
        }
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
