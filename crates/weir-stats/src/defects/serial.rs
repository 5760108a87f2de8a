//! Autocorrelation: von Neumann's ratio of the ranks of neighbouring runs (Bartels 1982).
//!
//! ```text
//! RVN = Σ (rᵢ − rᵢ₊₁)² / Σ (rᵢ − r̄)²     2 when order says nothing, 0 for slow swings, 4 for alternation
//! ```
//!
//! RVN/4 follows a symmetric beta distribution closely from ten runs (Bartels' own approximation). Ranks, so
//! that one outlier cannot hide or fake it; ties share their middle rank.

use statrs::distribution::{Beta, ContinuousCDF};

use super::squares;
use crate::summary::{mean, sorted};

/// Below, the approximation is off by more than the alarm's own chance.
const FEWEST_RUNS: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Serial {
    /// Two-sided.
    pub p: f64,
    /// Correlation of each value with the one before.
    pub correlation: f64,
}

/// `None` below ten runs or without spread.
pub fn serial(values: &[f64]) -> Option<Serial> {
    if values.len() < FEWEST_RUNS {
        return None;
    }
    let ascending = sorted(values);
    let rank = |f: &f64| {
        let below = ascending.partition_point(|a| a < f);
        let up_to = ascending.partition_point(|a| a <= f);
        (below + up_to + 1) as f64 / 2.0
    };
    let ranks: Vec<f64> = values.iter().map(rank).collect();
    let steps: f64 = ranks.windows(2).map(|w| (w[0] - w[1]).powi(2)).sum();
    let ratio = steps / squares(&ranks);
    if !ratio.is_finite() {
        return None;
    }
    let n = values.len() as f64;
    let shape =
        5.0 * n * (n + 1.0) * (n - 1.0).powi(2) / (2.0 * (n - 2.0) * (5.0 * n * n - 2.0 * n - 9.0)) - 0.5;
    let beta = Beta::new(shape, shape).ok()?;
    let low = beta.cdf((ratio / 4.0).clamp(0.0, 1.0));
    let p = (2.0 * low.min(1.0 - low)).min(1.0);
    let centre = mean(values);
    let products: f64 = values.windows(2).map(|w| (w[0] - centre) * (w[1] - centre)).sum();
    Some(Serial { p, correlation: products / squares(values) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn critical_values_are_those_bartels_printed() {
        // Bartels 1982, n = 10: lower 5 % point of RVN 1.04, 1 % point 0.72
        let p = |rvn: f64, n: f64| {
            let shape = 5.0 * n * (n + 1.0) * (n - 1.0).powi(2)
                / (2.0 * (n - 2.0) * (5.0 * n * n - 2.0 * n - 9.0))
                - 0.5;
            Beta::new(shape, shape).expect("positive").cdf(rvn / 4.0)
        };
        assert!((p(1.04, 10.0) - 0.05).abs() < 0.003, "{}", p(1.04, 10.0));
        assert!((p(0.72, 10.0) - 0.01).abs() < 0.003, "{}", p(0.72, 10.0));
    }

    #[test]
    fn slow_swings_resemble_and_alternation_contradicts() {
        let swing: Vec<f64> = (0..20).map(|i| (f64::from(i) * 0.6).sin()).collect();
        let s = serial(&swing).expect("twenty");
        assert!(s.p < 1e-4 && s.correlation > 0.7, "{s:?}");
        let zigzag: Vec<f64> = (0..20).map(|i| f64::from(i % 2) + 0.01 * f64::from(i * 7 % 20)).collect();
        let s = serial(&zigzag).expect("twenty");
        assert!(s.p < 1e-3 && s.correlation < -0.8, "{s:?}");
    }

    #[test]
    fn too_few_runs_and_equal_ones_say_nothing() {
        assert_eq!(serial(&[1.0, 2.0, 3.0]), None);
        assert_eq!(serial(&[1.0; 12]), None);
    }
}
