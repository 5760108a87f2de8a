//! The daemons of weir and the operator's command, as parts: `main.rs` only hands over to [`cli`].
//!
//! ```text
//! cli ─► command, a module a verb ─┬─► router ─┐
//!                                  └─► relay ──┴─► control (requests, signals, client) ─► view, text, failure
//!                                        └─ both by config
//! ```
//!
//! A configuration ([`config`]) becomes workers (one thread a core, no tokio) and a control thread, which share
//! snapshots, counters and bounded queues, and nothing else. The two daemons stand side by side: neither knows the
//! other, and [`control`] knows neither.

pub mod cli;
pub mod command;
pub mod config;
pub mod control;
pub mod enforcement;
pub mod failure;
#[cfg(feature = "testing")]
pub mod fuzz;
mod log;
#[cfg(test)]
mod openapi;
pub mod relay;
pub mod router;
pub mod service;
mod successor;
#[cfg(feature = "testing")]
pub mod testing;
pub mod text;
pub mod view;
