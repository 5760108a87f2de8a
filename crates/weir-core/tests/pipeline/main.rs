//! Routing, control and IPsec from frames in to frames out, on a virtual clock.
//!
//! One binary, because its parts share their networks: a module a subject, helpers in [`common`] (the data path) and
//! [`bed`] (what an operator writes).

mod bed;
mod common;
mod control_tables;
mod durable_lives;
mod esp_agreement;
mod esp_headers;
mod esp_lifetime;
mod esp_reassembly;
mod esp_replay;
mod esp_scapy;
mod esp_transport;
mod esp_tunnel;
mod golden;
mod ipsec_behaviours;
mod ipsec_control;
mod ipsec_control_rekey;
mod ipsec_control_walk;
mod ipsec_gate_agreement;
mod ipsec_mtu;
mod ipsec_policy;
mod ipsec_policy_changes;
mod ipsec_policy_walk;
mod ipsec_rekey;
mod ipsec_state_check;
mod ipsec_state_diff;
mod ipsec_trace;
mod ipsec_tunnel;
mod neighbor_arp_ndp;
mod node_network;
mod route_full_table;
mod route_tables;
mod router_addresses;
mod router_agreement;
mod router_breath;
mod router_forwarding;
mod router_fragments;
mod router_hold;
mod router_icmp;
mod router_lasting;
mod router_local;
mod router_malformed;
mod spd_behaviours;
mod spd_classifier;
mod spd_flow_cache;
mod spd_layers;
mod spd_lookup;
mod spd_recent;
mod spd_same_traffic;
mod spd_table;
mod state_check;
mod state_diff;
mod trace;
