//! Every run as a point, mean and interval over them, one row a configuration.
//!
//! The axis fits the SUTs; a baseline far beyond is told in words, so that it does not press every
//! point to the left.

use super::super::svg::{Scale, Shape, Svg, ends, shortened};
use super::{Plot, TOPOLOGIES, WIDTH, colour, dots, thinned, ticks_below, widest};
use crate::format::{digits, with_unit};
use crate::result::{Outcome, Results};

const ROW: f64 = 46.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 46.0;
/// Width of mean and interval in words, right of the drawing.
const WORDS: f64 = 168.0;
const LABEL: f64 = 320.0;
/// A baseline up to so many times the greatest run of a SUT shares their axis.
const NEAR: f64 = 1.5;

/// One plot a topology.
pub fn runs(results: &Results) -> Vec<Plot> {
    let mut plots = Vec::new();
    for (topology, name) in TOPOLOGIES {
        let rows: Vec<&Outcome> = results
            .configurations
            .iter()
            .filter(|o| o.configuration.topology() == topology && !o.values.is_empty())
            .collect();
        if !rows.is_empty() {
            plots.push(strips(results, &rows, name));
        }
    }
    plots
}

fn strips(results: &Results, rows: &[&Outcome], topology: &str) -> Plot {
    let (divisor, unit) = results.metric.unit();
    let scaled = scaled(rows);
    let shown = scaled.iter().flat_map(|o| {
        let interval = o.interval.map_or(Vec::new(), |(low, high)| vec![low, high]);
        o.values.iter().copied().chain(interval).map(|f| f / divisor).collect::<Vec<f64>>()
    });
    let (low, high) = shown.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), f| (l.min(f), h.max(f)));
    let (low, high) = ends(low, high);
    let left = widest(rows.iter().map(|o| &o.configuration.name)).min(LABEL) + 24.0;
    let right = WIDTH - WORDS;
    let floor = TOP + rows.len() as f64 * ROW;
    let scale = Scale::linear(low, high, left, right);
    let mut svg = Svg::new(WIDTH, floor + BOTTOM);
    ticks_below(&mut svg, &scale, &scale.ticks(7), TOP, floor);
    svg.text("unit", "end", right, floor + 38.0, unit);
    svg.text("unit", "end", WIDTH - 4.0, floor + 17.0, &format!("mean ± 95 %, {unit}"));
    for (i, outcome) in rows.iter().enumerate() {
        let row =
            Row { svg: &mut svg, results, o: outcome, middle: TOP + (i as f64 + 0.5) * ROW, left, right };
        row.draw(&scale, high);
    }
    let begins = if low > 0.0 { " The axis does not begin at 0." } else { "" };
    Plot {
        title: format!("Every run {topology}"),
        caption: format!(
            "A dot is a run, the first block at the top of its row, the last at the bottom; the diamond is the \
             mean with its 95 % interval.{begins}{}",
            thinned(rows.iter().copied())
        ),
        svg: svg.finish(&format!("{} of every run, by configuration", results.metric.sentence())),
    }
}

/// The rows the axis fits: the SUTs, and baselines not far above them.
fn scaled<'a>(rows: &[&'a Outcome]) -> Vec<&'a Outcome> {
    let most = |o: &Outcome| o.summary.map_or(0.0, |s| s.max);
    let sut = |o: &Outcome| !o.configuration.is_baseline();
    let top = rows.iter().filter(|o| sut(o)).map(|o| most(o)).fold(0.0, f64::max);
    let near = |o: &Outcome| top == 0.0 || most(o) <= top * NEAR;
    rows.iter().copied().filter(|o| sut(o) || near(o)).collect()
}

struct Row<'a> {
    svg: &'a mut Svg,
    results: &'a Results,
    o: &'a Outcome,
    middle: f64,
    left: f64,
    right: f64,
}

impl Row<'_> {
    fn draw(self, scale: &Scale, high: f64) {
        let Row { svg, results, o, middle, left, right } = self;
        let (name, divisor) = (&o.configuration.name, results.metric.unit().0);
        let colour = colour(results, name);
        svg.line("grid", 0.0, middle + ROW / 2.0, WIDTH, middle + ROW / 2.0);
        svg.text("label", "end", left - 14.0, middle + 4.5, &shortened(name, left - 24.0));
        let Some(s) = o.summary else { return };
        let mean = s.mean / divisor;
        let words = match o.interval {
            Some((low, up)) => with_reach(mean, (up - low) / 2.0 / divisor),
            None => digits(mean),
        };
        svg.text("value", "end", WIDTH - 4.0, middle + 4.5, &words);
        if s.max.max(o.interval.map_or(0.0, |i| i.1)) / divisor > high {
            let part =
                if s.min / divisor > high { "beyond this axis →" } else { "in part beyond this axis →" };
            svg.text("unit", "end", right - 4.0, middle + 4.5, part);
            return;
        }
        let last = o.values.len().max(2) as f64 - 1.0;
        for i in dots(&o.values) {
            let y = middle + (i as f64 / last - 0.5) * (ROW - 16.0);
            let title = format!("{name}, run {}: {}", o.order[i], with_unit(&results.metric, o.values[i]));
            svg.mark(
                &format!("dot {colour}"),
                Shape::Circle,
                scale.at(o.values[i] / divisor),
                y,
                3.2,
                &title,
            );
        }
        if let Some((low, up)) = o.interval {
            let (a, b) = (scale.at(low / divisor), scale.at(up / divisor));
            svg.line(&format!("interval {colour}"), a, middle, b, middle);
        }
        let title = format!("{name}, mean of {} runs: {}", s.n, with_unit(&results.metric, s.mean));
        svg.mark(&format!("mean {colour}"), Shape::Diamond, scale.at(mean), middle, 6.0, &title);
    }
}

/// `53.63 ± 1.88`: as many places as the mean has.
fn with_reach(mean: f64, reach: f64) -> String {
    let mean = digits(mean);
    let places = mean.split_once('.').map_or(0, |(_, places)| places.len());
    format!("{mean} ± {reach:.places$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_has_the_places_of_its_mean() {
        assert_eq!(with_reach(53.626, 1.8816), "53.63 ± 1.88");
        assert_eq!(with_reach(151.0, 10.24), "151.0 ± 10.2");
        assert_eq!(with_reach(12345.6, 7.8), "12346 ± 8");
    }
}
