//! `weir`: the daemon and operator’s command.

fn main() {}
