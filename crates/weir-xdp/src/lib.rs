//! XDP and classifier programs in restricted C, compiled when weir is built, and the one place that loads them.
//!
//! ```text
//! bpf/steer.c ─► clang ─► object in the binary ─► Source::load (aya) ─► Loaded ─► attach, maps, test run
//! ```
//!
//! Promises: each program is one file of `bpf/`; it is called in the kernel what it is called here
//! (`bpftool prog` shows `weir_steer`); what it shares with Rust is compared when it is built ([`layout`]); a
//! program the verifier refuses says why in its last lines. Refuses: to find anything on the machine it runs on:
//! no compiler, no object file, no headers are needed there.

mod error;
pub mod layout;
mod load;
mod map;

pub use error::LoadError;
pub use load::{Action, Loaded, Mode, Run, Settings, Source};
pub use map::{Counters, Maps, Memory, Shared, Sockets, Table, Trie, loaded_link, program_name};

include!(concat!(env!("OUT_DIR"), "/programs.rs"));
