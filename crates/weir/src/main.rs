//! `weir`: the daemon, and the command an operator asks it with.

use std::process::ExitCode;

use clap::Parser;

use weir::cli::{Cli, Failure, run};

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(sentence)) => {
            eprintln!("{}", sentence.trim_end());
            ExitCode::FAILURE
        }
    }
}
