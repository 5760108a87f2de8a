//! Two commands, or two revisions of a repository, against each other: is the second worse?
//!
//! ```text
//! block: baseline, again, candidate in random order ─► raw/ ─► Question::ask ─► next block, or the answer
//! ```
//!
//! Promises: a block is on disk before the next begins; the answer follows from `gate.json` and `raw/` alone.
//! Refuses: a command that fails, prints no value, or a value that is not above 0: such a gate has no answer.

pub mod command;
pub mod report;
pub mod revisions;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_stats::gate::{Better, Block, Outcome, Question};
use weir_stats::random::Random;

use crate::machine::{Machine, unix_ms};
use crate::model::LabError;
use crate::store::{append_line, free_name, write_whole};
use command::{Command, Reading};

/// Names of a block's values, and of their files in `raw/`.
pub const SIDES: [&str; 3] = ["baseline", "baseline~again", "candidate"];
/// The most runs that are timed as one.
const MOST_REPEATS: u32 = 10_000;

/// What is asked and of whom, as `gate.json` keeps it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GateSpec {
    pub format: u32,
    pub baseline: Command,
    pub candidate: Command,
    pub reading: Reading,
    pub question: Question,
    /// Decides the order within each block.
    pub seed: u64,
    /// So many runs are timed as one value.
    pub repeats: u32,
    pub started_unix_ms: u64,
    pub machine: Machine,
}

impl GateSpec {
    pub fn new(
        baseline: Command,
        candidate: Command,
        reading: Reading,
        question: Question,
        seed: u64,
    ) -> GateSpec {
        GateSpec {
            format: 1,
            baseline,
            candidate,
            reading,
            question,
            seed,
            repeats: 1,
            started_unix_ms: unix_ms(),
            machine: Machine::observe(),
        }
    }

    fn side(&self, side: usize) -> &Command {
        if side == 2 { &self.candidate } else { &self.baseline }
    }
}

/// How a gate ended.
pub struct Ended {
    pub plan: GateSpec,
    pub blocks: Vec<Block>,
    /// `None` when it was interrupted before the first look.
    pub outcome: Option<Outcome>,
    pub interrupted: bool,
}

/// Somebody who watches.
pub trait Watcher {
    /// A block is measured; this is what all of them say so far.
    fn block(&mut self, plan: &GateSpec, blocks: &[Block]);
}

/// Runs both commands until the question is answered, at most [`Question::most`] blocks, and keeps them in `dir`, which
/// [`make`] made.
pub fn run(
    mut plan: GateSpec,
    shortest: Duration,
    dir: &Path,
    stop: &AtomicBool,
    watcher: &mut dyn Watcher,
) -> Result<Ended, LabError> {
    plan.repeats = warm_up(&plan, shortest, stop)?;
    let text = serde_json::to_string_pretty(&plan).map_err(|e| LabError::new(format!("gate.json: {e}")))?;
    write_whole(&dir.join("gate.json"), &(text + "\n"))?;
    let mut random = Random::for_part(plan.seed, "order");
    let mut blocks = Vec::new();
    let mut outcome = None;
    while outcome.is_none() {
        let Some(block) = block(&plan, &mut random, stop)? else { break };
        keep(dir, &plan, &block)?;
        blocks.push(block);
        outcome = plan.question.ask(&blocks);
        watcher.block(&plan, &blocks);
    }
    let interrupted = outcome.is_none();
    Ok(Ended { plan, blocks, outcome, interrupted })
}

/// Makes the folder of a gate; one of an earlier gate keeps its evidence under another name, which is returned.
pub fn make(dir: &Path) -> Result<Option<PathBuf>, LabError> {
    let failed = |e: std::io::Error| LabError::new(format!("{}: {e}; choose another --out", dir.display()));
    let mut moved = None;
    if dir.join("gate.json").exists() {
        let kept = free_name(dir);
        std::fs::rename(dir, &kept).map_err(failed)?;
        moved = Some(kept);
    } else if holds_others(dir) {
        return Err(LabError::new(format!(
            "{}: holds files but no gate.json, expected a new folder or an earlier gate: choose another --out",
            dir.display()
        )));
    }
    std::fs::create_dir_all(dir.join("raw")).map_err(failed)?;
    Ok(moved)
}

/// Whether it has more in it than a gate that failed before its first block leaves.
fn holds_others(dir: &Path) -> bool {
    let filled = |e: &std::fs::DirEntry| std::fs::read_dir(e.path()).is_ok_and(|mut d| d.next().is_some());
    let other = |e: &std::fs::DirEntry| e.file_name() != "raw" || filled(e);
    std::fs::read_dir(dir).is_ok_and(|entries| entries.flatten().any(|e| other(&e)))
}

/// Runs each command once, unmeasured, and says how many runs of them last as long as `shortest`.
fn warm_up(plan: &GateSpec, shortest: Duration, stop: &AtomicBool) -> Result<u32, LabError> {
    let mut fastest = f64::INFINITY;
    for side in [0, 2] {
        let Some(run) = plan.side(side).run(SIDES[side], stop)? else { return Ok(1) };
        plan.reading.value(&run).map_err(|e| plan.side(side).error(SIDES[side], &e))?;
        fastest = fastest.min(run.seconds);
    }
    let repeats = match plan.reading {
        Reading::Time => (shortest.as_secs_f64() / fastest.max(1e-6)).ceil(),
        Reading::Printed { .. } => 1.0,
    };
    Ok((repeats as u32).clamp(1, MOST_REPEATS))
}

/// One block; `None` when it was interrupted.
fn block(plan: &GateSpec, random: &mut Random, stop: &AtomicBool) -> Result<Option<Block>, LabError> {
    let mut order = [0, 1, 2];
    random.shuffle(&mut order);
    let mut values = [0.0; 3];
    for side in order {
        let mut sum = 0.0;
        for _ in 0..plan.repeats {
            if stop.load(Ordering::Acquire) {
                return Ok(None);
            }
            let Some(run) = plan.side(side).run(SIDES[side], stop)? else { return Ok(None) };
            sum += plan.reading.value(&run).map_err(|e| plan.side(side).error(SIDES[side], &e))?;
        }
        values[side] = sum / f64::from(plan.repeats);
    }
    let [baseline, again, candidate] = values;
    Ok(Some(Block { baseline, again, candidate }))
}

fn keep(dir: &Path, plan: &GateSpec, block: &Block) -> Result<(), LabError> {
    let raw = dir.join("raw");
    for (name, value) in SIDES.into_iter().zip([block.baseline, block.again, block.candidate]) {
        append_line(&raw.join(format!("{name}.{}", plan.reading.unit())), &value.to_string())?;
    }
    Ok(())
}

/// Which direction of a value is better, unless it is told: less time, more of anything else.
pub fn better(reading: &Reading, lower: bool) -> Better {
    match reading {
        Reading::Time => Better::Lower,
        Reading::Printed { .. } if lower => Better::Lower,
        Reading::Printed { .. } => Better::Higher,
    }
}
