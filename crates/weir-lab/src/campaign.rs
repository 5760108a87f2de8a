//! A campaign: the runs of an experiment in their order, each on disk before the next begins.
//!
//! ```text
//! missing? ─► schedule ─► [prepare ─► run ─► append ─► drop] × slots ─► profiled runs ─► derive ─► reports
//! ```
//!
//! Where an experiment cuts its runs into slices, [`sliced`] measures what is compared side by side.
//!
//! An interrupted campaign is taken up again by [`resume`], a finished one repeated by [`rerun`].
//! Every run gets a SUT of its own: what memory layout and start-up do to a value is part of its
//! spread. Promises: an interrupt ends after the run under way and reports what was measured; a run that
//! fails is recorded and counted, and the campaign goes on.

mod difference;
mod profiled;
mod resume;
mod sliced;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::experiment::Experiment;
use crate::format;
use crate::machine;
use crate::machine::Machine;
use crate::machine::nearness::{Near, Nearness};
use crate::manifest::{FORMAT, Manifest, Repeated};
use crate::method;
use crate::model::{Configuration, LabError, Prepared, Sample, Topology};
use crate::progress::{Progress, Whole};
use crate::report;
use crate::result::Results;
use crate::store::{self, Run, Store};
use crate::testbed::Testbeds;
use crate::testbed::programs;
pub use difference::{builds, machines, other_machines};
pub use resume::{Resume, resume};
use weir_stats::schedule::{PlannedRun, grouped, schedule};

/// After so many failures in a row a configuration is not tried again.
const FAILURES_IN_A_ROW: usize = 3;

/// What a campaign is to do, and where.
pub struct CampaignSpec<'a> {
    pub experiment: Experiment,
    pub seed: u64,
    pub dir: &'a Path,
    pub argv: Vec<String>,
    /// The campaign this one repeats.
    pub repeats: Option<Repeated>,
    /// Once set, the run under way is the last.
    pub stop: &'a AtomicBool,
    /// Where this campaign stands among several that run one after another.
    pub whole: Option<Whole>,
}

/// What came of it.
pub struct Done {
    pub results: Results,
    /// Where the evidence of an earlier campaign in the same folder went.
    pub moved: Option<PathBuf>,
}

pub fn run(plan: CampaignSpec<'_>) -> Result<Done, LabError> {
    let (store, moved) = Store::create(plan.dir)?;
    let mut testbeds = Testbeds::of(&plan.experiment);
    let skipped = skipped(&plan.experiment, &mut testbeds);
    let runnable: Vec<&Configuration> = plan
        .experiment
        .configurations
        .iter()
        .map(|p| &p.configuration)
        .filter(|c| !skipped.contains_key(&c.name))
        .collect();
    let slots = slots(&plan.experiment, &runnable, plan.seed);
    let machines = others(&mut testbeds);
    let manifest = Manifest {
        format: FORMAT,
        experiment: plan.experiment.clone(),
        seed: plan.seed,
        started_unix_ms: machine::unix_ms(),
        argv: plan.argv.clone(),
        order: slots
            .chunks(runnable.len().max(1))
            .map(|block| block.iter().map(|s| runnable[s.configuration].name.clone()).collect())
            .collect(),
        skipped,
        machine: Machine::observe(),
        build: programs::took_part(&plan.experiment),
        resumed: Vec::new(),
        repeats: plan.repeats.clone(),
        machines,
    };
    store.write("manifest.json", &manifest.text()?)?;
    for (name, reason) in &manifest.skipped {
        eprintln!("skipped {name}: {reason}");
    }
    measure(&plan, &store, &mut testbeds, &runnable, &slots, 0)?;
    profiled::profile(&plan, &store, &mut testbeds, &runnable)?;
    drop((testbeds, store));
    let results = report::write(plan.dir)?;
    Ok(Done { results, moved })
}

/// Every run of a campaign in its order.
fn slots(experiment: &Experiment, runnable: &[&Configuration], seed: u64) -> Vec<PlannedRun> {
    match experiment.slicing() {
        None => schedule(runnable.len(), experiment.runs, seed),
        Some(_) => grouped(&experiment.groups(runnable), experiment.runs, seed),
    }
}

/// Configurations that cannot run here, and why.
fn skipped(experiment: &Experiment, testbeds: &mut Testbeds) -> BTreeMap<String, String> {
    let mut skipped = BTreeMap::new();
    for planned in &experiment.configurations {
        let c = &planned.configuration;
        let lacks = planned.missing.clone();
        if let Some(reason) = lacks.or_else(|| testbeds.missing(c)) {
            skipped.insert(c.name.clone(), reason);
        }
    }
    // a baseline without a SUT under it answers nothing
    for planned in &experiment.configurations {
        let baseline = &planned.configuration;
        let mut under = experiment
            .suts()
            .filter(|c| experiment.baseline_of(c).is_some_and(|own| own.name == baseline.name))
            .peekable();
        if under.peek().is_some() && under.all(|c| skipped.contains_key(&c.name)) {
            skipped
                .entry(baseline.name.clone())
                .or_insert("every configuration it is the baseline of is skipped; see their remedies".into());
        }
    }
    skipped
}

/// The other machines that take part. One that does not answer now fails its runs, not the campaign.
fn others(testbeds: &mut Testbeds) -> BTreeMap<String, Machine> {
    let answers = testbeds.machines().into_iter();
    let known = answers.filter_map(|(part, answer)| match answer {
        Ok(machine) => Some((part, machine)),
        Err(error) => {
            eprintln!("not in the manifest: {part}: {error}");
            None
        }
    });
    known.collect()
}

fn measure(
    plan: &CampaignSpec<'_>,
    store: &Store,
    testbeds: &mut Testbeds,
    runnable: &[&Configuration],
    slots: &[PlannedRun],
    session: usize,
) -> Result<(), LabError> {
    if let Some(cut) = plan.experiment.slicing() {
        return sliced::measure(plan, store, testbeds, runnable, slots, (session, cut));
    }
    let mut progress = Progress::new(slots.len(), plan.experiment.runs, plan.whole.clone());
    let mut failures = vec![0; runnable.len()];
    let mut nearness = nearness(&plan.experiment);
    for slot in slots {
        if plan.stop.load(Ordering::Acquire) {
            progress.say("interrupted: reporting what was measured");
            break;
        }
        let (progress, failures, nearness) = (&mut progress, &mut failures, &mut nearness);
        let mut runs = Runs { plan, store, testbeds, progress, failures, nearness, session };
        if !runs.whole(slot, runnable[slot.configuration])? {
            break;
        }
    }
    progress.finish();
    Ok(())
}

/// Runs measured one by one.
struct Runs<'a, 'p> {
    plan: &'a CampaignSpec<'p>,
    store: &'a Store,
    testbeds: &'a mut Testbeds,
    progress: &'a mut Progress,
    /// Failures in a row, by configuration.
    failures: &'a mut [usize],
    nearness: &'a mut Nearness<'static>,
    session: usize,
}

/// What having CPUs near may cost a campaign: as long again as its runs take.
fn nearness(experiment: &Experiment) -> Nearness<'static> {
    Nearness::new(experiment.length())
}

/// Whether a run is of several CPUs of this machine, and short enough to be measured again.
fn is_of_near_cpus(experiment: &Experiment, configuration: &Configuration) -> bool {
    let several = matches!(configuration.topology(), Topology::Netns | Topology::Gateways | Topology::Relay);
    several && !experiment.method.is_search()
}

impl Runs<'_, '_> {
    /// One run, on disk; `false` where an interrupt cut it.
    fn whole(&mut self, slot: &PlannedRun, configuration: &Configuration) -> Result<bool, LabError> {
        let (plan, name, progress) = (self.plan, &configuration.name, &mut *self.progress);
        progress.begin(slot, name);
        let mut started_unix_ms = machine::unix_ms();
        // What this machine lacks stays lacking; another host may be back by the next block.
        let elsewhere = configuration.topology() == Topology::Ssh;
        let failures = &mut self.failures[slot.configuration];
        let outcome = if elsewhere || *failures < FAILURES_IN_A_ROW {
            let testbeds = &mut *self.testbeds;
            let prepare = || {
                started_unix_ms = machine::unix_ms();
                testbeds.prepare(configuration)
            };
            let run = |prepared: &mut Box<dyn Prepared>| {
                one(plan, prepared.as_mut(), configuration, slot.seed, &|line| progress.say(line))
                    .and_then(possible)
            };
            let stays = || plan.stop.load(Ordering::Acquire);
            let say = |line: String| progress.say(&format!("{name}: {line}"));
            let mut unmeasured = Nearness::unmeasured();
            let measures = is_of_near_cpus(&plan.experiment, configuration);
            let nearness = if measures { &mut *self.nearness } else { &mut unmeasured };
            nearness.run(prepare, run, stays, say).map(|(sample, near)| with(sample, near))
        } else {
            Err(LabError::new(format!("not tried: it failed {FAILURES_IN_A_ROW} times in a row")))
        };
        if plan.experiment.method.is_search() && outcome.is_err() && plan.stop.load(Ordering::Acquire) {
            progress.say("interrupted: the search under way is not kept; reporting what was measured");
            return Ok(false);
        }
        *failures = if outcome.is_ok() { 0 } else { *failures + 1 };
        let said = keep(plan, self.store, name, slot, (self.session, started_unix_ms), outcome)?;
        progress.end(slot, name, &said);
        Ok(true)
    }
}

/// The sample with how near its CPUs were.
fn with(mut sample: Sample, near: Near) -> Sample {
    let again = (near.again > 0).then_some(f64::from(near.again));
    for (name, value) in [(Near::ROUND_TRIP, near.round_trip_ns), (Near::AGAIN, again)] {
        sample.metrics.extend(value.map(|value| (name.to_owned(), value)));
    }
    sample
}

/// Puts a run on disk; what is said of it.
fn keep(
    plan: &CampaignSpec<'_>,
    store: &Store,
    name: &str,
    slot: &PlannedRun,
    (session, started_unix_ms): (usize, u64),
    outcome: Result<Sample, LabError>,
) -> Result<String, LabError> {
    let metric = &plan.experiment.metric;
    let said = match &outcome {
        Ok(sample) => metric.of(sample).map_or("measured".into(), |f| format::with_unit(metric, f)),
        Err(e) => format!("failed: {e}"),
    };
    let (sample, error, misbehaviour) = match outcome {
        Ok(mut sample) => {
            // a testbed that tells of none had none
            sample.fallbacks.get_or_insert_default();
            (Some(sample), None, None)
        }
        Err(e) => (None, Some(e.said), e.misbehaviour),
    };
    let PlannedRun { block, order, seed, .. } = *slot;
    let format = store::FORMAT;
    store.append(
        name,
        metric,
        &Run { format, block, order, seed, session, started_unix_ms, sample, error, misbehaviour },
    )?;
    Ok(said)
}

/// A sample no reader would take is a failed run, not a campaign nobody can read.
fn possible(sample: Sample) -> Result<Sample, LabError> {
    match store::read::impossible(&sample) {
        None => Ok(sample),
        Some(why) => {
            Err(LabError::new(format!("sample refused: {why}; the testbed that measured it is at fault")))
        }
    }
}

fn one(
    plan: &CampaignSpec<'_>,
    prepared: &mut dyn Prepared,
    configuration: &Configuration,
    seed: u64,
    say: &dyn Fn(&str),
) -> Result<Sample, LabError> {
    let e = &plan.experiment;
    let [warm_up, window] = [e.warm_up_ms, e.window_ms].map(Duration::from_millis);
    let run = method::Run { configuration, method: &e.method, warm_up, window, seed, stop: plan.stop, say };
    method::run(prepared, &run)
}
