//! The relay's daemon around the library `weir-relay`: settings of files and flags, control socket, handover.

pub mod command;
pub mod derper;
mod handover;
pub mod run;
