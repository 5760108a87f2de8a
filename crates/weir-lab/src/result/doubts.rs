//! Which warnings a campaign earned.

use super::{Outcome, Results};
use crate::manifest::Manifest;
use crate::model::Subject;
use crate::stats::warnings::{self, Warning};

pub fn of(manifest: &Manifest, results: &Results) -> Vec<Warning> {
    let mut found = Vec::new();
    if !manifest.build.optimised() {
        found.push(Warning::NotOptimised);
    }
    if results.quick {
        found.push(Warning::SmokeValues);
    }
    if results.runs_missing > 0 {
        found.push(Warning::Interrupted { missing: results.runs_missing, planned: results.runs_planned });
    }
    for skipped in &results.skipped {
        found.push(Warning::Skipped {
            configuration: skipped.configuration.clone(),
            reason: skipped.reason.clone(),
        });
    }
    for outcome in &results.configurations {
        of_outcome(outcome, &mut found);
    }
    found
}

fn of_outcome(outcome: &Outcome, found: &mut Vec<Warning>) {
    let configuration = outcome.configuration.name.clone();
    if let Some(first) = outcome.failures.first() {
        let (runs, first) = (outcome.failures.len(), first.clone());
        found.push(Warning::Failed { configuration: configuration.clone(), runs, first });
    }
    found.extend(warnings::of_figures(&configuration, &outcome.figures, &outcome.order));
    if let Some(share) = outcome.ceiling_share.filter(|&s| s >= warnings::CEILING_SHARE) {
        let percent = share * 100.0;
        found.push(Warning::GeneratorIsTheLimit { configuration: configuration.clone(), percent });
    }
    if outcome.unaccounted != 0 {
        let packets = outcome.unaccounted;
        found.push(Warning::Unaccounted {
            configuration: configuration.clone(),
            packets,
            sent: outcome.ledger.sent,
        });
    }
    if outcome.reordered > 0 {
        let packets = outcome.reordered;
        found.push(Warning::Reordered { configuration: configuration.clone(), packets });
    }
    if outcome.duplicated > 0 {
        let packets = outcome.duplicated;
        found.push(Warning::Duplicated { configuration: configuration.clone(), packets });
    }
    if outcome.configuration.subject == Subject::Ceiling {
        // what generator and sink say of themselves, their subjects say too
        return;
    }
    for note in &outcome.notes {
        found.push(Warning::Note { configuration: configuration.clone(), note: note.clone() });
    }
}
