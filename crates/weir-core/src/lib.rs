//! The packet pipeline of weir: packets in, verdicts out.
//!
//! This crate makes no system call, reads no clock, starts no thread and contains no `unsafe`:
//! time is a number passed in, memory is a [`packet::Buffer`] someone else owns, and every frame
//! that enters [`router`] leaves with exactly one [`verdict::Verdict`].
#![forbid(unsafe_code)]

mod chunked;
pub mod conntrack;
pub mod control;
pub mod device;
pub mod firewall;
#[cfg(feature = "testing")]
pub mod fuzz_input;
pub mod id;
pub mod ipsec;
pub mod keying;
pub mod mirror;
pub mod neighbor;
pub mod packet;
pub mod random;
pub mod relay;
pub mod route;
pub mod router;
pub mod state;
mod sync;
pub mod tables;
#[cfg(feature = "testing")]
pub mod testing;
pub mod time;
pub mod trace;
pub mod verdict;
pub mod wire;
