//! One campaign against others: each shared configuration old → new.
//!
//! Promises: the tests and words of any report, Holm's correction over every configuration and campaign of
//! the call; what differs between the campaigns, what could not be compared and why. Refuses: campaigns of
//! different metrics. Runs of two campaigns share no blocks, so the analysis is Welch's whatever the
//! experiments declare.

use serde::Serialize;

use super::{Campaign, Label, differences};
use crate::experiment::Metric;
use crate::model::LabError;
use weir_stats::compare::{Analysis, Pair, Rules, compare};
use weir_stats::paired::Series;
use weir_stats::{Comparison, Summary, Verdict};

/// The format of `--json`.
pub const FORMAT: u32 = 1;
/// Where neither campaign says what counts as a difference.
const MARGIN_PERCENT: f64 = 2.0;

#[derive(Clone, Debug, Serialize)]
pub struct Versus {
    pub format: u32,
    pub metric: Metric,
    pub higher_is_better: bool,
    /// Never: runs of two campaigns did not take turns.
    pub interleaved: bool,
    pub margin_percent: f64,
    pub reference: Label,
    pub others: Vec<Other>,
}

/// What one campaign says against the reference.
#[derive(Clone, Debug, Serialize)]
pub struct Other {
    pub campaign: Label,
    /// Milliseconds from the reference's beginning to this one's; negative when this one is older.
    pub later_ms: Option<i64>,
    /// The very same runs.
    pub copy: bool,
    /// Smoke values, in either.
    pub quick: bool,
    pub differences: Vec<String>,
    pub rows: Vec<Row>,
    /// Measured in one of the two only, or under one name and not the same; each with the reason.
    pub not_compared: Vec<String>,
}

/// One configuration, old → new.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub configuration: String,
    /// No SUT: generator and sink alone. A difference here is one of machine or generator.
    pub baseline: bool,
    pub old: Summary,
    pub new: Summary,
    pub comparison: Comparison,
}

impl Row {
    /// A difference proven, and not one smaller than anybody asked about.
    pub fn matters(&self) -> bool {
        let alpha = weir_stats::compare::ALPHA;
        self.comparison.verdict == Verdict::Different
            && self.comparison.p_equivalence_holm.is_none_or(|e| e > alpha)
    }

    pub fn better(&self, higher_is_better: bool) -> bool {
        (self.new.mean > self.old.mean) == higher_is_better
    }
}

/// Compares every campaign behind the first with the first. `margin_percent` replaces the experiment's.
pub fn versus(campaigns: &[Campaign], margin_percent: Option<f64>) -> Result<Versus, LabError> {
    let [reference, others @ ..] = campaigns else {
        return Err(LabError::new("compare: got no campaign, takes two or more".into()));
    };
    if let Some(odd) = others.iter().find(|o| o.metric != reference.metric) {
        return Err(LabError::new(format!(
            "{}: its metric is {}, that of {} is {}; compare campaigns of one experiment",
            odd.dir.display(),
            odd.metric.0,
            reference.dir.display(),
            reference.metric.0
        )));
    }
    let margin = reference.manifest.as_ref().map(|m| m.experiment.margin_percent);
    let margin_percent = margin_percent.or(margin).unwrap_or(MARGIN_PERCENT);
    let mut others: Vec<Other> = others.iter().map(|o| beside(reference, o)).collect();
    classify(reference, campaigns, &mut others, margin_percent);
    Ok(Versus {
        format: FORMAT,
        metric: reference.metric.clone(),
        higher_is_better: reference.metric.higher_is_better(),
        interleaved: false,
        margin_percent,
        reference: Label::of(reference),
        others,
    })
}

/// Everything but the values.
fn beside(reference: &Campaign, other: &Campaign) -> Other {
    let of = |c: &Campaign, lacking: &Campaign| -> Vec<String> {
        let alone = c.measured.iter().filter(|m| lacking.measured(&m.configuration.name).is_none());
        alone.map(|m| format!("{}: measured in {} only", m.configuration.name, c.dir.display())).collect()
    };
    let redefined = reference.measured.iter().filter_map(|a| {
        let b = other.measured(&a.configuration.name)?;
        let changed = changed_keys(&a.configuration, &b.configuration);
        (!changed.is_empty()).then(|| {
            format!("{}: not the same configuration, {} differ", a.configuration.name, changed.join(", "))
        })
    });
    let when = reference.started_unix_ms().zip(other.started_unix_ms());
    Other {
        campaign: Label::of(other),
        later_ms: when.map(|(then, now)| now as i64 - then as i64),
        copy: reference.same_as(other),
        quick: reference.quick || other.quick,
        differences: differences(reference, other),
        rows: Vec::new(),
        not_compared: redefined.chain(of(reference, other)).chain(of(other, reference)).collect(),
    }
}

/// Names of the top-level fields that are not equal.
fn changed_keys<T: Serialize>(a: &T, b: &T) -> Vec<String> {
    let value = |v: &T| serde_json::to_value(v).unwrap_or_default();
    let (a, b) = (value(a), value(b));
    let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else { return Vec::new() };
    a.iter().filter(|(k, v)| b.get(*k) != Some(v)).map(|(k, _)| k.clone()).collect()
}

/// One family of comparisons over all campaigns.
fn classify(reference: &Campaign, campaigns: &[Campaign], others: &mut [Other], margin_percent: f64) {
    let mut pairs = Vec::new();
    let mut of = Vec::new();
    for (i, campaign) in campaigns.iter().skip(1).enumerate() {
        for old in &reference.measured {
            let new = campaign.measured(&old.configuration.name);
            let Some(new) = new.filter(|n| n.configuration == old.configuration) else { continue };
            let name = &old.configuration.name;
            pairs.push(Pair {
                reference: Series::of(name, &old.values),
                other: Series::of(name, &new.values),
            });
            of.push((i, old));
        }
    }
    let rules = Rules { analysis: Analysis::Welch, margin_percent, seed: reference.seed };
    for (((i, old), pair), comparison) in of.into_iter().zip(&pairs).zip(compare(&pairs, rules)) {
        let summaries = Summary::of(pair.reference.values).zip(Summary::of(pair.other.values));
        let Some((before, after)) = summaries else { continue };
        others[i].rows.push(Row {
            configuration: old.configuration.name.clone(),
            baseline: old.configuration.is_baseline(),
            old: before,
            new: after,
            comparison,
        });
    }
}
