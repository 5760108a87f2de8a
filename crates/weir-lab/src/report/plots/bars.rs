//! The value against words (ciphers, modes, builds): a bar a configuration, grouped by the word.
//!
//! Bars begin at 0, for their length is what is compared. The whisker is the 95 % interval of the mean; a thin line
//! goes from the least to the greatest run, as in the field's own campaigns of ciphers.

use super::super::svg::{Scale, Shape, Svg};
use super::axis::series_name;
use super::{COLOURS, Plot, TOPOLOGIES, WIDTH, legend, legend_row, ticks_below, widest};
use crate::experiment::{Axis, Experiment};
use crate::format::{digits, with_unit};
use crate::model::Configuration;
use crate::result::{Outcome, Results};

const BAR: f64 = 13.0;
const GAP: f64 = 10.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 46.0;
/// Width of the median, right of a bar.
const VALUE: f64 = 76.0;

/// One plot a topology; none where the axis is a number or has a single word.
pub fn by_word(experiment: &Experiment, results: &Results) -> Vec<Plot> {
    let Some(axis) = experiment.axis else { return Vec::new() };
    let plots = TOPOLOGIES.into_iter().filter_map(|(topology, name)| {
        let rows: Vec<(&Outcome, String)> = results
            .configurations
            .iter()
            .filter(|o| o.configuration.topology() == topology && o.summary.is_some())
            .filter(|o| !o.configuration.is_baseline())
            .filter(|o| !results.is_control(&o.configuration.name))
            .filter_map(|o| Some((o, axis.word(&o.configuration)?)))
            .collect();
        let mut words: Vec<&String> = Vec::new();
        for (_, word) in &rows {
            if !words.contains(&word) {
                words.push(word);
            }
        }
        (words.len() > 1).then(|| Plot {
            title: format!("{} by {}, {name}", results.metric.sentence(), axis.key()),
            caption: "Bars are medians; whiskers with ends the 95 % interval of the mean, thin lines from the least to \
                      the greatest run."
                .into(),
            svg: draw(results, axis, &words, &rows),
        })
    });
    plots.collect()
}

fn draw(results: &Results, axis: Axis, words: &[&String], rows: &[(&Outcome, String)]) -> String {
    let (divisor, unit) = results.metric.unit();
    let all: Vec<&Configuration> = rows.iter().map(|(o, _)| &o.configuration).collect();
    let mut series: Vec<String> = Vec::new();
    for (outcome, _) in rows {
        let name = series_name(&all, &outcome.configuration, axis);
        if !series.contains(&name) {
            series.push(name);
        }
    }
    let names = widest(&series) + 48.0;
    let left = widest(words) + 20.0;
    let (edge, right) = (WIDTH - names, WIDTH - names - VALUE);
    let floor = TOP + rows.len() as f64 * BAR + words.len() as f64 * GAP;
    let reach = |o: &Outcome| Some(o.summary?.max.max(o.interval.map_or(0.0, |(_, high)| high)) / divisor);
    let most = rows.iter().filter_map(|(o, _)| reach(o)).fold(0.0, f64::max);
    let scale = Scale::linear(0.0, most, left, right);
    let height = (floor + BOTTOM).max(legend_row(series.len()) + 10.0);
    let mut svg = Svg::new(WIDTH, height);
    ticks_below(&mut svg, &scale, &scale.ticks(6), TOP, floor);
    svg.text("unit", "end", right, floor + 38.0, unit);
    let mut y = TOP + GAP / 2.0;
    for word in words {
        let group: Vec<&Outcome> = rows.iter().filter(|(_, w)| w == *word).map(|(o, _)| *o).collect();
        let middle = y + group.len() as f64 * BAR / 2.0 + 4.5;
        svg.text("label", "end", left - 10.0, middle, word);
        for outcome in group {
            let Some(s) = outcome.summary else { continue };
            let name = series_name(&all, &outcome.configuration, axis);
            let i = series.iter().position(|n| *n == name).unwrap_or(0);
            let colour = format!("c{}", i % COLOURS);
            let end = scale.at(s.median / divisor);
            svg.rect(&format!("dot {colour}"), left, y + 1.0, end - left, BAR - 2.0);
            let (least, greatest) = (scale.at(s.min / divisor), scale.at(s.max / divisor));
            svg.line("range plain", least, y + BAR / 2.0, greatest, y + BAR / 2.0);
            let title = format!("{}: {}", outcome.configuration.name, with_unit(&results.metric, s.median));
            svg.mark(&format!("dot {colour}"), Shape::of(i), end, y + BAR / 2.0, 3.2, &title);
            let (low, high) = outcome.interval.unwrap_or((s.median, s.median));
            let (low, high) = (scale.at((low / divisor).max(0.0)), scale.at(high / divisor));
            svg.line("whisker ends", low, y + BAR / 2.0, high, y + BAR / 2.0);
            for at in [low, high] {
                svg.line("whisker ends", at, y + 2.5, at, y + BAR - 2.5);
            }
            svg.text(
                "value",
                "start",
                greatest.max(high) + 8.0,
                y + BAR / 2.0 + 4.5,
                &digits(s.median / divisor),
            );
            y += BAR;
        }
        y += GAP;
    }
    for (i, name) in series.iter().enumerate() {
        legend(&mut svg, i, edge + 12.0, &format!("c{}", i % COLOURS), Shape::of(i), name);
    }
    svg.finish(&format!("{} by {}", results.metric.sentence(), axis.key()))
}
