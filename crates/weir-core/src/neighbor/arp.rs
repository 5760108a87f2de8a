//! ARP for IPv4 (RFC 826; RFC 5227 for probes, conflicts and defence).

use std::net::IpAddr;

use super::learn::Observation;
use super::{DEFEND_INTERVAL, Neighbors, is_on_link, is_sane, ours, ours_to_answer};
use crate::id::PortId;
use crate::state::not_a_host;
use crate::tables::Port;
use crate::time::Nanos;
use crate::wire::arp::{Arp, Operation};
use crate::wire::build;

impl Neighbors {
    pub(super) fn handle_arp(&mut self, now: Nanos, id: PortId, port: &Port, packet: &[u8]) {
        let Ok(arp) = Arp::parse(packet) else {
            self.counters.bad += 1;
            return;
        };
        let (sender, mac, target) = (IpAddr::V4(arp.sender_ip()), arp.sender_mac(), arp.target_ip());
        if !is_sane(port, mac) || (!arp.is_probe() && not_a_host(sender).is_some()) {
            self.counters.insane += 1;
            return;
        }
        if ours(port, sender).is_some() {
            self.counters.conflicts += 1;
            return self.defend(now, id, port, sender);
        }
        let request = arp.operation() == Operation::Request;
        let to_us = ours(port, target.into()).is_some();
        let asks_us = request && ours_to_answer(port, target.into());
        let key = (id, sender);
        // A probe comes from nobody yet and teaches nothing (RFC 5227 1.1).
        let observed =
            if !request && to_us && self.is_asked(key) { Observation::Reply } else { Observation::Mention };
        let known = !arp.is_probe() && self.update(now, key, mac, observed);
        if !known && request && to_us && is_on_link(port, sender) {
            self.meet(now, key, mac);
        } else if !known && !asks_us {
            self.counters.ignored += 1;
        }
        if asks_us {
            self.counters.replies_sent += 1;
            let reply = build::arp_reply((port.mac, target), (mac, arp.sender_ip()), port.vlan);
            self.transmit(id, reply);
        }
    }

    /// Someone else uses an address of ours: we keep it and say so, once in a while (RFC 5227 2.4 b).
    fn defend(&mut self, now: Nanos, id: PortId, port: &Port, address: IpAddr) {
        let IpAddr::V4(v4) = address else { return };
        let lately = self.defended.get(&(id, address)).is_some_and(|&at| now < at + DEFEND_INTERVAL);
        if ours_to_answer(port, address) && !lately {
            self.defended.insert((id, address), now);
            self.transmit(id, build::arp_request((port.mac, v4), v4, port.vlan));
        }
    }
}
