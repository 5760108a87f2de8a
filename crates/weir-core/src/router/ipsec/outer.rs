//! The way of outer packets: the route to an SA's far end, asked once a run.
//!
//! Promises: a sealed packet passes no policy enforcement point again, waits for its neighbour like any other, and is cut here
//! where it does not fit, for this host is its source (RFC 4301 8.2, RFC 2473 7.2).

use std::net::IpAddr;

use super::too_big::Ident;
use super::{Env, rules};
use crate::id::{AdjacencyId, PortId};
use crate::packet::{Buffer, Frame};
use crate::router::next_hop::target_of;
use crate::tables::{Adjacency, Tables, Target};
use crate::verdict::Reason;
use crate::wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, HEADER_LEN as ETHERNET};
use crate::wire::flow::{self, FlowKey};
use crate::wire::{Ipv4, Ipv6};

/// Where the outer packets of a run go.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way<'a> {
    Next(&'a Adjacency),
    /// Several paths: `len` buckets at `first`.
    ByFlow {
        first: u32,
        len: u32,
    },
    Wait(PortId, IpAddr),
    None(Reason),
}

impl<'a> Way<'a> {
    /// Finds the way by the route to `destination`; `neighbor` finds a neighbour of a connected network.
    pub fn find(
        tables: &'a Tables,
        destination: IpAddr,
        neighbor: impl FnOnce(PortId) -> Option<AdjacencyId>,
    ) -> Way<'a> {
        match target_of(tables, destination) {
            Target::Adjacent(id) => Way::by(tables, id),
            Target::Connected(port) => match neighbor(port) {
                Some(id) => Way::by(tables, id),
                None => Way::wait(tables, port, destination),
            },
            Target::Multipath { first, len } => Way::ByFlow { first, len: len.max(1) },
            Target::Discard(reason) => Way::None(reason),
            Target::NoRoute | Target::Local(_) | Target::Broadcast(_) => Way::None(Reason::NoRoute),
        }
    }

    fn by(tables: &'a Tables, id: AdjacencyId) -> Way<'a> {
        match tables.adjacencies.get(id.0 as usize) {
            Some(next) if next.ready => Way::Next(next),
            Some(next) => Way::wait(tables, next.port, next.next_hop),
            None => Way::None(Reason::NoRoute),
        }
    }

    fn wait(tables: &Tables, port: PortId, next_hop: IpAddr) -> Way<'a> {
        match tables.ports.get(port.index()) {
            Some(entry) if entry.up => Way::Wait(port, next_hop),
            _ => Way::None(Reason::PortDown),
        }
    }

    /// The way of one packet, where the run has several.
    pub fn of_packet(self, tables: &'a Tables, key: &FlowKey, packet: &[u8]) -> Way<'a> {
        let Way::ByFlow { first, len } = self else { return self };
        let hash = match packet.first().map(|byte| byte >> 4) {
            Some(4) => key.of_ipv4(&Ipv4::new_unchecked(packet)),
            _ => key.of_ipv6(&Ipv6::new_unchecked(packet)),
        };
        match tables.multipath.get((first + flow::pick(hash, len)) as usize) {
            Some(&id) => Way::by(tables, id),
            None => Way::None(Reason::NoRoute),
        }
    }

    /// The largest packet that fits, whichever path it takes.
    pub fn mtu(&self, tables: &Tables) -> u16 {
        let mtu = match *self {
            Way::Next(next) => Some(next.mtu),
            Way::ByFlow { first, len } => {
                let buckets = tables.multipath.get(first as usize..(first + len) as usize).unwrap_or(&[]);
                buckets.iter().filter_map(|id| Some(tables.adjacencies.get(id.0 as usize)?.mtu)).min()
            }
            Way::Wait(port, _) => tables.ports.get(port.index()).map(|port| port.mtu),
            Way::None(_) => None,
        };
        mtu.unwrap_or(u16::MAX)
    }
}

impl<'b, B: Buffer> Env<'_, 'b, B> {
    /// The way of packets to an SA's far end.
    pub(super) fn way_out(&mut self, destination: IpAddr) -> Way<'b> {
        let tables = self.breath.tables;
        let cache = &mut self.forwarder.neighbor_cache;
        Way::find(tables, destination, |port| match destination {
            IpAddr::V4(dst) => cache.find4(tables, port, dst.to_bits()),
            IpAddr::V6(dst) => cache.find6(tables, port, dst.to_bits()),
        })
    }

    /// Sends outer packets; empties `run`. Without an `mtu` all of them are known to fit. `ident` numbers those that
    /// are cut.
    pub(super) fn send_outer(
        &mut self,
        way: &Way<'_>,
        mtu: Option<u16>,
        run: &mut Vec<Frame<B>>,
        ident: &mut Ident,
    ) {
        if let Way::Next(next) = *way
            && next.vlan.is_none()
            && mtu.is_none_or(|mtu| run.iter().all(|frame| frame.len() <= usize::from(mtu)))
            && run.iter().all(|frame| frame.start() >= ETHERNET)
        {
            return self.send_alike(next, run);
        }
        let mtu = mtu.unwrap_or(u16::MAX);
        for frame in run.drain(..) {
            let way = way.of_packet(self.breath.tables, &self.forwarder.key, frame.data());
            self.send_one(way, mtu, frame, ident);
        }
    }

    /// Sends the common run: one next hop that all fit, no tag.
    #[inline]
    fn send_alike(&mut self, next: &Adjacency, run: &mut Vec<Frame<B>>) {
        let device = rules::past_enforcement(self.breath.tables, next.port);
        let Some(ring) = self.breath.out.tx.get_mut(device.index()) else {
            return self.drop_packets(run, Reason::PortDown);
        };
        let version = run.first().and_then(|frame| frame.data().first()).map_or(4, |byte| byte >> 4);
        let ethertype = if version == 4 { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
        let mut header = [0; ETHERNET];
        header[..12].copy_from_slice(&next.header);
        header[12..].copy_from_slice(&ethertype.to_be_bytes());
        for frame in run.iter_mut() {
            let _ = frame.grow_front(ETHERNET);
            if let Some(room) = frame.data_mut().first_chunk_mut() {
                *room = header;
            }
            frame.device = device;
            frame.sealed = true;
        }
        ring.append(run);
    }

    /// Sends any other outer packet: it waits, is tagged, cut or lost.
    #[cold]
    fn send_one(&mut self, way: Way<'_>, mtu: u16, mut frame: Frame<B>, ident: &mut Ident) {
        frame.sealed = true;
        match way {
            Way::Next(next) if frame.len() > usize::from(mtu) => self.send_cut(next, mtu, frame, ident),
            Way::Next(next) => self.forwarder.send(self.breath, next, frame, 0),
            Way::Wait(port, next_hop) => {
                // Held frames have a link header; what is in it does not matter.
                if !frame.grow_front(ETHERNET) {
                    return self.drop_packet(frame, Reason::FrameTooLarge);
                }
                let held = self.forwarder.hold.held(self.breath.now, frame, port);
                self.forwarder.wait(self.breath, (port, next_hop), held);
            }
            Way::ByFlow { .. } => self.drop_packet(frame, Reason::NoRoute),
            Way::None(reason) => self.drop_packet(frame, reason),
        }
    }
}
