//! The report's pictures: runs, ratios, a figure against an axis, latency percentiles.

mod axis;
mod latency;

pub use axis::against_axis;
pub use latency::percentiles;

use super::svg::{Scale, Svg, ends, text_width, tick_label};
use super::{figure, ratio, verdict};
use crate::model::{Subject, Topology};
use crate::result::{Outcome, Results};
use crate::stats::Verdict;

/// Pixels of every plot; it scales with the page.
pub(super) const WIDTH: f64 = 960.0;
const ROW: f64 = 46.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 46.0;
/// Colours in the style sheet.
pub(super) const COLOURS: usize = 7;

/// The colour of a configuration, the same in every plot; ceilings are plain.
pub(super) fn colour(results: &Results, name: &str) -> String {
    let subjects = results.configurations.iter().filter(|o| o.configuration.subject != Subject::Ceiling);
    match subjects.map(|o| &o.configuration.name).position(|n| n == name) {
        Some(i) => format!("c{}", i % COLOURS),
        None => "plain".into(),
    }
}

/// Figures of different topologies are worlds apart: each gets plots of its own.
pub(super) const TOPOLOGIES: [(Topology, &str); 2] =
    [(Topology::Memory, "in memory"), (Topology::Netns, "in namespaces over veth")];

/// A picture with its heading and the sentence under it.
pub struct Plot {
    pub title: String,
    pub caption: String,
    pub svg: String,
}

/// Every run as a dot, one plot a topology.
pub fn runs(results: &Results) -> Vec<Plot> {
    let mut plots = Vec::new();
    for (topology, name) in TOPOLOGIES {
        let rows: Vec<&Outcome> = results
            .configurations
            .iter()
            .filter(|o| o.configuration.topology == topology && !o.figures.is_empty())
            .collect();
        if !rows.is_empty() {
            plots.push(Plot {
                title: format!("Every run {name}"),
                caption: "A dot is a run, in the order measured from top to bottom of its row; the bar is \
                          the 95 % interval of the mean, the stroke the median."
                    .into(),
                svg: strips(results, &rows),
            });
        }
    }
    plots
}

fn strips(results: &Results, rows: &[&Outcome]) -> String {
    let (divisor, unit) = results.metric.unit();
    let all = || rows.iter().flat_map(|o| o.figures.iter().map(|f| f / divisor));
    let (low, high) = all().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), f| (l.min(f), h.max(f)));
    let left = rows.iter().map(|o| text_width(&o.configuration.name)).fold(60.0, f64::max) + 24.0;
    let height = TOP + rows.len() as f64 * ROW + BOTTOM;
    let (low, high) = ends(low, high);
    let scale = Scale::linear(low, high, left, WIDTH - 24.0);
    let mut svg = Svg::new(WIDTH, height);
    bottom_axis(&mut svg, &scale, height, unit);
    for (i, outcome) in rows.iter().enumerate() {
        strip(&mut svg, results, outcome, &scale, TOP + i as f64 * ROW, left);
    }
    svg.finish(&format!("{} of every run by configuration", results.metric.sentence()))
}

fn strip(svg: &mut Svg, results: &Results, o: &Outcome, scale: &Scale, y: f64, left: f64) {
    let colour = &colour(results, &o.configuration.name);
    let (divisor, _) = results.metric.unit();
    let middle = y + ROW / 2.0;
    svg.line("grid", left, y + ROW, WIDTH - 24.0, y + ROW);
    svg.text("label", "end", left - 14.0, middle + 4.5, &o.configuration.name);
    if let Some((low, high)) = o.interval {
        let (x1, x2) = (scale.at(low / divisor).max(left), scale.at(high / divisor).min(WIDTH - 10.0));
        svg.rect(&format!("interval {colour}"), x1, middle - 9.0, x2 - x1, 18.0);
    }
    if let Some(s) = o.summary {
        let x = scale.at(s.median / divisor);
        svg.line(&format!("median {colour}"), x, middle - 14.0, x, middle + 14.0);
    }
    let n = o.figures.len().max(2) as f64;
    for (i, &f) in o.figures.iter().enumerate() {
        let down = (i as f64 / (n - 1.0) - 0.5) * (ROW - 18.0);
        let title = format!("{}, run {}: {}", o.configuration.name, o.order[i], figure(&results.metric, f));
        svg.dot(&format!("dot {colour}"), scale.at(f / divisor), middle + down, 3.4, &title);
    }
}

pub(super) fn bottom_axis(svg: &mut Svg, scale: &Scale, height: f64, unit: &str) {
    let ticks = scale.ticks(7);
    let step = ticks.windows(2).map(|w| w[1] - w[0]).fold(f64::INFINITY, f64::min);
    for &tick in &ticks {
        let x = scale.at(tick);
        svg.line("grid", x, TOP, x, height - BOTTOM);
        svg.text("tick", "middle", x, height - BOTTOM + 17.0, &tick_label(tick, step));
    }
    svg.text("unit", "end", WIDTH - 24.0, height - 6.0, unit);
}

/// Every comparison as a bar from 1 to its ratio, with its interval.
pub fn ratios(results: &Results) -> Option<Plot> {
    let rows: Vec<_> = results.comparisons.iter().filter(|c| c.ratio.is_some()).collect();
    if rows.is_empty() {
        return None;
    }
    let names: Vec<String> = rows.iter().map(|c| format!("{} / {}", c.other, c.reference)).collect();
    let ends = rows
        .iter()
        .filter_map(|c| c.ratio)
        .flat_map(|r| [r.ratio, r.low.unwrap_or(r.ratio), r.high.unwrap_or(r.ratio)]);
    let (low, high) = ends.fold((1.0f64, 1.0f64), |(l, h), f| (l.min(f), h.max(f)));
    let pad = (high - low).max(0.02) * 0.08;
    let left = names.iter().map(|n| text_width(n)).fold(60.0, f64::max) + 24.0;
    let right = WIDTH - 250.0;
    let height = TOP + rows.len() as f64 * 34.0 + BOTTOM;
    let scale = Scale::linear((low - pad).max(0.0), high + pad, left, right);
    let mut svg = Svg::new(WIDTH, height);
    let ticks = scale.ticks(6);
    let step = ticks.windows(2).map(|w| w[1] - w[0]).fold(f64::INFINITY, f64::min);
    for &tick in &ticks {
        svg.line("grid", scale.at(tick), TOP, scale.at(tick), height - BOTTOM);
        svg.text("tick", "middle", scale.at(tick), height - BOTTOM + 17.0, &tick_label(tick, step));
    }
    let one = scale.at(1.0);
    for (i, (c, name)) in rows.iter().zip(&names).enumerate() {
        let Some(r) = c.ratio else { continue };
        let middle = TOP + i as f64 * 34.0 + 17.0;
        let class = match c.verdict {
            Verdict::Different => "different",
            Verdict::Equivalent => "equivalent",
            Verdict::Underpowered | Verdict::NoTest => "undecided",
        };
        svg.text("label", "end", left - 14.0, middle + 4.5, name);
        let x = scale.at(r.ratio);
        svg.rect(&format!("bar {class}"), one.min(x), middle - 8.0, (x - one).abs(), 16.0);
        if let (Some(low), Some(high)) = (r.low, r.high) {
            let (a, b) = (scale.at(low), scale.at(high));
            svg.line("whisker", a, middle, b, middle);
            svg.line("whisker", a, middle - 5.0, a, middle + 5.0);
            svg.line("whisker", b, middle - 5.0, b, middle + 5.0);
        }
        svg.text(
            "value",
            "start",
            right + 16.0,
            middle + 4.5,
            &format!("{} {}", ratio(c), verdict(c.verdict)),
        );
    }
    svg.line("one", one, TOP - 6.0, one, height - BOTTOM);
    let better = if results.higher_is_better { "above 1 is faster" } else { "below 1 is better" };
    svg.text("unit", "end", right, height - 6.0, &format!("times the reference; {better}"));
    Some(Plot {
        title: "Ratios".into(),
        caption: "Ratio of means with its 95 % interval (bootstrap, widened for few runs).".into(),
        svg: svg.finish("ratio of every comparison"),
    })
}
