//! Which modes of network devices are best, and what they are as weir's configuration.
//!
//! ```text
//! every mode against the default ─► better, different and by more than the margin? ─► the largest ratio ─► weir.toml
//!                                   none ─► the default stays
//! ```
//!
//! Promises: a mode takes the default's place only by a verdict of the experiment's own family of comparisons. Refuses: the best of
//! medians; what is not told apart from the chosen is named beside it.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use weir_stats::compare::{ALPHA, Analysis, Pair, Rules, compare};
use weir_stats::paired::Series;
use weir_stats::{Comparison, Verdict};

use super::{Outcome, Results};
use crate::experiment::Experiment;
use crate::experiment::answer::Section;
use crate::format;
use crate::model::{NicModes, Sut};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The configuration that the others are compared with.
    pub default: String,
    /// The one whose settings these are.
    pub chosen: String,
    pub because: String,
    /// Modes that are not shown to be worse than the chosen one, though not shown to be as good either.
    pub not_told_apart: Vec<String>,
    pub modes: Vec<Mode>,
    /// A fragment of weir.toml.
    pub toml: String,
}

/// One mode, as it turned out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mode {
    pub configuration: String,
    /// What weir said of its first queue, or why there was no run.
    pub became: String,
    /// `None` of the default itself, and of what never ran.
    pub verdict: Option<Verdict>,
    /// The value divided by that of the default, with its interval.
    pub ratio: Option<String>,
}

/// `None` where the experiment asks for none, or nothing was compared.
pub fn of(experiment: &Experiment, seed: u64, results: &Results) -> Option<Settings> {
    if !experiment.answers.iter().any(|answer| answer.show == Some(Section::Settings)) {
        return None;
    }
    let default = results.comparisons.iter().find_map(|c| driven(results.outcome(&c.reference)?))?;
    let modes: Vec<&Outcome> =
        results.configurations.iter().filter_map(driven).filter(|o| is_like(o, default)).collect();
    let better = |c: &&Comparison| {
        let larger = c.ratio.is_some_and(|r| r.ratio > 1.0);
        let small = c.p_equivalence_holm.is_some_and(|e| e <= ALPHA);
        c.verdict == Verdict::Different && larger == results.higher_is_better && !small
    };
    let against = |outcome: &Outcome| {
        let of = |c: &&Comparison| {
            (&c.reference, &c.other) == (&default.configuration.name, &outcome.configuration.name)
        };
        results.comparisons.iter().find(of)
    };
    let gain = |c: &Comparison| c.ratio.map_or(0.0, |r| r.ratio.ln().abs());
    let best = modes.iter().filter_map(|o| Some((*o, against(o).filter(better)?)));
    let best = best.max_by(|a, b| gain(a.1).total_cmp(&gain(b.1)));
    let chosen = best.map_or(default, |(outcome, _)| outcome);
    let because = match best {
        Some((_, c)) => format!(
            "{} has {} times the {} of {} (different)",
            chosen.configuration.name,
            results.ratio(c),
            results.metric.sentence(),
            default.configuration.name
        ),
        None => format!(
            "no mode is shown to be better than {} by more than {} %",
            default.configuration.name, experiment.margin_percent
        ),
    };
    // whole runs, for what a paired or sliced analysis needs beside them is no matter here
    let rules = Rules { analysis: Analysis::Welch, margin_percent: experiment.margin_percent, seed };
    let not_told_apart = not_told_apart(chosen, &modes, rules);
    let toml = fragment(experiment, results, chosen, (&because, &not_told_apart));
    let row = |o: &&Outcome| Mode {
        configuration: o.configuration.name.clone(),
        became: became(o),
        verdict: against(o).map(|c| c.verdict),
        ratio: against(o).map(format::ratio),
    };
    let (default, chosen) = (default.configuration.name.clone(), chosen.configuration.name.clone());
    Some(Settings { default, chosen, because, not_told_apart, modes: modes.iter().map(row).collect(), toml })
}

/// weir between devices.
fn driven(outcome: &Outcome) -> Option<&Outcome> {
    (outcome.configuration.sut() == Sut::Weir && outcome.configuration.nic_modes().is_some())
        .then_some(outcome)
}

/// Whether both did the same work.
fn is_like(outcome: &Outcome, default: &Outcome) -> bool {
    let of =
        |o: &Outcome| (o.configuration.topology(), o.configuration.workload.clone(), o.configuration.routes);
    of(outcome) == of(default)
}

/// Names the modes that the chosen one is not told apart from: a family of comparisons made after the choice, which decides nothing.
fn not_told_apart(chosen: &Outcome, modes: &[&Outcome], rules: Rules) -> Vec<String> {
    let is_other = |o: &&&Outcome| o.configuration.name != chosen.configuration.name && !o.values.is_empty();
    let pairs: Vec<Pair<'_>> =
        modes.iter().filter(is_other).map(|o| Pair { reference: whole(chosen), other: whole(o) }).collect();
    let open = compare(&pairs, rules).into_iter().filter(|c| c.verdict != Verdict::Different);
    open.map(|c| c.other).collect()
}

/// Its runs, whatever their blocks.
fn whole(outcome: &Outcome) -> Series<'_> {
    Series::of(&outcome.configuration.name, &outcome.values)
}

/// What weir made of the mode: the words of its first queue where packets come in.
fn became(outcome: &Outcome) -> String {
    let said =
        outcome.notes.iter().find(|note| note.starts_with("weir port in: ") && note.contains(" queue 0: "));
    let words = said.and_then(|note| note.split_once(" queue 0: ")).map(|(_, words)| words.to_string());
    words.or_else(|| outcome.failures.first().cloned()).unwrap_or("–".into())
}

fn fragment(
    experiment: &Experiment,
    results: &Results,
    chosen: &Outcome,
    (because, open): (&str, &[String]),
) -> String {
    let runs = chosen.values.len();
    let mut out = format!("# {} ({}), {runs} runs each: {because}.\n", results.name, results.title);
    if !open.is_empty() {
        let _ = writeln!(out, "# Not told apart from {}: {}.", chosen.configuration.name, open.join(", "));
    }
    if results.quick {
        out += "# Smoke values: this proves nothing.\n";
    }
    let modes = chosen.configuration.nic_modes().cloned().unwrap_or_default();
    out += &queues(experiment, &modes);
    if modes.zero_copy == "require" {
        out += "# Measured with zero_copy = \"require\"; \"auto\", the default, takes it where the driver has it, as here.\n";
    }
    out += "[workers]\n";
    let cpus = &chosen.configuration.placement.cpus;
    if !cpus.is_empty() {
        let _ = writeln!(out, "cpus = {cpus:?}");
    }
    for (key, word) in modes.unlike_default().filter(|mode| *mode != ("zero_copy", "require")) {
        let _ = writeln!(out, "{key} = \"{word}\"");
    }
    out
}

/// Queues are the device's, not weir's.
fn queues(experiment: &Experiment, modes: &NicModes) -> String {
    if modes.queues == 0 {
        return String::new();
    }
    let host = experiment.hosts.as_ref().map(|hosts| &hosts.device_under_test);
    let named: Vec<&str> =
        host.iter().flat_map(|h| [h.input.as_deref(), h.output.as_deref()]).flatten().collect();
    let devices = if named.is_empty() { vec!["DEVICE"] } else { named };
    let each = devices.iter().map(|device| format!("`ethtool -L {device} combined {}`", modes.queues));
    format!("# Before weir starts: {}.\n", each.collect::<Vec<_>>().join(", "))
}
