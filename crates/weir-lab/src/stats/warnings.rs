//! Doubts about figures: typed, so that programs can act on them, each with what to do about it.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Normal};

use super::summary::{Summary, median, sorted};

/// Below five runs the exact U test cannot reach 1 %.
pub const FEW_RUNS: usize = 5;
/// A subject that reaches this share of what generator and sink do alone may be held back by them.
pub const CEILING_SHARE: f64 = 0.95;
/// Deviation above which a machine is called noisy: a shared virtual machine at rest shows 1–3 %.
pub const NOISY_PERCENT: f64 = 5.0;
/// Modified z-score of Iglewicz and Hoaglin (1993).
const OUTLIER_SCORE: f64 = 3.5;
/// Outliers closer than this to the median are not worth a reader's time, in percent.
const OUTLIER_PERCENT: f64 = 2.0;
/// Chance of a false drift warning a configuration.
const DRIFT_P: f64 = 0.01;
/// Below eight runs the normal approximation of the trend test is too coarse.
const DRIFT_RUNS: usize = 8;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Warning {
    NotOptimised,
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
    FewRuns {
        configurations: Vec<String>,
        runs: usize,
    },
    Noisy {
        configurations: Vec<String>,
        percent: f64,
    },
    Outlier {
        configuration: String,
        runs: Vec<usize>,
        percent: f64,
    },
    Drift {
        configuration: String,
        p: f64,
        rising: bool,
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
}

impl Warning {
    pub fn sentence(&self) -> String {
        match self {
            Warning::NotOptimised => {
                "weir-lab was built without optimisation: its figures say nothing about speed".into()
            }
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
            Warning::CutShort { left_out } => left_out.clone(),
            Warning::Resumed { sessions, split_blocks } => {
                let split: Vec<String> = split_blocks.iter().map(usize::to_string).collect();
                let split = match split.len() {
                    0 => "every block within one".into(),
                    1 => format!("block {} has runs of two", split[0]),
                    _ => format!("blocks {} have runs of several", split.join(", ")),
                };
                format!("interrupted and resumed: measured in {sessions} sessions, {split}")
            }
            Warning::ChangedBetweenSessions { changes } => {
                format!("between sessions changed: {}", changes.join("; "))
            }
            Warning::MeasuredAgain { configuration, runs } => {
                let runs: Vec<String> = runs.iter().map(usize::to_string).collect();
                let word = if runs.len() == 1 { "run" } else { "runs" };
                let runs = runs.join(", ");
                format!("{configuration}: {word} {runs} failed and were measured again in a later session")
            }
            Warning::FewRuns { configurations, runs } => {
                format!("{}: {runs} runs, fewer than {FEW_RUNS}", names(configurations))
            }
            Warning::Noisy { configurations, percent } => {
                format!("{}: runs deviate by up to {percent:.1} % of their mean", names(configurations))
            }
            Warning::Outlier { configuration, runs, percent } => {
                let runs: Vec<String> = runs.iter().map(usize::to_string).collect();
                let (word, verb) = if runs.len() == 1 { ("run", "lies") } else { ("runs", "lie") };
                let runs = runs.join(", ");
                format!(
                    "{configuration}: {word} {runs} {verb} far outside the others, up to {percent:+.1} % from the median"
                )
            }
            Warning::Drift { configuration, p, rising } => {
                let way = if *rising { "rise" } else { "fall" };
                format!("{configuration}: figures {way} over the campaign (Mann–Kendall p = {p:.4})")
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
        }
    }

    pub fn remedy(&self) -> String {
        match self {
            Warning::NotOptimised => "build with `cargo build --release`",
            Warning::SmokeValues => "run again without --quick",
            Warning::Interrupted { .. } => {
                "`weir-lab resume` on the campaign's folder measures them, or take the wider intervals"
            }
            Warning::Resumed { .. } => {
                "compare the sessions in the plot of runs over time; paired comparisons leave split blocks out"
            }
            Warning::ChangedBetweenSessions { .. } => {
                "run the whole experiment again under one state of machine and build: `weir-lab rerun`"
            }
            Warning::MeasuredAgain { .. } => "the failures are in the raw file; find their cause",
            Warning::Skipped { .. } => "`weir-lab doctor` says what this machine lacks",
            Warning::Failed { .. } => "read the error, fix its cause and run again",
            Warning::CutShort { .. } => "nothing to do: the other runs are whole",
            Warning::FewRuns { .. } => "raise `runs`, or pass --runs",
            Warning::Noisy { .. } => "stop other work on the machine, or lengthen `window`",
            Warning::Outlier { .. } => "look for what else ran then; the run stays in the figures",
            Warning::Drift { .. } => {
                "lengthen `warm_up`; check heat and other tenants; blocks keep comparisons fair"
            }
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
            Warning::Fallback { .. } => {
                "take it into account, or use a device and a kernel that accept what was refused"
            }
        }
        .into()
    }
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

/// Doubts that follow from the figures of one configuration; `order` is each run's place in the campaign.
pub fn of_figures(configuration: &str, figures: &[f64], order: &[usize]) -> Vec<Warning> {
    let mut found = Vec::new();
    let Some(summary) = Summary::of(figures) else { return found };
    let name = || configuration.to_string();
    let far = outliers(figures);
    let away = |&i: &usize| (figures[i] / summary.median - 1.0) * 100.0;
    if let Some(percent) = far.iter().map(away).max_by(|a, b| a.abs().total_cmp(&b.abs())) {
        let runs = far.iter().map(|&i| order.get(i).copied().unwrap_or(i)).collect();
        found.push(Warning::Outlier { configuration: name(), runs, percent });
    }
    if let Some((p, rising)) = trend(figures).filter(|(p, _)| *p < DRIFT_P) {
        found.push(Warning::Drift { configuration: name(), p, rising });
    }
    found
}

/// Indices of figures far from the median, measured in median absolute deviations.
pub fn outliers(figures: &[f64]) -> Vec<usize> {
    if figures.len() < FEW_RUNS {
        return Vec::new();
    }
    let centre = median(&sorted(figures));
    let away: Vec<f64> = figures.iter().map(|f| (f - centre).abs()).collect();
    let mad = median(&sorted(&away));
    // 0.6745: the share of a standard deviation that half of normal figures lie within
    let far = |d: f64| 0.6745 * d > OUTLIER_SCORE * mad && d * 100.0 > OUTLIER_PERCENT * centre.abs();
    (0..figures.len()).filter(|&i| far(away[i])).collect()
}

/// Mann–Kendall trend test: two-sided p and direction; `None` below eight figures.
pub fn trend(figures: &[f64]) -> Option<(f64, bool)> {
    let n = figures.len();
    if n < DRIFT_RUNS {
        return None;
    }
    let mut s: f64 = 0.0;
    for (i, a) in figures.iter().enumerate() {
        for b in &figures[i + 1..] {
            s += if b > a { 1.0 } else { -f64::from(u8::from(b < a)) };
        }
    }
    let n = n as f64;
    let sigma = (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt();
    let z = (s.abs() - 1.0).max(0.0) / sigma;
    let normal = Normal::new(0.0, 1.0).ok()?;
    Some(((2.0 * normal.sf(z)).min(1.0), s > 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(figures: &[f64]) -> Vec<String> {
        let order: Vec<usize> = (0..figures.len()).collect();
        of_figures("c", figures, &order)
            .iter()
            .map(|w| serde_json::to_value(w).expect("plain")["kind"].as_str().expect("tagged").to_string())
            .collect()
    }

    #[test]
    fn calm_figures_raise_no_doubt() {
        assert!(kinds(&[100.0, 100.4, 99.8, 100.1, 99.9, 100.2, 100.0, 99.7]).is_empty());
    }

    #[test]
    fn a_rising_series_is_a_drift() {
        let figures: Vec<f64> = (0..12).map(|i| 100.0 + f64::from(i) * 0.1).collect();
        assert_eq!(kinds(&figures), ["drift"]);
        // n = 8, S = 28: z = 27/√65.33 = 3.340, p = 0.00084
        let (p, rising) = trend(&figures[..8]).expect("eight");
        assert!(rising && (p - 0.000_837).abs() < 2e-5, "{p}");
    }

    #[test]
    fn one_run_far_away_is_an_outlier_and_is_named_by_its_place() {
        let figures = [100.0, 100.1, 99.9, 100.05, 90.0, 99.95, 100.02];
        let order = [3, 9, 11, 20, 25, 31, 40];
        let found = of_figures("c", &figures, &order);
        let [Warning::Outlier { runs, percent, .. }] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(runs, &[25]);
        assert!((percent + 10.0).abs() < 1e-9, "{percent}");
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
