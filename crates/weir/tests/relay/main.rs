//! The relay as a program: what strangers, clients and operators meet, what goes wrong around it, its restarts.

mod acceptor;
mod faults;
mod handover;
mod service;

use weir::testing::{client, daemon, machine};
