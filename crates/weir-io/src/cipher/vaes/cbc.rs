//! AES-CBC of ESP packets (RFC 3602), without its ICV.
//!
//! Encryption is serial in a packet, each block waiting for the one before, and a batch has many packets:
//! 16 of them go side by side, four to a vector, and a lane that is done takes the next packet. A lane for
//! which there is none doubles another: it reads and writes what that one does. Decryption is parallel in
//! a packet: a block needs only the ciphertext before it.
//!
//! ```text
//! encrypted   | sequence number | body 0 | body 1 …    under an IV of zero
//! sent        | IV              | cipher 0, 1 …        which makes the IV unpredictable
//! ```

#![allow(clippy::needless_range_loop)]

use std::arch::x86_64::*;

use weir_core::ipsec::Job;
use zeroize::Zeroize;

use super::Vaes;
use super::ghash::xor3;
use super::schedule::{MOST, expand};
use crate::cipher::shape::{HEADER, Shape};

const BLOCK: usize = 16;
/// Vectors in flight at once, and packets: four to a vector.
const VECTORS: usize = 4;
const LANES: usize = 4 * VECTORS;

/// Round keys of both directions.
#[repr(C, align(64))]
pub struct Cbc<const ROUNDS: usize> {
    encrypt: [__m128i; MOST],
    decrypt: [__m128i; MOST],
}

/// Packets being encrypted: where the next block of each is, how many are left, the last ciphertext.
#[repr(C, align(64))]
struct Lanes {
    chains: [__m128i; LANES],
    at: [*mut u8; LANES],
    left: [usize; LANES],
}

impl<const ROUNDS: usize> Cbc<ROUNDS> {
    /// `key` has the length that goes with `ROUNDS`.
    pub fn new(_: Vaes, key: &[u8]) -> Box<Cbc<ROUNDS>> {
        assert_eq!(key.len() / 4 + 6, ROUNDS, "rounds follow from the key's length");
        // SAFETY: `Vaes` exists only where `prepare`'s instructions do.
        unsafe { Cbc::prepare(key) }
    }

    #[target_feature(enable = "aes,sse2")]
    fn prepare(key: &[u8]) -> Box<Cbc<ROUNDS>> {
        let zero = [_mm_setzero_si128(); MOST];
        let mut cbc = Box::new(Cbc { encrypt: zero, decrypt: zero });
        cbc.encrypt = expand(key);
        for round in 0..=ROUNDS {
            let key = cbc.encrypt[ROUNDS - round];
            // The first and the last key of decryption are those of encryption as they are.
            let inner = round > 0 && round < ROUNDS;
            cbc.decrypt[round] = if inner { _mm_aesimc_si128(key) } else { key };
        }
        cbc
    }

    /// Writes the IV of each packet that fits `shape` and encrypts its body.
    pub fn encrypt(&self, shape: &Shape, jobs: &mut [Job<'_>]) {
        // SAFETY: a `Cbc` is made only where `Vaes` exists, hence where these instructions do.
        unsafe { self.encrypt_all(shape, jobs) }
    }

    /// Decrypts whole blocks in place.
    pub fn decrypt(&self, iv: &[u8; BLOCK], blocks: &mut [u8]) {
        // SAFETY: a `Cbc` is made only where `Vaes` exists, hence where these instructions do.
        unsafe { self.decrypt_blocks(iv, blocks) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,aes")]
    fn encrypt_all(&self, shape: &Shape, jobs: &mut [Job<'_>]) {
        let mut waiting = jobs.iter_mut().filter_map(|job| blocks(shape, job));
        let mut lanes = Lanes {
            chains: [_mm_setzero_si128(); LANES],
            at: [std::ptr::null_mut(); LANES],
            left: [0; LANES],
        };
        loop {
            for lane in 0..LANES {
                if lanes.left[lane] == 0
                    && let Some(blocks) = waiting.next()
                {
                    lanes.at[lane] = blocks.as_mut_ptr();
                    lanes.left[lane] = blocks.len() / BLOCK;
                    lanes.chains[lane] = _mm_setzero_si128();
                }
            }
            let busy = (0..LANES).filter(|&lane| lanes.left[lane] > 0);
            let Some(active) = busy.min_by_key(|&lane| lanes.left[lane]) else { break };
            let run = lanes.left[active];
            for lane in 0..LANES {
                if lanes.left[lane] == 0 {
                    lanes.at[lane] = lanes.at[active];
                    lanes.chains[lane] = lanes.chains[active];
                }
            }
            // SAFETY: each lane has `run` blocks: those with work no less, as `run` is the least of them,
            // and the idle ones are where `active` is, in the same state.
            unsafe { self.run(&mut lanes, run) };
            for left in &mut lanes.left {
                *left = left.saturating_sub(run);
            }
        }
    }

    /// Encrypts `run` blocks of every lane.
    ///
    /// # Safety
    /// Every lane's pointer is good for `run` blocks; two lanes share blocks only if they share a chain.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,aes")]
    unsafe fn run(&self, lanes: &mut Lanes, run: usize) {
        let mut states = [_mm512_setzero_si512(); VECTORS];
        for i in 0..VECTORS {
            // SAFETY: four lanes are a vector.
            states[i] = unsafe { _mm512_loadu_si512(lanes.chains.as_ptr().add(4 * i).cast()) };
        }
        let whitening = _mm512_broadcast_i32x4(self.encrypt[0]);
        for block in 0..run {
            for i in 0..VECTORS {
                // SAFETY: the caller's promise.
                let plain = unsafe { gather(&lanes.at, 4 * i, block * BLOCK) };
                states[i] = xor3(states[i], plain, whitening);
            }
            for round in 1..ROUNDS {
                let key = _mm512_broadcast_i32x4(self.encrypt[round]);
                for i in 0..VECTORS {
                    states[i] = _mm512_aesenc_epi128(states[i], key);
                }
            }
            let key = _mm512_broadcast_i32x4(self.encrypt[ROUNDS]);
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
            let whitening = _mm512_broadcast_i32x4(self.decrypt[0]);
            for vector in 0..VECTORS {
                let at = at.wrapping_add(64 * vector).cast();
                // SAFETY: the mask has the words of whole blocks in `stride`, and no others are read.
                ciphers[vector] = unsafe { _mm512_maskz_loadu_epi64(mask(blocks, vector), at) };
                states[vector] = _mm512_xor_si512(ciphers[vector], whitening);
            }
            for round in 1..ROUNDS {
                let key = _mm512_broadcast_i32x4(self.decrypt[round]);
                for i in 0..VECTORS {
                    states[i] = _mm512_aesdec_epi128(states[i], key);
                }
            }
            let key = _mm512_broadcast_i32x4(self.decrypt[ROUNDS]);
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

/// IV and body, the IV's number alone in its place; `None` when the packet does not fit.
fn blocks<'a>(shape: &Shape, job: &'a mut Job<'_>) -> Option<&'a mut [u8]> {
    let (covered, _) = shape.covered(job.packet)?;
    let blocks = covered.get_mut(HEADER..)?;
    *blocks.first_chunk_mut()? = [0; 8];
    Some(blocks)
}

impl<const ROUNDS: usize> Drop for Cbc<ROUNDS> {
    fn drop(&mut self) {
        self.encrypt.zeroize();
        self.decrypt.zeroize();
    }
}
