//! The relay: DERP, protocol version 2, as today's Tailscale clients speak it.
//!
//! ```text
//! bytes ─► decoder::FrameDecoder ─► frame::Frame ─► (worker: who has that key?) ─► queue ─► bytes
//!                                                       ▲
//!                        registry: who is connected, who is active, who watches, who must hear of whom
//! ```
//!
//! Bytes and decisions only: no socket, no clock, no random source. Time and random bytes are passed in.

pub mod bucket;
pub mod decoder;
pub mod frame;
#[cfg(feature = "testing")]
pub mod fuzz;
pub mod handshake;
pub mod reason;
pub mod registry;
pub mod shared_key_cache;
pub mod stun;

pub use frame::{Frame, Key, Kind};
pub use reason::{Class, Drops, Reason};

/// One connection of a client or another relay, for as long as the program runs: never given twice.
pub type ConnId = u64;

/// Where a connection is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    pub worker: u16,
    /// The place in its worker's table; it may come again after the connection is gone, so `conn` is to be compared.
    pub slot: u32,
    pub conn: ConnId,
}
