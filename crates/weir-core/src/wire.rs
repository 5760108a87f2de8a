//! Wire formats: what the bytes of a frame mean.
//!
//! Every format has one form: a view `Format<T>` over `&[u8]` or `&mut [u8]`, made by a checked
//! `parse` (a [`Reason`] when the bytes are not that format), getters at fixed offsets, setters where a
//! router writes, and a one-line `Display`. A view made by `parse` never panics afterwards; a view made
//! by `new_unchecked` panics when the bytes are shorter than `parse` would have allowed.
//!
//! ```text
//! ethernet ─┬─ arp
//!           ├─ ipv4 ─┬─ icmpv4
//!           │        ├─ udp, tcp, esp
//!           └─ ipv6 ─┴─ icmpv6 ─ ndp
//! ```
//!
//! Promises: no parser panics, allocates or reads past its slice, whatever the input (each has a
//! `fuzz_…` function beside it). Refuses: jumbograms (RFC 2675), more than one VLAN tag.

pub mod arp;
pub mod build;
pub mod checksum;
pub mod ctnetlink;
pub mod decode;
pub mod esp;
pub mod ethernet;
pub mod flow;
pub mod icmpv4;
pub mod icmpv6;
pub mod ipv4;
pub mod ipv6;
pub mod ndp;
pub mod netlink;
pub mod nftables;
pub mod partial_checksum;
pub mod rtnetlink;
pub mod tcp;
pub mod udp;
pub mod xfrm;

pub use arp::Arp;
pub use decode::decode;
pub use esp::Esp;
pub use ethernet::Ethernet;
pub use icmpv4::Icmpv4;
pub use icmpv6::Icmpv6;
pub use ipv4::Ipv4;
pub use ipv6::Ipv6;
pub use tcp::Tcp;
pub use udp::Udp;

use crate::id::Mac;
#[cfg(doc)]
use crate::verdict::Reason;

/// Protocol numbers (IPv4 protocol, IPv6 next header; the IANA registry is one for both).
pub mod protocol {
    pub const HOP_BY_HOP: u8 = 0;
    pub const ICMPV4: u8 = 1;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const ROUTING: u8 = 43;
    pub const FRAGMENT: u8 = 44;
    pub const ESP: u8 = 50;
    pub const AH: u8 = 51;
    pub const ICMPV6: u8 = 58;
    pub const NO_NEXT_HEADER: u8 = 59;
    pub const DESTINATION_OPTIONS: u8 = 60;
    pub const SCTP: u8 = 132;
    pub const MOBILITY: u8 = 135;
    pub const HIP: u8 = 139;
    pub const SHIM6: u8 = 140;
}

/// A MAC address as people write it: `02:00:00:00:00:01`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DisplayMac(pub Mac);

impl std::fmt::Display for DisplayMac {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[inline]
pub fn get16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
pub fn get32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline]
pub fn get_array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

#[inline]
pub fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[inline]
pub(crate) fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}
