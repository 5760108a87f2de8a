//! What the control socket says, as types: written by the daemon, read by `weir show` and `weir top`.
//!
//! Every structure is JSON with these field names; fields are added, never renamed. Counters are
//! cumulative since the daemon started, bytes include the Ethernet header, times are seconds.

pub mod capture;
pub mod relay;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// `GET /v1/status`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub name: String,
    pub version: String,
    pub pid: u32,
    pub uptime_seconds: f64,
    /// Generation of the tables the control side published last; each worker says which it uses.
    pub generation: u64,
    pub ports: usize,
    pub routes: usize,
    pub workers: usize,
    /// Security associations, those that drain included.
    #[serde(default)]
    pub sas: usize,
    /// Frames unaccounted for, over all workers: in − forwarded − local − dropped − held.
    pub balance: i64,
    /// What works otherwise than asked for, a sentence each.
    pub notices: Vec<String>,
}

/// `GET /v1/ports`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Port {
    pub name: String,
    pub device: String,
    pub vlan: Option<u16>,
    /// `af_xdp`, `af_packet`, `tun`, `pcap`, `tunnel` or `policy` (IPsec), or empty while the device is absent.
    pub kind: String,
    pub up: bool,
    pub mtu: u16,
    pub mac: String,
    pub addresses: Vec<Address>,
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Losses of the device, which its VLANs share.
    pub losses: DeviceLosses,
    /// What the programs in front of the kernel did with frames of the device, by cause: `kept_from_kernel` is
    /// transit, `kept_opaque` what no program looks into, both dropped where policies apply.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub steered: BTreeMap<String, u64>,
    /// Times a program of ours was attached again: taken off by somebody, or no longer run by its driver.
    #[serde(default)]
    pub reattached: u64,
    /// How the device was opened: refusals, choices, offloads switched off.
    pub opened: Vec<String>,
    /// Which of these lines say that a better way was refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallbacks: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    pub address: String,
    /// `kernel` or `weir`: who answers for it.
    pub owner: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    pub rx_packets: u64,
    pub rx_bytes: u64,
    pub tx_packets: u64,
    pub tx_bytes: u64,
}

/// Losses before a frame reached the pipeline or after it left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceLosses {
    pub rx_ring_full: u64,
    pub rx_invalid: u64,
    pub tx_invalid: u64,
    pub rx_fill_empty: u64,
    /// Frames shorter than their IP header says; dropped as `ip_truncated`.
    #[serde(default)]
    pub rx_truncated: u64,
    /// Times the transmit ring did not move though frames waited in it.
    #[serde(default)]
    pub tx_stalled: u64,
    /// No loss: frames that left without a socket buffer.
    #[serde(default)]
    pub tx_live: u64,
    /// Frames sent so that the device did not take: the far end's queue was full.
    #[serde(default)]
    pub tx_dropped: u64,
}

/// `GET /v1/routes`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    pub prefix: String,
    /// `local`, `broadcast`, `connected`, `static` (the configuration file), or `kernel` and whose route it is there.
    pub origin: String,
    /// `blackhole`, `unreachable` or `prohibited`.
    pub discard: Option<String>,
    /// Why it is left to the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<String>,
    pub next_hops: Vec<NextHop>,
    /// Whether the route is in the table now.
    pub active: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextHop {
    pub port: Option<String>,
    pub gateway: Option<String>,
    pub weight: u8,
    pub up: bool,
    pub resolved: bool,
}

/// `GET /v1/routes`: a full table is long, so it is told whole only on request (`?limit=`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Routes {
    pub total: usize,
    pub routes: Vec<Route>,
}

/// `GET /v1/neighbors`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Neighbor {
    pub port: String,
    pub address: String,
    pub mac: Option<String>,
    pub state: String,
    /// `static` (the configuration file), `kernel`, or `learned` by frames of weir's.
    #[serde(default)]
    pub origin: String,
    pub age_seconds: f64,
    /// Routes lead there.
    pub gateway: bool,
}

impl Neighbor {
    /// What it can be found by.
    pub fn words(&self) -> Vec<&str> {
        [&self.port, &self.address, &self.state].into_iter().chain(&self.mac).map(String::as_str).collect()
    }
}

/// `GET /v1/workers`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerCounters {
    pub worker: usize,
    pub cpu: u32,
    pub generation: u64,
    pub received: u64,
    pub forwarded: u64,
    pub local: u64,
    pub held: u64,
    pub dropped: u64,
    /// Drops by reason, those above zero.
    pub drops: BTreeMap<String, u64>,
    pub originated: u64,
    pub originated_lost: u64,
    pub icmp_limited: u64,
    /// Frames unaccounted for; anything but 0 is a defect.
    pub balance: i64,
    pub breaths: u64,
    pub idle_breaths: u64,
    pub buffers_total: usize,
    pub buffers_free: usize,
    /// Buffers no holder accounts for; anything but 0 is a defect.
    pub buffers_missing: i64,
    /// Traffic by port name.
    pub ports: BTreeMap<String, Traffic>,
    /// SPD lookups by the layer that answered them, by direction and family.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lookups: Vec<WorkerLookups>,
}

/// Answers to what was asked of SPDs, by who gave them. With a cache `classified + scanned` is `miss`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lookups {
    /// Lookups answered by the first rule for a whole batch, without the cache.
    pub first: u64,
    /// Lookups answered for a whole batch because its addresses are outside of all rules.
    #[serde(default)]
    pub outside: u64,
    /// Lookups answered by the cache.
    pub hit: u64,
    /// The cache was asked and did not know.
    pub miss: u64,
    /// Misses because another flow had the bucket.
    pub collision: u64,
    /// Misses because rules changed since it was learned.
    pub stale: u64,
    pub classified: u64,
    pub scanned: u64,
    /// Where the oracle said otherwise: each is a defect.
    pub disagreed: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerLookups {
    /// `in` or `out`.
    pub direction: String,
    /// `ipv4` or `ipv6`.
    pub family: String,
    #[serde(flatten)]
    pub lookups: Lookups,
}

/// `GET /v1/cache`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cache {
    /// `spd-classifier`: `auto`, `on` or `off`.
    pub classifier: String,
    pub oracle: bool,
    /// One for each direction and family.
    pub ways: Vec<CacheWay>,
    /// Two for each SPD: out and in.
    pub spds: Vec<SpdRules>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheWay {
    /// `in` or `out`.
    pub direction: String,
    /// `ipv4` or `ipv6`.
    pub family: String,
    /// Whether there is a flow cache.
    pub on: bool,
    pub buckets: u64,
    /// Buckets that have a flow, of rules of now or before.
    pub occupied: u64,
    pub bytes: u64,
    /// Sums over all workers.
    #[serde(flatten)]
    pub lookups: Lookups,
}

/// The rules of an SPD in one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpdRules {
    pub spd: String,
    /// `in` or `out`.
    pub direction: String,
    pub bytes: u64,
    pub families: Vec<FamilyRules>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FamilyRules {
    /// `ipv4` or `ipv6`.
    pub family: String,
    pub rules: usize,
    /// Who answers where no cache does: `classifier` or `scan`.
    pub layer: String,
    /// Tables of the classifier.
    pub tables: usize,
    /// Rules in the longest chain of a table.
    pub longest_chain: usize,
    /// Rules no table takes.
    pub in_no_table: usize,
    /// Comparisons of a packet with a rule or a box of rules: no lookup takes more.
    pub most_comparisons: usize,
}

/// `GET /v1/drops`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drop {
    pub reason: String,
    pub packets: u64,
    /// `sender`, `policy`, `operator`, `network`, `load` or `weir`: who has to act for it to stop.
    pub blame: String,
    pub sentence: String,
}

/// `GET /v1/flows`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Flows {
    /// Entries of the kernel's conntrack that are followed.
    pub total: usize,
    /// Those that match and follow the ones shown.
    #[serde(default)]
    pub more: usize,
    /// Those forwarded past the kernel come first.
    pub flows: Vec<Flow>,
}

/// A flow of the kernel's conntrack.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    /// `tcp` or `udp`.
    pub protocol: String,
    /// Source and destination, as the first packet came.
    pub original: String,
    /// Source and destination, as answers come.
    pub reply: String,
    /// The conntrack mark, if it is known.
    pub mark: Option<u32>,
    /// `xdp`: plain packets are forwarded past the kernel; or `kernel`.
    pub way: String,
    /// Why the kernel forwards it.
    pub reason: Option<String>,
    /// How long it is forwarded past the kernel.
    pub age_seconds: Option<f64>,
    /// What passed the kernel by, of both directions; bytes of IP.
    pub packets: u64,
    pub bytes: u64,
}

impl Flow {
    /// What it can be found by.
    pub fn words(&self) -> Vec<&str> {
        let own = [&self.protocol, &self.original, &self.reply, &self.way];
        own.into_iter().chain(&self.reason).map(String::as_str).collect()
    }
}

/// `GET /v1/offload`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Offload {
    /// Flows of the kernel's conntrack that are forwarded past it.
    pub xdp: u64,
    /// Flows that the kernel forwards, by reason.
    pub kernel: Vec<LeftFlows>,
    /// Entries there was no room to follow.
    pub overflowed: u64,
    /// What passed the kernel by, of flows that are gone too; bytes of IP.
    pub packets: u64,
    pub bytes: u64,
    /// What happened while flows were followed.
    pub events: BTreeMap<String, u64>,
}

/// Flows that the kernel forwards for one reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LeftFlows {
    pub reason: String,
    pub flows: u64,
    pub sentence: String,
}

/// `GET /v1/sa`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sa {
    pub name: String,
    /// `in` or `out`.
    pub direction: String,
    /// The SPI in hexadecimal.
    pub spi: String,
    pub mode: String,
    pub source: String,
    pub destination: String,
    pub suite: String,
    /// The implementation that seals and opens.
    pub backend: String,
    /// `active`, `rekey` (the soft lifetime is reached), `expired` or `draining` (removed, and still
    /// accepted for some seconds).
    pub state: String,
    pub esn: bool,
    pub replay_window: u16,
    /// UDP ports, `source-destination`, where ESP is in UDP.
    pub udp: Option<String>,
    pub packets: u64,
    /// Bytes of inner packets.
    pub bytes: u64,
    /// The last one given out, or the highest that was authentic.
    pub sequence: u64,
    /// What it used is on disk or about to be: it goes on from there after a restart and a power cut.
    #[serde(default)]
    pub kept: bool,
    pub age_seconds: f64,
    /// Time since a packet used it last.
    pub idle_seconds: Option<f64>,
    /// The path MTU that an ICMP error told.
    pub path_mtu: Option<u16>,
    pub soft: Lifetime,
    pub hard: Lifetime,
    /// `tunnel east`, `spd wan policy site`.
    pub users: Vec<String>,
    /// Packets it did not carry, by reason, those above zero.
    pub failures: Vec<Drop>,
}

impl Sa {
    /// What it can be found by.
    pub fn words(&self) -> Vec<&str> {
        let own = [&self.name, &self.direction, &self.spi, &self.state, &self.source, &self.destination];
        own.into_iter().chain(&self.users).map(String::as_str).collect()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lifetime {
    pub bytes: Option<u64>,
    pub packets: Option<u64>,
    pub seconds: Option<u64>,
}

/// `GET /v1/tunnels`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tunnel {
    pub name: String,
    pub up: bool,
    pub mtu: u16,
    /// The MTU is what fits into the route to the far end; otherwise it is the configuration's.
    pub mtu_follows: bool,
    pub addresses: Vec<String>,
    /// Names of SAs.
    pub out: Vec<String>,
    #[serde(rename = "in")]
    pub inbound: Vec<String>,
    /// Inner packets and their bytes.
    #[serde(flatten)]
    pub traffic: Traffic,
}

impl Tunnel {
    /// What it can be found by.
    pub fn words(&self) -> Vec<&str> {
        let lists = self.out.iter().chain(&self.inbound).chain(&self.addresses);
        [&self.name].into_iter().chain(lists).map(String::as_str).collect()
    }
}

/// `GET /v1/spd`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spd {
    pub name: String,
    pub ports: Vec<String>,
    /// `discard` or `bypass`: what becomes of packets no policy matches.
    pub default: String,
    /// The policies in the order they are tried.
    pub policies: Vec<Policy>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    pub name: String,
    pub action: String,
    /// `in`, `out` or `both`.
    pub direction: String,
    /// `local <> remote`, protocol, ports.
    pub selector: String,
    pub out: Vec<String>,
    #[serde(rename = "in")]
    pub inbound: Vec<String>,
    pub out_packets: u64,
    pub out_bytes: u64,
    pub in_packets: u64,
    pub in_bytes: u64,
}

/// `POST /v1/apply` with a configuration as the body; `?dry-run` only asks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// One line each, in order: `+` comes, `-` goes, `~` changes.
    pub actions: Vec<String>,
    /// What was made of options that cannot be had as written, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// False on a dry run.
    pub applied: bool,
    pub generation: u64,
}

/// `POST /v1/policies`: changes of the policies of an SPD, one after the other, all or none; `?dry-run` only asks.
/// The answer is [`Applied`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyRequest {
    pub spd: String,
    pub changes: Vec<PolicyChange>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PolicyChange {
    Add(AddPolicy),
    Remove {
        name: String,
    },
    /// The policy of this name, which keeps its place.
    Replace {
        policy: PolicyFields,
    },
}

/// Last, unless one of the others says where.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddPolicy {
    pub policy: PolicyFields,
    /// Names of policies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Its number, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<usize>,
}

/// Keys of a `[[policy]]`, without `spd`.
pub type PolicyFields = serde_json::Map<String, serde_json::Value>;

/// `GET /v1/config`: what runs, as a file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Running {
    /// The file it came from, as it was named.
    pub file: String,
    pub toml: String,
    /// Changes of policies that no file has, a line each.
    pub unsaved: Vec<String>,
}

/// `POST /v1/trace`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceRequest {
    pub port: String,
    /// The whole frame in hex; its destination MAC is taken as it stands.
    pub frame: String,
}

/// Why a text is no frame in hex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoHex {
    Character(char),
    /// None, or an odd number of them.
    Digits(usize),
}

impl fmt::Display for NoHex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoHex::Character(wrong) => write!(
                f,
                "frame: got `{wrong}` among hex digits, expected 0 to 9 and a to f; write the bytes as `xxd -p` does"
            ),
            NoHex::Digits(digits) => {
                write!(f, "frame: got {digits} hex digits, expected two a byte; write every byte in full")
            }
        }
    }
}

/// Bytes of hex; spaces, colons, dashes and line ends between them are skipped.
pub fn from_hex(text: &str) -> Result<Vec<u8>, NoHex> {
    let digits: Vec<char> = text.chars().filter(|c| !c.is_whitespace() && !":-".contains(*c)).collect();
    if let Some(&wrong) = digits.iter().find(|c| !c.is_ascii_hexdigit()) {
        return Err(NoHex::Character(wrong));
    }
    if digits.is_empty() || digits.len() % 2 == 1 {
        return Err(NoHex::Digits(digits.len()));
    }
    let byte = |pair: &[char]| pair.iter().fold(0u8, |n, c| n << 4 | c.to_digit(16).unwrap_or(0) as u8);
    Ok(digits.chunks(2).map(byte).collect())
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    pub generation: u64,
    pub steps: Vec<Step>,
    /// `forward`, `local`, `held` or `drop`.
    pub verdict: String,
    /// The port it leaves by.
    pub port: Option<String>,
    /// The reason of a drop.
    pub reason: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub stage: String,
    pub looked_at: String,
    pub found: String,
}

/// What a refused request gets, with a status of 4xx or 5xx.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub error: String,
    /// Who has to act, where the daemon can tell: `operator` or `machine`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub responsible: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_is_read_as_people_write_it() {
        assert_eq!(from_hex("02:00 ff-0A\n"), Ok(vec![2, 0, 255, 10]));
        assert!(from_hex("0").expect_err("odd").to_string().contains("two a byte"));
        assert!(from_hex("0g").expect_err("no digit").to_string().contains("`g`"));
        assert!(from_hex("").is_err());
    }
}
