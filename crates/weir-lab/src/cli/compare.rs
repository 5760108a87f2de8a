//! `weir-lab compare`: what changed from one campaign to another, or from one result of another tool to the next.

mod imported;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::argument::ArgumentError;
use super::print;
use super::run::aligned;
use crate::across::Campaign;
use crate::across::versus::{Other, Row, Versus, versus};
use crate::format::{p, ratio, verdict, with_unit};
use crate::model::LabError;
use crate::progress::human;
use weir_stats::Verdict;
use weir_stats::ministat::{self, Set, Style};

const AFTER: &str = "\
Examples:
  weir-lab compare out/demo.1 out/demo               the earlier campaign, then the later one
  weir-lab compare base run1 run2 run3               each against base
  weir-lab compare --ministat base run1              with a ministat block a configuration
  weir-lab compare --fail-if-worse base run1         exit code 1 when something got worse, for scripts
  weir-lab compare old.json new.json                 files of `hyperfine --export-json`; of one, its commands
  weir-lab compare target/criterion@main target/criterion    criterion's baseline, then its newest results

Runs of two campaigns did not take turns: what drifted in between is part of every ratio. Where the answer
matters, measure both in one experiment.";

#[derive(Args)]
#[command(after_help = AFTER)]
pub struct Compare {
    /// Folders of campaigns (with manifest.json and raw/, or with result.json alone), the reference first; or files of
    /// hyperfine; or criterion's folders, with @BASELINE.
    #[arg(required = true, num_args = 1.., value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Differences below this share of the reference count as none [default: the first campaign's].
    #[arg(long, value_name = "PERCENT", value_parser = margin)]
    margin: Option<f64>,
    /// A ministat block for each configuration.
    #[arg(long)]
    ministat: bool,
    /// Exit with 1 when a configuration got worse by more than the margin, proven.
    #[arg(long)]
    fail_if_worse: bool,
    /// Print one JSON document, for programs.
    #[arg(long)]
    json: bool,
}

fn margin(text: &str) -> Result<f64, ArgumentError> {
    let percent = text.parse::<f64>().ok().filter(|p| (0.0..100.0).contains(p) && *p > 0.0);
    percent.ok_or(ArgumentError::Margin)
}

impl Compare {
    pub fn go(self) -> Result<ExitCode, LabError> {
        if let Some(against) = imported::read(&self.runs, self.margin)? {
            return imported::go(&against, &self);
        }
        if self.runs.len() < 2 {
            return Err(LabError::new(format!(
                "compare: {}: one campaign alone: name another to compare it with",
                self.runs[0].display()
            )));
        }
        let campaigns: Vec<Campaign> =
            self.runs.iter().map(|dir| Campaign::open(dir)).collect::<Result<_, _>>()?;
        let versus = versus(&campaigns, self.margin)?;
        let rows = || versus.others.iter().flat_map(|o| &o.rows);
        if rows().next().is_none() {
            let why: Vec<&str> =
                versus.others.iter().flat_map(|o| &o.not_compared).map(String::as_str).collect();
            return Err(LabError::new(format!(
                "compare: the campaigns share no configuration: {}",
                if why.is_empty() { "nothing was measured".into() } else { why.join("; ") }
            )));
        }
        if self.json {
            print(&super::json(&versus)?);
        } else {
            print(&show(&versus));
            if self.ministat {
                print(&blocks(&campaigns, &versus));
            }
        }
        let worse = rows().any(|r| !r.baseline && r.matters() && !r.better(versus.higher_is_better));
        Ok(if self.fail_if_worse && worse { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

fn show(versus: &Versus) -> String {
    let mut out = format!("reference  {}: {}\n", versus.reference.folder, versus.reference.facts());
    for other in &versus.others {
        out += &format!("against    {}: {}{}\n", other.campaign.folder, other.campaign.facts(), later(other));
        for caution in cautions(versus, other) {
            out += &format!("! {caution}\n");
        }
        for difference in &other.differences {
            out += &format!("  differs  {difference}\n");
        }
        if other.differences.is_empty() {
            out += "  no known difference of machine, build or experiment\n";
        }
        out.push('\n');
        out += &table(versus, other);
        for reason in &other.not_compared {
            out += &format!("not compared  {reason}\n");
        }
        out.push('\n');
    }
    out + "The campaigns were not interleaved: what drifted between them (heat, neighbours, boot, memory layout) is\n\
           part of every ratio above. One experiment with both sides in it would tell them apart.\n"
}

fn later(other: &Other) -> String {
    other.later_ms.map_or(String::new(), |ms| {
        let word = if ms < 0 { "earlier" } else { "later" };
        format!(", {} {word}", human(std::time::Duration::from_millis(ms.unsigned_abs())))
    })
}

fn cautions(versus: &Versus, other: &Other) -> Vec<String> {
    let mut all = Vec::new();
    if other.copy {
        all.push("both folders hold the same campaign: nothing below is a finding".to_string());
    }
    if other.quick {
        all.push("smoke values (--quick) prove nothing".to_string());
    }
    if other.later_ms.is_some_and(|ms| ms < 0) {
        all.push("the reference is the later of the two: old and new have changed places".to_string());
    }
    for row in other.rows.iter().filter(|r| r.baseline && r.matters()) {
        all.push(format!(
            "{} has no SUT and still changed ({}): machine or generator differ",
            row.configuration,
            with_unit(&versus.metric, row.new.mean - row.old.mean)
        ));
    }
    all
}

fn table(versus: &Versus, other: &Other) -> String {
    let heading =
        ["configuration", "old mean", "new mean", "new / old [95 %]", "p (Holm)", "detectable", "verdict"];
    let mut rows = vec![heading.map(String::from)];
    for row in &other.rows {
        let c = &row.comparison;
        rows.push([
            row.configuration.clone(),
            with_unit(&versus.metric, row.old.mean),
            with_unit(&versus.metric, row.new.mean),
            ratio(c),
            p(c.p_holm),
            c.detectable_percent.map_or("–".into(), |d| format!("{d:.1} %")),
            words(versus, row),
        ]);
    }
    aligned(&rows)
}

fn words(versus: &Versus, row: &Row) -> String {
    let word = verdict(row.comparison.verdict);
    match (row.comparison.verdict, row.matters()) {
        (Verdict::Different, true) if row.better(versus.higher_is_better) => "better".into(),
        (Verdict::Different, true) => "worse".into(),
        (Verdict::Different, false) => format!("{word}, by less than {} %", versus.margin_percent),
        _ => word.into(),
    }
}

/// The reference and the first campaigns a block holds.
fn blocks(campaigns: &[Campaign], versus: &Versus) -> String {
    let mut out = String::new();
    let Some(reference) = campaigns.first() else { return out };
    for old in &reference.measured {
        let name = &old.configuration.name;
        let compared = |o: &Other| o.rows.iter().any(|r| r.configuration == *name);
        let others = campaigns.iter().skip(1).zip(&versus.others).filter(|(_, o)| compared(o));
        let sets: Vec<Set> = std::iter::once(reference)
            .chain(others.map(|(c, _)| c))
            .take(ministat::MAX_SETS)
            .filter_map(|c| {
                let path = c.dir.join("raw").join(format!("{name}.{}", versus.metric.0));
                Some(Set::new(path.display().to_string(), &c.measured(name)?.values))
            })
            .collect();
        if sets.len() > 1 {
            out += &format!(
                "\n{}",
                ministat::block(&sets, Style::default()).unwrap_or_else(|e| format!("{e}\n"))
            );
        }
    }
    out
}
