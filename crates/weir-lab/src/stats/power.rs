//! What an experiment could have seen: minimum detectable effect, and the runs a smaller one needs.
//!
//! The usual approximation of the power of a t test at 5 % (two-sided) and 80 %:
//! effect = (t₀.₉₇₅ + t₀.₈) · standard error.

use super::student::quantile;

/// More runs than this are not asked for: at 5 s each it is a day.
pub const MOST_RUNS: usize = 17_280;

/// The least difference of means found in four of five experiments like this one.
pub fn minimum_detectable_effect(standard_error: f64, degrees_of_freedom: f64) -> f64 {
    (quantile(0.975, degrees_of_freedom) + quantile(0.8, degrees_of_freedom)) * standard_error
}

/// Runs a configuration needed to detect `effect` when both sets deviate by `sd`; `None` beyond
/// [`MOST_RUNS`].
pub fn runs_needed(sd: f64, effect: f64) -> Option<usize> {
    let enough = |n: usize| {
        let standard_error = sd * (2.0 / n as f64).sqrt();
        minimum_detectable_effect(standard_error, 2.0 * n as f64 - 2.0) <= effect
    };
    if !enough(MOST_RUNS) {
        return None;
    }
    let (mut low, mut high) = (1, MOST_RUNS);
    while high - low > 1 {
        let middle = (low + high) / 2;
        if enough(middle) { high = middle } else { low = middle }
    }
    Some(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_deviation_needs_seventeen_runs() {
        // power.t.test(delta = 1, sd = 1, power = 0.8): n = 16.71
        assert_eq!(runs_needed(1.0, 1.0), Some(17));
    }

    #[test]
    fn an_effect_far_below_the_noise_is_not_asked_for() {
        assert_eq!(runs_needed(1.0, 1e-6), None);
    }

    #[test]
    fn what_is_detectable_shrinks_with_runs() {
        let five = minimum_detectable_effect((2.0f64 / 5.0).sqrt(), 8.0);
        let twenty = minimum_detectable_effect((2.0f64 / 20.0).sqrt(), 38.0);
        assert!(twenty < five / 1.9, "{five} to {twenty}");
    }
}
