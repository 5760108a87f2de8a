//! FD.io's VPP by its AF_PACKET host interfaces, one core, no workers, no huge pages: a router on the wires of a
//! namespace, with an SPD where the configuration has one, or two gateways with a tunnel between them.
//!
//! It is used where it is installed. Its drops are what its drop nodes took and what its ports could not send
//! ([`counted`]). What it cannot do as a configuration asks is refused before it is started; a command it refuses is a
//! finding about it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use weir_core::wire::DisplayMac;
use weir_io::xdp_pass::Pass;

use super::kernel::without_gro;
use super::peer::{self, ProcessPlacement, Started};
use super::{Environment, Running};
use crate::model::ipsec::Protection;
use crate::model::{Configuration, Family, LabError};
use crate::netns::counters::Counters;
use crate::netns::namespace::Namespace;
use crate::netns::veth::Port;
use crate::workload::address;

mod counted;
pub mod gateway;
pub mod memory;
mod spd;
#[cfg(test)]
mod tests;

const MISSING: &str = "vpp: no such program (vpp and vppctl) in ~/.cache/weir/peers/bin or on the PATH: `scripts/peers vpp --source DIR` builds it";
const READY_WITHIN: Duration = Duration::from_secs(60);
/// A million routes take it a minute.
const ANSWERS_WITHIN_S: u32 = 600;
/// How `timeout` says that it ended a program.
const TOOK_TOO_LONG: i32 = 124;
/// How its command line says that it did not do as it was told: exit codes say nothing.
const COMPLAINTS: [&str; 6] = ["unknown", "error", "failed", "invalid", "not supported", "no such"];
/// Why it is not asked to seal without cipher and check.
const UNSEALED: &str =
    "it drops what an SA without cipher and check would seal: use another cipher, such as null+hmac-sha1-96";
const PORTS: &str = "vpp: host interfaces (AF_PACKET), which copy every packet in the kernel, GRO off; its main thread forwards";

/// Says what is missing to run VPP on the wires of a namespace.
pub fn missing(configuration: &Configuration) -> Option<String> {
    absent().or_else(|| spd::refused(configuration))
}

/// Whether an SA of this suite would change nothing of a packet but what is around it.
fn unsealed(p: &Protection) -> bool {
    p.cipher.0.encryption().key_len() == 0 && p.cipher.0.integrity().is_none()
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
        // the file is there before anyone listens
        let mut asked = vpp.vppctl(&["show", "version"]);
        let mut answers = || asked.output().is_ok_and(|said| said.status.success());
        vpp.started.wait(READY_WITHIN, |_| Ok(socket.exists() && answers()))?;
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

    /// What it answers to these commands, done in one turn of its main loop.
    fn ask(&mut self, commands: &str) -> Result<String, LabError> {
        let file = self.started.folder.path().join("asked");
        fs::write(&file, commands).map_err(|e| LabError::new(format!("vpp: {}: {e}", file.display())))?;
        self.run(&file)
    }

    fn vppctl(&self, words: &[&str]) -> Command {
        // it waits for ever by itself
        let mut command = Command::new("timeout");
        command.arg(ANSWERS_WITHIN_S.to_string()).arg(&self.ctl).arg("-s").arg(&self.socket).args(words);
        command
    }

    fn told(&mut self, words: &[&str]) -> Result<String, LabError> {
        let output = self.vppctl(words).output();
        let output = output.map_err(|e| LabError::new(format!("vpp: vppctl cannot be started: {e}")))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = match output.status.code() {
            Some(TOOK_TOO_LONG) => format!("no answer within {ANSWERS_WITHIN_S} s"),
            _ => String::from_utf8_lossy(&output.stderr).trim().to_string(),
        };
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
    /// What it lost since it was started, by reason.
    dropped: Counters,
    _unmerged: [Pass; 2],
}

impl Vpp {
    pub fn start(environment: &Environment<'_>) -> Result<Vpp, LabError> {
        let (configuration, place) = (
            environment.configuration,
            ProcessPlacement { namespace: Some(environment.namespace), cpus: environment.cpus },
        );
        let [input, output] = [environment.input, environment.output];
        let unmerged = [unmerged(environment.namespace, input)?, unmerged(environment.namespace, output)?];
        // its ports are given what the kernel of the namespace sends, too
        environment.namespace.sysctl("net/ipv6/conf/all/disable_ipv6", "1")?;
        let commands = commands(environment) + &spd::commands(configuration, &environment.output.name);
        let daemon = Daemon::start(place, &spd::settings(configuration), &commands)?;
        let mut notes = vec![daemon.note.clone(), PORTS.into()];
        notes.extend(spd::note(configuration));
        Ok(Vpp { daemon, notes, dropped: Counters::new(), _unmerged: unmerged })
    }
}

/// Has a port's packets come as they were on the wire: what GRO merges is longer than a frame of VPP's ring.
fn unmerged(namespace: &Namespace, port: &Port) -> Result<Pass, LabError> {
    let name = port.name.clone();
    let pass = namespace.run(move || without_gro(&name))?;
    pass.map_err(|e| LabError::new(format!("vpp: {}: GRO cannot be switched off: {e}", port.name)))
}

/// An interface with its addresses. Without `cksum-gso-disable` VPP writes no header of offloads for a device that has
/// none, and yet tells the kernel to expect one: which then throws every frame away, counted nowhere.
fn interface(text: &mut String, port: &Port, addresses: &[String]) {
    let (name, mac) = (&port.name, port.mac_text());
    let _ = writeln!(text, "create host-interface name {name} hw-addr {mac} cksum-gso-disable");
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
        let said = self.daemon.ask("show runtime\nshow errors\nclear runtime\nclear errors\n")?;
        for (reason, packets) in counted::drops(&counted::nodes(&said), counted::errors(&said)) {
            *self.dropped.entry(reason).or_default() += packets;
        }
        Ok(self.dropped.clone())
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn ended(&mut self) -> Option<LabError> {
        self.daemon.started.ended()
    }
}
