//! Where programs are attached, and what an interface can do with them.
//!
//! Promises: programs are attached so that they vanish with the process that attached them, even after
//! `kill -9` ([`attach`]), or so that they stay ([`tc`]). The programs are C files in `weir-xdp`, which aya
//! loads; here is what aya lacks.

pub mod attach;
pub mod features;
mod netlink;
pub mod tc;
pub(crate) mod words;
