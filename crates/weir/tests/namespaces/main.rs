//! The daemon between real namespaces: forwarding, local delivery, reconfiguration and faults, as an operator
//! meets them. Skipped by name where namespaces cannot be made.

mod bad_news;
mod beside_kernel;
mod capture;
mod dashboard;
mod faults;
mod firewall;
mod firewall_entries;
mod firewall_faults;
mod firewall_hops;
mod firewall_proved;
mod firewall_rules;
mod firewall_translations;
mod forwarding;
mod gateways;
mod in_and_out;
mod ipsec;
mod metrics;
mod mirror;
mod operator;
mod overruns;
mod restarts;
mod service;
mod soak;
mod spd_lookup;
mod spd_offload;
mod traffic;
mod verbs;

use weir::testing::{content, testbed};
