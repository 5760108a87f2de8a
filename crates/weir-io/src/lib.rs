//! System calls and unsafe code of weir, fenced.

pub mod umem;
