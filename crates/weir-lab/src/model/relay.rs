//! What a configuration of the `relay` topology asks of its relay: how connections are protected, what its
//! clients do, and how many workers serve them.

use serde::{Deserialize, Serialize};

/// Workers of a relay; more than any machine of a lab has cores.
pub const WORKERS_MAX: u32 = 64;
/// Clients of a run that only holds connections: below the ephemeral ports of one address (28,232).
pub const IDLE_MAX: u32 = 25_000;

/// Packets of a pair under way in a closed loop, unless it is told otherwise: what derper keeps for a client, so that it
/// loses none by itself.
pub const UNDER_WAY: u32 = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayScenario {
    pub tls: Tls,
    pub load: Load,
    pub workers: u32,
    /// Packets of each pair that a closed loop keeps under way.
    #[serde(default = "usual", skip_serializing_if = "is_usual")]
    pub under_way: u32,
    /// Pairs beside those of the workload, whose receivers take next to nothing.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stalled: u32,
}

impl Default for RelayScenario {
    fn default() -> RelayScenario {
        let (tls, load) = (Tls::default(), Load::default());
        RelayScenario { tls, load, workers: 1, under_way: UNDER_WAY, stalled: 0 }
    }
}

/// Who protects the relay's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tls {
    #[default]
    Off,
    /// The relay's process.
    User,
    /// The relay's kernel, after a handshake in its process.
    Kernel,
}

impl Tls {
    /// What the client sees: TLS, whoever does it.
    pub fn is_on(self) -> bool {
        self != Tls::Off
    }
}

/// What clients do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// Pairs send; without a rate, so many packets of each pair are under way at once.
    #[default]
    ClosedLoop,
    /// Pairs send; without a rate, as much as their sockets take.
    Open,
    /// Clients connect and say nothing: what does each cost in memory?
    Idle,
    /// Clients the relay has not seen connect and leave again.
    Connects,
    /// The same clients connect and leave, again and again.
    Reconnects,
    /// Pairs send, at a rate, through a relay whose caches are simulated.
    SimulatedCaches,
}

impl Load {
    /// Whether pairs send packets to each other.
    pub fn has_pairs(self) -> bool {
        matches!(self, Load::ClosedLoop | Load::Open | Load::SimulatedCaches)
    }

    /// Whether the generator can do it without a relay.
    pub fn has_baseline(self) -> bool {
        self.has_pairs() && self != Load::SimulatedCaches
    }
}

fn usual() -> u32 {
    UNDER_WAY
}

fn is_usual(count: &u32) -> bool {
    *count == UNDER_WAY
}

/// What is not asked for is not written: results of campaigns that do not ask keep their form.
pub(super) fn is_zero(count: &u32) -> bool {
    *count == 0
}
