//! VPP in memory: its packet generator in, its own sink out, nothing else on the CPU.
//!
//! ```text
//! pg-input (frame of a capture copied into a buffer) ─► pg0 │ nodes │ pg1 ─► pg1-tx (buffer given back)
//! vpp-ends: pg-input ─► pg1-output ─► pg1-tx
//! ```
//!
//! Routes, gateways, SAs and keys are those of weir's tables. In policy mode the policies of pg1 decide about what leaves,
//! those of pg0 about what comes in; what is sealed leaves by pg1 too, where the first policy lets ESP pass. Inbound
//! policies are about ESP: each has an SA of a peer of its own.
//!
//! Promises: packets are counted between two turns of its main loop, at `pg-input` and at `pg1-tx`, so that none is under
//! way; time is VPP's own clock, read in the same moment. Refuses, by name: what its generator or its SPD does not have.

use std::fmt::Write as _;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use weir_core::wire::DisplayMac;
use weir_io::clock;

use super::counted::{drops, errors, nodes};
use super::{Daemon, UNSEALED, absent, complains, gateway, spd, unsealed};
use crate::model::ipsec::{Backend, Direction, Mode, Protection};
use crate::model::spd::{Action, LookupBy};
use crate::model::{Configuration, Family, LabError, Sut};
use crate::netns::counters::Counters;
use crate::sut::peer::ProcessPlacement;
use crate::workload::address;
use crate::workload::capture;

/// Its heap takes a copy of every frame.
pub const FLOWS_MAX: u32 = 1 << 16;
/// A handful of packets takes less.
const COME_WITHIN: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(5);
const STREAM: &str = "lab";
/// How the answer to `show clock` begins, and the lines of it and of `wait` that complain of nothing.
const CLOCK: &str = "Time now ";
const OF_CLOCKS: [&str; 4] = ["Time ", "0: ", "Thread ", "waited "];

/// Why VPP cannot do in memory as a configuration asks, with the remedy.
pub fn missing(c: &Configuration) -> Option<String> {
    absent().or_else(|| refused(c))
}

pub fn refused(c: &Configuration) -> Option<String> {
    let name = crate::experiment::kebab(&c.sut());
    if c.workload.flows > FLOWS_MAX {
        return Some(format!(
            "{name}: {} flows, its generator has {FLOWS_MAX}: lower `flows`",
            c.workload.flows
        ));
    }
    if c.placement.cpus.len() > 1 {
        return Some(format!("{name}: its main thread alone forwards here: name one CPU"));
    }
    let p = c.ipsec()?;
    let (spd, inbound) = (&p.spd, p.direction == Direction::In);
    let reason = if c.sut() == Sut::VppEnds {
        "its generator and sink know no IPsec: remove `ipsec`"
    } else if p.direction == Direction::Beside {
        "what no policy matches it drops: use direction = \"out\" or \"in\""
    } else if p.backend != Backend::Auto {
        "it chooses its crypto engine: remove `backend`"
    } else if !inbound && unsealed(&p) {
        UNSEALED
    } else if inbound && p.replay_window != 0 {
        "its generator repeats sealed packets: use replay_window = 0"
    } else if p.mode == Mode::Route {
        return None;
    } else if spd.action == Action::Bypass {
        "its policies are asked about packets they seal or open: remove `action`"
    } else if spd.rules.is_some() {
        "its policies are a list of which the last matches: remove `rules`"
    } else if spd.churn == 1 {
        "its pauses between changes are below a second: raise `churn`"
    } else if spd.churn > 0 && p.policies < 3 {
        "of its policies the first and the last stay: use 3 or more `policies` with `churn`"
    } else if p.outer != c.workload.family {
        "its policies have SAs of the packets' own family: name `outer` as `family`"
    } else if p.policies < 2 || spd.matching.is_some_and(|n| n < 2 || n != p.policies) {
        "its first policy lets ESP pass: use 2 or more `policies`, and match the last"
    } else if spd.lookup == LookupBy::Cache && c.workload.family == Family::Inet6 {
        "its flow cache is of IPv4: use family = \"inet\", or lookup = \"linear\""
    } else if spd.lookup == LookupBy::Classifier && inbound {
        "its inbound fast path is not measured: use direction = \"out\""
    } else {
        return None;
    };
    Some(format!("{name}: {reason}"))
}

/// One of a pair of SAs, as VPP is told of it.
#[derive(Clone, Copy)]
pub struct SaWords<'a> {
    pub spi: u32,
    pub source: IpAddr,
    pub destination: IpAddr,
    pub encryption: &'a [u8],
    pub integrity: &'a [u8],
}

/// What its commands are made of.
pub struct MemorySetup<'a> {
    pub configuration: &'a Configuration,
    /// Link-layer addresses of pg0 and pg1.
    pub macs: [[u8; 6]; 2],
    /// Prefixes, and the number of each one's gateway.
    pub routes: &'a [(String, u32)],
    /// A gateway's link-layer address.
    pub gateway_mac: &'a dyn Fn(Family, u32) -> [u8; 6],
    /// The SA packets are measured with, and that of the other way.
    pub sas: Option<[SaWords<'a>; 2]>,
}

/// A VPP whose packets come from itself and go nowhere.
pub struct InMemory {
    daemon: Daemon,
    ends_only: bool,
    streams: u32,
}

/// What it counted from one moment to another.
pub struct Window {
    pub seconds: f64,
    pub sent: u64,
    pub delivered: u64,
    pub drops: Counters,
    /// Node, packets that passed it, clocks of each of them.
    pub nodes: Vec<(String, u64, f64)>,
    /// Policies taken out or put back in it.
    pub updates: u64,
    /// A span of the lab's clock that it was in.
    pub at: (u64, u64),
}

impl InMemory {
    pub fn start(plan: &MemorySetup<'_>, cpu: u32) -> Result<InMemory, LabError> {
        let place = ProcessPlacement { namespace: None, cpus: &[cpu] };
        let settings = settings(plan.configuration);
        let daemon = Daemon::start(place, &settings, &commands(plan))?;
        Ok(InMemory { daemon, ends_only: plan.configuration.sut() == Sut::VppEnds, streams: 0 })
    }

    pub fn note(&self) -> &str {
        &self.daemon.note
    }

    pub fn folder(&self) -> &Path {
        self.daemon.started.folder.path()
    }

    /// Sends the frames of a capture again and again, or `limit` of them, in place of those sent before.
    pub fn send(&mut self, capture: &Path, limit: Option<u64>) -> Result<(), LabError> {
        if self.streams > 0 {
            self.say(&format!(
                "packet-generator disable-stream\npacket-generator delete {}\n",
                self.stream()
            ))?;
        }
        self.streams += 1;
        // `limit -1` is for ever
        let limit = limit.map_or("-1".into(), |n| n.to_string());
        let node = if self.ends_only { " node pg1" } else { " source pg0" };
        let name = self.stream();
        let file = capture.display();
        self.say(&format!(
            "packet-generator new name {name} limit {limit}{node} interface pg0 pcap {file}\n\
             packet-generator enable-stream {name}\n"
        ))
    }

    fn stream(&self) -> String {
        format!("{STREAM}{}", self.streams)
    }

    /// The first `count` frames its sink gets, sent once each from a capture.
    pub fn sample(&mut self, capture: &Path, count: u64) -> Result<Vec<Vec<u8>>, LabError> {
        let file = self.folder().join("delivered.pcap");
        self.say(&format!("packet-generator capture pg1 pcap {} count {count}\n", file.display()))?;
        self.send(capture, Some(count))?;
        let until = Instant::now() + COME_WITHIN;
        loop {
            let frames = fs::read(&file).map_or(Vec::new(), |bytes| capture::read(&bytes));
            let enough = frames.len() as u64 >= count;
            if enough || Instant::now() > until {
                self.say("packet-generator capture pg1 disable\n")?;
                let _ = fs::remove_file(&file);
                return Ok(frames);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// What its nodes counted, for who has to find out why packets do not come.
    pub fn counted(&mut self) -> Result<Counters, LabError> {
        Ok(errors(&self.daemon.ask("show errors\n")?))
    }

    /// Counts for a window. Meanwhile it takes a policy out and puts it back in turn where `churn` asks for it, told
    /// beforehand: under load it answers three times a second.
    pub fn count(&mut self, c: &Configuration, window: Duration) -> Result<Window, LabError> {
        let (begin, end) =
            ("clear runtime\nclear errors\nshow clock\n", "show clock\nshow runtime\nshow errors\n");
        if let Some(p) = c.ipsec().filter(|p| p.spd.churn > 0) {
            let (text, updates) = changes(c, &p, window);
            let began = clock::now();
            let said = self.daemon.ask(&format!("{begin}{text}{end}"))?;
            let at = (began, clock::now());
            let lines: Vec<&str> = said.lines().collect();
            let clocks: Vec<usize> = (0..lines.len()).filter(|&n| lines[n].starts_with(CLOCK)).collect();
            let [from, to] = clocks[..] else {
                return Err(LabError::new(format!("vpp: no two clocks: {}", said.trim())));
            };
            let answers =
                lines[from..to].iter().filter(|line| !OF_CLOCKS.iter().any(|w| line.starts_with(w)));
            if let Some(complaint) = answers.copied().find(|line| complains(line)) {
                return Err(crate::sut::peer::refused_configuration("vpp", complaint));
            }
            let seconds = self.clock(lines[to])? - self.clock(lines[from])?;
            return Ok(Window { updates, at, ..self.counts(seconds, &said) });
        }
        let said = self.daemon.ask(begin)?;
        let (from, began) = (self.clock(&said)?, clock::now());
        std::thread::sleep(window);
        let ended = clock::now();
        let said = self.daemon.ask(end)?;
        Ok(Window { at: (began, ended), ..self.counts(self.clock(&said)? - from, &said) })
    }

    fn counts(&self, seconds: f64, said: &str) -> Window {
        let nodes = nodes(said);
        let passed = |name: &str| nodes.iter().find(|(node, ..)| node == name).map_or(0, |n| n.1);
        // Packets of its own: reports of multicast groups, by either port. Of others none leaves by pg0.
        let own = passed("ip6-rewrite-mcast").saturating_sub(passed("pg0-tx"));
        let (sent, delivered) = (passed("pg-input"), passed("pg1-tx").saturating_sub(own));
        let drops = drops(&nodes, errors(said));
        Window { seconds, sent, delivered, drops, nodes, updates: 0, at: (0, 0) }
    }

    fn clock(&self, said: &str) -> Result<f64, LabError> {
        seconds(said).ok_or_else(|| LabError::new(format!("vpp: `show clock` says no time: {}", said.trim())))
    }

    fn say(&mut self, commands: &str) -> Result<(), LabError> {
        let said = self.daemon.ask(commands)?;
        match complains(&said) {
            true => Err(crate::sut::peer::refused_configuration("vpp", said.trim())),
            false => Ok(()),
        }
    }

    pub fn ended(&mut self) -> Option<LabError> {
        self.daemon.started.ended()
    }
}

/// Room for a million routes with their counters, and who answers for policies.
fn settings(c: &Configuration) -> String {
    let whole = "memory {\n  main-heap-size 4G\n  main-heap-page-size default\n}\n\
        plugins {\n  plugin default { disable }\n  plugin ipip_plugin.so { enable }\n  \
        plugin crypto_native_plugin.so { enable }\n  plugin crypto_ipsecmb_plugin.so { enable }\n  \
        plugin crypto_openssl_plugin.so { enable }\n}\nstatseg {\n  size 1G\n}\n";
    let policies = c.ipsec().is_some_and(|p| p.mode == Mode::Policy);
    format!("{whole}{}", if policies { spd::settings(c) } else { String::new() })
}

/// Interfaces, neighbours, SAs, policies and routes, as its command line takes them.
pub(super) fn commands(plan: &MemorySetup<'_>) -> String {
    let c = plan.configuration;
    let mut text = String::new();
    let (v4, v6) = ((address::IN_V4, address::OUT_V4), (address::IN_V6, address::OUT_V6));
    for (port, mac, a4, a6) in [("pg0", plan.macs[0], v4.0, v6.0), ("pg1", plan.macs[1], v4.1, v6.1)] {
        let _ = writeln!(text, "create packet-generator interface {port} hw-addr {}", DisplayMac(mac));
        let _ = writeln!(text, "set interface state {port} up");
        let _ = writeln!(text, "set interface ip address {port} {}/{}", a4.0, a4.1);
        let _ = writeln!(text, "set interface ip address {port} {}/{}", a6.0, a6.1);
        // it would send on its own, and its sink count it
        let _ = writeln!(text, "ip6 nd {port} ra-suppress");
    }
    for family in [Family::Inet, Family::Inet6] {
        for n in 0..address::GATEWAYS {
            let mac = DisplayMac((plan.gateway_mac)(family, n));
            let _ = writeln!(text, "set ip neighbor pg1 {} {mac} static", address::gateway(family, n));
        }
    }
    let family = c.workload.family;
    let mut tunnelled = false;
    if let (Some(p), Some(sas)) = (c.ipsec(), &plan.sas) {
        protected(&mut text, family, &p, sas);
        tunnelled = p.mode == Mode::Route && p.direction == Direction::Out;
    }
    for (prefix, gateway) in plan.routes {
        let _ = match tunnelled {
            true => writeln!(text, "ip route add {prefix} via ipip0"),
            false => writeln!(text, "ip route add {prefix} via {} pg1", address::gateway(family, *gateway)),
        };
    }
    text
}

fn protected(text: &mut String, family: Family, p: &Protection, sas: &[SaWords<'_>; 2]) {
    let [measured, back] = sas;
    let inbound = p.direction == Direction::In;
    let (own, far) = match inbound {
        true => (measured.destination, measured.source),
        false => (measured.source, measured.destination),
    };
    let length = if far.is_ipv4() { 32 } else { 128 };
    let gateway = address::gateway(p.outer, 0);
    let _ = writeln!(text, "ip route add {far}/{length} via {gateway} pg1");
    let (out, incoming) = if inbound { (back, measured) } else { (measured, back) };
    match p.mode {
        Mode::Route => {
            let _ = writeln!(text, "{}", sa(1, out, p));
            let _ = writeln!(text, "{} inbound", sa(2, incoming, p));
            let _ = writeln!(text, "create ipip tunnel src {own} dst {far}");
            let _ = writeln!(text, "ipsec tunnel protect ipip0 sa-in 2 sa-out 1");
            let _ = writeln!(text, "set interface state ipip0 up");
            let _ = writeln!(text, "set interface unnumbered ipip0 use pg1");
        }
        Mode::Policy => policies(text, family, p, measured),
    }
}

/// The policy that protects is the last of `policies`; those before are of nobody.
fn policies(text: &mut String, family: Family, p: &Protection, measured: &SaWords<'_>) {
    let inbound = p.direction == Direction::In;
    let port = if inbound { "pg0" } else { "pg1" };
    let ends = |from: IpAddr, to: IpAddr| format!(" tunnel src {from} dst {to}");
    let way = if inbound { " inbound" } else { "" };
    let _ = writeln!(text, "{}{}{way}", sa(1, measured, p), ends(measured.source, measured.destination));
    let _ = writeln!(text, "ipsec spd add 1\nset interface ipsec spd {port} 1");
    for n in 1..=p.policies {
        if inbound && n < p.policies {
            let other =
                SaWords { spi: measured.spi + 0x10_000 + n, source: address::nobody(family, n), ..*measured };
            let _ = writeln!(text, "{}{}{way}", sa(n + 1, &other, p), ends(other.source, other.destination));
        }
        let _ = writeln!(text, "ipsec policy add {}", policy(family, p, n));
    }
}

/// Policy `n` of the list, as it is added and deleted.
fn policy(family: Family, p: &Protection, n: u32) -> String {
    let ip6 = if family == Family::Inet6 { "ip6 " } else { "" };
    let (priority, last) = (p.policies - n + 1, n == p.policies);
    let head = format!("spd 1 {ip6}priority {priority}");
    match p.direction {
        Direction::In if last => format!("{head} inbound action protect sa 1"),
        Direction::In => format!("{head} inbound action protect sa {}", n + 1),
        _ if n == 1 => format!("{head} outbound action bypass protocol 50"),
        _ if last => format!("{head} outbound action protect sa 1"),
        _ => {
            let nobody = address::nobody(family, n);
            format!("{head} outbound action discard remote-ip-range {nobody} - {nobody}")
        }
    }
}

/// A policy of nobody: neither the first nor the last of the list.
const CHANGED: u32 = 2;

/// The command of the change before which there were `n`: out, and back to where it was.
pub(super) fn change(c: &Configuration, p: &Protection, n: u32) -> String {
    let what = if n.is_multiple_of(2) { "del" } else { "add" };
    format!("ipsec policy {what} {}\n", policy(c.workload.family, p, CHANGED))
}

/// The commands of all changes of a window, at even distances, and how many: the policy ends where it was.
pub(super) fn changes(c: &Configuration, p: &Protection, window: Duration) -> (String, u64) {
    let pause = (1000 / p.spd.churn).max(1);
    let made = (window.as_millis() as u32).div_ceil(pause).next_multiple_of(2).max(2);
    let wait = format!("wait 0.{pause:03}\n");
    let text = (0..made).map(|n| wait.clone() + &change(c, p, n)).collect();
    (text, u64::from(made))
}

/// One with its keys, in the words of VPP.
fn sa(id: u32, sa: &SaWords<'_>, p: &Protection) -> String {
    let suite = p.cipher.0;
    let hex = |bytes: &[u8]| {
        bytes.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    };
    let mut text = format!("ipsec sa add {id} spi {} esp crypto-alg {}", sa.spi, gateway::encryption(suite));
    let (key, salt) = sa.encryption.split_at(suite.encryption().key_len().min(sa.encryption.len()));
    if !key.is_empty() {
        let _ = write!(text, " crypto-key {}", hex(key));
    }
    if !salt.is_empty() {
        let _ = write!(text, " salt 0x{}", hex(salt));
    }
    if let Some(integrity) = suite.integrity() {
        let _ = write!(text, " integ-alg {} integ-key {}", gateway::integrity(integrity), hex(sa.integrity));
    }
    if p.esn {
        text += " use-esn";
    }
    text
}

/// The seconds at the begin of `show clock`.
pub(super) fn seconds(said: &str) -> Option<f64> {
    said.split(|c: char| c == ',' || c.is_whitespace()).find_map(|word| word.parse().ok())
}
