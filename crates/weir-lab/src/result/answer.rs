//! The answer in one sentence: the first pair's ratio with its interval, and how many others agree.

use super::Results;
use crate::model::Subject;
use crate::stats::{Comparison, Verdict};

pub fn sentence(results: &Results) -> String {
    let judged = results.comparisons.iter().filter(|c| c.ratio.is_some());
    let said: Vec<String> = judged.take(MOST).map(|c| one(c, results)).collect();
    let rest = results.comparisons.len().saturating_sub(said.len());
    if said.is_empty() {
        return alone(results);
    }
    let mut sentence = said.join("; ");
    if let Some(rest) = sentence.strip_prefix('n').filter(|_| sentence.starts_with("no difference")) {
        sentence = format!("N{rest}");
    }
    if rest > 0 {
        sentence += &format!("; {rest} more in the table of comparisons");
    }
    sentence + "."
}

/// Pairs a headline holds; more is a table.
const MOST: usize = 3;

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
