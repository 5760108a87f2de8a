//! `weir`: the daemon, and the command an operator asks it with.

use std::process::ExitCode;

use clap::Parser;

use weir::cli::{Cli, run};
use weir::failure::Failure;

fn main() -> ExitCode {
    if let Some(lacking) = weir_io::cpu_level::lacking() {
        eprintln!(
            "weir: this CPU lacks `{lacking}`, and this build is for x86-64-v3 (2013 and later); build it for this machine with \
             RUSTFLAGS=-Ctarget-cpu=native"
        );
        return ExitCode::FAILURE;
    }
    // Metrics tell this moment as the process's start.
    weir_metrics::process_started();
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(sentence)) => {
            eprintln!("{}", sentence.trim_end());
            ExitCode::FAILURE
        }
    }
}
