//! For tests and fuzzing alone (feature `testing`): a sample network, and random input through whole layers.
//!
//! The roof: it imports what it tests, and nothing imports it. The fuzz function of a parser stands beside the
//! parser; those of the router and of the gateway, which need the sample network and traces, stand here.

#[cfg(feature = "ipsec")]
pub mod gateway;
pub mod router;
pub mod sample;
#[cfg(feature = "ipsec")]
pub mod testbed;

use crate::fuzz_input::FuzzTarget;
use crate::ipsec::flow::fuzz_selectors;
use crate::wire::{
    arp::fuzz_arp, ctnetlink::fuzz_ctnetlink, decode::fuzz_decode, esp::fuzz_esp, ethernet::fuzz_ethernet,
    flow::fuzz_flow, icmpv4::fuzz_icmpv4, icmpv6::fuzz_icmpv6, ipv4::fuzz_ipv4, ipv6::fuzz_ipv6,
    ndp::fuzz_ndp, nftables::fuzz_nftables, partial_checksum::fuzz_partial_checksum,
    rtnetlink::fuzz_rtnetlink, tcp::fuzz_tcp, udp::fuzz_udp, xfrm::fuzz_xfrm,
};

/// Every fuzz function of a packet parser with its name: the smoke test runs them all, `fuzz/` has a target for
/// each. The relay's are in [`crate::relay::fuzz`].
pub const PACKET_PARSERS: &[(&str, FuzzTarget)] = &[
    ("ethernet", fuzz_ethernet),
    ("arp", fuzz_arp),
    ("ipv4", fuzz_ipv4),
    ("ipv6", fuzz_ipv6),
    ("icmpv4", fuzz_icmpv4),
    ("icmpv6", fuzz_icmpv6),
    ("ndp", fuzz_ndp),
    ("udp", fuzz_udp),
    ("tcp", fuzz_tcp),
    ("esp", fuzz_esp),
    ("flow", fuzz_flow),
    ("selectors", fuzz_selectors),
    ("decode", fuzz_decode),
    ("rtnetlink", fuzz_rtnetlink),
    ("ctnetlink", fuzz_ctnetlink),
    ("nftables", fuzz_nftables),
    ("xfrm", fuzz_xfrm),
    ("partial_checksum", fuzz_partial_checksum),
];
