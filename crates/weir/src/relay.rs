//! The relay's daemon around the library `weir-relay`: settings become threads, requests become answers, and one relay
//! takes over from another.

mod handover;
pub mod resources;
pub mod run;
mod show;
