//! `weir-lab gate`: whether a change made a program worse, as an exit code.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use weir_stats::gate::{Answer, Block, Question};

use super::argument::ArgumentError;
use super::print;
use super::run::{INTERRUPTED, stop_flag};
use crate::gate::command::{Command, Reading};
use crate::gate::revisions::{FOLDER, Tree};
use crate::gate::{self, GateSpec, Watcher, better, report};
use crate::machine::unix_ms;
use crate::model::LabError;
use crate::progress::human;

const AFTER: &str = "\
Examples:
  weir-lab gate -- ./old --packets 1000000 -- ./new --packets 1000000
  weir-lab gate --value mpps -- ./bench-old -- ./bench-new     what they print instead of how long they take
  weir-lab gate --base main --prepare 'cargo build --release' -- ./target/release/bench
  weir-lab gate --margin 1 --blocks 100 -- make -C old -- make -C new

Exit status, for CI: 0 equivalent or better, 1 worse, 2 neither is shown (underpowered, or the baseline differs
from itself), 3 no answer: an error, 130 interrupted. The last line of standard output has the answer; the folder
of --out has report.html, report.md and the values.

How it decides: blocks of baseline, baseline again and candidate, in random order; after 6, 9, 13, … blocks the
candidate's ratio is looked at, and measuring ends when the answer is known. `worse` is said of a change that does not
exist at most once in 20 gates, `equivalent or better` of one of the margin or more at most once in 20; how often each
was in simulations stands in docs/statistics.md.";

/// Exit codes beside 0.
const WORSE: u8 = 1;
const UNDERPOWERED: u8 = 2;
const FAILED: u8 = 3;
/// Chance of each wrong answer.
const ALPHA: f64 = 0.05;

#[derive(Args)]
#[command(after_help = AFTER)]
pub struct Gate {
    /// Two commands with `--` between them, the baseline first; one command with --base.
    #[arg(last = true, required = true, num_args = 1.., value_name = "COMMAND", allow_hyphen_values = true)]
    commands: Vec<String>,
    /// Worse by less than this is let pass.
    #[arg(long, value_name = "PERCENT", default_value = "2", value_parser = margin)]
    margin: f64,
    /// Blocks at most; more of them decide closer cases.
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u16).range(6..=1000))]
    blocks: u16,
    /// The number to compare: the one behind the last NAME in standard output [default: the run's time].
    #[arg(long, value_name = "NAME", value_parser = name)]
    value: Option<String>,
    /// With --value: less is better. Times are always better when less.
    #[arg(long, requires = "value")]
    lower: bool,
    /// Shorter commands are repeated until a value takes this long, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 100)]
    shortest: u64,
    /// The baseline is this revision of the repository, checked out beside the candidate's.
    #[arg(long, value_name = "REVISION")]
    base: Option<String>,
    /// With --base: the candidate's revision.
    #[arg(long, value_name = "REVISION", default_value = "HEAD", requires = "base")]
    candidate: String,
    /// With --base: the git repository.
    #[arg(long, value_name = "DIR", default_value = ".", requires = "base")]
    repository: PathBuf,
    /// With --base: run by `sh -c` in each tree before measuring, such as 'cargo build --release'.
    #[arg(long, value_name = "SCRIPT", requires = "base")]
    prepare: Option<String>,
    /// Decides the order within blocks [default: from the clock].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Folder for report and values; an earlier gate there is kept under a new name.
    #[arg(long, value_name = "DIR", default_value = "out/gate")]
    out: PathBuf,
}

fn margin(text: &str) -> Result<f64, ArgumentError> {
    let percent = text.parse::<f64>().ok().filter(|p| *p > 0.0 && *p < 100.0);
    percent.ok_or(ArgumentError::Margin)
}

/// It names a file in `raw/`.
fn name(text: &str) -> Result<String, ArgumentError> {
    let usable = !text.is_empty() && !text.starts_with('.') && !text.contains(['/', '\0', '\n']);
    if usable { Ok(text.into()) } else { Err(ArgumentError::NoValueName) }
}

impl Gate {
    /// Errors have an exit code of their own: 1 means worse.
    pub fn go(self) -> ExitCode {
        self.decide().unwrap_or_else(|error| {
            eprintln!("weir-lab: {error}");
            ExitCode::from(FAILED)
        })
    }

    fn decide(self) -> Result<ExitCode, LabError> {
        let stop = stop_flag()?;
        let asked = self.asked()?;
        if let Some(kept) = gate::make(&self.out)? {
            eprintln!("the earlier gate is kept in {}", kept.display());
        }
        // held until the end: the trees go with them
        let trees = match (&self.base, &asked) {
            (Some(base), _) => match self.trees(base, stop)? {
                Some(trees) => Some(trees),
                None => return Ok(ExitCode::from(INTERRUPTED)),
            },
            (None, _) => None,
        };
        let [baseline, candidate] = match (&trees, asked) {
            (Some(trees), Asked::One(argv)) => [trees[0].command(&argv), trees[1].command(&argv)],
            (_, Asked::Two(baseline, candidate)) => [baseline, candidate].map(Command::new),
            (None, Asked::One(argv)) => [Command::new(argv.clone()), Command::new(argv)],
        };
        let reading = match self.value {
            Some(name) => Reading::Printed { name },
            None => Reading::Time,
        };
        let question =
            Question::new(better(&reading, self.lower), self.margin, ALPHA, usize::from(self.blocks));
        let plan = GateSpec::new(baseline, candidate, reading, question, self.seed.unwrap_or_else(unix_ms));
        let mut bar = Bar::new(&plan);
        let ended = gate::run(plan, Duration::from_millis(self.shortest), &self.out, stop, &mut bar);
        bar.finish();
        let ended = ended?;
        report::write(&ended, &self.out)?;
        print(&format!("{}; {}\n", report::line(&ended), self.out.join("report.html").display()));
        Ok(ExitCode::from(match ended.outcome.map(|o| o.answer) {
            None => INTERRUPTED,
            Some(Answer::NotWorse) => 0,
            Some(Answer::Worse) => WORSE,
            Some(Answer::NotShown) => UNDERPOWERED,
        }))
    }

    /// The commands behind `--`.
    fn asked(&self) -> Result<Asked, LabError> {
        let sides: Vec<&[String]> = self.commands.split(|word| word == "--").collect();
        let none = |side: &&[String]| side.is_empty();
        match (self.base.is_some(), sides.as_slice()) {
            (_, sides) if sides.iter().any(none) => {
                Err(LabError::new("gate: an empty command, expected a program behind each `--`".into()))
            }
            (true, [one]) => Ok(Asked::One(one.to_vec())),
            (false, [baseline, candidate]) => Ok(Asked::Two(baseline.to_vec(), candidate.to_vec())),
            (true, sides) => Err(LabError::new(format!(
                "gate: {} commands with --base, expected one: it runs in both trees",
                sides.len()
            ))),
            (false, sides) => Err(LabError::new(format!(
                "gate: {} command{}, expected two: `weir-lab gate -- BASELINE -- CANDIDATE`, or one with --base REVISION",
                sides.len(),
                if sides.len() == 1 { "" } else { "s" }
            ))),
        }
    }

    /// Both trees, prepared. `None` when interrupted.
    fn trees(&self, base: &str, stop: &AtomicBool) -> Result<Option<[Tree; 2]>, LabError> {
        let tree = |revision: &str, name: &str| Tree::checkout(&self.repository, revision, &self.out, name);
        let trees = [tree(base, "baseline")?, tree(&self.candidate, "candidate")?];
        if let Some(script) = &self.prepare {
            for (tree, side) in trees.iter().zip(["baseline", "candidate"]) {
                eprintln!("{side}: `{script}` in {}", self.out.join(FOLDER).join(side).display());
                let begun = Instant::now();
                if !tree.prepare(script, side, stop)? {
                    return Ok(None);
                }
                eprintln!("{side}: prepared in {}", human(begun.elapsed()));
            }
        }
        Ok(Some(trees))
    }
}

enum Asked {
    One(Vec<String>),
    Two(Vec<String>, Vec<String>),
}

/// Blocks so far and what they say: a bar on a terminal, a line a block elsewhere.
struct Bar {
    bar: Option<ProgressBar>,
    most: usize,
    begun: Instant,
}

impl Bar {
    fn new(plan: &GateSpec) -> Bar {
        let most = plan.question.most();
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(most as u64);
            if let Ok(style) =
                ProgressStyle::with_template("{bar:32.cyan/dim} {pos}/{len} blocks at most · {msg}")
            {
                bar.set_style(style.progress_chars("━╸─"));
            }
            bar.set_message("measuring the first");
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Bar { bar, most, begun: Instant::now() }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Watcher for Bar {
    fn block(&mut self, plan: &GateSpec, blocks: &[Block]) {
        let n = blocks.len();
        let left = self.begun.elapsed().mul_f64((self.most - n.min(self.most)) as f64 / n.max(1) as f64);
        let said = plan.question.so_far(blocks).map_or("one block".into(), |o| {
            let w = o.worse_percent;
            format!("worse by {:+.2} % [{:+.2}, {:+.2}]", w.estimate, w.low, w.high)
        });
        let left = format!("{said} · at most {} left", human(left));
        match &self.bar {
            Some(bar) => {
                bar.set_position(n as u64);
                bar.set_message(left);
            }
            None => eprintln!("[{n:>3}/{}] {left}", self.most),
        }
    }
}
