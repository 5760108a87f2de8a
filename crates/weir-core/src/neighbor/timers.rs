//! What time does to neighbours: requests again, stale entries, failure, rest (RFC 4861 §7.3).

use std::net::IpAddr;

use super::{HOLD_DOWN, Key, Neighbor, Neighbors, REACHABLE_TIME, RETRANSMIT, SOLICITATIONS, State, askable};
use crate::id::Mac;
use crate::state::link_local;
use crate::tables::Port;
use crate::time::Nanos;
use crate::wire::build;

impl Neighbors {
    /// When [`Neighbors::tick`] has something to do.
    pub fn poll_at(&self) -> Option<Nanos> {
        self.timers.first().map(|&(due, _)| due)
    }

    /// Does everything that is due at `now`. `ports` by id.
    pub fn tick(&mut self, now: Nanos, ports: &[Port]) {
        while let Some(&(due, key)) = self.timers.first()
            && due <= now
        {
            let known = self.entries.get(&key).copied();
            match (known, ports.get(key.0.index())) {
                (Some(known), Some(port)) if askable(port, key.1) => self.due(now, key, known, port),
                (Some(known), _) if known.gateway => self.put(key, Some(super::waiting(now))),
                _ => self.put(key, None),
            }
            // Every arm above moves or removes the timer; one that did not would be asked about for ever.
            self.timers.remove(&(due, key));
        }
    }

    fn due(&mut self, now: Nanos, key: Key, known: Neighbor, port: &Port) {
        match (known.state, known.mac) {
            (State::Incomplete, _) if known.asked < SOLICITATIONS => self.ask(now, key, known, port, None),
            (State::Incomplete, _) => {
                self.counters.failed += 1;
                let due = Some(now + HOLD_DOWN);
                let failed = Neighbor { state: State::Failed, mac: None, since: now, asked: 0, due, ..known };
                self.put(key, Some(failed));
            }
            (State::Reachable | State::Stale, Some(mac)) => {
                let probe = Neighbor { state: State::Probe, since: now, asked: 0, ..known };
                self.ask(now, key, probe, port, Some(mac));
            }
            (State::Probe, Some(mac)) if known.asked < SOLICITATIONS => {
                self.ask(now, key, known, port, Some(mac));
            }
            // Gone from that MAC; someone else may have the address now.
            (State::Probe, _) => self.ask_first(now, key, port, known.gateway),
            (State::Failed, _) if known.gateway => self.ask_first(now, key, port, true),
            _ => self.put(key, None),
        }
    }

    /// Starts over: nothing is known but the address.
    pub(super) fn ask_first(&mut self, now: Nanos, key: Key, port: &Port, gateway: bool) {
        let fresh =
            Neighbor { state: State::Incomplete, mac: None, since: now, gateway, asked: 0, due: None };
        self.ask(now, key, fresh, port, None);
    }

    /// Sends a request, to everyone or to the MAC believed in, and waits for the answer.
    fn ask(&mut self, now: Nanos, key: Key, entry: Neighbor, port: &Port, mac: Option<Mac>) {
        match request(port, key.1, mac) {
            Some(frame) => {
                self.counters.requests_sent += 1;
                self.transmit(key.0, frame);
            }
            None => self.counters.no_source += 1,
        }
        self.put(key, Some(Neighbor { asked: entry.asked + 1, due: Some(now + RETRANSMIT), ..entry }));
    }
}

/// A request for `target`; none without an address to ask from.
fn request(port: &Port, target: IpAddr, mac: Option<Mac>) -> Option<Vec<u8>> {
    let source = source(port, target)?;
    Some(match (source, target, mac) {
        (IpAddr::V4(us), IpAddr::V4(target), None) => build::arp_request((port.mac, us), target, port.vlan),
        (IpAddr::V4(us), IpAddr::V4(target), Some(mac)) => {
            build::arp_request_unicast((port.mac, us), (mac, target), port.vlan)
        }
        (IpAddr::V6(us), IpAddr::V6(target), None) => {
            build::neighbor_solicitation((port.mac, us), target, port.vlan)
        }
        (IpAddr::V6(us), IpAddr::V6(target), Some(mac)) => {
            build::neighbor_solicitation_unicast((port.mac, us), (mac, target), port.vlan)
        }
        _ => return None,
    })
}

/// The address to ask from: one in the target's network, else a link-local one, else any of the family.
fn source(port: &Port, target: IpAddr) -> Option<IpAddr> {
    let family = || port.addresses.iter().filter(|a| a.address.is_ipv4() == target.is_ipv4());
    let near = family().find(|a| a.covers(target));
    let near = near.or_else(|| family().find(|a| link_local(a.address)));
    near.or_else(|| family().next()).map(|a| a.address)
}

/// Half to one and a half of [`REACHABLE_TIME`], so that neighbours that came at once are not probed at
/// once (RFC 4861 §6.3.2). The spread comes from the address and the moment: no randomness is needed.
pub(super) fn reachable_for(now: Nanos, (port, address): Key) -> Nanos {
    let bits = match address {
        IpAddr::V4(a) => u64::from(u32::from(a)),
        IpAddr::V6(a) => {
            let bits = u128::from(a);
            (bits >> 64) as u64 ^ bits as u64
        }
    };
    // The finaliser of splitmix64 (Steele, Lea, Flood 2014).
    let mut x = bits ^ u64::from(port.0) << 48 ^ now.rotate_left(17);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    REACHABLE_TIME / 2 + (x ^ x >> 31) % REACHABLE_TIME
}
