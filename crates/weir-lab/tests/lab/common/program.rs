//! The program as a user runs it, and a small experiment for it.

use std::process::{Command, Output};

pub fn lab() -> Command {
    Command::new(env!("CARGO_BIN_EXE_weir-lab"))
}

pub fn run(arguments: &[&str]) -> Output {
    lab().args(arguments).output().expect("the program starts")
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether it succeeded, what it printed, and what it said beside that.
pub fn told(output: &Output) -> (bool, String, String) {
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

/// Two configurations and two baselines in memory, three short runs each.
pub const SMALL: &str = "\
title = \"Small\"
question = \"Do the parts fit together?\"
runs = 3
warm_up = \"1ms\"
window = \"5ms\"
baseline = true
[[configuration]]
family = [\"inet\", \"inet6\"]
flows = 20
routes = 10
";
