//! Doubts about figures: typed, so that programs can act on them, each with what to do about it.

use serde::{Deserialize, Serialize};
use weir_stats::defects::Defect;

use super::search_doubt::SearchDoubt;
use crate::model::Sample;

/// Below five runs the exact U test cannot reach 1 %.
pub const FEW_RUNS: usize = 5;
/// A subject that reaches this share of what generator and sink do alone may be held back by them.
pub const CEILING_SHARE: f64 = 0.95;
/// Deviation above which a machine is called noisy: a shared virtual machine at rest shows 1–3 %.
pub const NOISY_PERCENT: f64 = 5.0;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Warning {
    NotOptimised,
    /// Everything the lab started had another scheduling priority than programs have.
    Priority {
        priority: String,
    },
    SmokeValues,
    Interrupted {
        missing: usize,
        planned: usize,
    },
    Skipped {
        configurations: Vec<String>,
        reason: String,
    },
    Failed {
        configuration: String,
        runs: usize,
        first: String,
    },
    /// Runs its subject ended in by itself, or broke a stream in: findings, kept beside the measured ones.
    Misbehaved {
        configuration: String,
        runs: usize,
        first: String,
    },
    CutShort {
        left_out: String,
    },
    /// Interrupted and taken up again.
    Resumed {
        sessions: usize,
        /// Blocks, from 1, with runs of more than one session.
        split_blocks: Vec<usize>,
    },
    /// Accepted with --force when the campaign was taken up again.
    ChangedBetweenSessions {
        changes: Vec<String>,
    },
    /// Runs, by place, that failed and were measured again in a later session.
    MeasuredAgain {
        configuration: String,
        runs: Vec<usize>,
    },
    /// Runs in slices, by place, measured again in a later session because one measured in turn with them
    /// was missing or had failed.
    MeasuredTogether {
        configuration: String,
        runs: Vec<usize>,
    },
    FewRuns {
        configurations: Vec<String>,
        runs: usize,
    },
    Noisy {
        configurations: Vec<String>,
        percent: f64,
    },
    /// The A/A control came out different from itself.
    ControlDiffers {
        configuration: String,
        percent: f64,
        p: f64,
    },
    GeneratorIsTheLimit {
        configuration: String,
        percent: f64,
    },
    Unaccounted {
        configuration: String,
        packets: i64,
        sent: u64,
    },
    Reordered {
        configuration: String,
        packets: u64,
    },
    Duplicated {
        configuration: String,
        packets: u64,
    },
    /// Something better was refused on the way; said by whoever measured.
    Fallback {
        configurations: Vec<String>,
        note: String,
    },
    /// What is wrong with the runs themselves; its `kind` stands in the place of this one's.
    #[serde(untagged)]
    Figures(Defect),
    /// What is wrong with its search; likewise.
    #[serde(untagged)]
    Search(SearchDoubt),
}

/// Notes of a run that say that something better was refused. Committed runs of before samples recorded it are told by how
/// their testbeds worded it then; nothing new is.
pub fn fallbacks(sample: &Sample) -> Vec<String> {
    let worded = || sample.notes.iter().filter(|note| note.contains(" refused")).cloned().collect();
    sample.fallbacks.clone().unwrap_or_else(worded)
}

const UNUSUAL_PRIORITY: &str = "ran with another scheduling priority than programs have: a raised one keeps the kernel's \
                                own threads from their packets, a lowered one waits for others";

impl Warning {
    pub fn sentence(&self) -> String {
        match self {
            Warning::NotOptimised => {
                "weir-lab was built without optimisation: its figures say nothing about speed".into()
            }
            Warning::Priority { priority } => format!("{UNUSUAL_PRIORITY} ({priority})"),
            Warning::SmokeValues => {
                "smoke values (--quick) were used: the windows are too short for a verdict".into()
            }
            Warning::Interrupted { missing, planned } => {
                format!("interrupted: {missing} of {planned} runs were not measured")
            }
            Warning::Skipped { configurations, reason } => {
                let verb = if configurations.len() == 1 { "was" } else { "were" };
                format!("{} {verb} skipped: {reason}", names(configurations))
            }
            Warning::Failed { configuration, runs, first } => {
                format!("{configuration}: {runs} runs failed, the first with: {first}")
            }
            Warning::Misbehaved { configuration, runs, first } => {
                format!(
                    "{configuration}: its subject misbehaved in {runs} runs, which have no figure: {first}"
                )
            }
            Warning::CutShort { left_out } => left_out.clone(),
            Warning::Resumed { sessions, split_blocks } => {
                format!("interrupted and resumed: measured in {sessions} sessions, {}", split(split_blocks))
            }
            Warning::ChangedBetweenSessions { changes } => {
                format!("between sessions changed: {}", changes.join("; "))
            }
            Warning::MeasuredAgain { configuration, runs } => {
                let word = if runs.len() == 1 { "run" } else { "runs" };
                let runs = numbers(runs);
                format!("{configuration}: {word} {runs} failed and were measured again in a later session")
            }
            Warning::MeasuredTogether { configuration, runs } => {
                let runs = numbers(runs);
                format!(
                    "{configuration}: cut in the middle of a block, run {runs} was measured again with those measured in \
                     turn with it"
                )
            }
            Warning::FewRuns { configurations, runs } => {
                format!("{}: {runs} runs, fewer than {FEW_RUNS}", names(configurations))
            }
            Warning::Noisy { configurations, percent } => {
                format!("{}: runs deviate by up to {percent:.1} % of their mean", names(configurations))
            }
            Warning::ControlDiffers { configuration, percent, p } => format!(
                "{configuration}: measured twice a block, it differs from itself by {percent:+.1} % (p = {p:.4}); by chance that happens in one campaign of twenty"
            ),
            Warning::GeneratorIsTheLimit { configuration, percent } => format!(
                "{configuration}: {percent:.0} % of what generator and sink reach by themselves; they, not the subject, may be the limit"
            ),
            Warning::Unaccounted { configuration, packets, sent } => {
                format!("{configuration}: {packets} of {sent} packets are in no counter")
            }
            Warning::Reordered { configuration, packets } => {
                format!("{configuration}: {packets} packets overtook others of their flow")
            }
            Warning::Duplicated { configuration, packets } => {
                format!("{configuration}: {packets} packets arrived more than once")
            }
            Warning::Fallback { configurations, note } => format!("{}: {note}", names(configurations)),
            Warning::Search(doubt) => doubt.sentence(),
            Warning::Figures(defect) => defect.sentence(),
        }
    }

    pub fn remedy(&self) -> String {
        match self {
            Warning::NotOptimised => "build with `cargo build --release`",
            Warning::Priority { .. } => "start it without `nice` or `chrt`, from a session of nice 0 (`cat /proc/self/autogroup`)",
            Warning::SmokeValues => "run again without --quick",
            Warning::Interrupted { .. } => {
                "`weir-lab resume` on the campaign's folder measures them, or take the wider intervals"
            }
            Warning::Resumed { .. } => {
                "compare the sessions in the plot of runs over time; runs parted by an interrupt are no pair"
            }
            Warning::ChangedBetweenSessions { .. } => {
                "run the whole experiment again under one state of machine and build: `weir-lab rerun`"
            }
            Warning::MeasuredAgain { .. } => "the failures are in the raw file; find their cause",
            Warning::MeasuredTogether { .. } => {
                "nothing to do: the earlier record is in the raw file, and in no figure"
            }
            Warning::Skipped { .. } => "`weir-lab doctor` says what this machine lacks",
            Warning::Failed { .. } => "read the error, fix its cause and run again",
            Warning::Misbehaved { .. } => {
                "read it as a result: figures are of the runs it survived; tell those who make the subject"
            }
            Warning::CutShort { .. } => "nothing to do: the other runs are whole",
            Warning::FewRuns { .. } => "raise `runs`, or pass --runs",
            Warning::Noisy { .. } => "stop other work on the machine, or lengthen `window`",
            Warning::ControlDiffers { .. } => {
                "believe no difference of this size here; run again with more blocks, and look for what one run leaves to the next"
            }
            Warning::GeneratorIsTheLimit { .. } => {
                "compare clocks a packet, or give generator and receiver CPUs of their own"
            }
            Warning::Unaccounted { .. } => {
                "see which counter is missing in the ledger; below one in a thousand it changes no verdict"
            }
            Warning::Reordered { .. } => "check that a flow stays on one queue and one worker",
            Warning::Duplicated { .. } => "look for a loop or a mirror on the path",
            Warning::Search(doubt) => doubt.remedy(),
            Warning::Figures(defect) => defect.remedy(),
            Warning::Fallback { .. } => {
                "take it into account, or use a device and a kernel that accept what was refused"
            }
        }
        .into()
    }
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

/// Names in a sentence: all of a few, the first of many.
fn names(configurations: &[String]) -> String {
    const SHOWN: usize = 4;
    match configurations.len().checked_sub(SHOWN + 1) {
        None => configurations.join(", "),
        Some(_) => {
            let more = configurations.len() - SHOWN;
            format!("{} and {more} more", configurations[..SHOWN].join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doubt_about_a_search_is_a_warning_of_its_own_kind() {
        let warning =
            Warning::Search(SearchDoubt::SourceHeldUp { configuration: "a".into(), trials: 2, of: 9 });
        let json = serde_json::to_value(&warning).expect("plain");
        assert_eq!(json["kind"], "source-held-up");
        assert_eq!(serde_json::from_value::<Warning>(json).expect("back"), warning);
        assert!(!warning.remedy().is_empty() && warning.sentence().contains("2 of 9 trials"));
    }

    #[test]
    fn a_defect_of_figures_is_a_warning_of_its_own_kind() {
        let warning = Warning::Figures(Defect::Drift { configuration: "a".into(), p: 0.001, rising: true });
        let json = serde_json::to_value(&warning).expect("plain");
        assert_eq!((&json["kind"], &json["configuration"]), (&"drift".into(), &"a".into()));
        assert_eq!(serde_json::from_value::<Warning>(json).expect("back"), warning);
        let other = serde_json::to_value(Warning::SmokeValues).expect("plain");
        assert_eq!(serde_json::from_value::<Warning>(other).expect("back"), Warning::SmokeValues);
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
    fn many_names_are_cut_and_counted() {
        let configurations: Vec<String> = (0..7).map(|i| format!("c{i}")).collect();
        let warning = Warning::FewRuns { configurations, runs: 3 };
        assert_eq!(warning.sentence(), "c0, c1, c2, c3 and 3 more: 3 runs, fewer than 5");
    }

    #[test]
    fn every_warning_has_a_remedy() {
        let warning = Warning::Skipped { configurations: vec!["a".into()], reason: "no root".into() };
        assert!(warning.sentence().contains("no root") && !warning.remedy().is_empty());
    }
}
