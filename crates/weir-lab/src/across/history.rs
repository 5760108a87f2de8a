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
use crate::stats::Summary;
use crate::stats::bootstrap::{Ratio, ratio_of_means};
use crate::stats::changepoint::{LEAST, Settings, e_divisive};
use crate::stats::holm;

/// Of `--json`.
pub const FORMAT: u32 = 1;
/// With fewer campaigns too few reorderings exist: the least p of a step far above the noise is 0.06 with
/// seven, 0.03 with eight, and 0.02 with nine.
pub const ENOUGH: usize = 8;

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
    /// Of the clearest split; absent with fewer than four points.
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
    /// Not certain after Holm's correction over the configurations.
    pub hint: bool,
    /// Between this campaign and the one before it that measured this configuration.
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
            let Some(summary) = Summary::of(&measured.figures) else { continue };
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
    let divided = e_divisive(&medians, settings);
    series.p = divided.p;
    let ends: Vec<usize> =
        [0].into_iter().chain(divided.changes.iter().map(|c| c.at)).chain([medians.len()]).collect();
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
    /// Why no change could be found, if none could; a series that was looked at has nothing to say.
    pub fn too_short(&self) -> Option<String> {
        let n = self.points.len();
        match n {
            _ if n < 2 * LEAST => Some(format!("{n} campaigns: a change needs {} or more", 2 * LEAST)),
            _ if n < ENOUGH => {
                Some(format!("{n} campaigns: below {ENOUGH} even a clear step is not proven at 5 %"))
            }
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
