//! What lab and agent say to each other: JSON, one line each, question and answer in turn.
//!
//! Both are the same build (the lab uploads itself), so there is no version to negotiate.

pub mod relay;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_core::time::Nanos;

use super::lease::LeaseHolder;
use crate::machine::Machine;
use crate::model::Configuration;
pub use crate::sut::command::{DeviceEnvironment, Interface};
use weir_stats::search::Rate;

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "do", content = "with", rename_all = "kebab-case")]
pub enum Request {
    /// The host is this lab's until the agent has ended → (). Comes first.
    Lease { holder: LeaseHolder, within_ms: u64 },
    /// Sets interfaces up → `Vec<Interface>`. `silent`: nothing but test packets leaves them.
    Claim { interfaces: Vec<String>, silent: bool },
    /// Starts the SUT → notes.
    Apply(Box<DeviceEnvironment>),
    /// The SUT's own health check → ().
    Check { within_ms: u64 },
    /// Opens the generator → notes.
    Generate(Box<Stream>),
    /// Opens the receiver → notes.
    Receive(Box<Stream>),
    /// Packets of `run` count from now on → ().
    Start { run: u8 },
    /// Sends one window → [`Sent`].
    Send(Window),
    /// Waits until nothing comes any more → [`Arrived`].
    Finish,
    /// Drop counters, cumulative → [`Counted`].
    Counters,
    /// The time → nanoseconds of `CLOCK_MONOTONIC`.
    Clock,
    /// A question about a relay or its clients.
    Relay(relay::RelayRequest),
    /// Samples the SUT's CPUs from now on, for about so long → ().
    Sample { frequency_hz: u32, expected_ms: u64 },
    /// Ends sampling → folded stacks ([`crate::profile::folded`]) between two moments of this host's clock.
    Profile { from: Nanos, to: Nanos },
    /// Back to how the host was found → ().
    Reset,
}

/// The first line an agent says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hello {
    pub version: String,
    /// Equal on two agents that read the same clock: one boot of one kernel, one time namespace.
    pub clock: String,
    pub machine: Machine,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Stream {
    pub configuration: Configuration,
    pub interface: Interface,
    /// Where frames go: the device under test's input.
    pub destination: [u8; 6],
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Window {
    pub rate: Rate,
    pub window_ns: Nanos,
    pub run: u8,
    pub seed: u64,
}

/// What the generator did in a window, by its own clock.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Sent {
    pub intended: u64,
    pub offered: u64,
    pub sent: u64,
    pub began: Nanos,
    pub took: Nanos,
    pub behind_max: u64,
}

/// What the receiver found, by its own clock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Arrived {
    pub delivered: u64,
    pub duplicated: u64,
    pub reordered: u64,
    pub beyond_memory: u64,
    pub lost: u64,
    pub last_arrival: Nanos,
    /// (nanoseconds, packets); means something when both ends read the same clock.
    pub latencies: Vec<(u64, u64)>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Counted {
    pub drops: BTreeMap<String, u64>,
    /// (busy, all) clock ticks of the SUT's CPUs.
    pub cpu: Option<(u64, u64)>,
    /// What the SUT knows to be wrong with itself.
    pub warnings: Vec<String>,
}

/// What the device under test came to.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Applied {
    pub notes: Vec<String>,
    /// Which of the notes say that something better was refused.
    pub fallbacks: Vec<String>,
}
