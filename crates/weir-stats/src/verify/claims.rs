//! Claims that values of a block do not bear.
//!
//! | kind | the block says | the data says |
//! |---|---|---|
//! | deviations | a difference | Welch's test, which lets each set have its own deviation, finds none |
//! | family | a difference | one of many comparisons in the document: Holm's correction takes it away |
//! | weak | no difference | one as large as the effect of interest would have been missed |
//! | runs | values of a file | the logs beside it give other runs, and nothing says why |
//! | document | a value | the document gives another one elsewhere |
//!
//! Promises: claims are judged on raw values only, at the confidence the block prints. Refuses to judge a
//! set without data.

use std::path::PathBuf;

use super::Block;
use super::classify::name;
use super::contents::unpacked;
use super::find::Found;
use super::library::{Library, Origin, Raw};
use crate::holm;
use crate::number::general;
use crate::power::{Design, Goal, detectable, runs_needed};
use crate::student::{student, welch};
use crate::summary::{mean, sorted, variance};

/// What is doubtful about a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WarningKind {
    Deviations,
    Family,
    Weak,
    Runs,
    Document,
}

impl WarningKind {
    pub const ALL: [WarningKind; 5] = [
        WarningKind::Deviations,
        WarningKind::Family,
        WarningKind::Weak,
        WarningKind::Runs,
        WarningKind::Document,
    ];

    pub fn name(self) -> &'static str {
        match self {
            WarningKind::Deviations => "deviations",
            WarningKind::Family => "family",
            WarningKind::Weak => "weak",
            WarningKind::Runs => "runs",
            WarningKind::Document => "document",
        }
    }

    pub fn meaning(self) -> &'static str {
        match self {
            WarningKind::Deviations => "differences that vanish when each set has its own deviation (Welch)",
            WarningKind::Family => {
                "differences that vanish when the document's comparisons share one error (Holm)"
            }
            WarningKind::Weak => "\"no difference\" that would have missed the effect of interest",
            WarningKind::Runs => "runs that are not those of the logs beside them",
            WarningKind::Document => "values the document contradicts, or its blocks do not bear out",
        }
    }

    pub fn remedy(self) -> &'static str {
        match self {
            WarningKind::Deviations => "quote Welch's interval, or find what makes one set unsteady",
            WarningKind::Family => {
                "say how many comparisons were made, or repeat this one alone with new runs"
            }
            WarningKind::Weak => "say what could have been seen, or add runs",
            WarningKind::Runs => "say which runs were left out or measured again, and why",
            WarningKind::Document => "decide which value is meant",
        }
    }
}

/// A doubtful claim and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Warning {
    pub file: PathBuf,
    pub line: usize,
    pub kind: WarningKind,
    pub text: String,
}

/// A printed verdict whose two sets are known.
struct Judged<'a> {
    block: &'a Block,
    set: usize,
    reference: &'a [f64],
    other: &'a [f64],
    says_difference: bool,
    alpha: f64,
    /// Student's p, as the verdict rests on it.
    p: f64,
}

/// Warnings about the verdicts of one document; `effect` is the difference of interest, percent of the
/// reference's mean.
pub fn verdicts(blocks: &[Block], effect: f64) -> Vec<Warning> {
    let judged: Vec<Judged<'_>> = blocks.iter().flat_map(classify).collect();
    let adjusted = holm::adjust(&family(&judged));
    judged.iter().zip(adjusted).flat_map(|(j, p_holm)| warnings(j, p_holm, &judged, effect)).collect()
}

fn classify(block: &Block) -> Vec<Judged<'_>> {
    let known = |set: usize| block.found.get(set)?.as_ref().filter(|f| f.is_exact());
    let Some(reference) = known(0) else { return Vec::new() };
    let judged = (1..block.found.len()).filter_map(|set| {
        let verdict = block.printed.verdict(set)?;
        let (reference, other) = (&reference.raw.values[..], &known(set)?.raw.values[..]);
        let p = student(reference, other)?.p;
        let alpha = 1.0 - block.printed.confidence.unwrap_or(95.0) / 100.0;
        let says_difference = !verdict.trim_start().starts_with("No ");
        Some(Judged { block, set, reference, other, says_difference, alpha, p })
    });
    judged.collect()
}

/// p values of the family; a pair that is printed twice takes one share.
fn family(judged: &[Judged<'_>]) -> Vec<f64> {
    let again = |i: usize| {
        judged[..i].iter().any(|j| j.reference == judged[i].reference && j.other == judged[i].other)
    };
    (0..judged.len()).map(|i| if again(i) { f64::NAN } else { judged[i].p }).collect()
}

fn warnings(j: &Judged<'_>, p_holm: f64, all: &[Judged<'_>], effect: f64) -> Vec<Warning> {
    let warning = |kind, text| Warning { file: j.block.file.clone(), line: j.block.printed.line, kind, text };
    let (who, whom) = (name(&j.block.printed, j.set), name(&j.block.printed, 0));
    let welch = welch(j.reference, j.other);
    let mut warnings = Vec::new();
    if j.says_difference {
        if let Some(w) = welch.filter(|w| w.p > j.alpha) {
            let deviations = [j.reference, j.other].map(|v| general(variance(v).sqrt(), 3));
            warnings.push(warning(
                WarningKind::Deviations,
                format!(
                    "{who} against {whom}: Student's p {}, Welch's {}; deviations {} and {}",
                    p_text(j.p),
                    p_text(w.p),
                    deviations[1],
                    deviations[0]
                ),
            ));
        }
        if p_holm > j.alpha && j.p <= j.alpha {
            let family = family(all).iter().filter(|p| !p.is_nan()).count();
            let text =
                format!("{who} against {whom}: p {}, {} as one of {family}", p_text(j.p), p_text(p_holm));
            warnings.push(warning(WarningKind::Family, text));
        }
    } else if let Some(text) = weakness(j, effect) {
        warnings.push(warning(WarningKind::Weak, format!("{who} against {whom}: {text}")));
    }
    warnings
}

/// What a verdict of no difference could have seen, when that is more than `effect` percent.
fn weakness(j: &Judged<'_>, effect: f64) -> Option<String> {
    let t = student(j.reference, j.other)?;
    let base = mean(j.reference).abs();
    let goal = Goal { alpha: j.alpha, ..Goal::default() };
    let seen = 100.0 * detectable(t.standard_error, t.degrees_of_freedom, goal) / base;
    if seen.is_nan() || seen <= effect {
        return None;
    }
    let deviation = ((variance(j.reference) + variance(j.other)) / 2.0).sqrt();
    let runs = runs_needed(deviation, base * effect / 100.0, Design::Unpaired, goal);
    let remedy = runs.map_or("no practicable number of runs".into(), |n| format!("{n} runs a set"));
    Some(format!("could have missed {} %; {effect} % takes {remedy}", general(seen, 3)))
}

fn p_text(p: f64) -> String {
    if p < 0.0001 { "below 0.0001".into() } else { format!("{p:.4}") }
}

/// A set's file against the logs it was made from: what is missing, and what is not theirs.
pub fn runs(library: &mut Library<'_>, found: &Found) -> Option<String> {
    let raw = &found.raw;
    let dir = raw.path.parent()?;
    let same_set = |sets: &[Raw]| -> Vec<Raw> {
        let mut same: Vec<Raw> = sets.iter().filter(|s| stem(&s.path) == stem(&raw.path)).cloned().collect();
        if same.iter().any(|s| s.path.file_name() == raw.path.file_name()) {
            same.retain(|s| s.path.file_name() == raw.path.file_name());
        }
        same
    };
    let (file, logs) = match raw.origin {
        Origin::File { column: 1 } => {
            let logs: Vec<Raw> = library.below(dir).iter().flat_map(|d| library.logs(d).to_vec()).collect();
            let logs = same_set(&logs).into_iter().min_by_key(|l| distance(&raw.values, &l.values))?;
            (raw.clone(), logs)
        }
        Origin::Logs { .. } => {
            let beside = [Some(dir), dir.parent()].into_iter().flatten();
            let files: Vec<Raw> = beside.flat_map(|d| library.sets(d).to_vec()).collect();
            (same_set(&files).into_iter().next()?, raw.clone())
        }
        _ => return None,
    };
    let (missing, extra) = left(&file.values, &logs.values);
    if missing.is_empty() && extra.is_empty() {
        return None;
    }
    let name = file.path.file_name()?.to_string_lossy();
    let mut text = format!("{name} holds {} runs, its logs give {}", file.values.len(), logs.values.len());
    for (what, values) in [("in the logs only", missing), ("in the file only", extra)] {
        if !values.is_empty() {
            text += &format!("; {what}: {}", values.join(", "));
        }
    }
    Some(text)
}

fn distance(file: &[f64], logs: &[f64]) -> usize {
    let (missing, extra) = left(file, logs);
    missing.len() + extra.len()
}

/// A set's name without its ending: `x.pps`, `pps.x` and `x.equilibrium` are of x.
fn stem(path: &std::path::Path) -> String {
    let name = path.file_name().map_or(String::new(), |n| n.to_string_lossy().into_owned());
    let name = unpacked(&name);
    let name = name.strip_prefix("pps.").unwrap_or(name);
    let endings = [".pps", ".equilibrium.max", ".equilibrium"];
    endings.iter().find_map(|e| name.strip_suffix(e)).unwrap_or(name).to_string()
}

/// Values of the logs that the file has not, and of the file that the logs have not.
fn left(file: &[f64], logs: &[f64]) -> (Vec<String>, Vec<String>) {
    let print = |values: &[f64]| sorted(values).iter().map(|v| general(*v, 8)).collect::<Vec<String>>();
    let (mut extra, mut missing) = (print(file), Vec::new());
    for value in print(logs) {
        match extra.iter().position(|v| *v == value) {
            Some(at) => drop(extra.remove(at)),
            None => missing.push(value),
        }
    }
    (missing, extra)
}
