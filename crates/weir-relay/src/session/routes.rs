//! Where packets go, as one worker knows it: a table by full key, and a number that says when it changed.
//!
//! Promises: a lookup reads one entry in the usual case; keys chosen by an adversary do not collide more often than
//! others, since the hash has random multipliers. Refuses: partial keys.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};

use weir_core::random::SplitMix64;
use weir_core::relay::registry::Destination;
use weir_core::relay::{Key, Place};

/// Where packets for a key go, seen from one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The client is in this slot of ours.
    Here(u32),
    /// The client is at another worker.
    There(Place),
    /// Sent as `ForwardPacket` to the relay that was dialled in this slot.
    MeshHere(u32),
    MeshThere(Place),
    Nowhere,
}

#[derive(Debug)]
pub struct Routes {
    worker: u16,
    by_key: HashMap<Key, Destination, KeyHash>,
    /// Moves with every change: what was looked up under another epoch is to be looked up again.
    pub epoch: u64,
    /// Keys that went.
    pub gone: u64,
}

impl Routes {
    pub fn new(worker: u16, hash: KeyHash) -> Routes {
        Routes { worker, by_key: HashMap::with_hasher(hash), epoch: 1, gone: 0 }
    }

    pub fn set(&mut self, key: Key, to: Option<Destination>) {
        self.epoch += 1;
        match to {
            Some(to) => {
                self.by_key.insert(key, to);
            }
            None => {
                self.gone += 1;
                self.by_key.remove(&key);
                // A storm of clients that left gives its memory back.
                if self.by_key.capacity() > 4096 && self.by_key.len() < self.by_key.capacity() / 8 {
                    self.by_key.shrink_to(self.by_key.len() * 2);
                }
            }
        }
    }

    #[inline]
    pub fn find(&self, key: &Key) -> Route {
        match self.by_key.get(key) {
            Some(Destination::Local(at)) if at.worker == self.worker => Route::Here(at.slot),
            Some(Destination::Local(at)) => Route::There(*at),
            Some(Destination::Mesh(at)) if at.worker == self.worker => Route::MeshHere(at.slot),
            Some(Destination::Mesh(at)) => Route::MeshThere(*at),
            None => Route::Nowhere,
        }
    }

    pub fn memory(&self) -> usize {
        self.by_key.capacity() * (size_of::<(Key, Destination)>() + 1)
    }
}

/// What a connection looked up last.
#[derive(Clone, Copy, Debug)]
pub struct Last {
    pub key: Key,
    pub route: Route,
    pub epoch: u64,
}

impl Default for Last {
    fn default() -> Last {
        Last { key: Key([0; 32]), route: Route::Nowhere, epoch: 0 }
    }
}

/// Hashes 32 bytes by two wide multiplications with secret numbers.
#[derive(Clone, Copy, Debug)]
pub struct KeyHash([u64; 4]);

impl KeyHash {
    /// Makes a hash with multipliers of this sequence, which is to be secret.
    pub fn new(random: &mut SplitMix64) -> KeyHash {
        KeyHash(std::array::from_fn(|_| random.next_u64() | 1))
    }
}

impl BuildHasher for KeyHash {
    type Hasher = KeyHasher;

    fn build_hasher(&self) -> KeyHasher {
        KeyHasher { secret: self.0, hash: 0 }
    }
}

#[derive(Debug)]
pub struct KeyHasher {
    secret: [u64; 4],
    hash: u64,
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

impl Hasher for KeyHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for (i, word) in words.iter().enumerate() {
            self.hash =
                fold(self.hash ^ u64::from_le_bytes(*word) ^ self.secret[i % 4], self.secret[(i + 1) % 4]);
        }
        for &byte in rest {
            self.hash = fold(self.hash ^ u64::from(byte) ^ self.secret[0], self.secret[1]);
        }
    }

    /// The length of the bytes, which is always the same.
    #[inline]
    fn write_usize(&mut self, _: usize) {}

    fn write_u64(&mut self, n: u64) {
        self.hash = fold(self.hash ^ n ^ self.secret[2], self.secret[3]);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.hash
    }
}

/// A set of keys; memory only once there are any.
pub type KeySet = std::collections::HashSet<Key, KeyHash>;

#[cfg(test)]
mod tests {
    use super::*;

    fn place(worker: u16) -> Place {
        Place { worker, slot: 7, conn: 9 }
    }

    #[test]
    fn a_route_is_here_or_there_by_worker() {
        let mut routes = Routes::new(1, KeyHash::new(&mut SplitMix64::new(7)));
        let (a, b, c) = (Key([1; 32]), Key([2; 32]), Key([3; 32]));
        routes.set(a, Some(Destination::Local(place(1))));
        routes.set(b, Some(Destination::Local(place(0))));
        routes.set(c, Some(Destination::Mesh(place(1))));
        assert_eq!(routes.find(&a), Route::Here(7));
        assert_eq!(routes.find(&b), Route::There(place(0)));
        assert_eq!(routes.find(&c), Route::MeshHere(7));
        let epoch = routes.epoch;
        routes.set(a, None);
        assert_eq!(routes.find(&a), Route::Nowhere);
        assert_ne!(routes.epoch, epoch);
    }

    fn numbered(n: u64) -> Key {
        let mut key = Key([7; 32]);
        key.0[..8].copy_from_slice(&n.to_le_bytes());
        key
    }

    #[test]
    fn a_million_routes_take_at_most_128_bytes_each_and_give_them_back() {
        const MANY: u64 = 1 << 20;
        let mut routes = Routes::new(0, KeyHash::new(&mut SplitMix64::new(7)));
        for n in 0..MANY {
            let at = Place { worker: (n % 2) as u16, slot: n as u32, conn: n };
            routes.set(numbered(n), Some(Destination::Local(at)));
        }
        for n in (0..MANY).step_by(997) {
            let slot = n as u32;
            match routes.find(&numbered(n)) {
                Route::Here(found) => assert!(n % 2 == 0 && found == slot),
                Route::There(place) => assert!(n % 2 == 1 && place.slot == slot),
                other => panic!("{n}: {other:?}"),
            }
        }
        assert_eq!(routes.find(&numbered(MANY)), Route::Nowhere);
        let full = routes.memory();
        assert!(full as u64 <= 128 * MANY, "{} bytes a route", full as u64 / MANY);
        (16..MANY).for_each(|n| routes.set(numbered(n), None));
        assert!(routes.memory() < full / 50, "{} bytes are left of {full}", routes.memory());
        assert_eq!(routes.find(&numbered(8)), Route::Here(8));
    }

    #[test]
    fn keys_that_differ_in_one_bit_hash_apart() {
        let hash = KeyHash::new(&mut SplitMix64::new(7));
        let mut seen = std::collections::HashSet::new();
        for bit in 0..256 {
            let mut key = Key([0x55; 32]);
            key.0[bit / 8] ^= 1 << (bit % 8);
            seen.insert(hash.hash_one(key));
        }
        assert_eq!(seen.len(), 256);
    }
}
