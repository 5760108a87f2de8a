//! One command of a gate: run, timed, and read.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{self, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use crate::model::LabError;

/// Output that is kept of a run: its end, where programs print results.
const KEPT: u64 = 1 << 20;
/// Lines of it that an error quotes.
const QUOTED: usize = 8;

/// A program with its arguments, and where it runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Command {
    pub argv: Vec<String>,
    /// `None` for the folder `weir-lab` was started in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    /// The commit that stands there, when the gate checked it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
}

/// What is taken from a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reading {
    /// How long it took from start to end, in seconds.
    Time,
    /// The number behind the last `name` in standard output.
    Printed { name: String },
}

/// A finished run.
pub struct Finished {
    pub seconds: f64,
    pub output: String,
}

/// Why a run has no value.
#[derive(Debug, PartialEq)]
pub enum NoValue {
    NotPrinted(String),
    NotANumber { name: String, got: String },
    NotAboveZero { name: String, got: f64 },
}

impl fmt::Display for NoValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoValue::NotPrinted(name) => {
                write!(f, "printed no `{name}`, expected `{name}` and a number behind it")
            }
            NoValue::NotANumber { name, got } => {
                write!(f, "printed `{got}` behind `{name}`, expected a number")
            }
            NoValue::NotAboveZero { name, got } => {
                write!(f, "printed {name} {got}, expected a number above 0: ratios are judged")
            }
        }
    }
}

impl Reading {
    pub fn unit(&self) -> &str {
        match self {
            Reading::Time => "seconds",
            Reading::Printed { name } => name,
        }
    }

    pub fn value(&self, run: &Finished) -> Result<f64, NoValue> {
        match self {
            Reading::Time => Ok(run.seconds.max(f64::MIN_POSITIVE)),
            Reading::Printed { name } => printed(name, &run.output),
        }
    }
}

/// The number behind the last place where `name` stands as a word.
fn printed(name: &str, output: &str) -> Result<f64, NoValue> {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    let whole = |at: usize| {
        let (before, after) = (output[..at].chars().next_back(), output[at + name.len()..].chars().next());
        !before.is_some_and(part_of_word) && !after.is_some_and(part_of_word)
    };
    let at = output.rmatch_indices(name).map(|(at, _)| at).find(|at| whole(*at));
    let behind = &output[at.ok_or_else(|| NoValue::NotPrinted(name.into()))? + name.len()..];
    let behind = behind.trim_start_matches(|c: char| c.is_whitespace() || "=:\"'".contains(c));
    let end = behind.find(|c: char| !(c.is_ascii_digit() || "+-.eE".contains(c))).unwrap_or(behind.len());
    // a sentence may end behind the number
    let text = behind[..end].trim_end_matches(['.', 'e', 'E', '-', '+']);
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        Ok(got) => Err(NoValue::NotAboveZero { name: name.into(), got }),
        Err(_) => {
            let got = behind.split_whitespace().next().unwrap_or("nothing").into();
            Err(NoValue::NotANumber { name: name.into(), got })
        }
    }
}

impl Command {
    pub fn new(argv: Vec<String>) -> Command {
        Command { argv, folder: None, commit: None }
    }

    /// Runs it to its end. `None` when `stop` was set: then it was ended.
    pub fn run(&self, side: &str, stop: &AtomicBool) -> Result<Option<Finished>, LabError> {
        let failed =
            |e: std::io::Error| self.error(side, &format!("{e}; name a program that can be started"));
        let Some((program, arguments)) = self.argv.split_first() else {
            return Err(LabError::new(format!("{side}: no command, expected one behind `--`")));
        };
        let (mut out, mut err) = (unnamed().map_err(failed)?, unnamed().map_err(failed)?);
        let mut command = process::Command::new(OsString::from(program));
        command.args(arguments).stdin(Stdio::null());
        // a group of its own: Ctrl-C comes to the gate, which ends all that the command started
        command.process_group(0);
        command.stdout(out.try_clone().map_err(failed)?).stderr(err.try_clone().map_err(failed)?);
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        let begun = Instant::now();
        let mut child = weir_io::process::dies_with_starter(&mut command).spawn().map_err(failed)?;
        let interrupted = wait(&child, stop).map_err(failed)?;
        let seconds = begun.elapsed().as_secs_f64();
        if interrupted {
            // an error means that it ended just now
            let _ = weir_io::process::kill_group(child.id());
        }
        let status = child.wait().map_err(failed)?;
        if interrupted {
            return Ok(None);
        }
        let output = end_of(&mut out).map_err(failed)?;
        if status.success() {
            return Ok(Some(Finished { seconds, output }));
        }
        let said = output + &end_of(&mut err).map_err(failed)?;
        let lines: Vec<&str> = said.lines().map(str::trim_end).filter(|l| !l.is_empty()).collect();
        let said = match lines.as_slice() {
            [] => "it said nothing".into(),
            lines => format!("it said: {}", lines[lines.len().saturating_sub(QUOTED)..].join(" | ")),
        };
        Err(self.error(side, &format!("failed ({status}); {said}")))
    }

    pub fn error(&self, side: &str, what: &dyn fmt::Display) -> LabError {
        LabError::new(format!("{side}: `{}` {what}", self.argv.join(" ")))
    }
}

/// Waits until the child has ended (`false`) or somebody asked to stop (`true`).
fn wait(child: &process::Child, stop: &AtomicBool) -> std::io::Result<bool> {
    let gone = || std::io::Error::other("a process without a number");
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
    let ended = pidfd_open(pid, PidfdFlags::empty())?;
    loop {
        if stop.load(Ordering::Acquire) {
            return Ok(true);
        }
        let second = rustix::time::Timespec { tv_sec: 1, tv_nsec: 0 };
        match poll(&mut [PollFd::new(&ended.as_fd(), PollFlags::IN)], Some(&second)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(false),
            Err(e) => return Err(e.into()),
        }
    }
}

/// A file that nobody can name and that goes with its descriptor: no reader has to keep pace, as with a pipe.
fn unnamed() -> std::io::Result<File> {
    let folder = std::env::temp_dir();
    let path = folder.join(format!("weir-lab-gate-{}-{:x}", process::id(), crate::machine::unix_ms()));
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

fn end_of(file: &mut File) -> std::io::Result<String> {
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(KEPT)))?;
    let mut bytes = Vec::new();
    file.take(KEPT).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        Command::new(["sh", "-c", script].map(String::from).into())
    }

    #[test]
    fn the_number_behind_the_last_name_is_taken() {
        let cases = [
            ("mpps 3.5", 3.5),
            ("mpps: 3.5 Mpps", 3.5),
            ("{\"mpps\":14.25e2,\"other\":1}", 1425.0),
            ("mpps=1\nmpps=2\n", 2.0),
            ("mpps 7\nnot_mpps 9 mppsx 8", 7.0),
            ("mpps was 3; in the end mpps 4.", 4.0),
        ];
        for (output, expected) in cases {
            assert_eq!(printed("mpps", output), Ok(expected), "{output}");
        }
        assert_eq!(printed("mpps", "pps 4"), Err(NoValue::NotPrinted("mpps".into())));
        for (output, part) in [("mpps many", "`many`"), ("mpps", "`nothing`"), ("mpps 0", "above 0")] {
            let said = printed("mpps", output).expect_err(output).to_string();
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn a_run_is_timed_and_what_it_printed_is_kept_however_much_that_is() {
        let never = AtomicBool::new(false);
        let long = shell("sleep 0.1; head -c 3000000 /dev/zero | tr '\\0' 'x'; echo; echo mpps 5");
        let run = long.run("baseline", &never).expect("sh is everywhere").expect("nobody stops it");
        assert!(run.seconds >= 0.1, "{}", run.seconds);
        assert_eq!(Reading::Printed { name: "mpps".into() }.value(&run), Ok(5.0));
        assert_eq!(Reading::Time.value(&run), Ok(run.seconds));
    }

    #[test]
    fn a_failed_run_is_quoted() {
        let never = AtomicBool::new(false);
        let error = shell("echo out; echo no route >&2; exit 3").run("candidate", &never).err().expect("3");
        for part in ["candidate: `sh -c", "exit status: 3", "it said: out | no route"] {
            assert!(error.said.contains(part), "{error}");
        }
        let error = Command::new(vec!["/nonexistent".into()]).run("baseline", &never).err().expect("none");
        assert!(error.said.contains("name a program that can be started"), "{error}");
    }

    #[test]
    fn a_stop_ends_a_run_with_all_that_it_started() {
        let stop = AtomicBool::new(false);
        let begun = Instant::now();
        let outcome = std::thread::scope(|threads| {
            threads.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(100));
                stop.store(true, Ordering::Release);
            });
            shell("sleep 600 & wait").run("baseline", &stop)
        });
        assert!(outcome.expect("ended").is_none());
        assert!(begun.elapsed().as_secs() < 60, "it was not waited for");
    }
}
