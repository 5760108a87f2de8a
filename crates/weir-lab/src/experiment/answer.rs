//! What an experiment's answer says: sentences and tables whose values are filled in from the runs.
//!
//! ```text
//! [[answer]] text = "It costs {change a b}."  ─► checked against the configurations ─► manifest ─► filled in
//! ```
//!
//! Promises: a placeholder that nothing can fill (a configuration the file lacks, a pair it does not compare) is
//! refused with line and column. Refuses: an answer that is not exactly one of sentence, verdict, table and section.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::control::AGAIN;
use super::error::AnswerError;
use crate::model::todays_name;

/// One piece of an answer, as the file says it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnswerSpec {
    /// Whether tables of answers, which hold little, have it too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub headline: bool,
    /// A sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// A sentence chosen by the verdict about this pair, reference first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pair: Option<[String; 2]>,
    /// Different, and more than the reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub higher: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lower: Option<String>,
    /// Different, and by less than the margin; without it, `higher` or `lower`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equivalent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub underpowered: Option<String>,
    /// Rows of cells, headings first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub table: Vec<Vec<String>>,
    /// A word in braces, and what it stands for: rows that hold it are written once for each.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub each: BTreeMap<String, Vec<String>>,
    /// A section of the report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub show: Option<Section>,
    /// Said instead where a configuration of it was not measured; nothing without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<String>,
}

/// Sections of the report that an answer can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Section {
    /// Every pair's verdict.
    Comparisons,
    /// The field's own blocks.
    Ministat,
    /// SPDs by the index that matches.
    Spd,
    Relays,
    /// CPU time by kind of work.
    Kinds,
    /// What changed between profiles, frame by frame.
    Differential,
    Caches,
    Cliffs,
    /// The best of the modes that devices were driven in, as weir's configuration.
    Settings,
}

/// What stands between braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placeholder {
    /// Median of a value: with its unit, or without.
    Median { name: String, metric: Option<String>, unit: bool },
    /// Least and greatest run.
    Range { name: String, metric: Option<String> },
    /// Other's median less the reference's.
    Difference { pair: [String; 2], metric: Option<String> },
    /// How many runs have the metric.
    Runs { name: String },
    /// Other by reference with its interval: as it is, or in percent of the reference.
    Ratio { pair: [String; 2], metric: Option<String>, percent: bool },
    /// The verdict in a word, or with what it could have missed.
    Verdict { pair: [String; 2], word: bool },
    /// The difference four of five such campaigns would find.
    Detectable { pair: [String; 2] },
    /// Frames of the differential that chance does not explain.
    Frames { pair: [String; 2] },
    /// How many pairs differ, and how far apart they are.
    Pairs,
    /// Percent of a configuration's work that is of a kind.
    Share { name: String, kind: String },
}

/// What may stand between braces.
pub const KNOWN: &str = "median, number or range NAME [METRIC]; runs NAME; ratio, change or difference REFERENCE OTHER [METRIC]; \
                     verdict, word, detectable or frames REFERENCE OTHER; share NAME KIND; pairs";

/// Text around placeholders, in turn.
pub enum Part<'a> {
    Text(&'a str),
    Value(Placeholder),
}

/// A template taken apart; the error says what is wrong with which placeholder.
pub fn parts(template: &str) -> Result<Vec<Part<'_>>, AnswerError> {
    let mut parts = Vec::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let (inside, behind) =
            after.split_once('}').ok_or_else(|| AnswerError::NoEnd { text: after.into() })?;
        parts.push(Part::Text(before));
        let placeholder = Placeholder::parse(inside)
            .ok_or_else(|| AnswerError::Placeholder { got: inside.into(), expected: KNOWN })?;
        parts.push(Part::Value(placeholder));
        rest = behind;
    }
    parts.push(Part::Text(rest));
    Ok(parts)
}

impl Placeholder {
    /// Reads what stands between the braces.
    pub fn parse(inside: &str) -> Option<Placeholder> {
        let mut words = inside.split_whitespace().map(String::from);
        let (kind, mut next) = (words.next()?, || words.next());
        let placeholder = match kind.as_str() {
            "median" => Placeholder::Median { name: next()?, metric: next().map(todays_name), unit: true },
            "number" => Placeholder::Median { name: next()?, metric: next().map(todays_name), unit: false },
            "range" => Placeholder::Range { name: next()?, metric: next().map(todays_name) },
            "runs" => Placeholder::Runs { name: next()? },
            "ratio" => Placeholder::Ratio {
                pair: [next()?, next()?],
                metric: next().map(todays_name),
                percent: false,
            },
            "change" => Placeholder::Ratio {
                pair: [next()?, next()?],
                metric: next().map(todays_name),
                percent: true,
            },
            "difference" => {
                Placeholder::Difference { pair: [next()?, next()?], metric: next().map(todays_name) }
            }
            "verdict" => Placeholder::Verdict { pair: [next()?, next()?], word: false },
            "word" => Placeholder::Verdict { pair: [next()?, next()?], word: true },
            "detectable" => Placeholder::Detectable { pair: [next()?, next()?] },
            "frames" => Placeholder::Frames { pair: [next()?, next()?] },
            "pairs" => Placeholder::Pairs,
            // a kind of work may have several words
            "share" => {
                let name = next()?;
                let words: Vec<String> = std::iter::from_fn(&mut next).collect();
                if words.is_empty() {
                    return None;
                }
                Placeholder::Share { name, kind: words.join(" ") }
            }
            _ => return None,
        };
        next().is_none().then_some(placeholder)
    }

    /// Configurations it needs.
    pub fn names(&self) -> Vec<&str> {
        match self {
            Placeholder::Pairs => Vec::new(),
            Placeholder::Median { name, .. }
            | Placeholder::Range { name, .. }
            | Placeholder::Runs { name }
            | Placeholder::Share { name, .. } => vec![name],
            Placeholder::Ratio { pair, .. }
            | Placeholder::Difference { pair, .. }
            | Placeholder::Verdict { pair, .. }
            | Placeholder::Detectable { pair }
            | Placeholder::Frames { pair } => pair.iter().map(String::as_str).collect(),
        }
    }

    /// The pair whose verdict it is.
    pub fn judges(self) -> Option<[String; 2]> {
        match self {
            Placeholder::Verdict { pair, .. } | Placeholder::Detectable { pair } => Some(pair),
            _ => None,
        }
    }

    /// The pair that the experiment has to compare for it.
    fn compared(&self) -> Option<&[String; 2]> {
        match self {
            Placeholder::Verdict { pair, .. }
            | Placeholder::Detectable { pair }
            | Placeholder::Frames { pair } => Some(pair),
            _ => None,
        }
    }
}

impl AnswerSpec {
    /// Makes a row for each value; what has no form is refused.
    pub fn resolve(mut self) -> Result<AnswerSpec, AnswerError> {
        let forms = [self.text.is_some(), self.pair.is_some(), !self.table.is_empty(), self.show.is_some()];
        if forms.iter().filter(|form| **form).count() != 1 {
            return Err(AnswerError::Forms);
        }
        let verdicts = [&self.higher, &self.lower, &self.equivalent, &self.underpowered];
        match self.pair {
            Some(_) if verdicts.iter().any(|said| said.is_none()) => return Err(AnswerError::NoVerdicts),
            None if verdicts.iter().any(|said| said.is_some()) || self.within.is_some() => {
                return Err(AnswerError::NoPair);
            }
            _ => {}
        }
        self.spread()?;
        Ok(self)
    }

    /// Whether the experiment can fill it.
    pub fn check(&self, names: &[&str], pairs: &[(String, String)]) -> Result<(), AnswerError> {
        let is_known = |name: &str| names.contains(&name.strip_suffix(AGAIN).unwrap_or(name));
        let is_compared = |[a, b]: &[String; 2]| pairs.iter().any(|(x, y)| (a, b) == (x, y));
        for template in self.templates() {
            for part in parts(template)? {
                let Part::Value(placeholder) = part else { continue };
                if let Some(lost) = placeholder.names().iter().find(|name| !is_known(name)) {
                    let expected = names.iter().map(|name| name.to_string()).collect();
                    return Err(AnswerError::NoConfiguration { got: lost.to_string(), expected });
                }
                if let Some([a, b]) = placeholder.compared().filter(|pair| !is_compared(pair)) {
                    return Err(not_compared(a, b));
                }
            }
        }
        match &self.pair {
            Some(pair) if !is_compared(pair) => Err(not_compared(&pair[0], &pair[1])),
            _ => Ok(()),
        }
    }

    /// Rows with a word of `each` become one for each of its values.
    fn spread(&mut self) -> Result<(), AnswerError> {
        if !self.each.is_empty() && self.table.len() < 2 {
            return Err(AnswerError::NoRows);
        }
        for (word, values) in std::mem::take(&mut self.each) {
            let mark = format!("{{{word}}}");
            let mut rows = Vec::new();
            for row in std::mem::take(&mut self.table) {
                match row.iter().any(|cell| cell.contains(&mark)) {
                    true => rows.extend(
                        values.iter().map(|value| row.iter().map(|c| c.replace(&mark, value)).collect()),
                    ),
                    false => rows.push(row),
                }
            }
            self.table = rows;
        }
        let width = self.table.first().map_or(0, Vec::len);
        match self.table.iter().find(|row| row.len() != width) {
            Some(row) => Err(AnswerError::RowWidth { got: row.len(), expected: width }),
            None => Ok(()),
        }
    }

    fn templates(&self) -> impl Iterator<Item = &String> {
        let sentences = [
            &self.text,
            &self.higher,
            &self.lower,
            &self.within,
            &self.equivalent,
            &self.underpowered,
            &self.otherwise,
        ];
        sentences.into_iter().flatten().chain(self.table.iter().flatten())
    }
}

fn not_compared(reference: &str, other: &str) -> AnswerError {
    AnswerError::NotCompared { reference: reference.into(), other: other.into() }
}

#[cfg(test)]
mod tests {
    use crate::experiment::{Changes, Experiment};
    use crate::model::LabError;

    const HEAD: &str = "title = \"t\"\nquestion = \"q\"\nruns = 2\nwarm_up = \"10ms\"\nwindow = \"100ms\"\n\
                        [[configuration]]\nname = \"a\"\n[[configuration]]\nname = \"b\"\n[[answer]]\n";

    fn parse(answer: &str) -> Result<Experiment, LabError> {
        let text = format!("{HEAD}{answer}");
        Experiment::parse("x", "x.toml", &text, &Changes::default())
    }

    #[test]
    fn what_nothing_can_fill_is_refused_with_its_place_and_the_remedy() {
        let pair =
            "pair = [\"b\", \"a\"]\nhigher = \"\"\nlower = \"\"\nequivalent = \"\"\nunderpowered = \"\"\n";
        for (answer, said) in [
            ("text = \"{median c}\"\n", "no configuration c; there are a, b"),
            ("text = \"{verdict b a}\"\n", "b and a are not compared in this order"),
            ("text = \"{mean a}\"\n", "got {mean a}, expected in braces one of: median"),
            ("text = \"{median a\"\n", "has no end"),
            ("headline = true\n", "exactly one of `text`, `pair`, `table` and `show`"),
            ("text = \"x\"\nhigher = \"y\"\n", "need the `pair`"),
            ("pair = [\"a\", \"b\"]\nhigher = \"x\"\n", "a verdict is not known beforehand"),
            (pair, "b and a are not compared"),
            ("table = [[\"a\", \"b\"], [\"a\"]]\n", "a row of 1 cells under 2 headings"),
            ("show = \"spdd\"\n", "unknown variant `spdd`"),
        ] {
            let why = parse(answer).expect_err(said).said;
            assert!(why.contains(said) && why.starts_with("x.toml:1"), "{why}");
        }
    }

    #[test]
    fn rows_are_written_once_for_each_value() {
        let answer =
            "table = [[\"who\", \"rate\"], [\"{w}\", \"{median {w}}\"]]\neach = { w = [\"a\", \"b\"] }\n";
        let answers = parse(answer).expect("valid").answers;
        assert_eq!(answers[0].table[1..], [["a", "{median a}"], ["b", "{median b}"]]);
    }

    #[test]
    fn kinds_of_work_may_have_several_words() {
        assert!(parse("text = \"{share a interrupt and scheduling}\"\n").is_ok());
        assert!(parse("text = \"{share a}\"\n").is_err());
    }
}
