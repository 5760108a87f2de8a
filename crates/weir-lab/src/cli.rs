//! The command line: each flag beside its help.

mod answers;
mod argument;
mod breakdown;
mod cachesim;
mod compare;
mod diff;
pub mod doctor;
mod flame;
mod gate;
mod history;
mod list;
mod ministat;
mod new;
mod plan;
mod profile;
mod report;
mod rerun;
mod resume;
mod run;
mod several;
mod verify;

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::agent;
use crate::forwarder;
use crate::model::LabError;
use crate::testbed::memory::process;

const AFTER: &str = "\
Examples:
  weir-lab run labs --list                   which experiments there are
  weir-lab new mine                          an experiment of your own to start from: a against b
  weir-lab run labs/demo.toml                measure; the report opens in any browser
  weir-lab run labs/demo.toml --quick        the same in seconds, with smoke values
  weir-lab run labs/forwarding-frame-size.toml --only '*-64' --runs 20
  weir-lab run labs/*.toml --into runs       one after the other, time left over all of them
  weir-lab plan out/demo                     how many runs it would take to see less
  weir-lab run --resume out/demo             go on after Ctrl-C, a crash or a power cut
  weir-lab run --again out/demo              the same experiment once more, from its manifest
  weir-lab report out/demo                   derive every value again from the raw runs
  weir-lab report --documents README.md      what the newest campaigns say, into a document
  weir-lab profile record --cpu 1 --svg out.svg  where a running machine spends its time
  weir-lab gate -- ./old -- ./new            is it worse? 0 no, 1 yes, 2 not shown; stops when it knows
  weir-lab compare out/demo out/demo.1       what changed from one campaign to another
  weir-lab history out                       every campaign there in time order, and what changed when
  weir-lab ministat -s before after          ministat's block of values of your own
  weir-lab verify results                    printed blocks against the raw data beside them
  weir-lab doctor                            what this machine can and cannot measure

Values of one campaign are comparable with each other: configurations run interleaved in randomised
blocks. Values of two campaigns are comparable as far as their manifests agree.";

/// Compares configurations of packet paths and proves what it says.
///
/// An experiment is a TOML file: what is compared, under which traffic, how often. Every run is on disk
/// before the next begins; every printed value follows from those files.
#[derive(Parser)]
#[command(name = "weir-lab", version, after_help = AFTER, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write an experiment of your own to start from: `a` against `b`, with comments.
    New(new::New),
    /// Run an experiment and write its report; go on with a campaign, or repeat it.
    Run(run::Run),
    /// Derive result.json, report.md and report.html again from manifest and raw runs; fill in documents.
    Report(report::Report),
    /// Say what this machine can and cannot measure, and how to fix it.
    Doctor {
        /// Print one JSON document, for programs.
        #[arg(long)]
        json: bool,
    },
    /// Compare sets of values as ministat(1) does, byte for byte.
    Ministat(ministat::Ministat),
    /// Check printed ministat blocks against the raw data beside them; exits with 1 when one differs.
    Verify(verify::Verify),
    /// Record, draw and compare where CPU time goes.
    #[command(subcommand)]
    Profile(Profile),
    /// Say whether a change made a program worse: two commands or two revisions, for CI jobs.
    Gate(gate::Gate),
    /// Compare campaigns: each configuration they share, old to new, and what else differs.
    Compare(compare::Compare),
    /// Show every campaign under a folder in time order, and which of them changed a level.
    History(history::History),
    /// Serve a lab on another host: JSON lines on standard input and output. Started by `weir-lab run` over ssh.
    #[command(hide = true)]
    Agent,
    /// Run the memory topology for a lab of another build: JSON lines. Started by `weir-lab run` for the key `build`.
    #[command(hide = true)]
    Worker,
    /// Carry bytes from every connection to the next one: the SUT `tcp-forwarder`. Started by `weir-lab run`.
    #[command(hide = true)]
    Forwarder {
        /// Where it listens.
        address: SocketAddr,
    },
    /// Write the manual pages into a folder. Packages are made with it.
    #[command(hide = true)]
    Man {
        /// Where they go, as `weir-lab.1` and one page for each command.
        folder: PathBuf,
    },
    /// Say how many runs an experiment needs, from a pilot.
    Plan(plan::Plan),
    /// Print a completion script for a shell.
    Completions {
        /// The shell that reads the script.
        shell: clap_complete::Shell,
    },
    /// Print the JSON Schema of experiments, for editors: `#:schema FILE` in a file's first line names it.
    Schema,
}

/// What is done with profiles.
#[derive(Subcommand)]
enum Profile {
    /// Sample what CPUs or a process are doing: folded stacks, a flame graph.
    Record(profile::Sample),
    /// Draw a flame graph of profiles, those of other tools included.
    Flame(flame::Flame),
    /// Say what changed between the profiles of two configurations, frame by frame.
    Diff(diff::Diff),
    /// Say where CPU time goes by kind of work: crypto, copy, lookup, driver, …
    Breakdown(breakdown::Breakdown),
    /// Simulate caches on the memory topology (valgrind's cachegrind): misses a packet.
    Cachesim(cachesim::Cachesim),
}

/// Parses the command line and does what it says. 0 is done, 1 is an error, 2 a wrong command line, 130 an
/// interrupted campaign (its report is written); `gate` has exit codes of its own.
pub fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::New(new) => new.go(),
        Command::Plan(plan) => plan.go(),
        Command::Run(run) => run.go(),
        Command::Report(report) => report.go(),
        Command::Doctor { json } => doctor::go(json),
        Command::Ministat(ministat) => Ok(ministat.go()),
        Command::Verify(verify) => verify.go(),
        Command::Profile(Profile::Record(sample)) => sample.go(),
        Command::Profile(Profile::Flame(flame)) => flame.go(),
        Command::Profile(Profile::Diff(diff)) => diff.go(),
        Command::Profile(Profile::Breakdown(breakdown)) => breakdown.go(),
        Command::Profile(Profile::Cachesim(cachesim)) => cachesim.go(),
        Command::Gate(gate) => Ok(gate.go()),
        Command::Compare(compare) => compare.go(),
        Command::History(history) => history.go(),
        Command::Agent => agent::serve(),
        Command::Worker => process::serve(),
        Command::Forwarder { address } => forwarder::run(address),
        Command::Man { folder } => man(&folder),
        Command::Completions { shell } => completions(shell),
        Command::Schema => schema(),
    };
    done.unwrap_or_else(|error| {
        eprintln!("weir-lab: {error}");
        ExitCode::FAILURE
    })
}

fn man(folder: &Path) -> Result<ExitCode, LabError> {
    let failed = |e| LabError::new(format!("{}: {e}; name a folder you may write to", folder.display()));
    std::fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(Cli::command(), folder).map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

fn completions(shell: clap_complete::Shell) -> Result<ExitCode, LabError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "weir-lab", &mut script);
    print(&String::from_utf8_lossy(&script));
    Ok(ExitCode::SUCCESS)
}

fn schema() -> Result<ExitCode, LabError> {
    print(&crate::experiment::schema::text());
    Ok(ExitCode::SUCCESS)
}

/// The command as it was typed, its program by name: where that lies says nothing of what was measured.
fn command_line() -> Vec<String> {
    let mut words: Vec<String> = std::env::args().collect();
    if let Some(program) = words.first_mut() {
        *program = program.rsplit('/').next().unwrap_or_default().to_string();
    }
    words
}

/// Prints to standard output; a reader that went away (a closed pipe) has seen what it wanted.
pub(crate) fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn json<T: serde::Serialize>(document: &T) -> Result<String, LabError> {
    let text = serde_json::to_string_pretty(document).map_err(|e| LabError::new(format!("--json: {e}")))?;
    Ok(text + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent_and_every_argument_has_help() {
        let command = Cli::command();
        command.clone().debug_assert();
        let nested = command.get_subcommands().flat_map(clap::Command::get_subcommands);
        for sub in command.get_subcommands().chain(nested) {
            assert!(sub.get_about().is_some(), "{}", sub.get_name());
            for argument in sub.get_arguments().filter(|a| a.get_id() != "help") {
                assert!(argument.get_help().is_some(), "{} {}", sub.get_name(), argument.get_id());
            }
        }
    }
}
