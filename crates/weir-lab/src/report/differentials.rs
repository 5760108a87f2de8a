//! What profiled runs say about compared pairs, in both reports: changes by frame, and time by kind of work.
//!
//! Promises: every compared pair with profiles on both sides is there, or the reason why it is not.

use super::comparisons::Table;
use crate::model::LabError;
use crate::profile::breakdown::{Breakdown, breakdown};
use crate::profile::differential::{Side, differential, flame, table};
use crate::profile::import::Recording;
use crate::profile::rules::Rules;
use crate::result::Results;
use crate::result::frames::recordings;

/// Frames a pair's table shows; the command below it prints all.
const FRAMES: usize = 12;

/// A compared pair.
pub struct Pair {
    pub title: String,
    /// Sentences above and below the table.
    pub above: Vec<String>,
    pub table: Table,
    pub below: Vec<String>,
    /// The differential flame graph, for a page with the flame graphs' style and script.
    pub svg: String,
}

/// Every compared pair with profiles, or why one cannot be compared.
pub fn pairs(results: &Results) -> Vec<Result<Pair, LabError>> {
    let side = |name: &str| results.outcome(name).map(recordings).filter(|r| !r.is_empty());
    let compared = results
        .comparisons
        .iter()
        .filter_map(|c| Some(pair(&c.other, &c.reference, side(&c.reference)?, side(&c.other)?)));
    compared.collect()
}

fn pair(
    other: &str,
    reference: &str,
    before: Vec<Recording>,
    after: Vec<Recording>,
) -> Result<Pair, LabError> {
    let title = format!("{other} against {reference}");
    let named = |e: LabError| LabError::new(format!("{title}: {e}"));
    let rules = Rules::load(None)?;
    let files = |side: &[Recording]| side.iter().map(|r| r.source.clone()).collect::<Vec<_>>().join(" ");
    let command = format!("weir-lab profile diff {} --against {} --top 1000", files(&before), files(&after));
    let (before, after) = (Side::of(before, None, None), Side::of(after, None, None));
    let found = differential(&before, &after, &rules).map_err(named)?;
    let rows = table::rows(&found, FRAMES).into_iter().skip(1).map(Vec::from).collect();
    let mut below = table::foot(&found);
    below.push(format!("all frames: {command}"));
    Ok(Pair {
        svg: flame::render(&title, &found, &before, &after, &rules),
        title,
        above: table::head(&found),
        table: Table {
            headings: vec!["frame", "before", "after", "change [95 %]", "p (Holm)", "inclusive", "category"],
            text: 1,
            rows,
        },
        below,
    })
}

/// Work by category, in percent: a column a configuration with profiles.
pub struct Kinds {
    pub headings: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

/// `None` without profiles.
pub fn kinds(results: &Results) -> Result<Option<Kinds>, LabError> {
    let rules = Rules::load(None)?;
    let mut columns = Vec::new();
    for outcome in &results.configurations {
        let recordings = recordings(outcome);
        if !recordings.is_empty() {
            columns.push((outcome.configuration.name.as_str(), breakdown(&recordings, &rules)?));
        }
    }
    if columns.is_empty() {
        return Ok(None);
    }
    let mut names: Vec<&str> = Vec::new();
    for (_, column) in &columns {
        for share in column.categories.iter().filter(|s| s.percent_of_work.is_some()) {
            if !names.contains(&share.category.as_str()) {
                names.push(&share.category);
            }
        }
    }
    let cell = |column: &Breakdown, name: &str| {
        let share = column.categories.iter().find(|s| s.category == name);
        share.and_then(|s| s.percent_of_work).map_or("–".into(), |p| format!("{p:.1}"))
    };
    let rows = names
        .iter()
        .map(|name| {
            std::iter::once(name.to_string()).chain(columns.iter().map(|(_, c)| cell(c, name))).collect()
        })
        .collect();
    let headings =
        std::iter::once("kind of work, %").chain(columns.iter().map(|(name, _)| *name)).map(str::to_string);
    Ok(Some(Kinds { headings: headings.collect(), rows }))
}
