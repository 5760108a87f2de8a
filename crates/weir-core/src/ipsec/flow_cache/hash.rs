//! Which bucket a flow falls in, by a secret nobody outside knows.
//!
//! Promises: two different keys give the same 128-bit sum with a probability of at most 2^-64 over the secret
//! (NH: Black, Halevi, Krawczyk, Krovetz, Rogaway, "UMAC: Fast and Secure Message Authentication", CRYPTO 1999,
//! Theorem 4.2), whoever chose them. A second product with two more secret words makes a bucket of the sum.
//!
//! An attacker who can time us learns whether two of his flows share a bucket, one bit at a time. NH alone would
//! not survive that: what it leaks is linear in products of the secret. Here he sees a few bits of a product of
//! sums he does not know, and every word of the secret is a one-way function of the seed, so that one he
//! guessed gives him no other. That is an argument and no proof; what bounds the damage is that a collision
//! costs its victim what a new flow costs anyone, a lookup in the rules, which the classifier bounds.

use std::hash::{DefaultHasher, Hasher};

/// Words of the longest key, made even.
const WORDS: usize = 6;

#[derive(Clone)]
pub struct Secret {
    sum: [u64; WORDS],
    last: [u64; 2],
}

impl Secret {
    pub fn new(seed: u64) -> Secret {
        let word = |n: usize| derive(seed, n as u64);
        Secret { sum: std::array::from_fn(word), last: [word(WORDS), word(WORDS + 1)] }
    }

    #[inline(always)]
    pub fn hash<const K: usize>(&self, key: &[u64; K]) -> u64 {
        const { assert!(K <= WORDS) };
        let mut sum = 0u128;
        for at in (0..K).step_by(2) {
            let second = if at + 1 < K { key[at + 1] } else { 0 };
            let (x, y) = (key[at].wrapping_add(self.sum[at]), second.wrapping_add(self.sum[at + 1]));
            sum = sum.wrapping_add(u128::from(x) * u128::from(y));
        }
        fold(sum as u64 ^ self.last[0], (sum >> 64) as u64 ^ self.last[1])
    }
}

/// SipHash of both: nothing is learnt of the seed from what comes of it.
pub fn derive(seed: u64, n: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(seed);
    hasher.write_u64(n);
    hasher.finish()
}

/// A 64 × 64 → 128 bit product folded in half: each input bit reaches about half the output's.
#[inline(always)]
fn fold(x: u64, y: u64) -> u64 {
    let product = u128::from(x) * u128::from(y);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pearson's chi-squared over the lowest 8 bits: 255 degrees of freedom, so below 400 with a probability of
    /// 1 − 2·10^-8 when uniform; the seeds are fixed, so the test cannot waver.
    fn chi_squared(hashes: impl Iterator<Item = u64>) -> f64 {
        let mut counts = [0u32; 256];
        hashes.for_each(|h| counts[h as usize & 255] += 1);
        let expected = f64::from(counts.iter().sum::<u32>()) / 256.0;
        counts.iter().map(|&c| (f64::from(c) - expected).powi(2) / expected).sum()
    }

    #[test]
    fn flows_that_differ_little_spread_evenly() {
        for seed in 0..20 {
            let secret = Secret::new(seed);
            let even = |what: &str, key: &dyn Fn(u64) -> [u64; 2]| {
                let wide = |n| key(n).map(u64::swap_bytes);
                assert!(chi_squared((0..8192).map(|n| secret.hash(&key(n)))) < 400.0, "{what}, {seed}");
                assert!(chi_squared((0..8192).map(|n| secret.hash(&wide(n)))) < 400.0, "{what}, {seed}");
                let six = |n| [key(n)[0], 1, key(n)[1], 2, 3];
                assert!(chi_squared((0..8192).map(|n| secret.hash(&six(n)))) < 400.0, "{what}, {seed}");
            };
            even("first word", &|n| [n, 17]);
            even("second word", &|n| [17, n]);
            even("both", &|n| [n, n]);
            even("upper half", &|n| [n << 32, 3]);
            even("none but zero", &|n| [0, n << 13]);
        }
    }

    #[test]
    fn each_seed_has_collisions_of_its_own() {
        let (mine, others) = (Secret::new(1), Secret::new(2));
        let collide = (0..20_000u64).filter(|&n| mine.hash(&[n, 5]) & 7 == 0);
        assert!(chi_squared(collide.map(|n| others.hash(&[n, 5]))) < 400.0);
    }
}
