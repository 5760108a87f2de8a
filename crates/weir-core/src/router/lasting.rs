//! Decisions that last: what holds for one packet of a pair of addresses and for all that look like it.
//!
//! A device that can forward by itself (an XDP program, a switch chip) is taught by these. A decision lasts
//! for one snapshot when it rests on nothing but the incoming device, both addresses and what the device
//! checks packet by packet: MAC address, header checksum, lengths, TTL, MTU.
//!
//! Where several next hops lead to the destination, it is one flow's: the flow hash chose, of protocol and ports. So it is behind a
//! policy enforcement point, where policies could say something else of other packets of the pair.
//!
//! Refuses: point-to-point ports, what a policy protects or discards, and of course everything that is not plainly forwarded.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::decide::{Context, Decided, Decision, Silent, decide};
use super::ingress::OwnAddresses;
use super::ipsec::hooks::passed;
use super::next_hop::{target, target_of};
use crate::id::{AdjacencyId, Mac, PortId};
use crate::ipsec::spd::PolicyCounters;
use crate::packet::DeviceId;
use crate::tables::{Adjacency, Port, Tables, Target};
use crate::wire::build::Frame;
use crate::wire::flow::FlowKey;
use crate::wire::{Ethernet, Ipv4, Ipv6, ethernet};

/// The way of a pair of addresses through one snapshot.
#[derive(Clone, Copy, Debug)]
pub struct Way<'a> {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// Protocol and ports (0 without), where others of the pair may take another next hop, or be a policy's.
    pub flow: Option<(u8, u32)>,
    /// The port it comes in on.
    pub arrived: &'a Port,
    pub next: &'a Adjacency,
    /// Policies let them in and out as cleartext, and count them there; `None`: none is asked.
    pub policies: Option<[Option<&'a Arc<PolicyCounters>>; 2]>,
}

/// Why packets have no lasting way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoWay {
    /// They are not forwarded, or not all to one next hop.
    Route,
    /// The next hop is not resolved.
    Neighbor,
    /// A VLAN tag that is not expected, a point-to-point port, a policy: packets have to be looked at one by one.
    Port,
}

impl fmt::Display for NoWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NoWay::Route => "no single route",
            NoWay::Neighbor => "next hop not resolved",
            NoWay::Port => "a port that needs each packet",
        })
    }
}

/// Where packets to an address leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toward<'a> {
    /// They leave by this port, whatever else is in them.
    One(PortId),
    /// They leave by one of these next hops; one that is to have more of the flows is there more than once.
    Several { group: u32, hops: &'a [AdjacencyId] },
}

/// Where packets to an address leave; `None` where they are not forwarded.
pub fn toward(tables: &Tables, destination: IpAddr) -> Option<Toward<'_>> {
    match target_of(tables, destination) {
        Target::Adjacent(id) => Some(Toward::One(tables.adjacencies.get(id.0 as usize)?.port)),
        Target::Connected(port) => Some(Toward::One(port)),
        Target::Multipath { first, len } => {
            let hops = tables.multipath.get(first as usize..)?.get(..len as usize)?;
            Some(Toward::Several { group: first, hops })
        }
        _ => None,
    }
}

/// Packets that policies, where any are asked, let pass as cleartext, as they do one of them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Passed<'a> {
    pub enforced: bool,
    /// They are those of its protocol and ports, not all of its addresses.
    pub of_flow: bool,
    /// Who counts them where they come in and where they leave.
    pub by: [Option<&'a Arc<PolicyCounters>>; 2],
}

/// The packets a way is asked for.
#[derive(Clone, Copy, Debug)]
enum Asked {
    /// That of the frame, or of its flow.
    Frame,
    /// That of all packets of its pair; by the next hop that was chosen, where there are several.
    Pair(Option<AdjacencyId>),
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

    /// The lasting way of `frame`, received from `device`, and of all that look like it; `None` when there is none.
    pub fn way<'a>(&mut self, tables: &'a Tables, device: DeviceId, frame: &[u8]) -> Option<Way<'a>> {
        self.find(tables, device, frame, Asked::Frame).ok()
    }

    /// The lasting way of packets between two addresses that come in by `port`, with its VLAN tag if it has one; where several
    /// next hops lead to the destination, by the one that was chosen.
    pub fn between<'a>(
        &mut self,
        tables: &'a Tables,
        port: PortId,
        (source, destination): (IpAddr, IpAddr),
        chosen: Option<AdjacencyId>,
    ) -> Result<Way<'a>, NoWay> {
        let port = tables.ports.get(port.index()).ok_or(NoWay::Port)?;
        let frame = Frame::ip(source, destination).ok_or(NoWay::Route)?.macs(port.mac, SENDER);
        let frame = port.vlan.map_or(frame.clone(), |vlan| frame.vlan(vlan));
        self.find(tables, port.device, &frame.udp(1, 1, &[]), Asked::Pair(chosen))
    }

    fn find<'a>(
        &mut self,
        tables: &'a Tables,
        device: DeviceId,
        frame: &[u8],
        asked: Asked,
    ) -> Result<Way<'a>, NoWay> {
        if self.generation != Some(tables.generation) {
            self.own = OwnAddresses::new(tables);
            self.generation = Some(tables.generation);
        }
        let context = Context { tables, own: &self.own, key: &self.key };
        let Decided { port, decision, network } = decide(&context, device, frame, &mut Silent);
        let (source, destination, value) = addresses(tables, frame).ok_or(NoWay::Route)?;
        let several = matches!(target(tables, value), Target::Multipath { .. });
        let id = match (decision, asked) {
            // Another may be resolved than the one that this frame would take.
            (Decision::Forward(_) | Decision::Hold(..), Asked::Pair(Some(chosen))) if several => chosen,
            (Decision::Forward(id), _) if !several => id,
            (Decision::Forward(id), Asked::Frame) => id,
            (Decision::Hold(..), _) if !several => return Err(NoWay::Neighbor),
            _ => return Err(NoWay::Route),
        };
        let arrived = port.and_then(|port| tables.ports.get(port.index())).ok_or(NoWay::Port)?;
        let next = tables.adjacencies.get(id.0 as usize).filter(|next| next.ready).ok_or(NoWay::Neighbor)?;
        let leaves = tables.ports.get(next.port.index()).ok_or(NoWay::Port)?;
        if arrived.point_to_point || leaves.point_to_point {
            return Err(NoWay::Port);
        }
        // ESP to an SA is opened, whatever else goes to its address.
        if tables.ipsec.as_ref().is_some_and(|ipsec| ipsec.sad.takes(destination)) {
            return Err(NoWay::Port);
        }
        let packet = frame.get(network..).unwrap_or(&[]);
        let ports = (port.unwrap_or_default(), next.port);
        let passed = passed(tables, ports, packet).ok_or(NoWay::Port)?;
        let flow = match asked {
            Asked::Frame if passed.of_flow || several => {
                let (protocol, ports) = flow_of(&self.key, frame).ok_or(NoWay::Route)?;
                // To a policy, packets of a protocol without ports may differ by more.
                if passed.of_flow && ports == 0 {
                    return Err(NoWay::Port);
                }
                Some((protocol, ports))
            }
            // Nobody would count for them, or end it.
            Asked::Pair(_) if passed.enforced => return Err(NoWay::Port),
            _ => None,
        };
        Ok(Way { source, destination, flow, arrived, next, policies: passed.enforced.then_some(passed.by) })
    }
}

/// Who sends the packets that are asked about: a unicast address, which is not looked at.
const SENDER: Mac = [2, 0, 0, 0, 0, 1];

/// What decides which of several next hops a frame's packet takes, besides its addresses, if it is one that all others of its flow are like.
fn flow_of(key: &FlowKey, frame: &[u8]) -> Option<(u8, u32)> {
    let link = Ethernet::parse(frame).ok()?;
    match link.ethertype() {
        ethernet::ETHERTYPE_IPV4 => key.chosen_by4(&Ipv4::parse(link.payload()).ok()?),
        _ => key.chosen_by6(&Ipv6::parse(link.payload()).ok()?),
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
