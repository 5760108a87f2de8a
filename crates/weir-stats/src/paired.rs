//! One pair, block by block: what the machine did to a whole block falls out of the difference.
//!
//! ```text
//! block 0   a₀  b₀   ─► ln b₀/a₀ ┐
//! block 1   a₁  b₁   ─► ln b₁/a₁ ├─► Student's t of their mean, sign flips, signed ranks
//! block 2   a₂  ––   ─► left out  ┘   (its run failed)
//! ```
//!
//! Runs in slices can be held against each other round by round ([`in_rounds`]): a block's difference is then
//! the median of its rounds'.
//!
//! Promises: only blocks in which both ran are used; logarithms of ratios when every value is above zero,
//! plain differences otherwise. Refuses: fewer than two shared blocks, and differences without spread.
//! Source: Fisher 1935, *The Design of Experiments* (randomised blocks, efficiency); Student 1908.

use serde::{Deserialize, Serialize};

use super::permutation::Permutation;
use super::student::{TTest, of_differences};
use super::summary::{mean, median, sorted, variance};

mod flip;
mod rank;

pub use flip::sign_flip;
pub use rank::{SignedRank, signed_rank};

/// A named set of runs.
#[derive(Clone, Copy, Debug)]
pub struct Series<'a> {
    pub name: &'a str,
    pub values: &'a [f64],
    /// The block of each value; empty when runs belong to no block.
    pub blocks: &'a [usize],
    /// The slices of each value, by round; empty when runs are whole.
    pub rounds: &'a [Vec<f64>],
}

impl<'a> Series<'a> {
    /// Runs that belong to no block, as two files of values are.
    pub fn of(name: &'a str, values: &'a [f64]) -> Series<'a> {
        Series { name, values, blocks: &[], rounds: &[] }
    }

    /// Runs by their block.
    pub fn in_blocks(name: &'a str, values: &'a [f64], blocks: &'a [usize]) -> Series<'a> {
        Series { name, values, blocks, rounds: &[] }
    }
}

/// What the differences of a pair are measured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    /// Logarithm of other / reference.
    LogRatio,
    /// other − reference.
    Difference,
}

/// What the shared blocks of a pair say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Paired {
    /// Number of blocks in which both ran.
    pub blocks: usize,
    pub scale: Scale,
    /// Geometric mean of the blocks' ratios, or mean of their differences.
    pub estimate: f64,
    /// Ends of its 95 % interval.
    pub low: f64,
    pub high: f64,
    /// Paired t test, on the scale named.
    pub t_test: TTest,
    /// Every way the names could have been swapped inside blocks.
    pub sign_flip: Permutation,
    pub signed_rank: SignedRank,
    /// How many times the runs an unpaired analysis needs for the same precision (Fisher's relative
    /// efficiency, his correction for lost degrees of freedom included); below 1 pairing costs.
    pub gain: Option<f64>,
}

/// `None` without two shared blocks whose differences spread.
pub fn paired(reference: Series<'_>, other: Series<'_>, seed: u64) -> Option<Paired> {
    let (a, b) = shared(reference, other);
    let positive = a.iter().chain(&b).all(|&f| f > 0.0);
    let scale = if positive { Scale::LogRatio } else { Scale::Difference };
    let on = |values: Vec<f64>| if positive { values.iter().map(|f| f.ln()).collect() } else { values };
    let (a, b): (Vec<f64>, Vec<f64>) = (on(a), on(b));
    let differences: Vec<f64> = a.iter().zip(&b).map(|(a, b)| b - a).collect();
    judged(scale, &a, &b, &differences, seed)
}

/// The same of runs in slices, with each block's difference the median of its rounds': what touches a slice
/// alone moves nothing while it is fewer than half of them. `None` without rounds in two shared blocks.
pub fn in_rounds(reference: Series<'_>, other: Series<'_>, seed: u64) -> Option<Paired> {
    let of = |block: usize| other.blocks.iter().position(|&b| b == block);
    let both = reference.blocks.iter().enumerate().filter_map(|(i, &block)| Some((i, of(block)?)));
    let both: Vec<(usize, usize)> = both.collect();
    let rounds: Vec<(&Vec<f64>, &Vec<f64>)> = both
        .iter()
        .filter_map(|&(i, j)| Some((reference.rounds.get(i)?, other.rounds.get(j)?)))
        .filter(|(a, b)| !a.is_empty() && a.len() == b.len())
        .collect();
    if rounds.len() < both.len() {
        return None;
    }
    let positive = rounds.iter().all(|(a, b)| a.iter().chain(b.iter()).all(|&f| f > 0.0));
    let scale = if positive { Scale::LogRatio } else { Scale::Difference };
    let on = |f: f64| if positive { f.ln() } else { f };
    let middle = |(a, b): &(&Vec<f64>, &Vec<f64>)| {
        median(&sorted(&a.iter().zip(*b).map(|(&a, &b)| on(b) - on(a)).collect::<Vec<_>>()))
    };
    let differences: Vec<f64> = rounds.iter().map(middle).collect();
    let values = |of: &dyn Fn(&(usize, usize)) -> f64| both.iter().map(|p| on(of(p))).collect::<Vec<_>>();
    let (a, b) = (values(&|p| reference.values[p.0]), values(&|p| other.values[p.1]));
    judged(scale, &a, &b, &differences, seed)
}

/// The tests of differences that stand for values `a` and `b`.
fn judged(scale: Scale, a: &[f64], b: &[f64], differences: &[f64], seed: u64) -> Option<Paired> {
    let t_test = of_differences(differences)?;
    let back = |d: f64| if scale == Scale::LogRatio { d.exp() } else { d };
    Some(Paired {
        blocks: differences.len(),
        scale,
        estimate: back(mean(differences)),
        low: back(t_test.difference - t_test.half_width),
        high: back(t_test.difference + t_test.half_width),
        t_test,
        sign_flip: sign_flip(differences, seed),
        signed_rank: signed_rank(differences),
        gain: gain(a, b, differences),
    })
}

/// Values of the blocks in which both ran, in the reference's order.
fn shared(reference: Series<'_>, other: Series<'_>) -> (Vec<f64>, Vec<f64>) {
    let of = |block: usize| other.blocks.iter().position(|&b| b == block).and_then(|i| other.values.get(i));
    let both = reference.blocks.iter().zip(reference.values);
    both.filter_map(|(&block, &a)| Some((a, *of(block)?))).unzip()
}

fn gain(a: &[f64], b: &[f64], differences: &[f64]) -> Option<f64> {
    let n = differences.len() as f64;
    let (paired, unpaired) = (n - 1.0, 2.0 * n - 2.0);
    let lost = (paired + 1.0) * (unpaired + 3.0) / ((paired + 3.0) * (unpaired + 1.0));
    let gain = (variance(a) + variance(b)) / variance(differences) * lost;
    gain.is_finite().then_some(gain)
}

#[cfg(test)]
mod tests {
    use super::*;

    // R's `sleep` data: ten patients are ten blocks
    const DRUG1: [f64; 10] = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0];
    const DRUG2: [f64; 10] = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4];
    const BLOCKS: [usize; 10] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];

    fn series<'a>(name: &'a str, values: &'a [f64], blocks: &'a [usize]) -> Series<'a> {
        Series::in_blocks(name, values, blocks)
    }

    #[test]
    fn paired_t_agrees_with_r_on_the_sleep_data() {
        // t.test(DRUG2, DRUG1, paired = TRUE): t = 4.0621, df = 9, p-value = 0.002833,
        // 95 percent interval 0.7001142 2.4598858
        let p = paired(series("1", &DRUG1, &BLOCKS), series("2", &DRUG2, &BLOCKS), 1).expect("ten blocks");
        assert_eq!((p.scale, p.blocks), (Scale::Difference, 10));
        assert!((p.t_test.t - 4.062_128).abs() < 1e-5 && (p.t_test.p - 0.002_833).abs() < 1e-6);
        assert!((p.low - 0.700_114).abs() < 1e-5 && (p.high - 2.459_886).abs() < 1e-5);
        assert!(p.gain.expect("spread") > 3.0, "the patients' own sleep falls out: {:?}", p.gain);
    }

    #[test]
    fn a_machine_that_doubles_from_block_to_block_hides_nothing_from_pairs() {
        let a: Vec<f64> = (0..6).map(|i| 100.0 * f64::from(1 << i)).collect();
        let b: Vec<f64> = a.iter().enumerate().map(|(i, a)| a * (1.01 + 1e-4 * (i % 2) as f64)).collect();
        let p = paired(series("a", &a, &BLOCKS[..6]), series("b", &b, &BLOCKS[..6]), 1).expect("six blocks");
        assert_eq!(p.scale, Scale::LogRatio);
        assert!((p.estimate - 1.010_05).abs() < 1e-5 && p.low > 1.009 && p.high < 1.011, "{p:?}");
        assert!(p.gain.expect("spread") > 1e6);
    }

    #[test]
    fn blocks_in_which_one_run_failed_are_left_out() {
        let a = series("a", &[10.0, 11.0, 12.0], &[0, 1, 3]);
        let b = series("b", &[21.0, 22.5, 24.0], &[1, 2, 3]);
        let (a, b) = shared(a, b);
        assert_eq!((a, b), (vec![11.0, 12.0], vec![21.0, 24.0]));
    }

    #[test]
    fn runs_without_blocks_or_spread_are_not_paired() {
        assert_eq!(paired(Series::of("a", &DRUG1), Series::of("b", &DRUG2), 1), None);
        let a = series("a", &[1.0, 2.0, 4.0], &BLOCKS[..3]);
        assert_eq!(paired(a, a, 1), None);
    }

    #[test]
    fn rounds_that_were_disturbed_together_or_alone_move_no_estimate() {
        // five blocks of ten rounds; the other is 1 % faster; in each block four rounds run at half speed, and
        // one slice of either alone
        let blocks = [0, 1, 2, 3, 4];
        let speed = |block: usize, round: usize| if round / 4 == block % 2 { 50.0 } else { 100.0 };
        let of = |factor: f64, alone: usize| -> Vec<Vec<f64>> {
            let slice = |block: usize, round: usize| {
                let hit = if round == (alone + block) % 10 { 0.5 } else { 1.0 };
                speed(block, round) * factor * hit * (1.0 + 1e-5 * (block * 7 % 3) as f64)
            };
            (0..5).map(|block| (0..10).map(|round| slice(block, round)).collect()).collect()
        };
        let (a, b) = (of(1.0, 3), of(1.01, 8));
        let sums = |rounds: &[Vec<f64>]| rounds.iter().map(|r| mean(r)).collect::<Vec<f64>>();
        let (of_a, of_b) = (sums(&a), sums(&b));
        let series = |name, values, rounds| Series { name, values, blocks: &blocks, rounds };
        let (a, b) = (series("a", &of_a, &a), series("b", &of_b, &b));
        let p = in_rounds(a, b, 1);
        assert_eq!(p, None, "no spread, no test");
        let mut off = b.rounds.to_vec();
        off.iter_mut().enumerate().for_each(|(i, r)| r.iter_mut().for_each(|f| *f *= 1.0 + 1e-4 * i as f64));
        let p = in_rounds(a, Series { rounds: &off, ..b }, 1).expect("five blocks");
        assert!((p.estimate - 1.0102).abs() < 1e-4, "{p:?}");
        let whole = paired(a, b, 1).expect("five blocks");
        assert!((whole.estimate - 1.01).abs() > 1e-3, "the sums are moved: {whole:?}");
    }

    #[test]
    fn runs_without_slices_have_no_rounds_to_pair() {
        let a = series("a", &[1.0, 2.0, 4.0], &BLOCKS[..3]);
        assert_eq!(in_rounds(a, a, 1), None);
    }

    #[test]
    fn pairing_what_has_nothing_in_common_costs_degrees_of_freedom() {
        // independent sets: the variances alone say 1, the lost degrees of freedom less
        let a = [0.0, 1.0, 0.0, 1.0, 5.0];
        let b = [0.0, 0.0, 1.0, 1.0, 5.0 / 9.0];
        let d: Vec<f64> = a.iter().zip(&b).map(|(a, b)| b - a).collect();
        let raw = (variance(&a) + variance(&b)) / variance(&d);
        assert!((gain(&a, &b, &d).expect("spread") / raw - 55.0 / 63.0).abs() < 1e-12);
    }
}
