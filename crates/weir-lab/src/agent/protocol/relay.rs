//! What lab and agents say to each other of a relay on a host and its clients on another.
//!
//! ```text
//! device under test   start · counters · watch · memory · ended
//! generator           connect · run · hold · release · invite · visit
//! ```

use serde::{Deserialize, Serialize};
use weir_core::time::Nanos;

use super::Interface;
use crate::generator::derp::pairs::PairTraffic;
use crate::generator::derp::visits::Stay;
use crate::model::Configuration;
use crate::sut::relay::Ticks;

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "do", content = "with", rename_all = "kebab-case")]
pub enum RelayRequest {
    /// Starts the relay, on the address of this interface → [`RelayStarted`].
    Start(Box<RelayEnd>),
    /// What it dropped so far → [`super::Counted`], without CPU time.
    Counters,
    /// CPU time of a window that opens after so long → [`Watched`].
    Watch { after_ns: Nanos, window_ns: Nanos },
    /// Memory of its process → bytes.
    Memory,
    /// What it said, if it ended by itself → `Option<LabError>`.
    Ended,
    /// Waits until the relay can be reached, and connects the clients that its load has → [`ClientsReady`].
    Connect { end: Box<RelayEnd>, within_ms: u64 },
    /// One window of the pairs, drained → [`crate::generator::derp::pairs::Outcome`].
    Run(PairTraffic),
    /// Connects so many silent clients → nanoseconds that it took.
    Hold { seed: u64, count: u64 },
    /// The silent clients leave → ().
    Release,
    /// Makes the keys of clients that will connect and leave → ().
    Invite(Stay),
    /// They do → [`crate::generator::derp::visits::Connected`].
    Visit,
}

/// One end of the wire between the relay and its clients.
#[derive(Debug, Serialize, Deserialize)]
pub struct RelayEnd {
    pub configuration: Configuration,
    pub interface: Interface,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RelayStarted {
    pub notes: Vec<String>,
    /// Which of the notes say that something better was refused.
    pub fallbacks: Vec<String>,
    /// The relay's CPUs.
    pub cpus: Vec<u32>,
    /// CPUs of the host.
    pub machine: usize,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClientsReady {
    pub notes: Vec<String>,
    pub fallbacks: Vec<String>,
    /// The CPU they work on.
    pub cpu: u32,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Watched {
    pub opened: Ticks,
    pub closed: Ticks,
}
