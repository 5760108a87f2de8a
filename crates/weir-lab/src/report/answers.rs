//! What an experiment says of its values: in its own report, and in documents that hold the answers of many.
//!
//! Promises: what could not be measured is named with its reason, what failed with its error. Refuses a value of its
//! own: all of them are in the results.

use super::comparisons::{legend, verdicts};
use super::markdown::{
    asked_tables, best_settings, blocks_of, cached, changed, grid, relay_tables, sentences, table,
};
use super::{cliffs, differentials};
use crate::experiment::answer::Section;
use crate::machine::utc;
use crate::manifest::Manifest;
use crate::result::Results;
use crate::result::answers::Answered;

/// Names of one reason that are written out.
const NAMED: usize = 6;

/// Sentences and tables for the campaign's own report, which has the sections elsewhere.
pub fn own(results: &Results) -> String {
    pieces(&results.answers, &|_| String::new())
}

/// The same with the report's sections.
pub fn whole(results: &Results) -> String {
    pieces(&results.answers, &|section| shown(results, section))
}

/// Sentences for a table of answers.
pub fn headline(results: &Results) -> String {
    let said = results.answers.iter().filter(|a| a.headline).filter_map(|a| a.text.as_deref());
    match said.collect::<Vec<_>>().join(" ") {
        none if none.is_empty() => results.answer.clone(),
        said => said,
    }
}

fn pieces(answers: &[Answered], shown: &dyn Fn(Section) -> String) -> String {
    let mut out = String::new();
    // sentences one after the other are a paragraph, headlines one of their own
    let mut paragraph = None;
    for answer in answers {
        if let Some(text) = &answer.text {
            out += if paragraph == Some(answer.headline) { "\n" } else { "\n\n" };
            out += &if answer.headline { format!("**{text}**") } else { text.clone() };
            paragraph = Some(answer.headline);
            continue;
        }
        paragraph = None;
        if let Some((headings, rows)) = answer.table.split_first() {
            out += &format!("\n\n{}", grid(headings, 1, rows).trim_end());
        }
        let section = answer.show.map_or(String::new(), shown);
        if !section.trim().is_empty() {
            out += &format!("\n\n{}", section.trim());
        }
    }
    out.trim_start().to_string()
}

fn shown(results: &Results, section: Section) -> String {
    match section {
        Section::Comparisons if results.comparisons.is_empty() => String::new(),
        Section::Comparisons => {
            let legend = sentences(&legend(&results.comparisons));
            format!("{}\n{legend}", table(&verdicts(&results.comparisons, &|c| results.ratio(c))))
        }
        Section::Ministat => blocks_of(results),
        Section::Spd => asked_tables(results),
        Section::Relays => relay_tables(results),
        Section::Kinds => match differentials::kinds(results) {
            Ok(Some(kinds)) => grid(&kinds.headings, 1, &kinds.rows),
            Ok(None) => String::new(),
            Err(e) => e.to_string(),
        },
        Section::Differential => {
            let pairs = differentials::pairs(results).into_iter();
            pairs.map(|pair| pair.map_or_else(|e| e.to_string(), |p| changed(&p))).collect()
        }
        Section::Settings => best_settings(results),
        Section::Caches => cached(results),
        Section::Cliffs => cliffs::sentences(results).iter().map(|s| format!("- {s}\n")).collect(),
    }
}

/// Where and how it was measured, what was not, and what failed: a sentence each.
pub fn circumstances(manifest: &Manifest, results: &Results) -> Vec<String> {
    let e = &manifest.experiment;
    let m = &manifest.machine;
    let smt = if m.smt { ", SMT" } else { "" };
    let virtual_machine = if m.virtualisation.is_some() { ", virtual" } else { "" };
    let mut said = vec![format!(
        "Measured on {} ({}, {} cores{smt}{virtual_machine}, Linux {}): {} configurations × {} blocks of {} ms{}, {} of {} \
         runs.",
        utc(manifest.started_unix_ms).split(' ').next().unwrap_or_default(),
        m.cpu,
        m.cores,
        m.kernel,
        results.configurations.len(),
        e.runs,
        e.window_ms,
        e.slices.map_or(String::new(), |n| format!(" in {n} slices")),
        results.runs_measured,
        results.runs_planned,
    )];
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for skipped in &results.skipped {
        match reasons.iter_mut().find(|(reason, _)| *reason == skipped.reason) {
            Some((_, names)) => names.push(&skipped.configuration),
            None => reasons.push((&skipped.reason, vec![&skipped.configuration])),
        }
    }
    said.extend(
        reasons.iter().map(|(reason, names)| format!("Not measured here: {}: {reason}.", listed(names))),
    );
    for outcome in results.configurations.iter().filter(|o| !o.failures.is_empty()) {
        let (name, failed) = (&outcome.configuration.name, outcome.failures.len());
        said.push(format!("{failed} of {} runs of `{name}` failed: {}.", e.runs, outcome.failures[0]));
    }
    said
}

fn listed(names: &[&str]) -> String {
    let named: Vec<String> = names.iter().take(NAMED).map(|n| format!("`{n}`")).collect();
    match names.len().saturating_sub(NAMED) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}
