//! `weir-lab`: the instrument.

fn main() {}
