//! Decisions that last: what holds for one packet of a pair of addresses and for all that look like it.
//!
//! A device that can forward by itself (an XDP program, a switch chip) is taught by these. A decision lasts
//! for one snapshot when it rests on nothing but the incoming device, both addresses and what the device
//! checks packet by packet: MAC address, header checksum, lengths, TTL, MTU.
//!
//! Refuses: next hops chosen by flow hash, VLAN tags on either side, point-to-point ports, and of course
//! everything that is not plainly forwarded.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::decide::{Context, Decided, Decision, Silent, decide};
use super::ingress::OwnAddresses;
use super::next_hop::target;
use crate::packet::DeviceId;
use crate::tables::{Adjacency, Port, Tables, Target};
use crate::wire::flow::FlowKey;
use crate::wire::{Ethernet, ethernet};

/// The way of a pair of addresses through one snapshot.
#[derive(Clone, Copy, Debug)]
pub struct Way<'a> {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// The port it comes in on.
    pub arrived: &'a Port,
    pub next: &'a Adjacency,
}

/// Asks the router's rules; keeps what they need of a snapshot.
#[derive(Debug)]
pub struct Lasting {
    own: OwnAddresses,
    generation: Option<u64>,
    key: FlowKey,
}

impl Lasting {
    /// `key` as the workers' own, although no lasting decision depends on it.
    pub fn new(key: FlowKey) -> Self {
        Lasting { own: OwnAddresses::default(), generation: None, key }
    }

    /// The lasting way of `frame`, received from `device`; `None` when there is none.
    pub fn way<'a>(&mut self, tables: &'a Tables, device: DeviceId, frame: &[u8]) -> Option<Way<'a>> {
        if self.generation != Some(tables.generation) {
            self.own = OwnAddresses::new(tables);
            self.generation = Some(tables.generation);
        }
        let context = Context { tables, own: &self.own, key: &self.key };
        let Decided { port, network, decision } = decide(&context, device, frame, &mut Silent);
        let Decision::Forward(id) = decision else { return None };
        let arrived = tables.ports.get(port?.index())?;
        let next = tables.adjacencies.get(id.0 as usize)?;
        let leaves = tables.ports.get(next.port.index())?;
        // A policy enforcement point wants to see every packet.
        if arrived.egress != arrived.device || next.device != leaves.device {
            return None;
        }
        let tagged = network != ethernet::HEADER_LEN || next.vlan.is_some();
        if tagged || arrived.point_to_point || leaves.point_to_point {
            return None;
        }
        let (source, destination, value) = addresses(tables, frame)?;
        // ESP to an SA is opened, whatever else goes to its address.
        if tables.ipsec.as_ref().is_some_and(|ipsec| ipsec.sad.takes(destination)) {
            return None;
        }
        let by_flow = matches!(target(tables, value), Target::Multipath { .. });
        (!by_flow).then_some(Way { source, destination, arrived, next })
    }
}

/// The frame's two addresses and the destination's route.
fn addresses(tables: &Tables, frame: &[u8]) -> Option<(IpAddr, IpAddr, u32)> {
    let link = Ethernet::parse(frame).ok()?;
    let packet = link.payload();
    if link.ethertype() == ethernet::ETHERTYPE_IPV4 {
        let (source, rest) = packet.get(12..)?.split_first_chunk::<4>()?;
        let destination = Ipv4Addr::from(*rest.first_chunk::<4>()?);
        return Some((Ipv4Addr::from(*source).into(), destination.into(), tables.fib4.lookup(destination)));
    }
    let (source, rest) = packet.get(8..)?.split_first_chunk::<16>()?;
    let destination = Ipv6Addr::from(*rest.first_chunk::<16>()?);
    Some((Ipv6Addr::from(*source).into(), destination.into(), tables.fib6.lookup(destination)))
}
