//! Network namespaces of this machine: their devices, counters and CPUs, what an earlier run left of them, and one
//! window driven through them. Testbeds, systems under test and agents stand on it.

pub mod connections;
pub mod counters;
pub mod cpus;
pub mod drive;
pub mod flows;
pub mod namespace;
pub mod open;
pub mod residue;
pub mod veth;
