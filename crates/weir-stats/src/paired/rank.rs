//! Wilcoxon's signed ranks (1945): whether differences lean to one side, by their ranks.
//!
//! Exact up to [`EXACT_BLOCKS`], ties included: every assignment of signs to the ranks there are is counted.
//! Blocks without a difference are left out, as Wilcoxon did.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Normal};

use crate::summary::sorted;

/// 100 blocks: 100 · 10,100 additions.
const EXACT_BLOCKS: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SignedRank {
    /// Sum of the ranks of the differences above zero.
    pub w: f64,
    /// Two-sided.
    pub p: f64,
    pub exact: bool,
}

pub fn signed_rank(differences: &[f64]) -> SignedRank {
    let differences: Vec<f64> = differences.iter().copied().filter(|d| *d != 0.0).collect();
    let twice = twice_ranks(&differences);
    let above: usize = twice.iter().zip(&differences).filter(|(_, d)| **d > 0.0).map(|(r, _)| r).sum();
    let total: usize = twice.iter().sum();
    let low = above.min(total - above);
    let w = above as f64 / 2.0;
    if differences.len() <= EXACT_BLOCKS {
        let share = shares(&twice, total);
        let p = (2.0 * share[..=low].iter().sum::<f64>()).min(1.0);
        return SignedRank { w, p, exact: true };
    }
    SignedRank { w, p: normal_p(&twice, total, low), exact: false }
}

/// Normal approximation: variance Σ rank² / 4, ties included; corrected for continuity.
fn normal_p(twice: &[usize], total: usize, low: usize) -> f64 {
    let sigma = twice.iter().map(|&r| (r as f64 / 2.0).powi(2)).sum::<f64>().sqrt() / 2.0;
    let z = ((total as f64 / 4.0 - low as f64 / 2.0) - 0.5).max(0.0) / sigma;
    Normal::new(0.0, 1.0).map_or(f64::NAN, |d| (2.0 * d.sf(z)).min(1.0))
}

/// Twice the rank of each size, ties sharing their middle: whole numbers.
fn twice_ranks(differences: &[f64]) -> Vec<usize> {
    let sizes = sorted(&differences.iter().map(|d| d.abs()).collect::<Vec<_>>());
    let rank = |d: &f64| {
        let below = sizes.partition_point(|s| *s < d.abs());
        let up_to = sizes.partition_point(|s| *s <= d.abs());
        below + up_to + 1
    };
    differences.iter().map(rank).collect()
}

/// Chance of each sum of ranks when every sign is a toss.
fn shares(ranks: &[usize], total: usize) -> Vec<f64> {
    let mut share = vec![0.0; total + 1];
    share[0] = 1.0;
    for &rank in ranks {
        for sum in (0..=total).rev() {
            let without = if sum >= rank { share[sum - rank] } else { 0.0 };
            share[sum] = (share[sum] + without) / 2.0;
        }
    }
    share
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_value_agrees_with_hollander_and_wolfe() {
        // R's help page of wilcox.test, depression scores before less after: V = 40 of nine patients, two-sided p = 0.03906
        let differences = [0.952, -0.147, 1.022, 0.43, 0.62, 0.59, 0.49, -0.08, 0.01];
        let test = signed_rank(&differences);
        assert_eq!((test.w, test.exact), (40.0, true));
        assert!((test.p - 0.039_062_5).abs() < 1e-9, "{}", test.p);
    }

    #[test]
    fn ties_are_counted_exactly() {
        // sizes 1, 1, 2 have ranks 1.5, 1.5, 3; of 8 sums 0 1.5 1.5 3 3 4.5 4.5 6 two are as far as 6 or 0
        let test = signed_rank(&[1.0, 1.0, 2.0]);
        assert_eq!((test.w, test.p), (6.0, 0.25));
        assert_eq!(signed_rank(&[0.0, 0.0]).p, 1.0);
    }

    #[test]
    fn many_blocks_use_the_normal_approximation_close_to_the_count() {
        let differences = |n: usize| -> Vec<f64> {
            (1..=n).map(|i| if i % 5 < 2 { -(i as f64) } else { i as f64 }).collect()
        };
        let counted = signed_rank(&differences(100));
        let twice = twice_ranks(&differences(100));
        let total: usize = twice.iter().sum();
        let low = total - (2.0 * counted.w) as usize;
        let approximate = normal_p(&twice, total, low);
        assert!(
            counted.exact && (counted.p - approximate).abs() < 1e-3,
            "{} against {approximate}",
            counted.p
        );
        assert!(!signed_rank(&differences(101)).exact);
    }
}
