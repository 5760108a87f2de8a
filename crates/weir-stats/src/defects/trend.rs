//! Drift: Mann and Kendall's trend test (Mann 1945, Kendall 1975).
//!
//! Exact without ties up to [`EXACT_RUNS`], the normal approximation with the correction for ties otherwise.

use statrs::distribution::{ContinuousCDF, Normal};

use crate::summary::sorted;

/// Five runs in perfect order have p = 2/120: no alarm at 1 % is possible.
const FEWEST_RUNS: usize = 6;
/// 30 runs: 435 inversions over 30 steps; beyond, the approximation is closer than 0.001 at 1 %.
const EXACT_RUNS: usize = 30;

/// Two-sided p and whether values rise; `None` below `FEWEST_RUNS`.
pub fn trend(values: &[f64]) -> Option<(f64, bool)> {
    let n = values.len();
    if n < FEWEST_RUNS {
        return None;
    }
    let mut s = 0i64;
    for (i, a) in values.iter().enumerate() {
        for b in &values[i + 1..] {
            s += i64::from(b > a) - i64::from(b < a);
        }
    }
    let ascending = sorted(values);
    let ties: Vec<f64> = ascending.chunk_by(|a, b| a == b).map(|g| g.len() as f64).collect();
    let tied = ties.len() < n;
    let p = if tied || n > EXACT_RUNS { normal_p(s, n as f64, &ties) } else { exact_p(s, n) };
    Some((p, s > 0))
}

/// Chance of as many inversions, or as few: an ordering of n has k inversions as often as n tosses of dice
/// with 1, 2 … n sides, counted from zero, sum to k.
fn exact_p(s: i64, n: usize) -> f64 {
    let pairs = n * (n - 1) / 2;
    let mut share = vec![0.0; pairs + 1];
    share[0] = 1.0;
    for sides in 2..=n {
        // what one die less gave, summed over the window of the new one's faces
        let before = share.clone();
        let mut window = 0.0;
        for (k, chance) in share.iter_mut().enumerate() {
            window += before[k];
            if let Some(left) = k.checked_sub(sides) {
                window -= before[left];
            }
            *chance = window / sides as f64;
        }
    }
    // S = pairs − 2 · inversions
    let inversions = (pairs - s.unsigned_abs() as usize) / 2;
    // the windows' rounding may leave less than nothing
    (2.0 * share[..=inversions].iter().sum::<f64>()).clamp(0.0, 1.0)
}

fn normal_p(s: i64, n: f64, ties: &[f64]) -> f64 {
    let part = |t: f64| t * (t - 1.0) * (2.0 * t + 5.0);
    let sigma = ((part(n) - ties.iter().map(|&t| part(t)).sum::<f64>()) / 18.0).sqrt();
    if sigma <= 0.0 {
        return 1.0;
    }
    let z = (s.unsigned_abs() as f64 - 1.0).max(0.0) / sigma;
    Normal::new(0.0, 1.0).map_or(f64::NAN, |d| (2.0 * d.sf(z)).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perfect_order_is_one_of_all_orderings() {
        let rising: Vec<f64> = (0..8).map(f64::from).collect();
        // 8! = 40,320 orderings, two as far from the middle
        let (p, up) = trend(&rising).expect("eight");
        assert!(up && (p - 2.0 / 40_320.0).abs() < 1e-12, "{p}");
        let falling: Vec<f64> = rising.iter().rev().copied().collect();
        assert_eq!(trend(&falling).expect("eight"), (p, false));
        assert_eq!(trend(&rising[..5]), None);
    }

    #[test]
    fn count_agrees_with_the_published_table() {
        // Kaarsemaker and van Wijngaarden 1953, as in Hollander and Wolfe's table A.30: n = 10,
        // P(S ≥ 21) = 0.036, P(S ≥ 25) = 0.014
        assert!((exact_p(21, 10) / 2.0 - 0.036).abs() < 5e-4, "{}", exact_p(21, 10));
        assert!((exact_p(25, 10) / 2.0 - 0.014).abs() < 5e-4, "{}", exact_p(25, 10));
    }

    #[test]
    fn beyond_the_count_the_approximation_is_close() {
        let (counted, approximate) = (exact_p(147, 30), normal_p(147, 30.0, &[1.0; 30]));
        assert!(
            (0.005..0.015).contains(&counted) && (counted - approximate).abs() < 1e-3,
            "{counted} {approximate}"
        );
    }

    #[test]
    fn ties_use_the_approximation_and_equal_values_have_no_trend() {
        // n = 8, S = 28 without ties: z = 27/√65.33 = 3.340, p = 0.00084
        assert!((normal_p(28, 8.0, &[1.0; 8]) - 0.000_837).abs() < 2e-5);
        assert_eq!(trend(&[3.0; 9]).expect("nine").0, 1.0);
        let tied = trend(&[1.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]).expect("eight");
        assert!(tied.1 && tied.0 < 0.002);
    }
}
