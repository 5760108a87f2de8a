//! A flow and its SPD as the words a cache compares.
//!
//! Promises: two keys are equal exactly where family, SPD, addresses, protocol and transport are, of whatever
//! kind; no key is all zero; a flow comes back from its key as it was. Most keys are made from the packet's
//! bytes directly: a flow in between would cost as much as the rest of a lookup.

use std::net::IpAddr;

use crate::ipsec::spd::{Flow, SpdId, Transport};
use crate::wire::{get_array, get16, get32, protocol};

/// Where there is no flow: never in a key.
pub const EMPTY: u64 = 0;
const NONE: u64 = 1;
const OPAQUE: u64 = 2;
const PORTS: u64 = 3;
const ICMP: u64 = 4;

/// 13 bits, in units of 8 bytes.
const OFFSET_MASK: u16 = 0x1fff;

/// Addresses, then ports or type (32 bits), SPD (16), protocol (8) and kind of transport (8).
pub type Key<const K: usize> = [u64; K];
pub type Key4 = Key<2>;
pub type Key6 = Key<5>;

/// Keys of one family.
pub trait Words: Sized {
    /// The key of nearly every packet: what [`Flow::of_common`] knows of this family.
    fn of_common(packet: &[u8], spd: SpdId) -> Option<Self>;
    /// `None` where the flow is of the other family.
    fn of(flow: &Flow, spd: SpdId) -> Option<Self>;
    fn flow(&self) -> Flow;
}

impl Words for Key4 {
    #[inline(always)]
    fn of_common(packet: &[u8], spd: SpdId) -> Option<Key4> {
        let header: &[u8; 24] = packet.first_chunk()?;
        let protocol = header[9];
        let whole = (header[0] == 0x45) & (get16(header, 6) & OFFSET_MASK == 0) & (get16(header, 2) >= 24);
        if !whole | !has_common_ports(protocol) {
            return None;
        }
        Some([u64::from_be_bytes(get_array(header, 12)), common(spd, protocol, get32(header, 20))])
    }

    fn of(flow: &Flow, spd: SpdId) -> Option<Key4> {
        let (IpAddr::V4(source), IpAddr::V4(destination)) = (flow.source, flow.destination) else {
            return None;
        };
        Some([u64::from(source.to_bits()) << 32 | u64::from(destination.to_bits()), rest(flow, spd)])
    }

    #[inline]
    fn flow(&self) -> Flow {
        let [addresses, rest] = *self;
        let (source, destination) =
            (IpAddr::V4(((addresses >> 32) as u32).into()), IpAddr::V4((addresses as u32).into()));
        Flow { source, destination, protocol: protocol(rest), transport: transport(rest) }
    }
}

impl Words for Key6 {
    #[inline(always)]
    fn of_common(packet: &[u8], spd: SpdId) -> Option<Key6> {
        let header: &[u8; 44] = packet.first_chunk()?;
        let protocol = header[6];
        let whole = (header[0] >> 4 == 6) & (get16(header, 4) >= 4);
        if !whole | !has_common_ports(protocol) {
            return None;
        }
        let word = |at| u64::from_be_bytes(get_array(header, at));
        Some([word(8), word(16), word(24), word(32), common(spd, protocol, get32(header, 40))])
    }

    fn of(flow: &Flow, spd: SpdId) -> Option<Key6> {
        let (IpAddr::V6(source), IpAddr::V6(destination)) = (flow.source, flow.destination) else {
            return None;
        };
        let (source, destination) = (source.to_bits(), destination.to_bits());
        Some([
            (source >> 64) as u64,
            source as u64,
            (destination >> 64) as u64,
            destination as u64,
            rest(flow, spd),
        ])
    }

    #[inline]
    fn flow(&self) -> Flow {
        let address = |high: u64, low: u64| IpAddr::V6((u128::from(high) << 64 | u128::from(low)).into());
        let [s, t, d, e, rest] = *self;
        Flow {
            source: address(s, t),
            destination: address(d, e),
            protocol: protocol(rest),
            transport: transport(rest),
        }
    }
}

#[inline(always)]
fn has_common_ports(protocol: u8) -> bool {
    matches!(protocol, protocol::TCP | protocol::UDP)
}

#[inline(always)]
fn common(spd: SpdId, protocol: u8, ports: u32) -> u64 {
    u64::from(ports) << 32 | u64::from(spd.0) << 16 | u64::from(protocol) << 8 | PORTS
}

fn rest(flow: &Flow, spd: SpdId) -> u64 {
    let (ports, kind) = match flow.transport {
        Transport::None => (0, NONE),
        Transport::Opaque => (0, OPAQUE),
        Transport::Ports { source, destination } => (u64::from(source) << 16 | u64::from(destination), PORTS),
        Transport::Icmp(kind) => (u64::from(kind), ICMP),
    };
    ports << 32 | u64::from(spd.0) << 16 | u64::from(flow.protocol) << 8 | kind
}

fn protocol(rest: u64) -> u8 {
    (rest >> 8) as u8
}

fn transport(rest: u64) -> Transport {
    let ports = (rest >> 32) as u32;
    match rest & 0xff {
        PORTS => Transport::Ports { source: (ports >> 16) as u16, destination: ports as u16 },
        ICMP => Transport::Icmp(ports as u16),
        OPAQUE => Transport::Opaque,
        _ => Transport::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPD: SpdId = SpdId(0x1234);

    fn flows() -> Vec<Flow> {
        let ip = |text: &str| -> IpAddr { text.parse().expect("an address") };
        let transports = [
            Transport::None,
            Transport::Opaque,
            Transport::Ports { source: 0, destination: 0 },
            Transport::Ports { source: 8, destination: 0xffff },
            Transport::Icmp(0),
            Transport::Icmp(0xff08),
        ];
        let ends =
            [("0.0.0.0", "0.0.0.0"), ("10.0.0.1", "255.0.0.2"), ("::", "::"), ("1:2:3:4:5:6:7:8", "ffff::1")];
        let mut flows = Vec::new();
        for (source, destination) in ends.map(|(s, d)| (ip(s), ip(d))) {
            for protocol in [0, 1, 6, 255] {
                flows.extend(transports.map(|transport| Flow { source, destination, protocol, transport }));
            }
        }
        flows
    }

    #[test]
    fn keys_differ_wherever_flows_or_spds_do_and_give_the_flow_back() {
        let mut seen = std::collections::HashMap::new();
        for flow in flows() {
            for spd in [SPD, SpdId(0), SpdId(u16::MAX)] {
                let key = match (Key4::of(&flow, spd), Key6::of(&flow, spd)) {
                    (Some(key), None) => {
                        assert_eq!(key.flow(), flow);
                        key.to_vec()
                    }
                    (None, Some(key)) => {
                        assert_eq!(key.flow(), flow);
                        key.to_vec()
                    }
                    other => panic!("of both families or none: {other:?}"),
                };
                assert_ne!(key.last(), Some(&EMPTY));
                assert_eq!(seen.insert(key, (flow, spd)), None, "{flow:?}");
            }
        }
    }
}
