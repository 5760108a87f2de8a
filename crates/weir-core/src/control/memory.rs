//! What packets changed about SAs, past and present.
//!
//! Promises: an SA that comes back with the same direction, SPI, destination, suite and keys goes on where
//! it stopped, whatever it is called; an outbound AEAD key is never started again under another SPI or
//! destination ([`Memory::spent`]), for its sequence numbers are its nonces (RFC 4106 3.1). Remembers the
//! last [`STATES_MAX`], the longest unused forgotten first, and of keys only a number that says nothing
//! about them. Refuses to remember beyond the life of the process.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use crate::ipsec::{Direction, SaSpec, SaState};
use crate::state::SAS_MAX;

/// Every SA there can be, in use and once more gone: 131,072 of less than 1 KiB each.
const STATES_MAX: usize = 2 * SAS_MAX;

#[derive(Debug)]
struct Remembered {
    spi: u32,
    destination: IpAddr,
    state: Arc<SaState>,
}

#[derive(Debug, Default)]
pub(super) struct Memory {
    /// SipHash under a key of this process: two keys that meet there share a sequence, which costs
    /// nothing but numbers.
    hash: RandomState,
    states: HashMap<u64, Remembered>,
    order: VecDeque<u64>,
}

impl Memory {
    /// The SPI an outbound AEAD key was used for, if that is not the one it shall be used for now.
    pub(super) fn spent(&self, sa: &SaSpec) -> Option<u32> {
        if !one_sequence(sa) {
            return None;
        }
        let known = self.states.get(&self.key(sa))?;
        ((known.spi, known.destination) != (sa.params.spi, sa.params.destination)).then_some(known.spi)
    }

    /// The state of an SA: what it was, or a new one.
    pub(super) fn state(&mut self, sa: &SaSpec, fresh: impl FnOnce() -> SaState) -> Arc<SaState> {
        let (spi, destination) = (sa.params.spi, sa.params.destination);
        let key = self.key(sa);
        if let Some(known) = self.states.get(&key)
            && (known.spi, known.destination) == (spi, destination)
        {
            return known.state.clone();
        }
        let state = Arc::new(fresh());
        if self.states.insert(key, Remembered { spi, destination, state: state.clone() }).is_none() {
            self.order.push_back(key);
        }
        self.forget();
        state
    }

    /// Lets go of the oldest that nobody has any more.
    fn forget(&mut self) {
        for _ in 0..self.order.len() {
            if self.states.len() <= STATES_MAX {
                return;
            }
            let Some(oldest) = self.order.pop_front() else { return };
            if self.states.get(&oldest).is_some_and(|r| Arc::strong_count(&r.state) > 1) {
                self.order.push_back(oldest);
            } else {
                self.states.remove(&oldest);
            }
        }
    }

    fn key(&self, sa: &SaSpec) -> u64 {
        let mut hasher = self.hash.build_hasher();
        (sa.params.direction, sa.params.suite).hash(&mut hasher);
        sa.keys.encryption.bytes().hash(&mut hasher);
        sa.keys.integrity.bytes().hash(&mut hasher);
        // One outbound AEAD key is one sequence, whoever it is for; other keys may serve many SAs.
        if !one_sequence(sa) {
            (sa.params.spi, sa.params.destination).hash(&mut hasher);
        }
        hasher.finish()
    }
}

fn one_sequence(sa: &SaSpec) -> bool {
    sa.params.direction == Direction::Out && sa.params.suite.encryption().is_aead()
}
