//! What a DERP relay is to the topology `relay`, and how the lab starts one.
//!
//! A relay promises to listen on an address of its namespace, on the CPUs it was given, to say which of its own
//! counters its losses are in, and to be gone when it is dropped.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use weir_io::process;

use crate::bed::netns::counters::Counters;
use crate::bed::netns::namespace::Namespace;
use crate::bed::netns::residue::Folder;
use crate::model::LabError;
use crate::model::relay::Relay;

/// Where relays listen: nothing else does in a namespace of its own.
pub const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 3340);
const READY_WITHIN: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

/// Where a relay stands.
pub struct Stand<'a> {
    pub namespace: &'a Namespace,
    pub cpus: &'a [u32],
    pub relay: Relay,
}

/// A relay that is up.
pub trait Relaying {
    /// The process that relays.
    fn process(&self) -> u32;

    /// Its own drop counters, cumulative, named `subject.reason`.
    fn drops(&mut self, namespace: &Namespace) -> Result<Counters, LabError>;

    fn notes(&self) -> Vec<String>;

    /// What it knows to be wrong with itself after a run.
    fn doubts(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// A relay's process, its log and its files.
pub struct Started {
    pub child: Child,
    name: &'static str,
    log: PathBuf,
    // Dropped last: the relay's files are in it.
    pub folder: Folder,
}

impl Started {
    /// Starts what `command` makes for a folder, bound to the stand's CPUs, and waits until it accepts.
    pub fn launch(
        name: &'static str,
        stand: &Stand<'_>,
        command: impl FnOnce(&Path) -> std::io::Result<Command>,
    ) -> Result<Started, LabError> {
        let failed = |what: &str, e: std::io::Error| LabError(format!("{name}: {what}: {e}"));
        let folder = Folder::new()?;
        let log = folder.path().join("relay.log");
        let mut command = command(folder.path()).map_err(|e| failed("its files", e))?;
        let output = File::create(&log).map_err(|e| failed("log", e))?;
        let errors = output.try_clone().map_err(|e| failed("log", e))?;
        let mut cpus = CpuSet::new();
        stand.cpus.iter().for_each(|&cpu| cpus.set(cpu as usize));
        let child = stand
            .namespace
            .run(move || {
                // its process inherits what this thread may run on
                sched_setaffinity(None, &cpus)?;
                command.stdin(Stdio::null()).stdout(output).stderr(errors);
                process::dies_with_starter(&mut command).spawn()
            })?
            .map_err(|e| failed("cannot be started", e))?;
        let mut started = Started { child, name, log, folder };
        started.folder.record_subject(started.child.id())?;
        started.wait_until_ready(stand.namespace)?;
        Ok(started)
    }

    fn wait_until_ready(&mut self, namespace: &Namespace) -> Result<(), LabError> {
        let until = Instant::now() + READY_WITHIN;
        while namespace.run(|| TcpStream::connect(ADDRESS))?.is_err() {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(LabError(format!(
                    "{}: ended at its start ({status}): {}",
                    self.name,
                    self.said()
                )));
            }
            if Instant::now() > until {
                let waited = READY_WITHIN.as_secs();
                return Err(LabError(format!(
                    "{}: does not accept after {waited} s: {}",
                    self.name,
                    self.said()
                )));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn said(&self) -> String {
        super::weir::tail(&self.log)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        super::end(&mut self.child);
    }
}

/// A peer's program: where the project's own peers are kept, or on the `PATH`.
pub fn peer(name: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")));
    let kept = cache.map(|cache| cache.join("weir/peers/bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    kept.into_iter().chain(std::env::split_paths(&path)).map(|folder| folder.join(name)).find(|p| p.is_file())
}

/// CPU time a process has used so far, clock ticks.
pub fn process_ticks(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in parentheses may hold anything, so count from its end: state is the third field.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
}

/// Memory of a process in this machine's, bytes (`Rss`).
pub fn memory(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}
