//! What threads of the engine tell each other by: atomic words, locks and parking.
//!
//! Promises: the standard library's. `loom/` compiles the files that name them from here with its own, and runs them in
//! every order.

pub use std::sync::{Mutex, MutexGuard, atomic};
pub use std::thread;
