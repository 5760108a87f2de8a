//! The generator of the `relay` topology: clients of a DERP relay, driven by one thread on one CPU.
//!
//! ```text
//!  pacer ─► packets of a pair, stamped ─► frames ─► [TLS records] ─► one send a pair and turn
//!                                                                        relay
//!  tally ◄─ sequence, due time, fill ◄─ frames hopped over ◄─ [TLS] ◄─ one receive a socket and turn
//! ```
//!
//! Promises: nothing is allocated and no system call made for a single packet; a packet carries its pair, its
//! number and the time it was due, so loss, reordering, damage and latency are seen packet by packet, and a
//! generator that is late shows it in latencies. It shares no code with weir's relay beyond the frame codec and
//! TLS. Refuses: catching up. What a full socket or a late turn kept from leaving is offered or intended, not
//! sent.

pub mod client;
pub mod dial;
pub mod pace;
pub mod packet;
pub mod pairs;
pub mod stalled;
pub mod tally;
pub mod tls;
pub mod visits;
pub mod wire;
