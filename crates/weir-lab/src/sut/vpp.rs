//! FD.io's VPP by its AF_PACKET host interfaces, one core, no workers, no huge pages: a router on the wires of a
//! namespace, with an SPD where the configuration has one, or two gateways with a tunnel between them.
//!
//! It is used where it is installed, and written from its documentation (releases 22.06 to 25.10): the lab's own tests
//! have its settings, its commands, its absence and its refusals, not its packets. Its drops are what `show errors` says
//! with severity `error`. What it cannot do as a configuration asks is refused before it is started; a command it
//! refuses is a finding about it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use weir_core::wire::DisplayMac;

use super::peer::{self, ProcessPlacement, Started};
use super::{Environment, Running};
use crate::model::{Configuration, Family, LabError};
use crate::netns::counters::Counters;
use crate::netns::namespace::Namespace;
use crate::netns::veth::Port;
use crate::workload::address;

pub mod gateway;
pub mod memory;
mod spd;
#[cfg(test)]
mod tests;

const MISSING: &str = "vpp: no such program (vpp and vppctl) in ~/.cache/weir/peers/bin or on the PATH: `scripts/peers vpp --source DIR` builds it";
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How its command line says that it did not do as it was told: exit codes say nothing.
const COMPLAINTS: [&str; 6] = ["unknown", "error", "failed", "invalid", "not supported", "no such"];
const PORTS: &str = "vpp: host interfaces (AF_PACKET), which copy every packet in the kernel and send by its queue; its main thread forwards";

/// Says what is missing to run VPP on the wires of a namespace.
pub fn missing(configuration: &Configuration) -> Option<String> {
    absent().or_else(|| spd::refused(configuration))
}

fn absent() -> Option<String> {
    (peer::find("vpp").is_none() || peer::find("vppctl").is_none()).then(|| MISSING.into())
}

/// One that runs and has its commands.
struct Daemon {
    started: Started,
    ctl: PathBuf,
    socket: PathBuf,
    note: String,
}

impl Daemon {
    /// `ipsec` is that section of its settings; empty leaves VPP's own.
    fn start(place: ProcessPlacement<'_>, ipsec: &str, commands: &str) -> Result<Daemon, LabError> {
        let (Some(program), Some(ctl)) = (peer::find("vpp"), peer::find("vppctl")) else {
            return Err(LabError::new(MISSING.into()));
        };
        let cpu = place.cpus.first().copied().unwrap_or_default();
        let mut settings = String::new();
        let started = Started::launch("vpp", place, |folder| {
            settings = startup(folder, cpu) + ipsec;
            let file = folder.join("startup.conf");
            fs::write(&file, &settings)?;
            fs::write(folder.join("commands"), commands)?;
            // What commands of a file answer goes to its output, line by line.
            let mut command = Command::new("stdbuf");
            command.arg("-oL").arg(program).arg("-c").arg(file);
            Ok(command)
        })?;
        let folder = started.folder.path().to_path_buf();
        let mut vpp = Daemon { started, ctl, socket: folder.join("cli.sock"), note: String::new() };
        let socket = vpp.socket.clone();
        vpp.started.wait(READY_WITHIN, |_| Ok(socket.exists()))?;
        let said = vpp.run(&folder.join("commands"))?;
        if complains(&said) {
            return Err(peer::refused_configuration("vpp", said.trim()));
        }
        let version = vpp.told(&["show", "version"])?;
        let steady = settings.replace(&folder.display().to_string(), "<folder>");
        let shown = steady.split_whitespace().collect::<Vec<_>>().join(" ");
        vpp.note = format!("vpp: {}: startup.conf: {shown}", version.trim());
        Ok(vpp)
    }

    /// Has it do the commands of a file, in one turn of its main loop; what they answer. It ends at the first it refuses.
    fn run(&mut self, file: &Path) -> Result<String, LabError> {
        let log = self.started.log.clone();
        let failed = |e: std::io::Error| LabError::new(format!("vpp: {}: {e}", log.display()));
        let before = fs::metadata(&log).map_err(failed)?.len() as usize;
        let refused = self.told(&["exec", &file.display().to_string()])?;
        let answered = fs::read(&log).map_err(failed)?;
        let answered = String::from_utf8_lossy(answered.get(before..).unwrap_or_default()).into_owned();
        Ok(answered + &refused)
    }

    fn told(&mut self, words: &[&str]) -> Result<String, LabError> {
        let output = Command::new(&self.ctl).arg("-s").arg(&self.socket).args(words).output();
        let output = output.map_err(|e| LabError::new(format!("vpp: vppctl cannot be started: {e}")))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
        let refused = || LabError::new(format!("vpp: vppctl {}: {said}", words.join(" ")));
        Err(self.started.ended().unwrap_or_else(refused))
    }
}

fn complains(said: &str) -> bool {
    let said = said.to_lowercase();
    COMPLAINTS.iter().any(|word| said.contains(word))
}

/// VPP on the wires of a namespace.
pub struct Vpp {
    daemon: Daemon,
    notes: Vec<String>,
}

impl Vpp {
    pub fn start(environment: &Environment<'_>) -> Result<Vpp, LabError> {
        let (configuration, place) = (
            environment.configuration,
            ProcessPlacement { namespace: Some(environment.namespace), cpus: environment.cpus },
        );
        let commands = commands(environment) + &spd::commands(configuration, &environment.output.name);
        let daemon = Daemon::start(place, &spd::settings(configuration), &commands)?;
        let mut notes = vec![daemon.note.clone(), PORTS.into()];
        notes.extend(spd::note(configuration));
        Ok(Vpp { daemon, notes })
    }
}

/// An interface with its addresses. Past the kernel's queue it would send no more once the other end's ring was full.
fn interface(text: &mut String, port: &Port, addresses: &[String]) {
    let (name, mac) = (&port.name, port.mac_text());
    let _ = writeln!(text, "create host-interface name {name} hw-addr {mac} qdisc-bypass-disable");
    let _ = writeln!(text, "set interface state host-{name} up");
    for address in addresses {
        let _ = writeln!(text, "set interface ip address host-{name} {address}");
    }
}

/// Everything it makes is in the lab's folder; its memory has no huge pages.
fn startup(folder: &Path, cpu: u32) -> String {
    let at = |name: &str| folder.join(name).display().to_string();
    format!(
        "unix {{\n  nodaemon\n  runtime-dir {}\n  cli-listen {}\n  log {}\n}}\n\
         api-segment {{\n  prefix {}\n}}\nsocksvr {{\n  socket-name {}\n}}\nstatseg {{\n  socket-name {}\n}}\n\
         cpu {{\n  main-core {cpu}\n}}\nbuffers {{\n  page-size default\n  buffers-per-numa 16384\n}}\n\
         plugins {{\n  plugin dpdk_plugin.so {{ disable }}\n}}\n",
        folder.display(),
        at("cli.sock"),
        at("vpp.log"),
        folder.file_name().map_or("lab".into(), |name| name.to_string_lossy().into_owned()),
        at("api.sock"),
        at("stats.sock"),
    )
}

/// Interfaces, addresses, neighbours and routes, as its command line takes them.
fn commands(environment: &Environment<'_>) -> String {
    let mut text = String::new();
    let (v4, v6) = ((address::IN_V4, address::OUT_V4), (address::IN_V6, address::OUT_V6));
    for (port, a4, a6) in [(environment.input, v4.0, v6.0), (environment.output, v4.1, v6.1)] {
        interface(&mut text, port, &[format!("{}/{}", a4.0, a4.1), format!("{}/{}", a6.0, a6.1)]);
    }
    let out = format!("host-{}", environment.output.name);
    let mac = DisplayMac(environment.gateway_mac);
    for family in [Family::Inet, Family::Inet6] {
        for n in 0..address::GATEWAYS {
            let _ = writeln!(text, "set ip neighbor {out} {} {mac} static", address::gateway(family, n));
        }
    }
    let family = environment.configuration.workload.family;
    for n in 0..environment.configuration.routes {
        let ((network, len), gateway) = (address::prefix(family, n), address::gateway(family, n));
        let _ = writeln!(text, "ip route add {network}/{len} via {gateway} {out}");
    }
    text
}

impl Running for Vpp {
    fn drops(&mut self, _: &Namespace) -> Result<Counters, LabError> {
        Ok(errors(&self.daemon.told(&["show", "errors"])?))
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn ended(&mut self) -> Option<LabError> {
        self.daemon.started.ended()
    }
}

/// Lines of a count, a node, a reason and, in newer releases, a severity; columns are two spaces apart or more.
fn errors(said: &str) -> Counters {
    let mut found = Counters::new();
    for line in said.lines() {
        let columns: Vec<&str> = line.split("  ").map(str::trim).filter(|c| !c.is_empty()).collect();
        let (count, node, reason) = match columns[..] {
            [count, node, reason] | [count, node, reason, "error"] => (count, node, reason),
            _ => continue,
        };
        if let Ok(count) = count.parse::<u64>() {
            *found.entry(format!("vpp.{node}.{}", reason.replace(' ', "_"))).or_default() += count;
        }
    }
    found
}
