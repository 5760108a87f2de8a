//! The memory topology: generator, the core's pipeline and sink in this process, on pinned threads.
//!
//! ```text
//!            one worker, one CPU
//! Source (a template copied into a buffer) ─► breathe: Router ─► Sink (buffer back to the pool)
//!            └────────────── ceiling: the same without Router ──────────────┘
//! ```
//!
//! It measures the pipeline, not the daemon: no device, no kernel, no other thread. A source copies the
//! first 64 bytes of a frame, as many as headers need; a device would bring the rest without the CPU.
//! Buffers come back last in, first out, so they stay in the first-level cache, as with DPDK's null
//! ports. Routes are drawn like the Internet's, destinations one per flow over them.
//!
//! Promises: every packet handed out is delivered, dropped by reason, given to this host or held, or the
//! run fails. Refuses: other subjects than weir and the ceiling.

mod tables;
mod traffic;
mod worker;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use weir_core::tables::Tables;
use weir_io::cpu::{SYSFS, Topology as Machine};

use crate::model::{
    Bed, Configuration, Family, LabError, LossLedger, Prepared, Rate, Sample, Scope, Subject, Trial,
};
use traffic::Templates;
use worker::{Counts, Load};

/// Keeps tables of earlier runs: a full one takes seconds to build and is never changed.
#[derive(Default)]
pub struct MemoryBed {
    tables: HashMap<(Family, u32), tables::Net>,
}

impl Bed for MemoryBed {
    fn missing(&mut self, configuration: &Configuration) -> Option<String> {
        match configuration.subject {
            Subject::Weir | Subject::Ceiling => None,
            Subject::Kernel => Some("kernel: forwards in namespaces only; use topology = \"netns\"".into()),
            other @ (Subject::Command | Subject::DpdkL3fwd) => crate::subject::missing(other),
        }
    }

    fn prepare(&mut self, configuration: &Configuration) -> Result<Box<dyn Prepared>, LabError> {
        Ok(Box::new(self.ready(configuration)?))
    }
}

impl MemoryBed {
    /// So many packets and no clock, on the calling thread: for simulators, which stretch time.
    pub fn pass(&mut self, configuration: &Configuration, packets: u64) -> Result<LossLedger, LabError> {
        let ready = self.ready(configuration)?;
        let (warm_up, window) = (Duration::ZERO, Duration::ZERO);
        worker::pass(&ready.job(0, &Trial { rate: Rate::FlatOut, warm_up, window, seed: 0 }), packets)
    }

    fn ready(&mut self, configuration: &Configuration) -> Result<Ready, LabError> {
        if let Some(lacks) = self.missing(configuration) {
            return Err(LabError(lacks));
        }
        let key = (configuration.workload.family, configuration.routes);
        let net = match self.tables.get(&key) {
            Some(net) => net.clone(),
            None => {
                let net = tables::build(key.0, key.1)?;
                self.tables.insert(key, net.clone());
                net
            }
        };
        let (cpus, note) = cpus(&configuration.placement.cpus);
        let destinations = net.destinations(configuration.workload.flows);
        let templates = Arc::new(Templates::build(&configuration.workload, &destinations)?);
        Ok(Ready { subject: configuration.subject, net: net.tables, templates, cpus, note })
    }
}

struct Ready {
    subject: Subject,
    net: Arc<Tables>,
    templates: Arc<Templates>,
    cpus: Vec<u32>,
    note: Option<String>,
}

impl Prepared for Ready {
    fn run(&mut self, trial: &Trial) -> Result<Sample, LabError> {
        if matches!(trial.rate, Rate::Burst(_)) {
            return Err(LabError(
                "memory: has no queue that a burst could fill; use the netns topology".into(),
            ));
        }
        let start = Barrier::new(self.cpus.len());
        let counted: Result<Vec<Counts>, LabError> = std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .cpus
                .iter()
                .enumerate()
                .map(|(i, &cpu)| {
                    let job = worker::Job { cpu, ..self.job(i, trial) };
                    let start = &start;
                    scope.spawn(move || worker::work(job, start))
                })
                .collect();
            let joined = threads.into_iter().map(|t| t.join());
            joined.map(|r| r.unwrap_or_else(|_| Err(LabError("memory: a worker panicked".into())))).collect()
        });
        self.sample(counted?)
    }

    fn scope(&self) -> Option<Scope> {
        Some(Scope::OwnThreads)
    }
}

impl Ready {
    /// What the `i`th worker does, on the first CPU.
    fn job(&self, i: usize, trial: &Trial) -> worker::Job {
        worker::Job {
            cpu: self.cpus[0],
            seed: trial.seed ^ i as u64,
            through: (self.subject == Subject::Weir).then(|| self.net.clone()),
            templates: self.templates.clone(),
            load: Load::at(trial.rate).share(self.cpus.len()),
            warm_up: trial.warm_up,
            window: trial.window,
        }
    }

    fn sample(&self, counted: Vec<Counts>) -> Result<Sample, LabError> {
        let mut ledger = LossLedger::default();
        let mut notes: Vec<String> = self.note.iter().cloned().collect();
        notes.extend(self.templates.notes.iter().cloned());
        let (mut pps, mut clocks, mut ns) = (0.0, 0.0, 0.0);
        for c in &counted {
            pps += c.ledger.delivered as f64 / c.seconds;
            clocks += c.ticks as f64;
            ns += c.seconds * 1e9;
            ledger.offered += c.ledger.offered;
            ledger.sent += c.ledger.sent;
            ledger.delivered += c.ledger.delivered;
            ledger.intended += c.ledger.intended;
            for (reason, n) in &c.ledger.drops {
                *ledger.drops.entry(reason.clone()).or_default() += n;
            }
            notes.extend(c.notes.iter().cloned());
        }
        let delivered = ledger.delivered as f64;
        if ledger.delivered == 0 {
            let drops = &ledger.drops;
            return Err(LabError(format!(
                "memory: nothing was delivered; drops {drops:?}: lengthen `window`"
            )));
        }
        if ledger.unaccounted() != 0 {
            return Err(LabError(format!(
                "memory: {} packets are in no counter (in = forwarded + local + dropped + held does not hold)",
                ledger.unaccounted()
            )));
        }
        let mut figures = std::collections::BTreeMap::new();
        figures.insert("ns_per_packet".into(), ns / delivered);
        if clocks > 0.0 {
            figures.insert("clocks_per_packet".into(), clocks / delivered);
        }
        let all: Option<Vec<(f64, f64)>> = counted.iter().map(|c| c.last_level).collect();
        if let Some(all) = all {
            let (loads, misses) = all.iter().fold((0.0, 0.0), |(l, m), c| (l + c.0, m + c.1));
            figures.insert("llc_loads_per_packet".into(), loads / delivered);
            figures.insert("llc_misses_per_packet".into(), misses / delivered);
            if loads > 0.0 {
                figures.insert("llc_miss_percent".into(), 100.0 * misses / loads);
            }
        }
        let seconds = counted.iter().map(|c| c.seconds).sum::<f64>() / counted.len() as f64;
        let ends = |c: &Counts| c.window;
        let window_ns = counted.iter().map(ends).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
        Ok(Sample { seconds, pps, ledger, figures, notes, window_ns, ..Sample::default() })
    }
}

/// Where workers run: as asked, or one on the last core, away from the interrupts that gather on the
/// first.
fn cpus(wanted: &[u32]) -> (Vec<u32>, Option<String>) {
    if !wanted.is_empty() {
        return (wanted.to_vec(), None);
    }
    match Machine::read(Path::new(SYSFS)) {
        Ok(machine) => {
            let last = machine.cpus.iter().rev().find(|c| c.siblings.first() == Some(&c.id));
            (vec![last.map_or(0, |c| c.id)], None)
        }
        Err(e) => (vec![0], Some(format!("{e}; running on cpu 0"))),
    }
}

#[cfg(test)]
mod tests;
