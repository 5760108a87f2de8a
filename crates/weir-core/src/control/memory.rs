//! What packets changed about SAs, past and present.
//!
//! Promises: an SA that comes back with the same direction, SPI, destination, suite and keys goes on where
//! it stopped, whatever it is called; an outbound AEAD key is never started again under another SPI or
//! destination ([`Memory::spent`]), for its sequence numbers are its nonces (RFC 4106 3.1). Remembers the
//! last [`STATES_MAX`], the longest unused forgotten first, and of keys only a number that says nothing
//! about them. What has to be remembered beyond the life of the process is [`Durable`]'s: SAs whose packets
//! nobody can forge. Refuses to remember more than that by itself.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use super::durable::Durable;
use crate::ipsec::durable::Amounts;
use crate::ipsec::{Ciphers, Direction, SaSpec, SaState};
use crate::state::{RECORDS_MAX, SAS_MAX};
use crate::time::Nanos;

/// Every SA there can be, in use and once more gone: 131,072 of less than 1 KiB each.
const STATES_MAX: usize = 2 * SAS_MAX;
/// Places in the order that forgotten SAs may keep.
const FORGOTTEN_MAX: usize = 64;

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
    /// Where SAs outlive the process.
    pub(super) durable: Option<Durable>,
}

impl Memory {
    pub(super) fn new(durable: Option<Durable>) -> Memory {
        Memory { durable, ..Memory::default() }
    }

    /// The SPI an outbound AEAD key was used for, if that is not the one it shall be used for now.
    pub(super) fn spent(&self, sa: &SaSpec, ciphers: Option<&dyn Ciphers>) -> Option<u32> {
        if !one_sequence(sa) {
            return None;
        }
        if let (Some(durable), Some(ciphers)) = (&self.durable, ciphers) {
            // Its sequence goes on wherever it leads; only the SPI tells peers which key it is.
            let known = durable.record(&durable.identity(sa, true, ciphers))?.spi;
            return (known != sa.params.spi).then_some(known);
        }
        let known = self.states.get(&self.key(sa))?;
        ((known.spi, known.destination) != (sa.params.spi, sa.params.destination)).then_some(known.spi)
    }

    /// How many records there would be with these SAs, if that is too many.
    pub(super) fn too_many(&self, sas: &[SaSpec], ciphers: Option<&dyn Ciphers>) -> Option<usize> {
        let (durable, ciphers) = (self.durable.as_ref()?, ciphers?);
        if durable.len() + sas.len() <= RECORDS_MAX {
            return None;
        }
        let identities =
            sas.iter().filter(|sa| is_kept(sa)).map(|sa| durable.identity(sa, one_sequence(sa), ciphers));
        let new = identities.filter(|identity| durable.record(identity).is_none()).count();
        Some(durable.len() + new).filter(|&records| records > RECORDS_MAX)
    }

    /// The state of an SA: what it was, in this process or before, or a new one.
    pub(super) fn state(&mut self, now: Nanos, sa: &SaSpec, ciphers: Option<&dyn Ciphers>) -> Arc<SaState> {
        let key = self.key(sa);
        self.set_frozen(sa, ciphers, false);
        if let Some(known) = self.states.get(&key)
            && known.is_of(sa)
        {
            return known.state.clone();
        }
        let random = || ciphers.map_or(0, Ciphers::random);
        let state = match (&mut self.durable, ciphers) {
            (Some(durable), Some(ciphers)) if is_kept(sa) => {
                let identity = durable.identity(sa, one_sequence(sa), ciphers);
                durable.state(now, identity, sa, random)
            }
            _ => Arc::new(SaState::new(&sa.params, now).with_first_iv(random())),
        };
        let (spi, destination) = (sa.params.spi, sa.params.destination);
        if self.states.insert(key, Remembered { spi, destination, state: state.clone() }).is_none() {
            self.order.push_back(key);
        }
        self.forget();
        state
    }

    /// The highest sequence number that is reserved on disk for an SA.
    pub(super) fn reserved(&self, sa: &SaSpec, ciphers: Option<&dyn Ciphers>) -> Option<u64> {
        let durable = self.durable.as_ref()?;
        durable.reserved(&durable.identity(sa, one_sequence(sa), ciphers?))
    }

    /// Whether a number is the end of what is reserved on disk for an SA.
    pub(super) fn has_reserved(&self, sa: &SaSpec, ciphers: Option<&dyn Ciphers>, number: u64) -> bool {
        let (Some(durable), Some(ciphers)) = (&self.durable, ciphers) else { return false };
        durable.has_reserved(&durable.identity(sa, one_sequence(sa), ciphers), number)
    }

    /// Has an SA go on from what was used of it; false where it does not outlive the process, or is in use with less.
    pub(super) fn begin_behind(&mut self, sa: &SaSpec, ciphers: Option<&dyn Ciphers>, used: Amounts) -> bool {
        let (Some(durable), Some(ciphers)) = (&mut self.durable, ciphers) else { return false };
        let identity = durable.identity(sa, one_sequence(sa), ciphers);
        is_kept(sa) && durable.begin_behind((identity, sa), used, || ciphers.random())
    }

    /// Whether an SA gets nothing more than is reserved for it on disk.
    pub(super) fn set_frozen(&mut self, sa: &SaSpec, ciphers: Option<&dyn Ciphers>, frozen: bool) {
        if let (Some(durable), Some(ciphers)) = (&mut self.durable, ciphers) {
            let identity = durable.identity(sa, one_sequence(sa), ciphers);
            durable.set_frozen(&identity, frozen);
        }
    }

    /// Forgets an SA whose keys never come back, here and on disk.
    pub(super) fn forget_sa(&mut self, sa: &SaSpec, ciphers: Option<&dyn Ciphers>) {
        self.states.remove(&self.key(sa));
        if self.order.len() > 2 * self.states.len() + FORGOTTEN_MAX {
            self.order.retain(|key| self.states.contains_key(key));
        }
        if let (Some(durable), Some(ciphers)) = (&mut self.durable, ciphers) {
            let identity = durable.identity(sa, one_sequence(sa), ciphers);
            durable.forget(&identity);
        }
    }

    /// Forgets the oldest that nobody has any more.
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
        // One outbound AEAD key is one sequence, whoever it is for; other keys may serve many SAs. Inbound the
        // address says nothing: whoever recorded a packet can send it to another.
        match sa.params.direction {
            Direction::Out if one_sequence(sa) => {}
            Direction::Out => (sa.params.spi, sa.params.destination).hash(&mut hasher),
            Direction::In => sa.params.spi.hash(&mut hasher),
        }
        hasher.finish()
    }
}

impl Remembered {
    fn is_of(&self, sa: &SaSpec) -> bool {
        let at_home = sa.params.direction == Direction::In || self.destination == sa.params.destination;
        self.spi == sa.params.spi && at_home
    }
}

/// Without integrity anyone can move a window or use up a lifetime: what is gone with the process is better.
fn is_kept(sa: &SaSpec) -> bool {
    sa.params.suite.icv_len() > 0
}

fn one_sequence(sa: &SaSpec) -> bool {
    sa.params.direction == Direction::Out && sa.params.suite.encryption().is_aead()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipsec::sa::Mode;
    use crate::ipsec::{Keys, Params, Secret, Suite};

    #[test]
    fn sas_that_are_forgotten_leave_nothing_and_those_that_are_not_stay() {
        let sa = |spi: u32| {
            let ends = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
            let params = Params::new(Direction::Out, spi, Mode::Tunnel, ends, Suite::AES_GCM_128);
            let key = spi.to_be_bytes().repeat(5);
            let keys = Keys { encryption: Secret::new(key), integrity: Secret::new(Vec::new()) };
            SaSpec { name: String::new(), params, keys }
        };
        let mut memory = Memory::new(None);
        let stays = memory.state(0, &sa(1), None);
        for spi in 2..10_000 {
            memory.state(0, &sa(spi), None);
            memory.forget_sa(&sa(spi), None);
        }
        assert_eq!(memory.states.len(), 1);
        assert!(memory.order.len() <= FORGOTTEN_MAX + 3, "{} places are kept", memory.order.len());
        assert!(Arc::ptr_eq(&memory.state(0, &sa(1), None), &stays));
    }
}
