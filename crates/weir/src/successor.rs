//! A daemon starts the program that stands in its own place now, to take over from it: an upgrade by one signal.
//!
//! Promises: the successor is started as this process was, with `--take-over`, and is no child of this process, so that a
//! service manager waits for its end as it did for this one's; one that fails is told of, and this daemon goes on. Refuses: a second successor while the first is on its way; a relay without a file (`--dev`),
//! whose key and certificate no other could have.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::process::Command;

use weir_io::process::{Orphan, start_orphan};

use crate::control::Response;

/// What a service manager says to one process alone.
const OF_THIS_PROCESS: [&str; 4] = ["WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];

/// Why there is no successor.
#[derive(Debug)]
pub enum SuccessorError {
    WithoutFile,
    Underway { pid: u32 },
    NotStarted { program: OsString, error: io::Error },
}

impl fmt::Display for SuccessorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SuccessorError::WithoutFile => {
                f.write_str("a relay of `--dev` has no successor; give it a configuration file")
            }
            SuccessorError::Underway { pid } => {
                write!(f, "process {pid} is about to take over already; wait for it to be ready, or stop it")
            }
            SuccessorError::NotStarted { program, error } => {
                write!(f, "{}: not started ({error}); what runs goes on", program.display())
            }
        }
    }
}

/// The command this process was started by, and the process that is to follow it.
#[derive(Debug)]
pub struct Successor {
    command: Vec<OsString>,
    started: Option<Orphan>,
}

impl Successor {
    pub fn of_this_process() -> Successor {
        Successor { command: succeeding(std::env::args_os().collect()), started: None }
    }

    /// Starts the program that has this one's name on disk now. It has these descriptors too, by their names.
    pub fn start(&mut self, descriptors: &[(String, BorrowedFd<'_>)]) -> Result<u32, SuccessorError> {
        if let Some(started) = &self.started {
            return Err(SuccessorError::Underway { pid: started.id() });
        }
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(SuccessorError::WithoutFile);
        };
        let mut command = Command::new(program);
        command.args(arguments);
        OF_THIS_PROCESS.iter().for_each(|name| {
            command.env_remove(name);
        });
        let started = start_orphan(&mut command, descriptors)
            .map_err(|error| SuccessorError::NotStarted { program: program.clone(), error })?;
        let pid = started.id();
        self.started = Some(started);
        Ok(pid)
    }

    /// SIGUSR2: starts it as [`Successor::start`] does, and says what came of it.
    pub fn answer(&mut self, descriptors: &[(String, BorrowedFd<'_>)]) -> Response {
        match self.start(descriptors) {
            Ok(pid) => {
                tracing::info!("process {pid} is started to take over");
                Response::json(200, &serde_json::json!({ "successor": pid }))
            }
            Err(error) => {
                tracing::error!("SIGUSR2: {error}");
                Response::refusal(409, error.to_string())
            }
        }
    }

    /// The process that is about to take over.
    pub fn underway(&mut self) -> Option<u32> {
        let _ = self.ended();
        self.started.as_ref().map(Orphan::id)
    }

    /// The successor that has ended; told once.
    pub fn ended(&mut self) -> Option<u32> {
        self.started.take_if(|started| started.is_ended()).map(|ended| ended.id())
    }
}

/// The same command with `--take-over`; none for a relay without a file.
fn succeeding(mut command: Vec<OsString>) -> Vec<OsString> {
    let has = |word: &str| command.iter().any(|argument| argument == OsStr::new(word));
    let flag = if has("derper") { "-take-over" } else { "--take-over" };
    if has("--dev") {
        return Vec::new();
    }
    if !has(flag) {
        command.push(flag.into());
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn the_command_is_that_of_this_process_with_the_flag_once() {
        let pairs = [
            ("weir run relay.toml", "weir run relay.toml --take-over"),
            ("weir relay --take-over relay.toml", "weir relay --take-over relay.toml"),
            ("/usr/bin/weir derper -a :443", "/usr/bin/weir derper -a :443 -take-over"),
            ("weir accelerate eth0 eth1", "weir accelerate eth0 eth1 --take-over"),
            ("weir relay --dev", ""),
        ];
        for (before, after) in pairs {
            assert_eq!(succeeding(words(before)), words(after), "{before}");
        }
        let mut without = Successor { command: Vec::new(), started: None };
        assert!(without.start(&[]).is_err_and(|e| e.to_string().contains("--dev")));
    }

    #[test]
    fn one_that_is_not_there_is_named() {
        let mut missing = Successor { command: words("/nowhere/weir run"), started: None };
        let said = missing.start(&[]).expect_err("there is no such program").to_string();
        assert!(said.contains("/nowhere/weir") && said.contains("goes on"), "{said}");
        assert!(missing.ended().is_none());
    }
}
