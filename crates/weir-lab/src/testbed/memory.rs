//! The memory topology: generator, the core's pipeline and sink in this process, on pinned threads.
//!
//! ```text
//!            one worker, one CPU
//! Source (a template copied into a buffer) ─► breathe: Router ─► Sink (buffer back to the pool)
//!            └────────────── baseline: the same without Router ──────────────┘
//! ```
//!
//! It measures the pipeline, not the daemon: no device, no kernel, no other thread. A source copies the
//! first 64 bytes of a frame, as many as headers need; a device would bring the rest without the CPU.
//! Buffers come back last in, first out, so they stay in the first-level cache, as with DPDK's null
//! ports. Routes are drawn like the Internet's, destinations one per flow over them.
//!
//! Promises: every packet handed out is delivered, dropped by reason, given to this host or held, or the
//! run fails. Refuses: other SUTs than weir, the baseline, DPDK's programs and VPP, which bring a source and
//! a sink of their own.

mod churn;
mod devices;
mod dpdk_inmem;
mod ipsec;
mod peer_sa;
pub mod process;
mod protected;
mod spd;
mod standing;
mod tables;
mod traffic;
mod vpp_inmem;
mod worker;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use weir_core::control::Control;
use weir_core::ipsec::spd::LookupCounters;
use weir_core::tables::Tables;
use weir_io::cpu::{SYSFS, Topology as Machine};

use crate::experiment::kebab;
use crate::model::ipsec::{Direction, Mode};
use crate::model::{Configuration, Family, LabError, Prepared, Protection, Sample, Scope, Sut, Trial};
use churn::Churn;
use dpdk_inmem::DpdkInmem;
use protected::Checked;
use standing::Standing;
use traffic::Templates;
use vpp_inmem::VppInmem;
use weir_stats::search::{LossLedger, Rate};
use worker::{Counts, Load};

/// Keeps tables of earlier runs: a full one takes seconds to build and is never changed.
#[derive(Default)]
pub struct MemoryTestbed {
    tables: HashMap<(Family, u32), tables::Net>,
}

impl MemoryTestbed {
    pub fn missing(&mut self, configuration: &Configuration) -> Option<String> {
        if let Some(lacks) = protection_lacks(configuration) {
            return Some(lacks);
        }
        if let Some(build) = configuration.build() {
            return process::missing(build);
        }
        match configuration.sut() {
            Sut::Weir | Sut::Baseline => None,
            sut @ (Sut::Kernel | Sut::KernelXfrm | Sut::XdpFib) => {
                Some(format!("{}: forwards in namespaces only; use topology = \"netns\"", kebab(&sut)))
            }
            sut if sut.is_dpdk() => dpdk_inmem::missing(configuration),
            sut if sut.is_vpp() => vpp_inmem::missing(configuration),
            _ => crate::sut::missing(configuration),
        }
    }

    pub fn prepare(&mut self, configuration: &Configuration) -> Result<Box<dyn Prepared>, LabError> {
        if configuration.sut().is_dpdk() {
            return Ok(Box::new(self.dpdk_inmem(configuration)?));
        }
        if configuration.sut().is_vpp() {
            return Ok(Box::new(self.vpp_inmem(configuration)?));
        }
        match configuration.build() {
            None => Ok(Box::new(self.ready(configuration)?)),
            Some(build) => Ok(Box::new(process::Elsewhere::start(build, configuration)?)),
        }
    }
}

impl MemoryTestbed {
    /// Forwards this many packets on the calling thread without a clock, for simulators, which stretch time.
    pub fn pass(&mut self, configuration: &Configuration, packets: u64) -> Result<LossLedger, LabError> {
        if configuration.ipsec().is_some_and(|p| p.direction == Direction::In) {
            let name = &configuration.name;
            return Err(LabError::new(format!(
                "{name}: what seals its packets would be simulated too: simulate direction \"out\""
            )));
        }
        let ready = self.ready(configuration)?;
        let (warm_up, window) = (Duration::ZERO, Duration::ZERO);
        worker::pass(&ready.job(0, &Trial { rate: Rate::FlatOut, warm_up, window, seed: 0 }), packets)
    }

    fn dpdk_inmem(&mut self, configuration: &Configuration) -> Result<DpdkInmem, LabError> {
        if let Some(lacks) = self.missing(configuration) {
            return Err(LabError::new(lacks));
        }
        let workload = &configuration.workload;
        let net = self.plain(workload.family, configuration.routes)?;
        let templates = Templates::build(workload, &net.destinations(traffic::stored(workload.flows)))?;
        let (cpus, _) = cpus(&configuration.placement.cpus);
        DpdkInmem::start(configuration, cpus[0], (&net, &templates))
    }

    fn vpp_inmem(&mut self, configuration: &Configuration) -> Result<VppInmem, LabError> {
        if let Some(lacks) = self.missing(configuration) {
            return Err(LabError::new(lacks));
        }
        let workload = &configuration.workload;
        let net = self.plain(workload.family, configuration.routes)?;
        let templates = Templates::build(workload, &net.destinations(traffic::stored(workload.flows)))?;
        let (cpus, _) = cpus(&configuration.placement.cpus);
        VppInmem::start(configuration, cpus[0], (&net, Arc::new(templates)))
    }

    /// Tables without protection, built once.
    fn plain(&mut self, family: Family, routes: u32) -> Result<tables::Net, LabError> {
        if let Some(net) = self.tables.get(&(family, routes)) {
            return Ok(net.clone());
        }
        let (net, _) = tables::build(family, routes, None)?;
        self.tables.insert((family, routes), net.clone());
        Ok(net)
    }

    fn ready(&mut self, configuration: &Configuration) -> Result<Ready, LabError> {
        if let Some(lacks) = self.missing(configuration) {
            return Err(LabError::new(lacks));
        }
        let (cpus, note) = cpus(&configuration.placement.cpus);
        let key = (configuration.workload.family, configuration.routes);
        let mut churn = None;
        let net = match &configuration.ipsec() {
            // sequence numbers begin anew with every SUT
            Some(protection) => {
                let (net, control) = tables::build(key.0, key.1, Some((protection, cpus.len())))?;
                churn = churn_of(protection, control, (&net.tables, &cpus))?;
                net
            }
            None => self.plain(key.0, key.1)?,
        };
        let (workload, stored) = (&configuration.workload, traffic::stored(configuration.workload.flows));
        let templates = match configuration.ipsec().and_then(|p| p.spd.rules) {
            Some(set) => Templates::of_flows(workload, &spd::flows(set, workload.family, stored)?)?,
            None => Templates::build(workload, &net.destinations(stored))?,
        };
        let templates = Arc::new(templates);
        let ipsec = configuration.ipsec();
        let standing = Standing::default();
        Ok(Ready {
            sut: configuration.sut(),
            family: workload.family,
            net: net.tables,
            ipsec,
            churn,
            templates,
            cpus,
            note,
            standing,
        })
    }
}

/// Why packets cannot be protected as a configuration asks, with the remedy.
fn protection_lacks(configuration: &Configuration) -> Option<String> {
    let protection = configuration.ipsec()?;
    if !cfg!(feature = "ipsec") {
        return Some("ipsec: this weir-lab was built without it: build it with the feature `ipsec`".into());
    }
    let ciphers = match ipsec::ciphers(protection.backend) {
        Ok(ciphers) => ciphers,
        Err(lacks) => return Some(lacks.to_string()),
    };
    ipsec::SaPlan::new(&protection, 0).cipher(ciphers.as_ref()).err().map(|e| e.said)
}

struct Ready {
    sut: Sut,
    family: Family,
    net: Arc<Tables>,
    ipsec: Option<Protection>,
    churn: Option<Churn>,
    templates: Arc<Templates>,
    cpus: Vec<u32>,
    note: Option<String>,
    /// What stands between the slices of a run.
    standing: Standing,
}

impl Prepared for Ready {
    fn run(&mut self, trial: &Trial) -> Result<Sample, LabError> {
        refuse_bursts(trial)?;
        let _changing = self.churn.as_ref().map(Churn::begin);
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
            joined
                .map(|r| r.unwrap_or_else(|_| Err(LabError::new("memory: a worker panicked".into()))))
                .collect()
        });
        self.sample(counted?)
    }

    fn slice(&mut self, slice: &Trial) -> Result<Sample, LabError> {
        refuse_bursts(slice)?;
        let _changing = self.churn.as_ref().map(Churn::begin);
        if !self.standing.is_up() {
            let job = |(i, &cpu)| worker::Job { cpu, ..self.job(i, slice) };
            self.standing = Standing::up(self.cpus.iter().enumerate().map(job).collect())?;
        }
        let piece = worker::Piece { warm_up: slice.warm_up, window: slice.window, whole: false };
        let counted = self.standing.measure(piece)?;
        self.sample(counted)
    }

    fn scope(&self) -> Option<Scope> {
        Some(Scope::OwnThreads)
    }
}

fn refuse_bursts(trial: &Trial) -> Result<(), LabError> {
    match trial.rate {
        Rate::Burst(_) => {
            Err(LabError::new("memory: has no queue that a burst could fill; use the netns topology".into()))
        }
        _ => Ok(()),
    }
}

impl Ready {
    /// What the `i`th worker does, on the first CPU.
    fn job(&self, i: usize, trial: &Trial) -> worker::Job {
        worker::Job {
            worker: i,
            cpu: self.cpus[0],
            seed: trial.seed ^ i as u64,
            through: (self.sut == Sut::Weir).then(|| self.net.clone()),
            board: self.churn.as_ref().map(|churn| churn.board.clone()),
            templates: self.templates.clone(),
            ipsec: self.ipsec.filter(|p| p.direction != Direction::Beside),
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
            ledger.add(&c.ledger);
            notes.extend(c.notes.iter().cloned());
        }
        let delivered = ledger.delivered as f64;
        if ledger.delivered == 0 {
            let drops = &ledger.drops;
            return Err(LabError::new(format!(
                "memory: nothing was delivered; drops {drops:?}: lengthen `window`"
            )));
        }
        if ledger.unaccounted() != 0 {
            return Err(LabError::new(format!(
                "memory: {} packets are in no counter (in = forwarded + local + dropped + held does not hold)",
                ledger.unaccounted()
            )));
        }
        let disagreed: u64 = counted.iter().flat_map(|c| c.lookups.ways).map(|way| way.disagreed).sum();
        if disagreed != 0 {
            return Err(LabError::new(format!(
                "memory: {disagreed} answers of the SPD were not the ordered scan's: a defect of weir"
            )));
        }
        let mut metrics = BTreeMap::new();
        metrics.insert("ns_per_packet".into(), ns / delivered);
        metrics.insert("mbps".into(), pps * self.templates.mean_len() * 8.0 / 1e6);
        self.checked(&counted, pps, &mut metrics, &mut notes);
        self.asked(&counted, &mut metrics)?;
        if clocks > 0.0 {
            metrics.insert("clocks_per_packet".into(), clocks / delivered);
        }
        let all: Option<Vec<(f64, f64)>> = counted.iter().map(|c| c.last_level).collect();
        if let Some(all) = all {
            let (loads, misses) = all.iter().fold((0.0, 0.0), |(l, m), c| (l + c.0, m + c.1));
            metrics.insert("llc_loads_per_packet".into(), loads / delivered);
            metrics.insert("llc_misses_per_packet".into(), misses / delivered);
            if loads > 0.0 {
                metrics.insert("llc_miss_percent".into(), 100.0 * misses / loads);
            }
        }
        let seconds = counted.iter().map(|c| c.seconds).sum::<f64>() / counted.len() as f64;
        let ends = |c: &Counts| c.window;
        let window_ns = counted.iter().map(ends).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
        Ok(Sample { seconds, pps, ledger, metrics, notes, window_ns, ..Sample::default() })
    }
}

impl Ready {
    /// What the SPD was asked, and changes of it.
    fn asked(&self, counted: &[Counts], metrics: &mut BTreeMap<String, f64>) -> Result<(), LabError> {
        let Some(p) = self.ipsec.filter(|p| p.mode == Mode::Policy && !p.is_aside()) else {
            return Ok(());
        };
        let mut all = LookupCounters::default();
        counted.iter().for_each(|c| all.merge(&c.lookups));
        spd::metrics(&p, self.family, (&self.net, &all), metrics);
        self.churn.as_ref().map_or(Ok(()), |churn| churn.metrics(metrics))
    }

    /// What was measured and checked beside the pipeline.
    fn checked(
        &self,
        counted: &[Counts],
        pps: f64,
        metrics: &mut BTreeMap<String, f64>,
        notes: &mut Vec<String>,
    ) {
        let checked: Vec<&Checked> = counted.iter().filter_map(|c| c.checked.as_ref()).collect();
        let (Some(first), Some(p)) = (checked.first(), self.ipsec) else { return };
        let aead_pps: f64 = checked.iter().map(|c| c.aead_pps).sum();
        metrics.insert("aead_pps".into(), aead_pps);
        metrics.insert("aead_share_percent".into(), 100.0 * pps / aead_pps);
        metrics.insert("verified_packets".into(), checked.iter().map(|c| c.packets).sum::<u64>() as f64);
        let Checked { backend, peer_sa, .. } = first;
        let way = if p.direction == Direction::In { "opened" } else { "sealed" };
        notes.push(format!(
            "{way} by {backend}; the raw rate of the same cipher is taken between slices of the same window"
        ));
        let same = if backend == peer_sa { ", a second instance of the same code" } else { "" };
        notes.push(match p.direction {
            Direction::In => format!(
                "sealed by {peer_sa}{same} between two batches, while the clock stands still, with fresh sequence \
                 numbers; of one batch in 256 every packet delivered is compared with what was sealed"
            ),
            _ => format!(
                "of one batch in 256 every packet delivered is opened by {peer_sa}{same} and compared with what went in"
            ),
        });
    }
}

/// Who changes policies beside the workers, if anybody does.
fn churn_of(
    p: &Protection,
    control: Control,
    (tables, cpus): (&Arc<Tables>, &[u32]),
) -> Result<Option<Churn>, LabError> {
    if p.spd.churn == 0 || p.mode != Mode::Policy {
        return Ok(None);
    }
    let machine = Machine::read(Path::new(SYSFS)).ok();
    let cpu = machine.and_then(|m| m.cpus.iter().map(|c| c.id).find(|id| !cpus.contains(id)));
    // as `tables::build` gave them to the control side
    let policies =
        control.desired().ipsec.spds.first().map_or(Vec::new(), |spd| spd.policies.iter().cloned().collect());
    let plan = churn::ChurnSpec { control, policies, needed: spd::needed(p), per_second: p.spd.churn, cpu };
    Churn::start(plan, tables.clone()).map(Some)
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
