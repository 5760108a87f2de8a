//! Every comparison as a point with its interval, beside the band that counts as no difference.
//!
//! The axis is logarithmic: half and twice are equally far from one.

use super::super::svg::{Scale, Shape, Svg, shortened};
use super::{Plot, WIDTH, ticks_below, widest};
use crate::format::verdict;
use crate::result::Results;
use weir_stats::{Comparison, Verdict};

const ROW: f64 = 44.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 48.0;
/// Left of the values in words, which are right of the drawing, between them and the verdicts, and right of those.
const GAPS: [f64; 3] = [18.0, 24.0, 4.0];
/// Names may take this much.
const LABEL: f64 = 300.0;
/// Beyond this span ticks are powers of ten and their 2 and 5.
const WIDE: f64 = 12.0;

/// `None` when nothing was compared.
pub fn ratios(results: &Results) -> Option<Plot> {
    let rows: Vec<&Comparison> = results.comparisons.iter().filter(|c| c.ratio.is_some()).collect();
    let margin = rows.first()?.margin_percent / 100.0;
    let ends = rows
        .iter()
        .filter_map(|c| c.ratio)
        .flat_map(|r| [r.ratio, r.low.unwrap_or(r.ratio), r.high.unwrap_or(r.ratio)]);
    let (low, high) = ends.fold((1.0 - margin, 1.0 + margin), |(l, h), f| (l.min(f), h.max(f)));
    // a ratio of nothing has no place on a logarithmic axis
    let low = low.max(high / 1e4);
    let pad = (high / low).powf(0.06);
    let names = rows.iter().flat_map(|c| [c.other.clone(), format!("against {}", c.reference)]);
    let left = widest(names).min(LABEL) + 24.0;
    let right = WIDTH - words(&rows, results);
    let floor = TOP + rows.len() as f64 * ROW;
    let scale = Scale::log(low / pad, high * pad, left, right);
    let mut svg = Svg::new(WIDTH, floor + BOTTOM);
    let (from, to) = (scale.at(1.0 - margin), scale.at(1.0 + margin));
    svg.rect("band", from, TOP, to - from, floor - TOP);
    let ticks = match high / low > WIDE {
        true => scale.ticks(7),
        false => Scale::linear(low, high, left, right).ticks(6),
    };
    ticks_below(&mut svg, &scale, &ticks, TOP, floor);
    svg.line("one", scale.at(1.0), TOP - 6.0, scale.at(1.0), floor);
    for (i, comparison) in rows.iter().enumerate() {
        row(
            &mut svg,
            (comparison, &results.ratio(comparison)),
            &scale,
            TOP + (i as f64 + 0.5) * ROW,
            (left, right),
        );
    }
    let better = if results.higher_is_better { "right of 1 is faster" } else { "left of 1 is better" };
    svg.text("unit", "end", right, floor + 38.0, &format!("times the reference; {better}"));
    Some(Plot {
        title: "Ratios".into(),
        caption: format!(
            "Other / reference with its 95 % interval. The band is the margin, ±{} %: a difference inside \
             counts as none. Filled diamond: different; filled circle: equivalent; open circle: undecided.",
            rows[0].margin_percent
        ),
        svg: svg.finish(&said(&rows, results)),
    })
}

fn row(
    svg: &mut Svg,
    (c, ratio): (&Comparison, &str),
    scale: &Scale,
    middle: f64,
    (left, right): (f64, f64),
) {
    let Some(r) = c.ratio else { return };
    let (class, shape) = match c.verdict {
        Verdict::Different => ("different", Shape::Diamond),
        Verdict::Equivalent => ("equivalent", Shape::Circle),
        Verdict::Underpowered | Verdict::NoTest => ("undecided", Shape::Circle),
    };
    let room = left - 24.0;
    svg.line("grid", 0.0, middle + ROW / 2.0, WIDTH, middle + ROW / 2.0);
    svg.text("label", "end", left - 14.0, middle - 2.0, &shortened(&c.other, room));
    svg.text(
        "unit",
        "end",
        left - 14.0,
        middle + 14.0,
        &shortened(&format!("against {}", c.reference), room),
    );
    if let (Some(low), Some(high)) = (r.low, r.high) {
        let (a, b) = (scale.at(low), scale.at(high));
        for (x1, y1, x2, y2) in
            [(a, middle, b, middle), (a, middle - 5.0, a, middle + 5.0), (b, middle - 5.0, b, middle + 5.0)]
        {
            svg.line(&format!("whisker {class}"), x1, y1, x2, y2);
        }
    }
    let title = format!("{} against {}: {ratio}, {}", c.other, c.reference, verdict(c.verdict));
    svg.mark(&format!("verdict-mark {class}"), shape, scale.at(r.ratio), middle, 6.0, &title);
    svg.text("value", "start", right + GAPS[0], middle + 4.5, ratio);
    svg.text(&format!("value {class}"), "end", WIDTH - GAPS[2], middle + 4.5, verdict(c.verdict));
}

/// What values and verdicts take, each in a column of its own.
fn words(rows: &[&Comparison], results: &Results) -> f64 {
    let (values, verdicts) = (rows.iter().map(|c| results.ratio(c)), rows.iter().map(|c| verdict(c.verdict)));
    GAPS.iter().sum::<f64>() + widest(values) + widest(verdicts)
}

/// What a screen reader says instead of the drawing.
fn said(rows: &[&Comparison], results: &Results) -> String {
    let one = |c: &&Comparison| {
        format!("{} against {}: {}, {}", c.other, c.reference, results.ratio(c), verdict(c.verdict))
    };
    format!("ratios with intervals. {}", rows.iter().map(one).collect::<Vec<_>>().join("; "))
}
