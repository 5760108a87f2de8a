//! What a server's key shares with those who proved theirs of late: the same each time, and the dearest part of meeting
//! somebody (X25519).
//!
//! ```text
//! now ◄── met, or met again ── before ◄── all of `now` when it has half of the most ── forgotten with the next change
//! ```
//!
//! Clients come back: when the network they were on was away, and to relays other than their own after each minute of
//! silence. Promises: never more than it was made for; whoever was among the last half of that is known. What is
//! forgotten is wiped. Refuses: nothing; only those are to be added whose box opened, or strangers could fill it with
//! keys they do not have.

use std::collections::HashMap;
use std::mem::take;

use super::Key;
use super::handshake::SharedKey;

#[derive(Debug)]
pub struct SharedKeyCache {
    now: HashMap<Key, SharedKey>,
    before: HashMap<Key, SharedKey>,
    most: usize,
}

impl SharedKeyCache {
    /// A cache of at most `most` keys.
    pub fn new(most: usize) -> SharedKeyCache {
        SharedKeyCache { now: HashMap::new(), before: HashMap::new(), most }
    }

    /// What is shared with the owner of this key, if we met.
    pub fn get(&mut self, key: &Key) -> Option<SharedKey> {
        if let Some(shared) = self.now.get(key) {
            return Some(shared.clone());
        }
        let shared = self.before.remove(key)?;
        self.insert(*key, shared.clone());
        Some(shared)
    }

    /// This key was proved, by a box that opened with `shared`.
    pub fn insert(&mut self, key: Key, shared: SharedKey) {
        let half = self.most / 2;
        if half == 0 {
            return;
        }
        if self.now.len() >= half && !self.now.contains_key(&key) {
            self.before = take(&mut self.now);
        }
        self.now.insert(key, shared);
    }

    /// How many are known.
    pub fn len(&self) -> usize {
        self.now.len() + self.before.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::handshake::Secret;
    use super::*;

    fn key(n: usize) -> Key {
        Key(std::array::from_fn(|at| if at < 8 { n.to_le_bytes()[at] } else { 9 }))
    }

    fn some() -> SharedKey {
        let other = Secret::new([9; 32]).public();
        Secret::new([7; 32]).shared_key(&other).expect("keys of full order")
    }

    #[test]
    fn whoever_was_among_the_last_half_is_known_and_there_are_never_more_than_the_most() {
        let (mut cache, shared) = (SharedKeyCache::new(8), some());
        for n in 0..100 {
            cache.insert(key(n), shared.clone());
            assert!(cache.len() <= 8);
            for last in n.saturating_sub(3)..=n {
                assert!(cache.now.contains_key(&key(last)) || cache.before.contains_key(&key(last)));
            }
        }
        assert!(cache.get(&key(50)).is_none());
    }

    #[test]
    fn who_comes_back_is_not_forgotten_for_those_who_do_not() {
        let (mut cache, shared) = (SharedKeyCache::new(8), some());
        cache.insert(key(0), shared.clone());
        for n in 1..100 {
            cache.insert(key(n), shared.clone());
            assert!(cache.get(&key(0)).is_some(), "{n}");
            assert!(cache.len() <= 8);
        }
    }

    #[test]
    fn of_nobody_nothing_is_kept() {
        let mut cache = SharedKeyCache::new(0);
        cache.insert(key(1), some());
        assert!(cache.is_empty() && cache.get(&key(1)).is_none());
    }
}
