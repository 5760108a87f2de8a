//! Histories drawn: lines of text for a terminal, a page with one picture a configuration.
//!
//! Promises: the same points in both, whiskers from the least to the greatest run, a line where a level
//! changed with its ratio and p. Refuses to draw what was not measured: a gap is a gap.

use crate::across::history::{Change, History, Series};
use crate::format::escape;
use crate::format::{digits, p, with_unit};
use crate::machine::utc;
use crate::report::svg::{Scale, Shape, Svg, ends, text_width, tick_label};

const STYLE: &str = include_str!("../report/html/style.css");
/// Characters of the plot in a terminal.
const CELLS: usize = 40;
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = WIDTH - 24.0;
const TOP: f64 = 34.0;
const FLOOR: f64 = HEIGHT - 44.0;

/// `2026-01-31 23:59`.
fn minute(unix_ms: Option<u64>) -> String {
    unix_ms.map_or("–".into(), |ms| utc(ms).chars().take(16).collect())
}

/// Least and greatest run of a series, in the metric's unit.
fn reach(history: &History, series: &Series) -> (f64, f64) {
    let (divisor, _) = history.metric.unit();
    let ends = series.points.iter().flat_map(|p| [p.summary.min / divisor, p.summary.max / divisor]);
    ends.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)))
}

/// `0.941 times [0.930, 0.952], worse, p 0.0010 (Holm 0.0040)`.
fn words(history: &History, series: &Series, change: &Change) -> String {
    let ratio = change.ratio.map_or("level".into(), |r| match (r.low, r.high) {
        (Some(low), Some(high)) => format!("{:.3} times [{low:.3}, {high:.3}]", r.ratio),
        _ => format!("{:.3} times", r.ratio),
    });
    let direction = change.ratio.map_or("", |r| match (r.ratio > 1.0) == history.higher_is_better {
        true => ", better",
        false => ", worse",
    });
    format!("{ratio}{direction}, p {} (Holm {})", p(Some(change.p)), p(series.p_holm))
}

fn kind(change: &Change) -> &'static str {
    if change.hint { "hint" } else { "change" }
}

/// One configuration as lines of text, changes between the campaigns they fall between.
pub fn plain(history: &History, series: &Series) -> String {
    let (divisor, unit) = history.metric.unit();
    let (low, high) = reach(history, series);
    let labels: Vec<(String, String, String)> = series
        .points
        .iter()
        .map(|p| {
            let label = &history.campaigns[p.campaign];
            (minute(label.started_unix_ms), label.folder.clone(), digits(p.summary.median / divisor))
        })
        .collect();
    let folder = labels.iter().map(|(_, f, _)| f.chars().count()).max().unwrap_or(0);
    let value = labels.iter().map(|(_, _, v)| v.chars().count()).max().unwrap_or(0);
    let (from, to) = (digits(low), digits(high));
    let gap = CELLS.saturating_sub(from.chars().count() + to.chars().count());
    let before = 16 + 2 + folder + 2 + value + 3;
    let mut out = format!("{}, {unit}\n{:before$}{from}{:gap$}{to}\n", series.name, "", "");
    for (i, (point, (when, name, median))) in series.points.iter().zip(&labels).enumerate() {
        if let Some(change) = series.changes.iter().find(|c| c.point == i) {
            out += &format!("  ── {}: {}\n", kind(change), words(history, series, change));
            for difference in &change.differences {
                out += &format!("     {difference}\n");
            }
        }
        let s = &point.summary;
        let [min, max, middle] = [s.min, s.max, s.median].map(|v| cell(v / divisor, low, high));
        let cells: String = (0..CELLS)
            .map(|c| match c {
                _ if c == middle => 'o',
                _ if (min..=max).contains(&c) => '-',
                _ => ' ',
            })
            .collect();
        out += &format!("{when:<16}  {name:<folder$}  {median:>value$}  |{cells}|\n");
    }
    match verdict_of(series) {
        Some(said) => out + &format!("  {said}\n"),
        None => out,
    }
}

/// What is said of a series beside its changes.
fn verdict_of(series: &Series) -> Option<String> {
    let found = !series.changes.is_empty();
    let searched = series
        .p
        .filter(|_| !found)
        .map(|_| format!("no change found, p {} (Holm {})", p(series.p), p(series.p_holm)));
    let said: Vec<String> = [searched, series.unseen()].into_iter().flatten().collect();
    (!said.is_empty()).then(|| said.join("; "))
}

fn cell(value: f64, low: f64, high: f64) -> usize {
    let share = if high > low { (value - low) / (high - low) } else { 0.5 };
    ((share * CELLS as f64) as usize).min(CELLS - 1)
}

/// The self-contained page of several histories.
pub fn page(histories: &[History], left_out: &[String]) -> String {
    let mut body = String::from("<header><h1>History</h1></header>");
    for history in histories {
        body += &format!(
            "<section><h2>{}</h2><p class=\"note\">{} campaigns, {}. Dots are medians, whiskers reach from the \
             least to the greatest run, bars are levels. A change is marked at the first campaign of the new \
             level (E-divisive, permutation test at {} %, a hint where Holm's correction over the \
             configurations leaves a warning).</p></section>\n",
            escape(&history.experiment),
            history.campaigns.len(),
            escape(&history.metric.sentence()),
            history.level * 100.0
        );
        for series in &history.series {
            body += &section(history, series);
        }
    }
    if !left_out.is_empty() {
        let items: Vec<String> = left_out.iter().map(|l| format!("<li>{}</li>", escape(l))).collect();
        body += &format!("<section><h2>Left out</h2><ul>{}</ul></section>\n", items.concat());
    }
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>History</title><style>{STYLE}</style></head>\
         <body><main>{body}</main></body></html>\n"
    )
}

fn section(history: &History, series: &Series) -> String {
    let mut items = String::new();
    for change in &series.changes {
        let label = &history.campaigns[change.campaign];
        items += &format!(
            "<li>{} at {} ({}): {}<ul>{}</ul></li>",
            kind(change),
            escape(&label.folder),
            escape(&label.facts()),
            escape(&words(history, series, change)),
            change.differences.iter().map(|d| format!("<li>{}</li>", escape(d))).collect::<String>()
        );
    }
    let mut said = if items.is_empty() { items } else { format!("<ul>{items}</ul>") };
    if let Some(beside) = verdict_of(series) {
        said += &format!("<p class=\"note\">{}</p>", escape(&beside));
    }
    format!(
        "<section><h2>{}</h2><figure>{}</figure>{said}</section>\n",
        escape(&series.name),
        picture(history, series)
    )
}

/// One configuration through time; campaigns stand evenly, whatever lies between them.
pub fn picture(history: &History, series: &Series) -> String {
    let (divisor, unit) = history.metric.unit();
    let (low, high) = reach(history, series);
    let (low, high) = ends(low, high);
    let y = Scale::linear(low, high, FLOOR, TOP);
    let last = series.points.len().saturating_sub(1).max(1) as f64;
    let x = Scale::linear(0.0, last, LEFT + 24.0, RIGHT - 24.0);
    let mut svg = Svg::new(WIDTH, HEIGHT);
    let ticks = y.ticks(5);
    let step = ticks.windows(2).map(|w| w[1] - w[0]).fold(f64::INFINITY, f64::min);
    for &tick in &ticks {
        svg.line("grid", LEFT, y.at(tick), RIGHT, y.at(tick));
        svg.text("tick", "end", LEFT - 8.0, y.at(tick) + 4.0, &tick_label(tick, step));
    }
    svg.text("unit", "start", 4.0, 14.0, unit);
    for (from, to) in series.segments() {
        let level = y.at(series.level((from, to)) / divisor);
        let (a, b) = (x.at(from as f64) - 14.0, x.at((to - 1) as f64) + 14.0);
        svg.line("interval c0", a, level, b, level);
    }
    for change in &series.changes {
        let at = x.at(change.point as f64 - 0.5);
        svg.line("one", at, TOP - 8.0, at, FLOOR);
        let ratio =
            change.ratio.map_or(kind(change).into(), |r| format!("{} {:.3} ×", kind(change), r.ratio));
        svg.text("label", "middle", at, TOP - 14.0, &ratio);
    }
    let mut free = f64::NEG_INFINITY;
    for (i, point) in series.points.iter().enumerate() {
        let (at, s) = (x.at(i as f64), &point.summary);
        let label = &history.campaigns[point.campaign];
        svg.line("whisker c0", at, y.at(s.min / divisor), at, y.at(s.max / divisor));
        let title = format!("{}, {}: {}", label.folder, label.facts(), with_unit(&history.metric, s.median));
        svg.mark("dot c0", Shape::Circle, at, y.at(s.median / divisor), 4.2, &title);
        let day: String = minute(label.started_unix_ms).chars().take(10).collect();
        if at - text_width(&day) / 2.0 > free {
            svg.text("tick", "middle", at, FLOOR + 20.0, &day);
            free = at + text_width(&day) / 2.0 + 8.0;
        }
    }
    svg.finish(&format!("{} of {} by campaign", history.metric.sentence(), series.name))
}
