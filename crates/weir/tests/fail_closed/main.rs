//! Where policies apply nothing leaves as cleartext, whatever happens to weir: with `ip_forward = 1` and kernel routes
//! that would forward all of it. A smoke part runs with the other tests; `make fail-closed` runs every case.

mod event;
mod matrix;
mod operator;
mod scene;
mod traffic;

use weir::testing::{machine, testbed};
