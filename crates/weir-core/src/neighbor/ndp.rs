//! Neighbour discovery for IPv6 (RFC 4861 §7; validity checks are the parser's).

use std::net::{IpAddr, Ipv6Addr};

use super::learn::Observation;
use super::{Neighbors, is_on_link, is_sane, ours, ours_to_answer};
use crate::id::{Mac, PortId};
use crate::state::not_a_host;
use crate::tables::Port;
use crate::time::Nanos;
use crate::wire::ndp::{self, Message, NeighborAdvertisement};
use crate::wire::{Ipv6, build, ethernet};

/// RFC 4291 2.7.1: every node of the link.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// A neighbour solicitation and the headers it came in.
struct Solicitation {
    from: Mac,
    src: Ipv6Addr,
    target: Ipv6Addr,
    source_mac: Option<Mac>,
}

impl Neighbors {
    pub(super) fn handle_ndp(&mut self, now: Nanos, id: PortId, port: &Port, from: Mac, packet: &[u8]) {
        let parsed = Ipv6::parse(packet).and_then(|p| Ok((p.src(), ndp::parse(&p)?)));
        let Ok((src, message)) = parsed else {
            self.counters.bad += 1;
            return;
        };
        match message {
            Message::NeighborSolicitation { target, source_mac } => {
                self.solicited(now, id, port, &Solicitation { from, src, target, source_mac });
            }
            Message::NeighborAdvertisement(na) => self.advertised(now, id, port, na),
            // Who looks for or is a router says where it is; its other words are for hosts.
            Message::RouterSolicitation { source_mac } => self.mentioned(now, id, port, src, source_mac),
            Message::RouterAdvertisement(ra) => self.mentioned(now, id, port, src, ra.source_mac),
            Message::Redirect { .. } => self.counters.ignored += 1,
        }
    }

    fn solicited(&mut self, now: Nanos, id: PortId, port: &Port, s: &Solicitation) {
        let detection = s.src.is_unspecified();
        let reply_to = s.source_mac.unwrap_or(s.from);
        if !is_sane(port, reply_to) || (!detection && not_a_host(s.src.into()).is_some()) {
            self.counters.insane += 1;
            return;
        }
        if ours(port, s.src.into()).is_some() {
            self.counters.conflicts += 1;
            return;
        }
        let asks_us = ours_to_answer(port, s.target.into());
        let to_us = ours(port, s.target.into()).is_some();
        let key = (id, IpAddr::V6(s.src));
        match s.source_mac {
            Some(mac) if self.update(now, key, mac, Observation::Mention) => {}
            Some(mac) if to_us && is_on_link(port, s.src.into()) => self.meet(now, key, mac),
            _ if !asks_us => self.counters.ignored += 1,
            _ => {}
        }
        if asks_us {
            // 7.2.4: who only looks for a free address has none yet to be told at.
            let everyone = (ethernet::multicast_mac6(ALL_NODES), ALL_NODES);
            let to = if detection { everyone } else { (reply_to, s.src) };
            self.counters.replies_sent += 1;
            self.transmit(id, build::neighbor_advertisement((port.mac, s.target), to, true, port.vlan));
        }
    }

    fn advertised(&mut self, now: Nanos, id: PortId, port: &Port, na: NeighborAdvertisement) {
        let target = IpAddr::V6(na.target);
        if ours(port, target).is_some() {
            self.counters.conflicts += 1;
            return;
        }
        let key = (id, target);
        // The flag is the sender's word; that we asked is ours.
        let solicited = na.solicited && self.is_asked(key);
        match na.target_mac {
            Some(mac) if !is_sane(port, mac) => self.counters.insane += 1,
            Some(mac) => {
                let observed = match (na.overrides, solicited) {
                    (false, solicited) => Observation::NoOverride { solicited },
                    (true, true) => Observation::Reply,
                    (true, false) => Observation::Mention,
                };
                if !self.update(now, key, mac, observed) {
                    self.counters.ignored += 1;
                }
            }
            None if solicited => self.confirm(now, key),
            None => self.counters.ignored += 1,
        }
    }

    fn mentioned(&mut self, now: Nanos, id: PortId, port: &Port, src: Ipv6Addr, mac: Option<Mac>) {
        let Some(mac) = mac else {
            self.counters.ignored += 1;
            return;
        };
        if !is_sane(port, mac) || ours(port, src.into()).is_some() {
            self.counters.insane += 1;
        } else if !self.update(now, (id, src.into()), mac, Observation::Mention) {
            self.counters.ignored += 1;
        }
    }
}
