//! A running `weir`: what it logs, what it answers, what it counts. Killed on drop.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use weir_io::process;

/// The `weir` that was built with the test that runs: it lies beside the folder of tests.
pub fn program() -> PathBuf {
    let own = std::env::current_exe().expect("a test is a file");
    let program = own.ancestors().nth(2).map(|folder| folder.join("weir")).filter(|path| path.is_file());
    program.expect("cargo builds the program with its integration tests")
}

pub struct Running {
    pub child: Child,
    log: Arc<Mutex<String>>,
    pub socket: PathBuf,
}

impl Running {
    /// Starts what `command` says, which makes a weir answer on `socket`.
    pub fn start(command: &mut Command, socket: PathBuf) -> Running {
        command.stderr(Stdio::piped()).stdout(Stdio::null());
        let mut child = process::dies_with_starter(command).spawn().expect("weir starts");
        let log = Arc::new(Mutex::new(String::new()));
        let stderr = child.stderr.take().expect("piped");
        let into = Arc::clone(&log);
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                into.lock().expect("no panic while writing").push_str(&(line + "\n"));
            }
        });
        Running { child, log, socket }
    }

    pub fn log(&self) -> String {
        self.log.lock().expect("no panic while writing").clone()
    }

    /// Asks it something.
    pub fn ask(&self, args: &[&str]) -> Output {
        let mut command = Command::new(program());
        command.arg("--socket").arg(&self.socket).args(args).output().expect("weir starts")
    }

    /// What it answers to a question that must succeed.
    pub fn told(&self, args: &[&str]) -> String {
        let output = self.ask(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "weir {}: {stderr}\n{}", args.join(" "), self.log());
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub fn metrics(&self) -> String {
        crate::control::client::get(&self.socket, "/metrics").expect("metrics")
    }

    /// The values of a metric with all its labels that contain `label`.
    pub fn values(&self, name: &str, label: &str) -> Vec<i64> {
        let text = self.metrics();
        let lines = text.lines().filter(|l| l.split(['{', ' ']).next() == Some(name) && l.contains(label));
        lines.filter_map(|l| l.rsplit(' ').next()).map(|v| v.parse().expect("a number")).collect()
    }

    /// Everything received ended somewhere, and no buffer is missing.
    pub fn balances(&self) -> bool {
        let sum = |name: &str| self.values(name, "").iter().sum::<i64>();
        let ends = sum("weir_frames_forwarded_total")
            + sum("weir_frames_local_total")
            + sum("weir_frames_dropped_total")
            + sum("weir_frames_held");
        sum("weir_frames_received_total") == ends
            && sum("weir_ledger_balance_frames") == 0
            && sum("weir_buffers_missing") == 0
    }
}

/// A process that is nobody's child here, killed on drop.
pub struct Orphan(pub u32);

impl Drop for Orphan {
    fn drop(&mut self) {
        // It may have ended.
        let _ = process::kill(self.0);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
