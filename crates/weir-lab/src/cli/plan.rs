//! `weir-lab plan`: how many runs an experiment needs, from a pilot.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::argument::ArgumentError;
use super::run::aligned;
use crate::experiment::{Experiment, Metric};
use crate::format::{digits, with_unit};
use crate::manifest::Manifest;
use crate::model::LabError;
use crate::progress::human;
use crate::result::derive;
use crate::store::read_runs;
use weir_stats::compare::ALPHA;
use weir_stats::ministat::read::{Columns, values};
use weir_stats::number::general;
use weir_stats::paired::Series;
use weir_stats::pilot::{Needed, Pilot, SURE, pilot};
use weir_stats::power::{Goal, MOST_RUNS, detectable};
use weir_stats::{Analysis, Summary};

const AFTER: &str = "\
Examples:
  weir-lab run labs/demo.toml --runs 6 --out out/pilot
  weir-lab plan out/pilot                        runs to find the experiment's margin
  weir-lab plan out/pilot --effect 0.5 --power 0.9
  weir-lab plan before.pps after.pps --effect 2  from values of your own, one a line

The pilot's deviation is itself an estimate: the columns `sure` take the deviation that the true one
exceeds in one pilot of five. docs/statistics.md explains pairing.";

/// Effects every table shows, in percent.
const EFFECTS: [f64; 5] = [0.5, 1.0, 2.0, 5.0, 10.0];

#[derive(Args)]
#[command(after_help = AFTER)]
pub struct Plan {
    /// Folder of a campaign, or files with a value a line.
    #[arg(required = true, value_name = "PILOT")]
    pilots: Vec<PathBuf>,
    /// Difference that must be found, in percent of the mean [default: the campaign's margin, or 1].
    #[arg(long, value_name = "PERCENT", value_parser = within::<0, 100>)]
    effect: Option<f64>,
    /// Chance to find it.
    #[arg(long, default_value_t = 0.8, value_parser = within::<0, 1>)]
    power: f64,
    /// Chance of a false difference, shared by all comparisons.
    #[arg(long, default_value_t = ALPHA, value_parser = within::<0, 1>)]
    alpha: f64,
    /// Configurations of the experiment planned [default: the pilot's].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..))]
    configurations: Option<u16>,
    /// Print one JSON document, for programs.
    #[arg(long)]
    json: bool,
}

/// A number between two others, neither included.
fn within<const LOW: i32, const HIGH: i32>(text: &str) -> Result<f64, ArgumentError> {
    let expected = ArgumentError::Within { low: LOW, high: HIGH };
    let Ok(number) = text.parse::<f64>() else { return Err(expected) };
    if f64::from(LOW) < number && number < f64::from(HIGH) { Ok(number) } else { Err(expected) }
}

/// A configuration of the pilot.
#[derive(Serialize)]
struct Set {
    name: String,
    values: Vec<f64>,
    blocks: Vec<usize>,
}

/// What the pilot's files hold.
struct Evidence {
    sets: Vec<Set>,
    metric: Option<Metric>,
    margin_percent: Option<f64>,
    /// Configurations and comparisons of the campaign.
    size: Option<(usize, usize)>,
    seconds_a_run: Option<f64>,
}

/// The answer, as `--json` prints it.
#[derive(Serialize)]
struct Estimate {
    configurations: usize,
    comparisons: usize,
    alpha: f64,
    power: f64,
    pilot: Pilot,
    /// What the pilot's own number of runs finds, in percent: unpaired, paired.
    detectable_percent: (f64, Option<f64>),
    seconds_a_run: Option<f64>,
    effects: Vec<Needed>,
    advice: Advice,
}

#[derive(Clone, Serialize)]
struct Advice {
    effect_percent: f64,
    analysis: Analysis,
    /// Blocks; `None` beyond what a day holds.
    runs: Option<usize>,
    /// The number of runs for the upper bound of the deviation.
    runs_sure: Option<usize>,
    seconds_sure: Option<f64>,
}

impl Plan {
    pub fn go(self) -> Result<ExitCode, LabError> {
        let evidence = read(&self.pilots)?;
        let estimate = self.estimate(&evidence)?;
        let text = if self.json {
            serde_json::to_string_pretty(&estimate).map_err(|e| LabError::new(format!("plan: {e}")))? + "\n"
        } else {
            show(&evidence, &estimate)
        };
        // a reader that went away has lost only this
        let _ = std::io::stdout().write_all(text.as_bytes());
        Ok(ExitCode::SUCCESS)
    }

    fn estimate(&self, evidence: &Evidence) -> Result<Estimate, LabError> {
        let sets: Vec<Series<'_>> =
            evidence.sets.iter().map(|s| Series::in_blocks(&s.name, &s.values, &s.blocks)).collect();
        let shown = self.pilots[0].display();
        let pilot = pilot(&sets).ok_or_else(|| {
            LabError::new(format!(
                "{shown}: no configuration with two runs, from which no spread follows: run a pilot of five"
            ))
        })?;
        let given = self.configurations.map(usize::from).map(|n| (n, n - 1));
        let files = evidence.sets.len().max(2);
        let (configurations, comparisons) = given.or(evidence.size).unwrap_or((files, files - 1));
        let goal = Goal { alpha: self.alpha / comparisons.max(1) as f64, power: self.power };
        let effect = self.effect.or(evidence.margin_percent).unwrap_or(1.0);
        let mut effects: Vec<f64> = EFFECTS.to_vec();
        effects.push(effect);
        effects.sort_by(f64::total_cmp);
        effects.dedup();
        let seconds = evidence.seconds_a_run.map(|s| s * configurations as f64);
        Ok(Estimate {
            configurations,
            comparisons,
            alpha: self.alpha,
            power: self.power,
            detectable_percent: seen(&pilot, &sets, goal),
            seconds_a_run: evidence.seconds_a_run,
            effects: effects.into_iter().map(|e| pilot.needed(e, goal)).collect(),
            advice: advice(&pilot.needed(effect, goal), seconds),
            pilot,
        })
    }
}

/// What the pilot itself could find, unpaired and paired.
fn seen(pilot: &Pilot, sets: &[Series<'_>], goal: Goal) -> (f64, Option<f64>) {
    use weir_stats::power::Design::{Paired, Unpaired};
    let runs = sets.iter().map(|s| s.values.len()).filter(|n| *n > 1).min().unwrap_or(2);
    let of = |design: weir_stats::power::Design, sd: f64, runs: usize| {
        let (standard_error, df) = design.precision(sd, runs);
        detectable(standard_error, df, goal)
    };
    let within = pilot.within_blocks;
    (of(Unpaired, pilot.run.percent, runs), within.map(|w| of(Paired, w.percent * 2f64.sqrt(), pilot.blocks)))
}

/// The analysis that needs fewer runs when the pilot was lucky, `seconds` being those of a block.
fn advice(needed: &Needed, seconds: Option<f64>) -> Advice {
    let most = |runs: Option<usize>| runs.unwrap_or(usize::MAX);
    let pair = most(needed.paired_sure) < most(needed.unpaired_sure);
    let (analysis, runs, runs_sure) = match pair {
        true => (Analysis::Paired, needed.paired, needed.paired_sure),
        false => (Analysis::Welch, needed.unpaired, needed.unpaired_sure),
    };
    let seconds_sure = seconds.zip(runs_sure).map(|(s, n)| s * n as f64);
    Advice { effect_percent: needed.effect_percent, analysis, runs, runs_sure, seconds_sure }
}

fn read(pilots: &[PathBuf]) -> Result<Evidence, LabError> {
    match pilots {
        [one] if one.is_dir() => campaign(one),
        files => match files.iter().find(|f| f.is_dir()) {
            Some(folder) => Err(LabError::new(format!(
                "{}: got a campaign among {} pilots, expected one campaign or files of values: plan from one at a time",
                folder.display(),
                files.len()
            ))),
            None => plain(files),
        },
    }
}

fn campaign(dir: &Path) -> Result<Evidence, LabError> {
    let (manifest, results) = derive(dir)?;
    let suts = results.configurations.iter().filter(|o| !o.configuration.is_baseline());
    let sets = suts.map(|o| Set {
        name: o.configuration.name.clone(),
        values: o.values.clone(),
        blocks: o.blocks.clone(),
    });
    let e = &manifest.experiment;
    let comparisons = results.comparisons.len().max(1);
    Ok(Evidence {
        sets: sets.collect(),
        metric: Some(e.metric.clone()),
        margin_percent: Some(e.margin_percent),
        size: Some((results.configurations.len(), comparisons)),
        seconds_a_run: seconds_a_run(dir, &manifest)?,
    })
}

/// Median time from one run's start to the next, setting up included, but no less than a run's own length: runs in
/// slices begin together. `None` for a single run.
fn seconds_a_run(dir: &Path, manifest: &Manifest) -> Result<Option<f64>, LabError> {
    let runs = read_runs(dir, manifest)?.runs;
    let mut starts: Vec<u64> = runs.values().flatten().map(|r| r.started_unix_ms).collect();
    starts.sort_unstable();
    let steps: Vec<f64> = starts.windows(2).map(|w| (w[1] - w[0]) as f64 / 1000.0).collect();
    let measured = Experiment { profile: 0, ..manifest.experiment.clone() };
    let runs = (measured.configurations.len() * measured.runs).max(1) as f64;
    let own = measured.length().as_secs_f64() / runs;
    Ok(Summary::of(&steps).map(|s| s.median.max(own)))
}

fn plain(files: &[PathBuf]) -> Result<Evidence, LabError> {
    let set = |path: &PathBuf| {
        let shown = path.display();
        let text = std::fs::read(path).map_err(|e| {
            LabError::new(format!("{shown}: {e}; name a campaign's folder or a file of values"))
        })?;
        let values = values(&text, &Columns::default()).map_err(|e| {
            LabError::new(format!(
                "{shown}:{}: got \"{}\", expected a value a line: remove it",
                e.line, e.got
            ))
        })?;
        Ok(Set { name: shown.to_string(), values, blocks: Vec::new() })
    };
    let sets: Vec<Set> = files.iter().map(set).collect::<Result<_, LabError>>()?;
    Ok(Evidence { sets, metric: None, margin_percent: None, size: None, seconds_a_run: None })
}

fn show(evidence: &Evidence, estimate: &Estimate) -> String {
    let mut rows = vec![["configuration", "runs", "mean", "deviation"].map(String::from)];
    for set in &evidence.sets {
        let Some(s) = Summary::of(&set.values) else { continue };
        rows.push([
            set.name.clone(),
            s.n.to_string(),
            evidence.metric.as_ref().map_or(digits(s.mean), |m| with_unit(m, s.mean)),
            s.variation().map_or("–".into(), |v| percent(v * 100.0)),
        ]);
    }
    let mut out = aligned(&rows);
    out += &format!("\n{}", spread(estimate));
    out += &format!(
        "\nBlocks needed to find an effect in {} of 100 campaigns, {} at {}:\n\n",
        general(estimate.power * 100.0, 3),
        if estimate.comparisons == 1 {
            "one comparison".into()
        } else {
            format!("{} comparisons sharing an error", estimate.comparisons)
        },
        percent(estimate.alpha * 100.0)
    );
    out += &aligned(&effects(estimate));
    out + &format!("\n{}\n", sentence(estimate))
}

fn percent(value: f64) -> String {
    format!("{} %", general(value, 3))
}

fn spread(estimate: &Estimate) -> String {
    let p = &estimate.pilot;
    let sure = format!("sure ({:.0} %)", SURE * 100.0);
    let mut rows = vec![["deviation", "estimate", sure.as_str()].map(String::from)];
    rows.push(["of a run".into(), percent(p.run.percent), percent(p.run.upper_percent)]);
    if let (Some(within), Some(between)) = (p.within_blocks, p.between_blocks_percent) {
        rows.push(["  between blocks".into(), percent(between), "–".into()]);
        rows.push(["  within a block".into(), percent(within.percent), percent(within.upper_percent)]);
    }
    aligned(&rows)
}

fn effects(estimate: &Estimate) -> Vec<[String; 6]> {
    let runs = |n: Option<usize>| n.map_or(format!("> {MOST_RUNS}"), |n| n.to_string());
    let paired =
        |n: Option<usize>| if estimate.pilot.within_blocks.is_some() { runs(n) } else { "–".into() };
    let mut rows = vec![["effect", "welch", "sure", "paired", "sure", "time, sure"].map(String::from)];
    for needed in &estimate.effects {
        let seconds = estimate.seconds_a_run.map(|s| s * estimate.configurations as f64);
        let best = advice(needed, seconds);
        rows.push([
            percent(needed.effect_percent),
            runs(needed.unpaired),
            runs(needed.unpaired_sure),
            paired(needed.paired),
            paired(needed.paired_sure),
            best.seconds_sure.map_or("–".into(), |s| human(Duration::from_secs_f64(s))),
        ]);
    }
    rows
}

/// The advice in words.
fn sentence(estimate: &Estimate) -> String {
    let Advice { effect_percent, analysis, runs, runs_sure, seconds_sure } = estimate.advice.clone();
    let name = match analysis {
        Analysis::Welch => "welch",
        Analysis::Paired => "paired",
        Analysis::Rounds => "rounds",
    };
    let (unpaired, paired) = estimate.detectable_percent;
    let seen = match paired {
        Some(paired) => format!("{} unpaired, {} paired", percent(unpaired), percent(paired)),
        None => percent(unpaired),
    };
    let first = match (runs, runs_sure) {
        (Some(runs), Some(sure)) => {
            let time = seconds_sure.map_or(String::new(), |s| {
                format!(
                    ", {} for {} configurations",
                    human(Duration::from_secs_f64(s)),
                    estimate.configurations
                )
            });
            format!(
                "For {effect_percent} %: declare `analysis = \"{name}\"` and `runs = {sure}`{time}; {runs} suffice if the pilot was no luckier than most."
            )
        }
        _ => format!(
            "{effect_percent} % is out of reach: more than {MOST_RUNS} blocks. Lengthen `window`, calm the machine, or ask for a larger effect."
        ),
    };
    let unknown = match estimate.pilot.within_blocks {
        Some(_) => "",
        None => " Nothing says which runs shared a block: pairing is not planned.",
    };
    format!("{first}\nThe pilot's own runs find {seen}.{unknown}")
}
