//! What a DERP relay is to the lab, and how the lab starts one: on the topology `relay`, and on a host.
//!
//! A relay promises to listen on an address of its namespace, on the CPUs it was given, to say which of its own
//! counters its losses are in, and to be gone when it is dropped.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_io::process::stat_field;

use super::derper::Derper;
use super::hyper_derp::HyperDerp;
use super::peer::{ProcessPlacement, Started};
use super::tcp_forwarder::TcpForwarder;
use super::weir::relay::Weir;
use crate::cachesim::live::Live;
use crate::model::relay::{RelayScenario, Tls};
use crate::model::{LabError, Sut};
use crate::netns::counters::{Counters, cpu_ticks};
use crate::netns::namespace::Namespace;
use crate::workload::address;

/// Where relays listen: a port that no service has.
const PORT: u16 = 3340;
/// The address in a namespace of its own, where nothing else listens.
pub const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), PORT);
/// The address on a host: its own on the wire to the clients, as in forwarding.
pub const ON_HOST: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(address::IN_V4.0), PORT);
/// Time within which a relay is ready, a simulated one on a busy machine included.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// Where a relay stands.
pub struct Environment<'a> {
    pub namespace: &'a Namespace,
    pub cpus: &'a [u32],
    /// Where it is to listen.
    pub address: SocketAddr,
    pub relay: RelayScenario,
}

/// A relay that is up.
pub trait Relaying {
    /// The process that relays.
    fn process(&self) -> u32;

    /// Its own drop counters, cumulative, named `SUT.reason`.
    fn drops(&mut self, namespace: &Namespace) -> Result<Counters, LabError>;

    fn notes(&self) -> Vec<String>;

    /// An error with the end of its log, if it ended by itself.
    fn ended(&mut self) -> Option<LabError>;

    /// Where its caches are simulated: what counts them.
    fn simulation(&self) -> Option<Live> {
        None
    }

    /// What it knows to be wrong with itself after a run.
    fn warnings(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// Starts the relay that a SUT is; `None` where it is none.
pub fn start(sut: Sut, environment: &Environment<'_>) -> Result<Option<Box<dyn Relaying>>, LabError> {
    Ok(match sut {
        Sut::Derper => Some(Box::new(Derper::start(environment)?)),
        Sut::HyperDerp => Some(Box::new(HyperDerp::start(environment)?)),
        Sut::Weir => Some(Box::new(Weir::start(environment)?)),
        Sut::TcpForwarder => Some(Box::new(TcpForwarder::start(environment)?)),
        _ => None,
    })
}

/// Starts a relay bound to the stand's CPUs, and waits until it accepts.
pub fn launch(
    name: &'static str,
    environment: &Environment<'_>,
    command: impl FnOnce(&Path) -> std::io::Result<Command>,
) -> Result<Started, LabError> {
    let place = ProcessPlacement { namespace: Some(environment.namespace), cpus: environment.cpus };
    let mut started = Started::launch(name, place, command)?;
    let address = environment.address;
    started.wait(READY_WITHIN, |_| {
        Ok(environment.namespace.run(move || TcpStream::connect(address))?.is_ok())
    })?;
    Ok(started)
}

/// CPU time a process has used so far, clock ticks.
pub fn process_ticks(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let ticks = |field| stat_field(&stat, field)?.parse::<u64>().ok();
    Some(ticks(14)? + ticks(15)?)
}

/// Clock ticks so far. CPUs have (busy, all).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticks {
    /// The relay's CPUs.
    pub cpus: Option<(u64, u64)>,
    pub process: Option<u64>,
    /// All CPUs, where these are read.
    pub machine: Option<(u64, u64)>,
}

impl Ticks {
    pub fn read(cpus: &[u32], process: Option<u32>) -> Ticks {
        Ticks { cpus: cpu_ticks(cpus), process: process.and_then(process_ticks), machine: None }
    }
}

/// Memory of a process in this machine's, bytes (`Rss`).
pub fn memory(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// Why the kernel cannot do TLS records; its module is loaded if there is one.
pub fn missing_kernel_tls(tls: Tls) -> Option<String> {
    let known = || {
        let all = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_ulp").unwrap_or_default();
        all.split_whitespace().any(|ulp| ulp == "tls")
    };
    if tls != Tls::Kernel || known() {
        return None;
    }
    // a machine without modules or without the program has none to load
    let modprobe = std::fs::read_to_string("/proc/sys/kernel/modprobe").unwrap_or_default();
    let _ =
        std::process::Command::new(modprobe.trim()).arg("tls").stderr(std::process::Stdio::null()).status();
    (!known()).then(|| {
        "relay: this kernel has no TLS (CONFIG_TLS, module tls): use one that has it, or tls = \"user\""
            .into()
    })
}

/// Why a relay's counters cannot be had from what it says.
#[derive(Debug)]
pub enum NoCounters {
    Unread(std::io::Error),
    /// A line without a reason of drops.
    Reason(String),
    /// A line without a number.
    Number(String),
    /// Nothing of packets dropped.
    None,
    /// The program is another one, of this name.
    Named(String),
}

impl std::fmt::Display for NoCounters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NoCounters::Unread(error) => write!(f, "{error}"),
            NoCounters::Reason(line) => write!(f, "no reason in: {line}"),
            NoCounters::Number(line) => write!(f, "no number in: {line}"),
            NoCounters::None => f.write_str("it names no packets dropped: of another version?"),
            NoCounters::Named(name) => write!(f, "no {name}: of another version?"),
        }
    }
}
