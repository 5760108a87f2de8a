//! Configurations that mean nothing, as data: which keys exclude each other, and what to do.

mod ipsec;
mod relay;

use std::fmt;

pub use ipsec::{IpsecError, NeededKey};
pub use relay::RelayError;

use super::configuration::UNDER_WAY_MAX;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invalid {
    Ipsec(IpsecError),
    Relay(RelayError),
    /// Modes of devices where there are none.
    NoDevices,
    /// Modes of weir for something else.
    NotOfWeir,
    /// Interrupts that the testbed holds back, of another SUT or topology.
    NotHeld,
    /// Offloads where the kernel has no inner wires.
    NoOffload,
    /// Delay and loss elsewhere than between gateways.
    NoNetem,
    /// A firewall where the kernel has none, or another choice than weir's own of how devices are driven.
    NoFirewall,
    /// Connections that begin and end where there is no firewall that they pass, or at a rate.
    NoConnections,
    /// More connections under way at once than descriptors.
    UnderWay {
        got: u32,
    },
    /// Commands elsewhere than on hosts and between namespaces.
    CommandElsewhere,
}

impl Invalid {
    pub fn remedy(&self) -> &'static str {
        match self {
            Invalid::Ipsec(error) => error.remedy(),
            Invalid::Relay(error) => error.remedy(),
            Invalid::NoDevices => "remove them",
            Invalid::NotOfWeir
            | Invalid::NotHeld
            | Invalid::NoOffload
            | Invalid::NoNetem
            | Invalid::NoFirewall
            | Invalid::NoConnections => "remove it",
            Invalid::UnderWay { .. } => "lower `flows`",
            Invalid::CommandElsewhere => "write it, or name another SUT",
        }
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Invalid::Ipsec(error) => return error.fmt(f),
            Invalid::Relay(error) => return error.fmt(f),
            Invalid::NoDevices => {
                "`queues`, `wake_up`, `zero_copy`, `xdp`, `flow_offload`, `live_transmit`, `irq`, `nice` and `moderation` are of the topologies netns and ssh"
            }
            Invalid::NotOfWeir => {
                "`wake_up`, `zero_copy`, `xdp`, `flow_offload`, `live_transmit`, `irq`, `nice` and `moderation` are of SUT \"weir\""
            }
            Invalid::NotHeld => {
                "`moderation = \"held\"` is of SUT \"kernel\" with topology = \"netns\": weir moderates by itself"
            }
            Invalid::NoOffload => {
                "`offload` is of gateways whose inner wires are the kernel's (strongswan, strongswan-kernel, weir with port = \"tun\")"
            }
            Invalid::NoNetem => "`netem` is of the topology gateways",
            Invalid::NoFirewall => {
                "`firewall` is of SUT \"kernel\" or \"weir\" with topology = \"netns\", without modes of devices or ipsec"
            }
            Invalid::NoConnections => {
                "`connection_packets` is of SUT \"kernel\" or \"weir\" with `firewall` and family = \"inet\", flat out, without modes of devices"
            }
            Invalid::UnderWay { got } => {
                return write!(
                    f,
                    "with `connection_packets` {got} connections are under way at once (`flows`), expected at most {UNDER_WAY_MAX}"
                );
            }
            Invalid::CommandElsewhere => "SUT \"command\" needs topology = \"netns\" or \"ssh\"",
        })
    }
}

impl std::error::Error for Invalid {}
