//! weir's ESP beside others': Linux's own in a second kernel, VPP's, and strongSwan's with IKEv2; TLS by that kernel.
//! Skipped by name where a peer is not installed.

mod case;
mod ikev2;
mod kernel;
mod kernel_devices;
mod kernel_keys;
mod kernel_keys_faults;
mod kernel_keys_peers;
mod kernel_peer;
mod kernel_relay;
mod kernel_tls;
mod links;
mod outside;
mod relay;
mod routing;
mod second_kernel;
mod strongswan;
mod testbed;
mod traffic;
mod vpp;
mod vpp_peer;
mod vrf;
mod walkthrough;
mod weir_gateway;

use weir::testing::{content, daemon, machine};
