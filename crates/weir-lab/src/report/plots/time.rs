//! Runs in the order they were measured: drift, outliers and sessions, one row a configuration.

use std::time::Duration;

use super::super::svg::{Scale, Shape, Svg, shortened, text_width};
use super::{Plot, WIDTH, colour, dots, thinned, widest};
use crate::format::{digits, with_unit};
use crate::progress::human;
use crate::result::{Outcome, Results};

const ROW: f64 = 38.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 46.0;
const WORDS: f64 = 96.0;
const LABEL: f64 = 320.0;
/// Deviations below this do not fill a row: noise of a calm machine should look calm.
const LEAST_PERCENT: f64 = 1.0;

/// One run of one configuration, by its place in time.
#[derive(Clone, Copy)]
struct Moment {
    session: usize,
    order: usize,
    block: usize,
    started_unix_ms: u64,
}

/// `None` with fewer than two runs a configuration.
pub fn over_time(results: &Results) -> Option<Plot> {
    let rows: Vec<&Outcome> = results.configurations.iter().filter(|o| o.values.len() > 1).collect();
    let moments = moments(&rows);
    if moments.len() < 2 || rows.iter().any(|o| o.sessions.len() != o.values.len()) {
        return None;
    }
    let most = rows.iter().flat_map(|o| deviations(o)).map(f64::abs).fold(LEAST_PERCENT, f64::max);
    let left = widest(rows.iter().map(|o| &o.configuration.name)).min(LABEL) + 24.0;
    let right = WIDTH - WORDS;
    let floor = TOP + rows.len() as f64 * ROW;
    let x = Scale::linear(0.0, moments.len() as f64 - 1.0, left + 8.0, right - 8.0);
    let mut svg = Svg::new(WIDTH, floor + BOTTOM);
    blocks(&mut svg, &moments, &x, floor);
    sessions(&mut svg, &moments, &x, floor);
    svg.text("unit", "end", WIDTH - 4.0, floor + 17.0, "farthest");
    for (i, outcome) in rows.iter().enumerate() {
        let place = |run: usize| {
            let key = (outcome.sessions[run], outcome.order[run]);
            moments.binary_search_by_key(&key, |m| (m.session, m.order)).unwrap_or(0)
        };
        let at = (0..outcome.values.len()).map(|run| x.at(place(run) as f64)).collect();
        let middle = TOP + (i as f64 + 0.5) * ROW;
        Row { svg: &mut svg, results, o: outcome, at, most, middle, left }.draw();
    }
    svg.text("unit", "end", right, floor + 38.0, "blocks, in the order measured");
    Some(Plot {
        title: "Runs over time".into(),
        caption: format!(
            "Each run as it departs from its configuration\u{2019}s median; a row reaches from \u{2212}{most} % to +{most} %. \
             A slope is a drift, a step at a dashed line a difference between sessions.{thinned}",
            most = digits(most),
            thinned = thinned(rows.iter().copied())
        ),
        svg: svg.finish("departure of every run from its configuration's median, in the order measured"),
    })
}

fn moments(rows: &[&Outcome]) -> Vec<Moment> {
    let mut all: Vec<Moment> = rows
        .iter()
        .flat_map(|o| {
            o.order.iter().zip(&o.sessions).zip(&o.blocks).zip(&o.started_unix_ms).map(
                |(((&order, &session), &block), &started_unix_ms)| Moment {
                    session,
                    order,
                    block,
                    started_unix_ms,
                },
            )
        })
        .collect();
    all.sort_by_key(|m| (m.session, m.order));
    all
}

/// Percent from the median, run by run.
fn deviations(o: &Outcome) -> Vec<f64> {
    let median = o.summary.map_or(0.0, |s| s.median);
    if median == 0.0 {
        return vec![0.0; o.values.len()];
    }
    o.values.iter().map(|f| (f / median - 1.0) * 100.0).collect()
}

/// A line where each block begins, numbered from 1 as far as there is room.
fn blocks(svg: &mut Svg, moments: &[Moment], x: &Scale, floor: f64) {
    let mut free = f64::NEG_INFINITY;
    for (i, m) in moments.iter().enumerate() {
        if i > 0 && moments[i - 1].block == m.block {
            continue;
        }
        let at = x.at(i as f64 - 0.5).max(x.at(0.0) - 8.0);
        svg.line("grid", at, TOP, at, floor);
        let label = (m.block + 1).to_string();
        if at > free {
            svg.text("tick", "start", at + 2.0, floor + 17.0, &label);
            free = at + text_width(&label) + 10.0;
        }
    }
}

/// A dashed line where each session begins, with the time since the run before.
fn sessions(svg: &mut Svg, moments: &[Moment], x: &Scale, floor: f64) {
    for (i, pair) in moments.windows(2).enumerate() {
        if pair[0].session == pair[1].session {
            continue;
        }
        let at = x.at(i as f64 + 0.5);
        let later = pair[1].started_unix_ms.saturating_sub(pair[0].started_unix_ms);
        svg.line("session", at, TOP - 10.0, at, floor);
        let words = format!("session {}, {} later", pair[1].session + 1, human(Duration::from_millis(later)));
        let fits = at + text_width(&words) < WIDTH;
        let (anchor, at) = if fits { ("start", at + 5.0) } else { ("end", at - 5.0) };
        svg.text("unit", anchor, at, TOP - 10.0, &words);
    }
}

struct Row<'a> {
    svg: &'a mut Svg,
    results: &'a Results,
    o: &'a Outcome,
    /// Where each run of `o` lies.
    at: Vec<f64>,
    /// Percent a row reaches from its middle.
    most: f64,
    middle: f64,
    left: f64,
}

impl Row<'_> {
    fn draw(self) {
        let Row { svg, results, o, at, most, middle, left } = self;
        let (name, colour) = (&o.configuration.name, colour(results, &o.configuration.name));
        let y = Scale::linear(-most, most, middle + ROW / 2.0 - 4.0, middle - ROW / 2.0 + 4.0);
        svg.line("grid", 0.0, middle + ROW / 2.0, WIDTH, middle + ROW / 2.0);
        svg.line("zero", left, middle, WIDTH - WORDS, middle);
        svg.text("label", "end", left - 14.0, middle + 4.5, &shortened(name, left - 24.0));
        let deviations = deviations(o);
        let place = |&i: &usize| (at[i], y.at(deviations[i]));
        let dots = dots(&o.values);
        for session in dots.chunk_by(|&a, &b| o.sessions[a] == o.sessions[b]) {
            svg.path(&format!("trace {colour}"), &session.iter().map(place).collect::<Vec<_>>());
        }
        for i in dots {
            let ((x, y), value) = (place(&i), with_unit(&results.metric, o.values[i]));
            let title = format!("{name}, run {}: {value} ({})", o.order[i], signed_percent(deviations[i]));
            svg.mark(&format!("dot {colour}"), Shape::Circle, x, y, 3.0, &title);
        }
        let far = deviations.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(0.0);
        svg.text("value", "end", WIDTH - 4.0, middle + 4.5, &signed_percent(far));
    }
}

fn signed_percent(percent: f64) -> String {
    format!("{percent:+.1} %").replace('-', "\u{2212}")
}
