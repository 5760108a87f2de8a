//! What a ratio is where the generator, not the SUT, was the limit of one of its sides: a bound.
//!
//! Promises: a ratio that is printed says whether it is a value or a bound, and which. Refuses: to mend the value: how much
//! more the SUT could have done is not known.

use super::warnings::BASELINE_SHARE;
use super::{Outcome, Results};
use crate::format;
use weir_stats::Comparison;
use weir_stats::search::Rate;

/// How testbeds begin a note about a generator at its limit.
pub const GENERATOR_LIMIT: &str = "the generator was the limit";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The other side could have done more.
    AtLeast,
    /// The reference could have done more.
    AtMost,
    /// Both could have done more.
    Unknown,
}

impl Bound {
    /// What a ratio is by which of its sides the generator bounded.
    fn of(reference: bool, other: bool) -> Option<Bound> {
        match (reference, other) {
            (false, false) => None,
            (false, true) => Some(Bound::AtLeast),
            (true, false) => Some(Bound::AtMost),
            (true, true) => Some(Bound::Unknown),
        }
    }

    /// A ratio as text, with what it is.
    pub fn said(bound: Option<Bound>, ratio: &str) -> String {
        match bound {
            None => ratio.into(),
            Some(Bound::AtLeast) => format!("at least {ratio}"),
            Some(Bound::AtMost) => format!("at most {ratio}"),
            Some(Bound::Unknown) => format!("{ratio} (both at the generator's limit)"),
        }
    }
}

impl Results {
    /// What the ratio of a comparison of this campaign's metric is, if it is no value.
    pub fn bound(&self, c: &Comparison) -> Option<Bound> {
        // a time or a number of cycles is not what a generator bounds
        let limited = |name: &str| self.higher_is_better && self.outcome(name).is_some_and(is_limited);
        Bound::of(limited(&c.reference), limited(&c.other))
    }

    /// `at least 1.832 [1.790, 1.870]`.
    pub fn ratio(&self, c: &Comparison) -> String {
        Bound::said(self.bound(c).filter(|_| c.ratio.is_some()), &format::ratio(c))
    }
}

/// Whether generator and receiver were what bounded a configuration. At a rate of its own the rate is the bound, and the
/// baseline keeps it too: there only the testbed can tell.
fn is_limited(outcome: &Outcome) -> bool {
    let flat_out = outcome.configuration.workload.rate == Rate::FlatOut;
    let reached = outcome.baseline_share.is_some_and(|share| share >= BASELINE_SHARE);
    let told = outcome.notes.iter().any(|note| note.starts_with(GENERATOR_LIMIT));
    !outcome.configuration.is_baseline() && (flat_out && reached || told)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Metric;
    use crate::model::Configuration;
    use crate::result::outcome_of;

    fn outcome(rate: &str, share: Option<f64>, note: &str) -> Outcome {
        let keys = format!(
            r#"{{"name": "a", "sut": "weir", "topology": "netns", "routes": 20, "placement": {{"cpus": [], "port": "",
            "generator_cpus": []}}, "workload": {{"family": "inet", "frame": {{"fixed": 64}}, "flows": 10, "rate": {rate}}}}}"#
        );
        let configuration: Configuration = serde_json::from_str(&keys).expect("valid");
        let mut outcome = outcome_of(&configuration, &[], &Metric("pps".into()));
        (outcome.baseline_share, outcome.notes) = (share, vec![note.to_string()]);
        outcome
    }

    #[test]
    fn a_generator_is_the_limit_near_its_baseline_flat_out_or_where_the_testbed_says_so() {
        let busy = "the generator was the limit: it was never idle; compare with the baseline";
        for (rate, share, note, limited) in [
            ("\"flat-out\"", Some(0.5), "", false),
            ("\"flat-out\"", Some(0.97), "", true),
            ("\"flat-out\"", None, "", false),
            ("\"flat-out\"", None, busy, true),
            // the baseline keeps a rate, too
            ("{\"pps\": 1000}", Some(1.0), "", false),
            ("{\"pps\": 1000}", Some(1.0), busy, true),
        ] {
            assert_eq!(is_limited(&outcome(rate, share, note)), limited, "{rate} {share:?} {note}");
        }
    }

    #[test]
    fn a_ratio_is_printed_as_the_bound_it_is() {
        let printed = |reference, other| Bound::said(Bound::of(reference, other), "2.000 [1.9, 2.1]");
        assert_eq!(printed(false, false), "2.000 [1.9, 2.1]");
        assert_eq!(printed(false, true), "at least 2.000 [1.9, 2.1]");
        assert_eq!(printed(true, false), "at most 2.000 [1.9, 2.1]");
        assert_eq!(printed(true, true), "2.000 [1.9, 2.1] (both at the generator's limit)");
    }
}
