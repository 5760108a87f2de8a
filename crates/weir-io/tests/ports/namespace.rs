//! Namespaces for tests: made with a unique name, removed when dropped, skipped by name without root.

use std::io::Write;
use std::process::Command;

/// A namespace with a veth pair `a`–`b`.
pub struct Namespace(pub String);

impl Namespace {
    /// `None`, after saying so, where namespaces cannot be made.
    pub fn new(test: &str) -> Option<Namespace> {
        let name = format!("weir-{test:.40}-{}", std::process::id());
        if !ip(&["netns", "add", &name]) {
            // Straight to the descriptor: the test harness hides what passing tests print by macro.
            let _ = writeln!(std::io::stderr(), "SKIP {test}: network namespaces need root and iproute2");
            return None;
        }
        let made = Namespace(name);
        made.ip(&["link", "add", "name", "a", "type", "veth", "peer", "name", "b"]);
        made.sysctl("net.ipv6.conf.all.disable_ipv6=0");
        Some(made)
    }

    pub fn ip(&self, words: &[&str]) {
        let all: Vec<&str> = ["-n", &self.0].iter().chain(words).copied().collect();
        assert!(ip(&all), "ip {}", all.join(" "));
    }

    pub fn sysctl(&self, setting: &str) {
        let done = self.command("sysctl").args(["-q", "-w", setting]).output();
        assert!(done.is_ok_and(|o| o.status.success()), "sysctl {setting}");
    }

    /// A command that will run inside.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0, program]);
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        ip(&["netns", "del", &self.0]);
    }
}

fn ip(words: &[&str]) -> bool {
    Command::new("ip").args(words).output().is_ok_and(|o| o.status.success())
}
