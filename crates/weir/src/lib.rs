//! The daemon of weir and the operator's command, as parts: `main.rs` only hands over to [`cli`].
//!
//! A configuration ([`config`]) becomes workers (one thread a core, no tokio) and a control thread
//! (tokio, one thread), which share table snapshots, counters and bounded queues, and nothing else.

pub mod cli;
pub mod client;
pub mod config;
pub mod daemon;
pub mod genkey;
pub mod lane;
pub mod memory;
pub mod policy;
pub mod ports;
pub mod relay;
pub mod server;
pub mod show;
pub mod top;
pub mod trace;
pub mod view;
pub mod worker;
