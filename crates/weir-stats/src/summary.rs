//! The six values a set of runs is described by.

use serde::{Deserialize, Serialize};

/// Described as the modern ministat does: median of an even count is the midpoint, deviation is of a
/// sample (n − 1).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub n: usize,
    pub min: f64,
    pub max: f64,
    pub median: f64,
    pub mean: f64,
    /// Absent with a single run: one run has no deviation, not a deviation of zero.
    pub sd: Option<f64>,
}

impl Summary {
    /// `None` for no values.
    pub fn of(values: &[f64]) -> Option<Summary> {
        if values.is_empty() {
            return None;
        }
        let sorted = sorted(values);
        let n = values.len();
        Some(Summary {
            n,
            min: sorted[0],
            max: sorted[n - 1],
            median: median(&sorted),
            mean: mean(values),
            sd: (n > 1).then(|| variance(values).sqrt()),
        })
    }

    /// Standard deviation as a share of the mean.
    pub fn variation(&self) -> Option<f64> {
        (self.mean != 0.0).then(|| self.sd.map(|sd| (sd / self.mean).abs())).flatten()
    }
}

/// The values in ascending order, NaN last.
pub fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Midpoint median of ascending values; NaN for none.
pub fn median(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 0 => (sorted[half] + sorted[half - 1]) / 2.0,
        _ => sorted[half],
    }
}

pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The variance of a sample (divided by n − 1); NaN for fewer than two values.
pub fn variance(values: &[f64]) -> f64 {
    let mean = mean(values);
    values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (values.len() as f64 - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_set_is_described_as_r_describes_it() {
        // summary(x); sd(x) for x = c(2, 4, 4, 4, 5, 5, 7, 9): mean 5, sd 2.13809
        let s = Summary::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).expect("values");
        assert_eq!((s.n, s.min, s.max, s.median, s.mean), (8, 2.0, 9.0, 4.5, 5.0));
        assert!((s.sd.expect("eight runs") - 2.138_089_935).abs() < 1e-9);
    }

    #[test]
    fn median_of_an_even_count_is_the_midpoint() {
        assert_eq!(Summary::of(&[4.0, 1.0, 2.0, 3.0]).expect("values").median, 2.5);
    }

    #[test]
    fn one_run_has_no_deviation_and_none_has_no_summary() {
        assert_eq!(Summary::of(&[7.0]).expect("a value").sd, None);
        assert_eq!(Summary::of(&[]), None);
    }

    proptest! {
        #[test]
        fn the_centre_lies_within_the_ends(values in proptest::collection::vec(-1e9..1e9f64, 1..40)) {
            let s = Summary::of(&values).expect("values");
            prop_assert!(s.min <= s.median && s.median <= s.max);
            prop_assert!(s.min - 1e-6 <= s.mean && s.mean <= s.max + 1e-6);
        }
    }
}
