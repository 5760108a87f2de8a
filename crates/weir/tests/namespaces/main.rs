//! The daemon between real namespaces: forwarding, local delivery, reconfiguration and faults, as an operator
//! meets them. Skipped by name where namespaces cannot be made.

mod bed;
mod faults;
mod forwarding;
mod gateways;
mod ipsec;
mod operator;
mod traffic;
