//! The same of what hyperfine and criterion.rs measured.

use std::path::PathBuf;
use std::process::ExitCode;

use super::super::run::aligned;
use super::super::{json, print};
use super::Compare;
use crate::across::imported::{Against, ImportError, Imported, Other, Row, against};
use crate::format::{digits, p, ratio, verdict};
use crate::model::LabError;
use weir_stats::Verdict;

/// What experiments have where they say nothing.
const MARGIN_PERCENT: f64 = 1.0;

/// What other tools left at `paths`; `None` where none did at any of them.
pub(super) fn read(paths: &[PathBuf], margin: Option<f64>) -> Result<Option<Against>, LabError> {
    let said = |error: ImportError| LabError::new(format!("compare: {error}"));
    let opened: Vec<Option<Imported>> =
        paths.iter().map(|path| Imported::open(path)).collect::<Result<_, _>>().map_err(said)?;
    if opened.iter().all(Option::is_none) {
        return Ok(None);
    }
    let all: Option<Vec<Imported>> = opened.into_iter().collect();
    let all = all.ok_or(ImportError::Mixed).map_err(said)?;
    against(&all, margin.unwrap_or(MARGIN_PERCENT)).map(Some).map_err(said)
}

pub(super) fn go(against: &Against, flags: &Compare) -> Result<ExitCode, LabError> {
    if flags.ministat {
        let said = "compare: --ministat is of campaigns: `weir-lab ministat` takes files with a value a line";
        return Err(LabError::new(said.into()));
    }
    print(&if flags.json { json(against)? } else { show(against) });
    let is_worse = against.others.iter().flat_map(|o| &o.rows).any(Row::is_worse);
    Ok(if flags.fail_if_worse && is_worse { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn show(against: &Against) -> String {
    let mut out = format!("reference  {}\n", against.reference);
    for caution in &against.cautions {
        out += &format!("! {caution}\n");
    }
    for other in &against.others {
        out += &format!("against    {}\n\n{}", other.source, table(other, against.margin_percent));
        for reason in &other.not_compared {
            out += &format!("not compared  {reason}\n");
        }
        out.push('\n');
    }
    out + "Times of programs that ran one after another: what drifted in between (heat, neighbours) is part of every ratio.\n\
           `weir-lab gate -- OLD -- NEW` has commands take turns.\n"
}

fn table(other: &Other, margin_percent: f64) -> String {
    let heading =
        ["benchmark", "old mean", "new mean", "new / old [95 %]", "p (Holm)", "detectable", "verdict"];
    let mut rows = vec![heading.map(String::from)];
    rows.extend(other.rows.iter().map(|row| {
        let c = &row.comparison;
        [
            row.benchmark.clone(),
            seconds(row.old.mean),
            seconds(row.new.mean),
            ratio(c),
            p(c.p_holm),
            c.detectable_percent.map_or("–".into(), |d| format!("{d:.1} %")),
            words(row, margin_percent),
        ]
    }));
    aligned(&rows)
}

fn words(row: &Row, margin_percent: f64) -> String {
    let word = verdict(row.comparison.verdict);
    let (is_different, is_slower) =
        (row.comparison.verdict == Verdict::Different, row.new.mean > row.old.mean);
    let small = row.comparison.p_equivalence_holm.is_some_and(|p| p <= weir_stats::compare::ALPHA);
    match (is_different, small) {
        (true, true) => format!("{word}, by less than {margin_percent} %"),
        (true, false) if is_slower => "slower".into(),
        (true, false) => "faster".into(),
        _ => word.into(),
    }
}

/// `12.34 ms`.
fn seconds(value: f64) -> String {
    let scales = [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs")];
    let fits = scales.into_iter().find(|(scale, _)| value >= *scale);
    let (scale, unit) = fits.unwrap_or((1e-9, "ns"));
    format!("{} {unit}", digits(value / scale))
}
