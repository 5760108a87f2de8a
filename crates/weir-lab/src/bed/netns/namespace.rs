//! One network namespace: a thread that lives in it and runs what it is given.
//!
//! Promises: the namespace has no name, so it vanishes with its thread, its sockets and its programs,
//! also when the lab is killed. Programs started from it are killed when the thread ends.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use crate::model::LabError;

type Job = Box<dyn FnOnce() + Send>;

pub struct Namespace {
    name: &'static str,
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    path: String,
}

impl Namespace {
    /// A new, empty namespace with its loopback up. `name` is for messages.
    pub fn new(name: &'static str) -> Result<Namespace, LabError> {
        let (jobs, todo) = channel::<Job>();
        let (ready, entered) = channel();
        let thread = std::thread::Builder::new()
            .name(format!("netns-{name}"))
            .spawn(move || {
                let path = weir_io::netns::enter_new().and_then(|()| fs::read_link("/proc/thread-self"));
                let done = path.is_err();
                let _ = ready.send(path);
                if !done {
                    todo.into_iter().for_each(|job| job());
                }
            })
            .map_err(|e| LabError(format!("namespace {name}: no thread for it: {e}")))?;
        let path = entered
            .recv()
            .map_err(|e| std::io::Error::other(e.to_string()))
            .and_then(|path| path)
            .map_err(|e| LabError(format!("namespace {name}: cannot be made: {e}; run as root")))?;
        let path = format!("/proc/{}/ns/net", path.display());
        let namespace = Namespace { name, jobs: Some(jobs), thread: Some(thread), path };
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// Runs `work` inside and waits for it.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, LabError> {
        let (done, result) = channel();
        let job = Box::new(move || {
            let _ = done.send(work());
        });
        let gone = || {
            LabError(format!("namespace {}: its thread has ended; this is a defect of weir-lab", self.name))
        };
        self.jobs.as_ref().ok_or_else(gone)?.send(job).map_err(|_| gone())?;
        result.recv().map_err(|_| gone())
    }

    /// What `ip` takes as a namespace's name.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Runs `ip` with these words.
    pub fn ip(&self, words: &str) -> Result<(), LabError> {
        self.program("ip", words.split_whitespace().map(str::to_string).collect(), None)
    }

    /// Runs `ip -batch` over these lines.
    pub fn ip_batch(&self, lines: String) -> Result<(), LabError> {
        self.program("ip", vec!["-batch".into(), "-".into()], Some(lines))
    }

    fn program(
        &self,
        program: &'static str,
        words: Vec<String>,
        input: Option<String>,
    ) -> Result<(), LabError> {
        let shown = format!("{program} {}", words.join(" "));
        let output = self.run(move || {
            let mut command = Command::new(program);
            command.args(words).stdout(Stdio::null()).stderr(Stdio::piped());
            command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
            let mut child = command.spawn()?;
            if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
                // A program that stops reading says why on its standard error.
                let _ = std::io::Write::write_all(&mut stdin, input.as_bytes());
            }
            child.wait_with_output()
        })?;
        let output = output.map_err(|e| {
            LabError(format!("`{shown}`: cannot be started: {e}; install the package iproute2"))
        })?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(LabError(format!("`{shown}` in namespace {}: {}", self.name, said.trim())))
    }

    /// Writes a kernel setting, `net/ipv4/ip_forward`.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<(), LabError> {
        let (path, text) = (format!("/proc/sys/{key}"), value.to_string());
        self.run(move || fs::write(path, text))?
            .map_err(|e| LabError(format!("{key}: cannot be set to {value} in namespace {}: {e}", self.name)))
    }

    /// Reads a file as this namespace sees it.
    pub fn read(&self, path: &str) -> Result<String, LabError> {
        let file = path.to_string();
        self.run(move || fs::read_to_string(file))?
            .map_err(|e| LabError(format!("{path}: cannot be read in namespace {}: {e}", self.name)))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A job that panicked has been reported to whoever waited for it.
            let _ = thread.join();
        }
    }
}
