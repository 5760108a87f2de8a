//! The little BPF this program needs, made without a compiler.
//!
//! Promises: programs are assembled in Rust ([`asm`]), checked by the kernel's verifier whose words
//! come back in the error ([`object`]), and attached so that they vanish with the process that
//! attached them, even after `kill -9` ([`attach`]), or so that they stay ([`tc`]).
//!
//! The steering programs are written so. Other programs are C files in `weir-xdp`, which aya loads.
//!
//! Refuses: BTF, CO-RE, tail calls, loops. What needs them belongs in a C file of that crate.

pub mod asm;
pub mod attach;
pub mod features;
pub mod object;
pub mod tc;
