//! Which warnings a campaign earned.

use std::collections::{BTreeMap, BTreeSet};

use super::searched::GoalOutcome;
use super::{Noted, Outcome, Results};
use crate::manifest::Manifest;
use crate::model::Subject;
use crate::result::search_doubt::SearchDoubt;
use crate::result::warnings::{self, Warning};
use crate::store::Evidence;
use weir_stats::search::goal;
use weir_stats::{Verdict, defects};

pub fn of(manifest: &Manifest, results: &Results) -> Vec<Warning> {
    let mut found = Vec::new();
    if !manifest.build.optimised() {
        found.push(Warning::NotOptimised);
    }
    if let Some(priority) = manifest.machine.priority.filter(|p| !p.is_usual()) {
        found.push(Warning::Priority { priority: priority.to_string() });
    }
    if results.quick {
        found.push(Warning::SmokeValues);
    }
    if results.runs_missing > 0 {
        found.push(Warning::Interrupted { missing: results.runs_missing, planned: results.runs_planned });
    }
    let skipped = results.skipped.iter().map(|s| (s.reason.clone(), s.configuration.clone()));
    for (reason, configurations) in grouped(skipped) {
        found.push(Warning::Skipped { configurations, reason });
    }
    let few = results.configurations.iter().filter_map(|o| {
        let runs = o.figures.len();
        (runs > 0 && runs < warnings::FEW_RUNS).then(|| (runs, o.configuration.name.clone()))
    });
    for (runs, configurations) in grouped(few) {
        found.push(Warning::FewRuns { configurations, runs });
    }
    let noisy: Vec<(f64, String)> = results
        .configurations
        .iter()
        .filter_map(|o| Some((o.summary?.variation()? * 100.0, o.configuration.name.clone())))
        .filter(|(percent, _)| *percent > warnings::NOISY_PERCENT)
        .collect();
    if !noisy.is_empty() {
        let percent = noisy.iter().map(|(p, _)| *p).fold(0.0, f64::max);
        let configurations = noisy.into_iter().map(|(_, name)| name).collect();
        found.push(Warning::Noisy { configurations, percent });
    }
    let sets: Vec<(&[f64], &[usize])> =
        results.configurations.iter().map(|o| (o.figures.as_slice(), o.order.as_slice())).collect();
    // runs in slices are measured side by side: they resemble each other by design
    if manifest.experiment.slicing().is_none() {
        found.extend(defects::of_campaign(&sets).map(Warning::Figures));
    }
    let figures = |name: &str| results.outcome(name).map_or(&[][..], |o| o.figures.as_slice());
    let unequal = results.comparisons.iter().filter_map(|c| {
        defects::of_pair((&c.reference, figures(&c.reference)), (&c.other, figures(&c.other)))
    });
    found.extend(unequal.map(Warning::Figures));
    let differs = results.controls.iter().filter(|c| c.verdict == Verdict::Different);
    found.extend(differs.filter_map(|c| {
        let (configuration, percent) = (c.reference.clone(), (c.ratio?.ratio - 1.0) * 100.0);
        Some(Warning::ControlDiffers { configuration, percent, p: c.p_holm? })
    }));
    for outcome in &results.configurations {
        of_outcome(outcome, &mut found);
    }
    let fell_back = |noted: &&Noted| results.configurations.iter().any(|o| o.fallbacks.contains(&noted.note));
    for noted in results.notes.iter().filter(fell_back) {
        let (configurations, note) = (noted.configurations.clone(), noted.note.clone());
        found.push(Warning::Fallback { configurations, note });
    }
    found
}

/// What interrupts left behind: sessions, runs cut short, runs measured again.
pub fn of_sessions(manifest: &Manifest, evidence: &Evidence) -> Vec<Warning> {
    let cut = manifest.resumed.iter().flat_map(|s| s.left_out.iter().cloned()).chain(evidence.left_out());
    let mut found: Vec<Warning> = cut.map(|left_out| Warning::CutShort { left_out }).collect();
    if !manifest.resumed.is_empty() {
        let sessions = manifest.resumed.len() + 1;
        found.push(Warning::Resumed { sessions, split_blocks: split_blocks(evidence) });
    }
    let mut changes: Vec<String> = manifest.resumed.iter().flat_map(|s| s.changes.iter().cloned()).collect();
    changes.dedup();
    if !changes.is_empty() {
        found.push(Warning::ChangedBetweenSessions { changes });
    }
    let again = by_configuration(&evidence.repeated);
    found.extend(again.map(|(configuration, runs)| Warning::MeasuredAgain { configuration, runs }));
    let together = by_configuration(&evidence.with_others);
    found.extend(together.map(|(configuration, runs)| Warning::MeasuredTogether { configuration, runs }));
    found
}

fn by_configuration(runs: &[(String, usize)]) -> impl Iterator<Item = (String, Vec<usize>)> {
    let mut all: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (configuration, order) in runs {
        all.entry(configuration.clone()).or_default().push(*order);
    }
    all.into_iter()
}

/// Blocks, from 1, whose runs are of more than one session.
fn split_blocks(evidence: &Evidence) -> Vec<usize> {
    let mut sessions: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for run in evidence.runs.values().flatten() {
        sessions.entry(run.block).or_default().insert(run.session);
    }
    sessions.into_iter().filter(|(_, s)| s.len() > 1).map(|(block, _)| block + 1).collect()
}

/// What testbeds said, each sentence once. What generator and sink say of themselves, the subjects above them
/// say too.
pub fn notes(outcomes: &[Outcome]) -> Vec<Noted> {
    let subjects = outcomes.iter().filter(|o| o.configuration.subject != Subject::Ceiling);
    let said = subjects.flat_map(|o| o.notes.iter().map(|n| (n.clone(), o.configuration.name.clone())));
    grouped(said).into_iter().map(|(note, configurations)| Noted { note, configurations }).collect()
}

/// The beginning of a long error; a subject's whole last words are in the raw file.
fn shortened(error: &str) -> String {
    const SHOWN: usize = 240;
    let error = error.trim_end_matches('.');
    match error.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{}… (whole in the raw file)", &error[..at]),
        None => error.into(),
    }
}

/// Configurations of which the same is said, under what is said, in the order first said.
fn grouped<K: PartialEq>(said: impl Iterator<Item = (K, String)>) -> Vec<(K, Vec<String>)> {
    let mut groups: Vec<(K, Vec<String>)> = Vec::new();
    for (key, name) in said {
        match groups.iter_mut().find(|(k, _)| *k == key) {
            Some((_, names)) => names.push(name),
            None => groups.push((key, vec![name])),
        }
    }
    groups
}

fn of_outcome(outcome: &Outcome, found: &mut Vec<Warning>) {
    let configuration = outcome.configuration.name.clone();
    let (subjects, others): (Vec<&String>, Vec<&String>) =
        outcome.failures.iter().partition(|error| outcome.misbehaved.contains(error));
    if let Some(first) = subjects.first() {
        let (runs, first) = (subjects.len(), shortened(first));
        found.push(Warning::Misbehaved { configuration: configuration.clone(), runs, first });
    }
    if let Some(first) = others.first() {
        let (runs, first) = (others.len(), shortened(first));
        found.push(Warning::Failed { configuration: configuration.clone(), runs, first });
    }
    found.extend(
        defects::of_runs(&configuration, &outcome.figures, &outcome.order).into_iter().map(Warning::Figures),
    );
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
    if let Some(s) = outcome.searched.as_ref().filter(|s| s.held_up > 0) {
        let of = (s.trials.mean * s.trials.n as f64).round() as usize;
        let doubt = SearchDoubt::SourceHeldUp { configuration: configuration.clone(), trials: s.held_up, of };
        found.push(Warning::Search(doubt));
    }
    for goal in outcome.searched.iter().flat_map(|s| &s.goals) {
        of_goal(&configuration, goal, found);
    }
    if outcome.reordered > 0 {
        let packets = outcome.reordered;
        found.push(Warning::Reordered { configuration: configuration.clone(), packets });
    }
    if outcome.duplicated > 0 {
        let packets = outcome.duplicated;
        found.push(Warning::Duplicated { configuration: configuration.clone(), packets });
    }
}

fn of_goal(configuration: &str, outcome: &GoalOutcome, found: &mut Vec<Warning>) {
    let (name, of) = (outcome.name.to_uppercase(), outcome.runs());
    let irregular = outcome.verdicts.iter().filter(|(v, _)| *v != goal::Verdict::Regular.sentence());
    found.extend(irregular.map(|(verdict, &runs)| {
        let (configuration, goal, verdict) = (configuration.into(), name.clone(), verdict.clone());
        Warning::Search(SearchDoubt::SearchIrregular { configuration, goal, runs, of, verdict })
    }));
    if let Some(first) = outcome.first_oddity.clone() {
        let configuration = configuration.into();
        let doubt = SearchDoubt::SearchOdd { configuration, goal: name, runs: outcome.odd, of, first };
        found.push(Warning::Search(doubt));
    }
}
