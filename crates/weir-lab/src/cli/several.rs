//! Several experiments one after another, each into a folder of its own: `<date>-<machine>-<experiment>`.
//!
//! Promises: the time left is that of all of them; an interrupt ends the campaign under way with its report and says
//! which were not begun; one that fails leaves the others to be measured. With `Missing`, a campaign that the folder holds of
//! this commit is not measured again but gone on with, if a run of it is missing.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::run::{INTERRUPTED, announce, interrupted};
use crate::build::Build;
use crate::campaign::{self, CampaignSpec, Done, Resume};
use crate::experiment::Experiment;
use crate::machine::{Machine, unix_ms, utc};
use crate::manifest::Manifest;
use crate::model::LabError;
use crate::progress::{Whole, human};

/// Words of processors' names that tell nothing apart.
const PLAIN: [&str; 16] = [
    "intel",
    "amd",
    "arm",
    "r",
    "tm",
    "c",
    "core",
    "cores",
    "processor",
    "cpu",
    "common",
    "kvm",
    "qemu",
    "virtual",
    "genuine",
    "genuineintel",
];

/// What becomes of experiments whose campaign of this commit is there already.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Earlier {
    /// Kept under a new name; measured again.
    Again,
    /// Gone on with where a run is missing, else left as it is.
    Missing,
}

pub fn go(
    experiments: Vec<Experiment>,
    into: &Path,
    seed: Option<u64>,
    earlier: Earlier,
    stop: &AtomicBool,
) -> Result<ExitCode, LabError> {
    let lengths: Vec<Duration> = experiments.iter().map(Experiment::length).collect();
    let (of, begun) = (experiments.len(), Instant::now());
    eprintln!("{of} experiments, about {} and what setting up takes", human(lengths.iter().sum()));
    let machine = word(&Machine::observe());
    let mut whole_or_not = ExitCode::SUCCESS;
    for (i, experiment) in experiments.into_iter().enumerate() {
        let name = experiment.name.clone();
        if stop.load(Ordering::Acquire) {
            eprintln!("not begun: {name}");
            whole_or_not = ExitCode::from(INTERRUPTED);
            continue;
        }
        if let Some(begun) = (earlier == Earlier::Missing).then(|| campaign_of(&name, into)).flatten() {
            eprintln!("{name}: {} is of this commit", begun.display());
            match gone_on_with(&begun, &experiment, stop) {
                Ok(done) => {
                    whole_or_not = said(&name, &done, &begun).unwrap_or(whole_or_not);
                    continue;
                }
                Err(why) => eprintln!("{why}; {name} is measured anew"),
            }
        }
        let day = utc(unix_ms()).split(' ').next().unwrap_or_default().to_string();
        let dir = into.join(format!("{day}-{machine}-{name}"));
        let whole = Whole {
            place: i + 1,
            of,
            promised: lengths[..i].iter().sum(),
            spent: begun.elapsed(),
            own: lengths[i],
            later: lengths[i + 1..].iter().sum(),
        };
        announce(&experiment, &dir);
        let (seed, argv) = (seed.unwrap_or_else(unix_ms), super::command_line());
        let plan =
            CampaignSpec { experiment, seed, dir: &dir, argv, repeats: None, stop, whole: Some(whole) };
        match campaign::run(plan) {
            Ok(done) => whole_or_not = said(&name, &done, &dir).unwrap_or(whole_or_not),
            Err(error) => {
                eprintln!("weir-lab: {name}: {error}");
                whole_or_not = ExitCode::FAILURE;
            }
        }
    }
    eprintln!("{} in all", human(begun.elapsed()));
    Ok(whole_or_not)
}

/// Prints what came of a campaign; the exit status where it is not whole.
fn said(name: &str, done: &Done, dir: &Path) -> Option<ExitCode> {
    let report = dir.join("report.html");
    super::print(&format!("{name}: {}\nreport: {}\n\n", done.results.answer, report.display()));
    interrupted(done, dir)
}

/// The newest campaign of this experiment that a build of this commit began. What differs besides, such as the bytes of a program, is for
/// `campaign::resume` to refuse.
fn campaign_of(name: &str, into: &Path) -> Option<PathBuf> {
    let commit = Some(Build::own().commit).filter(|commit| !commit.is_empty())?;
    let folders = std::fs::read_dir(into).ok()?.flatten().map(|entry| entry.path());
    let manifests = folders.filter_map(|dir| Some((Manifest::read(&dir).ok()?, dir)));
    let of_this = manifests.filter(|(m, _)| m.experiment.name == name && m.build.commit == commit);
    of_this.max_by_key(|(m, _)| m.started_unix_ms).map(|(_, dir)| dir)
}

fn gone_on_with(dir: &Path, experiment: &Experiment, stop: &AtomicBool) -> Result<Done, LabError> {
    let (experiment, argv) = (Some(experiment.clone()), super::command_line());
    campaign::resume(Resume { dir, experiment, force: false, retry_failed: false, argv, stop })
}

/// A machine as folders name it: `xeon-2cpu`.
fn word(machine: &Machine) -> String {
    let cpu = machine.cpu.to_lowercase();
    let mut words = cpu.split(|c: char| !c.is_ascii_alphanumeric());
    let model = words.find(|w| w.starts_with(|c: char| c.is_ascii_lowercase()) && !PLAIN.contains(w));
    format!("{}-{}cpu", model.unwrap_or("machine"), machine.threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_named_by_their_model_and_its_threads() {
        for (cpu, named) in [
            ("Intel(R) Xeon(R) Processor @ 2.30GHz", "xeon-2cpu"),
            ("AMD EPYC 7B13", "epyc-2cpu"),
            ("Intel(R) Core(TM) i7-9700 CPU @ 3.00GHz", "i7-2cpu"),
            ("", "machine-2cpu"),
        ] {
            let machine = Machine { cpu: cpu.into(), threads: 2, ..Machine::default() };
            assert_eq!(word(&machine), named);
        }
    }
}
