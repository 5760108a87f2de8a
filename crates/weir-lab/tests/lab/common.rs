//! What several files of this program use.

pub mod configuration;
pub mod folder;
pub mod program;
pub mod testbeds;
