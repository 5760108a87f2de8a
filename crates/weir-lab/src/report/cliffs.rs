//! Cliffs in words, for both reports.

use crate::experiment::Axis;
use crate::format::{digits, p, with_unit};
use crate::result::Results;
use crate::result::cliffs::Sought;
use weir_stats::cliff::Cliff;

/// What the search for cliffs is, for readers.
pub const METHOD: &str = "A cliff is a jump or bend that no smooth curve (a polynomial in the load) explains: the \
                          largest F over all places, its distribution simulated for these loads; p is corrected \
                          over all curves (Holm).";

/// A sentence a curve, cliffs first; none without a curve of enough loads.
pub fn sentences(results: &Results) -> Vec<String> {
    let (found, smooth): (Vec<&Sought>, Vec<&Sought>) =
        results.cliffs.iter().partition(|s| s.stands().is_some());
    let found = found.iter().filter_map(|s| Some(broken(s, s.stands()?)));
    found.chain(smooth.iter().map(|s| whole(s))).collect()
}

fn broken(sought: &Sought, cliff: &Cliff) -> String {
    let of = |value: f64| with_unit(&sought.metric, value);
    format!(
        "{}: {} breaks between {} and {} (95 %: {} to {}), from {} to {}, p = {}",
        named(sought),
        sought.metric.sentence(),
        load(sought.along, cliff.between.0),
        load(sought.along, cliff.between.1),
        load(sought.along, cliff.low),
        load(sought.along, cliff.high),
        of(cliff.before),
        of(cliff.after),
        p(Some(sought.p_holm))
    )
}

fn whole(sought: &Sought) -> String {
    format!(
        "{}: no cliff in {} over {} points, p = {}",
        named(sought),
        sought.metric.sentence(),
        sought.points,
        p(Some(sought.p_holm))
    )
}

fn named(sought: &Sought) -> String {
    match sought.configurations.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        [first, .., last] => format!("{first} … {last}"),
    }
}

fn load(axis: Axis, value: f64) -> String {
    match axis {
        Axis::Rate => format!("{} Mpps", digits(value / 1e6)),
        Axis::Frame => format!("{value:.0} B"),
        other => format!("{value:.0} {}", other.key()),
    }
}
