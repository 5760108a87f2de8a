//! `weir completions`: what a shell completes, as the parser knows it.

use clap::Command;
use clap_complete::{Shell, generate};

/// Words to complete: verbs, what stands below them, options and the values of those that have a list of them.
pub fn script(shell: Shell, command: &mut Command) -> String {
    let mut out = Vec::new();
    generate(shell, command, "weir", &mut out);
    String::from_utf8_lossy(&out).into_owned()
}
