//! The command line: one verb for each thing an operator wants, help with examples beside each verb.
//!
//! Errors go to stderr as one sentence with a remedy and end the program with status 1; what was asked
//! for goes to stdout.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::config;

/// Why a command ended badly: lower case, subject first, then the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(pub String);

#[derive(Debug, Parser)]
#[command(
    name = "weir",
    version,
    about = "A router beside the kernel on AF_XDP, and the command to run and ask it",
    arg_required_else_help = true,
    after_help = "A first router: copy examples/router.toml, change the devices, then\n  \
        weir check router.toml && sudo weir run router.toml\n\n\
        `weir VERB --help` shows examples of each verb."
)]
pub struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Read a configuration and say everything that is wrong with it
    #[command(after_help = "Examples:\n  \
        weir check router.toml        every complaint with file:line:column, or one line of summary\n\n\
        Needs no privilege and no daemon; devices are not looked at. Status 1 when anything is wrong.")]
    Check {
        /// The configuration file
        file: PathBuf,
    },
}

pub fn run(cli: Cli) -> Result<(), Failure> {
    match cli.verb {
        Verb::Check { file } => check(&file),
    }
}

fn check(file: &std::path::Path) -> Result<(), Failure> {
    let config = config::load(file).map_err(|refused| Failure(refused.0))?;
    println!(
        "{}: {} and {}: nothing wrong",
        file.display(),
        count(config.ports.len(), "port"),
        count(config.routes.len(), "route")
    );
    Ok(())
}

/// `1 port`, `2 ports`.
pub fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
