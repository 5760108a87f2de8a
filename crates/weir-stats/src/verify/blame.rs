//! Where a block that differs first does, and who may have changed what.
//!
//! Promises a value by name, as printed and as derived, values of sets before sentences, sentences before
//! the plot. The reason is the likeliest story the values tell; it accuses nobody of more than an edit.

use super::classify::{Difference, Line, name, same_but_layout};
use super::find::Found;
use super::library::Origin;
use super::printed::{Part, Printed, SYMBOLS};
use crate::ministat::{Dialect, Set, Style, block};

const COLUMNS: [&str; 6] = ["N", "Min", "Max", "Median", "Avg", "Stddev"];
/// The parts of Student's sentence, in its order.
const SENTENCE: [&str; 5] =
    ["difference", "its error", "relative difference", "its relative error", "pooled s"];

/// The first of `set`'s values that is not the data's.
pub fn plot_value(printed: &Printed, set: usize, found: &Found) -> Option<Difference> {
    let values = &printed.vitals[set].values;
    let wrong = found.raw.agrees(values).iter().position(|agrees| !agrees)?;
    Some(Difference {
        value: format!("{} of {}", COLUMNS[wrong], name(printed, set)),
        printed: values.get(wrong).cloned().unwrap_or_else(|| "nothing".into()),
        derived: found.raw.vitals[0][wrong].clone(),
    })
}

/// Values first, then sentences, then the plot, then the rest.
pub fn first_difference(printed: &Printed, derived: &[Line]) -> Option<Difference> {
    let of = |part: Part| derived.iter().filter(move |(p, _)| *p == part).map(|(_, l)| l.as_str());
    for i in 0..printed.vitals.len() {
        let Some(line) = of(Part::Vitals(i)).next() else { continue };
        let ours: Vec<&str> = line.split_whitespace().collect();
        let theirs: Vec<&str> =
            printed.part(Part::Vitals(i)).next().unwrap_or("").split_whitespace().collect();
        for (at, &value) in ours.iter().enumerate() {
            let got = theirs.get(at).copied().unwrap_or("nothing");
            if got != value {
                let column = if at == 0 { "symbol" } else { COLUMNS[(at - 1).min(5)] };
                return Some(Difference {
                    value: format!("{column} of {}", name(printed, i)),
                    printed: got.into(),
                    derived: value.into(),
                });
            }
        }
    }
    for i in 1..printed.vitals.len() {
        let ours = sentence(of(Part::Verdict(i)));
        let theirs = sentence(printed.part(Part::Verdict(i)));
        if let Some(at) = (0..ours.len().max(theirs.len())).find(|&at| ours.get(at) != theirs.get(at)) {
            let word = |s: &[String]| s.get(at).cloned().unwrap_or_else(|| "nothing".into());
            let what = at.checked_sub(1).map_or("verdict", |at| SENTENCE[at.min(4)]);
            return Some(Difference {
                value: format!("{what} of {}", name(printed, i)),
                printed: word(&theirs),
                derived: word(&ours),
            });
        }
    }
    let ours: Vec<&Line> = derived.iter().collect();
    let at =
        (0..ours.len().max(printed.lines.len())).find(|&i| match (printed.lines.get(i), ours.get(i)) {
            (Some(p), Some(d)) => p.0 != d.0 || !same_but_layout(p, &d.1),
            _ => true,
        })?;
    let show = |line: Option<&Line>| line.map_or("nothing".to_string(), |(_, l)| l.trim_end().to_string());
    let what = match printed.lines.get(at).or(ours.get(at).copied()).map(|l| l.0) {
        Some(Part::Plot) => "plot",
        Some(Part::Legend) => "legend",
        _ => "a line",
    };
    Some(Difference {
        value: what.into(),
        printed: show(printed.lines.get(at)),
        derived: show(ours.get(at).copied()),
    })
}

/// The first line of a verdict, then its values: difference, error, percent, percent error, pooled s.
fn sentence<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut words = Vec::new();
    for line in lines.map(str::trim) {
        match line.split_once("+/-") {
            Some((value, error)) => words.extend([value, error].map(|w| w.trim().to_string())),
            None if line.starts_with('(') => {
                words.push(line.rsplit('=').next().unwrap_or("").trim_end_matches(')').trim().to_string());
            }
            None => words.push(line.split_whitespace().collect::<Vec<_>>().join(" ")),
        }
    }
    words
}

/// Who is to blame for a set whose values are not its file's.
pub fn blame(printed: &Printed, set: usize, found: &Found) -> String {
    let values = &printed.vitals[set].values;
    let agrees = found.raw.agrees(values);
    let right = agrees.iter().filter(|a| **a).count();
    let file = found.raw.path.display();
    let who = name(printed, set);
    match right {
        5 if agrees[0] => format!("one value of {who} was edited by hand: {file} has the other five"),
        _ if !agrees[0] => format!(
            "{file} holds {} runs, the block was printed of {}: runs were added or removed afterwards",
            found.raw.vitals[0][0],
            values.first().map_or("none", String::as_str)
        ),
        0 | 1 => format!(
            "{file} holds other runs than {who} was printed of: overwritten later, or the legend is wrong"
        ),
        _ => format!(
            "{file} and {who} share {right} values of 6: some runs were changed on either side afterwards"
        ),
    }
}

/// What is said when the file a legend names has other values than the block, and another set has these.
pub fn renamed(printed: &Printed, set: usize, found: &Found) -> String {
    let (named, file) = (printed.legend(set).trim(), found.raw.path.display());
    match found.raw.origin {
        Origin::Logs { .. } => {
            format!(
                "{named} holds other runs than were printed; the logs still give these: it was changed afterwards"
            )
        }
        _ => format!(
            "{named} holds other runs than were printed; these are the values of {file}: the legend is wrong"
        ),
    }
}

/// Why a block with data is not what the data gives.
pub fn why(
    printed: &Printed,
    found: &[&Found],
    sets: &[Set],
    style: Style,
    difference: Option<&Difference>,
) -> String {
    if let Some(i) = (0..found.len()).find(|&i| !found[i].is_exact()) {
        return blame(printed, i, found[i]);
    }
    let value = difference.map_or("", |d| d.value.as_str());
    let cut = difference.is_some_and(|d| d.printed == "nothing");
    if cut {
        return "every value printed is right, but lines were cut by hand".into();
    }
    if value == "legend" {
        return "the values are right, the legend is not whole: a line was cut or moved by hand".into();
    }
    if value == "plot" {
        return "the values are right, the plot is not theirs: edited by hand, or drawn of other sets".into();
    }
    if value.starts_with("Median") {
        return "the two dialects are mixed: medians of one, the rest of the other".into();
    }
    if printed.vitals.iter().zip(SYMBOLS).any(|(v, s)| v.symbol != s) {
        return "symbols are not in ministat's order: a set was removed or moved by hand".into();
    }
    let verdicts = (1..sets.len()).filter_map(|i| Some((i, printed.verdict(i)?)));
    let other = |dialect| Style { dialect, ..style };
    let explained = verdicts.filter(|(i, verdict)| {
        let theirs = sentence(verdict.lines());
        let against = |reference: usize, style: Style| {
            let pair = [sets[reference].clone(), sets[*i].clone()];
            block(&pair, style).is_ok_and(|b| {
                let tail: Vec<&str> = b.lines().skip_while(|l| !l.contains("ifference")).collect();
                sentence(tail.into_iter()) == theirs
            })
        };
        !against(0, style)
            && (Dialect::ALL.iter().any(|&d| against(0, other(d)))
                || (1..sets.len()).any(|r| r != *i && against(r, style)))
    });
    match explained.count() {
        0 => "the values of the sets are right, the sentence is not theirs: edited by hand".into(),
        _ => "a sentence is right in the other dialect or against another reference: pieced together of two blocks".into(),
    }
}
