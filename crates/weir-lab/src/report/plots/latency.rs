//! Latency percentiles on the axis HdrHistogram plots have: each further nine is as wide as the last.
//!
//! ```text
//! p50     p90     p99     p99.9     ┊ max        place = log₁₀ 1 / (1 − q)
//! ```
//!
//! The greatest latency has no percentile; it stands apart at the right.

use super::super::markdown::percentiles_of;
use super::super::svg::{Scale, Svg, shortened};
use super::{Plot, WIDTH, colour, legend, legend_row, shape, ticks_beside, widest};
use crate::format::digits;
use crate::result::{Outcome, Results};

const HEIGHT: f64 = 380.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 22.0;
const FLOOR: f64 = HEIGHT - 44.0;
const LABEL: f64 = 260.0;
/// Pixels between configurations at one percentile.
const ASIDE: f64 = 4.0;
/// Beyond so many configurations whiskers would hide the points.
const WHISKERS: usize = 8;

/// `None` when no configuration carries timestamps.
pub fn percentiles(results: &Results) -> Option<Plot> {
    let rows: Vec<&Outcome> = results.configurations.iter().filter(|o| !o.latency_ns.is_empty()).collect();
    let all = || {
        rows.iter()
            .flat_map(|o| o.latency_ns.values().flat_map(|s| [s.min / 1e3, s.max / 1e3]))
            .filter(|v| *v > 0.0)
    };
    let (low, high) = all().fold((f64::INFINITY, 0.0f64), |(l, h), v| (l.min(v), h.max(v)));
    if high <= 0.0 {
        return None;
    }
    let names = widest(rows.iter().map(|o| &o.configuration.name)).min(LABEL);
    let right = WIDTH - names - 56.0;
    let y = Scale::log(low * 0.8, high * 1.25, FLOOR, TOP);
    let keys = percentiles_of(results);
    let places = places(&keys, LEFT + 40.0, right - 40.0);
    let mut svg = Svg::new(WIDTH, HEIGHT.max(legend_row(rows.len() + 1)));
    ticks_beside(&mut svg, &y, &y.ticks(6), LEFT, right);
    svg.text("unit", "start", 4.0, 12.0, "µs");
    for (key, x) in keys.iter().zip(&places) {
        svg.line(if key == "max" { "session" } else { "grid" }, *x, TOP, *x, FLOOR);
        svg.text("tick", "middle", *x, FLOOR + 18.0, key);
    }
    svg.text("unit", "end", right, HEIGHT - 6.0, "percentile of packets");
    for (i, outcome) in rows.iter().enumerate() {
        let name = &outcome.configuration.name;
        let (colour, shape) = (colour(results, name), shape(results, name));
        let mut line = Vec::new();
        // side by side, so that no whisker hides another
        let aside = (i as f64 - (rows.len() as f64 - 1.0) / 2.0) * ASIDE.min(40.0 / rows.len() as f64);
        for (key, place) in keys.iter().zip(&places) {
            let (Some(s), x) = (outcome.latency_ns.get(key), place + aside) else { continue };
            if rows.len() <= WHISKERS {
                svg.line(&format!("range {colour}"), x, y.at(s.min / 1e3), x, y.at(s.max / 1e3));
            }
            line.push((
                x,
                y.at(s.median / 1e3),
                format!("{name}, {key}: {} µs", digits(s.median / 1e3)),
                key,
            ));
        }
        let joined: Vec<(f64, f64)> = line.iter().filter(|p| p.3 != "max").map(|p| (p.0, p.1)).collect();
        svg.path(&format!("curve {colour}"), &joined);
        for (x, y, title, _) in line {
            svg.mark(&format!("dot {colour}"), shape, x, y, 4.2, &title);
        }
        legend(&mut svg, i, right + 14.0, &colour, shape, &shortened(name, LABEL));
    }
    let whiskers = if rows.len() <= WHISKERS { ", whiskers from the least to the greatest run" } else { "" };
    Some(Plot {
        title: "One-way latency by percentile".into(),
        caption: format!("Median over the runs{whiskers}; generator and receiver share one clock."),
        svg: svg.finish("latency percentiles by configuration"),
    })
}

/// Pixels of each key: nines evenly apart, `max` one nine beyond the last.
fn places(keys: &[String], from: f64, to: f64) -> Vec<f64> {
    let nines = |key: &String| {
        let q = key.strip_prefix('p')?.parse::<f64>().ok()? / 100.0;
        (q < 1.0).then(|| -(1.0 - q).log10())
    };
    let last = keys.iter().filter_map(nines).fold(0.0, f64::max);
    let all: Vec<f64> = keys.iter().map(|k| nines(k).unwrap_or(last + 1.0)).collect();
    let (low, high) = all.iter().fold((f64::INFINITY, 0.0f64), |(l, h), &v| (l.min(v), h.max(v)));
    let scale = Scale::linear(low, high, from, to);
    all.iter().map(|&v| scale.at(v)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_further_nine_is_as_wide_as_the_last_and_the_greatest_stands_apart() {
        let keys = ["p90", "p99", "p99.9", "max"].map(String::from);
        let at = places(&keys, 0.0, 300.0);
        for (found, expected) in at.iter().zip([0.0, 100.0, 200.0, 300.0]) {
            assert!((found - expected).abs() < 1e-9, "{at:?}");
        }
    }
}
