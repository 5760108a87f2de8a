//! Shell commands with an end: what they say is kept, what takes too long is ended with all it started.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weir_io::process;

use crate::model::LabError;

const LOOK: Duration = Duration::from_millis(10);
/// The end of its output that an error quotes.
const LINES: usize = 12;
/// More than this is not read back.
const OUTPUT_MAX: u64 = 1 << 20;

/// Where commands run, and what they find in their environment.
#[derive(Clone)]
pub struct Shell {
    pub folder: PathBuf,
    pub environment: BTreeMap<&'static str, String>,
    /// Ends what is under way.
    pub stop: Arc<AtomicBool>,
}

impl Shell {
    /// Runs `command` by `sh -c` and returns what it printed; `what` names it in errors.
    pub fn run(&self, what: &str, command: &str, within: Duration) -> Result<String, LabError> {
        let failed = |e: std::io::Error| LabError::new(format!("{what}: {e}"));
        // Files, not pipes: a daemon that keeps them open holds nobody up.
        let (out, err) = (self.folder.join(".out"), self.folder.join(".err"));
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).current_dir(&self.folder).envs(&self.environment);
        shell.stdin(Stdio::null()).stdout(File::create(&out).map_err(failed)?);
        shell.stderr(File::create(&err).map_err(failed)?);
        let mut child = crate::sut::as_service(&mut shell).spawn().map_err(failed)?;
        let until = Instant::now() + within;
        let status = loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                break status;
            }
            let stopped = self.stop.load(Ordering::Acquire);
            if stopped || Instant::now() > until {
                // An error means that it ended just now.
                let _ = process::kill_group(child.id());
                child.wait().map_err(failed)?;
                let why =
                    if stopped { "the lab went away".into() } else { format!("not done after {within:?}") };
                return Err(LabError::new(format!(
                    "{what}: ended, {why}: `{command}`; {}",
                    tail(&out, &err)
                )));
            }
            std::thread::sleep(LOOK);
        };
        if status.success() {
            return read(&out).map_err(failed);
        }
        Err(LabError::new(format!("{what}: `{command}` failed ({status}); {}", tail(&out, &err))))
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    use std::io::Read;
    let mut bytes = Vec::new();
    File::open(path)?.take(OUTPUT_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn tail(out: &Path, err: &Path) -> String {
    let text = read(out).unwrap_or_default() + &read(err).unwrap_or_default();
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|l| !l.is_empty()).collect();
    if lines.is_empty() {
        return "it said nothing".into();
    }
    format!("it said: {}", lines[lines.len().saturating_sub(LINES)..].join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_testing::folder::Folder;

    fn place(name: &str) -> (Shell, Folder) {
        let folder = Folder::new(&format!("shell-{name}"));
        let environment = BTreeMap::from([("WEIR_INPUT", "eth7".to_string())]);
        (Shell { folder: folder.0.clone(), environment, stop: Arc::default() }, folder)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_command_sees_its_folder_and_environment() {
        let (shell, folder) = place("sees");
        let said = shell.run("apply", "echo $WEIR_INPUT; touch made", LONG).expect("sh is everywhere");
        assert_eq!(said, "eth7\n");
        assert!(folder.0.join("made").exists());
    }

    #[test]
    fn a_failed_command_is_quoted_with_what_it_said() {
        let (shell, _folder) = place("failed");
        let error = shell.run("apply", "echo out; echo no such route >&2; exit 3", LONG).expect_err("3");
        for part in ["apply: `echo out", "exit status: 3", "it said: out | no such route"] {
            assert!(error.said.contains(part), "{error}");
        }
    }

    #[test]
    fn a_command_that_hangs_is_ended_with_what_it_started() {
        let (shell, folder) = place("hangs");
        let command = "sleep 600 & echo $! > child; wait";
        let error = shell.run("apply", command, Duration::from_millis(300)).expect_err("hangs");
        assert!(error.said.contains("not done after 300ms"), "{error}");
        let child = folder.read("child");
        let stat = || std::fs::read_to_string(format!("/proc/{}/stat", child.trim())).unwrap_or_default();
        let ended = |stat: &str| stat.is_empty() || stat.contains(") Z ") || stat.contains(") X ");
        // It was killed; on a busy machine its turn to die comes later.
        let until = Instant::now() + LONG;
        while !ended(&stat()) {
            assert!(Instant::now() < until, "{}", stat());
            std::thread::sleep(Duration::from_millis(10));
        }
        shell.stop.store(true, Ordering::Release);
        let error = shell.run("apply", "sleep 600", LONG).expect_err("stopped");
        assert!(error.said.contains("the lab went away"), "{error}");
    }
}
