//! Latency percentiles, one line a configuration, logarithmic microseconds.

use super::super::digits;
use super::super::markdown::PERCENTILES;
use super::super::svg::{Scale, Svg, text_width, tick_label};
use super::{Plot, WIDTH, colour};
use crate::result::{Outcome, Results};

const HEIGHT: f64 = 360.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 20.0;
const FLOOR: f64 = HEIGHT - 40.0;

/// `None` when no configuration carries timestamps.
pub fn percentiles(results: &Results) -> Option<Plot> {
    let rows: Vec<&Outcome> = results.configurations.iter().filter(|o| !o.latency_ns.is_empty()).collect();
    let all = || rows.iter().flat_map(|o| o.latency_ns.values().map(|s| s.median / 1e3)).filter(|v| *v > 0.0);
    let (low, high) = all().fold((f64::INFINITY, 0.0f64), |(l, h), v| (l.min(v), h.max(v)));
    if high <= 0.0 {
        return None;
    }
    let right = WIDTH - rows.iter().map(|o| text_width(&o.configuration.name)).fold(60.0, f64::max) - 40.0;
    let y = Scale::log(low * 0.8, high * 1.25, FLOOR, TOP);
    let x = |i: usize| LEFT + 40.0 + i as f64 * (right - LEFT - 80.0) / (PERCENTILES.len() - 1) as f64;
    let mut svg = Svg::new(WIDTH, HEIGHT);
    for tick in y.ticks(6) {
        svg.line("grid", LEFT, y.at(tick), right, y.at(tick));
        svg.text("tick", "end", LEFT - 8.0, y.at(tick) + 4.0, &tick_label(tick, tick));
    }
    svg.text("unit", "start", 4.0, 12.0, "µs");
    for (i, name) in PERCENTILES.iter().enumerate() {
        svg.line("grid", x(i), TOP, x(i), FLOOR);
        svg.text("tick", "middle", x(i), FLOOR + 18.0, name);
    }
    for (i, outcome) in rows.iter().enumerate() {
        let colour = colour(results, &outcome.configuration.name);
        let points: Vec<(f64, f64, f64)> = PERCENTILES
            .iter()
            .enumerate()
            .filter_map(|(i, k)| {
                let us = outcome.latency_ns.get(*k)?.median / 1e3;
                Some((x(i), y.at(us), us))
            })
            .collect();
        svg.path(&format!("curve {colour}"), &points.iter().map(|p| (p.0, p.1)).collect::<Vec<_>>());
        for (x, y, us) in points {
            let title = format!("{}: {} µs", outcome.configuration.name, digits(us));
            svg.dot(&format!("dot {colour}"), x, y, 4.0, &title);
        }
        let y = TOP + 12.0 + i as f64 * 22.0;
        svg.path(&format!("curve {colour}"), &[(right + 12.0, y - 4.0), (right + 30.0, y - 4.0)]);
        svg.text("label", "start", right + 36.0, y, &outcome.configuration.name);
    }
    Some(Plot {
        title: "One-way latency by percentile".into(),
        caption: "Median over the runs; generator and receiver share the machine and its clock.".into(),
        svg: svg.finish("latency percentiles by configuration"),
    })
}
