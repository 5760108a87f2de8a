//! Atomic words of what several workers share.
//!
//! Promises: the standard library's. `loom/` compiles the files that name them from here with its own, and runs them in
//! every order.

pub use std::sync::atomic;
