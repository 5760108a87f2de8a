//! Doubts about searches: typed, each with what to do about it.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum SearchDoubt {
    /// It ended without close bounds on both sides.
    SearchIrregular { configuration: String, goal: String, runs: usize, of: usize, verdict: String },
    /// The source fell behind: the loss of these trials is partly its own.
    SourceHeldUp { configuration: String, trials: usize, of: usize },
    /// Its trials do not fit a subject with one capacity.
    SearchOdd { configuration: String, goal: String, runs: usize, of: usize, first: String },
}

impl SearchDoubt {
    pub fn sentence(&self) -> String {
        match self {
            SearchDoubt::SearchIrregular { configuration, goal, runs, of, verdict } => {
                format!("{configuration}: {goal} was {verdict}, in {runs} of {of} runs")
            }
            SearchDoubt::SourceHeldUp { configuration, trials, of } => format!(
                "{configuration}: in {trials} of {of} trials the source offered less than it was asked, which \
                 counts as lost"
            ),
            SearchDoubt::SearchOdd { configuration, goal, runs, of, first } => {
                format!("{configuration}: {goal} was odd in {runs} of {of} runs, the first: {first}")
            }
        }
    }

    pub fn remedy(&self) -> &'static str {
        match self {
            SearchDoubt::SearchIrregular { .. } => {
                "give the search another range (`min_pps`, `max_pps`), or a goal this subject can meet"
            }
            SearchDoubt::SourceHeldUp { .. } => {
                "stop other work on the machine, or give the generator a CPU of its own; beyond what it can \
                 offer no load is known"
            }
            SearchDoubt::SearchOdd { .. } => {
                "look at its trials in the raw file: other work on the machine, a queue, or a source that \
                 cannot keep up; longer trials or a higher `exceed_percent` outweigh the first"
            }
        }
    }
}
