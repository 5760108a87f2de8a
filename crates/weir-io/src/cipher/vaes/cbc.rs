//! AES-CBC of ESP packets (RFC 3602), without its ICV: 16 packets side by side, four to a vector ([`super::super::cbc`]).

#![allow(clippy::needless_range_loop)]

use std::arch::x86_64::*;

use weir_core::ipsec::Job;

use super::Vaes;
use super::ghash::xor3;
use crate::cipher::cbc::{BLOCK, Lanes, Schedules, side_by_side};
use crate::cipher::separate::Blocks;
use crate::cipher::shape::Shape;

/// Vectors in flight at once, and packets: four to a vector.
const VECTORS: usize = 4;
const LANES: usize = 4 * VECTORS;

/// A key.
pub struct Cbc<const ROUNDS: usize>(Box<Schedules>);

impl<const ROUNDS: usize> Blocks for Cbc<ROUNDS> {
    const NAME: Option<&str> = Some(super::NAME);

    fn encrypt(&self, shape: &Shape, jobs: &mut [Job<'_>]) {
        side_by_side(shape, jobs, |lanes, run| {
            // SAFETY: a `Cbc` is made only where `Vaes` exists, hence where these instructions do; of lanes
            // `side_by_side` promises what `run` asks for.
            unsafe { self.run(lanes, run) }
        });
    }

    fn decrypt(&self, iv_and_body: &mut [u8]) {
        if let Some((iv, body)) = iv_and_body.split_first_chunk_mut() {
            // SAFETY: a `Cbc` is made only where `Vaes` exists, hence where these instructions do.
            unsafe { self.decrypt_blocks(iv, body) }
        }
    }
}

impl<const ROUNDS: usize> Cbc<ROUNDS> {
    /// `key` has the length that goes with `ROUNDS`.
    pub fn new(_: Vaes, key: &[u8]) -> Cbc<ROUNDS> {
        // SAFETY: `Vaes` exists only where AES does.
        Cbc(unsafe { Schedules::new(key, ROUNDS) })
    }

    /// Encrypts `run` blocks of every lane.
    ///
    /// # Safety
    /// Every lane's pointer is good for `run` blocks; two lanes share blocks only if they share a chain.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,aes")]
    unsafe fn run(&self, lanes: &mut Lanes<LANES>, run: usize) {
        let mut states = [_mm512_setzero_si512(); VECTORS];
        for i in 0..VECTORS {
            // SAFETY: four lanes are a vector.
            states[i] = unsafe { _mm512_loadu_si512(lanes.chains.as_ptr().add(4 * i).cast()) };
        }
        let whitening = _mm512_broadcast_i32x4(self.0.encrypt[0]);
        for block in 0..run {
            for i in 0..VECTORS {
                // SAFETY: the caller's promise.
                let plain = unsafe { gather(&lanes.at, 4 * i, block * BLOCK) };
                states[i] = xor3(states[i], plain, whitening);
            }
            for round in 1..ROUNDS {
                let key = _mm512_broadcast_i32x4(self.0.encrypt[round]);
                for i in 0..VECTORS {
                    states[i] = _mm512_aesenc_epi128(states[i], key);
                }
            }
            let key = _mm512_broadcast_i32x4(self.0.encrypt[ROUNDS]);
            for i in 0..VECTORS {
                states[i] = _mm512_aesenclast_epi128(states[i], key);
                // SAFETY: the caller's promise.
                unsafe { scatter(&lanes.at, 4 * i, block * BLOCK, states[i]) };
            }
        }
        for i in 0..VECTORS {
            // SAFETY: four lanes are a vector.
            unsafe { _mm512_storeu_si512(lanes.chains.as_mut_ptr().add(4 * i).cast(), states[i]) };
        }
        for at in &mut lanes.at {
            *at = at.wrapping_add(run * BLOCK);
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,aes")]
    fn decrypt_blocks(&self, iv: &[u8; BLOCK], blocks: &mut [u8]) {
        // SAFETY: the IV is an array of 16 bytes.
        let iv = unsafe { _mm_loadu_si128(iv.as_ptr().cast()) };
        // The last lane is what the next vector's first block is chained to.
        let mut before = _mm512_inserti32x4::<3>(_mm512_setzero_si512(), iv);
        for stride in blocks.chunks_mut(LANES * BLOCK) {
            let mut ciphers = [_mm512_setzero_si512(); VECTORS];
            let mut states = ciphers;
            let (blocks, at) = (stride.len() / BLOCK, stride.as_mut_ptr());
            let whitening = _mm512_broadcast_i32x4(self.0.decrypt[0]);
            for vector in 0..VECTORS {
                let at = at.wrapping_add(64 * vector).cast();
                // SAFETY: the mask has the words of whole blocks in `stride`, and no others are read.
                ciphers[vector] = unsafe { _mm512_maskz_loadu_epi64(mask(blocks, vector), at) };
                states[vector] = _mm512_xor_si512(ciphers[vector], whitening);
            }
            for round in 1..ROUNDS {
                let key = _mm512_broadcast_i32x4(self.0.decrypt[round]);
                for i in 0..VECTORS {
                    states[i] = _mm512_aesdec_epi128(states[i], key);
                }
            }
            let key = _mm512_broadcast_i32x4(self.0.decrypt[ROUNDS]);
            for vector in 0..VECTORS {
                let chained = _mm512_alignr_epi64::<6>(ciphers[vector], before);
                before = ciphers[vector];
                let plain = _mm512_aesdeclast_epi128(states[vector], _mm512_xor_si512(key, chained));
                let at = at.wrapping_add(64 * vector).cast();
                // SAFETY: the mask has the words of whole blocks in `stride`, and no others are written.
                unsafe { _mm512_mask_storeu_epi64(at, mask(blocks, vector), plain) };
            }
        }
    }
}

/// The next block of four packets.
///
/// # Safety
/// The pointers of `first` and the three lanes after it are good for a block at `offset`.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
unsafe fn gather(at: &[*mut u8; LANES], first: usize, offset: usize) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let block = _mm_loadu_si128(at[first].add(offset).cast());
        let blocks = _mm512_castsi128_si512(block);
        let blocks = _mm512_inserti32x4::<1>(blocks, _mm_loadu_si128(at[first + 1].add(offset).cast()));
        let blocks = _mm512_inserti32x4::<2>(blocks, _mm_loadu_si128(at[first + 2].add(offset).cast()));
        _mm512_inserti32x4::<3>(blocks, _mm_loadu_si128(at[first + 3].add(offset).cast()))
    }
}

/// [`gather`]'s way back.
///
/// # Safety
/// As for [`gather`].
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
unsafe fn scatter(at: &[*mut u8; LANES], first: usize, offset: usize, blocks: __m512i) {
    // SAFETY: the caller's promise.
    unsafe {
        _mm_storeu_si128(at[first].add(offset).cast(), _mm512_castsi512_si128(blocks));
        _mm_storeu_si128(at[first + 1].add(offset).cast(), _mm512_extracti32x4_epi32::<1>(blocks));
        _mm_storeu_si128(at[first + 2].add(offset).cast(), _mm512_extracti32x4_epi32::<2>(blocks));
        _mm_storeu_si128(at[first + 3].add(offset).cast(), _mm512_extracti32x4_epi32::<3>(blocks));
    }
}

/// The words of the blocks that `vector` has, of `blocks` in all.
#[inline]
fn mask(blocks: usize, vector: usize) -> u8 {
    let blocks = blocks.saturating_sub(4 * vector).min(4);
    ((1u32 << (2 * blocks)) - 1) as u8
}
