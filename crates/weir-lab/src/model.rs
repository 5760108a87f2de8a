//! What an experiment compares and what one run yields: the words the rest of the lab shares.
//!
//! ```text
//! experiment (TOML) ─► Configuration × blocks ─► Testbed::run ─► Sample ─► raw/ ─► statistics ─► report
//! ```

pub mod configuration;
pub mod esp;
pub mod firewall;
pub mod invalid;
pub mod ipsec;
pub mod nic_modes;
pub mod relay;
pub mod slices;
pub mod spd;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use configuration::{Configuration, Keys, Scenario, Testbed};
pub use firewall::FirewallRules;
pub use invalid::Invalid;
pub use ipsec::Protection;
pub use nic_modes::NicModes;
pub use relay::RelayScenario;
pub use slices::Slice;

use weir_stats::search::goal::GoalResult;
use weir_stats::search::{LossLedger, Rate, Refusal, TrialRecord};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sut {
    /// weir: the pipeline in process on the memory topology, the daemon elsewhere.
    Weir,
    /// Linux's own forwarding.
    Kernel,
    /// The same with XFRM policies that packets are held against.
    KernelXfrm,
    /// A minimal forwarder in XDP that asks the kernel's routing tables through their helper.
    XdpFib,
    /// DPDK's l3fwd, routing by longest prefix match.
    DpdkL3fwd,
    /// DPDK's testpmd, which passes frames on without looking at their IP header.
    DpdkTestpmd,
    /// DPDK's IPsec gateway, sealing by a policy, in memory.
    DpdkIpsecSecgw,
    /// FD.io's router, when it is installed.
    Vpp,
    /// Its packet generator and sink alone, in memory: what bounds its values there.
    VppEnds,
    /// strongSwan with ESP of its own, on the `gateways` topology.
    Strongswan,
    /// The same with the kernel's ESP.
    StrongswanKernel,
    /// weir with the keys strongSwan tells the kernel, on the same topology.
    WeirStrongswan,
    /// Tailscale's clients as gateways, which only weir's relay joins, on the `gateways` topology.
    TailscaleWeir,
    /// The same with Tailscale's own relay.
    TailscaleDerper,
    /// Tailscale's relay, on the `relay` topology.
    Derper,
    /// A relay on io_uring, when it is installed.
    HyperDerp,
    /// The lab's own forwarder of bytes between connections, in the place of a relay.
    TcpForwarder,
    /// Whatever the experiment's commands start on the device under test of the `ssh` topology.
    Command,
    /// No SUT: what generator and receiver can do by themselves.
    #[serde(alias = "ceiling")]
    Baseline,
}

impl Sut {
    pub fn is_dpdk(self) -> bool {
        matches!(self, Sut::DpdkL3fwd | Sut::DpdkTestpmd | Sut::DpdkIpsecSecgw)
    }

    pub fn is_vpp(self) -> bool {
        matches!(self, Sut::Vpp | Sut::VppEnds)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Topology {
    /// Generator, pipeline and sink in this process; measures the pipeline, not the daemon.
    Memory,
    /// Generator – device under test – receiver, three network namespaces joined by veth pairs.
    Netns,
    /// Client – gateway – gateway – server, four network namespaces: TCP or datagrams through a tunnel.
    Gateways,
    /// A DERP relay and its clients, in a network namespace.
    Relay,
    /// Generator – device under test – receiver, or a relay and its clients, on hosts driven over ssh.
    Ssh,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    pub family: Family,
    pub frame: FrameSize,
    /// Distinct UDP flows (address and port pairs).
    pub flows: u32,
    pub rate: Rate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    Inet,
    Inet6,
}

/// Ethernet frame size as the field counts it: with the 4-byte FCS that software never sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FrameSize {
    Fixed(u16),
    /// 7 × 64, 4 × 570, 1 × 1518.
    Imix,
}

impl FrameSize {
    /// The bytes of a relay's packets, which have one size.
    pub fn of_relay(self) -> Result<u16, LabError> {
        match self {
            FrameSize::Fixed(bytes) => Ok(bytes),
            FrameSize::Imix => Err(LabError::new("relay: packets of one size: write `frame = 1400`".into())),
        }
    }
}

/// CPUs and ports, whatever the testbed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// CPUs of the SUT's workers; empty means the default (one per physical core not used by
    /// the generator).
    pub cpus: Vec<u32>,
    /// Port kind of weir: `af_xdp`, `af_packet` or `tun`; empty means the default.
    pub port: String,
    /// CPUs of generator and receiver; empty means the default.
    pub generator_cpus: Vec<u32>,
}

/// A metric's name of today: in runs and experiments of before, those of the SUT begin with `subject_`.
pub fn todays_name(name: String) -> String {
    match name.strip_prefix("subject_") {
        Some(rest) => format!("sut_{rest}"),
        None => name,
    }
}

fn by_todays_names<'de, D: serde::Deserializer<'de>>(from: D) -> Result<BTreeMap<String, f64>, D::Error> {
    let written = BTreeMap::<String, f64>::deserialize(from)?;
    Ok(written.into_iter().map(|(name, value)| (todays_name(name), value)).collect())
}

/// One run of one configuration: the replicate of every statistic.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Length of the measured window (warm-up excluded).
    pub seconds: f64,
    /// Delivered packets a second, the value most verdicts are about.
    pub pps: f64,
    pub ledger: LossLedger,
    /// Nanoseconds at the percentiles named in the key (`p50`, `p90`, `p99`, `p99.9`, `max`); absent
    /// when the workload carries no timestamps.
    pub latency_ns: BTreeMap<String, u64>,
    pub reordered: u64,
    pub duplicated: u64,
    /// Further values by name, with the unit last (`clocks_per_packet`, `cpu_percent`).
    #[serde(alias = "figures", deserialize_with = "by_todays_names")]
    pub metrics: BTreeMap<String, f64>,
    /// Said by whoever measured: fallbacks, warnings.
    pub notes: Vec<String>,
    /// Which of the notes say that something better was refused on the way. Absent from runs of before it was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallbacks: Option<Vec<String>>,
    /// CLOCK_MONOTONIC nanoseconds at the window's ends, where they are this machine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_ns: Option<(u64, u64)>,
    /// Every trial of a search, raw, in the order made; the fields above are those of the first, flat out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trials: Vec<TrialRecord>,
    /// What an NDR and PDR search found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub goals: Vec<GoalResult>,
    /// Each slice of a run in slices, round by round; the fields above are their sum.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<Slice>,
}

/// A SUT that is up and can be loaded again and again.
pub trait Prepared {
    /// One trial: `warm_up` thrown away, then `window` measured at `rate`. Processes it starts get a
    /// process group of their own, so that Ctrl-C reaches only the lab and the run under way ends whole.
    fn run(&mut self, trial: &Trial) -> Result<Sample, LabError>;

    /// A slice of a run: as [`Prepared::run`], but the SUT goes on where the slice before ended, and
    /// takes no processor time in between.
    fn slice(&mut self, _slice: &Trial) -> Result<Sample, LabError> {
        Err(LabError::new("slices: only the memory topology has them: remove `slices`".into()))
    }

    /// What a profiler samples to see the SUT at work; `None` when there is nothing to see (a baseline
    /// without a SUT).
    fn scope(&self) -> Option<Scope> {
        None
    }

    /// Samples on the SUT's host from now on, where the scope is [`Scope::FarHost`]. It will take about `expected`.
    fn start_sampling(&mut self, _frequency_hz: u32, _expected: Duration) -> Result<(), LabError> {
        Err(LabError::new("profile: its topology has no far host to sample".into()))
    }

    /// Ends it. The answer is what was seen in the last window, as folded stacks (`profile::folded`).
    fn finish_sampling(&mut self) -> Result<String, LabError> {
        Err(LabError::new("profile: its topology has no far host to sample".into()))
    }
}

/// One loading of a prepared SUT. A search makes many in one run; plain methods make one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    pub rate: Rate,
    pub warm_up: Duration,
    pub window: Duration,
    /// Decides what is random in the traffic.
    pub seed: u64,
}

/// Where a SUT spends its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// This process: the memory topology works on threads of its own.
    OwnThreads,
    /// Everything on these CPUs, kernel included: packet work runs in softirqs of whoever is there.
    Cpus(Vec<u32>),
    /// The SUT's CPUs of another host, where its agent samples and names what it saw.
    FarHost,
}

/// What an experimenter can act on: lower case, subject first, then the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabError {
    pub said: String,
    /// Set when the failure is a finding about the system under test, not about the lab or its machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub misbehaviour: Option<Misbehaviour>,
}

/// What a system under test did that made a run fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Misbehaviour {
    /// It ended by itself.
    Ended,
    /// What it sent is no stream of frames.
    BrokeStream,
    /// It refuses a configuration that its documentation allows.
    RefusedConfiguration,
    /// None of the packets sent came through.
    DeliveredNothing,
}

impl LabError {
    pub fn new(said: String) -> LabError {
        LabError { said, misbehaviour: None }
    }

    /// A failure that the system under test is to blame for.
    pub fn by_sut(misbehaviour: Misbehaviour, said: String) -> LabError {
        LabError { said, misbehaviour: Some(misbehaviour) }
    }
}

impl std::fmt::Display for LabError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.said)
    }
}

impl std::error::Error for LabError {}

impl From<Refusal> for LabError {
    fn from(refusal: Refusal) -> LabError {
        LabError::new(refusal.to_string())
    }
}

/// The word that files and documents use for a variant.
pub fn kebab<T: Serialize>(value: &T) -> String {
    serde_json::to_value(value).ok().and_then(|v| v.as_str().map(str::to_string)).unwrap_or_default()
}
