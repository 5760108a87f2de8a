//! The answer in one sentence: the first pair's ratio with its interval, and how many others agree. A control that came out
//! different from itself goes before it: no ratio of that size says anything.

use super::Results;
use super::bounds::Bound;
use weir_stats::{Comparison, Verdict};

/// `asked` is how many pairs the experiment names: those that could not be compared are said too.
pub fn sentence(results: &Results, asked: usize) -> String {
    match failed_controls(results) {
        Some(failed) => format!("{failed} {}", of_pairs(results, asked)),
        None => of_pairs(results, asked),
    }
}

/// What of itself a control differs by: the largest, and how many there are.
fn failed_controls(results: &Results) -> Option<String> {
    let failed = results.controls.iter().filter(|c| c.verdict == Verdict::Different);
    let mut failed: Vec<(&str, f64)> =
        failed.filter_map(|c| Some((c.reference.as_str(), (c.ratio?.ratio - 1.0) * 100.0))).collect();
    failed.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
    let (name, percent) = *failed.first()?;
    let others = match failed.len() - 1 {
        0 => String::new(),
        n => format!(" (and {n} more)"),
    };
    Some(format!(
        "The A/A control failed: {name} differs from itself by {percent:+.1} %{others}, so differences of this size say nothing."
    ))
}

fn of_pairs(results: &Results, asked: usize) -> String {
    let judged: Vec<&Comparison> = results.comparisons.iter().filter(|c| c.ratio.is_some()).collect();
    let sentence = match judged.len() {
        0 => return alone(results),
        1..=MOST => judged.iter().map(|c| one(c, results)).collect::<Vec<_>>().join("; "),
        _ => many(&judged, results),
    };
    let sentence = match sentence.strip_prefix("no difference") {
        Some(rest) => format!("No difference{rest}"),
        None => sentence,
    };
    match asked - asked.min(judged.len()) {
        0 => format!("{sentence}."),
        lost => format!("{sentence}. {lost} of {asked} comparisons could not be made: see the warnings."),
    }
}

/// Pairs a headline holds one by one; more are counted.
const MOST: usize = 3;

fn many(judged: &[&Comparison], results: &Results) -> String {
    let with = |verdict| judged.iter().filter(move |c| c.verdict == verdict);
    let ratio = |c: &Comparison| c.ratio.map_or(1.0, |r| r.ratio);
    let least = judged.iter().map(|c| ratio(c)).fold(f64::INFINITY, f64::min);
    let most = judged.iter().map(|c| ratio(c)).fold(0.0, f64::max);
    let mut parts = Vec::new();
    let mut apart: Vec<&&Comparison> = with(Verdict::Different).collect();
    apart.sort_by(|a, b| ratio(b).ln().abs().total_cmp(&ratio(a).ln().abs()));
    if let Some(first) = apart.first() {
        let (other, reference) = (&first.other, &first.reference);
        parts.push(format!(
            "{} different, most so {other}: {:.3} times {reference}",
            apart.len(),
            ratio(first)
        ));
    }
    let equivalent = with(Verdict::Equivalent).count();
    if equivalent > 0 {
        parts.push(format!("{equivalent} equivalent within ±{} %", judged[0].margin_percent));
    }
    let open = with(Verdict::Underpowered).count() + with(Verdict::NoTest).count();
    if open > 0 {
        parts.push(format!("{open} undecided"));
    }
    let bounds = judged.iter().filter(|c| results.bound(c).is_some()).count();
    if bounds > 0 {
        parts.push(format!("{bounds} bounded by the generator"));
    }
    format!("{} comparisons, ratios {least:.3} to {most:.3}: {}", judged.len(), parts.join("; "))
}

fn one(c: &Comparison, results: &Results) -> String {
    let Some(ratio) = c.ratio else { return String::new() };
    let interval = match (ratio.low, ratio.high) {
        (Some(low), Some(high)) => format!(" (95 % interval {low:.3} to {high:.3})"),
        _ => " (one run: no interval)".into(),
    };
    let interval = match results.bound(c) {
        Some(Bound::Unknown) => format!("{interval}, both at the generator's limit"),
        _ => interval,
    };
    let bound = results.bound(c);
    let least = match bound {
        Some(Bound::AtLeast) => "at least ",
        Some(Bound::AtMost) => "at most ",
        Some(Bound::Unknown) | None => "",
    };
    let times = format!("{least}{:.3} times", ratio.ratio);
    let what = match results.metric.0.as_str() {
        "pps" => "the packets a second".to_string(),
        _ => format!("the {}", results.metric.sentence()),
    };
    let (a, b) = (&c.reference, &c.other);
    match c.verdict {
        Verdict::Different => format!("{b} has {times} {what} of {a}{interval}"),
        Verdict::Equivalent => {
            format!("{b} and {a} are equivalent within ±{} %: {times}{interval}", c.margin_percent)
        }
        Verdict::Underpowered => {
            let detectable = c
                .detectable_percent
                .map_or(String::new(), |d| format!(", differences below {d:.1} % would not be seen"));
            format!("no difference shown between {b} and {a}: {times}{interval}{detectable}")
        }
        Verdict::NoTest => format!("{b} has {times} {what} of {a}, too few runs to judge"),
    }
}

/// Says the values themselves, where there is no pair.
fn alone(results: &Results) -> String {
    let (divisor, unit) = results.metric.unit();
    let measured: Vec<String> = results
        .configurations
        .iter()
        .filter(|o| !o.configuration.is_baseline())
        .filter_map(|o| {
            let s = o.summary?;
            Some(format!("{}: {:.2} {unit}", o.configuration.name, s.median / divisor))
        })
        .take(MOST)
        .collect();
    match measured.as_slice() {
        [] if results.skipped.is_empty() => "Nothing was measured.".into(),
        [] => "Nothing could be measured here: see what was skipped, and why.".into(),
        _ => format!("{} (median); nothing to compare.", measured.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Metric;
    use weir_stats::compare::{Analysis, Pair, Rules, compare};
    use weir_stats::paired::Series;

    fn results(others: &[(&str, f64)]) -> Results {
        let base = [10.0, 10.1, 9.9, 10.05, 9.95];
        let values: Vec<Vec<f64>> = others.iter().map(|(_, f)| base.map(|b| b * f).to_vec()).collect();
        let pairs: Vec<Pair<'_>> = others
            .iter()
            .zip(&values)
            .map(|((name, _), f)| Pair { reference: Series::of("a", &base), other: Series::of(name, f) })
            .collect();
        Results {
            format: 1,
            name: "t".into(),
            title: "t".into(),
            question: "q".into(),
            answer: String::new(),
            metric: Metric("pps".into()),
            higher_is_better: true,
            quick: false,
            seed: 1,
            runs_planned: 0,
            runs_measured: 0,
            runs_failed: 0,
            runs_missing: 0,
            configurations: Vec::new(),
            comparisons: compare(&pairs, Rules { analysis: Analysis::Welch, margin_percent: 2.0, seed: 1 }),
            controls: Vec::new(),
            cliffs: Vec::new(),
            notes: Vec::new(),
            warnings: Vec::new(),
            skipped: Vec::new(),
            answers: Vec::new(),
            settings: None,
        }
    }

    #[test]
    fn a_difference_is_said_with_ratio_and_interval() {
        let said = sentence(&results(&[("b", 2.0)]), 1);
        assert!(said.starts_with("b has 2.000 times the packets a second of a (95 % interval 1.9"), "{said}");
    }

    #[test]
    fn a_control_that_failed_goes_before_everything() {
        let mut campaign = results(&[("b", 2.0)]);
        campaign.controls = results(&[("a~again", 1.03)]).comparisons;
        let said = sentence(&campaign, 1);
        assert!(said.starts_with("The A/A control failed: a differs from itself by +3.0 %, so"), "{said}");
        assert!(said.contains("say nothing. b has 2.000 times"), "{said}");
        campaign.controls = results(&[("a~again", 1.0)]).comparisons;
        assert!(sentence(&campaign, 1).starts_with("b has 2.000 times"));
    }

    #[test]
    fn equivalence_names_its_margin() {
        let said = sentence(&results(&[("b", 1.0)]), 1);
        assert!(said.starts_with("b and a are equivalent within ±2 %: 1.000 times"), "{said}");
    }

    #[test]
    fn many_pairs_are_counted_and_the_greatest_difference_named() {
        let said = sentence(&results(&[("b", 2.0), ("c", 1.0), ("d", 0.2), ("e", 1.1)]), 4);
        assert!(
            said.starts_with("4 comparisons, ratios 0.200 to 2.000: 3 different, most so d: 0.200 times a"),
            "{said}"
        );
        assert!(said.contains("1 equivalent within ±2 %"), "{said}");
    }

    #[test]
    fn what_could_not_be_compared_is_said() {
        let said = sentence(&results(&[("b", 2.0)]), 3);
        assert!(said.ends_with("2 of 3 comparisons could not be made: see the warnings."), "{said}");
        assert_eq!(sentence(&results(&[]), 0), "Nothing was measured.");
    }
}
