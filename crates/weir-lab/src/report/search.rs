//! What searches found: bounds, throughput against loss, latency at shares of the PDR.
//!
//! Promises: one set of rows for both reports. Refuses: rows for configurations that were not searched.

use super::comparisons::Table;
use super::plots::{LossCurve, LossStep};
use crate::format::digits;
use crate::result::searched::{GoalOutcome, LoadStep, Searched};
use crate::result::{Outcome, Results};
use weir_stats::Summary;

/// Percentiles of latencies, in the order they are read.
const PERCENTILES: [&str; 5] = ["p50", "p90", "p99", "p99.9", "max"];

/// A table as both reports print it.
pub struct Section {
    pub title: &'static str,
    pub note: String,
    pub table: Table,
}

/// None without searches.
pub fn sections(results: &Results) -> Vec<Section> {
    [bounds(results), steps(results), latency(results)]
        .into_iter()
        .filter(|s| !s.table.rows.is_empty())
        .collect()
}

/// A curve a configuration: loads up to twice what ever came through, or the flat-out trials would leave the
/// rest no room.
pub fn curves(results: &Results) -> Vec<LossCurve> {
    let step = |s: &LoadStep| LossStep {
        offered_pps: s.offered_pps,
        delivered_pps: s.delivered_pps.median,
        loss_percent: s.loss_percent.median,
    };
    let curve = |(o, s): (&Outcome, &Searched)| {
        let most = s.steps.iter().map(|s| s.delivered_pps.max).fold(0.0, f64::max);
        let shown = s.steps.iter().filter(|s| s.offered_pps <= 2.0 * most);
        LossCurve::of(results, &o.configuration.name, shown.map(step).collect())
    };
    searched(results).map(curve).collect()
}

fn searched(results: &Results) -> impl Iterator<Item = (&Outcome, &Searched)> {
    results.configurations.iter().filter_map(|o| Some((o, o.searched.as_ref()?)))
}

fn dash(text: Option<String>) -> String {
    text.unwrap_or("–".into())
}

/// A setting as it was written: `0.5`, `50`.
fn short(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').into()
}

/// Median in millions.
fn mega(summary: &Option<Summary>) -> String {
    dash(summary.map(|s| digits(s.median / 1e6)))
}

fn bounds(results: &Results) -> Section {
    let row = |(o, g): (&Outcome, &GoalOutcome)| {
        let verdicts: Vec<String> = g
            .verdicts
            .iter()
            .map(|(v, n)| format!("{n} × {}", v.trim_start_matches("irregular: ")))
            .collect();
        let range = g.lower_pps.map(|s| format!("{} – {}", digits(s.min / 1e6), digits(s.max / 1e6)));
        vec![
            o.configuration.name.clone(),
            g.name.to_uppercase(),
            verdicts.join(", "),
            mega(&g.lower_pps),
            dash(range),
            mega(&g.upper_pps),
            mega(&g.conditional_pps),
            format!("{} of {}", g.odd, g.runs()),
        ]
    };
    let goals = || searched(results).flat_map(|(o, s)| s.goals.iter().map(move |g| (o, g)));
    let terms = goals().next().map_or(String::new(), |(_, g)| {
        format!(
            "trials of {} s, {} s a load of which {} % may exceed, bounds {} % apart; ",
            g.final_seconds,
            g.sum_seconds,
            short(g.exceed_percent),
            short(g.width_percent)
        )
    });
    let losses: Vec<String> = searched(results)
        .next()
        .map(|(_, s)| {
            s.goals.iter().map(|g| format!("{} {} %", g.name.to_uppercase(), short(g.loss_percent))).collect()
        })
        .unwrap_or_default();
    Section {
        title: "NDR and PDR",
        note: format!(
            "Mpps, medians over the runs that have a value, by MLRsearch (RFC 9971): {terms}tolerated loss: {}. The lower bound is \
             the value; conditional throughput is what typically came through there.",
            losses.join(", ")
        ),
        table: Table {
            headings: vec![
                "configuration",
                "goal",
                "runs",
                "lower bound",
                "min – max",
                "upper bound",
                "conditional",
                "odd runs",
            ],
            text: 3,
            rows: goals().map(row).collect(),
        },
    }
}

fn steps(results: &Results) -> Section {
    let row = |(o, s): (&Outcome, &LoadStep)| {
        let us = |k: &str| dash(s.latency_ns.get(k).map(|l| digits(l.median / 1e3)));
        let range = format!("{} – {}", digits(s.loss_percent.min), digits(s.loss_percent.max));
        vec![
            o.configuration.name.clone(),
            s.trials.to_string(),
            digits(s.offered_pps / 1e6),
            digits(s.delivered_pps.median / 1e6),
            digits(s.loss_percent.median),
            range,
            dash(s.shortfall_percent.map(|b| digits(b.median))),
            us("p50"),
            us("p99"),
            us("p99.9"),
            dash(s.cpu_percent.map(|c| format!("{:.0}", c.median))),
        ]
    };
    Section {
        title: "Throughput against loss",
        note: "Every trial of every run; loads within 5 %, or a step of a sweep, are one row, medians over \
               its trials. Loss is of what was offered, or asked for when the source fell behind. Rate, \
               loss and latency of a whole run, elsewhere in this report, are those of the trial flat out \
               that every search begins with."
            .into(),
        table: Table {
            headings: vec![
                "configuration",
                "trials",
                "offered, Mpps",
                "delivered, Mpps",
                "loss, %",
                "min – max",
                "not offered, %",
                "p50, µs",
                "p99, µs",
                "p99.9, µs",
                "CPU of the SUT, %",
            ],
            text: 1,
            rows: searched(results)
                .flat_map(|(o, s)| s.steps.iter().map(move |step| (o, step)))
                .map(row)
                .collect(),
        },
    }
}

fn latency(results: &Results) -> Section {
    let mut rows = Vec::new();
    for (o, _) in searched(results) {
        for share in Searched::shares(&o.further) {
            let us = |k: &str| {
                dash(o.further.get(&format!("latency_{share}_ns_{k}")).map(|l| digits(l.median / 1e3)))
            };
            let load = o.further.get(&format!("latency_{share}_load_pps")).copied();
            let mut row = vec![o.configuration.name.clone(), format!("{share} %"), mega(&load)];
            row.extend(PERCENTILES.map(us));
            rows.push(row);
        }
    }
    Section {
        title: "Latency at shares of the PDR",
        note: "One way, µs, medians over the runs.".into(),
        table: Table {
            headings: [&["configuration", "of the PDR", "load, Mpps"][..], &PERCENTILES[..]].concat(),
            text: 1,
            rows,
        },
    }
}
