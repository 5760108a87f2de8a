//! The answer in one sentence: the first pair's ratio with its interval, and how many others agree.

use super::Results;
use crate::model::Subject;
use crate::stats::{Comparison, Verdict};

pub fn sentence(results: &Results) -> String {
    let judged: Vec<&Comparison> = results.comparisons.iter().filter(|c| c.ratio.is_some()).collect();
    let sentence = match judged.len() {
        0 => return alone(results),
        1..=MOST => judged.iter().map(|c| one(c, results)).collect::<Vec<_>>().join("; "),
        _ => many(&judged),
    };
    match sentence.strip_prefix("no difference") {
        Some(rest) => format!("No difference{rest}."),
        None => format!("{sentence}."),
    }
}

/// Pairs a headline holds one by one; more are counted.
const MOST: usize = 3;

fn many(judged: &[&Comparison]) -> String {
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
    format!("{} comparisons, ratios {least:.3} to {most:.3}: {}", judged.len(), parts.join("; "))
}

fn one(c: &Comparison, results: &Results) -> String {
    let Some(ratio) = c.ratio else { return String::new() };
    let interval = match (ratio.low, ratio.high) {
        (Some(low), Some(high)) => format!(" (95 % interval {low:.3} to {high:.3})"),
        _ => " (one run: no interval)".into(),
    };
    let times = format!("{:.3} times", ratio.ratio);
    let what = match results.metric.0.as_str() {
        "pps" => "the packets a second".to_string(),
        name => format!("the {}", name.replace('_', " ")),
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

/// Without a pair: the figures themselves.
fn alone(results: &Results) -> String {
    let (divisor, unit) = results.metric.unit();
    let measured: Vec<String> = results
        .configurations
        .iter()
        .filter(|o| o.configuration.subject != Subject::Ceiling)
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
