//! What tests on real namespaces do with this machine: run commands, wait, and ask whether it can make namespaces.

use std::net::IpAddr;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// How long anything that must happen may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Runs a command to its end; its stderr in the panic when it fails.
pub fn run(command: &str) -> String {
    let mut words = command.split_whitespace();
    let program = words.next().expect("a program");
    let output = Command::new(program).args(words).output().expect("the program starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "`{command}`: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether namespaces can be made, or what is missing.
pub fn missing() -> Option<String> {
    let output = match Command::new("ip").args(["netns", "list"]).output() {
        Ok(output) => output,
        Err(e) => return Some(format!("the `ip` command ({e}); install iproute2")),
    };
    let root = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let root = root.lines().any(|l| l.starts_with("Uid:") && l.split_whitespace().nth(2) == Some("0"));
    (!root || !output.status.success()).then(|| "root, to make network namespaces".into())
}

/// Tries until it works; panics with what was waited for when it never does.
pub fn until<T>(what: &str, attempt: impl FnMut() -> Option<T>) -> T {
    until_within(PATIENCE, what, attempt)
}

/// The same, with another patience.
pub fn until_within<T>(patience: Duration, what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(start.elapsed() < patience, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Writes a setting of the kernel.
pub fn set(path: &str, value: &str) {
    // A kernel without IPv6 has no such file, and its tests fail by what they miss.
    let _ = std::fs::write(path, value);
}
