//! Mann and Whitney's U (1947): which of two sets tends to be larger, whatever their distribution.
//!
//! Exact below [`EXACT_CELLS`] when no values tie; otherwise the normal approximation with the
//! correction for ties and continuity.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Normal};

/// n₁·n₂ up to which the exact distribution is counted: 50 × 50 runs; the count costs n₁·n₁·n₂ sums.
const EXACT_CELLS: usize = 2500;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct UTest {
    /// Pairs in which the other set's value is larger, ties counted half.
    pub u: f64,
    /// Two-sided.
    pub p: f64,
    /// Whether `p` counts every ordering or is the normal approximation.
    pub exact: bool,
    /// Share of pairs in which the other set's value is larger: ½ when nothing differs.
    pub superiority: f64,
}

/// `None` for an empty set.
pub fn mann_whitney(reference: &[f64], other: &[f64]) -> Option<UTest> {
    let (n1, n2) = (reference.len(), other.len());
    if n1 == 0 || n2 == 0 {
        return None;
    }
    let mut u = 0.0;
    for b in other {
        for a in reference {
            u += if b > a { 1.0 } else { f64::from(u8::from(b == a)) / 2.0 };
        }
    }
    let ties = tied_groups(reference, other);
    let exact = ties.is_empty() && n1 * n2 <= EXACT_CELLS;
    let p = if exact { exact_p(u, n1, n2) } else { normal_p(u, n1 as f64, n2 as f64, &ties) };
    Some(UTest { u, p, exact, superiority: u / (n1 * n2) as f64 })
}

/// Sizes of the groups of equal values over both sets.
fn tied_groups(reference: &[f64], other: &[f64]) -> Vec<f64> {
    let mut all = [reference, other].concat();
    all.sort_by(f64::total_cmp);
    all.chunk_by(|a, b| a == b).map(|g| g.len() as f64).filter(|&n| n > 1.0).collect()
}

/// Counts the orderings with a U at least as far from its middle.
fn exact_p(u: f64, n1: usize, n2: usize) -> f64 {
    let counts = orderings(n1, n2);
    let total: f64 = counts.iter().sum();
    let low = u.min((n1 * n2) as f64 - u) as usize;
    (2.0 * counts[..=low].iter().sum::<f64>() / total).min(1.0)
}

/// Orderings by U: coefficients of the Gaussian binomial Π (1 − xⁿ²⁺ⁱ) / (1 − xⁱ) for i = 1…n₁.
fn orderings(n1: usize, n2: usize) -> Vec<f64> {
    let top = n1 * n2;
    let mut counts = vec![0.0; top + 1];
    counts[0] = 1.0;
    for i in 1..=n1 {
        for u in (n2 + i..=top).rev() {
            counts[u] -= counts[u - n2 - i];
        }
        for u in i..=top {
            counts[u] += counts[u - i];
        }
    }
    counts
}

fn normal_p(u: f64, n1: f64, n2: f64, ties: &[f64]) -> f64 {
    let n = n1 + n2;
    let tied: f64 = ties.iter().map(|t| t * t * t - t).sum::<f64>() / (n * (n - 1.0));
    let sigma = (n1 * n2 / 12.0 * (n + 1.0 - tied)).sqrt();
    if sigma <= 0.0 || sigma.is_nan() {
        return 1.0;
    }
    let z = ((u - n1 * n2 / 2.0).abs() - 0.5).max(0.0) / sigma;
    Normal::new(0.0, 1.0).map_or(f64::NAN, |d| (2.0 * d.sf(z)).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn exact_value_agrees_with_hollander_and_wolfe() {
        // R's help page of wilcox.test, tubal placenta data: W = 35 for x against y, two-sided p = 0.2544
        let x = [0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46];
        let y = [1.15, 0.88, 0.90, 0.74, 1.21];
        let test = mann_whitney(&y, &x).expect("two sets");
        assert_eq!((test.u, test.exact), (35.0, true));
        assert!((test.p - 0.254_412_3).abs() < 1e-6, "{}", test.p);
    }

    #[test]
    fn fully_separated_sets_of_five_have_the_least_value_there_is() {
        let test = mann_whitney(&[1.0, 2.0, 3.0, 4.0, 5.0], &[6.0, 7.0, 8.0, 9.0, 10.0]).expect("two sets");
        assert!((test.p - 2.0 / 252.0).abs() < 1e-12);
        assert_eq!(test.superiority, 1.0);
    }

    #[test]
    fn ties_use_the_corrected_approximation() {
        // groups of 3, 2, 2, 2: σ² = 25/12 · (11 − (24 + 6 + 6 + 6)/90) = 21.94, z = (7.5 − 0.5)/4.684 = 1.4943
        let test = mann_whitney(&[2.0, 3.0, 4.0, 5.0, 5.0], &[1.0, 2.0, 2.0, 3.0, 4.0]).expect("two sets");
        assert!(!test.exact);
        assert_eq!(test.u, 5.0);
        assert!((test.p - 0.1351).abs() < 5e-4, "{}", test.p);
    }

    #[test]
    fn equal_values_everywhere_differ_in_nothing() {
        let test = mann_whitney(&[3.0; 4], &[3.0; 4]).expect("two sets");
        assert_eq!((test.p, test.superiority), (1.0, 0.5));
    }

    proptest! {
        #[test]
        fn swapping_the_sets_mirrors_u_and_keeps_p(
            a in proptest::collection::vec(0.0..1.0f64, 1..12),
            b in proptest::collection::vec(0.0..1.0f64, 1..12),
        ) {
            let ab = mann_whitney(&a, &b).expect("two sets");
            let ba = mann_whitney(&b, &a).expect("two sets");
            prop_assert_eq!(ab.u + ba.u, (a.len() * b.len()) as f64);
            prop_assert!((ab.p - ba.p).abs() < 1e-9);
        }

        #[test]
        fn orderings_sum_to_the_binomial(n1 in 1usize..9, n2 in 1usize..9) {
            let total: f64 = orderings(n1, n2).iter().sum();
            let mut binomial = 1.0;
            for i in 1..=n1 {
                binomial = binomial * (n2 + i) as f64 / i as f64;
            }
            prop_assert!((total - binomial).abs() < 1e-6);
        }
    }
}
