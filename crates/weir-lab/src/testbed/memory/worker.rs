//! One worker: source, router and sink on one CPU, and what it counted.
//!
//! With IPsec it has work that is not the pipeline's: frames to be sealed by the far end, the raw rate of the
//! cipher, delivered packets to be opened. All of it is done between two breaths, while the worker's clock
//! stands still ([`Bench::now`]): windows, rates and cycles/packet are the pipeline's own. It stands still
//! between two pieces of a run too.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use weir_core::device::Device;
use weir_core::ipsec::spd::LookupCounters;
use weir_core::packet::{BATCH, Batch, Pool};
use weir_core::router::{Output, Router, breathe};
use weir_core::tables::Tables;
use weir_core::time::Nanos;
use weir_core::verdict::Ledger;
use weir_io::perf_event::counter::{Counted, Counter};
use weir_io::{clock, cpu};

use super::churn::Board;
use super::devices::{Gauges, Memory, Sink, Source, Supply};
use super::protected::{Checked, Protected};
use super::traffic::Templates;
use crate::model::{LabError, Protection};
use weir_stats::search::{LossLedger, Rate};

/// Four batches: one in the router, one being sent, and the rest so that none is ever waited for.
const BUFFERS: usize = 4 * BATCH;

/// Packets that wait while the worker is held up, as the largest receive ring of common cards has them: with fewer every interrupt of
/// the machine would lose some.
const RING: u64 = 4096;

/// What a worker is asked to offer.
#[derive(Clone, Copy)]
pub struct Load {
    /// Packets a second; `None` is flat out.
    pps: Option<f64>,
}

impl Load {
    pub fn at(rate: Rate) -> Load {
        match rate {
            // bursts are refused before any worker starts
            Rate::FlatOut | Rate::Burst(_) => Load { pps: None },
            Rate::Pps(pps) => Load { pps: Some(pps as f64) },
        }
    }

    /// The load of one worker among several.
    pub fn share(self, workers: usize) -> Load {
        Load { pps: self.pps.map(|pps| pps / workers as f64) }
    }
}

pub struct Job {
    /// Its place among the workers.
    pub worker: usize,
    pub cpu: u32,
    pub seed: u64,
    /// `None` for the baseline.
    pub through: Option<Arc<Tables>>,
    /// Where newer tables appear, if they change.
    pub board: Option<Arc<Board>>,
    pub templates: Arc<Templates>,
    /// What its packets go through; nothing where they pass beside it.
    pub ipsec: Option<Protection>,
    pub load: Load,
    pub warm_up: Duration,
    pub window: Duration,
}

pub struct Counts {
    pub seconds: f64,
    /// CLOCK_MONOTONIC at the window's ends.
    pub window: (Nanos, Nanos),
    pub ticks: u64,
    pub ledger: LossLedger,
    /// SPD lookup sources of the window.
    pub lookups: LookupCounters,
    /// Loads the last level of cache saw in the window, and those it missed; absent without counters.
    pub last_level: Option<(f64, f64)>,
    /// What was measured and checked beside the pipeline.
    pub checked: Option<Checked>,
    pub notes: Vec<String>,
}

/// The last level's counters of this thread.
struct LastLevel([Counter; 2]);

impl LastLevel {
    /// `None` where the machine counts no such events, as `weir-lab doctor` says.
    fn start() -> Option<LastLevel> {
        let [loads, misses] = [Counted::LastLevelLoads, Counted::LastLevelMisses].map(Counter::start);
        Some(LastLevel([loads.ok()?, misses.ok()?]))
    }

    fn read(&mut self) -> Option<[f64; 2]> {
        let [loads, misses] = &mut self.0;
        Some([loads.read().ok()??, misses.read().ok()??])
    }
}

/// Everything one worker owns.
struct Bench {
    through: Option<Arc<Tables>>,
    board: Option<Arc<Board>>,
    /// Version of the tables it has.
    seen: u64,
    router: Router<Memory>,
    devices: Vec<Box<dyn Device<Memory>>>,
    batch: Batch<Memory>,
    pool: Pool<Memory>,
    out: Output<Memory>,
    load: Load,
    gauges: Gauges,
    protected: Option<Protected>,
    /// How long the worker's clock has stood still: nanoseconds, and ticks.
    aside: (Nanos, u64),
    /// When pacing began, and packets allowed since.
    began: Nanos,
    granted: u64,
}

/// Waits for its fellows and measures once.
pub fn work(job: Job, start: &Barrier) -> Result<Counts, LabError> {
    let made = MemoryWorker::new(&job);
    // every worker reaches the barrier, or those that do would wait for ever
    start.wait();
    made?.measure(Piece { warm_up: job.warm_up, window: job.window, whole: true })
}

/// A run, or a slice of one.
#[derive(Clone, Copy)]
pub struct Piece {
    pub warm_up: Duration,
    pub window: Duration,
    /// Long enough to take turns with the raw rate inside the window.
    pub whole: bool,
}

/// A worker with all it owns, on the thread that made it.
pub struct MemoryWorker {
    bench: Bench,
    notes: Vec<String>,
    /// When the piece before ended.
    left: Option<Nanos>,
}

impl MemoryWorker {
    pub fn new(job: &Job) -> Result<MemoryWorker, LabError> {
        let mut notes = Vec::new();
        if let Err(e) = cpu::pin(job.cpu) {
            notes.push(format!(
                "cpu {} could not be pinned ({e}): the scheduler may move the worker",
                job.cpu
            ));
        }
        Ok(MemoryWorker { bench: Bench::new(job)?, notes, left: None })
    }

    /// Warms up and measures.
    pub fn measure(&mut self, piece: Piece) -> Result<Counts, LabError> {
        let bench = &mut self.bench;
        if let Some(protected) = bench.protected.as_mut().filter(|_| !piece.whole) {
            protected.turn(piece.window);
        }
        // while nothing was asked of it, no time passed
        bench.aside.0 += self.left.map_or(0, |left| clock::now() - left);
        bench.spend(piece.warm_up);
        if let Some(protected) = &mut bench.protected {
            protected.begin(piece.whole.then_some(piece.window));
        }
        let before = bench.state();
        // the far end's misses are not the pipeline's
        let mut last_level = if bench.protected.is_none() { LastLevel::start() } else { None };
        let counted_before = last_level.as_mut().and_then(LastLevel::read).unwrap_or_default();
        let real = clock::now();
        let (ticks, began) = (bench.ticks(), bench.now());
        let now = bench.spend(piece.window);
        let ticks = bench.ticks().zip(ticks).map_or(0, |(after, before)| after.wrapping_sub(before));
        let window = (real, clock::now());
        let counted = last_level.as_mut().and_then(LastLevel::read);
        let last_level = counted.map(|c| (c[0] - counted_before[0], c[1] - counted_before[1]));
        let seconds = (now - began) as f64 / 1e9;
        let intended = bench.load.pps.map(|pps| (pps * seconds) as u64);
        let after = bench.state();
        let ledger = ledger(&before, &after, intended);
        let lookups = after.lookups.since(&before.lookups);
        let checked = match &mut bench.protected {
            Some(protected) => Some(protected.end(&bench.gauges)?),
            None => None,
        };
        self.left = Some(clock::now());
        let notes = self.notes.clone();
        Ok(Counts { seconds, window, ticks, ledger, lookups, last_level, checked, notes })
    }
}

/// Hands out so many packets, however long it takes.
pub fn pass(job: &Job, packets: u64) -> Result<LossLedger, LabError> {
    let mut bench = Bench::new(job)?;
    let before = bench.state();
    let now = clock::now();
    bench.gauges.allowed.set(packets);
    while bench.gauges.allowed.get() > 0 {
        bench.breath(now);
    }
    Ok(ledger(&before, &bench.state(), None))
}

/// Counters at one moment between two breaths.
struct State {
    made: u64,
    taken: u64,
    router: Ledger,
    lookups: LookupCounters,
}

fn ledger(before: &State, after: &State, intended: Option<u64>) -> LossLedger {
    let sent = after.made - before.made;
    let mut ledger = LossLedger {
        intended: intended.unwrap_or(sent),
        offered: sent,
        sent,
        delivered: after.taken - before.taken,
        ..LossLedger::default()
    };
    for (reason, n) in after.router.drops.nonzero() {
        let n = n - before.router.drops.of(reason);
        if n > 0 {
            ledger.drops.insert(format!("weir.{}", reason.name()), n);
        }
    }
    let local = after.router.local - before.router.local;
    if local > 0 {
        ledger.drops.insert("weir.local".into(), local);
    }
    let held = after.router.held.saturating_sub(before.router.held);
    if held > 0 {
        ledger.drops.insert("weir.held".into(), held);
    }
    ledger
}

impl Bench {
    fn new(job: &Job) -> Result<Bench, LabError> {
        let gauges = Gauges::default();
        let order = job.templates.order(job.seed);
        let protected = job.ipsec.map(|p| Protected::new(p, job)).transpose()?;
        let supply = protected.as_ref().and_then(Protected::supply);
        let source: Box<dyn Device<Memory>> = match supply {
            Some(ready) => Box::new(Supply { ready, gauges: gauges.clone() }),
            None => Box::new(Source {
                frames: order.iter().map(|&i| job.templates.frames[i]).collect(),
                lens: order.iter().map(|&i| job.templates.lens[i]).collect(),
                at: 0,
                turn: 0,
                templates: job.templates.clone(),
                gauges: gauges.clone(),
            }),
        };
        let devices = job.through.as_ref().map_or(2, |tables| tables.devices.len().max(2));
        Ok(Bench {
            through: job.through.clone(),
            board: job.board.clone(),
            seen: 0,
            router: Router::new().with_worker(job.worker),
            devices: vec![source, Box::new(Sink { gauges: gauges.clone() })],
            batch: Batch::new(),
            pool: Pool::boxed(BUFFERS),
            out: Output::new(devices),
            load: job.load,
            gauges,
            protected,
            aside: (0, 0),
            began: clock::now(),
            granted: 0,
        })
    }

    fn state(&self) -> State {
        let Gauges { made, taken, .. } = &self.gauges;
        let (router, lookups) = (self.router.ledger().clone(), self.router.lookups());
        State { made: made.get(), taken: taken.get(), router, lookups }
    }

    /// CLOCK_MONOTONIC without what was spent aside.
    fn now(&self) -> Nanos {
        clock::now() - self.aside.0
    }

    fn ticks(&self) -> Option<u64> {
        clock::ticks().map(|ticks| ticks.wrapping_sub(self.aside.1))
    }

    /// Breathes for a time, once at least; returns when it stopped.
    fn spend(&mut self, time: Duration) -> Nanos {
        let mut now = self.now();
        let end = now + time.as_nanos() as u64;
        loop {
            self.grant(now);
            if self.protected.is_some() {
                now = self.step_aside(now);
            }
            self.breath(now);
            now = self.now();
            if now >= end {
                return now;
            }
        }
    }

    /// Stops the worker's clock for what is not the pipeline's.
    fn step_aside(&mut self, now: Nanos) -> Nanos {
        let (since, ticks) = (clock::now(), clock::ticks());
        if let Some(protected) = &mut self.protected {
            protected.prepare(now, &mut self.pool, &self.gauges);
        }
        let (until, after) = (clock::now(), clock::ticks());
        self.aside.0 += until - since;
        self.aside.1 += after.zip(ticks).map_or(0, |(after, before)| after.wrapping_sub(before));
        until - self.aside.0
    }

    /// How many packets the source may hand out by now; what a ring does not hold is never offered.
    fn grant(&mut self, now: Nanos) {
        let Some(pps) = self.load.pps else {
            self.gauges.allowed.set(u64::MAX);
            return;
        };
        let due = ((now - self.began) as f64 / 1e9 * pps) as u64;
        let more = (due - self.granted).min(RING.saturating_sub(self.gauges.allowed.get()));
        self.granted = due;
        self.gauges.allowed.set(self.gauges.allowed.get() + more);
    }

    fn breath(&mut self, now: Nanos) {
        if let Some(tables) = self.board.as_ref().and_then(|board| board.newer(&mut self.seen)) {
            self.through = Some(tables);
        }
        let Bench { router, devices, batch, pool, out, .. } = self;
        match &self.through {
            Some(tables) => {
                breathe(router, now, tables, devices, batch, pool, out);
                router.punted(out.punt.len() as u64);
                for (_, frame) in out.punt.drain(..) {
                    pool.put(frame.into_buffer());
                }
                out.events.clear();
            }
            None => {
                devices[0].rx(pool, batch);
                out.tx[1].extend(batch.drain());
                devices[1].tx(pool, &mut out.tx[1]);
            }
        }
    }
}
