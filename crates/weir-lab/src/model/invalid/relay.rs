//! Tables `relay` that mean nothing.

use std::fmt;

use crate::model::relay::Load;
use crate::model::{Sut, kebab};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelayError {
    /// A relay without a table `relay`.
    IsRelay(Sut),
    /// The table `relay` where relays are not measured.
    Elsewhere,
    StalledWithoutSenders(Load),
    Clients {
        flows: u32,
        stalled: u32,
        most: u32,
    },
    RateWithoutPackets(Load),
    /// What generator and receiver cannot do by themselves.
    NeedsRelay(Load),
    /// The relay topology without the table `relay`.
    NoTable,
    /// Modes of devices on the hosts of a relay.
    NicModes,
    /// A simulation on another host.
    SimulatedOnHosts,
}

impl RelayError {
    pub fn remedy(&self) -> &'static str {
        match self {
            RelayError::IsRelay(_) => "use topology = \"relay\", or \"ssh\" with relay = {}",
            RelayError::Elsewhere => "use topology = \"relay\" or \"ssh\", or remove it",
            RelayError::StalledWithoutSenders(_) => "remove `stalled`, or use \"closed-loop\" or \"open\"",
            RelayError::Clients { .. } => "two clients a pair, one address: lower `flows`",
            RelayError::NeedsRelay(_) => "name a relay as `sut`",
            RelayError::NoTable => "write relay = {}",
            RelayError::NicModes => "remove them, and set the host's devices before the campaign",
            RelayError::SimulatedOnHosts => "use topology = \"relay\"",
            RelayError::RateWithoutPackets(_) => "remove `rate`, or use \"closed-loop\" or \"open\"",
        }
    }
}

impl fmt::Display for RelayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RelayError::IsRelay(sut) => write!(f, "SUT \"{}\" is a relay", kebab(sut)),
            RelayError::Elsewhere => f.write_str("`relay` is of the topologies relay and ssh"),
            RelayError::StalledWithoutSenders(load) => {
                write!(f, "stalled receivers need senders, load \"{}\" has none", kebab(load))
            }
            RelayError::Clients { flows, stalled, most } => {
                write!(f, "{flows} flows and {stalled} stalled ones, expected {most} at most")
            }
            RelayError::NeedsRelay(load) => write!(f, "load \"{}\" needs a relay", kebab(load)),
            RelayError::NoTable => f.write_str("the relay topology needs the table `relay`"),
            RelayError::NicModes => f.write_str(
                "`queues`, `wake_up`, `zero_copy`, `xdp`, `flow_offload`, `live_transmit`, `irq`, `nice` and `moderation` are of \
                 forwarding: a relay's packets are TCP of its host's kernel",
            ),
            RelayError::SimulatedOnHosts => {
                f.write_str("load \"simulated-caches\" is of this machine: no simulator is brought to a host")
            }
            RelayError::RateWithoutPackets(load) => {
                write!(f, "load \"{}\" sends no packets", kebab(load))
            }
        }
    }
}
