//! The report's pictures: ratios, runs, runs over time, a value against an axis, throughput against loss,
//! latency percentiles.
//!
//! Promises: a run is a point, an interval is drawn wherever a mean is, and no picture tells configurations
//! apart by colour alone. Refuses: values that are not in the results.

mod axis;
mod bars;
mod forest;
mod latency;
mod loss;
mod strips;
mod time;

pub use axis::against_axis;
pub use bars::by_word;
pub use forest::ratios;
pub use latency::percentiles;
pub use loss::{LossCurve, LossStep, curves_of_rates, throughput_against_loss};
pub use strips::runs;
pub use time::over_time;

use super::svg::{Scale, Shape, Svg, text_width, tick_label};
use crate::model::Topology;
use crate::result::{Outcome, Results};

/// Pixels of every plot; it scales with the page.
pub(super) const WIDTH: f64 = 960.0;
/// Colours in the style sheet.
pub(super) const COLOURS: usize = 7;
/// Dots a configuration has in one picture, so that the page of ten thousand runs stays a page: 100 bytes
/// each, two pictures, forty configurations are 2 MB.
const DOTS: usize = 250;

/// The colour of a configuration, the same in every plot; baselines are plain.
pub(super) fn colour(results: &Results, name: &str) -> String {
    match place(results, name) {
        Some(i) => format!("c{}", i % COLOURS),
        None => "plain".into(),
    }
}

/// Its marker, likewise.
pub(super) fn shape(results: &Results, name: &str) -> Shape {
    place(results, name).map_or(Shape::Circle, Shape::of)
}

fn place(results: &Results, name: &str) -> Option<usize> {
    let suts = results.configurations.iter().filter(|o| !o.configuration.is_baseline());
    suts.map(|o| &o.configuration.name).position(|n| n == name)
}

/// Values of different topologies are worlds apart: each gets plots of its own.
pub(super) const TOPOLOGIES: [(Topology, &str); 5] = [
    (Topology::Memory, "in memory"),
    (Topology::Netns, "in namespaces over veth"),
    (Topology::Gateways, "through gateways"),
    (Topology::Relay, "through a relay"),
    (Topology::Ssh, "on hosts over ssh"),
];

/// Which runs become dots: all, or an even choice that holds the least and the greatest.
pub(super) fn dots(values: &[f64]) -> Vec<usize> {
    let n = values.len();
    if n <= DOTS {
        return (0..n).collect();
    }
    let by_value = |a: &usize, b: &usize| values[*a].total_cmp(&values[*b]);
    let mut chosen: Vec<usize> = (0..DOTS).map(|i| i * n / DOTS).collect();
    chosen.extend((0..n).min_by(by_value));
    chosen.extend((0..n).max_by(by_value));
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

/// Said under a picture in which not every run is a dot.
pub(super) fn thinned<'a>(mut rows: impl Iterator<Item = &'a Outcome>) -> String {
    match rows.any(|o| o.values.len() > DOTS) {
        true => {
            format!(" About {DOTS} runs a configuration are drawn, the least and the greatest among them.")
        }
        false => String::new(),
    }
}

/// A picture with its heading and the sentence under it.
pub struct Plot {
    pub title: String,
    pub caption: String,
    pub svg: String,
}

/// Vertical grid lines from `top` to `floor` with their values underneath.
pub(super) fn ticks_below(svg: &mut Svg, scale: &Scale, ticks: &[f64], top: f64, floor: f64) {
    for (&tick, label) in ticks.iter().zip(labels(ticks)) {
        let x = scale.at(tick);
        svg.line("grid", x, top, x, floor);
        svg.text("tick", "middle", x, floor + 17.0, &label);
    }
}

/// Horizontal grid lines from `left` to `right` with their values beside them.
pub(super) fn ticks_beside(svg: &mut Svg, scale: &Scale, ticks: &[f64], left: f64, right: f64) {
    for (&tick, label) in ticks.iter().zip(labels(ticks)) {
        let y = scale.at(tick);
        svg.line("grid", left, y, right, y);
        svg.text("tick", "end", left - 8.0, y + 4.0, &label);
    }
}

/// Places after the point as the step needs them; where steps grow (1, 2, 5, 10), as each tick needs them.
fn labels(ticks: &[f64]) -> Vec<String> {
    let steps: Vec<f64> = ticks.windows(2).map(|w| w[1] - w[0]).collect();
    let least = steps.iter().copied().fold(f64::INFINITY, f64::min);
    let even = steps.iter().all(|s| *s < least * 1.5);
    let step = |tick: f64| if even && least.is_finite() { least } else { tick };
    ticks.iter().map(|&tick| tick_label(tick, step(tick))).collect()
}

/// Pixels that names in a column take, never too few for the column to be one.
pub(super) fn widest<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> f64 {
    names.into_iter().map(|name| text_width(name.as_ref())).fold(60.0, f64::max)
}

/// Where the entry of a legend stands that has `rows` above it.
pub(super) fn legend_row(rows: usize) -> f64 {
    30.0 + rows as f64 * 22.0
}

/// One entry of a legend: line, marker and name.
pub(super) fn legend(svg: &mut Svg, row: usize, x: f64, colour: &str, shape: Shape, name: &str) {
    let y = legend_row(row);
    svg.path(&format!("curve {colour}"), &[(x, y - 4.0), (x + 24.0, y - 4.0)]);
    svg.mark(&format!("dot {colour}"), shape, x + 12.0, y - 4.0, 4.0, "");
    svg.text("label", "start", x + 32.0, y, name);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousand_runs_are_thinned_and_keep_their_extremes() {
        let mut values: Vec<f64> = (0..10_000).map(|i| f64::from(i % 7)).collect();
        (values[4321], values[8765]) = (-1.0, 99.0);
        let chosen = dots(&values);
        assert!(chosen.len() <= DOTS + 2 && chosen.contains(&4321) && chosen.contains(&8765));
        assert!(chosen.windows(2).all(|w| w[0] < w[1]), "in order, each once");
        assert_eq!(dots(&values[..10]).len(), 10);
    }

    #[test]
    fn ticks_are_labelled_with_the_places_they_need() {
        assert_eq!(labels(&[0.5, 1.0, 1.5]), ["0.5", "1.0", "1.5"]);
        assert_eq!(labels(&[0.5, 1.0, 2.0, 5.0, 10.0]), ["0.5", "1", "2", "5", "10"]);
    }
}
