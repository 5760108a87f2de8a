//! System calls and unsafe code of weir, fenced.

pub mod alloc;
pub mod clock;
pub mod cpu;
pub mod umem;
