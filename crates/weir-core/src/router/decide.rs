//! What is to become of one frame: every rule, no action.
//!
//! ```text
//! frame ─► Ethernet, VLAN, port ─► MAC ─┬─ ARP ──────────────────────────────► Punt
//!                                       ├─ ipv4 ─┐  header, options, martians
//!                                       └─ ipv6 ─┤  local? reverse path? TTL?
//!                                                └► next_hop ─► Forward, Fragment, Hold, Drop
//! ```
//!
//! Promises: a pure function of tables and bytes. Forwarding acts on it ([`super::slow`]), a trace prints
//! it ([`crate::trace`]), the fast path is tested against it. Refuses nothing: each frame gets a decision.

use std::net::IpAddr;

use super::ingress::OwnAddresses;
use super::ipsec::hooks as ipsec;
use super::{ipv4, ipv6};
use crate::id::{AdjacencyId, PortId};
use crate::packet::DeviceId;
use crate::tables::{Owner, Port, PortKind, Tables, Target};
use crate::verdict::Reason;
use crate::wire::flow::FlowKey;
use crate::wire::{Arp, Ethernet, ethernet, icmpv4, icmpv6};

/// What a decision is made from.
pub(crate) struct Context<'a> {
    pub tables: &'a Tables,
    pub own: &'a OwnAddresses,
    pub key: &'a FlowKey,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Send it to this next hop, which it fits.
    Forward(AdjacencyId),
    /// Send it in pieces (IPv4 only).
    Fragment(AdjacencyId),
    /// Wait for the neighbour.
    Hold(PortId, IpAddr),
    /// ARP and neighbour discovery: to the control side.
    Punt,
    /// The kernel has its own copy, or none is wanted.
    Local,
    /// An echo request to an address only weir has.
    EchoReply,
    /// Goes to this host's own stack by this device.
    #[cfg(feature = "ipsec")]
    Deliver(DeviceId),
    /// ESP: opened by this SA.
    #[cfg(feature = "ipsec")]
    Open(crate::ipsec::InboundId),
    /// A fragment that may be part of ESP: held for the others.
    #[cfg(feature = "ipsec")]
    Collect,
    /// ESP whose SA is not here, and may come: held for it.
    #[cfg(feature = "ipsec")]
    AwaitSa(super::ipsec::Key),
    Drop(Reason, Option<IcmpError>),
}

/// An error to tell the sender about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IcmpError {
    V4(icmpv4::Error),
    V6(icmpv6::Error),
}

impl From<icmpv4::Error> for IcmpError {
    fn from(error: icmpv4::Error) -> Self {
        IcmpError::V4(error)
    }
}

impl From<icmpv6::Error> for IcmpError {
    fn from(error: icmpv6::Error) -> Self {
        IcmpError::V6(error)
    }
}

impl From<Reason> for Decision {
    fn from(reason: Reason) -> Self {
        Decision::Drop(reason, None)
    }
}

/// Hears what was looked at and what was found. A trace writes it down; forwarding does not listen, and
/// the closure is never called.
pub(crate) trait Observer {
    fn note(&mut self, stage: &'static str, what: impl FnOnce() -> (String, String));
}

/// The observer of forwarding.
pub(crate) struct Silent;

impl Observer for Silent {
    #[inline(always)]
    fn note(&mut self, _: &'static str, _: impl FnOnce() -> (String, String)) {}
}

/// A decision with where the frame came in and where its IP header starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decided {
    pub port: Option<PortId>,
    /// Offset of the network header: 14, or 18 behind a tag.
    pub network: usize,
    pub decision: Decision,
}

/// A frame on its way through the rules: the port it came in on and how.
pub(super) struct Arrival<'a> {
    pub id: PortId,
    pub port: &'a Port,
    /// Sent to a link-layer group: nothing in it may be forwarded, and no error may answer it.
    pub group: bool,
}

impl Arrival<'_> {
    /// Who answers for `address` on port `id`; the kernel, where the tables do not say.
    pub fn owner(tables: &Tables, id: PortId, address: IpAddr) -> Owner {
        let found = tables
            .ports
            .get(id.index())
            .and_then(|port| port.addresses.iter().find(|a| a.address == address));
        found.map_or(Owner::Kernel, |a| a.owner)
    }

    /// What is for the kernel, which has its own copy, unless weir alone could read it.
    pub fn for_kernel(&self, tables: &Tables) -> Decision {
        match self.port.kind {
            PortKind::Device => Decision::Local,
            PortKind::Tunnel | PortKind::Policy => {
                ipsec::host(tables, self.id).unwrap_or(Reason::DecryptedForKernel.into())
            }
        }
    }

    /// What only the kernel can route on and weir alone could read, where it can be given to the kernel.
    pub fn left_to_kernel(&self, tables: &Tables, target: Target) -> Option<Decision> {
        let left = self.port.kind == PortKind::Tunnel && target == Target::Discard(Reason::LeftToKernel);
        if left { ipsec::host(tables, self.id) } else { None }
    }

    /// Whether the kernel has an address of this family here, and so hears broadcasts and groups.
    pub fn kernel_listens(&self, ipv4: bool) -> bool {
        self.port.addresses.iter().any(|a| a.owner == Owner::Kernel && a.address.is_ipv4() == ipv4)
    }
}

/// Decides on a frame received from `device`.
pub(crate) fn decide(
    context: &Context<'_>,
    device: DeviceId,
    frame: &[u8],
    see: &mut impl Observer,
) -> Decided {
    let lost =
        |port, reason: Reason| Decided { port, network: ethernet::HEADER_LEN, decision: reason.into() };
    let tables = context.tables;
    let link = match Ethernet::parse(frame) {
        Ok(link) => link,
        Err(reason) => {
            see.note("ethernet", || (format!("{} bytes", frame.len()), reason.sentence().into()));
            return lost(None, reason);
        }
    };
    let id = tables.port_of(device, frame);
    let found = id.and_then(|id| tables.ports.get(id.index()).map(|port| (id, port)));
    see.note("port", || {
        let tag = link.vlan().map_or("no VLAN tag".into(), |id| format!("VLAN {id}"));
        let name = tables.devices.get(device.index()).map_or("unknown device", |d| &d.name);
        (format!("{name}, {tag}"), found.map_or("no port".into(), |(_, port)| port.name.clone()))
    });
    let Some((id, port)) = found else { return lost(None, Reason::UnknownVlan) };
    if !port.up {
        see.note("port", || (port.name.clone(), "is down".into()));
        return lost(Some(id), Reason::PortDown);
    }
    let dst = link.dst();
    let group = ethernet::is_multicast(&dst) && !port.point_to_point;
    let ours = group || dst == port.mac || port.point_to_point;
    see.note("ethernet", || {
        let verdict = match (ours, group) {
            (true, true) => "a link-layer group",
            (true, false) => "this port's MAC",
            (false, _) => "another host's MAC",
        };
        (link.to_string(), verdict.into())
    });
    if !ours {
        return lost(Some(id), Reason::OtherHost);
    }
    let arrival = Arrival { id, port, group };
    let decision = match link.ethertype() {
        ethernet::ETHERTYPE_IPV4 => ipv4::decide(context, &arrival, link.payload(), see),
        ethernet::ETHERTYPE_IPV6 => ipv6::decide(context, &arrival, link.payload(), see),
        ethernet::ETHERTYPE_ARP => match Arp::parse(link.payload()) {
            Ok(arp) => {
                see.note("arp", || (arp.to_string(), "for the control side".into()));
                Decision::Punt
            }
            Err(reason) => reason.into(),
        },
        _ => Reason::UnknownProtocol.into(),
    };
    Decided { port: Some(id), network: link.header_len(), decision }
}
