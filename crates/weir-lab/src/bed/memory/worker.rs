//! One worker: source, router and sink on one CPU, and what it counted.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use weir_core::device::{Device, DeviceStats};
use weir_core::packet::{BATCH, Batch, DeviceId, Frame, HEADROOM, Pool};
use weir_core::router::{Output, Router, breathe};
use weir_core::tables::Tables;
use weir_core::time::Nanos;
use weir_core::verdict::Ledger;
use weir_io::perf_event::counter::{Counted, Counter};
use weir_io::{clock, cpu};

use super::traffic::{TEMPLATE, Template, Templates};
use crate::model::{LabError, LossLedger, Rate};

/// Four batches: one in the router, one being sent, and the rest so that none is ever waited for.
const BUFFERS: usize = 4 * BATCH;

/// Heap buffers: a kilobyte or two and a bookkeeping word apart, so that the headers of a batch spread over
/// the sets of a first-level cache. At a power of two apart, as in AF_XDP's aligned memory, they would share
/// one or two sets of 64; DPDK pads the objects of its memory pools for the same reason.
type Memory = Box<[u8]>;

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

    /// Of one worker among several.
    pub fn share(self, workers: usize) -> Load {
        Load { pps: self.pps.map(|pps| pps / workers as f64) }
    }
}

pub struct Job {
    pub cpu: u32,
    pub seed: u64,
    /// `None` for the ceiling.
    pub through: Option<Arc<Tables>>,
    pub templates: Arc<Templates>,
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
    /// Loads the last level of cache saw in the window, and those it missed; absent without counters.
    pub last_level: Option<(f64, f64)>,
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

/// Copies template after template into buffers, as many as it may.
struct Source {
    frames: Vec<Template>,
    lens: Vec<u16>,
    at: usize,
    /// Packets it may still hand out.
    allowed: Rc<Cell<u64>>,
    made: Rc<Cell<u64>>,
}

impl Device<Memory> for Source {
    fn rx(&mut self, pool: &mut Pool<Memory>, batch: &mut Batch<Memory>) -> usize {
        let room = (batch.room() as u64).min(self.allowed.get());
        let mut made = 0;
        while made < room {
            let Some(buffer) = pool.take() else { break };
            let mut frame = Frame::new(buffer, HEADROOM, TEMPLATE, DeviceId(0));
            frame.data_mut().copy_from_slice(&self.frames[self.at].0);
            let fits = frame.set_len(usize::from(self.lens[self.at]));
            debug_assert!(fits, "frames of 1,518 bytes fit into a buffer of 2,048");
            self.at = if self.at + 1 == self.frames.len() { 0 } else { self.at + 1 };
            if let Err(frame) = batch.push(frame) {
                pool.put(frame.into_buffer());
                break;
            }
            made += 1;
        }
        self.allowed.set(self.allowed.get() - made);
        self.made.set(self.made.get() + made);
        made as usize
    }

    /// What the router answers to the generator: nothing here asks for it.
    fn tx(&mut self, pool: &mut Pool<Memory>, frames: &mut Vec<Frame<Memory>>) -> usize {
        give_back(pool, frames)
    }

    fn buffers_held(&self) -> usize {
        0
    }

    fn stats(&mut self) -> DeviceStats {
        DeviceStats::default()
    }
}

/// Counts frames and gives their buffers back.
struct Sink {
    taken: Rc<Cell<u64>>,
}

impl Device<Memory> for Sink {
    fn rx(&mut self, _: &mut Pool<Memory>, _: &mut Batch<Memory>) -> usize {
        0
    }

    fn tx(&mut self, pool: &mut Pool<Memory>, frames: &mut Vec<Frame<Memory>>) -> usize {
        let count = give_back(pool, frames);
        self.taken.set(self.taken.get() + count as u64);
        count
    }

    fn buffers_held(&self) -> usize {
        0
    }

    fn stats(&mut self) -> DeviceStats {
        DeviceStats::default()
    }
}

fn give_back(pool: &mut Pool<Memory>, frames: &mut Vec<Frame<Memory>>) -> usize {
    let count = frames.len();
    for frame in frames.drain(..) {
        pool.put(frame.into_buffer());
    }
    count
}

/// Everything one worker owns.
struct Bench {
    through: Option<Arc<Tables>>,
    router: Router<Memory>,
    devices: Vec<Box<dyn Device<Memory>>>,
    batch: Batch<Memory>,
    pool: Pool<Memory>,
    out: Output<Memory>,
    load: Load,
    allowed: Rc<Cell<u64>>,
    made: Rc<Cell<u64>>,
    taken: Rc<Cell<u64>>,
    /// When pacing began, and packets allowed since.
    began: Nanos,
    granted: u64,
}

/// Warms up, waits for its fellows, and measures.
pub fn work(job: Job, start: &Barrier) -> Result<Counts, LabError> {
    let mut notes = Vec::new();
    if let Err(e) = cpu::pin(job.cpu) {
        notes.push(format!("cpu {} could not be pinned ({e}): the scheduler may move the worker", job.cpu));
    }
    let made = Bench::new(&job);
    // every worker reaches the barrier, or those that do would wait for ever
    start.wait();
    let mut bench = made?;
    bench.spend(job.warm_up);
    let before = bench.state();
    let mut last_level = LastLevel::start();
    let counted_before = last_level.as_mut().and_then(LastLevel::read).unwrap_or_default();
    let (ticks, began) = (clock::ticks(), clock::now());
    let now = bench.spend(job.window);
    let ticks = clock::ticks().zip(ticks).map_or(0, |(after, before)| after.wrapping_sub(before));
    let counted = last_level.as_mut().and_then(LastLevel::read);
    let last_level = counted.map(|c| (c[0] - counted_before[0], c[1] - counted_before[1]));
    let seconds = (now - began) as f64 / 1e9;
    let intended = bench.load.pps.map(|pps| (pps * seconds) as u64);
    let ledger = ledger(&before, &bench.state(), intended);
    Ok(Counts { seconds, window: (began, now), ticks, ledger, last_level, notes })
}

/// Hands out so many packets, however long it takes.
pub fn pass(job: &Job, packets: u64) -> Result<LossLedger, LabError> {
    let mut bench = Bench::new(job)?;
    let before = bench.state();
    let now = clock::now();
    bench.allowed.set(packets);
    while bench.allowed.get() > 0 {
        bench.breath(now);
    }
    Ok(ledger(&before, &bench.state(), None))
}

/// Counters at one moment between two breaths.
struct State {
    made: u64,
    taken: u64,
    router: Ledger,
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
        let [allowed, made, taken] = [0; 3].map(|n| Rc::new(Cell::new(n)));
        let order = job.templates.order(job.seed);
        let source = Source {
            frames: order.iter().map(|&i| job.templates.frames[i]).collect(),
            lens: order.iter().map(|&i| job.templates.lens[i]).collect(),
            at: 0,
            allowed: allowed.clone(),
            made: made.clone(),
        };
        Ok(Bench {
            through: job.through.clone(),
            router: Router::new(),
            devices: vec![Box::new(source), Box::new(Sink { taken: taken.clone() })],
            batch: Batch::new(),
            pool: Pool::boxed(BUFFERS),
            out: Output::new(2),
            load: job.load,
            allowed,
            made,
            taken,
            began: clock::now(),
            granted: 0,
        })
    }

    fn state(&self) -> State {
        State { made: self.made.get(), taken: self.taken.get(), router: self.router.ledger().clone() }
    }

    /// Breathes for a time; returns when it stopped.
    fn spend(&mut self, time: Duration) -> Nanos {
        let end = clock::now() + time.as_nanos() as u64;
        loop {
            let now = clock::now();
            if now >= end {
                return now;
            }
            self.grant(now);
            self.breath(now);
        }
    }

    /// How many packets the source may hand out by now; never a burst above a batch.
    fn grant(&mut self, now: Nanos) {
        let Some(pps) = self.load.pps else {
            self.allowed.set(u64::MAX);
            return;
        };
        let due = ((now - self.began) as f64 / 1e9 * pps) as u64;
        let more = (due - self.granted).min(BATCH as u64 - self.allowed.get().min(BATCH as u64));
        self.granted = due;
        self.allowed.set(self.allowed.get() + more);
    }

    fn breath(&mut self, now: Nanos) {
        let Bench { router, devices, batch, pool, out, .. } = self;
        match &self.through {
            Some(tables) => {
                breathe(router, now, tables, devices, batch, pool, out);
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
