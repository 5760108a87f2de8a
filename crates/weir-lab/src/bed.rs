//! Where configurations run: one bed per topology.
//!
//! A bed builds what a configuration asks for, is loaded once per run, and removes all it made when it
//! is dropped. What the machine lacks is said by [`Bed::missing`] before anything is built, so that a
//! configuration is skipped by name instead of failing half way.

pub mod netns;

use crate::model::{Bed, Configuration, LabError, Prepared, Topology};

/// The bed of a topology.
pub fn bed(topology: Topology) -> Box<dyn Bed> {
    match topology {
        Topology::Memory => Box::new(NoBed(topology)),
        Topology::Netns => Box::new(netns::NetnsBed::default()),
    }
}

/// Stands in for a topology this build does not have: everything on it is skipped.
struct NoBed(Topology);

impl Bed for NoBed {
    fn missing(&mut self, _: &Configuration) -> Option<String> {
        Some(format!("topology {:?} is not part of this build: use one that is", self.0))
    }

    fn prepare(&mut self, configuration: &Configuration) -> Result<Box<dyn Prepared>, LabError> {
        Err(LabError(self.missing(configuration).unwrap_or_default()))
    }
}
