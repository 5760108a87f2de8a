//! What several files of this program use.

pub mod configuration;
pub mod program;
pub mod testbeds;
