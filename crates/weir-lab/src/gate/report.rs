//! What a gate says: one line for a log, a page for people, and the same as text.

use std::path::Path;

use weir_stats::gate::{Answer, Better, Outcome, Question, Span};
use weir_stats::ministat::{self, Set, Style};

use super::{Ended, GateSpec, SIDES};
use crate::format::{digits, escape};
use crate::model::LabError;
use crate::report::html;
use crate::report::svg::{Scale, Shape, Svg, tick_label};
use crate::store::write_whole;

/// The answer in the words of reports.
pub fn word(outcome: Option<&Outcome>) -> &'static str {
    match outcome.map(|o| o.answer) {
        Some(Answer::NotWorse) => "equivalent or better",
        Some(Answer::Worse) => "worse",
        Some(Answer::NotShown) => "underpowered",
        None => "interrupted",
    }
}

/// `candidate/baseline 1.012 [1.004, 1.020]`, of the values as they were read.
fn ratio(better: Better, span: Span) -> [f64; 3] {
    let of = |percent: f64| match better {
        Better::Lower => 1.0 + percent / 100.0,
        Better::Higher => 1.0 / (1.0 + percent / 100.0),
    };
    match better {
        Better::Lower => [of(span.estimate), of(span.low), of(span.high)],
        Better::Higher => [of(span.estimate), of(span.high), of(span.low)],
    }
}

/// One line: the answer first, then all that it rests on.
pub fn line(ended: &Ended) -> String {
    let (plan, n) = (&ended.plan, ended.blocks.len());
    let word = word(ended.outcome.as_ref());
    let Some(outcome) = ended.outcome.clone().or_else(|| plan.question.so_far(&ended.blocks)) else {
        return format!("gate: {word} after {n} blocks: nothing to say");
    };
    let [estimate, low, high] = ratio(plan.question.better, outcome.worse_percent);
    let c = outcome.control_percent;
    let control = match outcome.control_differs {
        false => format!("A/A {:+.2} %", c.estimate),
        true => format!(
            "THE BASELINE DIFFERS FROM ITSELF BY {:+.2} % (p {:.4}): no answer, quiet the machine",
            c.estimate,
            outcome.control_p.unwrap_or(0.0)
        ),
    };
    format!(
        "gate: {word}: {} candidate/baseline {estimate:.4} [{low:.4}, {high:.4}], margin {} %, {n} blocks; {control}",
        plan.reading.unit(),
        plan.question.margin_percent,
    )
}

/// Writes `report.html` and `report.md`.
pub fn write(ended: &Ended, dir: &Path) -> Result<(), LabError> {
    write_whole(&dir.join("report.md"), &markdown(ended))?;
    write_whole(&dir.join("report.html"), &page(ended))
}

/// The values of one side, in the order of blocks.
fn values(ended: &Ended, side: usize) -> Vec<f64> {
    ended.blocks.iter().map(|b| [b.baseline, b.again, b.candidate][side]).collect()
}

/// The two sets as ministat prints them, by the names of their files in `raw/`.
fn block(ended: &Ended) -> String {
    let unit = ended.plan.reading.unit();
    let set = |side: usize| Set::new(format!("{}.{unit}", SIDES[side]), &values(ended, side));
    ministat::block(&[set(0), set(1), set(2)], Style::default()).unwrap_or_else(|e| format!("{e}\n"))
}

fn shown(plan: &GateSpec, side: usize) -> String {
    let command = plan.side(side);
    let at = command.commit.as_ref().map_or(String::new(), |c| format!(" at {}", &c[..c.len().min(12)]));
    format!("`{}`{at}", command.argv.join(" "))
}

/// What the answer rests on, as name and value.
fn facts(ended: &Ended) -> Vec<(&'static str, String)> {
    let plan = &ended.plan;
    let q: &Question = &plan.question;
    let looks: Vec<String> = q.looks.iter().map(ToString::to_string).collect();
    let mut facts = vec![
        ("baseline", shown(plan, 0)),
        ("candidate", shown(plan, 2)),
        (
            "value",
            format!(
                "{}, {}",
                plan.reading.unit(),
                match q.better {
                    Better::Lower => "less is better",
                    Better::Higher => "more is better",
                }
            ),
        ),
        ("margin", format!("{} %", q.margin_percent)),
        ("error of each answer", format!("{} %, over all looks", q.alpha * 100.0)),
        ("looks", format!("after {} blocks", looks.join(", "))),
        ("runs a value", plan.repeats.to_string()),
        ("seed", plan.seed.to_string()),
        ("CPU", plan.machine.cpu.clone()),
        ("kernel", plan.machine.kernel.clone()),
    ];
    if let Some(load) = plan.machine.load_1min {
        facts.push(("load of others at the start", format!("{load:.2} CPUs")));
    }
    facts
}

fn markdown(ended: &Ended) -> String {
    let mut out = format!("# Gate: {}\n\n{}\n\n", word(ended.outcome.as_ref()), line(ended));
    for (name, value) in facts(ended) {
        out += &format!("- {name}: {value}\n");
    }
    out += &format!("\n```\n{}```\n\n", block(ended));
    out + "A block is one value of each; the candidate is judged block by block against the mean of both baselines\n\
           (docs/statistics.md, Gate). The intervals are those every look may use, wider than those of ministat.\n"
}

fn page(ended: &Ended) -> String {
    let title = format!("Gate: {}", word(ended.outcome.as_ref()));
    let rows: String = facts(ended)
        .iter()
        .map(|(name, value)| format!("<tr><td>{name}</td><td>{}</td></tr>", escape(&value.replace('`', ""))))
        .collect();
    let caption = "Each dot is a block: the candidate against the mean of both baselines, and the second baseline \
                   against the first (A/A). Bars are the intervals of the last look; the dashed line is the margin.";
    let body =
        html::section(
            "Change by block",
            &format!("<figure>{}<figcaption>{caption}</figcaption></figure>", picture(ended)),
        ) + &html::section("What was asked", &format!("<div class=\"wrap\"><table>{rows}</table></div>"))
            + &html::section("ministat", &format!("<pre>{}</pre>", escape(&block(ended))));
    html::page(
        &title,
        &format!(
            "<header><h1>{}</h1><p class=\"answer\">{}</p></header>",
            escape(&title),
            escape(&line(ended))
        ),
        &body,
    )
}

/// Worse to the right.
fn picture(ended: &Ended) -> String {
    const WIDTH: f64 = 860.0;
    const LEFT: f64 = 120.0;
    const RIGHT: f64 = 830.0;
    const TOP: f64 = 20.0;
    const ROW: f64 = 74.0;
    let q = &ended.plan.question;
    let sign = if q.better == Better::Lower { 1.0 } else { -1.0 };
    let percent = |log: f64| log.exp_m1() * 100.0;
    let candidate: Vec<f64> = (ended.blocks.iter())
        .map(|b| percent(sign * (b.candidate.ln() - (b.baseline.ln() + b.again.ln()) / 2.0)))
        .collect();
    let again: Vec<f64> = ended.blocks.iter().map(|b| percent(b.again.ln() - b.baseline.ln())).collect();
    let said = ended.outcome.clone().or_else(|| q.so_far(&ended.blocks));
    let spans = said.map(|o| [o.worse_percent, o.control_percent]);
    let mut ends: Vec<f64> = candidate.iter().chain(&again).copied().collect();
    ends.extend([0.0, q.margin_percent * 1.2]);
    ends.extend(spans.iter().flatten().flat_map(|s| [s.low, s.high]));
    let low = ends.iter().copied().fold(f64::INFINITY, f64::min);
    let high = ends.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let pad = (high - low) * 0.04;
    let scale = Scale::linear(low - pad, high + pad, LEFT, RIGHT);
    let floor = TOP + 2.0 * ROW;
    let mut svg = Svg::new(WIDTH, floor + 46.0);
    let ticks = scale.ticks(8);
    let step = ticks.windows(2).map(|w| w[1] - w[0]).fold(1.0, f64::min);
    for tick in &ticks {
        svg.line("grid", scale.at(*tick), TOP, scale.at(*tick), floor);
        svg.text("tick", "middle", scale.at(*tick), floor + 17.0, &tick_label(*tick, step));
    }
    svg.line("zero", scale.at(0.0), TOP, scale.at(0.0), floor);
    svg.path("one", &[(scale.at(q.margin_percent), TOP), (scale.at(q.margin_percent), floor)]);
    for (row, (name, changes)) in [("candidate", &candidate), ("A/A", &again)].into_iter().enumerate() {
        let middle = TOP + (row as f64 + 0.5) * ROW;
        let colour = if row == 0 { "c0" } else { "plain" };
        svg.text("label", "end", LEFT - 14.0, middle + 4.0, name);
        if let Some(span) = spans.map(|s| s[row]) {
            svg.line(&format!("interval {colour}"), scale.at(span.low), middle, scale.at(span.high), middle);
            svg.mark(&format!("mean {colour}"), Shape::Diamond, scale.at(span.estimate), middle, 6.0, "");
        }
        for (place, change) in changes.iter().enumerate() {
            // dots of neighbouring blocks do not hide each other
            let y = middle + ((place * 7) % 11) as f64 * 2.4 - 12.0;
            let title = format!("block {}: {} %", place + 1, digits(*change));
            svg.mark(&format!("dot {colour}"), Shape::Circle, scale.at(*change), y, 3.6, &title);
        }
    }
    svg.text(
        "unit",
        "middle",
        (LEFT + RIGHT) / 2.0,
        floor + 38.0,
        "worse by, in percent (left of 0: better)",
    );
    svg.finish("change of each block, in percent")
}
