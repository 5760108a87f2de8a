//! What can be wrong with a set of runs that every test takes to be independent, alike and of one kind.
//!
//! ```text
//! drift             Mann–Kendall               from 6 runs    ╷ each raises a false alarm in at most
//! autocorrelation   rank von Neumann ratio     from 10 runs   │ one of a hundred clean sets:
//! two modes         best split in two          from 8 runs    │ docs/statistics.md has the simulated
//! outliers          generalised ESD            from 5 runs    │ rates, tests/simulated_defects.rs
//! unequal spread    F of two variances         from 5 runs    ╵ finds them
//! ```
//!
//! Promises: a defect is typed, with what to do about it. Refuses: to drop a run because of one.

use serde::{Deserialize, Serialize};

use super::summary::{mean, median, sorted, variance};

mod modes;
mod outliers;
mod serial;
mod spread;
mod trend;

pub use modes::{Modes, modes};
pub use outliers::outliers;
pub use serial::{Serial, serial};
pub use spread::{Spread, spread};
pub use trend::trend;

/// Chance of a false alarm of each kind, a set of clean runs.
pub const FALSE_ALARM: f64 = 0.01;
/// Outliers and modes closer than this to the median are not worth a reader's time, in percent.
const WORTH_PERCENT: f64 = 2.0;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Defect {
    Outlier {
        configuration: String,
        /// Places in the campaign.
        runs: Vec<usize>,
        /// Distance of the farthest value from the median.
        percent: f64,
    },
    Drift {
        configuration: String,
        p: f64,
        rising: bool,
    },
    Autocorrelation {
        configuration: String,
        p: f64,
        /// Correlation of each run with the one before.
        correlation: f64,
    },
    Bimodal {
        configuration: String,
        /// Means of the two groups, lower first.
        low: f64,
        high: f64,
        /// Runs in the lower group, and in all.
        low_runs: usize,
        runs: usize,
    },
    UnequalSpread {
        reference: String,
        other: String,
        p: f64,
        /// Deviation of the other by the reference's.
        ratio: Option<f64>,
    },
}

impl Defect {
    /// The sets it is about, by name.
    pub fn subjects(&self) -> Vec<String> {
        match self {
            Defect::Outlier { configuration, .. }
            | Defect::Drift { configuration, .. }
            | Defect::Autocorrelation { configuration, .. }
            | Defect::Bimodal { configuration, .. } => vec![configuration.clone()],
            Defect::UnequalSpread { reference, other, .. } => vec![reference.clone(), other.clone()],
        }
    }

    /// What was found, in a sentence without the sets' names in front.
    pub fn finding(&self) -> String {
        match self {
            Defect::Outlier { runs, percent, .. } => {
                let (word, verb) = if runs.len() == 1 { ("run", "lies") } else { ("runs", "lie") };
                let runs: Vec<String> = runs.iter().map(usize::to_string).collect();
                let runs = runs.join(", ");
                format!("{word} {runs} {verb} far outside the others, up to {percent:+.1} % from the median")
            }
            Defect::Drift { p, rising, .. } => {
                let way = if *rising { "rise" } else { "fall" };
                format!("values {way} over the campaign (Mann–Kendall p = {p:.4})")
            }
            Defect::Autocorrelation { p, correlation, .. } => {
                let how = if *correlation > 0.0 { "resembles" } else { "contradicts" };
                format!(
                    "each run {how} the one before (correlation {correlation:+.2}, p = {p:.4}): they are fewer than they seem"
                )
            }
            Defect::Bimodal { low, high, low_runs, runs, .. } => {
                let percent = (high / low - 1.0) * 100.0;
                format!(
                    "two kinds of run, {low_runs} of {runs} in the lower, the upper {percent:+.1} % above it: the mean describes neither"
                )
            }
            Defect::UnequalSpread { reference, other, p, ratio } => {
                let how = match ratio {
                    Some(r) if *r >= 1.0 => format!("{other} spreads {r:.1} times as wide as {reference}"),
                    Some(r) => format!("{reference} spreads {:.1} times as wide as {other}", 1.0 / r),
                    None => format!("one of {reference} and {other} does not spread at all"),
                };
                format!("{how} (F test p = {p:.4}): Student's interval, which ministat prints, does not hold")
            }
        }
    }

    pub fn remedy(&self) -> &'static str {
        match self {
            Defect::Outlier { .. } => "look for what else ran then; the run stays in the statistics",
            Defect::Drift { .. } => {
                "lengthen `warm_up`; check heat and other tenants; blocks keep comparisons fair"
            }
            Defect::Autocorrelation { .. } => {
                "lengthen `window` beyond the disturbance, or declare `analysis = \"paired\"`: what a block shares falls out"
            }
            Defect::Bimodal { .. } => {
                "find what differs between the two (placement, memory layout, clock) and fix it in the experiment; until then read the runs, not the mean"
            }
            Defect::UnequalSpread { .. } => {
                "believe Welch's test, not Student's; ask what makes one of them unsteady"
            }
        }
    }
}

/// Defects of one configuration; `order` is each run's place in the campaign.
pub fn of_runs(configuration: &str, values: &[f64], order: &[usize]) -> Vec<Defect> {
    let mut found = Vec::new();
    let configuration = || configuration.to_string();
    let centre = median(&sorted(values));
    let worth = |distance: f64| distance.abs() * 100.0 > WORTH_PERCENT * centre.abs();
    let far: Vec<usize> = outliers(values).into_iter().filter(|&i| worth(values[i] - centre)).collect();
    let away = |&i: &usize| (values[i] / centre - 1.0) * 100.0;
    if let Some(percent) = far.iter().map(away).max_by(|a, b| a.abs().total_cmp(&b.abs())) {
        let runs = far.iter().map(|&i| order.get(i).copied().unwrap_or(i)).collect();
        found.push(Defect::Outlier { configuration: configuration(), runs, percent });
    }
    if let Some(m) = modes(values).filter(|m| worth(m.high - m.low)) {
        let (low, high, low_runs) = (m.low, m.high, m.low_runs);
        let (configuration, runs) = (configuration(), values.len());
        found.push(Defect::Bimodal { configuration, low, high, low_runs, runs });
    }
    if let Some((p, rising)) = trend(values).filter(|(p, _)| *p < FALSE_ALARM) {
        found.push(Defect::Drift { configuration: configuration(), p, rising });
    } else if let Some(Serial { p, correlation }) = serial(values).filter(|s| s.p < FALSE_ALARM) {
        // what drifts is autocorrelated too: said once
        found.push(Defect::Autocorrelation { configuration: configuration(), p, correlation });
    }
    found
}

/// Defects that show in the order of all runs: few of each configuration, but many together. Each run counts by
/// how far it lies from its configuration's mean. A false alarm comes in one clean campaign of thirty: what is
/// left once means are taken away is not quite independent. `sets` are values with their places in the campaign.
pub fn of_campaign(sets: &[(&[f64], &[usize])]) -> Option<Defect> {
    let mut rest: Vec<(usize, f64)> = Vec::new();
    for (values, order) in sets.iter().filter(|(f, _)| f.len() > 2) {
        let (centre, sd) = (mean(values), variance(values).sqrt());
        if sd > 0.0 {
            rest.extend(order.iter().zip(*values).map(|(&place, f)| (place, (f - centre) / sd)));
        }
    }
    rest.sort_by_key(|(place, _)| *place);
    let rest: Vec<f64> = rest.into_iter().map(|(_, r)| r).collect();
    let configuration = "all configurations".to_string();
    match (sets.len() > 1).then(|| (trend(&rest), serial(&rest)))? {
        (Some((p, rising)), _) if p < FALSE_ALARM => Some(Defect::Drift { configuration, p, rising }),
        (_, Some(Serial { p, correlation })) if p < FALSE_ALARM => {
            Some(Defect::Autocorrelation { configuration, p, correlation })
        }
        _ => None,
    }
}

/// The defect only a pair can have.
pub fn of_pair(reference: (&str, &[f64]), other: (&str, &[f64])) -> Option<Defect> {
    let Spread { p, ratio } = spread(reference.1, other.1).filter(|s| s.p < FALSE_ALARM)?;
    Some(Defect::UnequalSpread { reference: reference.0.into(), other: other.0.into(), p, ratio })
}

/// Σ (value − mean)².
fn squares(values: &[f64]) -> f64 {
    let mean = mean(values);
    values.iter().map(|v| (v - mean) * (v - mean)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(values: &[f64]) -> Vec<String> {
        let order: Vec<usize> = (0..values.len()).collect();
        let found = of_runs("c", values, &order);
        let kind = |d: &Defect| serde_json::to_value(d).expect("plain")["kind"].to_string();
        found.iter().map(|d| kind(d).trim_matches('"').to_string()).collect()
    }

    #[test]
    fn calm_values_have_no_defect() {
        let calm = [100.0, 100.4, 99.8, 100.1, 99.9, 100.2, 100.05, 99.7, 100.3, 99.95];
        assert!(kinds(&calm).is_empty(), "{:?}", kinds(&calm));
        assert_eq!(of_pair(("a", &calm), ("b", &calm.map(|f| f + 1.0))), None);
    }

    #[test]
    fn each_kind_is_found_where_it_is_planted_and_no_other_is_said() {
        let rising: Vec<f64> = (0..12).map(|i| 100.0 + f64::from(i) * 0.1).collect();
        assert_eq!(kinds(&rising), ["drift"]);
        let swinging: Vec<f64> = (0..24).map(|i| 100.0 + (f64::from(i) * 0.8).sin()).collect();
        assert_eq!(kinds(&swinging), ["autocorrelation"]);
        let two = [100.0, 110.2, 100.1, 99.9, 110.0, 109.9, 100.2, 110.1, 99.8, 110.3];
        assert_eq!(kinds(&two), ["bimodal"]);
        let one_away = [100.0, 100.1, 99.9, 100.05, 90.0, 99.95, 100.02];
        assert_eq!(kinds(&one_away), ["outlier"]);
        let wide = [90.0, 111.0, 97.0, 105.0, 94.0, 104.0];
        let narrow = [100.1, 100.0, 99.9, 100.2, 99.8, 100.05];
        let Some(Defect::UnequalSpread { ratio, .. }) = of_pair(("wide", &wide), ("narrow", &narrow)) else {
            panic!("not found");
        };
        assert!(ratio.expect("both spread") < 0.05, "{ratio:?}");
    }

    #[test]
    fn a_machine_that_slows_shows_in_all_runs_together_where_no_set_is_long_enough() {
        let slowing = |level: f64, at: &[usize]| -> Vec<f64> {
            at.iter().map(|&i| level * (1.0 - 0.01 * i as f64)).collect()
        };
        let places: [&[usize]; 3] = [&[0, 4, 8, 9], &[1, 3, 7, 11], &[2, 5, 6, 10]];
        let sets: Vec<Vec<f64>> = places.iter().zip([1.0, 50.0, 9.0]).map(|(p, l)| slowing(l, p)).collect();
        let sets: Vec<(&[f64], &[usize])> = sets.iter().map(Vec::as_slice).zip(places).collect();
        assert!(sets.iter().all(|(f, o)| of_runs("c", f, o).is_empty()));
        let found = of_campaign(&sets).expect("twelve runs in order");
        assert!(matches!(found, Defect::Drift { rising: false, .. }), "{found:?}");
        assert_eq!(of_campaign(&sets[..1]), None, "one set speaks for itself");
    }

    #[test]
    fn an_outlier_is_named_by_its_place_in_the_campaign() {
        let values = [100.0, 100.1, 99.9, 100.05, 90.0, 99.95, 100.02];
        let found = of_runs("c", &values, &[3, 9, 11, 20, 25, 31, 40]);
        let [Defect::Outlier { runs, percent, .. }] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(runs, &[25]);
        assert!((percent + 10.0).abs() < 1e-9, "{percent}");
    }

    #[test]
    fn what_is_small_beside_the_value_is_not_worth_a_word() {
        let values = [100.0, 100.01, 99.99, 100.005, 99.0, 99.995, 100.002];
        assert_eq!(outliers(&values), [4]);
        assert!(kinds(&values).is_empty());
    }
}
