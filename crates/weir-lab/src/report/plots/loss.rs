//! Throughput against loss: what arrives and what is lost as the offered load grows.
//!
//! ```text
//! delivered │        ┌──────   two panels over one axis; the diagonal is "everything arrives",
//!           │   ╱────┘         losses are logarithmic with a floor that stands for none
//! loss %    │________╱─────
//!             offered ─►
//! ```

use super::super::svg::{Scale, Shape, Svg, shortened};
use super::axis::series_name;
use super::{COLOURS, Plot, WIDTH, colour, legend, legend_row, shape, ticks_below, ticks_beside, widest};
use crate::experiment::{Axis, Experiment};
use crate::format::digits;
use crate::model::Configuration;
use crate::result::Results;
use weir_stats::search::Rate;

const LEFT: f64 = 64.0;
const TOP: f64 = 22.0;
/// Floor of the upper panel, head and floor of the lower one.
const FLOOR: f64 = 260.0;
const LOSS_TOP: f64 = 286.0;
const LOSS_FLOOR: f64 = 430.0;
const HEIGHT: f64 = LOSS_FLOOR + 48.0;
const LABEL: f64 = 240.0;
/// Smaller losses are drawn on the floor, with none.
const LEAST_PERCENT: f64 = 1e-4;

/// One load step: packets a second offered and delivered, percent lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossStep {
    pub offered_pps: f64,
    pub delivered_pps: f64,
    pub loss_percent: f64,
}

/// The steps of one configuration, or of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct LossCurve {
    pub label: String,
    /// Class and marker; see [`LossCurve::new`].
    colour: String,
    shape: Shape,
    pub steps: Vec<LossStep>,
}

impl LossCurve {
    /// The `place`th curve of a plot that knows no results.
    pub fn new(label: &str, place: usize, steps: Vec<LossStep>) -> LossCurve {
        let colour = format!("c{}", place % COLOURS);
        LossCurve { label: label.into(), colour, shape: Shape::of(place), steps }
    }

    /// Makes the curve in the colour the configuration has in every plot.
    pub fn of(results: &Results, name: &str, steps: Vec<LossStep>) -> LossCurve {
        LossCurve { label: name.into(), colour: colour(results, name), shape: shape(results, name), steps }
    }
}

/// The curves of an experiment whose axis is the rate: each configuration is one step.
pub fn curves_of_rates(experiment: &Experiment, results: &Results) -> Vec<LossCurve> {
    if experiment.axis != Some(Axis::Rate) {
        return Vec::new();
    }
    let all: Vec<&Configuration> = results.configurations.iter().map(|o| &o.configuration).collect();
    let mut curves: Vec<LossCurve> = Vec::new();
    for o in &results.configurations {
        let (Rate::Pps(rate), Some(pps), Some(loss)) = (o.configuration.workload.rate, o.pps, o.loss_percent)
        else {
            continue;
        };
        let label = series_name(&all, &o.configuration, Axis::Rate);
        // what was offered, not what was asked for: a generator may fall behind
        let offered_pps = o.further.get("offered_pps").map_or(rate as f64, |s| s.median);
        let step = LossStep { offered_pps, delivered_pps: pps.median, loss_percent: loss.median };
        match curves.iter_mut().find(|c| c.label == label) {
            Some(curve) => curve.steps.push(step),
            None => curves.push(LossCurve::new(&label, curves.len(), vec![step])),
        }
    }
    curves
}

/// `None` unless a curve has two steps.
pub fn throughput_against_loss(curves: &[LossCurve]) -> Option<Plot> {
    let curves: Vec<LossCurve> = curves
        .iter()
        .filter(|c| c.steps.len() > 1)
        .map(|c| {
            let mut curve = c.clone();
            curve.steps.sort_by(|a, b| a.offered_pps.total_cmp(&b.offered_pps));
            curve
        })
        .collect();
    let steps = || curves.iter().flat_map(|c| &c.steps);
    let most = steps().map(|s| s.offered_pps.max(s.delivered_pps)).fold(0.0, f64::max) / 1e6;
    if most <= 0.0 {
        return None;
    }
    let names = widest(curves.iter().map(|c| &c.label)).min(LABEL);
    let right = WIDTH - names - 56.0;
    let x = Scale::linear(0.0, most * 1.04, LEFT, right - 12.0);
    let y = Scale::linear(0.0, most * 1.04, FLOOR, TOP);
    let lost = Scale::log(LEAST_PERCENT, 100.0, LOSS_FLOOR, LOSS_TOP);
    let mut svg = Svg::new(WIDTH, HEIGHT.max(legend_row(curves.len() + 1)));
    ticks_beside(&mut svg, &y, &y.ticks(5), LEFT, right);
    let ticks = x.ticks(8);
    for &tick in &ticks {
        svg.line("grid", x.at(tick), TOP, x.at(tick), FLOOR);
    }
    ticks_below(&mut svg, &x, &ticks, LOSS_TOP, LOSS_FLOOR);
    svg.path("one", &[(x.at(0.0), y.at(0.0)), (x.at(most), y.at(most))]);
    svg.text("unit", "start", 4.0, 12.0, "Mpps delivered");
    svg.text("unit", "start", 4.0, LOSS_TOP - 8.0, "% lost");
    svg.text("unit", "end", right, HEIGHT - 10.0, "Mpps offered");
    for (percent, label) in [(100.0, "100"), (1.0, "1"), (0.01, "0.01"), (LEAST_PERCENT, "none")] {
        svg.line("grid", LEFT, lost.at(percent), right, lost.at(percent));
        svg.text("tick", "end", LEFT - 8.0, lost.at(percent) + 4.0, label);
    }
    for (i, curve) in curves.iter().enumerate() {
        draw(&mut svg, curve, &x, &y, &lost);
        legend(&mut svg, i, right + 14.0, &curve.colour, curve.shape, &shortened(&curve.label, LABEL));
    }
    Some(Plot {
        title: "Throughput against loss".into(),
        caption: "Above: delivered by offered load; on the dashed diagonal everything arrives. Below: the \
                  share lost, logarithmic, on the floor when nothing is."
            .into(),
        svg: svg.finish("delivered packets and loss by offered load"),
    })
}

fn draw(svg: &mut Svg, curve: &LossCurve, x: &Scale, y: &Scale, lost: &Scale) {
    let (class, shape) = (&curve.colour, curve.shape);
    let at = |s: &LossStep| x.at(s.offered_pps / 1e6);
    let delivered: Vec<(f64, f64)> =
        curve.steps.iter().map(|s| (at(s), y.at(s.delivered_pps / 1e6))).collect();
    let losses: Vec<(f64, f64)> = curve.steps.iter().map(|s| (at(s), lost.at(s.loss_percent))).collect();
    for line in [&delivered, &losses] {
        svg.path(&format!("curve {class}"), line);
        for (step, &(x, y)) in curve.steps.iter().zip(line) {
            let title = format!(
                "{}: {} Mpps offered, {} delivered, {} % lost",
                curve.label,
                digits(step.offered_pps / 1e6),
                digits(step.delivered_pps / 1e6),
                digits(step.loss_percent)
            );
            svg.mark(&format!("dot {class}"), shape, x, y, 3.6, &title);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(offered_pps: f64, delivered_pps: f64) -> LossStep {
        let loss_percent = (offered_pps - delivered_pps) * 100.0 / offered_pps;
        LossStep { offered_pps, delivered_pps, loss_percent }
    }

    #[test]
    fn every_step_is_a_point_in_both_panels_and_none_lost_lies_on_the_floor() {
        let steps = vec![step(2e6, 1.5e6), step(1e6, 1e6), step(3e6, 1.5e6)];
        let plot = throughput_against_loss(&[LossCurve::new("a", 0, steps)]).expect("three steps");
        assert_eq!(plot.svg.matches("<title>a: ").count(), 6);
        assert!(plot.svg.contains("a: 1.000 Mpps offered, 1.000 delivered, 0 % lost"), "{}", plot.svg);
        let floor = format!(",{LOSS_FLOOR:.1} ");
        assert!(plot.svg.contains(&floor), "the lossless step lies on the floor");
    }

    #[test]
    fn a_single_step_is_no_curve() {
        assert!(throughput_against_loss(&[LossCurve::new("a", 0, vec![step(1e6, 1e6)])]).is_none());
        assert!(throughput_against_loss(&[]).is_none());
    }
}
