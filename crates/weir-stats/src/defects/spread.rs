//! Unequal spread of a pair: the ratio of two variances by Fisher's F (1924), exact for normal runs.
//!
//! Tests that lean less on the normal distribution (Levene, Brown and Forsythe) hardly ever see anything in
//! five or ten runs, which is what campaigns have. On skewed runs this one alarms more often than stated;
//! what it advises, to believe Welch's test, costs nothing then.

use statrs::distribution::{ContinuousCDF, FisherSnedecor};

use crate::summary::variance;

/// Below, only deviations nine times as wide would be seen.
const FEWEST_RUNS: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Two-sided.
    pub p: f64,
    /// Deviation of the other by the reference's; `None` when one of them has none.
    pub ratio: Option<f64>,
}

/// `None` below five runs a set or without any spread.
pub fn spread(reference: &[f64], other: &[f64]) -> Option<Spread> {
    let (n1, n2) = (reference.len(), other.len());
    let (v1, v2) = (variance(reference), variance(other));
    if n1.min(n2) < FEWEST_RUNS || v1 + v2 <= 0.0 {
        return None;
    }
    if v1 == 0.0 || v2 == 0.0 {
        return Some(Spread { p: 0.0, ratio: None });
    }
    let f = FisherSnedecor::new(n2 as f64 - 1.0, n1 as f64 - 1.0).ok()?;
    let tail = f.cdf(v2 / v1).min(f.sf(v2 / v1));
    Some(Spread { p: (2.0 * tail).min(1.0), ratio: Some((v2 / v1).sqrt()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NARROW: [f64; 6] = [10.0, 10.1, 9.9, 10.2, 9.8, 10.05];

    #[test]
    fn critical_values_are_those_of_the_tables() {
        // F(4, 4) at 0.5 %: 23.15, so that deviations 4.81 times as wide have p = 0.01
        let a = [1.0, 2.0, 3.0, 4.0, 5.0];
        let s = spread(&a, &a.map(|f| f * 23.1545f64.sqrt())).expect("five each");
        assert!((s.p - 0.01).abs() < 1e-5, "{s:?}");
        let mirrored = spread(&a.map(|f| f * 23.1545f64.sqrt()), &a).expect("five each");
        assert!((mirrored.p - s.p).abs() < 1e-12);
    }

    #[test]
    fn spread_is_compared_whatever_the_level() {
        let wide = NARROW.map(|f| 500.0 + (f - 10.0) * 40.0);
        let s = spread(&NARROW, &wide).expect("six each");
        assert!((s.ratio.expect("both spread") - 40.0).abs() < 1e-9 && s.p < 1e-5, "{s:?}");
        assert!(spread(&NARROW, &NARROW.map(|f| f * 2.0 - 3.0)).expect("six").p > 0.05);
    }

    #[test]
    fn constant_sets_are_told_from_spreading_ones() {
        assert_eq!(spread(&[7.0; 6], &NARROW), Some(Spread { p: 0.0, ratio: None }));
        assert_eq!(spread(&[7.0; 6], &[8.0; 6]), None);
        assert_eq!(spread(&NARROW[..4], &NARROW), None);
    }
}
