//! What one run of a configuration is: a single trial, or a whole search on one prepared SUT.
//!
//! ```text
//! flat out (warmed up) ─► the sample, and the first trial ─► search, trial by trial ─► values, goals
//! ```
//!
//! Promises: the run stays the replicate of every statistic; each trial is kept raw in its sample; a search
//! warms its SUT up once, before the first trial. Refuses: going on once a stop is asked for: half a search
//! is no run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use weir_stats::search::burst::{self, Bursts};
use weir_stats::search::equilibrium::{self, Equilibrium};
use weir_stats::search::goal::{Goal, GoalResult};
use weir_stats::search::sweep::{self, Step};
use weir_stats::search::{Limits, Measurer, Rate, TrialRecord, mlr};

use crate::machine;
use crate::model::{Configuration, FrameSize, LabError, Prepared, Sample, Trial};
use crate::workload::FCS;

/// The maximum load of a search by default: above what the source offers flat out, so that an upper bound is
/// found, and said to be the source's where it is.
const ABOVE_SOURCE: f64 = 1.25;
/// The minimum by default, as a share of what came through flat out, and packets of the shortest trial at least.
const MIN_SHARE: f64 = 0.01;
const MIN_PACKETS: f64 = 10.0;
/// A source that fell behind at less than this share of what it offered flat out was held up by the machine, not
/// by its own limit: the trial is made again, this often a trial and a run (on a machine that is busy all the
/// time it does not help). The choice looks at the source, never at the loss.
const SURELY_OFFERED: f64 = 0.8;
const AGAIN_A_TRIAL: usize = 3;
const AGAIN_A_RUN: usize = 12;
/// A trial's loading and its wait for stragglers, for estimates: 50 ms of silence and as much again.
const TRIAL_OVERHEAD_S: f64 = 0.1;
/// Loads a phase decides for a goal, for estimates: two bounds again, and a few between.
const LOADS_A_PHASE: f64 = 5.0;
/// Frames of the simple IMIX on average: (7 × 64 + 4 × 570 + 1518) / 12.
const IMIX_BYTES: f64 = 353.833;

/// How the runs of an experiment are made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Method {
    /// One trial at the configuration's rate, flat out unless it says otherwise.
    #[default]
    Mrr,
    /// One trial at the rate every configuration names.
    Fixed,
    Sweep {
        rates: Vec<Step>,
    },
    NdrPdr(Bounds),
    Equilibrium {
        /// Mb/s of frames without FCS; without it, what the source offers flat out.
        line_mbps: Option<u64>,
    },
    BackToBack {
        repeats: usize,
        longest_seconds: f64,
    },
    Latency {
        bounds: Bounds,
        /// Percent of the last goal's relevant lower bound.
        shares: Vec<f64>,
    },
}

/// Goals and the range to look in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bounds {
    /// The last one is the PDR.
    pub goals: Vec<Goal>,
    pub min_pps: Option<u64>,
    pub max_pps: Option<u64>,
}

impl Method {
    /// Whether a run is more than one trial.
    pub fn is_search(&self) -> bool {
        !matches!(self, Method::Mrr | Method::Fixed)
    }

    /// The metric of a file that names none.
    pub fn metric(&self) -> &'static str {
        match self {
            Method::Mrr | Method::Fixed | Method::Sweep { .. } => "pps",
            Method::NdrPdr(_) => "pdr_pps",
            Method::Equilibrium { .. } => "equilibrium_mbps",
            Method::BackToBack { .. } => "back_to_back_frames",
            Method::Latency { .. } => "latency_50_ns_p50",
        }
    }

    /// Estimates how long one run takes, in seconds; a search's length depends on what it finds.
    pub fn seconds(&self, warm_up: f64, window: f64) -> f64 {
        let trials = |count: f64, seconds: f64| count * (seconds + TRIAL_OVERHEAD_S);
        let bounds = |b: &Bounds| {
            let phases = b.goals.iter().flat_map(Goal::phases);
            phases
                .map(|p| trials(LOADS_A_PHASE * p.sum_seconds / p.final_seconds, p.final_seconds))
                .sum::<f64>()
        };
        let search = match self {
            Method::Mrr | Method::Fixed => 0.0,
            Method::Sweep { rates } => trials(rates.len() as f64, window),
            Method::NdrPdr(b) => bounds(b),
            Method::Equilibrium { .. } => trials(7.0, window),
            // the longest burst and its halvings down to 1 %, most of them short
            Method::BackToBack { repeats, longest_seconds } => {
                *repeats as f64 * (trials(1.0, *longest_seconds) + trials(11.0, longest_seconds / 10.0))
            }
            Method::Latency { bounds: b, shares } => bounds(b) + trials(shares.len() as f64, window),
        };
        warm_up + window + search
    }
}

/// What a run needs to know of its campaign.
pub struct Run<'a> {
    pub configuration: &'a Configuration,
    pub method: &'a Method,
    pub warm_up: Duration,
    pub window: Duration,
    pub seed: u64,
    /// Once set, a search ends with an error.
    pub stop: &'a AtomicBool,
    /// Told of each trial.
    pub say: &'a dyn Fn(&str),
}

/// One run on a prepared SUT.
pub fn run(prepared: &mut dyn Prepared, run: &Run<'_>) -> Result<Sample, LabError> {
    let search = run.method.is_search();
    let rate = if search { Rate::FlatOut } else { run.configuration.workload.rate };
    let trial = Trial { rate, warm_up: run.warm_up, window: run.window, seed: run.seed };
    let mut sample = prepared.run(&trial)?;
    if machine::counts_instructions() {
        say_instructions(&mut sample);
    }
    if !search {
        return Ok(sample);
    }
    let mut bench = Bench { prepared, run, trials: Vec::new(), notes: sample.notes.clone() };
    bench.keep(&sample, rate, run.window.as_secs_f64(), "flat out");
    let mut found = Found::default();
    found.search(&mut bench)?;
    sample.trials = bench.trials;
    sample.notes = bench.notes;
    sample.notes.extend(found.notes);
    sample.metrics.extend(found.metrics);
    sample.goals = found.goals;
    Ok(sample)
}

/// What a sample says where a nanosecond is an instruction.
fn say_instructions(sample: &mut Sample) {
    if let Some(each) = sample.metrics.remove("ns_per_packet") {
        sample.metrics.insert("instructions_per_packet".into(), each);
    }
    sample.notes.push(
        "clock: it counts instructions, one each nanosecond, of an emulated processor: rates and latencies are no time"
            .into(),
    );
}

/// A prepared SUT as searches load it.
struct Bench<'a> {
    prepared: &'a mut dyn Prepared,
    run: &'a Run<'a>,
    trials: Vec<TrialRecord>,
    /// Each once.
    notes: Vec<String>,
}

impl Bench<'_> {
    fn keep(&mut self, sample: &Sample, rate: Rate, seconds: f64, purpose: &str) -> TrialRecord {
        let seconds = match (rate, sample.metrics.get("offered_pps")) {
            (Rate::Burst(_), Some(pps)) => (sample.ledger.offered as f64 / pps.max(1.0)).max(1e-9),
            (Rate::Burst(_), None) => sample.seconds,
            _ => seconds,
        };
        let record = TrialRecord {
            purpose: purpose.into(),
            rate,
            seconds,
            pps: sample.pps,
            ledger: sample.ledger.clone(),
            latency_ns: sample.latency_ns.clone(),
            cpu_percent: sample.metrics.get("sut_cpu_percent").copied(),
            superseded: false,
        };
        self.trials.push(record.clone());
        let load = match rate {
            Rate::Burst(packets) => format!("{packets} packets at once"),
            _ => format!("{:.0} pps for {seconds:.3} s", record.load_pps()),
        };
        (self.run.say)(&format!(
            "  {} trial {}: {load}, {:.3} % lost{} · {purpose}",
            self.run.configuration.name,
            self.trials.len(),
            record.loss_ratio() * 100.0,
            if record.source_fell_behind() { " (the source fell behind)" } else { "" }
        ));
        record
    }

    fn once(&mut self, rate: Rate, seconds: f64, purpose: &str) -> Result<TrialRecord, LabError> {
        // every trial sees other traffic, every configuration of a block the same
        let seed = self.run.seed ^ (self.trials.len() as u64) << 32;
        let window = Duration::from_secs_f64(seconds);
        let sample = self.prepared.run(&Trial { rate, warm_up: Duration::ZERO, window, seed })?;
        sample.notes.iter().for_each(|note| self.note(note));
        Ok(self.keep(&sample, rate, seconds, purpose))
    }

    fn note(&mut self, note: &str) {
        if !self.notes.iter().any(|n| n == note) {
            self.notes.push(note.into());
        }
    }

    /// The first trial's: what the source offers, and what comes through, packets a second.
    fn flat_out(&self) -> (f64, f64) {
        self.trials.first().map_or((0.0, 0.0), |t| (t.load_pps(), t.pps))
    }
}

impl Measurer for Bench<'_> {
    type Error = LabError;

    fn trial(&mut self, rate: Rate, seconds: f64, purpose: &str) -> Result<TrialRecord, LabError> {
        if self.run.stop.load(Ordering::Acquire) {
            return Err(LabError::new("search: interrupted between two trials; its run is not kept".into()));
        }
        let mut record = self.once(rate, seconds, purpose)?;
        for _ in 0..AGAIN_A_TRIAL {
            let within_reach =
                matches!(rate, Rate::Pps(_)) && record.load_pps() < self.flat_out().0 * SURELY_OFFERED;
            let again = self.trials.iter().filter(|t| t.superseded).count() < AGAIN_A_RUN;
            let (true, true, Some(last)) =
                (again, within_reach && record.source_fell_behind(), self.trials.last_mut())
            else {
                break;
            };
            last.superseded = true;
            self.note("the source was held up in some trials at rates it can offer: they were made again");
            record = self.once(rate, seconds, purpose)?;
        }
        Ok(record)
    }
}

/// What a search adds to its sample.
#[derive(Default)]
struct Found {
    metrics: Vec<(String, f64)>,
    goals: Vec<GoalResult>,
    notes: Vec<String>,
}

impl Found {
    fn search(&mut self, bench: &mut Bench<'_>) -> Result<(), LabError> {
        let window = bench.run.window.as_secs_f64();
        let (offered, forwarded) = bench.flat_out();
        match bench.run.method {
            Method::Mrr | Method::Fixed => {}
            Method::Sweep { rates } => {
                sweep::search(bench, rates, forwarded, window)?;
            }
            Method::NdrPdr(bounds) => self.bounds(bench, bounds)?,
            Method::Equilibrium { line_mbps } => {
                let frame_bits = frame_bits(bench.run.configuration.workload.frame);
                let line_mbps = line_mbps.unwrap_or((offered * frame_bits / 1e6) as u64);
                let found =
                    equilibrium::search(bench, Equilibrium { line_mbps, frame_bits, seconds: window })?;
                (bench.run.say)(&format!("  {}", found.sentence()));
                self.metric("equilibrium_mbps", found.mbps as f64);
                self.metric("equilibrium_max_mbps", found.max_seen_mbps as f64);
                self.metric("equilibrium_pps", found.pps);
            }
            &Method::BackToBack { repeats, longest_seconds } => {
                let longest = (offered * longest_seconds).clamp(1.0, f64::from(u32::MAX)) as u32;
                self.bursts(&burst::search(bench, Bursts { longest, repeats })?);
            }
            Method::Latency { bounds, shares } => {
                self.bounds(bench, bounds)?;
                self.latency(bench, shares, window)?;
            }
        }
        Ok(())
    }

    fn metric(&mut self, name: impl Into<String>, value: f64) {
        self.metrics.push((name.into(), value));
    }

    fn bounds(&mut self, bench: &mut Bench<'_>, bounds: &Bounds) -> Result<(), LabError> {
        let (offered, forwarded) = bench.flat_out();
        let shortest = bounds.goals.iter().map(|g| g.initial_seconds).fold(f64::INFINITY, f64::min);
        let max = bounds.max_pps.unwrap_or((offered * ABOVE_SOURCE) as u64);
        let least = (forwarded * MIN_SHARE).max(MIN_PACKETS / shortest).ceil() as u64;
        let limits = Limits::new(bounds.min_pps.unwrap_or(least), max)?;
        self.goals = mlr::search(bench, &bounds.goals, limits)?;
        for r in &self.goals {
            let name = &r.goal.name;
            let metrics = [
                (format!("{name}_pps"), r.lower_pps.map(|p| p as f64)),
                (format!("{name}_upper_pps"), r.upper_pps.map(|p| p as f64)),
                (format!("{name}_conditional_throughput_pps"), r.conditional_pps),
            ];
            self.metrics.extend(metrics.into_iter().filter_map(|(name, f)| Some((name, f?))));
        }
        Ok(())
    }

    fn bursts(&mut self, found: &burst::Found) {
        self.metric("back_to_back_frames", found.summary.mean);
        self.metric("back_to_back_min_frames", found.summary.min);
        self.metric("back_to_back_max_frames", found.summary.max);
        if found.unlimited > 0 {
            let said = "back-to-back: the longest burst lost nothing in some repeats: the limit is unknown";
            self.notes.push(said.into());
        }
    }

    /// One trial at each share of the PDR.
    fn latency(&mut self, bench: &mut Bench<'_>, shares: &[f64], window: f64) -> Result<(), LabError> {
        let Some(pdr) = self.goals.last().and_then(|g| g.lower_pps) else {
            self.notes
                .push("latency: no load met the last goal, so there is no rate to measure it at".into());
            return Ok(());
        };
        for share in shares {
            let pps = Step::Percent(*share).pps(pdr as f64);
            let record = bench.trial(Rate::Pps(pps), window, &format!("latency at {share} % of the PDR"))?;
            self.metric(format!("latency_{share}_load_pps"), pps as f64);
            for (percentile, ns) in record.latency_ns {
                self.metric(format!("latency_{share}_ns_{percentile}"), ns as f64);
            }
        }
        Ok(())
    }
}

/// Bits of a frame on average, FCS left out as in the field's Mb/s of Ethernet.
fn frame_bits(frame: FrameSize) -> f64 {
    let bytes = match frame {
        FrameSize::Fixed(bytes) => f64::from(bytes),
        FrameSize::Imix => IMIX_BYTES,
    };
    (bytes - f64::from(FCS)) * 8.0
}

#[cfg(test)]
mod tests;
