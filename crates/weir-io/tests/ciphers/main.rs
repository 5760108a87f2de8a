//! Ciphers as the gateway uses them, each backend against the others and against published packets.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod allocations;
mod differential;
mod promises;
mod suites;
mod vectors;
