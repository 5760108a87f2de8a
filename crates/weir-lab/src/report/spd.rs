//! SPDs by the index of the policy that matches, and SPD lookup sources: in both reports and in the terminal.
//!
//! Promises: the table is the field's, one row an index, one column a way to look up, in Mb/s and in packets a
//! second; every value is a median of runs. Refuses a sentence about an index that was not measured.

use std::fmt::Write;

use super::comparisons::Table;
use crate::experiment::{frame_label, kebab};
use crate::format::digits;
use crate::model::spd::{LookupBy, Spd};
use crate::model::{Configuration, Keys, Protection};
use crate::result::{Outcome, Results};

pub const METHOD: &str = "Index is the place of the policy that matches, from 1; linear is the ordered scan alone, \
                          classifier the classifier alone, cache the flow cache with the classifier behind it. Mb/s \
                          counts the plain frames, without FCS.";
pub const ANSWERED: &str = "Percent of all packets an SPD was asked about: first is a whole batch answered by the first \
                            rule, before anybody was asked; collision and stale are why the cache did not answer. \
                            Occupied are buckets that hold a flow after the run. An update takes one policy out or puts \
                            it back; its time ends when the tables are there for workers.";

const COLUMNS: [(LookupBy, &str, &str); 3] = [
    (LookupBy::Linear, "linear Mb/s", "linear Mpps"),
    (LookupBy::Classifier, "classifier Mb/s", "classifier Mpps"),
    (LookupBy::Cache, "cache Mb/s", "cache Mpps"),
];

/// Configurations that differ in index and lookup alone.
pub struct Depth {
    pub title: String,
    pub table: Table,
    /// What it comes to.
    pub sentences: Vec<String>,
}

struct Cell<'a> {
    index: u32,
    lookup: LookupBy,
    outcome: &'a Outcome,
}

/// One a cipher, direction, family and so on of which several indexes were measured.
pub fn depths(results: &Results) -> Vec<Depth> {
    let mut groups: Vec<(Keys, Vec<Cell<'_>>)> = Vec::new();
    for outcome in results.configurations.iter().filter(|o| o.pps.is_some()) {
        let Some(p) = outcome.configuration.ipsec() else { continue };
        let Some(index) = p.spd.matching else { continue };
        let cell = Cell { index, lookup: p.spd.lookup, outcome };
        let rest = elsewhere(&outcome.configuration, p);
        match groups.iter_mut().find(|(other, _)| *other == rest) {
            Some((_, cells)) => cells.push(cell),
            None => groups.push((rest, vec![cell])),
        }
    }
    groups.iter().filter_map(|(rest, cells)| depth(results, rest, cells)).collect()
}

fn elsewhere(c: &Configuration, p: Protection) -> Keys {
    let spd = Spd { matching: None, lookup: LookupBy::Gateway, ..p.spd };
    Keys { name: String::new(), ipsec: Some(Protection { policies: 0, spd, ..p }), ..c.clone().into() }
}

fn depth(results: &Results, rest: &Keys, cells: &[Cell<'_>]) -> Option<Depth> {
    let mut indexes: Vec<u32> = cells.iter().map(|c| c.index).collect();
    indexes.sort_unstable();
    indexes.dedup();
    if indexes.len() < 2 {
        return None;
    }
    let columns: Vec<_> = COLUMNS.iter().filter(|(l, ..)| cells.iter().any(|c| c.lookup == *l)).collect();
    let at = |index, lookup| cells.iter().find(|c| c.index == index && c.lookup == lookup).map(|c| c.outcome);
    let dash = |metric: Option<String>| metric.unwrap_or("–".into());
    let rows = indexes
        .iter()
        .map(|&index| {
            let mbps = |o: &Outcome| o.further.get("mbps").map(|s| digits(s.median));
            let mpps = |o: &Outcome| o.pps.map(|s| digits(s.median / 1e6));
            let of = |metric: &dyn Fn(&Outcome) -> Option<String>| -> Vec<String> {
                columns.iter().map(|(lookup, ..)| dash(at(index, *lookup).and_then(metric))).collect()
            };
            let mut row = vec![index.to_string()];
            row.extend(of(&mbps));
            row.extend(of(&mpps));
            let rates =
                at(index, LookupBy::Linear).and_then(rate).zip(at(index, LookupBy::Cache).and_then(rate));
            row.push(dash(rates.map(|(linear, cache)| format!("{} ×", digits(cache / linear)))));
            row
        })
        .collect();
    let mut headings = vec!["index"];
    headings.extend(columns.iter().map(|(_, mbps, _)| *mbps));
    headings.extend(columns.iter().map(|(_, _, mpps)| *mpps));
    headings.push("cache by linear");
    let sentences = sentences(results, &at);
    Some(Depth { title: title(rest), table: Table { headings, text: 0, rows }, sentences })
}

fn rate(outcome: &Outcome) -> Option<f64> {
    outcome.pps.map(|s| s.median).filter(|pps| *pps > 0.0)
}

fn title(c: &Keys) -> String {
    let Some(p) = c.ipsec else { return String::new() };
    let then = if p.bypasses() { " then bypass" } else { "" };
    format!(
        "{}, {}{then}, {}, {} B",
        p.cipher,
        kebab(&p.direction),
        kebab(&c.workload.family),
        frame_label(c.workload.frame)
    )
}

/// What the field wants to know: whether the cache is flat, and what it costs where it is not needed.
fn sentences<'a>(results: &Results, at: &dyn Fn(u32, LookupBy) -> Option<&'a Outcome>) -> Vec<String> {
    let mut said = Vec::new();
    let cache = |index| at(index, LookupBy::Cache);
    if let Some((two, deep)) = cache(2).zip(cache(1000))
        && let Some(ratio) = ratio(results, two, deep)
    {
        said.push(format!("With the cache, index 1000 is within {} of index 2.", off(ratio)));
    }
    if let Some((linear, cached)) = at(1, LookupBy::Linear).zip(cache(1))
        && let Some(ratio) = ratio(results, linear, cached)
    {
        let (word, lost) = if ratio.0 <= 1.0 { ("costs", ratio) } else { ("gains", ratio) };
        said.push(format!("At index 1 the cache {word} {}.", off(lost)));
    }
    said
}

/// One rate by another, with its interval where the pair is compared.
type Ratio = (f64, Option<(f64, f64)>);

fn ratio(results: &Results, reference: &Outcome, other: &Outcome) -> Option<Ratio> {
    let (a, b) = (&reference.configuration.name, &other.configuration.name);
    let compared = results.comparisons.iter().find(|c| c.reference == *a && c.other == *b);
    // comparisons are of the metric: a value of time would stand the other way round
    if results.higher_is_better
        && let Some(r) = compared.and_then(|c| c.ratio.as_ref())
    {
        return Some((r.ratio, r.low.zip(r.high)));
    }
    Some((rate(other)? / rate(reference)?, None))
}

/// How far a ratio is from 1.
fn off((ratio, ends): Ratio) -> String {
    let percent = |r: f64| 100.0 * (r - 1.0);
    let size = format!("{} %", digits(percent(ratio).abs()));
    match ends {
        None => size,
        Some((low, high)) => {
            let signed = |r: f64| format!("{:+.2}", percent(r)).replace('-', "−");
            format!("{size} (95 % interval {} to {} %)", signed(low), signed(high))
        }
    }
}

/// SPD lookup sources, a row a configuration whose lookups were chosen or whose policies changed.
pub fn answered(results: &Results) -> Option<Table> {
    let rows: Vec<Vec<String>> = results.configurations.iter().filter_map(row).collect();
    let headings = vec![
        "configuration",
        "first %",
        "outside %",
        "hit %",
        "collision %",
        "stale %",
        "classified %",
        "scanned %",
        "occupied",
        "bound",
        "updates",
        "update µs mean",
        "p50",
        "p99",
        "max",
    ];
    (!rows.is_empty()).then_some(Table { headings, text: 1, rows })
}

fn row(outcome: &Outcome) -> Option<Vec<String>> {
    let p = outcome.configuration.ipsec().filter(|p| !p.is_aside() && !p.spd.is_default())?;
    let metric = |name: &str, divisor: f64| {
        let median = outcome.further.get(name).map(|s| digits(s.median / divisor));
        median.unwrap_or("–".into())
    };
    let mut row = vec![outcome.configuration.name.clone()];
    for share in ["first", "outside", "hit", "collision", "stale", "classified", "scanned"] {
        row.push(metric(&format!("spd_{share}_percent"), 1.0));
    }
    row.push(metric("cache_occupied_buckets", 1.0));
    row.push(metric("spd_bound_comparisons", 1.0));
    row.push(if p.spd.churn > 0 { metric("updates", 1.0) } else { "–".into() });
    let of = |name: &str| outcome.further.get(name).map(|s| s.mean);
    let mean = of("update_ns_total").zip(of("updates")).filter(|(_, updates)| *updates > 0.0);
    row.push(mean.map_or("–".into(), |(total, updates)| digits(total / updates / 1e3)));
    row.extend(["p50", "p99", "max"].map(|at| metric(&format!("update_ns_{at}"), 1e3)));
    Some(row)
}

/// Writes the tables for the terminal.
pub fn text(results: &Results) -> String {
    let mut out = String::new();
    for depth in depths(results) {
        let heads = depth.table.headings.iter().map(|h| h.to_string()).collect();
        let rows: Vec<Vec<String>> = std::iter::once(heads).chain(depth.table.rows).collect();
        let width = |i: usize| rows.iter().map(|r| r[i].chars().count()).max().unwrap_or(0);
        let _ = writeln!(out, "\n{}", depth.title);
        for row in &rows {
            let cells = row.iter().enumerate().map(|(i, cell)| format!("{cell:>width$}", width = width(i)));
            let _ = writeln!(out, "{}", cells.collect::<Vec<_>>().join("   "));
        }
        for said in &depth.sentences {
            let _ = writeln!(out, "{said}");
        }
    }
    out
}
