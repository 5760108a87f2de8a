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
use crate::model::{Configuration, LabError, Scope, Trial};
use crate::profile::profiled::path;
use crate::profile::session::{FREQUENCY_HZ, Focus, Session, target};
use crate::profile::{Profile, folded};
use crate::progress::Progress;
use crate::store::Store;
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
        let (header, profile) = one(plan, testbeds, configuration, slot.seed).unwrap_or_else(|e| {
            let notes = vec![format!("not profiled: {e}")];
            (folded::Header { notes, ..folded::Header::default() }, Profile::default())
        });
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

fn one(
    plan: &CampaignSpec<'_>,
    testbeds: &mut Testbeds,
    configuration: &Configuration,
    seed: u64,
) -> Result<(folded::Header, Profile), LabError> {
    let mut prepared = testbeds.prepare(configuration)?;
    let scope = prepared
        .scope()
        .ok_or_else(|| LabError::new("its topology has nothing on this machine to sample".into()))?;
    let focus = match scope {
        Scope::OwnThreads => Focus::Process(std::process::id()),
        Scope::Cpus(_) => Focus::Family,
    };
    let [warm_up, window] =
        [plan.experiment.warm_up_ms, plan.experiment.window_ms].map(Duration::from_millis);
    let seconds = (warm_up + window).as_secs_f64();
    let session = Session::start(&target(&scope), focus, FREQUENCY_HZ, seconds)?;
    let rate = configuration.workload.rate;
    let sample = prepared.run(&Trial { rate, warm_up, window, seed })?;
    let (from, to) = sample
        .window_ns
        .ok_or_else(|| LabError::new("its topology did not say when its window was".into()))?;
    let (header, profile) = session.finish(from..to);
    let (seconds, packets, pps) = (sample.seconds, sample.ledger.delivered, sample.pps);
    Ok((folded::Header { seconds, packets, pps, ..header }, profile))
}
