//! Where policies apply nothing leaves in clear, whatever happens to weir: with `ip_forward = 1` and kernel routes
//! that would forward all of it. A smoke part runs with the other tests; `make fail-closed` runs every case.

#[path = "../common/daemon.rs"]
mod daemon;
#[path = "../common/machine.rs"]
mod machine;

#[path = "../namespaces/bed.rs"]
#[allow(dead_code, unused_imports, reason = "the tests of namespaces use the rest")]
mod bed;
mod event;
mod matrix;
mod operator;
mod scene;
mod traffic;
