//! The relay: DERP, protocol version 2, as today's Tailscale clients speak it.
//!
//! ```text
//! bytes ─► frame::Cutter ─► frame::Frame ─► (worker: who has that key?) ─► queue ─► bytes
//!                                               ▲
//!                registry: who is connected, who is active, who watches, who must hear of whom
//! ```
//!
//! Bytes and decisions only: no socket, no clock, no random source. Time and random bytes are passed in.

pub mod frame;
pub mod handshake;

pub use frame::{Frame, Key, Kind};
