//! One pair: every test there is, and one verdict.
//!
//! ```text
//! p of the declared analysis, Holm-corrected over the report ≤ 0.05 ─────────► different
//! else: both one-sided tests against ± margin, Holm-corrected ≤ 0.05 ────────► equivalent
//! else ──────────────────────────────────────────────────────────────────────► underpowered
//! ```
//!
//! Promises: every test is reported, one is decisive, and which one is declared by the experiment before a
//! run is measured. Refuses: to fall back to another test when the declared one cannot be made.

use serde::{Deserialize, Serialize};

use super::bootstrap::{Ratio, ratio_of_means};
use super::holm;
use super::mannwhitney::{UTest, mann_whitney};
use super::paired::{Paired, Scale, Series, in_rounds, paired};
use super::permutation::{Permutation, permutation};
use super::power::{Design, Goal, detectable, runs_needed};
use super::student::{TTest, quantile, student, upper_tail, welch};
use super::summary::{mean, variance};

/// Chance of a false *different*, shared by all pairs of a report; of a false *equivalent* likewise.
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

/// The test that decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Analysis {
    /// Welch's, on all runs. Right whether blocks matter or not: where they do, it errs to the safe side.
    /// With the five blocks of a short campaign pairing must take away a third of the variance to pay.
    #[default]
    Welch,
    /// Student's on differences inside blocks. Worth it when `weir-lab plan` finds that blocks differ.
    Paired,
    /// The same with each block's difference the median of its rounds of slices. What comes and goes within a
    /// run falls out too, where it touches both sides of a pair or fewer than half of the rounds.
    Rounds,
}

/// How a family of pairs is judged; declared before a run is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    pub analysis: Analysis,
    /// Percent of the reference.
    pub margin_percent: f64,
    /// Decides what is drawn at random.
    pub seed: u64,
}

/// What the runs of `other` say against those of `reference`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    pub reference: String,
    pub other: String,
    pub verdict: Verdict,
    /// The test that decided: of its p are `p_holm` and `p_equivalence`.
    #[serde(default)]
    pub analysis: Analysis,
    /// other / reference, with the interval of the declared analysis.
    pub ratio: Option<Ratio>,
    /// Ratio of means with its bootstrap interval, blocks ignored.
    #[serde(default)]
    pub bootstrap: Option<Ratio>,
    pub student: Option<TTest>,
    pub welch: Option<TTest>,
    pub mann_whitney: Option<UTest>,
    pub permutation: Option<Permutation>,
    /// Block by block; absent without shared blocks.
    #[serde(default)]
    pub paired: Option<Paired>,
    /// Block by block, each from its rounds; absent where runs are whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<Paired>,
    /// The declared p after Holm's correction over every pair of the report.
    pub p_holm: Option<f64>,
    /// Larger p of the two one-sided tests against ± margin.
    pub p_equivalence: Option<f64>,
    /// The p-value of equivalence after Holm's correction.
    #[serde(default)]
    pub p_equivalence_holm: Option<f64>,
    /// Percent of the reference's mean.
    pub margin_percent: f64,
    /// Least difference found in four of five such experiments, percent of the reference's mean, at the
    /// strictest step of Holm's correction.
    pub detectable_percent: Option<f64>,
    /// Runs a configuration that would detect the margin, under the same condition.
    pub runs_for_margin: Option<usize>,
}

/// Two named sets of runs.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    pub reference: Series<'a>,
    pub other: Series<'a>,
}

/// Tests every pair of a report together, so that their p values can be corrected for each other.
pub fn compare(pairs: &[Pair<'_>], rules: Rules) -> Vec<Comparison> {
    let goal = Goal { alpha: ALPHA / pairs.len().max(1) as f64, ..Goal::default() };
    let mut compared: Vec<Comparison> = pairs.iter().map(|p| one(p, rules, goal)).collect();
    let corrected = |of: &dyn Fn(&Comparison) -> Option<f64>| {
        let p: Vec<f64> = compared.iter().map(|c| of(c).unwrap_or(f64::NAN)).collect();
        holm::adjust(&p).into_iter().map(|p| (!p.is_nan()).then_some(p)).collect::<Vec<_>>()
    };
    let different = corrected(&|c| c.p_holm);
    let equivalent = corrected(&|c| c.p_equivalence);
    for ((comparison, p), e) in compared.iter_mut().zip(different).zip(equivalent) {
        (comparison.p_holm, comparison.p_equivalence_holm) = (p, e);
        comparison.verdict = match (p, e) {
            (Some(p), _) if p <= ALPHA => Verdict::Different,
            (Some(_), Some(e)) if e <= ALPHA => Verdict::Equivalent,
            (Some(_), _) => Verdict::Underpowered,
            (None, _) => Verdict::NoTest,
        };
    }
    compared
}

fn one(pair: &Pair<'_>, rules: Rules, goal: Goal) -> Comparison {
    let (reference, other) = (pair.reference.values, pair.other.values);
    let bootstrap = ratio_of_means(reference, other, rules.seed);
    let welch = welch(reference, other);
    let paired = paired(pair.reference, pair.other, rules.seed);
    let rounds = in_rounds(pair.reference, pair.other, rules.seed);
    let deciding = match rules.analysis {
        Analysis::Welch => welch.map(|w| Deciding::unpaired(w, reference, other)),
        Analysis::Paired => paired.as_ref().map(|p| Deciding::paired(p, reference)),
        Analysis::Rounds => rounds.as_ref().map(|p| Deciding::paired(p, reference)),
    };
    let relative = deciding.filter(|d| d.relative());
    let ends = relative.map(|d| d.margins(rules.margin_percent));
    Comparison {
        reference: pair.reference.name.into(),
        other: pair.other.name.into(),
        verdict: Verdict::NoTest,
        analysis: rules.analysis,
        ratio: match rules.analysis {
            Analysis::Welch => bootstrap,
            Analysis::Paired => paired.as_ref().and_then(|p| in_blocks(p, reference)),
            Analysis::Rounds => rounds.as_ref().and_then(|p| in_blocks(p, reference)),
        },
        bootstrap,
        student: student(reference, other),
        welch,
        mann_whitney: mann_whitney(reference, other),
        permutation: permutation(reference, other, rules.seed),
        paired,
        rounds,
        // not corrected yet
        p_holm: deciding.map(|d| d.test.p),
        p_equivalence: relative.zip(ends).map(|(d, ends)| p_equivalence(&d.test, ends)),
        p_equivalence_holm: None,
        margin_percent: rules.margin_percent,
        detectable_percent: relative
            .map(|d| d.percent(detectable(d.test.standard_error, d.test.degrees_of_freedom, goal))),
        runs_for_margin: relative.zip(ends).and_then(|(d, (_, up))| runs_needed(d.sd, up, d.design, goal)),
    }
}

/// The declared test with what its values mean in percent of the reference.
#[derive(Clone, Copy)]
struct Deciding {
    test: TTest,
    design: Design,
    /// Standard deviation of a run, or of a block's difference.
    sd: f64,
    scale: Scale,
    /// The reference's mean.
    base: f64,
}

impl Deciding {
    fn unpaired(test: TTest, reference: &[f64], other: &[f64]) -> Deciding {
        let sd = ((variance(reference) + variance(other)) / 2.0).sqrt();
        let base = mean(reference).abs();
        Deciding { test, design: Design::Unpaired, sd, scale: Scale::Difference, base }
    }

    fn paired(paired: &Paired, reference: &[f64]) -> Deciding {
        let sd = paired.t_test.standard_error * (paired.blocks as f64).sqrt();
        let base = mean(reference).abs();
        Deciding { test: paired.t_test, design: Design::Paired, sd, scale: paired.scale, base }
    }

    /// Whether percent of the reference mean anything.
    fn relative(&self) -> bool {
        self.scale == Scale::LogRatio || self.base > 0.0
    }

    /// Ends of the margin on the test's scale.
    fn margins(&self, percent: f64) -> (f64, f64) {
        match self.scale {
            Scale::LogRatio => ((1.0 - percent / 100.0).ln(), (1.0 + percent / 100.0).ln()),
            Scale::Difference => (-self.base * percent / 100.0, self.base * percent / 100.0),
        }
    }

    fn percent(&self, effect: f64) -> f64 {
        match self.scale {
            Scale::LogRatio => effect.exp_m1() * 100.0,
            Scale::Difference => effect * 100.0 / self.base,
        }
    }
}

/// The paired estimate as a ratio to the reference.
fn in_blocks(paired: &Paired, reference: &[f64]) -> Option<Ratio> {
    let base = mean(reference);
    match paired.scale {
        Scale::LogRatio => {
            Some(Ratio { ratio: paired.estimate, low: Some(paired.low), high: Some(paired.high) })
        }
        Scale::Difference => {
            let of = |difference: f64| 1.0 + difference / base;
            let ratio =
                Ratio { ratio: of(paired.estimate), low: Some(of(paired.low)), high: Some(of(paired.high)) };
            (base > 0.0).then_some(ratio)
        }
    }
}

/// Two one-sided tests (Schuirmann 1987): the larger p of "below the lower end" and "above the upper",
/// both on the test's scale.
pub fn p_equivalence(test: &TTest, (low, high): (f64, f64)) -> f64 {
    let df = test.degrees_of_freedom;
    let above = upper_tail((test.difference - low) / test.standard_error, df);
    let below = upper_tail((high - test.difference) / test.standard_error, df);
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
        compare(&[unblocked("a", &A, "b", other)], rules(Analysis::Welch, margin)).remove(0)
    }

    fn rules(analysis: Analysis, margin_percent: f64) -> Rules {
        Rules { analysis, margin_percent, seed: 1 }
    }

    fn unblocked<'a>(a: &'a str, of_a: &'a [f64], b: &'a str, of_b: &'a [f64]) -> Pair<'a> {
        Pair { reference: Series::of(a, of_a), other: Series::of(b, of_b) }
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
        let mut pairs = vec![unblocked("a", &A, "b", &shifted)];
        pairs.extend((0..19).map(|_| unblocked("a", &A, "c", &same)));
        let family = compare(&pairs, rules(Analysis::Welch, 0.1));
        assert!(family[0].p_holm.expect("p") > alone.p_holm.expect("p") * 19.0);
        assert!(family[0].detectable_percent > alone.detectable_percent, "and see less each");
        let close = compare(&pairs, rules(Analysis::Welch, 1.0));
        let (each, corrected) = (close[1].p_equivalence, close[1].p_equivalence_holm);
        assert!(corrected.expect("p") > each.expect("p") * 18.0, "equivalence is a claim too");
    }

    /// Blocks that swing by ±10 %, and a second set 1 % above the first in each.
    fn swinging() -> (Vec<f64>, Vec<f64>) {
        let a: Vec<f64> = (0..8).map(|i| 100.0 + 10.0 * f64::from(i * 5 % 8 - 4) / 4.0).collect();
        let b = a.iter().enumerate().map(|(i, a)| a * (1.01 + 0.001 * (i % 2) as f64)).collect();
        (a, b)
    }

    #[test]
    fn the_declared_analysis_decides_and_the_other_stands_beside_it() {
        let (a, b) = swinging();
        let blocks: Vec<usize> = (0..8).collect();
        let series = |name, values| Series::in_blocks(name, values, &blocks);
        let pair = [Pair { reference: series("a", &a), other: series("b", &b) }];
        let unpaired = compare(&pair, rules(Analysis::Welch, 2.0)).remove(0);
        let paired = compare(&pair, rules(Analysis::Paired, 2.0)).remove(0);
        assert_eq!((unpaired.verdict, paired.verdict), (Verdict::Underpowered, Verdict::Different));
        assert_eq!((&unpaired.paired, unpaired.bootstrap), (&paired.paired, paired.bootstrap));
        assert_eq!(unpaired.ratio, unpaired.bootstrap);
        let width = |c: &Comparison| c.ratio.and_then(|r| Some(r.high? - r.low?)).expect("interval");
        assert!(width(&paired) * 20.0 < width(&unpaired));
        assert!(paired.detectable_percent.expect("tested") < 0.2);
        // it differs, and by less than the margin: both are said
        assert!(paired.p_equivalence.expect("tested") < 1e-3);
        assert!(paired.runs_for_margin < unpaired.runs_for_margin);
    }

    #[test]
    fn without_blocks_the_paired_analysis_is_not_replaced_by_another() {
        let c =
            compare(&[unblocked("a", &A, "b", &A.map(|v| v + 10.0))], rules(Analysis::Paired, 1.0)).remove(0);
        assert_eq!((c.verdict, c.ratio, c.p_holm), (Verdict::NoTest, None, None));
        assert!(c.welch.is_some() && c.bootstrap.is_some());
    }

    #[test]
    fn interval_of_a_mean_is_students() {
        // t.test(c(1, 2, 3, 4, 5))$conf.int: 1.036757 4.963243
        let (low, high) = mean_interval(&[1.0, 2.0, 3.0, 4.0, 5.0]).expect("five");
        assert!((low - 1.036_757).abs() < 1e-5 && (high - 4.963_243).abs() < 1e-5, "{low} {high}");
    }
}
