//! Where configurations run: one bed per topology.
//!
//! A bed builds what a configuration asks for, is loaded once per run, and removes all it made when it
//! is dropped. What the machine lacks is said by [`Bed::missing`] before anything is built, so that a
//! configuration is skipped by name instead of failing half way.

pub mod gateways;
pub mod memory;
pub mod netns;
pub mod programs;
pub mod relay;
pub mod ssh;

use crate::model::{Bed, Topology};

/// The bed of a topology. Hosts are named by experiments: see [`ssh::SshBed::new`].
pub fn bed(topology: Topology) -> Box<dyn Bed> {
    match topology {
        Topology::Memory => Box::new(memory::MemoryBed::default()),
        Topology::Netns => Box::new(netns::NetnsBed::default()),
        Topology::Gateways => Box::new(gateways::GatewaysBed::default()),
        Topology::Relay => Box::new(relay::RelayBed::default()),
        Topology::Ssh => Box::new(ssh::SshBed::without_hosts()),
    }
}
