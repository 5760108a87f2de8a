//! Where configurations run: one testbed per topology.
//!
//! A testbed builds what a configuration asks for, is loaded once per run, and removes all it made when it
//! is dropped. What the machine lacks is said by [`Testbed::missing`] before anything is built, so that a
//! configuration is skipped by name instead of failing half way.

pub mod gateways;
pub mod memory;
pub mod netns;
pub mod programs;
pub mod relay;
pub mod ssh;

use crate::model::{Testbed, Topology};

/// The testbed of a topology. Hosts are named by experiments: see [`ssh::SshTestbed::new`].
pub fn testbed(topology: Topology) -> Box<dyn Testbed> {
    match topology {
        Topology::Memory => Box::new(memory::MemoryTestbed::default()),
        Topology::Netns => Box::new(netns::NetnsTestbed::default()),
        Topology::Gateways => Box::new(gateways::GatewaysTestbed::default()),
        Topology::Relay => Box::new(relay::RelayTestbed::default()),
        Topology::Ssh => Box::new(ssh::SshTestbed::without_hosts()),
    }
}
