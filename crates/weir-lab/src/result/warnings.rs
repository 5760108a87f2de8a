//! Which warnings a campaign earned, each with what to do about it.

use std::collections::{BTreeMap, BTreeSet};

use super::searched::GoalOutcome;
use super::{Outcome, Results};
use crate::diagnostic::{Diagnostic, Kind};
use crate::machine::nearness::{self, Near};
use crate::manifest::Manifest;
use crate::model::Sample;
use crate::store::{Evidence, Runs};
use weir_stats::Verdict;
use weir_stats::defects::{self, Defect};
use weir_stats::search::goal;

/// Below five runs the exact U test cannot reach 1 %.
pub const FEW_RUNS: usize = 5;
/// A SUT that reaches this share of what generator and receiver do alone may be held back by them.
pub const BASELINE_SHARE: f64 = 0.95;
/// Deviation above which a machine is called noisy: a shared virtual machine at rest shows 1–3 %.
pub const NOISY_PERCENT: f64 = 5.0;

/// Notes of a run that say that something better was refused. Committed runs of before samples recorded it are told by how
/// their testbeds worded it then; nothing new is.
pub fn fallbacks(sample: &Sample) -> Vec<String> {
    let worded = || sample.notes.iter().filter(|note| note.contains(" refused")).cloned().collect();
    sample.fallbacks.clone().unwrap_or_else(worded)
}

pub fn of(manifest: &Manifest, results: &Results) -> Vec<Diagnostic> {
    let mut found = of_campaign(manifest, results);
    let sets: Vec<(&[f64], &[usize])> =
        results.configurations.iter().map(|o| (o.values.as_slice(), o.order.as_slice())).collect();
    // runs in slices are measured side by side: they resemble each other by design
    if manifest.experiment.slicing().is_none() {
        found.extend(defects::of_campaign(&sets).as_ref().map(of_defect));
    }
    let values = |name: &str| results.outcome(name).map_or(&[][..], |o| o.values.as_slice());
    let unequal = results
        .comparisons
        .iter()
        .filter_map(|c| defects::of_pair((&c.reference, values(&c.reference)), (&c.other, values(&c.other))));
    found.extend(unequal.map(|defect| of_defect(&defect)));
    let differs = results.controls.iter().filter(|c| c.verdict == Verdict::Different);
    found.extend(differs.filter_map(|c| Some(of_control(&c.reference, c.ratio?.ratio, c.p_holm?))));
    for outcome in &results.configurations {
        of_outcome(outcome, &mut found);
    }
    let fell_back =
        |note: &&Diagnostic| results.configurations.iter().any(|o| o.fallbacks.contains(&note.finding));
    found.extend(results.notes.iter().filter(fell_back).map(|note| {
        let remedy = "take it into account, or use a device and a kernel that accept what was refused";
        Diagnostic::warning(Kind::Fallback, &note.subject, note.finding.clone(), remedy)
    }));
    found
}

/// What concerns a campaign as a whole, or several of its configurations alike.
fn of_campaign(manifest: &Manifest, results: &Results) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    if !manifest.build.optimised() {
        let said = "weir-lab was built without optimisation: its results say nothing about speed";
        found.push(whole(Kind::NotOptimised, said.into(), "build with `cargo build --release`"));
    }
    if let Some(priority) = manifest.machine.priority.filter(|p| !p.is_usual()) {
        let said = format!(
            "ran with another scheduling priority than programs have: a raised one keeps the kernel's own threads \
             from their packets, a lowered one waits for others ({priority})"
        );
        let remedy =
            "start it without `nice` or `chrt`, from a session of nice 0 (`cat /proc/self/autogroup`)";
        found.push(whole(Kind::Priority, said, remedy).with("priority", priority.to_string()));
    }
    if results.quick {
        let said = "smoke values (--quick) were used: the windows are too short for a verdict";
        found.push(whole(Kind::SmokeValues, said.into(), "run again without --quick"));
    }
    if results.runs_missing > 0 {
        let (missing, planned) = (results.runs_missing, results.runs_planned);
        let said = format!("interrupted: {missing} of {planned} runs were not measured");
        let remedy =
            "`weir-lab run --resume` with the campaign's folder measures them, or take the wider intervals";
        let warning = whole(Kind::Interrupted, said, remedy);
        found.push(warning.with("missing", missing).with("planned", planned));
    }
    let skipped = results.skipped.iter().map(|s| (s.reason.clone(), s.configuration.clone()));
    for (reason, configurations) in grouped(skipped) {
        let remedy = "`weir-lab doctor` says what this machine lacks";
        let warning =
            Diagnostic::warning(Kind::Skipped, &configurations, format!("skipped: {reason}"), remedy);
        found.push(warning.with("reason", reason));
    }
    let few = results.configurations.iter().filter_map(|o| {
        let runs = o.values.len();
        (runs > 0 && runs < FEW_RUNS).then(|| (runs, o.configuration.name.clone()))
    });
    for (runs, configurations) in grouped(few) {
        let said = format!("{runs} runs, fewer than {FEW_RUNS}");
        let warning =
            Diagnostic::warning(Kind::FewRuns, &configurations, said, "raise `runs`, or pass --runs");
        found.push(warning.with("runs", runs));
    }
    let noisy: Vec<(f64, String)> = results
        .configurations
        .iter()
        .filter_map(|o| Some((o.summary?.variation()? * 100.0, o.configuration.name.clone())))
        .filter(|(percent, _)| *percent > NOISY_PERCENT)
        .collect();
    if !noisy.is_empty() {
        let percent = noisy.iter().map(|(p, _)| *p).fold(0.0, f64::max);
        let configurations: Vec<String> = noisy.into_iter().map(|(_, name)| name).collect();
        let said = format!("runs deviate by up to {percent:.1} % of their mean");
        let remedy = "stop other work on the machine, or lengthen `window`";
        found.push(Diagnostic::warning(Kind::Noisy, &configurations, said, remedy).with("percent", percent));
    }
    found
}

/// A warning about a campaign as a whole.
fn whole(kind: Kind, finding: String, remedy: &str) -> Diagnostic {
    Diagnostic::warning(kind, &[], finding, remedy)
}

fn of_control(configuration: &str, ratio: f64, p: f64) -> Diagnostic {
    let percent = (ratio - 1.0) * 100.0;
    let said = format!(
        "measured twice a block, it differs from itself by {percent:+.1} % (p = {p:.4}); by chance that happens in \
         one campaign of twenty"
    );
    let remedy = "believe no difference of this size here; run again with more blocks, and look for what one run leaves \
                  to the next";
    let warning = Diagnostic::warning(Kind::ControlDiffers, &[configuration.into()], said, remedy);
    warning.with("percent", percent).with("p", p)
}

/// A defect of sets of runs, with its numbers.
fn of_defect(defect: &Defect) -> Diagnostic {
    let warning = |kind| Diagnostic::warning(kind, &defect.subjects(), defect.finding(), defect.remedy());
    match defect {
        Defect::Outlier { runs, percent, .. } => {
            warning(Kind::Outlier).with("runs", runs.clone()).with("percent", *percent)
        }
        Defect::Drift { p, rising, .. } => warning(Kind::Drift).with("p", *p).with("rising", *rising),
        Defect::Autocorrelation { p, correlation, .. } => {
            warning(Kind::Autocorrelation).with("p", *p).with("correlation", *correlation)
        }
        Defect::Bimodal { low, high, low_runs, runs, .. } => warning(Kind::Bimodal)
            .with("low", *low)
            .with("high", *high)
            .with("low_runs", *low_runs)
            .with("runs", *runs),
        Defect::UnequalSpread { p, ratio, .. } => {
            warning(Kind::UnequalSpread).with("p", *p).with("ratio", *ratio)
        }
    }
}

/// What interrupts left behind: sessions, runs cut short, runs measured again.
pub fn of_sessions(manifest: &Manifest, evidence: &Evidence) -> Vec<Diagnostic> {
    let cut = manifest.resumed.iter().flat_map(|s| s.left_out.iter().cloned()).chain(evidence.left_out());
    let mut found: Vec<Diagnostic> = cut
        .map(|left_out| whole(Kind::CutShort, left_out, "nothing to do: the other runs are whole"))
        .collect();
    if !manifest.resumed.is_empty() {
        let (sessions, blocks) = (manifest.resumed.len() + 1, split_blocks(evidence));
        let said = format!("interrupted and resumed: measured in {sessions} sessions, {}", split(&blocks));
        let remedy =
            "compare the sessions in the plot of runs over time; runs parted by an interrupt are no pair";
        let warning = whole(Kind::Resumed, said, remedy);
        found.push(warning.with("sessions", sessions).with("split_blocks", blocks));
    }
    let mut changes: Vec<String> = manifest.resumed.iter().flat_map(|s| s.changes.iter().cloned()).collect();
    changes.dedup();
    if !changes.is_empty() {
        let said = format!("between sessions changed: {}", changes.join("; "));
        let remedy =
            "run the whole experiment again under one state of machine and build: `weir-lab run --again`";
        found.push(whole(Kind::ChangedBetweenSessions, said, remedy).with("changes", changes));
    }
    for (configuration, runs) in by_configuration(&evidence.repeated) {
        let word = if runs.len() == 1 { "run" } else { "runs" };
        let said = format!("{word} {} failed and were measured again in a later session", numbers(&runs));
        let remedy = "the failures are in the raw file; find their cause";
        let warning = Diagnostic::warning(Kind::MeasuredAgain, &[configuration], said, remedy);
        found.push(warning.with("runs", runs));
    }
    for (configuration, runs) in by_configuration(&evidence.with_others) {
        let said = format!(
            "cut in the middle of a block, run {} was measured again with those measured in turn with it",
            numbers(&runs)
        );
        let remedy = "nothing to do: the earlier record is in the raw file, and in no statistic";
        let warning = Diagnostic::warning(Kind::MeasuredTogether, &[configuration], said, remedy);
        found.push(warning.with("runs", runs));
    }
    found
}

/// Runs whose CPUs were apart, and those measured again for it.
pub fn of_cpus(runs: &Runs) -> Option<Diagnostic> {
    let metric = |name: &'static str| {
        let samples = runs.values().flatten().filter_map(|run| run.sample.as_ref());
        samples.filter_map(move |sample| sample.metrics.get(name).copied())
    };
    let trips: Vec<f64> = metric(Near::ROUND_TRIP).collect();
    let least = trips.iter().copied().reduce(f64::min)?;
    let longest = trips.iter().copied().fold(0.0, f64::max);
    let (of, apart) = (trips.len(), trips.iter().filter(|&&trip| nearness::is_apart(trip, least)).count());
    let again = metric(Near::AGAIN).sum::<f64>() as usize;
    if apart + again == 0 {
        return None;
    }
    let said = format!(
        "CPUs were moved apart: a cache line took up to {longest:.0} ns over and back instead of {least:.0}; {apart} of {of} \
         runs were measured so, and {again} measured again until they were not"
    );
    let remedy = "give the machine CPUs of its own whose caches are shared; what was measured again was chosen by that time alone";
    let warning = whole(Kind::CpusApart, said, remedy).with("apart", apart).with("of", of);
    Some(warning.with("again", again).with("least_ns", least).with("longest_ns", longest))
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

/// Which blocks an interrupt went through.
fn split(blocks: &[usize]) -> String {
    match blocks {
        [] => "every block within one".into(),
        [block] => format!("block {block} has runs of two"),
        _ => format!("blocks {} have runs of several", numbers(blocks)),
    }
}

fn numbers(all: &[usize]) -> String {
    all.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

/// What testbeds said, each sentence once. What generator and receiver say of themselves, the SUTs they load say too.
pub fn notes(outcomes: &[Outcome]) -> Vec<Diagnostic> {
    let suts = outcomes.iter().filter(|o| !o.configuration.is_baseline());
    let said = suts.flat_map(|o| o.notes.iter().map(|n| (n.clone(), o.configuration.name.clone())));
    grouped(said).into_iter().map(|(note, configurations)| Diagnostic::note(configurations, note)).collect()
}

/// The beginning of a long error; the whole output of a SUT is in the raw file.
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

fn of_outcome(outcome: &Outcome, found: &mut Vec<Diagnostic>) {
    let name = [outcome.configuration.name.clone()];
    let warning = |kind, said: String, remedy: &str| Diagnostic::warning(kind, &name, said, remedy);
    found.extend(failures(&outcome.failures, &outcome.misbehaved, &warning));
    found.extend(defects::of_runs(&name[0], &outcome.values, &outcome.order).iter().map(of_defect));
    if let Some(share) = outcome.baseline_share.filter(|&s| s >= BASELINE_SHARE) {
        let percent = share * 100.0;
        let said = format!(
            "{percent:.0} % of what generator and receiver reach without a SUT; they, not the SUT, may be the limit"
        );
        let remedy = "compare cycles/packet, or give generator and receiver CPUs of their own";
        found.push(warning(Kind::GeneratorLimited, said, remedy).with("percent", percent));
    }
    if outcome.unaccounted != 0 {
        let (packets, sent) = (outcome.unaccounted, outcome.ledger.sent);
        let said = format!("{packets} of {sent} packets are in no counter");
        let remedy =
            "see which counter is missing in the ledger; below one in a thousand it changes no verdict";
        found.push(warning(Kind::Unaccounted, said, remedy).with("packets", packets).with("sent", sent));
    }
    if let Some(s) = outcome.searched.as_ref().filter(|s| s.held_up > 0) {
        let (trials, of) = (s.held_up, (s.trials.mean * s.trials.n as f64).round() as usize);
        let said = format!(
            "in {trials} of {of} trials the generator offered less than it was asked, which counts as lost"
        );
        let remedy = "stop other work on the machine, or give the generator a CPU of its own; beyond what it can offer \
                      no load is known";
        found.push(warning(Kind::SourceHeldUp, said, remedy).with("trials", trials).with("of", of));
    }
    for goal in outcome.searched.iter().flat_map(|s| &s.goals) {
        found.extend(of_goal(goal, &warning));
    }
    if outcome.reordered > 0 {
        let said = format!("{} packets overtook others of their flow", outcome.reordered);
        let remedy = "check that a flow stays on one queue and one worker";
        found.push(warning(Kind::Reordered, said, remedy).with("packets", outcome.reordered));
    }
    if outcome.duplicated > 0 {
        let said = format!("{} packets arrived more than once", outcome.duplicated);
        let remedy = "look for a loop or a mirror on the path";
        found.push(warning(Kind::Duplicated, said, remedy).with("packets", outcome.duplicated));
    }
}

/// Makes a warning about one configuration.
type Warn<'a> = &'a dyn Fn(Kind, String, &str) -> Diagnostic;

/// Runs that failed: those of which the SUT is the cause, and the others.
fn failures(errors: &[String], misbehaved: &[String], warning: Warn<'_>) -> Vec<Diagnostic> {
    let (of_sut, others): (Vec<&String>, Vec<&String>) =
        errors.iter().partition(|error| misbehaved.contains(error));
    let mut found = Vec::new();
    if let Some(first) = of_sut.first() {
        let (runs, first) = (of_sut.len(), shortened(first));
        let said = format!("the SUT misbehaved in {runs} runs, which have no result: {first}");
        let remedy =
            "read it as a result: statistics are of the runs it survived; tell those who make the SUT";
        found.push(warning(Kind::Misbehaved, said, remedy).with("runs", runs).with("first", first));
    }
    if let Some(first) = others.first() {
        let (runs, first) = (others.len(), shortened(first));
        let said = format!("{runs} runs failed, the first with: {first}");
        let remedy = "read the error, fix its cause and run again";
        found.push(warning(Kind::Failed, said, remedy).with("runs", runs).with("first", first));
    }
    found
}

fn of_goal(outcome: &GoalOutcome, warning: Warn<'_>) -> Vec<Diagnostic> {
    let (name, of) = (outcome.name.to_uppercase(), outcome.runs());
    let irregular = outcome.verdicts.iter().filter(|(v, _)| *v != goal::Verdict::Regular.sentence());
    let mut found: Vec<Diagnostic> = irregular
        .map(|(verdict, &runs)| {
            let said = format!("{name} was {verdict}, in {runs} of {of} runs");
            let remedy = "give the search another range (`min_pps`, `max_pps`), or a goal this SUT can meet";
            let warning = warning(Kind::SearchIrregular, said, remedy);
            warning
                .with("goal", name.clone())
                .with("runs", runs)
                .with("of", of)
                .with("verdict", verdict.clone())
        })
        .collect();
    if let Some(first) = &outcome.first_oddity {
        let runs = outcome.odd;
        let said = format!("{name} was odd in {runs} of {of} runs, the first: {first}");
        let remedy = "look at its trials in the raw file: other work on the machine, a queue, or a generator that \
                      cannot keep up; longer trials or a higher `exceed_percent` outweigh the first";
        let warning = warning(Kind::SearchOdd, said, remedy);
        found.push(warning.with("goal", name).with("runs", runs).with("of", of).with("first", first.clone()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_defect_of_runs_is_a_warning_of_its_own_kind_with_its_numbers() {
        let drift = Defect::Drift { configuration: "a".into(), p: 0.001, rising: true };
        let warning = of_defect(&drift);
        let json = serde_json::to_value(&warning).expect("plain");
        assert_eq!((&json["kind"], &json["subject"][0]), (&"drift".into(), &"a".into()));
        assert_eq!((json["p"].as_f64(), json["rising"].as_bool()), (Some(0.001), Some(true)));
        assert_eq!(serde_json::from_value::<Diagnostic>(json).expect("back"), warning);
        assert!(warning.sentence().starts_with("a: values rise") && warning.remedy.is_some());
        let (reference, other) = ("a".to_string(), "b".to_string());
        let unequal = of_defect(&Defect::UnequalSpread { reference, other, p: 0.001, ratio: None });
        assert_eq!((unequal.subject.len(), unequal.data["ratio"].is_null()), (2, true));
    }

    #[test]
    fn a_refusal_is_told_by_its_sample_and_by_words_only_where_none_was_recorded() {
        let notes = vec!["zero-copy refused".to_string(), "busy polling".to_string()];
        let of =
            |fallbacks| super::fallbacks(&Sample { notes: notes.clone(), fallbacks, ..Sample::default() });
        assert_eq!(of(Some(vec!["busy polling".to_string()])), ["busy polling"]);
        assert_eq!(of(Some(Vec::new())), [""; 0]);
        assert_eq!(of(None), ["zero-copy refused"]);
    }

    #[test]
    fn a_failed_run_of_a_sut_is_told_apart_from_one_of_the_lab() {
        let error = |kind, said: String, remedy: &str| Diagnostic::warning(kind, &["a".into()], said, remedy);
        let (ended, other) = ("derper: ended".to_string(), "no such device".to_string());
        let failed = failures(&[ended.clone(), other, ended.clone()], &[ended], &error);
        let kinds: Vec<Kind> = failed.iter().map(|w| w.kind).collect();
        assert_eq!(kinds, [Kind::Misbehaved, Kind::Failed]);
        assert_eq!((failed[0].data["runs"].as_u64(), failed[1].data["runs"].as_u64()), (Some(2), Some(1)));
    }
}
