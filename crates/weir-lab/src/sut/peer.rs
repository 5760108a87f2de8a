//! Programs of others that the lab starts: where they are found, and one that runs.
//!
//! A program that runs has a folder for its files, its log and its process number, stands in a namespace or
//! not, and is gone, folder and all, when it is dropped. Its standard input stays open and silent as long as it
//! runs: some take the end of it for a command to end.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use weir_stats::search::LossLedger;

use crate::machine;
use crate::model::{LabError, Misbehaviour, Sut};
use crate::netns::namespace::Namespace;
use crate::netns::residue::Folder;

const LOOK: Duration = Duration::from_millis(20);

/// Where Debian has strongSwan's daemon, which is on no `PATH`.
const DAEMONS: &str = "/usr/lib/ipsec";

/// A peer's program: where the project's own peers are kept, or on the `PATH`.
pub fn find(name: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")));
    let kept = cache.map(|cache| cache.join("weir/peers/bin"));
    kept.map(|folder| folder.join(name))
        .filter(|program| program.is_file())
        .or_else(|| on_path(name))
        .or_else(|| Some(Path::new(DAEMONS).join(name)).filter(|program| program.is_file()))
}

/// A program of the build this one is of: tests and examples lie one folder deeper.
pub fn beside(name: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    own.ancestors().skip(1).take(2).map(|folder| folder.join(name)).find(|program| program.is_file())
}

/// A program of this name on the `PATH`.
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.is_file())
}

/// The program of others that a SUT is.
pub fn program_of(sut: Sut) -> Option<&'static str> {
    match sut {
        Sut::DpdkL3fwd => Some("dpdk-l3fwd"),
        Sut::DpdkTestpmd => Some("dpdk-testpmd"),
        Sut::DpdkIpsecSecgw => Some("dpdk-ipsec-secgw"),
        Sut::Vpp | Sut::VppEnds => Some("vpp"),
        Sut::Derper => Some("derper"),
        Sut::HyperDerp => Some("hyper-derp"),
        Sut::Strongswan | Sut::StrongswanKernel | Sut::WeirStrongswan => Some("charon"),
        Sut::TailscaleWeir | Sut::TailscaleDerper => Some("tailscaled"),
        Sut::Weir
        | Sut::Kernel
        | Sut::KernelXfrm
        | Sut::XdpFib
        | Sut::TcpForwarder
        | Sut::Command
        | Sut::Baseline => None,
    }
}

/// How each says its version. Those of DPDK say it only once they run.
const VERSIONS: [(&str, &str); 5] = [
    ("derper", "-version"),
    ("hyper-derp", "--version"),
    ("vpp", "--version"),
    ("charon", "--version"),
    ("tailscaled", "--version"),
];

/// What a program says of its version, or its library.
pub fn version(name: &str) -> Option<String> {
    let program = find(name)?;
    match VERSIONS.iter().find(|(known, _)| *known == name) {
        Some((_, flag)) => machine::version(&program, flag),
        None => library(&program),
    }
}

/// DPDK's programs are of the version of the library they are linked with.
fn library(program: &Path) -> Option<String> {
    let output = Command::new("ldd").arg(program).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.contains("librte_eal.so"))?;
    let target = std::fs::canonicalize(line.split_whitespace().nth(2)?).ok()?;
    let name = target.file_name()?.to_string_lossy();
    Some(format!("DPDK, ABI {}", name.strip_prefix("librte_eal.so.")?))
}

/// Where a program is to run.
#[derive(Clone, Copy)]
pub struct ProcessPlacement<'a> {
    /// The namespace it runs in; `None` is the lab's own.
    pub namespace: Option<&'a Namespace>,
    /// All its threads are bound to these; empty leaves it free.
    pub cpus: &'a [u32],
}

/// A program's process, its log and its files.
pub struct Started {
    pub child: Child,
    pub name: &'static str,
    pub log: PathBuf,
    // Dropped last: the program's files are in it.
    pub folder: Folder,
}

impl Started {
    /// Starts what `command` makes for a folder.
    pub fn launch(
        name: &'static str,
        place: ProcessPlacement<'_>,
        command: impl FnOnce(&Path) -> std::io::Result<Command>,
    ) -> Result<Started, LabError> {
        let failed = |what: &str, e: std::io::Error| LabError::new(format!("{name}: {what}: {e}"));
        let folder = Folder::new()?;
        let log = folder.path().join("sut.log");
        let mut command = command(folder.path()).map_err(|e| failed("its files", e))?;
        let output = File::create(&log).map_err(|e| failed("log", e))?;
        let errors = output.try_clone().map_err(|e| failed("log", e))?;
        let mut cpus = CpuSet::new();
        place.cpus.iter().for_each(|&cpu| cpus.set(cpu as usize));
        let bound = !place.cpus.is_empty();
        let spawn = move || {
            // its process inherits what this thread may run on
            if bound {
                sched_setaffinity(None, &cpus)?;
            }
            command.stdin(Stdio::piped()).stdout(output).stderr(errors);
            super::as_service(&mut command).spawn()
        };
        let child = match place.namespace {
            Some(namespace) => namespace.run(spawn)?,
            None => spawn(),
        };
        let child = child.map_err(|e| failed("cannot be started", e))?;
        let started = Started { child, name, log, folder };
        started.folder.record_sut(started.child.id())?;
        Ok(started)
    }

    /// Waits until `ready` says so; a program that ends before, or takes too long, is quoted.
    pub fn wait(
        &mut self,
        within: Duration,
        mut ready: impl FnMut(&Started) -> Result<bool, LabError>,
    ) -> Result<(), LabError> {
        let until = Instant::now() + within;
        while !ready(self)? {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(LabError::new(format!(
                    "{}: ended at its start ({status}): {}",
                    self.name,
                    self.said()
                )));
            }
            if Instant::now() > until {
                let (name, waited) = (self.name, within.as_secs());
                return Err(LabError::new(format!("{name}: not ready after {waited} s: {}", self.said())));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// An error with the end of its log, if it ended by itself.
    pub fn ended(&mut self) -> Option<LabError> {
        let status = self.child.try_wait().ok().flatten()?;
        Some(ended_by_itself(self.name, status, &self.said()))
    }

    /// The end of its log.
    pub fn said(&self) -> String {
        super::weir::tail(&self.log)
    }

    /// All it logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

/// How a SUT's end is said.
pub fn ended_by_itself(name: &str, status: std::process::ExitStatus, said: &str) -> LabError {
    LabError::by_sut(Misbehaviour::Ended, format!("{name}: ended while it was measured ({status}): {said}"))
}

/// How a relay's broken stream is said.
pub fn broke_a_stream(name: &str, error: &LabError) -> LabError {
    LabError::by_sut(Misbehaviour::BrokeStream, format!("{name}: broke a stream: {error}"))
}

/// How a SUT that lets nothing through is said: zero is no value that others are a multiple of.
pub fn delivered_nothing(name: &str, ledger: &LossLedger) -> LabError {
    let LossLedger { sent, drops, .. } = ledger;
    let said = format!("{name}: none of {sent} packets came through; drops {drops:?}");
    LabError::by_sut(Misbehaviour::DeliveredNothing, said)
}

/// How a refused configuration is said.
pub fn refused_configuration(name: &str, said: &str) -> LabError {
    let said = format!("{name}: refuses its configuration: {said}");
    LabError::by_sut(Misbehaviour::RefusedConfiguration, said)
}

impl Drop for Started {
    fn drop(&mut self) {
        super::end(&mut self.child);
    }
}
