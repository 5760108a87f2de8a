//! One window: generator and receiver at work; and one trial, which is a window between two readings.
//!
//! On one CPU they take turns in one thread (two threads would wait out each other's time slices); on two
//! CPUs each has a thread. Both wait busily. After the window the receiver goes on until nothing has come
//! for [`QUIET`]: stragglers count.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use weir_core::time::Nanos;
use weir_io::{clock, cpu};

use super::counters::{self, Counters};
use super::cpus::Cpus;
use crate::generator::{Generator, Sent, TrafficSpec, Transmitter};
use crate::model::{LabError, Sample, Trial};
use crate::receiver::{Collector, Tally};
use weir_stats::search::{LossLedger, Rate};

/// Silence after which nothing more is expected: a thousand times a loaded wire's latency, and longer than a starved kernel
/// thread is kept from the CPU.
const QUIET: Nanos = 200_000_000;
/// How often a receiver that counts by itself is looked at.
const LOOK: Duration = Duration::from_millis(1);
/// Longest time waited after the window, whatever foreign traffic there is.
const STRAGGLE: Nanos = 2_000_000_000;

/// What a window came to.
pub struct Driven {
    pub sent: Sent,
    pub tally: Tally,
    /// Frames the receiver itself lost.
    pub lost: u64,
}

/// A SUT on its wires, with generator and receiver at their ends: here or on hosts.
pub trait Wired {
    /// Counters, and what else is read with them.
    type Reading;

    fn drive(&mut self, rate: Rate, window: Duration, seed: u64) -> Result<Driven, LabError>;

    /// Reads the counters of every hop, cumulative.
    fn read(&mut self) -> Result<Self::Reading, LabError>;

    fn drops(reading: &Self::Reading) -> &Counters;
}

/// Sends a trial's warm-up and its window. What each hop lost in the window is in the sample's ledger; the
/// readings before and after it are for what else they hold.
pub fn measure<W: Wired>(wired: &mut W, trial: &Trial) -> Result<(Sample, [W::Reading; 2]), LabError> {
    let Trial { rate, warm_up, window, seed } = *trial;
    if !warm_up.is_zero() {
        wired.drive(rate, warm_up, seed ^ 1)?;
    }
    let before = wired.read()?;
    let driven = wired.drive(rate, window, seed)?;
    let after = wired.read()?;
    let mut drops = counters::difference(W::drops(&before), W::drops(&after));
    if driven.lost > 0 {
        drops.insert("receiver.lost".into(), driven.lost);
    }
    let mut sample = driven.sample();
    sample.ledger = LossLedger { drops, ..sample.ledger };
    Ok((sample, [before, after]))
}

/// What is driven, and where.
#[derive(Clone, Copy)]
pub struct Course<'a> {
    pub plan: TrafficSpec,
    pub seed: u64,
    pub flows: u32,
    pub cpus: &'a Cpus,
    /// Path of the generator's namespace, if it is not the process' own: live frames leave from where the
    /// calling thread is.
    pub home: Option<&'a str>,
}

pub fn drive(
    transmitter: &mut dyn Transmitter,
    collector: &mut dyn Collector,
    course: Course,
) -> Result<Driven, LabError> {
    let (run, cpus) = (course.plan.run, course.cpus);
    let mut receiver = Receiver { collector, tally: Tally::new(run, course.flows) };
    receiver.collector.start(run).map_err(|e| failed("receiver", &e))?;
    receiver.collector.lost().map_err(|e| failed("receiver", &e))?;
    let one_thread = cpus.generator == cpus.receiver || receiver.collector.in_kernel();
    let sending = AtomicBool::new(true);
    let sent = thread::scope(|scope| {
        if one_thread {
            let both = scope.spawn(|| {
                let sent = generate(transmitter, course, Some(&mut receiver))?;
                receiver.collect_until_quiet().map(|()| sent)
            });
            return both.join();
        }
        let collecting = scope.spawn(|| {
            pin(cpus.receiver)?;
            while sending.load(Ordering::Relaxed) {
                receiver.step()?;
            }
            receiver.collect_until_quiet()
        });
        let generating = scope.spawn(|| {
            let sent = generate(transmitter, course, None);
            sending.store(false, Ordering::Relaxed);
            sent
        });
        let sent = generating.join();
        collecting.join().and_then(|collected| sent.map(|sent| collected.and(sent)))
    });
    let sent = sent.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let lost = receiver.collector.lost().map_err(|e| failed("receiver", &e))?;
    Ok(Driven { sent, tally: receiver.tally, lost })
}

/// Sends one window from the calling thread, which stays bound to the generator's CPU.
pub fn generate(
    transmitter: &mut dyn Transmitter,
    course: Course,
    mut receiver: Option<&mut Receiver>,
) -> Result<Sent, LabError> {
    if let Some(home) = course.home {
        weir_io::netns::enter(home).map_err(|e| LabError::new(format!("generator: its namespace: {e}")))?;
    }
    pin(course.cpus.generator)?;
    transmitter.restart(&course.plan, course.seed).map_err(|e| failed("generator", &e))?;
    let takes_turns = receiver.as_ref().is_some_and(|receiver| !receiver.collector.in_kernel());
    let mut generator = Generator::new(transmitter, course.plan, takes_turns, clock::now());
    while generator.step(clock::now()).map_err(|e| failed("generator", &e))? {
        if let Some(receiver) = &mut receiver {
            receiver.step()?;
        }
    }
    Ok(generator.sent())
}

/// A collector, and what it has found so far.
pub struct Receiver<'a> {
    pub collector: &'a mut dyn Collector,
    pub tally: Tally,
}

impl Receiver<'_> {
    pub fn step(&mut self) -> Result<(), LabError> {
        self.collector.collect(&mut self.tally).map_err(|e| failed("receiver", &e))
    }

    pub fn collect_until_quiet(&mut self) -> Result<(), LabError> {
        let began = clock::now();
        loop {
            self.collector.update(&mut self.tally).map_err(|e| failed("receiver", &e))?;
            let now = clock::now();
            if now.saturating_sub(self.tally.last_arrival.max(began)) > QUIET || now - began > STRAGGLE {
                return self.collector.finish(&mut self.tally).map_err(|e| failed("receiver", &e));
            }
            if self.collector.in_kernel() {
                thread::sleep(LOOK);
            }
        }
    }
}

impl Driven {
    /// The values of the window; drop counters are added by whoever read them.
    pub fn sample(&self) -> Sample {
        let (sent, tally) = (&self.sent, &self.tally);
        // A full queue drains after the window: the time it takes belongs to the packets it held.
        let took = sent.took.max(tally.last_arrival.saturating_sub(sent.began)).max(1);
        let seconds = took as f64 / 1e9;
        let mut sample = Sample {
            seconds,
            pps: tally.delivered as f64 / seconds,
            ledger: LossLedger {
                intended: sent.intended,
                offered: sent.counts.offered,
                sent: sent.counts.sent,
                delivered: tally.delivered,
                ..LossLedger::default()
            },
            reordered: tally.reordered,
            duplicated: tally.duplicated,
            window_ns: Some((sent.began, sent.began + took)),
            ..Sample::default()
        };
        if tally.delivered > 0 {
            for (name, quantile) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)] {
                sample.latency_ns.insert(name.into(), tally.latency.value_at_quantile(quantile));
            }
            sample.latency_ns.insert("max".into(), tally.latency.max());
        }
        let window = sent.took.max(1) as f64 / 1e9;
        sample.metrics.insert("offered_pps".into(), sent.counts.offered as f64 / window);
        sample.metrics.insert("sent_pps".into(), sent.counts.sent as f64 / window);
        sample.metrics.insert("behind_max_packets".into(), sent.behind_max as f64);
        if tally.beyond_memory > 0 {
            sample.notes.push(format!(
                "{} packets came too late to be told from duplicates; they count as reordered",
                tally.beyond_memory
            ));
        }
        sample
    }
}

pub fn pin(cpu: u32) -> Result<(), LabError> {
    cpu::pin(cpu).map_err(|e| LabError::new(format!("cpu {cpu}: a thread cannot be bound to it: {e}")))
}

fn failed(who: &str, error: &std::io::Error) -> LabError {
    LabError::new(format!("{who}: {error}; is its interface still there and up?"))
}
