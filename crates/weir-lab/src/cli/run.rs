//! `weir-lab run`: an experiment from file to report.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use clap::Args;
use weir_io::signal;

use super::rerun::Seed;
use super::several::{self, Earlier};
use super::{list, rerun, resume};
use crate::campaign::{self, CampaignSpec, Done};
use crate::experiment::{Changes, Experiment};
use crate::format::{digits, range, with_unit};
use crate::machine::unix_ms;
use crate::model::LabError;
use crate::progress::human;
use crate::report;
use crate::result::Results;

/// Exit code of an interrupted campaign, as shells report SIGINT.
pub(super) const INTERRUPTED: u8 = 130;
/// Warnings a terminal shows; the report has all.
const WARNINGS: usize = 8;

const AFTER: &str = "\
Examples:
  weir-lab run labs --list                         which experiments there are
  weir-lab run labs/demo.toml --quick              smoke values, in seconds
  weir-lab run --resume out/demo                   after Ctrl-C, a crash or a power cut
  weir-lab run --resume out/demo --retry-failed    also measure again what failed (a host was down)
  weir-lab run --resume out/demo --force           although kernel or build changed; the report says so
  weir-lab run --again runs/2026-11-21-xeon-2cpu-demo --out out/again
  weir-lab run --again out/demo --new-seed         another order and other traffic: does the finding stand?
  weir-lab compare out/demo out/demo.1             what changed between the two";

#[derive(Args)]
#[command(after_help = AFTER)]
pub struct Run {
    /// The experiment, such as labs/demo.toml; several with --into. With --list, the folders that hold experiments.
    #[arg(required_unless_present_any = ["list", "resume", "again"], value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Name the experiments in a folder with their questions, and measure nothing [default folder: labs].
    #[arg(long)]
    list: bool,
    /// Folder for manifest, raw runs and reports [default: out/<experiment>]. An earlier campaign there is
    /// kept under a new name.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Folder that gets a folder a campaign, `<date>-<machine>-<experiment>`; of several files one after the other.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["out", "resume", "again", "list"])]
    into: Option<PathBuf>,
    /// With --into: what its folder holds of this commit is not measured again; where runs are missing, they are measured.
    #[arg(long, requires = "into", conflicts_with = "seed")]
    missing: bool,
    /// Smoke values for every parameter: passes through everything in seconds, proves nothing.
    #[arg(long)]
    quick: bool,
    /// Decides order, traffic and resampling [default: from the clock]. The same seed gives the same order.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Blocks: how often each configuration runs [default: the experiment's].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    runs: Option<u16>,
    /// Profiled runs a configuration, after the measured ones, each with a flame graph in the report
    /// [default: the experiment's; 3 when given without a number].
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "3", require_equals = true,
        value_parser = clap::value_parser!(u16).range(0..=100))]
    profile: Option<u16>,
    /// Only these configurations (and their baselines); `*` stands for anything.
    #[arg(long, value_name = "NAME", num_args = 1..)]
    only: Vec<String>,
    /// Go on with the interrupted campaign in this folder: the runs that have no record yet, in their order. With FILE only if
    /// it still says the same experiment.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["seed", "out", "list", "again"])]
    resume: Option<PathBuf>,
    /// With --resume: go on although the build or the machine differs from the campaign's beginning.
    #[arg(long, requires = "resume")]
    force: bool,
    /// With --resume: measure the runs that failed again too; their errors stay in the raw files.
    #[arg(long, requires = "resume")]
    retry_failed: bool,
    /// Repeat the campaign in this folder from its manifest, in the same order, into --out [default: the first free one of
    /// DIR.1, DIR.2 …].
    #[arg(long, value_name = "DIR", conflicts_with_all = ["files", "list"])]
    again: Option<PathBuf>,
    /// With --again: another order and other traffic, from the clock, instead of the same.
    #[arg(long, requires = "again", conflicts_with = "seed")]
    new_seed: bool,
    /// Measure the reference of each pair twice a block, under two names: the difference the lab sees
    /// between identical things.
    #[arg(long)]
    control: bool,
}

impl Run {
    fn earlier(&self) -> Earlier {
        if self.missing { Earlier::Missing } else { Earlier::Again }
    }

    pub fn go(self) -> Result<ExitCode, LabError> {
        if self.list {
            return list::go(&self.files);
        }
        if let Some(earlier) = &self.again {
            let seed = match self.seed {
                Some(seed) => Seed::This(seed),
                None if self.new_seed => Seed::New,
                None => Seed::Same,
            };
            return rerun::go(earlier, self.out, seed);
        }
        let changes = Changes {
            quick: self.quick,
            runs: self.runs.map(usize::from),
            profile: self.profile.map(usize::from),
            only: self.only.clone(),
            control: self.control,
        };
        // a malformed file is refused before the first campaign begins
        let experiments = self.files.iter().map(|file| Experiment::load(file, &changes));
        let experiments = experiments.collect::<Result<Vec<_>, _>>()?;
        if let Some(into) = &self.into {
            return several::go(experiments, into, self.seed, self.earlier(), stop_flag()?);
        }
        if let (Some(dir), true) = (&self.resume, self.files.len() < 2) {
            return resume::go(dir, experiments.into_iter().next(), self.force, self.retry_failed);
        }
        let [experiment] = <[Experiment; 1]>::try_from(experiments).map_err(|all| {
            LabError::new(format!("{} experiments: --into DIR gives each a folder of its own", all.len()))
        })?;
        let dir = self.out.unwrap_or_else(|| PathBuf::from("out").join(&experiment.name));
        announce(&experiment, &dir);
        let done = campaign::run(CampaignSpec {
            experiment,
            seed: self.seed.unwrap_or_else(unix_ms),
            dir: &dir,
            argv: super::command_line(),
            repeats: None,
            stop: stop_flag()?,
            whole: None,
        })?;
        Ok(finish(&done, &dir))
    }
}

/// Set by Ctrl-C.
pub fn stop_flag() -> Result<&'static AtomicBool, LabError> {
    signal::stop_flag().map_err(|e| LabError::new(format!("signals: {e}; Ctrl-C would lose the report")))
}

/// What is about to be measured, how long it takes, and where it goes.
pub fn announce(experiment: &Experiment, dir: &Path) {
    eprintln!(
        "{}: {} configurations × {} blocks, about {} → {}",
        experiment.title,
        experiment.configurations.len(),
        experiment.runs,
        human(experiment.length()),
        dir.display()
    );
}

/// Prints what came of a campaign; the exit status says whether it is whole.
pub fn finish(done: &Done, dir: &Path) -> ExitCode {
    if let Some(moved) = &done.moved {
        eprintln!("the earlier campaign is kept in {}", moved.display());
    }
    let mut said = format!("{}\nreport: {}\n", show(&done.results), dir.join("report.html").display());
    if done.results.settings.is_some() {
        said += &format!("settings: {}\n", dir.join(report::settings::FILE).display());
    }
    // a reader that went away (a closed pipe) has lost only this: everything is in the folder
    super::print(&said);
    if let Some(interrupted) = interrupted(done, dir) {
        return interrupted;
    }
    let nothing = done.results.runs_measured == 0 && done.results.runs_planned > 0;
    if nothing { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Says how a campaign that lacks runs goes on; its exit status.
pub fn interrupted(done: &Done, dir: &Path) -> Option<ExitCode> {
    (done.results.runs_missing > 0).then(|| {
        eprintln!("interrupted: `weir-lab run --resume {}` goes on from here", dir.display());
        ExitCode::from(INTERRUPTED)
    })
}

/// The answer, the values, one ministat block a reference, and the warnings.
fn show(results: &Results) -> String {
    let mut out = format!("\n{}\n\n", results.answer);
    let mut rows = vec![
        ["configuration", "median", "min – max", report::beside_heading(results), "loss"].map(String::from),
    ];
    for outcome in &results.configurations {
        let dash = |text: Option<String>| text.unwrap_or("–".into());
        rows.push([
            outcome.configuration.name.clone(),
            dash(outcome.summary.map(|s| with_unit(&results.metric, s.median))),
            dash(outcome.summary.map(|s| range(&results.metric, &s))),
            dash(report::beside(results, outcome)),
            dash(outcome.loss_percent.map(|l| format!("{} %", digits(l.median)))),
        ]);
    }
    out += &aligned(&rows);
    out += &report::spd::text(results);
    for block in report::ministat_blocks(results).iter().take(3) {
        out += &format!("\n{block}");
    }
    if !results.warnings.is_empty() {
        out.push('\n');
    }
    for warning in results.warnings.iter().take(WARNINGS) {
        let remedy = warning.remedy.as_deref().unwrap_or_default();
        out += &format!("! {} → {remedy}\n", warning.sentence());
    }
    if let Some(more) = results.warnings.len().checked_sub(WARNINGS).filter(|&n| n > 0) {
        out += &format!("! and {more} more warnings in the report\n");
    }
    out
}

/// Columns as wide as their widest cell, the first to the left, values to the right.
pub(super) fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |i: usize| rows.iter().map(|r| r[i].chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for row in rows {
        for (i, cell) in row.iter().enumerate() {
            let width = width(i);
            out += &if i == 0 { format!("{cell:<width$}") } else { format!("   {cell:>width$}") };
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_line_up() {
        let rows = [["a", "1"], ["long", "100"]].map(|r| r.map(String::from));
        assert_eq!(super::aligned(&rows), "a        1\nlong   100\n");
    }
}
