//! A root shell of a page's own, and the reader who types into it and looks.
//!
//! The shell has network namespaces, mounts, `/run` and processes of its own: pages run beside each other, and the
//! machine is as before, whatever they leave. A step follows when the one before has printed what the page says.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::page::{self, Step};

/// How long commands may take on a busy machine, and then what they print.
pub const PATIENCE: Duration = Duration::from_secs(120);

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// What `unshare` gives the shell of its own.
const APART: [&str; 6] = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];

/// What the shell does before the page: namespaces are kept in `/run`, files in an empty folder.
const BEFORE: &str =
    "mount -t tmpfs tmpfs /run && mkdir /run/netns && ip link set lo up && cd \"$1/work\" && exec bash -eu";

/// Prints what a page has left: namespaces, devices, processes, files; not the tunnels that a loaded module gives every namespace.
const LEFT: &str = "\
left() {
  ls /run/netns; ls -A
  ip -o link | grep -Ev '^1: lo:|: (ip_vti0|ip6tnl0|ip6_vti0|sit0|tunl0|gre0)@NONE' || true
  for p in /proc/[0-9]*; do [ $p = /proc/1 ] || [ $p = /proc/$BASHPID ] || tr '\\0' ' ' <$p/cmdline || true; done
}
while seen=$(left 2>/dev/null); [ -n \"$seen\" ] && [ $SECONDS -lt $until ]; do sleep 0.1; done
echo \"$seen\"
";

/// What is missing for any page, in words.
pub fn missing() -> Option<String> {
    let root = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let root = root.lines().any(|l| l.starts_with("Uid:") && l.split_whitespace().nth(2) == Some("0"));
    if !root {
        return Some("root, to make network namespaces".into());
    }
    absent(&["unshare", "bash", "ip", "ping"]).or_else(|| {
        let made = Command::new("unshare").args(APART).arg("true").output();
        let made = made.is_ok_and(|output| output.status.success());
        (!made).then(|| "to make namespaces, which this container's root may not".into())
    })
}

/// The first of these programs that no name on the PATH starts, and what to do about it.
pub fn absent(programs: &[&str]) -> Option<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = |program: &&&str| std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    let absent = programs.iter().find(|program| !there(program))?;
    Some(format!("the program {absent}; `make setup` installs it"))
}

/// Types a page into a shell that finds `programs` first. `Err` says what was not as the page says.
pub fn follow(text: &str, programs: &Path, patience: Duration) -> Result<(), String> {
    let mut steps = page::steps(text)?;
    let commands = format!("until=$((SECONDS + {}))\n{LEFT}", patience.as_secs());
    steps.push(Step { line: text.lines().count(), commands, expected: Some(String::new()) });
    let mut shell = Shell::start(programs);
    for (n, step) in steps.iter().enumerate() {
        shell.take(n, step, patience)?;
    }
    shell.end()
}

/// Ended, with everything it started, on drop.
struct Shell {
    child: Child,
    stdin: Option<ChildStdin>,
    /// Where everything is printed, as on a terminal: what a program in the background says, it says into the step
    /// that is then being taken.
    terminal: PathBuf,
    folder: PathBuf,
}

impl Shell {
    fn start(programs: &Path) -> Shell {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("weir-walk-{}-{number}", std::process::id()));
        fs::create_dir_all(folder.join("work")).expect("a folder");
        let mut path = vec![programs.to_path_buf()];
        path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        let mut command = Command::new("unshare");
        command.args(APART);
        command.args(["bash", "-c", BEFORE, "bash"]).arg(&folder);
        command.env("PATH", std::env::join_paths(path).expect("paths without colons"));
        command.env_remove("WEIR_LOG").stdin(Stdio::piped());
        let terminal = folder.join("terminal");
        let said = fs::File::options().create(true).append(true).open(&terminal).expect("a file");
        command.stdout(said.try_clone().expect("a descriptor")).stderr(said);
        let mut child = command.spawn().expect("unshare starts");
        let stdin = child.stdin.take();
        Shell { child, stdin, terminal, folder }
    }

    /// What was printed since there were so many bytes.
    fn said(&self, from: usize) -> String {
        let said = fs::read(&self.terminal).unwrap_or_default();
        String::from_utf8_lossy(said.get(from..).unwrap_or_default()).into_owned()
    }

    /// Types the commands and waits for what the page says.
    fn take(&mut self, n: usize, step: &Step, patience: Duration) -> Result<(), String> {
        let [commands, done] = ["sh", "done"].map(|what| self.folder.join(format!("{n}.{what}")));
        fs::write(&commands, &step.commands).expect("a file");
        let from = fs::metadata(&self.terminal).map_or(0, |file| file.len() as usize);
        // A shell that is gone is seen below.
        let line = format!(". {} </dev/null; : >{}\n", commands.display(), done.display());
        let _ = self.stdin.as_mut().expect("it is open").write_all(line.as_bytes());
        let failed = |shell: &Shell, why: &str| {
            Err(format!("line {}:\n{}{why}\ngot\n{}", step.line, step.commands, shell.said(from)))
        };
        let start = Instant::now();
        while !done.exists() {
            if self.child.try_wait().expect("a child of ours").is_some() && !done.exists() {
                return failed(self, "a command failed");
            }
            if start.elapsed() > PATIENCE {
                return failed(self, "it does not end");
            }
            thread::sleep(Duration::from_millis(20));
        }
        let Some(expected) = &step.expected else { return Ok(()) };
        let start = Instant::now();
        while !page::is_as_said(expected, &self.said(from)) {
            if start.elapsed() > patience {
                return failed(self, &format!("expected\n{expected}"));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), String> {
        drop(self.stdin.take());
        let status = self.child.wait().expect("a child of ours");
        if status.success() { Ok(()) } else { Err(format!("the shell ended with {status}")) }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
