//! An experiment's answer with its values: every placeholder filled from the runs, or the piece left out.
//!
//! Promises: a value is the one the report's tables print; a ratio the report does not compare is computed by the
//! declared analysis, uncorrected; a ratio that is not *different* says so, unless the piece gives its verdict anyway.
//! Refuses half a sentence: where one value is missing, the piece says what it has
//! for that case, or nothing.

use serde::{Deserialize, Serialize};

use super::bounds::Bound;
use super::frames;
use super::{Outcome, Results, Runs, comparisons, outcome_of};
use crate::experiment::answer::{AnswerSpec, Part, Placeholder, Section, parts};
use crate::experiment::{Experiment, Metric};
use crate::format;
use crate::manifest::Manifest;
use weir_stats::compare::ALPHA;
use weir_stats::number::general;
use weir_stats::{Comparison, Summary, Verdict};

/// Frames a sentence names; the report has all.
const FRAMES: usize = 3;
const NONE: &str = "–";

/// One piece of an answer, filled in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Answered {
    /// The answer stands in tables of answers too.
    pub headline: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Headings first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub table: Vec<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub show: Option<Section>,
}

/// What the experiment says, in its order.
pub fn of(experiment: &Experiment, seed: u64, results: &Results, runs: &Runs) -> Vec<Answered> {
    let filler = Filler { experiment, seed, results, runs, brief: false };
    experiment.answers.iter().filter_map(|said| filler.piece(said)).collect()
}

/// One value as a page has it, in three digits, with its verdict unless that of its pair stands beside it; `None` where it
/// was not measured.
pub fn brief(
    manifest: &Manifest,
    results: &Results,
    runs: &Runs,
    (value, judged): (&Placeholder, &[[String; 2]]),
) -> Option<String> {
    let (experiment, seed) = (&manifest.experiment, manifest.seed);
    Filler { experiment, seed, results, runs, brief: true }.value(value, judged)
}

struct Filler<'a> {
    experiment: &'a Experiment,
    seed: u64,
    results: &'a Results,
    runs: &'a Runs,
    /// Three digits, and the larger unit.
    brief: bool,
}

impl Filler<'_> {
    fn piece(&self, said: &AnswerSpec) -> Option<Answered> {
        let blank = Answered { headline: said.headline, ..Answered::default() };
        if said.show.is_some() {
            return Some(Answered { show: said.show, ..blank });
        }
        let otherwise = || said.otherwise.as_ref().and_then(|template| self.text(template));
        if said.table.is_empty() {
            let text = self.sentence(said).or_else(otherwise)?;
            return Some(Answered { text: Some(text), ..blank });
        }
        match self.rows(&said.table) {
            table if table.len() > 1 => Some(Answered { table, ..blank }),
            _ => Some(Answered { text: Some(otherwise()?), ..blank }),
        }
    }

    fn sentence(&self, said: &AnswerSpec) -> Option<String> {
        let Some([reference, other]) = &said.pair else { return self.text(said.text.as_ref()?) };
        let compared = self.compared(reference, other)?;
        let direction = match compared.ratio?.ratio > 1.0 {
            true => &said.higher,
            false => &said.lower,
        };
        let template = match compared.verdict {
            Verdict::Different if is_small(compared) && said.within.is_some() => &said.within,
            Verdict::Different => direction,
            Verdict::Equivalent => &said.equivalent,
            Verdict::Underpowered | Verdict::NoTest => &said.underpowered,
        };
        self.text(template.as_ref()?)
    }

    /// Rows of which something was measured; a dash stands for what was not.
    fn rows(&self, table: &[Vec<String>]) -> Vec<Vec<String>> {
        let cell = |row: &[String], template: &String| self.filled(template, row).unwrap_or(NONE.into());
        let row = |row: &Vec<String>| row.iter().map(|template| cell(row, template)).collect::<Vec<String>>();
        let holds = |(templates, cells): (&Vec<String>, Vec<String>)| {
            let asked: Vec<bool> = templates.iter().map(|t| t.contains('{')).collect();
            let any = cells.iter().zip(&asked).any(|(cell, asked)| *asked && cell != NONE);
            (any || !asked.contains(&true)).then_some(cells)
        };
        table.iter().map(|templates| (templates, row(templates))).filter_map(holds).collect()
    }

    /// `None` where a value is missing.
    fn text(&self, template: &str) -> Option<String> {
        self.filled(template, &[template.to_string()])
    }

    /// One template of a piece; `piece` may give the verdict on its ratios.
    fn filled(&self, template: &str, piece: &[String]) -> Option<String> {
        let judged = judged(piece);
        let filled = parts(template).ok()?.into_iter().map(|part| match part {
            Part::Text(text) => Some(text.to_string()),
            Part::Value(placeholder) => self.value(&placeholder, &judged),
        });
        filled.collect()
    }

    fn value(&self, placeholder: &Placeholder, judged: &[[String; 2]]) -> Option<String> {
        match placeholder {
            Placeholder::Median { name, metric, unit } => {
                let (metric, summary) = self.summary(name, metric.as_deref())?;
                Some(match (unit, self.brief) {
                    (true, true) => format::brief(&metric, summary.median),
                    (true, false) => format::with_unit(&metric, summary.median),
                    (false, true) => format::three_digits(summary.median / metric.unit().0),
                    (false, false) => format::digits(summary.median / metric.unit().0),
                })
            }
            Placeholder::Range { name, metric } => {
                let (metric, summary) = self.summary(name, metric.as_deref())?;
                if self.brief {
                    let [least, greatest] = [summary.min, summary.max].map(|v| format::brief(&metric, v));
                    return Some(format!("{least} to {greatest}"));
                }
                let (_, unit) = metric.unit();
                Some(format!("{} {unit}", format::range(&metric, &summary)).trim_end().to_string())
            }
            Placeholder::Difference { pair: [reference, other], metric } => {
                let (metric, reference) = self.summary(reference, metric.as_deref())?;
                let (_, other) = self.summary(other, Some(&metric.0))?;
                let difference = (other.median - reference.median) / metric.unit().0;
                Some(if self.brief { format::three_digits(difference) } else { format::digits(difference) })
            }
            Placeholder::Runs { name } => Some(self.results.outcome(name)?.values.len().to_string()),
            Placeholder::Ratio { pair, metric, percent } => {
                let compared = self.ratio(pair, metric.as_deref())?;
                let value = match (percent, self.brief) {
                    (true, _) => change(&compared)?,
                    (false, true) => format::brief_ratio(compared.ratio?),
                    (false, false) => format::ratio(&compared),
                };
                let declared = self.metric(metric.as_deref()) == self.experiment.metric;
                let bound = self.results.bound(&compared).filter(|_| declared);
                let value = Bound::said(bound, &value);
                match short_of_different(&compared).filter(|_| !judged.contains(pair)) {
                    Some(word) => Some(format!("{value} ({word})")),
                    None => Some(value),
                }
            }
            Placeholder::Verdict { pair: [a, b], word } => {
                self.compared(a, b).map(if *word { in_a_word } else { verdict })
            }
            Placeholder::Detectable { pair: [a, b] } => {
                Some(format!("{} %", least(self.compared(a, b)?.detectable_percent?)))
            }
            Placeholder::Frames { pair: [a, b] } => frames::named(self.results, a, b, FRAMES),
            Placeholder::Pairs => {
                let said = self.results.answer.trim_end_matches('.');
                (!self.results.comparisons.is_empty()).then(|| said.to_string())
            }
            Placeholder::Share { name, kind } => frames::share(self.results, name, kind),
        }
    }

    fn metric(&self, metric: Option<&str>) -> Metric {
        metric.map_or(self.experiment.metric.clone(), |f| Metric(f.into()))
    }

    fn summary(&self, name: &str, metric: Option<&str>) -> Option<(Metric, Summary)> {
        let metric = self.metric(metric);
        let samples = self.runs.get(name)?.iter().filter_map(|run| run.sample.as_ref());
        let values: Vec<f64> = samples.filter_map(|sample| metric.of(sample)).collect();
        Some((metric, Summary::of(&values)?))
    }

    fn compared(&self, reference: &str, other: &str) -> Option<&Comparison> {
        let all = self.results.comparisons.iter().chain(&self.results.controls);
        let found = all.into_iter().find(|c| c.reference == reference && c.other == other);
        found.filter(|c| c.ratio.is_some())
    }

    /// Takes the ratio from the report, or computes it where the report compares no such thing.
    fn ratio(&self, [reference, other]: &[String; 2], metric: Option<&str>) -> Option<Comparison> {
        let metric = self.metric(metric);
        let declared = self.compared(reference, other).filter(|_| metric == self.experiment.metric);
        if let Some(declared) = declared {
            return Some(declared.clone());
        }
        let planned = self.experiment.configurations.iter().map(|p| &p.configuration);
        let sides = planned.filter(|c| c.name == *reference || c.name == *other);
        let outcomes: Vec<Outcome> =
            sides.filter_map(|c| Some(outcome_of(c, self.runs.get(&c.name)?, &metric))).collect();
        let pair = [(reference.clone(), other.clone())];
        comparisons((self.experiment, self.seed), &metric, (&outcomes, self.runs), &pair)
            .pop()
            .filter(|c| c.ratio.is_some())
    }
}

/// The pairs whose verdict these templates of one piece give.
fn judged(piece: &[String]) -> Vec<[String; 2]> {
    let values = piece.iter().filter_map(|template| parts(template).ok()).flatten();
    let pairs = values.filter_map(|part| match part {
        Part::Value(placeholder) => placeholder.judges(),
        Part::Text(_) => None,
    });
    pairs.collect()
}

/// What a reader must be told beside a ratio that was not proven to be a difference.
fn short_of_different(c: &Comparison) -> Option<&'static str> {
    match c.verdict {
        Verdict::Different => None,
        Verdict::Equivalent => Some("equivalent"),
        Verdict::Underpowered => Some("undecided"),
        Verdict::NoTest => Some("not tested"),
    }
}

/// Whether a difference is proven, and proven to be less than anybody asked about.
fn is_small(c: &Comparison) -> bool {
    c.p_equivalence_holm.is_some_and(|p| p <= ALPHA)
}

/// `−1.2 % [−1.9, −0.5]`.
fn change(c: &Comparison) -> Option<String> {
    let signed = |ratio: f64| {
        let percent = format!("{:.1}", 100.0 * (ratio - 1.0));
        match percent.strip_prefix('-') {
            Some(size) if size.bytes().all(|b| b"0.".contains(&b)) => size.to_string(),
            Some(size) => format!("−{size}"),
            None if percent.bytes().all(|b| b"0.".contains(&b)) => percent,
            None => format!("+{percent}"),
        }
    };
    let r = c.ratio?;
    Some(match r.low.zip(r.high) {
        Some((low, high)) => format!("{} % [{}, {}]", signed(r.ratio), signed(low), signed(high)),
        None => format!("{} %", signed(r.ratio)),
    })
}

fn in_a_word(c: &Comparison) -> String {
    match c.verdict {
        Verdict::Underpowered => "undecided".into(),
        decided => format::verdict(decided).into(),
    }
}

/// Two digits, all before the point; what exceeds that is no measurement.
fn least(percent: f64) -> String {
    match percent {
        p if p >= 1000.0 => "over 1000".into(),
        p if p >= 100.0 => format!("{p:.0}"),
        p => general(p, 2),
    }
}

fn verdict(c: &Comparison) -> String {
    match c.verdict {
        Verdict::Different if is_small(c) => format!("different, by less than {} %", c.margin_percent),
        Verdict::Different => "different".into(),
        Verdict::Equivalent => format!("equivalent within ±{} %", c.margin_percent),
        Verdict::Underpowered => match c.detectable_percent {
            Some(percent) => {
                format!("undecided (four of five such campaigns would find {} %)", least(percent))
            }
            None => "undecided".into(),
        },
        Verdict::NoTest => "not tested".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_stats::bootstrap::Ratio;
    use weir_stats::compare::{Analysis, Pair, Rules, compare};
    use weir_stats::paired::Series;

    fn compared(other: &[f64]) -> Comparison {
        let a = [100.0, 101.0, 99.0, 100.5, 99.5];
        let pair = [Pair { reference: Series::of("a", &a), other: Series::of("b", other) }];
        compare(&pair, Rules { analysis: Analysis::Welch, margin_percent: 2.0, seed: 1 }).remove(0)
    }

    #[test]
    fn changes_carry_their_sign_and_what_rounds_to_nothing_has_none() {
        let of = |ratio, low, high| {
            let mut c = compared(&[1.0, 2.0]);
            c.ratio = Some(Ratio { ratio, low: Some(low), high: Some(high) });
            change(&c).expect("a ratio")
        };
        assert_eq!(of(0.988, 0.981, 1.004), "−1.2 % [−1.9, +0.4]");
        assert_eq!(of(1.0001, 0.9999, 1.5), "0.0 % [0.0, +50.0]");
    }

    #[test]
    fn a_ratio_short_of_a_difference_says_so_unless_the_piece_gives_its_verdict() {
        let word = |other: &[f64]| short_of_different(&compared(other));
        assert_eq!(word(&[150.0, 151.0, 149.0]), None);
        assert_eq!(word(&[100.1, 101.0, 99.1, 100.4, 99.6]), Some("equivalent"));
        assert_eq!(word(&[90.0, 120.0, 80.0, 115.0]), Some("undecided"));
        let piece = ["{change a b}".to_string(), "{verdict a b}, {ratio a c}".to_string()];
        assert_eq!(judged(&piece), [["a".to_string(), "b".to_string()]]);
        assert_eq!(judged(&piece[..1]), [[""; 2]; 0]);
    }

    #[test]
    fn a_verdict_says_what_it_could_have_missed() {
        assert_eq!(verdict(&compared(&[100.1, 101.0, 99.1, 100.4, 99.6])), "equivalent within ±2 %");
        assert_eq!(verdict(&compared(&[150.0, 151.0, 149.0])), "different");
        assert!(verdict(&compared(&[90.0, 120.0, 80.0, 115.0])).starts_with("undecided (four of five"));
    }
}
