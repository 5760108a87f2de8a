//! The comparison tables, the same in both reports: one a reader decides by, one with every test.
//!
//! Promises: which test decided is said; the others stand beside it without a correction, so that nobody
//! takes the smallest of eight for a finding.

use crate::format::{p, verdict};
use weir_stats::compare::{ALPHA, Analysis, Comparison, Verdict};
use weir_stats::number::general;
use weir_stats::paired::{Paired, Scale};

/// Plain cells; the first `text` columns are words.
pub struct Table {
    pub headings: Vec<&'static str>,
    pub text: usize,
    pub rows: Vec<Vec<String>>,
}

/// What a reader decides by; ratios as `ratio` writes them.
pub fn verdicts(comparisons: &[Comparison], ratio: &dyn Fn(&Comparison) -> String) -> Table {
    let row = |c: &Comparison| {
        vec![
            c.other.clone(),
            c.reference.clone(),
            words(c),
            ratio(c),
            p(c.p_holm),
            c.detectable_percent.map_or("–".into(), |d| format!("{} %", general(d, 3))),
            c.runs_for_margin.map_or("–".into(), |n| n.to_string()),
        ]
    };
    Table {
        headings: vec![
            "configuration",
            "against",
            "verdict",
            "ratio [95 %]",
            "p (Holm)",
            "detectable",
            "runs needed",
        ],
        text: 3,
        rows: comparisons.iter().map(row).collect(),
    }
}

/// The verdict, and whether a difference is smaller than anybody asked about.
fn words(c: &Comparison) -> String {
    let small = c.verdict == Verdict::Different && c.p_equivalence_holm.is_some_and(|e| e <= ALPHA);
    match small {
        true => format!("{}, by less than {} %", verdict(c.verdict), c.margin_percent),
        false => verdict(c.verdict).into(),
    }
}

/// Every test of all runs, none corrected.
pub fn tests(comparisons: &[Comparison]) -> Table {
    let row = |c: &Comparison| {
        vec![
            c.other.clone(),
            c.reference.clone(),
            p(c.student.map(|t| t.p)),
            p(c.welch.map(|t| t.p)),
            p(c.mann_whitney.map(|u| u.p)),
            p(c.permutation.map(|t| t.p)),
            p(c.p_equivalence),
        ]
    };
    Table {
        headings: vec![
            "configuration",
            "against",
            "Student",
            "Welch",
            "U test",
            "permutation",
            "equivalence",
        ],
        text: 2,
        rows: comparisons.iter().map(row).collect(),
    }
}

/// The same block by block; of runs in slices also by their rounds.
pub fn blocks(comparisons: &[Comparison]) -> Table {
    let sliced = comparisons.iter().any(|c| c.rounds.is_some());
    let row = |c: &Comparison| {
        let of = |value: &dyn Fn(&Paired) -> String| c.paired.as_ref().map_or("–".into(), value);
        let mut cells = vec![
            c.other.clone(),
            c.reference.clone(),
            of(&|b| b.blocks.to_string()),
            of(&in_blocks),
            of(&|b| p(Some(b.t_test.p))),
            of(&|b| p(Some(b.sign_flip.p))),
            of(&|b| p(Some(b.signed_rank.p))),
            of(&|b| b.gain.map_or("–".into(), |g| format!("{} ×", general(g, 3)))),
        ];
        let of = |value: &dyn Fn(&Paired) -> String| c.rounds.as_ref().map_or("–".into(), value);
        cells.extend(sliced.then(|| [of(&in_blocks), of(&|b| p(Some(b.t_test.p)))]).into_iter().flatten());
        cells
    };
    let mut headings = vec![
        "configuration",
        "against",
        "blocks",
        "in blocks [95 %]",
        "paired t",
        "sign flips",
        "signed ranks",
        "gain",
    ];
    headings.extend(sliced.then_some(["in rounds [95 %]", "paired t of rounds"]).into_iter().flatten());
    Table { headings, text: 2, rows: comparisons.iter().map(row).collect() }
}

/// `1.832 [1.790, 1.870]`, or a difference with its sign.
fn in_blocks(paired: &Paired) -> String {
    let Paired { estimate, low, high, .. } = *paired;
    match paired.scale {
        Scale::LogRatio => format!("{estimate:.3} [{low:.3}, {high:.3}]"),
        Scale::Difference => format!("{estimate:+.3} [{low:+.3}, {high:+.3}]"),
    }
}

/// (term, meaning) of [`verdicts`]; empty without comparisons.
pub fn legend(comparisons: &[Comparison]) -> Vec<(&'static str, String)> {
    let Some(first) = comparisons.first() else { return Vec::new() };
    let margin = first.margin_percent;
    let (test, interval) = match first.analysis {
        Analysis::Welch => (
            "Welch’s test on all runs",
            "by the bootstrap of the means (Welch’s of logarithms below five runs)",
        ),
        Analysis::Paired => ("paired t test on the blocks", "of the paired t test"),
        Analysis::Rounds => {
            ("paired t test on the blocks, each by the median of its rounds", "of the paired t test")
        }
    };
    vec![
        (
            "different",
            format!("{test}, declared before the campaign, corrected by Holm over this table, at 5 %"),
        ),
        ("equivalent", format!("both one-sided tests within ±{margin} %, corrected likewise, at 5 %")),
        ("underpowered", "neither is shown".into()),
        ("ratio", format!("other / reference, its interval {interval}")),
        ("detectable", "the difference that four of five such campaigns would call different".into()),
        ("runs needed", format!("how many a configuration would call ±{margin} % different")),
    ]
}

/// What the lab saw between identical things; `None` without a control.
pub fn control(controls: &[Comparison]) -> Option<String> {
    let seen = controls.iter().filter_map(|c| Some((c.ratio?.ratio - 1.0).abs() * 100.0)).fold(0.0, f64::max);
    let blind = controls.iter().filter_map(|c| c.detectable_percent).fold(0.0, f64::max);
    let different = controls.iter().filter(|c| c.verdict == Verdict::Different).count();
    let of = if controls.len() == 1 { "One configuration" } else { "Each of these configurations" };
    (!controls.is_empty()).then(|| {
        format!(
            "{of} ran twice in every block, under two names. Between identical things this campaign saw up to \
             {} %, and called {different} of {} different; by chance alone one campaign in twenty calls any. It \
             would have found {} % in four of five.",
            general(seen, 2),
            controls.len(),
            general(blind, 3)
        )
    })
}

/// (term, meaning) of [`tests`] and [`blocks`].
pub fn tests_legend(comparisons: &[Comparison]) -> Vec<(&'static str, String)> {
    let mut legend = vec![
        ("p", "of each test alone, two-sided, not corrected; docs/statistics.md says when each lies".into()),
        ("equivalence", "larger p of the two one-sided tests".into()),
        ("in blocks", "geometric mean of the blocks’ ratios, blocks with a failed run left out".into()),
        ("gain", "how many times the runs an analysis without blocks needs for the same precision".into()),
    ];
    if comparisons.iter().any(|c| c.rounds.is_some()) {
        let meaning = "the same, each block’s ratio the median of its rounds’";
        legend.push(("in rounds", meaning.into()));
    }
    legend
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_stats::compare::{Pair, Rules, compare};
    use weir_stats::paired::Series;

    fn compared(analysis: Analysis) -> Vec<Comparison> {
        let a: Vec<f64> = (0..8).map(|i| 100.0 + f64::from(i * 5 % 8)).collect();
        let b: Vec<f64> = a.iter().enumerate().map(|(i, a)| a * (1.003 + 1e-4 * (i % 2) as f64)).collect();
        let blocks: Vec<usize> = (0..8).collect();
        let series = |name, values| Series::in_blocks(name, values, &blocks);
        compare(
            &[Pair { reference: series("a", &a), other: series("b", &b) }],
            Rules { analysis, margin_percent: 1.0, seed: 1 },
        )
    }

    #[test]
    fn a_difference_nobody_asked_about_is_said_to_be_small() {
        let table = verdicts(&compared(Analysis::Paired), &crate::format::ratio);
        assert_eq!(table.rows[0][2], "different, by less than 1 %");
        assert!(table.rows[0][3].starts_with("1.003 [1.003, 1.003]"), "{:?}", table.rows[0]);
    }

    #[test]
    fn every_row_has_a_cell_a_heading_and_the_deciding_test_is_named() {
        for (analysis, name) in [(Analysis::Welch, "Welch’s test"), (Analysis::Paired, "paired t test")] {
            let compared = compared(analysis);
            for table in
                [verdicts(&compared, &crate::format::ratio), super::tests(&compared), blocks(&compared)]
            {
                assert!(table.rows.iter().all(|r| r.len() == table.headings.len()));
            }
            assert!(legend(&compared)[0].1.starts_with(name));
        }
        assert!(legend(&[]).is_empty());
    }
}
