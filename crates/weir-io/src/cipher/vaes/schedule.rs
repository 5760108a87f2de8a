//! AES key expansion (FIPS 197 5.2), by the CPU's own S-box so that no table is indexed by a key.

use std::arch::x86_64::*;

/// Round keys of the longest key.
pub const MOST: usize = 15;

/// The round keys of encryption; those a shorter key has not are zero.
#[target_feature(enable = "aes,sse2")]
pub fn expand(key: &[u8]) -> [__m128i; MOST] {
    let words = key.len() / 4;
    let last = 4 * (words + 7);
    let mut w = [0u32; 4 * MOST];
    for (word, bytes) in w.iter_mut().zip(key.chunks_exact(4)) {
        *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    let mut constant = 1u32;
    for i in words..last {
        let mut word = w[i - 1];
        if i % words == 0 {
            word = substitute(word).rotate_right(8) ^ constant;
            constant = (constant << 1) ^ if constant & 0x80 == 0 { 0 } else { 0x11b };
        } else if words > 6 && i % words == 4 {
            word = substitute(word);
        }
        w[i] = w[i - words] ^ word;
    }
    let mut rounds = [_mm_setzero_si128(); MOST];
    for (round, w) in rounds.iter_mut().zip(w.chunks_exact(4)) {
        *round = _mm_set_epi32(w[3] as i32, w[2] as i32, w[1] as i32, w[0] as i32);
    }
    zeroize::Zeroize::zeroize(&mut w);
    rounds
}

/// The S-box on each byte.
#[target_feature(enable = "aes,sse2")]
fn substitute(word: u32) -> u32 {
    _mm_cvtsi128_si32(_mm_aeskeygenassist_si128::<0>(_mm_set1_epi32(word as i32))) as u32
}

/// One block under round keys of `rounds` rounds.
#[inline]
#[target_feature(enable = "aes,sse2")]
pub fn encrypt(keys: &[__m128i; MOST], rounds: usize, block: __m128i) -> __m128i {
    let mut block = _mm_xor_si128(block, keys[0]);
    for key in &keys[1..rounds] {
        block = _mm_aesenc_si128(block, *key);
    }
    _mm_aesenclast_si128(block, keys[rounds])
}
