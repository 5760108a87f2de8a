//! Outliers: Rosner's generalised extreme studentised deviate (1983), up to a fifth of the runs.
//!
//! The farthest run is taken away, then the farthest of the rest, and so on; the last step at which it lay
//! farther than normal values of that number do decides how many there are. One outlier cannot hide
//! another, and a set of five raises no more false alarms than a set of fifty.

use super::{FALSE_ALARM, squares};
use crate::student::quantile;
use crate::summary::mean;

/// Below, no run can lie far from the others by this measure.
const FEWEST_RUNS: usize = 5;

/// Places of the outliers, ascending.
pub fn outliers(values: &[f64]) -> Vec<usize> {
    if values.len() < FEWEST_RUNS {
        return Vec::new();
    }
    let mut left: Vec<usize> = (0..values.len()).collect();
    let mut taken = Vec::new();
    let mut found = 0;
    for _ in 0..values.len() / 5 {
        let values: Vec<f64> = left.iter().map(|&i| values[i]).collect();
        let (centre, n) = (mean(&values), values.len() as f64);
        let sd = (squares(&values) / (n - 1.0)).sqrt();
        let away = |at: &usize| (values[*at] - centre).abs();
        let farthest = (0..left.len()).max_by(|a, b| away(a).total_cmp(&away(b)));
        let Some(farthest) = farthest.filter(|_| sd > 0.0) else { break };
        let deviate = away(&farthest) / sd;
        taken.push(left.remove(farthest));
        if deviate > critical(n) {
            found = taken.len();
        }
    }
    taken.truncate(found);
    taken.sort_unstable();
    taken
}

/// Grubbs' value (1950): the deviate that the farthest of `n` normal values exceeds in one set of a hundred.
fn critical(n: f64) -> f64 {
    let t = quantile(1.0 - FALSE_ALARM / (2.0 * n), n - 2.0);
    (n - 1.0) * t / (n * (n - 2.0 + t * t)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn critical_values_are_those_of_the_tables() {
        // Grubbs and Beck 1972, two-sided 1 %: n = 5: 1.764, n = 10: 2.482, n = 30: 3.236
        for (n, expected) in [(5.0, 1.764), (10.0, 2.482), (30.0, 3.236)] {
            assert!((critical(n) - expected).abs() < 1e-3, "n = {n}: {}", critical(n));
        }
    }

    #[test]
    fn outliers_that_mask_each_other_are_found_together() {
        let mut values: Vec<f64> = (0..50).map(|i| 2.5 + 0.9 * (f64::from(i) - 24.5) / 15.0).collect();
        values.extend([16.0, 15.5, -11.0]);
        assert_eq!(outliers(&values), [50, 51, 52]);
    }

    #[test]
    fn few_or_equal_values_have_none() {
        assert!(outliers(&[1.0, 1.0, 1.0, 9.0]).is_empty());
        assert!(outliers(&[3.0; 8]).is_empty());
    }
}
