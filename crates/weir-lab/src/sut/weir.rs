//! The `weir` daemon, started as any user would: a configuration file and `weir run`.
//!
//! The lab never links it. What it knows of it is its configuration language and what its control socket
//! says. Its addresses are its own (the kernel has none), so nothing but weir forwards.

pub mod esp;
pub mod gateway;
pub mod keyed;
pub mod relay;
pub mod spd;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use weir_core::wire::DisplayMac;

use super::control::Control;
use super::{Environment, Running, peer};
use crate::model::ipsec::Mode;
use crate::model::{Family, LabError};
use crate::netns::counters::Counters;
use crate::netns::namespace::Namespace;
use crate::netns::residue::Folder;
use crate::workload::address;

/// Reading a million routes and building their tables takes some ten seconds; a debug build, ten times that.
const READY_WITHIN: Duration = Duration::from_secs(180);
const LOOK: Duration = Duration::from_millis(20);
/// The end of its log that an error quotes.
const LOG_LINES: usize = 12;

/// What happens to a test packet the daemon does not forward, in its own words; `local` and `held` too.
#[derive(serde::Deserialize)]
struct WorkerCounters {
    local: u64,
    held: u64,
    drops: BTreeMap<String, u64>,
    #[serde(default)]
    cpu: u32,
}

#[derive(serde::Deserialize)]
struct Port {
    name: String,
    kind: String,
    #[serde(default)]
    losses: BTreeMap<String, u64>,
    #[serde(default)]
    opened: Vec<String>,
    #[serde(default)]
    fallbacks: Vec<String>,
}

#[derive(serde::Deserialize)]
struct Status {
    version: String,
    balance: i64,
    #[serde(default)]
    notices: Vec<String>,
}

/// An SA, and the code that seals and opens by it.
#[derive(serde::Deserialize)]
struct Sa {
    suite: String,
    backend: String,
}

/// Flows past the kernel's firewall.
#[derive(serde::Deserialize)]
struct Offload {
    xdp: u64,
    events: BTreeMap<String, u64>,
}

pub struct Weir {
    child: Child,
    control: Control,
    notes: Vec<String>,
    fallbacks: Vec<String>,
    // Dropped last: the daemon's socket and log are in it.
    folder: Folder,
}

/// The program: beside this one, or on the `PATH`.
pub fn program() -> Option<PathBuf> {
    peer::beside("weir").or_else(|| peer::on_path("weir"))
}

impl Weir {
    pub fn start(environment: &Environment) -> Result<Weir, LabError> {
        let roles = [(&environment.input.name, "din"), (&environment.output.name, "dout")];
        let (own, workers) = (environment.configuration, environment.cpus.len());
        let mut weir = Weir::launch(environment.namespace, &roles, |folder, socket| {
            esp::write_keys(own, workers, folder)?;
            Ok(configuration(environment, socket))
        })?;
        let port =
            if esp::of(own).is_some_and(|p| !p.seals() && !p.bypasses()) { "come in" } else { "leave" };
        let policies =
            super::policies::note(own).filter(|_| own.ipsec().is_some_and(|p| p.mode == Mode::Policy));
        weir.notes
            .extend(policies.map(|said| format!("weir: the SPD of the port packets {port} by: {said}")));
        if let Some(said) = esp::note(own, workers) {
            let sas: Vec<Sa> = weir.control.get("/v1/sa")?;
            let by = sas.first().map_or(String::new(), |sa| format!(", {} ({})", sa.suite, sa.backend));
            weir.notes.push(said + &by);
        }
        Ok(weir)
    }

    /// Starts it in `namespace` with the configuration written for its folder and socket. `roles` are what
    /// notes call its interfaces.
    fn launch(
        namespace: &Namespace,
        roles: &[(&String, &str)],
        configuration: impl Fn(&Path, &Path) -> std::io::Result<String>,
    ) -> Result<Weir, LabError> {
        let program = program().ok_or_else(|| LabError::new(super::MISSING_WEIR.into()))?;
        let folder = Folder::new()?;
        let (file, socket) = (folder.path().join("weir.toml"), folder.path().join("weir.sock"));
        let log = folder.path().join("weir.log");
        // Of this run alone: no run goes on from another's sequence numbers.
        let state = folder.path().join("state");
        let failed = |what: &str, e: std::io::Error| LabError::new(format!("weir: {what}: {e}"));
        let written = configuration(folder.path(), &socket).and_then(|text| fs::write(&file, text));
        written.map_err(|e| failed("configuration", e))?;
        let output = File::create(&log).map_err(|e| failed("log", e))?;
        let errors = output.try_clone().map_err(|e| failed("log", e))?;
        let child = namespace
            .run(move || {
                let mut command = Command::new(program);
                command.env("STATE_DIRECTORY", state);
                command.arg("run").arg(file).stdin(Stdio::null()).stdout(output).stderr(errors);
                super::as_service(&mut command).spawn()
            })?
            .map_err(|e| failed("cannot be started", e))?;
        let (notes, fallbacks) = (Vec::new(), Vec::new());
        let mut weir = Weir { child, control: Control::new(socket), notes, fallbacks, folder };
        weir.folder.record_sut(weir.child.id())?;
        weir.wait_until_ready(&log)?;
        // interfaces have another name in every run: notes name their role, so that runs say the same
        let steady = |note: String| roles.iter().fold(note, |n, (name, role)| n.replace(*name, role));
        let (notes, fallbacks) = weir.describe()?;
        weir.notes = notes.into_iter().map(steady).collect();
        weir.fallbacks = fallbacks.into_iter().map(steady).collect();
        Ok(weir)
    }

    fn wait_until_ready(&mut self, log: &Path) -> Result<(), LabError> {
        let until = Instant::now() + READY_WITHIN;
        loop {
            if self.control.get::<Status>("/v1/status").is_ok() {
                return Ok(());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(LabError::new(format!("weir: ended at its start ({status}): {}", tail(log))));
            }
            if Instant::now() > until {
                let waited = READY_WITHIN.as_secs();
                return Err(LabError::new(format!("weir: not ready after {waited} s: {}", tail(log))));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// What a reader of its values must know, and which of that says that a better way was refused.
    fn describe(&self) -> Result<(Vec<String>, Vec<String>), LabError> {
        let status: Status = self.control.get("/v1/status")?;
        let ports: Vec<Port> = self.control.get("/v1/ports")?;
        let workers: Vec<WorkerCounters> = self.control.get("/v1/workers")?;
        let cpus = workers.iter().map(|w| w.cpu.to_string()).collect::<Vec<_>>().join(", ");
        let mut notes = vec![format!("weir {}: {} workers on cpu {cpus}", status.version, workers.len())];
        let mut fallbacks = Vec::new();
        for port in ports {
            let of_port = |line: &String| format!("weir port {}: {line}", port.name);
            notes.push(of_port(&port.kind));
            notes.extend(port.opened.iter().map(of_port));
            fallbacks.extend(port.fallbacks.iter().map(of_port));
        }
        notes.extend(status.notices.iter().map(|notice| format!("weir: {notice}")));
        Ok((notes, fallbacks))
    }
}

/// With a firewall addresses, routes and neighbours are the kernel's, and it is asked.
fn behind_a_firewall(environment: &Environment, socket: &Path) -> String {
    let mut text = format!("routes = \"kernel\"\nfirewall = \"kernel\"\n[control]\nsocket = {socket:?}\n");
    let _ = writeln!(text, "[workers]\ncpus = {:?}", environment.cpus);
    for (name, port) in [("in", environment.input), ("out", environment.output)] {
        let device = &port.name;
        let _ =
            write!(text, "\n[[port]]\nname = \"{name}\"\ndevice = \"{device}\"\naddresses = \"kernel\"\n");
    }
    text
}

fn configuration(environment: &Environment, socket: &Path) -> String {
    if environment.configuration.firewall().is_some() {
        return behind_a_firewall(environment, socket);
    }
    let own = environment.configuration;
    let placement = &own.placement;
    let kind = if placement.port.is_empty() { "af_xdp" } else { &placement.port };
    let mut text = format!("[control]\nsocket = {:?}\n\n[workers]\ncpus = {:?}\n", socket, environment.cpus);
    let modes = own.nic_modes().cloned().unwrap_or_default();
    for (key, word) in modes.of_weir() {
        let _ = writeln!(text, "{key} = \"{word}\"");
    }
    if modes.is_named() && modes.flow_offload.is_empty() {
        // What is asked is how workers get frames: all have to go through them.
        text += "flow_offload = \"off\"\n";
    }
    let (v4, v6) = ((address::IN_V4, address::OUT_V4), (address::IN_V6, address::OUT_V6));
    for (name, port, a4, a6) in
        [("in", environment.input, v4.0, v6.0), ("out", environment.output, v4.1, v6.1)]
    {
        let _ = write!(
            text,
            "\n[[port]]\nname = \"{name}\"\ndevice = \"{}\"\nkind = \"{kind}\"\naddresses = [\"{}/{}\", \"{}/{}\"]\n",
            port.name, a4.0, a4.1, a6.0, a6.1
        );
    }
    let mac = DisplayMac(environment.gateway_mac);
    for family in [Family::Inet, Family::Inet6] {
        for n in 0..address::GATEWAYS {
            let gateway = address::gateway(family, n);
            let _ =
                write!(text, "\n[[neighbor]]\nport = \"out\"\naddress = \"{gateway}\"\nmac = \"{mac}\"\n");
        }
    }
    let family = environment.configuration.workload.family;
    for n in 0..environment.configuration.routes {
        let (network, len) = address::prefix(family, n);
        let via = match esp::routes_lead_in(own) {
            true => format!("{{ port = \"{}\" }}", esp::TUNNEL),
            false => format!("\"{}\"", address::gateway(family, n)),
        };
        let _ = write!(text, "\n[[route]]\nprefix = \"{network}/{len}\"\nvia = {via}\n");
    }
    match esp::of(own) {
        Some(_) => text + &esp::tables(own, environment.cpus.len()),
        None => text + &spd::tables(own),
    }
}

pub(super) fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    if lines.is_empty() {
        return "it said nothing".into();
    }
    lines[lines.len().saturating_sub(LOG_LINES)..].join(" | ")
}

impl Running for Weir {
    fn drops(&mut self, _: &Namespace) -> Result<Counters, LabError> {
        let workers: Vec<WorkerCounters> = self.control.get("/v1/workers")?;
        let ports: Vec<Port> = self.control.get("/v1/ports")?;
        let mut found = Counters::new();
        for worker in workers {
            for (reason, packets) in worker.drops {
                *found.entry(format!("weir.{reason}")).or_default() += packets;
            }
            *found.entry("weir.local".into()).or_default() += worker.local;
            *found.entry("weir.held".into()).or_default() += worker.held;
        }
        for port in ports {
            // What the socket's ring refused on receive, and a far end's queue when sending, is in the veth's own counters already.
            if let Some(&packets) = port.losses.get("tx_invalid") {
                found.insert(format!("weir.{}.tx_invalid", port.name), packets);
            }
        }
        Ok(found)
    }

    fn await_flows(&mut self, flows: u32) -> Result<(), LabError> {
        let until = Instant::now() + READY_WITHIN;
        loop {
            let Offload { xdp, .. } = self.control.get("/v1/offload")?;
            if xdp >= u64::from(flows) {
                self.notes.push(format!("weir: {xdp} flows past the kernel's firewall"));
                return Ok(());
            }
            if Instant::now() > until {
                return Err(LabError::new(format!(
                    "weir: took {xdp} of {flows} flows; `weir show offload` says why"
                )));
            }
            std::thread::sleep(LOOK);
        }
    }

    fn taken(&mut self) -> Result<Option<u64>, LabError> {
        let Offload { events, .. } = self.control.get("/v1/offload")?;
        Ok(events.get("taken").copied())
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn fallbacks(&self) -> Vec<String> {
        self.fallbacks.clone()
    }

    fn ended(&mut self) -> Option<LabError> {
        let status = self.child.try_wait().ok().flatten()?;
        Some(super::peer::ended_by_itself("weir", status, &tail(&self.folder.path().join("weir.log"))))
    }

    fn warnings(&mut self) -> Vec<String> {
        match self.control.get::<Status>("/v1/status") {
            Ok(status) if status.balance != 0 => {
                vec![format!(
                    "weir: {} frames unaccounted for inside the daemon; this is a defect",
                    status.balance
                )]
            }
            Ok(_) => Vec::new(),
            Err(error) => vec![error.said],
        }
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        super::end(&mut self.child);
    }
}
