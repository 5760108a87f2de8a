//! What was recorded when, as tables for both reports: sessions of an interrupted campaign, every run.

use super::comparisons::Table;
use crate::format::digits;
use crate::machine::utc;
use crate::manifest::Manifest;
use crate::result::{Outcome, Results};

/// Runs of a configuration a table holds; the raw files hold all.
const SHOWN: usize = 60;

/// A row a session; `None` for a campaign in one go.
pub fn sessions(manifest: &Manifest, results: &Results) -> Option<Table> {
    if manifest.resumed.is_empty() {
        return None;
    }
    let measured = |session: usize| {
        results.configurations.iter().flat_map(|o| &o.sessions).filter(|s| **s == session).count().to_string()
    };
    let or_none = |list: &[String]| if list.is_empty() { "nothing".into() } else { list.join("; ") };
    let first = vec!["1".into(), utc(manifest.started_unix_ms), "–".into(), "–".into(), measured(0)];
    let later = manifest.resumed.iter().enumerate().map(|(i, s)| {
        let (changes, left_out) = (or_none(&s.changes), or_none(&s.left_out));
        vec![(i + 2).to_string(), utc(s.started_unix_ms), changes, left_out, measured(i + 1)]
    });
    Some(Table {
        headings: vec!["session", "begun", "changed since the beginning", "left out", "runs with a value"],
        text: 4,
        rows: std::iter::once(first).chain(later).collect(),
    })
}

/// The metric of every run, in the order measured; `‖` stands where a session ended.
pub fn every_run(results: &Results) -> Table {
    let (divisor, _) = results.metric.unit();
    let row = |o: &Outcome| {
        let mut cells = String::new();
        for (i, value) in o.values.iter().enumerate().take(SHOWN) {
            if i > 0 {
                cells += if o.sessions.get(i) == o.sessions.get(i - 1) { " " } else { " ‖ " };
            }
            cells += &digits(value / divisor);
        }
        if let Some(more) = o.values.len().checked_sub(SHOWN).filter(|&n| n > 0) {
            cells += &format!(" … and {more} more in raw/{}.{}", o.configuration.name, results.metric.0);
        }
        vec![o.configuration.name.clone(), cells]
    };
    Table {
        headings: vec!["configuration", "runs, in the order measured"],
        text: 2,
        rows: results.configurations.iter().map(row).collect(),
    }
}

pub fn every_run_note(results: &Results) -> String {
    let (_, unit) = results.metric.unit();
    let mark = if results.configurations.iter().any(|o| o.sessions.iter().any(|s| *s > 0)) {
        "; ‖ stands where a session ended"
    } else {
        ""
    };
    format!("{}, {unit}{mark}", results.metric.sentence())
}
