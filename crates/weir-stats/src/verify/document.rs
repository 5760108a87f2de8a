//! Values a document gives twice, and not alike.
//!
//! ```text
//! one file, two blocks, other values ──────────────────────► one of the blocks was printed of other runs
//! | off | 883,347 |   beside a block that says 883374 ──────► a value copied wrong
//! "improved by 9.2 %" beside blocks of which none gives it ─► a value from elsewhere
//! ```
//!
//! Promises no judgement of what a document gives only once. Prose is held against every pair of sets in
//! the document, means and medians, both ways round, as precisely as it is written.

use std::collections::HashMap;
use std::path::Path;

use super::Block;
use super::claims::{Warning, WarningKind};
use super::classify::name;
use super::library::{Origin, Raw};
use super::printed::Document;

/// A value with fewer digits is not said to be a copy.
const MIN_DIGITS: usize = 5;
/// Within this share of a block's value another is a copy of it gone wrong; beyond, it is another value.
const CLOSE: f64 = 0.005;
/// Lines around a block within which prose is about it.
const NEAR: usize = 5;
/// A longer line is no sentence.
const MAX_LINE: usize = 2000;
/// Words of a sentence that compares.
const COMPARING: [&str; 19] = [
    "improv", "increas", "decreas", "reduc", "faster", "slower", "gain", "lose", "drop", "degrad", "better",
    "worse", "benefit", "differen", "diff ", "regress", "impact", "penalty", "overhead",
];

/// Warnings about what `document` says besides its blocks; `known` are values of files beside it.
pub fn warnings(document: &Document, blocks: &[Block], known: &[f64]) -> Vec<Warning> {
    let Some(first) = blocks.first() else { return Vec::new() };
    let warning = |line, text| Warning { file: first.file.clone(), line, kind: WarningKind::Document, text };
    let mut warnings: Vec<Warning> =
        twice(blocks).into_iter().map(|(line, text)| warning(line, text)).collect();
    let values = PrintedValues::of(blocks, known);
    let places = places(document.lines.len(), blocks);
    let mut fenced = false;
    for (i, text) in document.lines.iter().enumerate().filter(|(_, l)| l.len() <= MAX_LINE) {
        if text.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced || places[i] == Proximity::Inside {
            continue;
        } else if text.trim_start().starts_with('|') {
            let words = text.split('|').flat_map(str::split_whitespace);
            warnings.extend(values.copied(words).map(|text| warning(i + 1, text)));
        } else if places[i] == Proximity::Near {
            warnings.extend(values.prose(text).map(|text| warning(i + 1, text)));
            warnings.extend(values.copied(text.split_whitespace()).map(|text| warning(i + 1, text)));
        }
    }
    warnings
}

/// Where a line stands to the blocks.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Proximity {
    Elsewhere,
    Near,
    Inside,
}

fn places(lines: usize, blocks: &[Block]) -> Vec<Proximity> {
    let mut places = vec![Proximity::Elsewhere; lines];
    for (reach, place) in [(NEAR, Proximity::Near), (0, Proximity::Inside)] {
        for block in blocks {
            let from = (block.printed.line - 1).saturating_sub(reach);
            places[from..(block.printed.last + reach).min(lines)].fill(place);
        }
    }
    places
}

/// Sets a document holds itself: rows and columns of its tables, runs of lines of one value.
pub fn sets(document: &Document, file: &Path) -> Vec<Raw> {
    let mut sets: Vec<Vec<f64>> = Vec::new();
    let mut columns: Vec<Vec<f64>> = Vec::new();
    let mut lines: Vec<f64> = Vec::new();
    for text in document.lines.iter().map(|l| l.trim()).chain([""]) {
        match text.parse() {
            Ok(value) => lines.push(value),
            Err(_) => sets.push(std::mem::take(&mut lines)),
        }
        if !text.starts_with('|') || text.contains("---") {
            if !text.starts_with('|') {
                sets.append(&mut columns);
            }
            continue;
        }
        let cells: Vec<Option<f64>> = text.trim_matches('|').split('|').map(cell).collect();
        columns.resize(columns.len().max(cells.len()), Vec::new());
        for (column, value) in columns.iter_mut().zip(&cells) {
            column.extend(value);
        }
        sets.push(cells.into_iter().flatten().collect());
    }
    sets.into_iter().filter_map(|values| Raw::new(file.into(), Origin::Table, values)).collect()
}

/// A cell that is one value.
fn cell(text: &str) -> Option<f64> {
    let text: String = text.trim().trim_matches(['*', '`', '_']).chars().filter(|c| *c != ',').collect();
    text.parse().ok()
}

/// A file whose name two blocks print with other values.
fn twice(blocks: &[Block]) -> Vec<(usize, String)> {
    let mut seen: HashMap<&str, (usize, &[String])> = HashMap::new();
    let mut found = Vec::new();
    for block in blocks {
        for (set, vitals) in block.printed.vitals.iter().enumerate() {
            let legend = block.printed.legend(set).trim();
            let ending =
                legend.contains(".pps") || legend.contains(".equilibrium") || legend.starts_with("pps.");
            if !ending || legend.contains(' ') {
                continue;
            }
            let (line, values) = *seen.entry(legend).or_insert((block.printed.line, &vitals.values));
            if values != vitals.values {
                let (here, there) = (vitals.values.join(" "), values.join(" "));
                let text = format!(
                    "{legend} has other values in the block at line {line}: {here} here, {there} there"
                );
                found.push((block.printed.line, text));
            }
        }
    }
    found
}

/// What the blocks of a document say, for prose and tables to be held against.
struct PrintedValues {
    /// Min, Max, Median and Avg of each set, and whose; ascending.
    values: Vec<(f64, String)>,
    /// Values of files beside the document, ascending.
    known: Vec<f64>,
    /// Percent by which one set is above another, by mean or median.
    ratios: Vec<f64>,
}

impl PrintedValues {
    fn of(blocks: &[Block], known: &[f64]) -> PrintedValues {
        let mut values = Vec::new();
        let mut centres: Vec<(f64, f64)> = Vec::new();
        for block in blocks {
            for (set, vitals) in block.printed.vitals.iter().enumerate() {
                let value = |i: usize| vitals.values.get(i).and_then(|f| f.parse::<f64>().ok());
                for (i, column) in [(1, "Min"), (2, "Max"), (3, "Median"), (4, "Avg")] {
                    let of = || format!("{column} of {}", name(&block.printed, set));
                    values.extend(value(i).map(|v| (v, of())));
                }
                centres.extend(value(3).zip(value(4)));
            }
        }
        // a document of hundreds of sets is held against those of its first blocks
        centres.truncate(200);
        let mut ratios = Vec::new();
        for a in &centres {
            for b in &centres {
                ratios.extend([a.0 / b.0, a.1 / b.1, a.0 / b.1].map(|r| (r - 1.0).abs() * 100.0));
            }
        }
        let mut known = known.to_vec();
        known.sort_by(f64::total_cmp);
        values.sort_by(|a, b| a.0.total_cmp(&b.0));
        PrintedValues { values, known, ratios }
    }

    /// A value that is nearly, but not quite, one of a block.
    fn copied<'w>(&self, mut words: impl Iterator<Item = &'w str>) -> Option<String> {
        words.find_map(|word| {
            let (value, decimals, text) = number(word)?;
            let unit = 10f64.powi(-(decimals as i32));
            let after = self.known.partition_point(|f| *f <= value - unit);
            if self.known.get(after).is_some_and(|f| *f < value + unit) {
                return None;
            }
            let above = self.values.partition_point(|(f, _)| *f < value);
            let around = self.values[above.saturating_sub(1)..].iter().take(2);
            let (nearest, whose) =
                around.min_by(|a, b| (a.0 - value).abs().total_cmp(&(b.0 - value).abs()))?;
            if (nearest - value).abs() < unit {
                return None;
            }
            let close = (nearest - value).abs() <= CLOSE * nearest.abs();
            close.then(|| format!("the text has {text}, the nearest value of a block is {nearest}, {whose}"))
        })
    }

    /// A comparing sentence whose percentage no two sets of the document give.
    fn prose(&self, line: &str) -> Option<String> {
        let lower = line.to_lowercase();
        if !COMPARING.iter().any(|w| lower.contains(w)) {
            return None;
        }
        percentages(line).into_iter().find_map(|(value, decimals, loose)| {
            let unit = 10f64.powi(-(decimals as i32));
            let reach = if loose { unit.max(0.1 * value) } else { unit };
            let given = self.ratios.iter().any(|r| (r - value).abs() <= reach);
            (!given)
                .then(|| format!("the text says {value} %, no two sets of the blocks here differ by that"))
        })
    }
}

/// A value of prose or a table: value, decimals, as written. Groups may be set apart by commas.
fn number(word: &str) -> Option<(f64, usize, &str)> {
    // r320897 is a revision
    let word = word.trim_start_matches(|c: char| !c.is_alphanumeric());
    let word = word.trim_end_matches(|c: char| !c.is_ascii_digit());
    let plain: String = word.chars().filter(|c| !",'’_".contains(*c)).collect();
    let value: f64 = plain.parse().ok()?;
    let digits = plain.trim_start_matches('0').chars().filter(char::is_ascii_digit).count();
    let decimals = plain.split_once('.').map_or(0, |(_, d)| d.len());
    (digits >= MIN_DIGITS).then_some((value, decimals, word))
}

/// Bytes before a percentage that hold the word it follows.
const LEAD: usize = 10;

/// Percentages of a sentence: value, decimals, and whether it says *about*. Errors (`± 1 %`) are left out.
fn percentages(line: &str) -> Vec<(f64, usize, bool)> {
    let mut found = Vec::new();
    for (at, _) in line.match_indices('%') {
        let before = line[..at].trim_end();
        let start = before
            .rfind(|c: char| !c.is_ascii_digit() && c != '.')
            .map_or(0, |i| i + before[i..].chars().next().map_or(1, char::len_utf8));
        let number = before[start..].trim_start_matches('.');
        let lead = before[..start].trim_end();
        let lead = lead.get(lead.len().saturating_sub(LEAD)..).unwrap_or(lead).to_lowercase();
        let error = lead.ends_with("+/-") || lead.ends_with('±') || lead.ends_with("(+/-");
        let loose = ["~", "≈", "about", "around", "nearly", "almost", "roughly", "to", "over"]
            .iter()
            .any(|w| lead.ends_with(w));
        if let (Ok(value), false) = (number.parse::<f64>(), error) {
            // 0 % and 100 % are values of speech
            if value > 0.0 && value < 100.0 {
                found.push((value, number.split_once('.').map_or(0, |(_, d)| d.len()), loose));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_read_with_their_precision_and_errors_left_out() {
        let line = "reduced by -9.5% (+/- 1%), about 20 % at 100 % load";
        assert_eq!(percentages(line), [(9.5, 1, false), (20.0, 0, true)]);
        assert_eq!(percentages("% of ° 5°%"), []);
    }

    #[test]
    fn values_of_tables_may_be_grouped_and_bold() {
        assert_eq!(number("**1,001,291**"), Some((1_001_291.0, 0, "1,001,291")));
        assert_eq!(number("(1435.5)."), Some((1435.5, 1, "1435.5")));
        assert_eq!(number("12.5").or(number("r320897")), None);
        assert_eq!(number("—"), None);
    }
}
