//! One network namespace: a thread that lives in it and runs what it is given.
//!
//! Promises: a new namespace has no name, so it vanishes with its thread, its sockets and its programs,
//! also when the lab is killed. Programs started from it are killed when the thread ends. In the namespace
//! the process is in ([`Namespace::here`], on a host of the ssh topology) nothing vanishes by itself: what
//! was changed is changed back, last first, when the value is dropped.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::model::LabError;

type Job = Box<dyn FnOnce() + Send>;

/// What machines tune, and what the kernel has where nobody did. Congestion control that paces sends does it by timers,
/// which run on the CPU of whatever is measured, at its expense; larger buffers let a flood outgrow the caches before a
/// byte of it is read.
/// Each with what will do where the kernel refuses it: a namespace has no congestion control that the machine's
/// `tcp_allowed_congestion_control` does not name, but always reno.
const UNTUNED: [(&str, &[&str]); 3] = [
    ("tcp_congestion_control", &["cubic", "reno"]),
    ("tcp_rmem", &["4096 131072 6291456"]),
    ("tcp_wmem", &["4096 16384 4194304"]),
];

pub struct Namespace {
    name: &'static str,
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    path: String,
    /// What to change back; nothing is noted in a namespace of our own.
    undo: Option<Mutex<Vec<Undo>>>,
}

enum Undo {
    /// A kernel setting and what it was.
    Sysctl(String, String),
    /// Lines for `ip -batch`.
    Batch(String),
}

/// What [`Namespace::untuned`] came to.
pub struct Untuned {
    pub said: String,
    /// The kernel refused what it would have by itself.
    pub fell_back: bool,
}

impl Namespace {
    /// A new, empty namespace with its loopback up. `name` is for messages.
    pub fn new(name: &'static str) -> Result<Namespace, LabError> {
        let namespace = Namespace::on_thread(name, weir_io::netns::enter_new, None)?;
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// The namespace this process is in.
    pub fn here(name: &'static str) -> Result<Namespace, LabError> {
        Namespace::on_thread(name, || Ok(()), Some(Mutex::default()))
    }

    fn on_thread(
        name: &'static str,
        enter: fn() -> std::io::Result<()>,
        undo: Option<Mutex<Vec<Undo>>>,
    ) -> Result<Namespace, LabError> {
        let (jobs, todo) = channel::<Job>();
        let (ready, entered) = channel();
        let thread = std::thread::Builder::new()
            .name(format!("netns-{name}"))
            .spawn(move || {
                let path = enter().and_then(|()| fs::read_link("/proc/thread-self"));
                let done = path.is_err();
                let _ = ready.send(path);
                if !done {
                    todo.into_iter().for_each(|job| job());
                }
            })
            .map_err(|e| LabError::new(format!("namespace {name}: no thread for it: {e}")))?;
        let path = entered
            .recv()
            .map_err(|e| std::io::Error::other(e.to_string()))
            .and_then(|path| path)
            .map_err(|e| LabError::new(format!("namespace {name}: cannot be made: {e}; run as root")))?;
        let path = format!("/proc/{}/ns/net", path.display());
        Ok(Namespace { name, jobs: Some(jobs), thread: Some(thread), path, undo })
    }

    /// Runs `work` inside and waits for it.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, LabError> {
        let result = Arc::new(Mutex::new(None));
        let place = result.clone();
        self.wait_for(Box::new(move || {
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(work());
        }))?;
        let result = result.lock().unwrap_or_else(PoisonError::into_inner).take();
        result.ok_or_else(|| self.gone())
    }

    /// Results do not travel by the channel: one for each type of theirs was 7 % of the code of this crate.
    fn wait_for(&self, work: Job) -> Result<(), LabError> {
        let (done, ended) = channel();
        let job = Box::new(move || {
            work();
            let _ = done.send(());
        });
        self.jobs.as_ref().ok_or_else(|| self.gone())?.send(job).map_err(|_| self.gone())?;
        ended.recv().map_err(|_| self.gone())
    }

    fn gone(&self) -> LabError {
        LabError::new(format!("namespace {}: its thread has panicked", self.name))
    }

    /// What `ip` takes as a namespace's name.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Runs `ip` with these words.
    pub fn ip(&self, words: &str) -> Result<(), LabError> {
        self.program("ip", words.split_whitespace().map(str::to_string).collect(), None)
    }

    /// Runs `tc` with these words.
    pub fn tc(&self, words: &str) -> Result<(), LabError> {
        self.program("tc", words.split_whitespace().map(str::to_string).collect(), None)
    }

    /// Runs `ip -batch` over these lines.
    pub fn ip_batch(&self, lines: String) -> Result<(), LabError> {
        // Noted first: a batch that fails half way has changed something too.
        self.note(|| Undo::Batch(lines.lines().rev().filter_map(inverse).collect()));
        self.program("ip", vec!["-batch".into(), "-".into()], Some(lines))
    }

    /// Runs `nft -f` over these rules.
    pub fn nft(&self, rules: String) -> Result<(), LabError> {
        self.program("nft", vec!["-f".into(), "-".into()], Some(rules))
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
            LabError::new(format!(
                "`{shown}`: cannot be started: {e}; install the packages iproute2 and nftables"
            ))
        })?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(LabError::new(format!("`{shown}` in namespace {}: {}", self.name, said.trim())))
    }

    /// Writes a kernel setting, `net/ipv4/ip_forward`.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<(), LabError> {
        let (path, text) = (format!("/proc/sys/{key}"), value.to_string());
        if self.undo.is_some() {
            let old = self.read(&path)?;
            self.note(|| Undo::Sysctl(key.into(), old));
        }
        self.run(move || fs::write(path, text))?.map_err(|e| {
            LabError::new(format!("{key}: cannot be set to {value} in namespace {}: {e}", self.name))
        })
    }

    /// TCP of this namespace as the kernel itself would have it, whatever the machine prefers: see [`UNTUNED`]. Says
    /// what there is now.
    pub fn untuned(&self) -> Result<Untuned, LabError> {
        let (mut said, mut fell_back) = (Vec::new(), false);
        for (key, wanted) in UNTUNED {
            let path = format!("net/ipv4/{key}");
            let text = self.read(&format!("/proc/sys/{path}"))?;
            let machine = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let taken = wanted.iter().position(|own| self.sysctl(&path, own).is_ok());
            let is = taken.map_or(machine.as_str(), |n| wanted[n]);
            let tuned =
                if is == machine { String::new() } else { format!(" where this machine has {machine}") };
            let refused = wanted[..taken.unwrap_or(wanted.len())].join(" and ");
            let why = if refused.is_empty() { refused } else { format!(", since {refused} is refused") };
            fell_back |= !why.is_empty();
            said.push(format!("{key} {is}{tuned}{why}"));
        }
        Ok(Untuned { said: format!("tcp: {}", said.join("; ")), fell_back })
    }

    /// Reads a file as this namespace sees it.
    pub fn read(&self, path: &str) -> Result<String, LabError> {
        let file = path.to_string();
        self.run(move || fs::read_to_string(file))?
            .map_err(|e| LabError::new(format!("{path}: cannot be read in namespace {}: {e}", self.name)))
    }
}

impl Namespace {
    fn note(&self, undo: impl FnOnce() -> Undo) {
        if let Some(list) = &self.undo {
            list.lock().unwrap_or_else(PoisonError::into_inner).push(undo());
        }
    }

    fn change_back(&mut self) {
        let Some(list) = self.undo.take() else { return };
        for undo in list.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().rev() {
            // What is gone already (an interface that was unplugged) needs no changing back.
            let _ = match undo {
                Undo::Sysctl(key, old) => self.sysctl(&key, old.trim_end()),
                Undo::Batch(lines) => {
                    self.program("ip", vec!["-force".into(), "-batch".into(), "-".into()], Some(lines))
                }
            };
        }
    }
}

/// The line for `ip -batch` that takes back an `add` or a `replace`.
fn inverse(line: &str) -> Option<String> {
    let mut words = line.split_whitespace();
    let (mut object, mut verb) = (words.next()?.to_string(), words.next()?);
    if object == "xfrm" {
        object = format!("{object} {verb}");
        verb = words.next()?;
    }
    ["add", "replace"].contains(&verb).then_some(())?;
    let mut out = format!("{object} del");
    while let Some(word) = words.next() {
        match word {
            // how it was added, not what it is
            "nodad" | "permanent" | "nud" => {}
            "lladdr" | "priority" | "action" => drop(words.next()),
            word => out += &format!(" {word}"),
        }
    }
    Some(out + "\n")
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.change_back();
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A job that panicked has been reported to whoever waited for it.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::inverse;

    #[test]
    fn what_a_batch_adds_its_inverse_deletes() {
        for (line, expected) in [
            ("address add fd00::1/64 dev eth1 nodad", Some("address del fd00::1/64 dev eth1\n")),
            (
                "neighbor replace 10.20.0.2 lladdr 02:00:00:00:00:01 dev eth2 nud permanent",
                Some("neighbor del 10.20.0.2 dev eth2\n"),
            ),
            (
                "route add 32.1.2.0/24 via 10.20.0.3 dev eth2",
                Some("route del 32.1.2.0/24 via 10.20.0.3 dev eth2\n"),
            ),
            (
                "xfrm policy add src ::/0 dst ::/0 proto udp dport 7 dir out priority 7 action allow",
                Some("xfrm policy del src ::/0 dst ::/0 proto udp dport 7 dir out\n"),
            ),
            ("link set eth2 up", None),
        ] {
            assert_eq!(inverse(line).as_deref(), expected, "{line}");
        }
    }
}
