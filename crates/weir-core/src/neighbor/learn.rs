//! What a message teaches about its sender (RFC 826, RFC 4861 §7.2.3 to §7.2.5).

use super::{Key, Neighbor, Neighbors, STALE_TIME, State};
use crate::id::Mac;
use crate::time::Nanos;

/// How a MAC was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Observation {
    /// It was said in answer to a request of ours.
    Reply,
    /// It was said in a request, an announcement or an answer nobody asked for: it replaces what is known, and is
    /// then verified.
    Mention,
    /// It was said in an advertisement that must not replace what is known (the override flag is clear).
    NoOverride { solicited: bool },
}

impl Neighbors {
    /// Updates an entry that exists; `false` when there is none.
    pub(super) fn update(&mut self, now: Nanos, key: Key, mac: Mac, observed: Observation) -> bool {
        let Some(&known) = self.entries.get(&key) else { return false };
        let same = known.mac == Some(mac);
        let answered = matches!(observed, Observation::Reply | Observation::NoOverride { solicited: true });
        let next = match (known.state, observed) {
            (State::Static, _) => None,
            // Without a MAC there is nothing to protect: whatever is heard is used (7.2.5).
            (State::Incomplete | State::Failed, _) if answered => Some(reachable(now, key, mac)),
            (State::Incomplete | State::Failed, _) => Some(stale(now, mac)),
            (_, Observation::Reply) => Some(reachable(now, key, mac)),
            (_, Observation::NoOverride { .. }) if same && answered => Some(reachable(now, key, mac)),
            // 7.2.5: another MAC without the override flag does not replace, but makes the entry stale.
            (State::Reachable, Observation::NoOverride { .. }) if !same => {
                known.mac.map(|mac| stale(now, mac))
            }
            (_, Observation::Mention) if !same => Some(stale(now, mac)),
            _ => None,
        };
        let Some(next) = next else {
            self.counters.ignored += 1;
            return true;
        };
        self.counters.learned += 1;
        self.counters.mac_changes += u64::from(known.mac.is_some() && known.mac != next.mac);
        self.put(key, Some(Neighbor { gateway: known.gateway, ..next }));
        true
    }

    /// An advertisement without a MAC confirms the one we have (7.2.5).
    pub(super) fn confirm(&mut self, now: Nanos, key: Key) {
        match self.entries.get(&key).map(|n| (n.state, n.mac, n.gateway)) {
            Some((State::Reachable | State::Stale | State::Probe, Some(mac), gateway)) => {
                self.counters.learned += 1;
                self.put(key, Some(Neighbor { gateway, ..reachable(now, key, mac) }));
            }
            _ => self.counters.ignored += 1,
        }
    }

    /// Someone near asked for an address of ours: it will be written to next.
    pub(super) fn meet(&mut self, now: Nanos, key: Key, mac: Mac) {
        if self.make_room() {
            self.counters.learned += 1;
            self.put(key, Some(stale(now, mac)));
        } else {
            self.counters.table_full += 1;
        }
    }

    /// Whether we asked this neighbour and wait for its answer.
    pub(super) fn is_asked(&self, key: Key) -> bool {
        let state = self.entries.get(&key).map(|n| n.state);
        matches!(state, Some(State::Incomplete | State::Probe))
    }
}

fn reachable(now: Nanos, key: Key, mac: Mac) -> Neighbor {
    let due = Some(now + super::timers::reachable_for(now, key));
    Neighbor { state: State::Reachable, mac: Some(mac), since: now, gateway: false, asked: 0, due }
}

fn stale(now: Nanos, mac: Mac) -> Neighbor {
    let due = Some(now + STALE_TIME);
    Neighbor { state: State::Stale, mac: Some(mac), since: now, gateway: false, asked: 0, due }
}
