//! What DPDK's programs have in common: how they are started, and what their telemetry tells.
//!
//! Two ports: 0 is where packets come in, 1 where they leave. In a namespace they are the ends of the wires, by the
//! driver `net_af_xdp` or `net_af_packet`, as weir's; in memory port 0 repeats a capture file and port 1 throws away.
//! No huge pages, no PCI, one forwarding core, the driver's defaults. Counters are read over the telemetry socket.
//! A core that polls is busy without packets too: `sut_cpu_percent` says nothing about these programs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
};
use serde::Deserialize;
use serde_json::Value;

use super::peer::{ProcessPlacement, Started};
use super::{Environment, Running};
use crate::model::LabError;
use crate::netns::counters::Counters;
use crate::netns::namespace::Namespace;

/// Tables, buffers and a busy machine included.
const READY_WITHIN: Duration = Duration::from_secs(60);
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// Longest message of the telemetry socket (`max_output_len` in its greeting).
const MESSAGE_MAX: usize = 16 << 10;
/// Megabytes of DPDK's heap: l3fwd's IPv6 tables take most of it.
const HEAP: u32 = 512;

/// Where packets come from and go to.
pub enum Ends {
    /// The devices of the wires, and the driver that opens them.
    Devices { driver: &'static str, input: String, output: String },
    /// A capture file again and again, and nowhere.
    Capture(PathBuf),
    /// A capture file once, and another: what a program does with each frame.
    Captures { from: PathBuf, to: PathBuf },
}

impl Ends {
    pub fn of(environment: &Environment<'_>) -> Ends {
        let packet = environment.configuration.placement.port == "af_packet";
        let driver = if packet { "net_af_packet" } else { "net_af_xdp" };
        Ends::Devices {
            driver,
            input: environment.input.name.clone(),
            output: environment.output.name.clone(),
        }
    }

    fn devices(&self) -> [String; 2] {
        match self {
            Ends::Devices { driver, input, output } => {
                [format!("{driver}0,iface={input}"), format!("{driver}1,iface={output}")]
            }
            Ends::Capture(file) => {
                [format!("net_pcap0,rx_pcap={},infinite_rx=1", file.display()), "net_null1,no-rx=1".into()]
            }
            Ends::Captures { from, to } => [
                format!("net_pcap0,rx_pcap={}", from.display()),
                format!("net_pcap1,tx_pcap={}", to.display()),
            ],
        }
    }

    /// Whether the driver counts frames it had no room for which no counter of the wire has.
    fn misses(&self) -> bool {
        matches!(self, Ends::Devices { driver: "net_af_packet", .. })
    }

    /// Notes name roles: devices have another name in every run.
    fn steady(&self, text: &str, folder: &Path) -> String {
        let text = text.replace(&folder.display().to_string(), "<folder>");
        match self {
            Ends::Devices { input, output, .. } => text.replace(input, "din").replace(output, "dout"),
            Ends::Capture(_) | Ends::Captures { .. } => text,
        }
    }
}

/// Makes a program's own words, and the files they name, for its folder.
pub type Words = Box<dyn FnOnce(&Path) -> std::io::Result<Vec<String>>>;

/// What makes one of the programs that program.
pub struct DpdkProgram {
    pub name: &'static str,
    pub program: PathBuf,
    /// `--lcores`: logical cores, each at its CPU.
    pub cores: String,
    pub ends: Ends,
    /// Words of DPDK's environment besides.
    pub environment: Vec<String>,
    /// A library that goes before those it is linked with.
    pub preload: Option<PathBuf>,
    /// What stands after `--`.
    pub words: Words,
    /// What its log holds once it forwards.
    pub ready: &'static str,
    /// What its words do not show.
    pub note: String,
}

pub struct Dpdk {
    started: Started,
    ends: Ends,
    notes: Vec<String>,
}

impl Dpdk {
    pub fn start(plan: DpdkProgram, place: ProcessPlacement<'_>) -> Result<Dpdk, LabError> {
        let DpdkProgram { name, program, cores, ends, environment, preload, words, ready, note } = plan;
        let mut line = String::new();
        let mut started = Started::launch(name, place, |folder| {
            let mut all = eal(&cores, &ends);
            all.extend(environment);
            all.push("--".into());
            all.extend(words(folder)?);
            line = ends.steady(&format!("{name} {}", all.join(" ")), folder);
            let mut command = Command::new(program);
            command.args(all.iter().map(OsString::from)).env("RUNTIME_DIRECTORY", folder);
            if let Some(library) = preload {
                command.env("LD_PRELOAD", library);
            }
            Ok(command)
        })?;
        started.wait(READY_WITHIN, |program| Ok(program.log().contains(ready)))?;
        let mut dpdk = Dpdk { started, ends, notes: Vec::new() };
        let greeting = Telemetry::open(&dpdk.socket()).map_err(|e| dpdk.failed(e))?.greeting;
        dpdk.notes = vec![format!("{name}: {}: {line}", greeting.version), format!("{name}: {note}")];
        Ok(dpdk)
    }

    fn socket(&self) -> PathBuf {
        self.started.folder.path().join("dpdk/lab/dpdk_telemetry.v2")
    }

    fn failed(&mut self, error: std::io::Error) -> LabError {
        let name = self.started.name;
        self.started.ended().unwrap_or_else(|| LabError::new(format!("{name}: telemetry: {error}")))
    }

    /// Counters of both ports, cumulative.
    pub fn ports(&mut self) -> Result<[Stats; 2], LabError> {
        let read = || {
            let telemetry = Telemetry::open(&self.socket())?;
            Ok([telemetry.stats(0)?, telemetry.stats(1)?])
        };
        read().map_err(|e| self.failed(e))
    }

    /// Where packets that came in by port 0 did not leave by port 1.
    pub fn losses(&self, [input, output]: &[Stats; 2]) -> Counters {
        let name = self.started.name;
        let counted = [
            ("rx_no_buffer", input.rx_nombuf),
            ("rx_errors", input.ierrors),
            ("tx_errors", output.oerrors),
            // sent back, dropped by the program, or found no room in the ring: it does not say which
            ("not_forwarded", input.ipackets.saturating_sub(output.opackets + output.oerrors)),
        ];
        let missed = self.ends.misses().then_some(("rx_missed", input.imissed));
        counted.into_iter().chain(missed).map(|(what, n)| (format!("{name}.{what}"), n)).collect()
    }
}

/// Words of DPDK's environment, before `--`.
fn eal(cores: &str, ends: &Ends) -> Vec<String> {
    let mut words: Vec<String> = ["--no-huge", "--no-pci", "--file-prefix=lab"].map(String::from).to_vec();
    words.extend([format!("--lcores={cores}"), format!("-m {HEAP}")]);
    words.extend(ends.devices().map(|device| format!("--vdev={device}")));
    words
}

impl Running for Dpdk {
    fn drops(&mut self, _: &Namespace) -> Result<Counters, LabError> {
        let ports = self.ports()?;
        Ok(self.losses(&ports))
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn ended(&mut self) -> Option<LabError> {
        self.started.ended()
    }
}

/// The counters of a port.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Stats {
    pub ipackets: u64,
    pub opackets: u64,
    imissed: u64,
    ierrors: u64,
    oerrors: u64,
    rx_nombuf: u64,
}

#[derive(Debug, Deserialize)]
struct Greeting {
    version: String,
}

/// DPDK's telemetry: a greeting, then a command a message and its answer, JSON.
struct Telemetry {
    socket: rustix::fd::OwnedFd,
    greeting: Greeting,
}

impl Telemetry {
    fn open(path: &Path) -> std::io::Result<Telemetry> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWERS_WITHIN))?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        let greeting = answer(&message(&socket)?, None)?;
        Ok(Telemetry { socket, greeting })
    }

    fn stats(&self, port: u32) -> std::io::Result<Stats> {
        send(&self.socket, format!("/ethdev/stats,{port}").as_bytes(), SendFlags::NOSIGNAL)?;
        answer(&message(&self.socket)?, Some("/ethdev/stats"))
    }
}

fn message(socket: &rustix::fd::OwnedFd) -> std::io::Result<Vec<u8>> {
    let mut buffer = vec![0; MESSAGE_MAX];
    let (length, _) = recv(socket, &mut buffer, RecvFlags::empty())?;
    buffer.truncate(length);
    Ok(buffer)
}

/// What is in a message, below the command it answers.
fn answer<T: for<'a> Deserialize<'a>>(message: &[u8], command: Option<&str>) -> std::io::Result<T> {
    let unexpected = |why: String| {
        let shown = String::from_utf8_lossy(message);
        std::io::Error::other(format!("not what was expected ({why}): {shown}"))
    };
    let mut value: Value = serde_json::from_slice(message).map_err(|e| unexpected(e.to_string()))?;
    if let Some(command) = command {
        value =
            value.get_mut(command).map(Value::take).ok_or_else(|| unexpected("another command".into()))?;
    }
    serde_json::from_value(value).map_err(|e| unexpected(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_below_their_command_and_nothing_else_is_taken_for_them() {
        let said = br#"{"/ethdev/stats":{"ipackets":9,"opackets":0,"ibytes":540,"obytes":0,"imissed":2,
            "ierrors":1,"oerrors":0,"rx_nombuf":3,"q_ipackets":[9,0]}}"#;
        let stats: Stats = answer(said, Some("/ethdev/stats")).expect("as DPDK says it");
        assert_eq!((stats.ipackets, stats.imissed, stats.ierrors, stats.rx_nombuf), (9, 2, 1, 3));
        let greeting: Greeting =
            answer(br#"{"version":"DPDK 22.11.11","pid":1,"max_output_len":16384}"#, None)
                .expect("a greeting");
        assert_eq!(greeting.version, "DPDK 22.11.11");
        for bad in [&br#"{"/ethdev/stats":null}"#[..], br#"{"/ethdev/link":{}}"#, b"", b"{"] {
            assert!(answer::<Stats>(bad, Some("/ethdev/stats")).is_err());
        }
    }

    #[test]
    fn notes_name_roles_where_devices_have_another_name_in_every_run() {
        let ends =
            Ends::Devices { driver: "net_af_xdp", input: "din-1f-2".into(), output: "dout-1f-3".into() };
        let line = ends.steady(&eal("0@1", &ends).join(" "), Path::new("/tmp/x"));
        assert!(line.contains("--vdev=net_af_xdp0,iface=din --vdev=net_af_xdp1,iface=dout"), "{line}");
    }
}
