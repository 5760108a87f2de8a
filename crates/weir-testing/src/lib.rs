//! What tests and benches of several crates share. Only `dev-dependencies` name this crate: nothing that is installed has it.
//!
//! Promises: whatever it makes has a name with this process's number in it and is gone on drop, after a panic too.
//! Refuses: to know any crate of ours; what tests need of a running `weir` is in that crate's feature `testing`.

pub mod folder;
pub mod fuzz;
pub mod page;
pub mod process;
pub mod race;
pub mod shell;
