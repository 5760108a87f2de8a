//! An interrupted campaign taken up again: the slots of its manifest that have no record yet, in their
//! order and with their seeds.
//!
//! Promises: nothing recorded is measured again or written over (a failed run only when asked, its record
//! kept; runs in slices with all that were measured in turn with them, if one of these is missing); the
//! manifest says when each session began, what had changed, and what a crash cut off. Refuses: to go on under another build or on another machine unless forced, when what could run cannot any more,
//! when the order does not follow from the seed, while another process writes to the folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::{
    CampaignSpec, Done, Testbeds, builds, machines, measure, other_machines, others, profiled, skipped,
    sliced, slots,
};
use crate::experiment::Experiment;
use crate::machine;
use crate::machine::Machine;
use crate::manifest::{Manifest, Session};
use crate::model::{Configuration, LabError};
use crate::report;
use crate::store::{Evidence, Store, read_runs, rebuild_plain_files};
use crate::testbed::programs;
use weir_stats::schedule::PlannedRun;

/// Which campaign to take up, and how.
pub struct Resume<'a> {
    pub dir: &'a Path,
    /// The experiment as its file says it today; `None` takes the manifest's.
    pub experiment: Option<Experiment>,
    /// Go on although build or machine differ.
    pub force: bool,
    /// Measure failed runs again.
    pub retry_failed: bool,
    pub argv: Vec<String>,
    /// Once set, the run under way is the last.
    pub stop: &'a AtomicBool,
}

pub fn resume(wish: Resume<'_>) -> Result<Done, LabError> {
    let store = Store::open(wish.dir)?;
    let mut manifest = Manifest::read(wish.dir)?;
    if let Some(experiment) = &wish.experiment {
        same_experiment(wish.dir, &manifest.experiment, experiment)?;
    }
    let mut evidence = read_runs(wish.dir, &manifest)?;
    let slots = left(&manifest, &evidence, wish.retry_failed)
        .map_err(|why| LabError::new(format!("{}: {why}", wish.dir.join("manifest.json").display())))?;
    let profiles = profiled::left(wish.dir, &manifest.experiment, &runnable(&manifest), manifest.seed);
    if slots.is_empty() && profiles.is_empty() {
        eprintln!("{}: every run is recorded; deriving the report", wish.dir.display());
        drop(store);
        return Ok(Done { results: report::write(wish.dir)?, moved: None });
    }
    let mut testbeds = Testbeds::of(&manifest.experiment);
    still_runnable(&manifest, &mut testbeds)?;
    let changes = changes(wish.dir, &manifest, &mut testbeds, wish.force)?;
    manifest.resumed.push(Session {
        started_unix_ms: machine::unix_ms(),
        argv: wish.argv.clone(),
        runs_before: evidence.runs.values().map(Vec::len).sum(),
        changes,
        left_out: evidence.left_out().collect(),
    });
    // what was cut off is on record before it is cut off
    store.write("manifest.json", &manifest.text()?)?;
    store.mend(&evidence)?;
    let again: BTreeSet<usize> = slots.iter().map(|s| s.order).collect();
    evidence.runs.values_mut().for_each(|runs| runs.retain(|r| !again.contains(&r.order)));
    rebuild_plain_files(wish.dir, &manifest.experiment.metric, &evidence.runs)?;
    let session = manifest.resumed.len();
    let plan = CampaignSpec {
        experiment: manifest.experiment.clone(),
        seed: manifest.seed,
        dir: wish.dir,
        argv: wish.argv,
        repeats: None,
        stop: wish.stop,
        whole: None,
    };
    measure(&plan, &store, &mut testbeds, &runnable(&manifest), &slots, session)?;
    profiled::profile(&plan, &store, &mut testbeds, &runnable(&manifest))?;
    drop((testbeds, store));
    Ok(Done { results: report::write(wish.dir)?, moved: None })
}

fn runnable(manifest: &Manifest) -> Vec<&Configuration> {
    let all = manifest.experiment.configurations.iter().map(|p| &p.configuration);
    all.filter(|c| !manifest.skipped.contains_key(&c.name)).collect()
}

/// Slots without a record. The schedule is computed again; that it is the one recorded is checked.
fn left(
    manifest: &Manifest,
    evidence: &Evidence,
    retry_failed: bool,
) -> Result<Vec<PlannedRun>, OtherCampaign> {
    let runnable = runnable(manifest);
    let slots = slots(&manifest.experiment, &runnable, manifest.seed);
    let recorded = manifest.order.iter().flatten();
    if !slots.iter().map(|s| &runnable[s.configuration].name).eq(recorded) {
        return Err(OtherCampaign::Order { seed: manifest.seed });
    }
    let runs = || evidence.runs.values().flatten();
    if let Some(run) = runs().find(|r| slots.get(r.order).is_some_and(|s| s.seed != r.seed)) {
        return Err(OtherCampaign::Run { order: run.order, got: run.seed, expected: slots[run.order].seed });
    }
    let kept = runs().filter(|r| !retry_failed || r.error.is_none());
    let mut done: BTreeMap<usize, usize> = kept.map(|r| (r.order, r.session)).collect();
    if manifest.experiment.slicing().is_some() {
        // what was measured in turn with a run that is missing is no pair of the one to come
        for together in sliced::together(&manifest.experiment, &runnable, &slots) {
            let session = done.get(&together[0].order).copied();
            if session.is_none() || together.iter().any(|s| done.get(&s.order).copied() != session) {
                together.iter().for_each(|s| _ = done.remove(&s.order));
            }
        }
    }
    Ok(slots.into_iter().filter(|s| !done.contains_key(&s.order)).collect())
}

/// Evidence that is not of the schedule its manifest stands for.
enum OtherCampaign {
    Order { seed: u64 },
    Run { order: usize, got: u64, expected: u64 },
}

impl fmt::Display for OtherCampaign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OtherCampaign::Order { seed } => write!(
                f,
                "its order does not follow from its seed {seed}: resume with the version that began it, or \
                 `weir-lab run --again`"
            ),
            OtherCampaign::Run { order, got, expected } => write!(
                f,
                "run {order} has seed {got}, expected {expected}: restore manifest.json and raw/ of one campaign"
            ),
        }
    }
}

fn same_experiment(dir: &Path, then: &Experiment, now: &Experiment) -> Result<(), LabError> {
    let fields = |e: &Experiment| serde_json::to_value(e).unwrap_or_default();
    let (then, now) = (fields(then), fields(now));
    let (Some(then), Some(now)) = (then.as_object(), now.as_object()) else { return Ok(()) };
    let keys: BTreeSet<&String> = then.keys().chain(now.keys()).collect();
    let differ: Vec<&str> =
        keys.into_iter().filter(|k| now.get(*k) != then.get(*k)).map(String::as_str).collect();
    if differ.is_empty() {
        return Ok(());
    }
    Err(LabError::new(format!(
        "{}: its experiment differs from the file's in {}; `weir-lab run --resume {}` goes on as recorded, another --out begins anew",
        dir.display(),
        differ.join(", "),
        dir.display()
    )))
}

/// What differs from the campaign's beginning, when it is accepted.
fn changes(
    dir: &Path,
    manifest: &Manifest,
    testbeds: &mut Testbeds,
    force: bool,
) -> Result<Vec<String>, LabError> {
    let mut changes = builds(&manifest.build, &programs::took_part(&manifest.experiment));
    changes.extend(machines(&manifest.machine, &Machine::observe()));
    changes.extend(other_machines(&manifest.machines, &others(testbeds)));
    if changes.is_empty() || force {
        return Ok(changes);
    }
    Err(LabError::new(format!(
        "{}: not what the campaign began on: {}; restore it, or --force to go on (the report will say so)",
        dir.display(),
        changes.join("; ")
    )))
}

/// A configuration that could run and now cannot would fail to the end of the campaign.
fn still_runnable(manifest: &Manifest, testbeds: &mut Testbeds) -> Result<(), LabError> {
    let lost = skipped(&manifest.experiment, testbeds);
    match lost.iter().find(|(name, _)| !manifest.skipped.contains_key(*name)) {
        None => Ok(()),
        Some((name, why)) => {
            Err(LabError::new(format!("{name}: ran before the interrupt and cannot now: {why}")))
        }
    }
}
