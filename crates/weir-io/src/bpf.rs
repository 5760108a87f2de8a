//! The little BPF this program needs, made without a compiler.
//!
//! Promises: programs are assembled in Rust ([`asm`]), checked by the kernel's verifier whose words
//! come back in the error ([`object`]), and attached so that they vanish with the process that
//! attached them, even after `kill -9` ([`attach`]).
//!
//! Why no aya, libbpf or clang: the programs here have under 150 instructions and change with the
//! maps they read. A BPF toolchain on the user's machine, or an object file nobody can review in
//! the repository, would cost more than the assembler does; and [`asm::Program`] prints itself.
//!
//! Refuses: BTF, CO-RE, tail calls, loops. What needs them belongs in a C file and another crate.

pub mod asm;
pub mod attach;
pub mod features;
pub mod object;
