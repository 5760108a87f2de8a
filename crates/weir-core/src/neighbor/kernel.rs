//! Neighbours that the kernel finds: it asks and ages, this side follows and says what it needs.
//!
//! Promises: no frame is sent and no timer runs here; who is stale in the kernel is asked for, because the kernel does
//! not see the traffic that keeps a neighbour in use.

use super::{Key, Neighbor, Neighbors, State, UNRESOLVED_MAX, is_sane, waiting};
use crate::id::Mac;
use crate::tables::Port;
use crate::time::Nanos;
use crate::wire::rtnetlink::{
    NUD_DELAY, NUD_INCOMPLETE, NUD_NOARP, NUD_PERMANENT, NUD_PROBE, NUD_REACHABLE, NUD_STALE,
};

impl State {
    /// What a state of the kernel's (`NUD_*`) is here.
    pub fn of_kernel(nud: u16) -> State {
        match nud {
            _ if nud & (NUD_PERMANENT | NUD_NOARP | NUD_REACHABLE) != 0 => State::Reachable,
            _ if nud & NUD_STALE != 0 => State::Stale,
            _ if nud & (NUD_DELAY | NUD_PROBE) != 0 => State::Probe,
            _ if nud & NUD_INCOMPLETE != 0 => State::Incomplete,
            _ => State::Failed,
        }
    }
}

impl Neighbors {
    /// Leaves finding neighbours to the kernel from now on, and forgets those found by frames of ours.
    pub fn follow_kernel(&mut self) {
        self.kernel = true;
        let own: Vec<Key> =
            self.entries.iter().filter(|(_, n)| n.state != State::Static).map(|(&key, _)| key).collect();
        for key in own {
            let gateway = self.entries.get(&key).is_some_and(|n| n.gateway);
            self.put(key, gateway.then(|| waiting(0)));
            if gateway {
                self.want(key);
            }
        }
        self.transmits.clear();
    }

    /// Who says of a neighbour what it is: `static` (the configuration file), `kernel`, or `learned` by frames of ours.
    pub fn origin(&self, known: &Neighbor) -> &'static str {
        match known.state {
            State::Static => "static",
            _ if self.kernel => "kernel",
            _ => "learned",
        }
    }

    /// What the kernel knows of a neighbour; nothing, where it has forgotten it.
    pub fn set_kernel(&mut self, now: Nanos, key: Key, port: &Port, known: Option<(State, Option<Mac>)>) {
        let before = self.entries.get(&key).copied();
        if !self.kernel || before.is_some_and(|n| n.state == State::Static) {
            return;
        }
        let gateway = before.is_some_and(|n| n.gateway);
        let Some((state, mac)) = known else {
            self.put(key, gateway.then(|| waiting(now)));
            if gateway && port.up {
                self.want(key);
            }
            return;
        };
        let resolved = matches!(state, State::Reachable | State::Stale | State::Probe);
        let mac = mac.filter(|&mac| resolved && is_sane(port, mac));
        let state = if mac.is_none() && resolved { State::Failed } else { state };
        let moved = before.is_some_and(|n| n.mac.is_some() && mac.is_some() && n.mac != mac);
        self.counters.mac_changes += u64::from(moved);
        self.counters.failed += u64::from(state == State::Failed);
        let since = before.filter(|n| n.state == state).map_or(now, |n| n.since);
        self.put(key, Some(Neighbor { state, mac, since, gateway, asked: 0, due: None }));
        if state == State::Stale {
            self.want(key);
        }
    }

    /// Who is to be found, since the last call.
    pub fn take_wanted(&mut self) -> Vec<Key> {
        std::mem::take(&mut self.wanted)
    }

    pub(super) fn want(&mut self, key: Key) {
        if self.wanted.len() < UNRESOLVED_MAX {
            self.counters.requests_sent += 1;
            self.wanted.push(key);
        } else {
            self.counters.table_full += 1;
        }
    }
}
