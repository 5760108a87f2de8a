//! Every campaign of an experiment in time order: trends, and the campaigns that changed a level.
//!
//! Promises: a campaign is the replicate (its median; runs inside one share a boot and a build, so they say
//! nothing about the next); changes by E-divisive with a permutation test, each with its p, its ratio and
//! what else changed in that campaign. A change that does not survive Holm's correction over the
//! configurations is called a hint. Refuses: to mix smoke values with measurements, or configurations of one
//! name and different definitions.

use serde::Serialize;

use super::{Campaign, Label, differences};
use crate::experiment::Metric;
use crate::model::Configuration;
use weir_stats::Summary;
use weir_stats::bootstrap::{Ratio, ratio_of_means};
use weir_stats::changepoint::{LEAST, Settings, e_divisive};
use weir_stats::holm;

/// The format of `--json`.
pub const FORMAT: u32 = 1;
/// Fewer campaigns have too few reorderings: the least p of a step far above the noise is 0.06 with seven, 0.03
/// with eight, and 0.02 with nine.
pub const ENOUGH: usize = 8;

/// Campaigns searched for changes, the latest: a table of all their distances is 2 MB, and 2,000 reorderings
/// of it take seconds.
pub const LONGEST: usize = 500;

/// The campaigns of one experiment.
#[derive(Clone, Debug, Serialize)]
pub struct History {
    pub format: u32,
    pub experiment: String,
    pub metric: Metric,
    pub higher_is_better: bool,
    /// Chance of a change where there is none, a configuration.
    pub level: f64,
    /// Earliest first.
    pub campaigns: Vec<Label>,
    pub series: Vec<Series>,
}

/// One configuration through the campaigns that measured it.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// Its name, and since when it is defined so if the name has had other definitions.
    pub name: String,
    pub configuration: Configuration,
    pub points: Vec<Point>,
    pub changes: Vec<Change>,
    /// The p of the clearest split; absent with fewer than four points.
    pub p: Option<f64>,
    /// The same, corrected over the configurations of the experiment.
    pub p_holm: Option<f64>,
}

/// One campaign's word on a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Place in [`History::campaigns`].
    pub campaign: usize,
    pub summary: Summary,
}

/// A new level begins with this campaign.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// Place in [`History::campaigns`].
    pub campaign: usize,
    /// Place in [`Series::points`].
    pub point: usize,
    /// Level after by level before, of the campaigns' medians.
    pub ratio: Option<Ratio>,
    pub p: f64,
    /// Whether the change is not certain after Holm's correction over the configurations.
    pub hint: bool,
    /// What differs from the campaign before it that measured this configuration.
    pub differences: Vec<String>,
}

/// One history an experiment and metric, by name; `campaigns` in time order.
pub fn histories(campaigns: &[Campaign], settings: Settings) -> Vec<History> {
    let mut kinds: Vec<(&str, &Metric)> = campaigns.iter().map(|c| (c.name.as_str(), &c.metric)).collect();
    kinds.sort_by(|a, b| (a.0, &a.1.0).cmp(&(b.0, &b.1.0)));
    kinds.dedup();
    kinds
        .into_iter()
        .map(|(name, metric)| {
            let of: Vec<&Campaign> =
                campaigns.iter().filter(|c| c.name == name && c.metric == *metric).collect();
            history(name, metric, &of, settings)
        })
        .collect()
}

fn history(name: &str, metric: &Metric, campaigns: &[&Campaign], settings: Settings) -> History {
    let mut series = collect(campaigns);
    for one in &mut series {
        divide(one, campaigns, settings);
    }
    let p: Vec<f64> = series.iter().map(|s| s.p.unwrap_or(f64::NAN)).collect();
    for (one, p) in series.iter_mut().zip(holm::adjust(&p)) {
        one.p_holm = (!p.is_nan()).then_some(p);
        for change in &mut one.changes {
            change.hint = p > settings.level;
        }
    }
    History {
        format: FORMAT,
        experiment: name.into(),
        metric: metric.clone(),
        higher_is_better: metric.higher_is_better(),
        level: settings.level,
        campaigns: campaigns.iter().map(|c| Label::of(c)).collect(),
        series,
    }
}

/// Points by configuration, in the order configurations first appear.
fn collect(campaigns: &[&Campaign]) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for (i, campaign) in campaigns.iter().enumerate() {
        for measured in &campaign.measured {
            let Some(summary) = Summary::of(&measured.values) else { continue };
            let point = Point { campaign: i, summary };
            let configuration = &measured.configuration;
            match all.iter_mut().find(|s| s.configuration == *configuration) {
                Some(series) => series.points.push(point),
                None => all.push(Series {
                    name: configuration.name.clone(),
                    configuration: configuration.clone(),
                    points: vec![point],
                    changes: Vec::new(),
                    p: None,
                    p_holm: None,
                }),
            }
        }
    }
    let names: Vec<String> = all.iter().map(|s| s.name.clone()).collect();
    for series in &mut all {
        if names.iter().filter(|n| **n == series.name).count() > 1 {
            let since = campaigns[series.points[0].campaign].dir.display();
            series.name = format!("{} (as in {since})", series.name);
        }
    }
    all
}

fn divide(series: &mut Series, campaigns: &[&Campaign], settings: Settings) {
    let medians: Vec<f64> = series.points.iter().map(|p| p.summary.median).collect();
    let first = medians.len().saturating_sub(LONGEST);
    let divided = e_divisive(&medians[first..], settings);
    series.p = divided.p;
    let inner = divided.changes.iter().map(|c| first + c.at);
    let ends: Vec<usize> = [first].into_iter().chain(inner).chain([medians.len()]).collect();
    for (change, around) in divided.changes.iter().zip(ends.windows(3)) {
        let [from, at, to] = around else { continue };
        let (before, now) = (series.points[at - 1].campaign, series.points[*at].campaign);
        series.changes.push(Change {
            campaign: now,
            point: *at,
            ratio: ratio_of_means(&medians[*from..*at], &medians[*at..*to], settings.seed),
            p: change.p,
            hint: false,
            differences: differences(campaigns[before], campaigns[now]),
        });
    }
}

impl Series {
    /// Where changes could not be found, and why; a series that was looked at whole has nothing to say.
    pub fn unseen(&self) -> Option<String> {
        let n = self.points.len();
        match n {
            _ if n < 2 * LEAST => Some(format!("{n} campaigns: a change needs {} or more", 2 * LEAST)),
            _ if n < ENOUGH => {
                Some(format!("{n} campaigns: below {ENOUGH} even a clear step is not proven at 5 %"))
            }
            _ if n > LONGEST => Some(format!("only the latest {LONGEST} of {n} campaigns are searched")),
            _ => None,
        }
    }

    /// Points between changes: `(from, to)`, half open.
    pub fn segments(&self) -> Vec<(usize, usize)> {
        let inner = self.changes.iter().map(|c| c.point);
        let ends: Vec<usize> = [0].into_iter().chain(inner).chain([self.points.len()]).collect();
        ends.windows(2).map(|w| (w[0], w[1])).collect()
    }

    /// Mean of the medians of a segment.
    pub fn level(&self, (from, to): (usize, usize)) -> f64 {
        self.points[from..to].iter().map(|p| p.summary.median).sum::<f64>() / (to - from) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::across::Measured;
    use crate::experiment::{Changes, Experiment};

    /// Campaigns of one run each, of these values.
    fn campaigns(values: &[f64]) -> Vec<Campaign> {
        let toml = "title = \"T\"\nquestion = \"Q?\"\nruns = 1\nwarm_up = \"1ms\"\nwindow = \"5ms\"\n\
                    [[configuration]]\nname = \"one\"\n";
        let experiment = Experiment::parse("t", "t.toml", toml, &Changes::default()).expect("valid");
        let configuration = &experiment.configurations[0].configuration;
        values
            .iter()
            .map(|&value| Campaign {
                dir: "folder".into(),
                manifest: None,
                name: "t".into(),
                metric: experiment.metric.clone(),
                quick: false,
                seed: 1,
                measured: vec![Measured { configuration: configuration.clone(), values: vec![value] }],
            })
            .collect()
    }

    #[test]
    fn only_the_latest_campaigns_are_searched_and_that_is_said() {
        let values: Vec<f64> = (0..LONGEST + 20)
            .map(|i| (i * 7 % 5) as f64 + if i < LONGEST + 10 { 100.0 } else { 200.0 })
            .collect();
        let few = Settings { reorderings: 19, ..Settings::default() };
        let history = histories(&campaigns(&values), few).remove(0);
        let series = &history.series[0];
        let places: Vec<usize> = series.changes.iter().map(|c| c.campaign).collect();
        assert_eq!(places, [LONGEST + 10]);
        assert_eq!(series.segments(), [(0, LONGEST + 10), (LONGEST + 10, LONGEST + 20)]);
        assert!(series.unseen().expect("not whole").contains("only the latest 500 of 520"));
    }

    #[test]
    fn a_series_too_short_for_a_verdict_says_how_many_it_takes() {
        let said = |n: usize| histories(&campaigns(&vec![1.0; n]), Settings::default())[0].series[0].unseen();
        assert_eq!(said(3).as_deref(), Some("3 campaigns: a change needs 4 or more"));
        assert!(said(ENOUGH - 1).expect("too few").contains("even a clear step is not proven"));
        assert_eq!(said(ENOUGH), None);
    }

    #[test]
    fn a_change_that_another_configurations_test_would_explain_is_a_hint() {
        // the least p of eight campaigns, 0.03, does not survive a correction over four configurations
        let mut all = campaigns(&[10.0, 10.1, 9.9, 10.0, 20.0, 20.1, 19.9, 20.0]);
        let hints = |all: &[Campaign]| -> Vec<bool> {
            let history = histories(all, Settings::default()).remove(0);
            history.series.iter().flat_map(|s| s.changes.iter().map(|c| c.hint)).collect()
        };
        assert_eq!(hints(&all), [false]);
        for (i, campaign) in all.iter_mut().enumerate() {
            for n in 0..3 {
                let mut other = campaign.measured[0].clone();
                other.configuration.name = format!("still-{n}");
                other.values = vec![(i * (n + 3) % 7) as f64];
                campaign.measured.push(other);
            }
        }
        assert_eq!(hints(&all), [true]);
    }
}
