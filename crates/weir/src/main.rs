//! `weir`: the daemon, and the command an operator asks it with.

use std::process::ExitCode;

use clap::Parser;

use weir::cli::{Cli, run};
use weir::failure::Failure;

fn main() -> ExitCode {
    if !weir_io::cpu_level::suffices("weir") {
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
