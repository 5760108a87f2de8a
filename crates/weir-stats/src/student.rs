//! Student's t with pooled deviation, and Welch's t without (Student 1908, Welch 1947).

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

use super::summary::{mean, variance};

/// A t test of `other − reference`, with what its printed sentence needs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TTest {
    /// Difference of the means, other − reference.
    pub difference: f64,
    /// Half width of the 95 % interval around the difference.
    pub half_width: f64,
    pub standard_error: f64,
    pub t: f64,
    pub degrees_of_freedom: f64,
    /// Two-sided.
    pub p: f64,
}

/// Student's test: both sets share one deviation. `None` below two values a set or without any spread.
pub fn student(reference: &[f64], other: &[f64]) -> Option<TTest> {
    let (n1, n2) = counts(reference, other)?;
    let df = n1 + n2 - 2.0;
    let pooled = ((n1 - 1.0) * variance(reference) + (n2 - 1.0) * variance(other)) / df;
    test(reference, other, (pooled * (1.0 / n1 + 1.0 / n2)).sqrt(), df)
}

/// Welch's test: each set has its own deviation (Welch–Satterthwaite degrees of freedom).
pub fn welch(reference: &[f64], other: &[f64]) -> Option<TTest> {
    let (n1, n2) = counts(reference, other)?;
    let (v1, v2) = (variance(reference) / n1, variance(other) / n2);
    let df = (v1 + v2).powi(2) / (v1 * v1 / (n1 - 1.0) + v2 * v2 / (n2 - 1.0));
    test(reference, other, (v1 + v2).sqrt(), df)
}

/// The paired test: whether differences, one a block, have a mean of zero. `None` below two or without
/// spread.
pub fn of_differences(differences: &[f64]) -> Option<TTest> {
    let n = differences.len() as f64;
    let standard_error = (variance(differences) / n).sqrt();
    // equal differences differ by rounding only
    let spread = standard_error > mean(differences).abs() * 1e-13;
    (differences.len() > 1 && spread).then(|| about(mean(differences), standard_error, n - 1.0))?
}

fn counts(reference: &[f64], other: &[f64]) -> Option<(f64, f64)> {
    (reference.len() > 1 && other.len() > 1).then_some((reference.len() as f64, other.len() as f64))
}

fn test(reference: &[f64], other: &[f64], standard_error: f64, df: f64) -> Option<TTest> {
    about(mean(other) - mean(reference), standard_error, df)
}

fn about(difference: f64, standard_error: f64, df: f64) -> Option<TTest> {
    if standard_error <= 0.0 || !standard_error.is_finite() {
        return None;
    }
    let t = difference / standard_error;
    Some(TTest {
        difference,
        half_width: quantile(0.975, df) * standard_error,
        standard_error,
        t,
        degrees_of_freedom: df,
        p: (2.0 * upper_tail(t.abs(), df)).min(1.0),
    })
}

/// P(T > t).
pub fn upper_tail(t: f64, df: f64) -> f64 {
    StudentsT::new(0.0, 1.0, df).map_or(f64::NAN, |d| d.sf(t))
}

/// The value below which a share `p` of Student's distribution lies.
pub fn quantile(p: f64, df: f64) -> f64 {
    StudentsT::new(0.0, 1.0, df).map_or(f64::NAN, |d| d.inverse_cdf(p))
}

#[cfg(test)]
mod tests {
    use super::*;

    // R's `sleep` data: extra hours of sleep under two drugs
    const DRUG1: [f64; 10] = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0];
    const DRUG2: [f64; 10] = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4];

    fn close(got: f64, expected: f64) {
        assert!((got - expected).abs() < 1e-5 * expected.abs().max(1.0), "got {got}, expected {expected}");
    }

    #[test]
    fn welch_agrees_with_r_on_the_sleep_data() {
        // t.test(extra ~ group, data = sleep): t = -1.8608, df = 17.776, p-value = 0.07939,
        // 95 percent interval -3.3654832 0.2054832
        let w = welch(&DRUG1, &DRUG2).expect("spread");
        close(w.t, 1.860_813);
        close(w.degrees_of_freedom, 17.776_47);
        close(w.p, 0.079_394);
        close(w.difference - w.half_width, -0.205_483_2);
        close(w.difference + w.half_width, 3.365_483_2);
    }

    #[test]
    fn student_agrees_with_r_on_the_sleep_data() {
        // t.test(…, var.equal = TRUE): t = -1.8608, df = 18, p-value = 0.07919
        let s = student(&DRUG1, &DRUG2).expect("spread");
        close(s.t, 1.860_813);
        close(s.degrees_of_freedom, 18.0);
        close(s.p, 0.079_187);
    }

    #[test]
    fn sets_without_spread_or_with_one_value_have_no_test() {
        assert_eq!(student(&[1.0, 1.0], &[1.0, 1.0]), None);
        assert_eq!(welch(&[1.0], &[1.0, 2.0]), None);
    }

    #[test]
    fn quantiles_are_those_of_the_tables() {
        close(quantile(0.975, 8.0), 2.306_004);
        close(quantile(0.975, 1.0), 12.706_205);
        close(quantile(0.975, 1000.0), 1.962_339);
    }
}
