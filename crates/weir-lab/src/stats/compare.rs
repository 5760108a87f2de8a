//! One pair: every test there is, and one verdict.
//!
//! ```text
//! Welch p, Holm-corrected over the report ≤ 0.05 ────────────────► different
//! else: 90 % interval inside ± margin (two one-sided tests) ─────► equivalent
//! else ──────────────────────────────────────────────────────────► underpowered, with what it could see
//! ```

use serde::{Deserialize, Serialize};

use super::bootstrap::{Ratio, ratio_of_means};
use super::holm;
use super::mannwhitney::{UTest, mann_whitney};
use super::permutation::{Permutation, permutation};
use super::power::{minimum_detectable_effect, runs_needed};
use super::student::{TTest, quantile, student, welch};
use super::summary::{mean, variance};

/// Chance of a false *different*, shared by all pairs of a report.
pub const ALPHA: f64 = 0.05;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The means differ.
    Different,
    /// If they differ, then by less than the margin.
    Equivalent,
    /// Neither is shown: more runs, or a wider margin.
    Underpowered,
    /// Fewer than two runs in a set, or no spread at all.
    NoTest,
}

/// What the runs of `other` say against those of `reference`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    pub reference: String,
    pub other: String,
    pub verdict: Verdict,
    /// other / reference, of means.
    pub ratio: Option<Ratio>,
    pub student: Option<TTest>,
    pub welch: Option<TTest>,
    pub mann_whitney: Option<UTest>,
    pub permutation: Option<Permutation>,
    /// Welch's p after Holm's correction over every pair of the report.
    pub p_holm: Option<f64>,
    /// Larger p of the two one-sided tests against ± margin.
    pub p_equivalence: Option<f64>,
    /// Percent of the reference's mean.
    pub margin_percent: f64,
    /// Least difference found in four of five such experiments, percent of the reference's mean.
    pub detectable_percent: Option<f64>,
    /// Runs a configuration that would detect the margin.
    pub runs_for_margin: Option<usize>,
}

/// A named set of figures.
pub struct Pair<'a> {
    pub reference: (&'a str, &'a [f64]),
    pub other: (&'a str, &'a [f64]),
}

/// Tests every pair of a report together, so that their p values can be corrected for each other.
pub fn compare(pairs: &[Pair<'_>], margin_percent: f64, seed: u64) -> Vec<Comparison> {
    let mut compared: Vec<Comparison> = pairs.iter().map(|p| one(p, margin_percent, seed)).collect();
    let p: Vec<f64> = compared.iter().map(|c| c.welch.map_or(f64::NAN, |w| w.p)).collect();
    for (comparison, p) in compared.iter_mut().zip(holm::adjust(&p)) {
        comparison.p_holm = (!p.is_nan()).then_some(p);
        comparison.verdict = match (comparison.p_holm, comparison.p_equivalence) {
            (Some(p), _) if p <= ALPHA => Verdict::Different,
            (Some(_), Some(e)) if e <= ALPHA => Verdict::Equivalent,
            (Some(_), _) => Verdict::Underpowered,
            (None, _) => Verdict::NoTest,
        };
    }
    compared
}

fn one(pair: &Pair<'_>, margin_percent: f64, seed: u64) -> Comparison {
    let (reference, other) = (pair.reference.1, pair.other.1);
    let welch = welch(reference, other);
    let base = mean(reference).abs();
    let margin = base * margin_percent / 100.0;
    let sd = ((variance(reference) + variance(other)) / 2.0).sqrt();
    let measurable = welch.filter(|_| base > 0.0);
    Comparison {
        reference: pair.reference.0.into(),
        other: pair.other.0.into(),
        verdict: Verdict::NoTest,
        ratio: ratio_of_means(reference, other, seed),
        student: student(reference, other),
        welch,
        mann_whitney: mann_whitney(reference, other),
        permutation: permutation(reference, other, seed),
        p_holm: None,
        p_equivalence: measurable.map(|w| p_equivalence(&w, margin)),
        margin_percent,
        detectable_percent: measurable
            .map(|w| minimum_detectable_effect(w.standard_error, w.degrees_of_freedom) * 100.0 / base),
        runs_for_margin: measurable.and_then(|_| runs_needed(sd, margin)),
    }
}

/// Two one-sided tests (Schuirmann 1987): the larger p of "below −margin" and "above +margin".
fn p_equivalence(welch: &TTest, margin: f64) -> f64 {
    let df = welch.degrees_of_freedom;
    let above = super::student::upper_tail((welch.difference + margin) / welch.standard_error, df);
    let below = super::student::upper_tail((margin - welch.difference) / welch.standard_error, df);
    above.max(below)
}

/// Ends of the 95 % interval of a mean; `None` below two values.
pub fn mean_interval(values: &[f64]) -> Option<(f64, f64)> {
    let n = values.len() as f64;
    (values.len() > 1).then(|| {
        let reach = quantile(0.975, n - 1.0) * (variance(values) / n).sqrt();
        (mean(values) - reach, mean(values) + reach)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: [f64; 6] = [100.0, 101.0, 99.0, 100.5, 99.5, 100.2];

    fn verdict(other: &[f64], margin: f64) -> Comparison {
        let pairs = [Pair { reference: ("a", &A), other: ("b", other) }];
        compare(&pairs, margin, 1).remove(0)
    }

    #[test]
    fn clearly_apart_is_different() {
        let c = verdict(&A.map(|v| v + 10.0), 1.0);
        assert_eq!(c.verdict, Verdict::Different);
        assert!((c.ratio.expect("ratio").ratio - 1.1).abs() < 0.01);
    }

    #[test]
    fn close_together_within_the_margin_is_equivalent() {
        assert_eq!(verdict(&A.map(|v| v + 0.05), 2.0).verdict, Verdict::Equivalent);
    }

    #[test]
    fn noise_wider_than_the_margin_is_underpowered_and_says_what_it_would_take() {
        let noisy = [90.0, 111.0, 97.0, 105.0, 94.0, 104.0];
        let c = verdict(&noisy, 1.0);
        assert_eq!(c.verdict, Verdict::Underpowered);
        assert!(c.detectable_percent.expect("tested") > 1.0);
        assert!(c.runs_for_margin.expect("tested") > 6);
    }

    #[test]
    fn single_runs_are_not_judged() {
        assert_eq!(verdict(&[1.0], 1.0).verdict, Verdict::NoTest);
    }

    #[test]
    fn many_pairs_share_one_chance_of_error() {
        let shifted = A.map(|v| v + 1.5);
        let alone = verdict(&shifted, 0.1);
        assert_eq!(alone.verdict, Verdict::Different);
        let same = A.map(|v| v + 0.001);
        let mut pairs = vec![Pair { reference: ("a", &A), other: ("b", &shifted) }];
        pairs.extend((0..19).map(|_| Pair { reference: ("a", &A[..]), other: ("c", &same[..]) }));
        let family = compare(&pairs, 0.1, 1);
        assert!(family[0].p_holm.expect("p") > alone.p_holm.expect("p") * 19.0);
    }

    #[test]
    fn interval_of_a_mean_is_students() {
        // t.test(c(1, 2, 3, 4, 5))$conf.int: 1.036757 4.963243
        let (low, high) = mean_interval(&[1.0, 2.0, 3.0, 4.0, 5.0]).expect("five");
        assert!((low - 1.036_757).abs() < 1e-5 && (high - 4.963_243).abs() < 1e-5, "{low} {high}");
    }
}
