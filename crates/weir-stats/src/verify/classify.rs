//! One block against its data: printed again in every style, and compared line by line.
//!
//! Promises: *reproduced* means that every byte of the block comes out of raw values in one style; *white
//! space* that only its layout differs (tabs turned into blanks, indentation, quote marks, carriage
//! returns). A point of the plot in another column is no layout. Legends are the author's words and are
//! taken from the block.

use super::blame;
use super::find::{Found, How};
use super::library::Origin;
use super::printed::{Part, Printed, SYMBOLS};
use crate::ministat::{Confidence, Dialect, MAX_SETS, Parts, Set, Style, WIDTH, block};

/// Columns of a plot that is drawn again: wider than any terminal.
const MAX_WIDTH: usize = 4096;
/// Where markdown and terminals stop.
const TAB: usize = 8;

/// What became of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Reproduced,
    Whitespace,
    Differs,
    NoData,
}

/// The first value that is not what the data gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Names the value as in "Avg of + (new.pps)".
    pub value: String,
    pub printed: String,
    pub derived: String,
}

/// A block settled.
#[derive(Clone, Debug, PartialEq)]
pub struct Classified {
    pub class: Class,
    /// The style in words, as in "modern dialect, -s, width 74"; empty without data.
    pub style: String,
    pub difference: Option<Difference>,
    /// Why it is not reproduced; empty when it is.
    pub reason: String,
}

impl Classified {
    fn no_data(reason: String) -> Classified {
        Classified { class: Class::NoData, style: String::new(), difference: None, reason }
    }
}

/// Settles `printed`, given the data behind each of its sets.
pub fn classify(printed: &Printed, found: &[Option<Found>]) -> Classified {
    if printed.vitals.is_empty() {
        return Classified::no_data("the table has no line of values".into());
    }
    if printed.vitals.len() > MAX_SETS {
        return Classified::no_data(format!("{} sets: ministat takes {MAX_SETS}", printed.vitals.len()));
    }
    let missing: Vec<usize> = (0..found.len()).filter(|&i| found[i].is_none()).collect();
    let known: Vec<&Found> = found.iter().flatten().collect();
    if missing.is_empty() {
        return against(printed, &known);
    }
    let other = found.iter().enumerate().find_map(|(i, f)| Some((i, f.as_ref().filter(|f| !f.is_exact())?)));
    if let Some((i, found)) = other {
        let reason = format!("{}; {} has no data", blame::blame(printed, i, found), names(printed, &missing));
        let difference = blame::plot_value(printed, i, found);
        return Classified { class: Class::Differs, style: String::new(), difference, reason };
    }
    Classified::no_data(format!("no file or log has the values of {}", names(printed, &missing)))
}

/// Names sets as in "x (old.pps), + (new.pps)".
fn names(printed: &Printed, sets: &[usize]) -> String {
    sets.iter().map(|&i| name(printed, i)).collect::<Vec<_>>().join(", ")
}

pub fn name(printed: &Printed, set: usize) -> String {
    let symbol = printed.vitals.get(set).map_or(SYMBOLS[set.min(MAX_SETS - 1)], |v| v.symbol);
    match printed.legend(set).trim() {
        "" => symbol.to_string(),
        legend => format!("{symbol} ({legend})"),
    }
}

/// A line of the block as it should be.
pub type Line = (Part, String);

/// The block drawn from `sets`; parts the printed block has nothing of are left out.
fn derived(printed: &Printed, sets: &[Set], style: Style) -> Option<Vec<Line>> {
    let mut lines = tagged(&block(sets, style).ok()?, sets.len());
    let verdicts = printed.lines.iter().any(|(p, _)| matches!(p, Part::Verdict(_)));
    let plot = printed.has(Part::Plot);
    lines.retain(|(part, _)| match part {
        Part::Legend => printed.has(Part::Legend),
        // with a plot there is no option that leaves the verdicts out
        Part::Verdict(_) => verdicts || plot,
        _ => true,
    });
    Some(lines)
}

/// Lines of a block of so many sets, each with what it is.
fn tagged(text: &str, sets: usize) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut heading = None;
    let mut set = 0;
    for (i, line) in text.lines().enumerate() {
        let part = match heading {
            _ if i < sets => Part::Legend,
            None if line.starts_with("    N ") => {
                heading = Some(i);
                Part::Heading
            }
            None => Part::Plot,
            Some(at) if i == at + 1 => Part::Vitals(0),
            Some(_) if line.starts_with('\t') || line.contains("ifference") => Part::Verdict(set),
            Some(_) => {
                set += 1;
                Part::Vitals(set)
            }
        };
        lines.push((part, line.to_string()));
    }
    lines
}

/// The closest a style comes to the printed block.
struct Closest {
    wrong: usize,
    class: Class,
    style: Style,
    lines: Vec<Line>,
}

fn against(printed: &Printed, found: &[&Found]) -> Classified {
    let sets: Vec<Set> =
        found.iter().enumerate().map(|(i, f)| Set::new(printed.legend(i), &f.raw.values)).collect();
    let percent = printed.confidence.unwrap_or(95.0);
    let Some(confidence) = Confidence::of_percent(percent) else {
        return odd("confidence", format!("{percent} %"), "ministat has no such level: edited by hand");
    };
    let (closest, dialects) = closest(printed, &sets, confidence);
    let Some(closest) = closest else {
        let width = printed.width.map_or("none".into(), |w| format!("{w} columns"));
        return odd("plot", width, "ministat draws no such plot of this data: edited by hand");
    };
    let style = describe(printed, found, &closest, &dialects);
    let classified = |class, difference, reason| Classified { class, style, difference, reason };
    if let Some(i) = found.iter().position(|f| f.how == How::Renamed) {
        return classified(Class::Differs, None, blame::renamed(printed, i, found[i]));
    }
    match closest.class {
        Class::Differs => {
            let difference = blame::first_difference(printed, &closest.lines);
            let reason = blame::why(printed, found, &sets, closest.style, difference.as_ref());
            classified(Class::Differs, difference, reason)
        }
        Class::Whitespace => classified(Class::Whitespace, None, layout(printed, &closest.lines)),
        class => classified(class, None, String::new()),
    }
}

/// Draws the block in every style; also says in which dialects it comes out.
fn closest(printed: &Printed, sets: &[Set], confidence: Confidence) -> (Option<Closest>, Vec<Dialect>) {
    let width = printed.width.unwrap_or(WIDTH).min(MAX_WIDTH);
    let parts = if printed.has(Part::Plot) { Parts::All } else { Parts::NoPlot };
    let mut closest: Option<Closest> = None;
    let mut dialects = Vec::new();
    for dialect in Dialect::ALL {
        for separate_bars in [true, false] {
            let style = Style { dialect, width, separate_bars, confidence, parts, ..Style::default() };
            let Some(lines) = derived(printed, sets, style) else { continue };
            let (class, wrong) = compare(printed, &lines);
            if class != Class::Differs && !dialects.contains(&dialect) {
                dialects.push(dialect);
            }
            let better = |c: &Closest| wrong < c.wrong || (class == Class::Reproduced && c.class != class);
            if closest.as_ref().is_none_or(better) {
                closest = Some(Closest { wrong, class, style, lines });
            }
        }
    }
    (closest, dialects)
}

/// A block that no set of options gives.
fn odd(value: &str, printed: String, reason: &str) -> Classified {
    let difference = Difference { value: value.into(), printed, derived: "nothing".into() };
    Classified {
        class: Class::Differs,
        style: String::new(),
        difference: Some(difference),
        reason: reason.into(),
    }
}

/// How alike, and how many lines are not.
fn compare(printed: &Printed, derived: &[Line]) -> (Class, usize) {
    if printed.raw.iter().eq(derived.iter().map(|(_, l)| l)) {
        return (Class::Reproduced, 0);
    }
    let pairs = printed.lines.iter().zip(derived);
    let wrong =
        pairs.filter(|(ours, theirs)| ours.0 != theirs.0 || !same_but_layout(ours, &theirs.1)).count();
    let wrong = wrong + printed.lines.len().abs_diff(derived.len());
    (if wrong == 0 { Class::Whitespace } else { Class::Differs }, wrong)
}

pub fn same_but_layout((part, printed): &Line, derived: &str) -> bool {
    let words = |t: &str| t.split_whitespace().map(str::to_string).collect::<Vec<_>>();
    if *part != Part::Plot {
        return words(printed) == words(derived);
    }
    let printed = tabs_expanded(printed.trim());
    // a row of the right width has its points where its author wanted them
    let moved = printed.chars().count() == derived.chars().count();
    printed == derived || (!moved && words(&printed) == words(derived))
}

fn tabs_expanded(line: &str) -> String {
    let mut out = String::new();
    for (at, c) in line.chars().enumerate() {
        match c {
            '\t' => out += &" ".repeat(TAB - (at.max(out.chars().count()) % TAB)),
            c => out.push(c),
        }
    }
    out
}

fn describe(printed: &Printed, found: &[&Found], closest: &Closest, dialects: &[Dialect]) -> String {
    let style = &closest.style;
    let dialect = match dialects.len() {
        0 => format!("nearest to dialect {}", style.dialect.name()),
        n if n == Dialect::ALL.len() => "any dialect".into(),
        _ => format!("dialect {}", dialects.iter().map(|d| d.name()).collect::<Vec<_>>().join(" or ")),
    };
    let mut words = vec![dialect];
    if printed.has(Part::Plot) {
        if found.len() > 1 {
            words.push(if style.separate_bars { "-s" } else { "without -s" }.into());
        }
        words.extend(printed.width.map(|w| format!("width {w}")));
    } else {
        words.push("-A".into());
    }
    if style.confidence != Confidence::default() {
        words.push(format!("-c {}", style.confidence.percent()));
    }
    for f in found {
        match f.raw.origin {
            Origin::File { column } if column > 1 => words.push(format!("-C {column}")),
            _ => {}
        }
    }
    words.dedup();
    words.join(", ")
}

/// What of the layout is not ministat's.
fn layout(printed: &Printed, derived: &[Line]) -> String {
    let raw = &printed.raw;
    let mut words = Vec::new();
    if raw.iter().any(|l| l.ends_with('\r')) {
        words.push("carriage returns");
    }
    if raw.iter().any(|l| l.trim_start().starts_with('>')) {
        words.push("quote marks");
    }
    let tabbed = derived.iter().any(|(_, l)| l.starts_with('\t'));
    if tabbed && !printed.lines.iter().any(|(_, l)| l.starts_with('\t')) {
        words.push("blanks for tabs");
    }
    if words.is_empty() { "blanks added or left out".into() } else { words.join(", ") }
}
