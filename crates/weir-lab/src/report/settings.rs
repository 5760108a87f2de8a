//! The best modes of network devices, in both reports and as the fragment `weir.toml` beside them.

use super::comparisons::Table;
use crate::format::verdict;
use crate::result::Results;
use crate::result::settings::{Mode, Settings};

pub const TITLE: &str = "Settings";
pub const FILE: &str = "weir.toml";

/// Which modes were tried and what became of them; a sentence; the fragment.
pub struct Section<'a> {
    pub said: String,
    pub table: Table,
    pub toml: &'a str,
}

pub fn section(results: &Results) -> Option<Section<'_>> {
    let settings = results.settings.as_ref()?;
    Some(Section { said: sentence(settings), table: table(settings), toml: &settings.toml })
}

fn sentence(settings: &Settings) -> String {
    let Settings { chosen, because, not_told_apart: open, .. } = settings;
    let open = match open.as_slice() {
        [] => String::new(),
        open => format!(" Not told apart from it: {}.", open.join(", ")),
    };
    format!("Take {chosen}: {because}.{open}")
}

fn table(settings: &Settings) -> Table {
    let row = |mode: &Mode| {
        let verdict = match mode.verdict {
            Some(found) => verdict(found).to_string(),
            None if mode.configuration == settings.default => "the default".into(),
            None => "not compared".into(),
        };
        vec![
            mode.configuration.clone(),
            mode.became.clone(),
            verdict,
            mode.ratio.clone().unwrap_or("–".into()),
        ]
    };
    Table {
        headings: vec!["mode", "what it became", "against the default", "ratio [95 %]"],
        text: 3,
        rows: settings.modes.iter().map(row).collect(),
    }
}
