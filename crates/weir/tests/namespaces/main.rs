//! The daemon between real namespaces: forwarding, local delivery, reconfiguration and faults, as an operator
//! meets them. Skipped by name where namespaces cannot be made.

#[path = "../common/content.rs"]
mod content;
#[path = "../common/daemon.rs"]
mod daemon;
#[path = "../common/machine.rs"]
mod machine;

mod bed;
mod faults;
mod forwarding;
mod gateways;
mod ipsec;
mod operator;
mod restarts;
mod spd_lookup;
mod traffic;
