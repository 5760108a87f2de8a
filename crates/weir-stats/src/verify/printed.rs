//! Blocks as they stand in a document.
//!
//! ```text
//! > x before.pps                                 quote mark: markup, no part of the block
//!   x before.pps            Part::Legend
//!   +-------+ |x  x| +----+ Part::Plot           absent with -A or cut by hand
//!     N  Min  Max …         Part::Heading        every block has one: it is what a block is found by
//!   x 5  1.0  …             Part::Vitals(set)
//!   Difference at 95.0% …   Part::Verdict(set)   and the three lines below it
//! ```
//!
//! Promises: any text is read without panic, in time linear in its length; what is between heading and the
//! end of a block is kept as printed. Refuses to guess: a line that is none of these ends the block.

use crate::ministat::MAX_SETS;

/// One symbol a set, as in the original.
pub const SYMBOLS: [char; MAX_SETS] = ['x', '+', '*', '%', '#', '@', 'O'];
const HEADING: [&str; 6] = ["N", "Min", "Max", "Median", "Avg", "Stddev"];

/// What a line of a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Legend,
    Plot,
    Heading,
    /// The row of the set with this index.
    Vitals(usize),
    /// Student's sentence about the set with this index.
    Verdict(usize),
}

/// Values of one set, as printed.
#[derive(Clone, Debug, PartialEq)]
pub struct Vitals {
    pub symbol: char,
    /// N, Min, Max, Median, Avg, Stddev; fewer when the line was cut.
    pub values: Vec<String>,
}

/// A block of a document.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Printed {
    /// Line of the document its first line stands on, from 1.
    pub line: usize,
    /// Its last line.
    pub last: usize,
    /// The lines as in the file, terminators and markup included.
    pub raw: Vec<String>,
    /// The lines without markup and carriage returns; white space at the front is kept.
    pub lines: Vec<(Part, String)>,
    /// Symbol's index and name; hand-made legends may have gaps.
    legend: Vec<(usize, String)>,
    pub vitals: Vec<Vitals>,
    /// Columns between the borders of the plot.
    pub width: Option<usize>,
    /// The confidence as in "at 95.0% confidence".
    pub confidence: Option<f64>,
}

impl Printed {
    pub fn has(&self, part: Part) -> bool {
        self.lines.iter().any(|(p, _)| *p == part)
    }

    /// Name of the set whose values stand in line `set`, by its symbol; empty when it has none.
    pub fn legend(&self, set: usize) -> &str {
        let symbol = self.vitals.get(set).and_then(|v| SYMBOLS.iter().position(|s| *s == v.symbol));
        let named = self.legend.iter().find(|(i, _)| Some(*i) == symbol);
        named.map_or("", |(_, name)| name)
    }

    /// The sentence about set `index`, lines joined.
    pub fn verdict(&self, index: usize) -> Option<String> {
        let lines: Vec<&str> = self.part(Part::Verdict(index)).collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
    }

    pub fn part(&self, part: Part) -> impl Iterator<Item = &str> {
        self.lines.iter().filter(move |(p, _)| *p == part).map(|(_, l)| l.as_str())
    }
}

/// A document: its lines, and its blocks.
#[derive(Clone, Debug)]
pub struct Document {
    pub lines: Vec<String>,
    pub blocks: Vec<Printed>,
}

/// A line, and its number in the document from 0: text run on behind a block is a line of its own.
type Numbered<'a> = (usize, &'a str);

impl Document {
    /// Bytes that are no UTF-8 are read as U+FFFD.
    pub fn read(bytes: &[u8]) -> Document {
        let text = String::from_utf8_lossy(bytes);
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let lines: Vec<String> = text.split('\n').map(str::to_string).collect();
        let mut numbered: Vec<Numbered<'_>> = Vec::with_capacity(lines.len());
        for (i, line) in lines.iter().enumerate() {
            let (line, more) = run_on(bare(line));
            numbered.push((i, line));
            numbered.extend(more.map(|more| (i, more)));
        }
        let mut blocks = Vec::new();
        let mut floor = 0;
        for heading in (0..numbered.len()).filter(|&i| is_heading(numbered[i].1)) {
            let place = start(&numbered, floor, heading)..end(&numbered, heading);
            floor = place.end;
            blocks.push(block(&lines, &numbered[place.clone()], heading - place.start));
        }
        Document { lines, blocks }
    }
}

/// A verdict's last line, and what was run on behind it when a line feed was lost.
fn run_on(line: &str) -> (&str, Option<&str>) {
    let at = line.find(')').filter(|_| line.trim_start().starts_with("(Student's t, pooled s ="));
    match at.map(|at| line.split_at(at + 1)) {
        Some((verdict, rest)) if !rest.trim().is_empty() => (verdict, Some(rest)),
        _ => (line, None),
    }
}

/// A line without Markdown's quote marks and its terminator.
fn bare(line: &str) -> &str {
    let mut rest = line.trim_end_matches(['\r', '\n']);
    while let Some(inner) = rest.trim_start().strip_prefix('>') {
        rest = inner.strip_prefix(' ').unwrap_or(inner);
    }
    rest
}

fn is_heading(line: &str) -> bool {
    line.split_whitespace().eq(HEADING)
}

fn is_plot(line: &str) -> bool {
    let line = line.trim();
    let border =
        line.len() > 1 && line.starts_with('+') && line[1..].trim_end_matches('+').chars().all(|c| c == '-');
    border || line.starts_with('|') || line.starts_with("[no plot")
}

/// A legend line: its set and its name.
fn legend(line: &str) -> Option<(usize, &str)> {
    let line = line.trim_start();
    let index = SYMBOLS.iter().position(|&s| line.starts_with(s))?;
    let name = line[1..].strip_prefix([' ', '\t'])?;
    (!is_plot(line) && !name.trim().is_empty()).then_some((index, name))
}

/// A line of values: the set's index and the values.
fn vitals(line: &str) -> Option<(usize, Vec<String>)> {
    let mut words = line.split_whitespace();
    let symbol = words.next()?;
    let index = SYMBOLS.iter().position(|s| symbol.len() == 1 && symbol.starts_with(*s))?;
    let values: Vec<String> = words.map(str::to_string).collect();
    values.first()?.parse::<usize>().ok()?;
    values.iter().all(|f| f.parse::<f64>().is_ok()).then_some((index, values))
}

fn confidence(line: &str) -> Option<f64> {
    let rest = line.trim();
    let rest =
        rest.strip_prefix("No difference proven at ").or_else(|| rest.strip_prefix("Difference at "))?;
    rest.split('%').next()?.trim().parse().ok()
}

fn is_verdict(line: &str) -> bool {
    let line = line.trim();
    confidence(line).is_some()
        || line.starts_with("(Student's t")
        || (line.contains("+/-") && line.starts_with(|c: char| c.is_ascii_digit() || "-+.".contains(c)))
}

/// First line of the block whose heading is at `heading`.
fn start(lines: &[Numbered<'_>], floor: usize, heading: usize) -> usize {
    let mut first = heading;
    while first > floor && is_plot(lines[first - 1].1) {
        first -= 1;
    }
    let mut next = SYMBOLS.len();
    while first > floor {
        let Some((index, _)) = legend(lines[first - 1].1).filter(|(i, _)| *i < next) else { break };
        (first, next) = (first - 1, index);
        if index == 0 {
            break;
        }
    }
    first
}

/// The line after the last of the block whose heading is at `heading`.
fn end(lines: &[Numbered<'_>], heading: usize) -> usize {
    let ours = |line: &str| vitals(line).is_some() || is_verdict(line);
    let mut end = heading + 1;
    while let Some((_, line)) = lines.get(end) {
        let again = line.trim().is_empty() && lines.get(end + 1).is_some_and(|(_, l)| ours(l));
        if !again && !ours(line) {
            break;
        }
        end += 1;
    }
    end
}

fn block(document: &[String], lines: &[Numbered<'_>], heading: usize) -> Printed {
    let mut printed = Printed {
        line: lines[0].0 + 1,
        last: lines[lines.len() - 1].0 + 1,
        raw: lines.iter().map(|(number, _)| document[*number].clone()).collect(),
        lines: Vec::new(),
        legend: Vec::new(),
        vitals: Vec::new(),
        width: None,
        confidence: None,
    };
    for (i, (_, line)) in lines.iter().enumerate() {
        let part = if i == heading {
            Part::Heading
        } else if i < heading && is_plot(line) {
            let border = line.contains("--").then(|| line.trim().len().saturating_sub(2));
            printed.width = printed.width.or(border);
            Part::Plot
        } else if i < heading {
            printed.legend.extend(legend(line).map(|(set, name)| (set, name.to_string())));
            Part::Legend
        } else if let Some((index, values)) = vitals(line) {
            printed.vitals.push(Vitals { symbol: SYMBOLS[index], values });
            Part::Vitals(printed.vitals.len() - 1)
        } else if line.trim().is_empty() {
            continue;
        } else {
            printed.confidence = printed.confidence.or_else(|| confidence(line));
            Part::Verdict(printed.vitals.len().saturating_sub(1))
        };
        printed.lines.push((part, line.to_string()));
    }
    printed
}
