//! Reports: the same derived values for people (`report.md`, `report.html`) and programs (`result.json`).
//!
//! Promises: [`write`] derives everything from manifest and raw runs, so that a report can be made again
//! and must come out the same. Refuses: a value that is not in the raw files.

pub mod answers;
pub mod caches;
pub mod cliffs;
pub mod comparisons;
pub mod csv;
pub mod differentials;
pub mod html;
pub mod markdown;
pub mod plots;
pub mod profiles;
pub mod protection;
pub mod record;
pub mod relays;
pub mod search;
pub mod settings;
pub mod spd;
pub mod svg;

use std::path::Path;

use weir_io::lock;

use crate::format::digits;
use crate::model::LabError;
use crate::result::{self, Outcome, Results};
use crate::store::{read_runs, rebuild_plain_files, write_whole};
use weir_stats::ministat::{self, Set, Style};

/// Derives and writes `result.json`, `runs.csv`, `trials.csv` (of searches), `comparisons.csv`, `report.md` and `report.html`;
/// `weir.toml` where the experiment asks for the best settings.
pub fn write(dir: &Path) -> Result<Results, LabError> {
    let (manifest, results) = result::derive(dir)?;
    let runs = read_runs(dir, &manifest)?.runs;
    // a campaign under way keeps its own files in step
    if let Ok(Some(_held)) = lock::take(dir) {
        for said in rebuild_plain_files(dir, &manifest.experiment.metric, &runs)? {
            eprintln!("{said}");
        }
    }
    let json =
        serde_json::to_string_pretty(&results).map_err(|e| LabError::new(format!("result.json: {e}")))?;
    write_whole(&dir.join("result.json"), &(json + "\n"))?;
    write_whole(&dir.join("runs.csv"), &csv::runs(&runs))?;
    if let Some(trials) = csv::trials(&runs) {
        write_whole(&dir.join("trials.csv"), &trials)?;
    }
    write_whole(&dir.join("comparisons.csv"), &csv::comparisons(&results))?;
    if let Some(settings) = &results.settings {
        write_whole(&dir.join(settings::FILE), &settings.toml)?;
    }
    write_whole(&dir.join("report.md"), &markdown::render(&manifest, &results))?;
    write_whole(&dir.join("report.html"), &html::render(&manifest, &results))?;
    Ok(results)
}

/// The value tables show beside the metric: cycles/packet beside a rate, the rate beside all else.
pub fn beside_heading(results: &Results) -> &'static str {
    if results.metric.0 == "pps" { "cycles/packet" } else { "Mpps" }
}

pub fn beside(results: &Results, outcome: &Outcome) -> Option<String> {
    match results.metric.0.as_str() {
        "pps" => outcome.further.get("clocks_per_packet").map(|c| digits(c.median)),
        _ => outcome.pps.map(|s| digits(s.median / 1e6)),
    }
}

/// One ministat block a reference, at most six others in each; a sentence where a set is too small.
pub fn ministat_blocks(results: &Results) -> Vec<String> {
    let set = |name: &str| {
        let values = results.outcome(name).map_or(&[][..], |o| o.values.as_slice());
        Set::new(format!("{name}.{}", results.metric.0), values)
    };
    let mut references: Vec<&str> = Vec::new();
    for comparison in &results.comparisons {
        if !references.contains(&comparison.reference.as_str()) {
            references.push(&comparison.reference);
        }
    }
    let mut blocks = Vec::new();
    for reference in references {
        let others: Vec<&str> = results
            .comparisons
            .iter()
            .filter(|c| c.reference == reference)
            .map(|c| c.other.as_str())
            .collect();
        for few in others.chunks(ministat::MAX_SETS - 1) {
            let sets: Vec<Set> = std::iter::once(reference).chain(few.iter().copied()).map(set).collect();
            blocks.push(ministat::block(&sets, Style::default()).unwrap_or_else(|e| format!("{e}\n")));
        }
    }
    blocks
}

/// The commands that derive the values again.
pub fn recompute(results: &Results) -> Vec<String> {
    let mut commands = vec!["weir-lab report .".to_string()];
    let mut seen = Vec::new();
    for comparison in &results.comparisons {
        if seen.contains(&&comparison.reference) {
            continue;
        }
        seen.push(&comparison.reference);
        let others = results.comparisons.iter().filter(|c| c.reference == comparison.reference);
        let files: Vec<String> = std::iter::once(&comparison.reference)
            .chain(others.map(|c| &c.other))
            .take(ministat::MAX_SETS)
            .map(|name| format!("raw/{name}.{}", results.metric.0))
            .collect();
        commands.push(format!("weir-lab ministat -s -w {} {}", ministat::WIDTH, files.join(" ")));
    }
    commands
}
