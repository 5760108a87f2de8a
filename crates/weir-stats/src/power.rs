//! What an experiment could have seen: minimum detectable effect, and the runs a smaller one needs.
//!
//! The power of a two-sided t test, exactly: the deviation s of the sample is integrated over its own
//! distribution (df · s² is χ²), the mean given s is normal. Equal to the noncentral t of the textbooks
//! (Cohen 1988), and exact at three runs where the usual sum of two quantiles is not.

use statrs::distribution::{ContinuousCDF, Normal};

use super::student::quantile;

/// More runs than this are not asked for: at 5 s each it is a day.
pub const MOST_RUNS: usize = 17_280;
/// Fewer are not advised: at three runs Welch's test finds less than a plan counts on, and no rank test or
/// relabelling can reach 5 %.
pub const FEWEST_RUNS: usize = 5;
/// Steps of Simpson's rule: three digits more than any value here is printed with.
const STEPS: u32 = 128;

/// What an experiment must be able to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// Chance of a false *different*, two-sided.
    pub alpha: f64,
    /// Chance to find what is there.
    pub power: f64,
}

impl Default for Goal {
    fn default() -> Self {
        Goal { alpha: 0.05, power: 0.8 }
    }
}

/// How runs make a standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Design {
    /// Two sets, `sd` within each: sd · √(2/n), 2n − 2 degrees of freedom.
    Unpaired,
    /// Differences inside blocks, `sd` of a difference: sd / √n, n − 1 degrees of freedom.
    Paired,
}

impl Design {
    /// Standard error and degrees of freedom of `runs` runs a configuration.
    pub fn precision(self, sd: f64, runs: usize) -> (f64, f64) {
        let n = runs as f64;
        match self {
            Design::Unpaired => (sd * (2.0 / n).sqrt(), 2.0 * n - 2.0),
            Design::Paired => (sd / n.sqrt(), n - 1.0),
        }
    }
}

/// Chance that a two-sided t test at `alpha` finds an effect of `effect` standard errors.
pub fn power(effect: f64, degrees_of_freedom: f64, alpha: f64) -> f64 {
    let df = degrees_of_freedom;
    let critical = quantile(1.0 - alpha / 2.0, df);
    let Ok(normal) = Normal::new(0.0, 1.0) else { return f64::NAN };
    let found = |s: f64| normal.cdf(effect - critical * s) + normal.cdf(-effect - critical * s);
    // s spreads by about 1/√(2 df) around 1; eight of those leave out less than 1e-12
    let reach = 8.0 / (2.0 * df).sqrt();
    let (low, high) = ((1.0 - reach).max(0.0), 1.0 + reach);
    // (df − 1) ln s − df (s² − 1)/2: zero at s = 1, so that large df do not underflow
    let density = |s: f64| match s {
        0.0 if df > 1.0 => 0.0,
        s => (if df > 1.0 { (df - 1.0) * s.ln() } else { 0.0 } - df * (s * s - 1.0) / 2.0).exp(),
    };
    let (mut weighted, mut weights) = (0.0, 0.0);
    for i in 0..=STEPS {
        let s = low + (high - low) * f64::from(i) / f64::from(STEPS);
        let simpson = if i == 0 || i == STEPS { 1.0 } else { 2.0 + 2.0 * f64::from(i % 2) };
        let weight = simpson * density(s);
        weighted += weight * found(s);
        weights += weight;
    }
    weighted / weights
}

/// The least difference found as often as the goal says by experiments of this precision.
pub fn detectable(standard_error: f64, degrees_of_freedom: f64, goal: Goal) -> f64 {
    let critical = quantile(1.0 - goal.alpha / 2.0, degrees_of_freedom);
    let (mut low, mut high) = (0.0, 4.0 * critical + 10.0);
    // 40 halvings: the last is below 1e-9 standard errors
    for _ in 0..40 {
        let middle = (low + high) / 2.0;
        if power(middle, degrees_of_freedom, goal.alpha) < goal.power { low = middle } else { high = middle }
    }
    high * standard_error
}

/// [`detectable`] at 5 % and 80 %.
pub fn minimum_detectable_effect(standard_error: f64, degrees_of_freedom: f64) -> f64 {
    detectable(standard_error, degrees_of_freedom, Goal::default())
}

/// Runs a configuration that find `effect` as often as the goal says, [`FEWEST_RUNS`] at least;
/// `None` beyond [`MOST_RUNS`].
pub fn runs_needed(sd: f64, effect: f64, design: Design, goal: Goal) -> Option<usize> {
    let enough = |runs: usize| {
        let (standard_error, df) = design.precision(sd, runs);
        power(effect.abs() / standard_error, df, goal.alpha) >= goal.power
    };
    if sd.is_nan() || effect == 0.0 || !enough(MOST_RUNS) {
        return None;
    }
    let (mut low, mut high) = (FEWEST_RUNS - 1, MOST_RUNS);
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
    fn power_agrees_with_the_textbooks() {
        // power.t.test(n = 20, delta = 1, sd = 1): 0.8689528;
        // (n = 10, delta = 1, type = "paired"): 0.8030969
        let unpaired = |n: usize, delta: f64| {
            let (se, df) = Design::Unpaired.precision(1.0, n);
            power(delta / se, df, 0.05)
        };
        assert!((unpaired(20, 1.0) - 0.868_952_8).abs() < 1e-5, "{}", unpaired(20, 1.0));
        assert!((unpaired(3, 0.0) - 0.05).abs() < 1e-6, "no effect is found as often as alpha says");
        let (se, df) = Design::Paired.precision(1.0, 10);
        assert!((power(1.0 / se, df, 0.05) - 0.803_096_9).abs() < 1e-5, "{}", power(1.0 / se, df, 0.05));
    }

    #[test]
    fn one_deviation_needs_seventeen_runs_or_ten_blocks() {
        // power.t.test(delta = 1, sd = 1, power = 0.8): n = 16.71; type = "paired": n = 9.94
        assert_eq!(runs_needed(1.0, 1.0, Design::Unpaired, Goal::default()), Some(17));
        assert_eq!(runs_needed(1.0, 1.0, Design::Paired, Goal::default()), Some(10));
    }

    #[test]
    fn an_effect_far_below_the_noise_is_not_asked_for() {
        assert_eq!(runs_needed(1.0, 1e-6, Design::Unpaired, Goal::default()), None);
    }

    #[test]
    fn what_is_detectable_is_found_as_often_as_the_goal_says() {
        for (df, goal) in
            [(1.0, Goal::default()), (4.0, Goal { alpha: 0.005, power: 0.9 }), (300.0, Goal::default())]
        {
            let effect = detectable(1.0, df, goal);
            assert!((power(effect, df, goal.alpha) - goal.power).abs() < 1e-6, "{df}");
        }
    }

    #[test]
    fn what_is_detectable_shrinks_with_runs() {
        let five = minimum_detectable_effect((2.0f64 / 5.0).sqrt(), 8.0);
        let twenty = minimum_detectable_effect((2.0f64 / 20.0).sqrt(), 38.0);
        assert!(twenty < five / 1.9, "{five} to {twenty}");
    }
}
