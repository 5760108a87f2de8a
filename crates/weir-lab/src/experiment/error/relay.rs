//! Tables `relay` that mean nothing.

use std::fmt;

use crate::experiment::kebab;
use crate::model::Subject;
use crate::model::relay::Load;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelayError {
    /// A relay elsewhere than in the relay topology.
    IsRelay(Subject),
    /// The table `relay` elsewhere than in the relay topology.
    Elsewhere,
    StalledWithoutSenders(Load),
    Clients {
        flows: u32,
        stalled: u32,
        most: u32,
    },
    RateWithoutPackets(Load),
}

impl RelayError {
    pub fn remedy(&self) -> &'static str {
        match self {
            RelayError::IsRelay(_) => "use topology = \"relay\"",
            RelayError::Elsewhere => "use topology = \"relay\", or remove it",
            RelayError::StalledWithoutSenders(_) => "remove `stalled`, or use \"closed-loop\" or \"open\"",
            RelayError::Clients { .. } => "two clients a pair, one address: lower `flows`",
            RelayError::RateWithoutPackets(_) => "remove `rate`, or use \"closed-loop\" or \"open\"",
        }
    }
}

impl fmt::Display for RelayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RelayError::IsRelay(subject) => write!(f, "subject \"{}\" is a relay", kebab(subject)),
            RelayError::Elsewhere => f.write_str("`relay` is of the relay topology"),
            RelayError::StalledWithoutSenders(load) => {
                write!(f, "stalled receivers need senders, load \"{}\" has none", kebab(load))
            }
            RelayError::Clients { flows, stalled, most } => {
                write!(f, "{flows} flows and {stalled} stalled ones, expected {most} at most")
            }
            RelayError::RateWithoutPackets(load) => {
                write!(f, "load \"{}\" sends no packets", kebab(load))
            }
        }
    }
}
