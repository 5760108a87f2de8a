//! Sample size from a pilot: how much runs spread, within and between blocks, and how many are enough.
//!
//! ```text
//! value / its configuration's mean = 1 + block + rest      two-way analysis of variance (Fisher 1925)
//! unpaired comparison:  σ² = block² + rest²                  per run
//! paired comparison:    σ² = 2 · rest²                       per block's difference
//! ```
//!
//! Promises: the pilot's own uncertainty is part of the answer: beside every estimate stands the deviation
//! that the true one exceeds in one pilot of five (Browne 1995), and the runs it would take. Refuses: fewer
//! than two runs of every configuration; pairing where nothing says which runs shared a block.

use serde::Serialize;
use statrs::distribution::{ChiSquared, ContinuousCDF};

use super::paired::Series;
use super::power::{Design, Goal, runs_needed};
use super::summary::{mean, variance};

/// Confidence of the upper bound of a deviation.
pub const SURE: f64 = 0.8;

/// A standard deviation, in percent of the mean, and how well it is known.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Deviation {
    pub percent: f64,
    /// The true one lies above this in one pilot of five.
    pub upper_percent: f64,
    pub degrees_of_freedom: f64,
}

impl Deviation {
    fn of(variance: f64, degrees_of_freedom: f64) -> Deviation {
        let percent = variance.max(0.0).sqrt() * 100.0;
        let chi = ChiSquared::new(degrees_of_freedom).map_or(f64::NAN, |d| d.inverse_cdf(1.0 - SURE));
        Deviation { percent, upper_percent: percent * (degrees_of_freedom / chi).sqrt(), degrees_of_freedom }
    }
}

/// What a pilot says about spread.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Pilot {
    /// Blocks in which every configuration ran; 0 when runs belong to none.
    pub blocks: usize,
    /// Deviation of a run from its configuration's mean.
    pub run: Deviation,
    /// Deviation of a run from what its block and configuration let expect; absent without blocks.
    pub within_blocks: Option<Deviation>,
    /// Deviation of a block from the others; 0 when blocks differ less than chance lets them.
    pub between_blocks_percent: Option<f64>,
}

/// Runs a configuration for one effect; `None` where more than [`super::power::MOST_RUNS`] are needed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Needed {
    pub effect_percent: f64,
    pub unpaired: Option<usize>,
    /// The number of runs for the upper bound of the deviation.
    pub unpaired_sure: Option<usize>,
    pub paired: Option<usize>,
    pub paired_sure: Option<usize>,
}

/// `None` when no configuration has two runs and a mean that is not zero.
pub fn pilot(sets: &[Series<'_>]) -> Option<Pilot> {
    let usable: Vec<&Series<'_>> =
        sets.iter().filter(|s| s.values.len() > 1 && mean(s.values) != 0.0).collect();
    if usable.is_empty() {
        return None;
    }
    let table = complete(&usable);
    let (k, b) = (usable.len() as f64, table.len() as f64);
    if k < 2.0 || b < 2.0 {
        let squares = |s: &&Series<'_>| variance(s.values) / mean(s.values).powi(2);
        let df = |s: &&Series<'_>| s.values.len() as f64 - 1.0;
        let all: f64 = usable.iter().map(df).sum();
        let pooled = usable.iter().map(|s| squares(s) * df(s)).sum::<f64>() / all;
        let run = Deviation::of(pooled, all);
        return Some(Pilot { blocks: 0, run, within_blocks: None, between_blocks_percent: None });
    }
    let (between, within) = mean_squares(&table);
    // the variance of a run is (between + (k − 1) · within) / k; its degrees of freedom are Satterthwaite's
    let (from_blocks, from_rest) = (between / k, (k - 1.0) * within / k);
    let run = from_blocks + from_rest;
    let df = run * run / (from_blocks.powi(2) / (b - 1.0) + from_rest.powi(2) / ((k - 1.0) * (b - 1.0)));
    Some(Pilot {
        blocks: table.len(),
        run: Deviation::of(run, if df.is_finite() { df } else { b - 1.0 }),
        within_blocks: Some(Deviation::of(within, (k - 1.0) * (b - 1.0))),
        between_blocks_percent: Some(((between - within).max(0.0) / k).sqrt() * 100.0),
    })
}

/// A row for every block in which all ran, each value relative to its configuration's mean.
fn complete(sets: &[&Series<'_>]) -> Vec<Vec<f64>> {
    let in_block = |s: &Series<'_>, block: usize| {
        s.blocks.iter().position(|&b| b == block).and_then(|i| s.values.get(i).copied())
    };
    let mut table: Vec<Vec<f64>> = sets[0]
        .blocks
        .iter()
        .filter_map(|&block| sets.iter().map(|s| in_block(s, block)).collect::<Option<Vec<f64>>>())
        .collect();
    let columns = sets.len();
    let means: Vec<f64> =
        (0..columns).map(|i| table.iter().map(|row| row[i]).sum::<f64>() / table.len() as f64).collect();
    for row in &mut table {
        row.iter_mut().zip(&means).for_each(|(value, mean)| *value /= mean);
    }
    table
}

/// Mean squares between blocks, and within them once block and configuration are taken out.
fn mean_squares(table: &[Vec<f64>]) -> (f64, f64) {
    let (b, k) = (table.len() as f64, table[0].len() as f64);
    let blocks: Vec<f64> = table.iter().map(|row| mean(row)).collect();
    let between = k * variance(&blocks);
    // every column's mean is 1, and so is the mean of all
    let rest: f64 =
        table.iter().zip(&blocks).flat_map(|(row, m)| row.iter().map(move |f| (f - m).powi(2))).sum();
    (between, rest / ((k - 1.0) * (b - 1.0)))
}

impl Pilot {
    /// Runs for an effect of so many percent of the mean.
    pub fn needed(&self, effect_percent: f64, goal: Goal) -> Needed {
        let runs = |percent: f64, design| runs_needed(percent, effect_percent, design, goal);
        let pair = 2.0f64.sqrt();
        let within = self.within_blocks;
        Needed {
            effect_percent,
            unpaired: runs(self.run.percent, Design::Unpaired),
            unpaired_sure: runs(self.run.upper_percent, Design::Unpaired),
            paired: within.and_then(|w| runs(w.percent * pair, Design::Paired)),
            paired_sure: within.and_then(|w| runs(w.upper_percent * pair, Design::Paired)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    const BLOCKS: [usize; 4] = [0, 1, 2, 3];

    #[test]
    fn what_blocks_share_is_told_from_the_rest() {
        // blocks at −2, −1, +1, +2 %; the rest ±1 % in opposite senses
        let a = [97.0, 100.0, 100.0, 103.0];
        let b = [990.0, 980.0, 1020.0, 1010.0];
        let series = |name, values| Series::in_blocks(name, values, &BLOCKS);
        let p = pilot(&[series("a", &a), series("b", &b)]).expect("runs");
        assert_eq!(p.blocks, 4);
        // block means 0.98 0.99 1.01 1.02: MSB = 2 · 3.333e-4; residuals ±1 %: MSE = 8e-4 / 3
        let within = p.within_blocks.expect("blocks");
        assert!((within.percent - (8.0f64 / 3.0).sqrt()).abs() < 1e-9, "{within:?}");
        assert!((p.between_blocks_percent.expect("blocks") - 2.0f64.sqrt()).abs() < 1e-9, "{p:?}");
        assert!((p.run.percent.powi(2) - (8.0 / 3.0 + 2.0)).abs() < 1e-9, "{p:?}");
        assert_eq!(within.degrees_of_freedom, 3.0);
    }

    #[test]
    fn upper_bound_is_the_textbooks() {
        // 9 degrees of freedom: χ² at 20 % is 5.380, √(9 / 5.380) = 1.2934
        let values: Vec<f64> = (0..10).map(|i| 100.0 + f64::from(i)).collect();
        let p = pilot(&[Series::of("a", &values)]).expect("runs");
        assert!((p.run.upper_percent / p.run.percent - 1.2934).abs() < 1e-4, "{p:?}");
        assert_eq!((p.blocks, p.within_blocks), (0, None));
    }

    #[test]
    fn blocks_with_a_failed_run_are_left_out_and_one_run_is_no_pilot() {
        let a = Series::in_blocks("a", &[100.0, 101.0, 102.0, 99.0], &BLOCKS);
        let b = Series::in_blocks("b", &[50.0, 51.0, 50.5], &[0, 2, 3]);
        assert_eq!(pilot(&[a, b]).expect("runs").blocks, 3);
        assert_eq!(pilot(&[Series::of("a", &[1.0])]), None);
    }

    #[test]
    fn runs_planned_fall_where_blocks_carry_the_spread() {
        let mut random = Random::new(5);
        let mut normal =
            || (0..12).map(|_| random.below(1 << 20) as f64 / f64::from(1 << 20)).sum::<f64>() - 6.0;
        let blocks: Vec<usize> = (0..20).collect();
        let common: Vec<f64> = (0..20).map(|_| 4.0 * normal()).collect();
        let mut set = || common.iter().map(|c| 100.0 + c + 0.5 * normal()).collect::<Vec<f64>>();
        let (a, b) = (set(), set());
        let series = |name, values| Series::in_blocks(name, values, &blocks);
        let needed = pilot(&[series("a", &a), series("b", &b)]).expect("runs").needed(1.0, Goal::default());
        let (unpaired, paired) = (needed.unpaired.expect("few"), needed.paired.expect("few"));
        assert!(unpaired > 100 && paired < 15, "{needed:?}");
        assert!(needed.paired_sure.expect("few") > paired);
    }
}
