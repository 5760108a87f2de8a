//! Configurations that mean nothing, as data: which keys exclude each other, and what to do.

mod ipsec;
mod relay;

use std::fmt;

pub use ipsec::{IpsecError, NeededKey};
pub use relay::RelayError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invalid {
    Ipsec(IpsecError),
    Relay(RelayError),
    /// Queues and ways to wake up elsewhere than in namespaces.
    NotNetns,
    /// A way to wake up of something else than weir.
    NoWakeUp,
    /// Offloads where the kernel has no inner wires.
    NoOffload,
    /// Commands elsewhere than on hosts.
    CommandElsewhere,
}

impl Invalid {
    pub fn remedy(&self) -> &'static str {
        match self {
            Invalid::Ipsec(error) => error.remedy(),
            Invalid::Relay(error) => error.remedy(),
            Invalid::NotNetns => "remove them",
            Invalid::NoWakeUp | Invalid::NoOffload => "remove it",
            Invalid::CommandElsewhere => "write it, or name another SUT",
        }
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Invalid::Ipsec(error) => return error.fmt(f),
            Invalid::Relay(error) => return error.fmt(f),
            Invalid::NotNetns => "`queues`, `wake_up` and `live_transmit` are of the netns topology",
            Invalid::NoWakeUp => "`wake_up` and `live_transmit` are of SUT \"weir\"",
            Invalid::NoOffload => {
                "`offload` is of gateways whose inner wires are the kernel's (strongswan, weir with port = \"tun\")"
            }
            Invalid::CommandElsewhere => "SUT \"command\" needs topology = \"ssh\"",
        })
    }
}

impl std::error::Error for Invalid {}
