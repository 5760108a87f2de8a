//! Runs in slices: what is compared stands ready side by side and is measured in turn, a few milliseconds each.
//!
//! ```text
//! block, group     prepare a b c ─► [a b c] [c a b] [b a c] … ─► append a, b, c ─► drop all
//!                                   round 0 round 1 round 2
//! ```
//!
//! Promises: what slows the machine for a moment touches all that are compared; nothing but the one measured
//! takes processor time; a group is on disk before the next begins, and is measured again whole when a crash
//! cut it. A configuration that fails leaves its group, which goes on. Runs of other topologies are whole.

use std::sync::atomic::Ordering;

use super::{CampaignSpec, FAILURES_IN_A_ROW, Runs, Testbeds, keep, nearness, possible};
use crate::experiment::{Experiment, Slicing};
use crate::machine;
use crate::model::{Configuration, LabError, Prepared, Sample, Topology, Trial, slices};
use crate::progress::Progress;
use crate::store::Store;
use weir_stats::schedule::{PlannedRun, rounds};

pub fn measure(
    plan: &CampaignSpec<'_>,
    store: &Store,
    testbeds: &mut Testbeds,
    runnable: &[&Configuration],
    slots: &[PlannedRun],
    (session, cut): (usize, Slicing),
) -> Result<(), LabError> {
    let mut progress = Progress::new(slots.len(), plan.experiment.runs, plan.whole.clone());
    let mut failures = vec![0; runnable.len()];
    let mut nearness = nearness(&plan.experiment);
    for together in together(&plan.experiment, runnable, slots) {
        if plan.stop.load(Ordering::Acquire) {
            progress.say("interrupted: reporting what was measured");
            break;
        }
        if together.iter().any(|s| runnable[s.configuration].topology() != Topology::Memory) {
            let (progress, failures, nearness) = (&mut progress, &mut failures, &mut nearness);
            let mut runs = Runs { plan, store, testbeds, progress, failures, nearness, session };
            for slot in together {
                runs.whole(slot, runnable[slot.configuration])?;
            }
            continue;
        }
        let started_unix_ms = machine::unix_ms();
        let mut seats: Vec<Seat<'_>> = Vec::with_capacity(together.len());
        for slot in together {
            let configuration = runnable[slot.configuration];
            progress.begin(slot, &configuration.name);
            let prepared = if failures[slot.configuration] < FAILURES_IN_A_ROW {
                testbeds.prepare(configuration)
            } else {
                Err(LabError::new(format!("not tried: it failed {FAILURES_IN_A_ROW} times in a row")))
            };
            seats.push(Seat { configuration, prepared, slices: Vec::with_capacity(cut.slices) });
        }
        for (round, order) in rounds(seats.len(), cut.slices, together[0].seed).into_iter().enumerate() {
            progress.round(&together[0], seats.len(), (round, cut.slices));
            for (place, seat) in order.into_iter().enumerate() {
                seats[seat].slice(place, cut, together[0].seed);
            }
        }
        for (slot, seat) in together.iter().zip(seats) {
            let name = &seat.configuration.name;
            let outcome = seat.prepared.and_then(|_| slices::sum(seat.slices)).and_then(possible);
            let failed = &mut failures[slot.configuration];
            *failed = if outcome.is_ok() { 0 } else { *failed + 1 };
            let said = keep(plan, store, name, slot, (session, started_unix_ms), outcome)?;
            progress.end(slot, name, &said);
        }
    }
    progress.finish();
    Ok(())
}

/// Slots of one block and group, in their order.
pub fn together<'a>(
    experiment: &Experiment,
    runnable: &[&Configuration],
    slots: &'a [PlannedRun],
) -> impl Iterator<Item = &'a [PlannedRun]> {
    let groups = experiment.groups(runnable);
    let of: Vec<usize> = (0..runnable.len())
        .map(|c| groups.iter().position(|g| g.contains(&c)).unwrap_or(usize::MAX))
        .collect();
    slots.chunk_by(move |a, b| a.block == b.block && of[a.configuration] == of[b.configuration])
}

/// One configuration of a group.
struct Seat<'a> {
    configuration: &'a Configuration,
    /// The error that ended its run, if one did.
    prepared: Result<Box<dyn Prepared>, LabError>,
    slices: Vec<(usize, Sample)>,
}

impl Seat<'_> {
    fn slice(&mut self, place: usize, cut: Slicing, seed: u64) {
        let Ok(prepared) = &mut self.prepared else { return };
        let (rate, warm_up, window) = (self.configuration.workload.rate, cut.warm_up, cut.window);
        match prepared.slice(&Trial { rate, warm_up, window, seed }) {
            Ok(sample) => self.slices.push((place, sample)),
            Err(e) => self.prepared = Err(e),
        }
    }
}
