//! Profiled runs: after the measured ones, interleaved like them, and never part of a statistic.
//!
//! ```text
//! DIR/raw/<configuration>.<n>.folded    how it was sampled, then its stacks: crate::profile::folded
//! ```
//!
//! Promises: a profile holds the window alone; a run that could not be profiled leaves a file that says why.
//! Baselines have no SUT and controls the same as their originals: neither is profiled.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{CampaignSpec, Testbeds};
use crate::experiment::Experiment;
use crate::format;
use crate::model::relay::Load;
use crate::model::{Configuration, LabError, Prepared, Sample, Scope, Trial};
use crate::profile::profiled::path;
use crate::profile::session::{FREQUENCY_HZ, Focus, Session, target};
use crate::profile::{Profile, folded};
use crate::progress::Progress;
use crate::store::Store;
use weir_io::perf_event::Target;
use weir_stats::schedule::{PlannedRun, schedule};

/// Apart from the seeds of the measured runs, so that their order does not repeat.
const SEED_PART: u64 = 0x70_726f_6669_6c65;

/// Profiled runs without a file, in their order.
pub fn left(dir: &Path, experiment: &Experiment, runnable: &[&Configuration], seed: u64) -> Vec<PlannedRun> {
    let slots = schedule(runnable.len(), experiment.profile, seed ^ SEED_PART).into_iter();
    slots
        .filter(|s| worth_it(experiment, runnable[s.configuration]))
        .filter(|s| !path(dir, &runnable[s.configuration].name, s.block + 1).exists())
        .collect()
}

fn worth_it(experiment: &Experiment, configuration: &Configuration) -> bool {
    let control = experiment.controls.iter().any(|(_, again)| *again == configuration.name);
    // What runs under simulation takes another's time.
    let simulated = configuration.relay().is_some_and(|relay| relay.load == Load::SimulatedCaches);
    !configuration.is_baseline() && !control && !simulated
}

pub fn profile(
    plan: &CampaignSpec<'_>,
    store: &Store,
    testbeds: &mut Testbeds,
    runnable: &[&Configuration],
) -> Result<(), LabError> {
    let slots = left(plan.dir, &plan.experiment, runnable, plan.seed);
    if slots.is_empty() {
        return Ok(());
    }
    let mut progress = Progress::new(slots.len(), plan.experiment.profile, plan.whole.clone());
    for slot in slots {
        if plan.stop.load(Ordering::Acquire) {
            progress.say("interrupted: profiles are missing");
            break;
        }
        let configuration = runnable[slot.configuration];
        let name = format!("profile of {}", configuration.name);
        progress.begin(&slot, &name);
        let (header, profile) = one(plan, testbeds, configuration, slot.seed).unwrap_or_else(not_profiled);
        let file = path(Path::new(""), &configuration.name, slot.block + 1);
        store.write(&file.to_string_lossy(), &folded::write(&header, &profile)?)?;
        progress.end(&slot, &name, &said(&header));
    }
    progress.finish();
    Ok(())
}

fn said(header: &folded::Header) -> String {
    match header.samples {
        0 => header.notes.join("; "),
        n => format!(
            "{n} samples of {}, {} Mpps meanwhile, {} lost",
            header.event,
            format::digits(header.pps / 1e6),
            header.lost
        ),
    }
}

/// A profile that only says why there is none.
fn not_profiled(error: LabError) -> (folded::Header, Profile) {
    let notes = vec![format!("not profiled: {error}")];
    (folded::Header { notes, ..folded::Header::default() }, Profile::default())
}

/// The rate of a run stands also where what was sampled in it could not be had.
fn one(
    plan: &CampaignSpec<'_>,
    testbeds: &mut Testbeds,
    configuration: &Configuration,
    seed: u64,
) -> Result<(folded::Header, Profile), LabError> {
    let mut prepared = testbeds.prepare(configuration)?;
    let scope = prepared.scope().ok_or_else(|| LabError::new("its topology has nothing to sample".into()))?;
    let [warm_up, window] =
        [plan.experiment.warm_up_ms, plan.experiment.window_ms].map(Duration::from_millis);
    let sampling = Sampling::start(prepared.as_mut(), &scope, warm_up + window)?;
    let rate = configuration.workload.rate;
    let sample = prepared.run(&Trial { rate, warm_up, window, seed })?;
    let (header, profile) = sampling.finish(prepared.as_mut(), &sample).unwrap_or_else(not_profiled);
    let (seconds, packets, pps) = (sample.seconds, sample.ledger.delivered, sample.pps);
    Ok((folded::Header { seconds, packets, pps, ..header }, profile))
}

/// Who samples: the lab itself, or the agent on the SUT's host.
enum Sampling {
    Here(Box<Session>),
    Far,
}

impl Sampling {
    fn start(prepared: &mut dyn Prepared, scope: &Scope, expected: Duration) -> Result<Sampling, LabError> {
        let Some(target) = target(scope) else {
            return prepared.start_sampling(FREQUENCY_HZ, expected).map(|()| Sampling::Far);
        };
        let focus = match target {
            Target::Threads(_) => Focus::Process(std::process::id()),
            Target::Cpus(_) => Focus::Family,
        };
        Session::start(&target, focus, FREQUENCY_HZ, expected.as_secs_f64())
            .map(|session| Sampling::Here(Box::new(session)))
    }

    /// What was seen in the window of `sample`, which was the last one.
    fn finish(
        self,
        prepared: &mut dyn Prepared,
        sample: &Sample,
    ) -> Result<(folded::Header, Profile), LabError> {
        match self {
            Sampling::Here(session) => {
                let (from, to) = sample
                    .window_ns
                    .ok_or_else(|| LabError::new("its topology did not say when its window was".into()))?;
                Ok(session.finish(from..to))
            }
            Sampling::Far => folded::read("profile", &prepared.finish_sampling()?),
        }
    }
}
