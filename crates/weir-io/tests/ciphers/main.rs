//! Ciphers as the gateway uses them, each backend against the others and against published packets.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod allocations;
mod differential;
mod every_length;
mod promises;
mod suites;
mod vectors;
