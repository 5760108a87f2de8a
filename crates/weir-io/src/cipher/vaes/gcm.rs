//! AES-GCM of ESP packets (RFC 4106, NIST SP 800-38D), four blocks a vector.
//!
//! A packet begins with 16 bytes that are not encrypted, and GCM needs one block of key stream for its tag
//! and one block of associated data: both share the first lane of the first vector.
//!
//! ```text
//! packet      | SPI, sequence, IV | body 0 | body 1 | body 2 | body 3 …      | ICV |
//! counter     | 1 (for the tag)   | 2      | 3      | 4      | 5 …
//! hashed      | SPI, sequence, 0  | cipher 0, 1, 2, …                         lengths
//! times H to  | n + 2             | n + 1, n, n - 1, …                   2  | 1
//! ```
//!
//! Powers of H lie in memory in falling order, so that any four neighbours are one load, and the whole
//! hash of up to [`CHUNK`] blocks is one sum with one reduction. Vectors go in strides of four, enough to
//! fill the latency of an AES round; the last is masked, so nothing is copied.
//!
//! Loops count rather than iterate: an adaptor the compiler leaves as a call has no vector registers, and
//! everything around it goes through memory.

#![allow(clippy::needless_range_loop)]

use std::arch::x86_64::*;

use weir_core::ipsec::Job;

use super::Vaes;
use super::ghash::Sum;
use crate::cipher::gcm_key::{BLOCK, CHUNK, GcmKey, fits, parts};
use crate::cipher::shape::HEADER;

const VECTOR: usize = 64;
/// Vectors in flight at once.
const STRIDE: usize = 4;
const CHUNK_STRIDES: u32 = (CHUNK * BLOCK / (STRIDE * VECTOR)) as u32;
/// Reverses the bytes of a block.
const REVERSE: __m128i = block(0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f);
/// 1 to 15 in the counters of a stride's lanes, and zero in its last.
const COUNTS: [__m512i; STRIDE] = counts();

pub struct Gcm<const ROUNDS: usize>(Box<GcmKey>);

impl<const ROUNDS: usize> Gcm<ROUNDS> {
    /// `key` has the length that goes with `ROUNDS`.
    pub fn new(_: Vaes, key: &[u8], salt: [u8; 4], esn: bool) -> Gcm<ROUNDS> {
        // SAFETY: `Vaes` exists only where these instructions do.
        Gcm(unsafe { GcmKey::new(key, ROUNDS, salt, esn) })
    }

    /// Seals packets; one that cannot be is zeroed.
    pub fn seal(&self, jobs: &mut [Job<'_>]) {
        // SAFETY: a `Gcm` is made only where `Vaes` exists, hence where these instructions do.
        unsafe { self.seal_all(jobs) }
    }

    /// Opens packets; one too short or misaligned is not authentic.
    pub fn open(&self, jobs: &mut [Job<'_>]) {
        // SAFETY: a `Gcm` is made only where `Vaes` exists, hence where these instructions do.
        unsafe { self.open_all(jobs) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq,bmi2")]
    fn seal_all(&self, jobs: &mut [Job<'_>]) {
        let mut refused = false;
        for job in &mut *jobs {
            let Some((covered, icv)) = parts(job.packet) else {
                refused = true;
                continue;
            };
            // SAFETY: `parts` made sure of header and IV.
            let iv = unsafe { covered.as_ptr().add(HEADER).cast::<u64>().read_unaligned() };
            let tag = self.packet::<true>(covered, iv, job.sequence);
            // SAFETY: the ICV is an array of 16 bytes.
            unsafe { _mm_storeu_si128(icv.as_mut_ptr().cast(), tag) };
        }
        // Apart, because a call in the loop would cost every packet its registers.
        if refused {
            jobs.iter_mut().filter(|job| !fits(job.packet.len())).for_each(|job| job.packet.fill(0));
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq,bmi2")]
    fn open_all(&self, jobs: &mut [Job<'_>]) {
        for job in jobs {
            job.authentic = false;
            let Some((covered, icv)) = parts(job.packet) else { continue };
            // SAFETY: `parts` made sure of header and IV.
            let iv = unsafe { covered.as_ptr().add(HEADER).cast::<u64>().read_unaligned() };
            let tag = self.packet::<false>(covered, iv, job.sequence);
            // SAFETY: the ICV is an array of 16 bytes.
            let came = unsafe { _mm_loadu_si128(icv.as_ptr().cast()) };
            let difference = _mm_xor_si128(tag, came);
            job.authentic = _mm_testz_si128(difference, difference) == 1;
        }
    }

    /// Encrypts or decrypts what follows the first 16 bytes of `covered`; the tag.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq,bmi2")]
    fn packet<const SEAL: bool>(&self, covered: &mut [u8], iv: u64, sequence: u64) -> __m128i {
        let (bits, mut left) = (8 * (covered.len() - BLOCK) as i64, covered.len());
        let mut pass = self.begin(covered, iv, (sequence >> 32) as u32);
        // SAFETY: each stride is called with as many vectors as `left` has bytes for, the last with a mask
        // of those bytes; `left` counts down what lies behind `pass.at`.
        unsafe {
            if left <= STRIDE * VECTOR {
                pass = self.last::<SEAL, true>(pass, left);
            } else {
                pass = self.stride::<SEAL, STRIDE, true, false>(pass, u64::MAX);
                left -= STRIDE * VECTOR;
                while left > STRIDE * VECTOR {
                    pass = self.stride::<SEAL, STRIDE, false, false>(pass, u64::MAX);
                    left -= STRIDE * VECTOR;
                    if pass.strides.is_multiple_of(CHUNK_STRIDES) {
                        pass = self.fold(pass, left);
                    }
                }
                pass = self.last::<SEAL, false>(pass, left);
            }
        }
        self.tag(pass, bits)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq,bmi2")]
    fn begin(&self, covered: &mut [u8], iv: u64, high: u32) -> Pass {
        let zero = _mm512_setzero_si512();
        let salted = _mm512_set1_epi64((u64::from(self.0.salt) | iv << 32) as i64);
        let nonce = _mm512_mask_set1_epi64(salted, 0xaa, (iv >> 32) as i64);
        let nonce = _mm512_xor_si512(nonce, _mm512_broadcast_i32x4(self.0.rounds[0]));
        Pass {
            at: covered.as_mut_ptr(),
            powers: self.0.powers_for(covered.len()),
            nonce,
            counters: nonce,
            strides: 0,
            high: _mm_maskz_set1_epi32(0b0100, (high & self.0.esn) as i32),
            stream: _mm_setzero_si128(),
            sum: Sum { low: zero, middle: zero, high: zero },
        }
    }

    /// Joins chunks: the hash so far stands in front of the next one, times the power of its first block.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq,bmi2")]
    fn fold(&self, mut pass: Pass, left: usize) -> Pass {
        let hash = _mm512_zextsi128_si512(pass.sum.reduce());
        let zero = _mm512_setzero_si512();
        pass.sum = Sum { low: zero, middle: zero, high: zero };
        pass.powers = self.0.powers_for(left);
        // SAFETY: three entries follow every power in the table.
        pass.sum.add(hash, unsafe { _mm512_loadu_si512(pass.powers.cast()) });
        pass
    }

    /// The last one to four vectors: `left` bytes.
    ///
    /// # Safety
    /// `left` bytes lie behind `pass.at`, at least one and at most a stride.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq,bmi2")]
    unsafe fn last<const SEAL: bool, const FIRST: bool>(&self, pass: Pass, left: usize) -> Pass {
        let mask = u64::MAX >> (left.wrapping_neg() % VECTOR);
        // SAFETY: the caller's promise: the mask covers what is left beyond whole vectors.
        unsafe {
            match left.div_ceil(VECTOR) {
                1 => self.stride::<SEAL, 1, FIRST, true>(pass, mask),
                2 => self.stride::<SEAL, 2, FIRST, true>(pass, mask),
                3 => self.stride::<SEAL, 3, FIRST, true>(pass, mask),
                _ => self.stride::<SEAL, 4, FIRST, true>(pass, mask),
            }
        }
    }

    /// `N` vectors; when they are the packet's last, the last of them under `mask`.
    ///
    /// # Safety
    /// `N` vectors lie behind `pass.at`, or as many bytes of the last as `mask` has ones.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq,bmi2")]
    unsafe fn stride<const SEAL: bool, const N: usize, const FIRST: bool, const LAST: bool>(
        &self,
        mut pass: Pass,
        mask: u64,
    ) -> Pass {
        let mut blocks = [_mm512_setzero_si512(); N];
        pass.counters(&mut blocks);
        for round in 1..ROUNDS {
            let key = _mm512_broadcast_i32x4(self.0.rounds[round]);
            for i in 0..N {
                blocks[i] = _mm512_aesenc_epi128(blocks[i], key);
            }
        }
        let key = _mm512_broadcast_i32x4(self.0.rounds[ROUNDS]);
        for i in 0..N {
            let stream = _mm512_aesenclast_epi128(blocks[i], key);
            let mask = if LAST && i == N - 1 { mask } else { u64::MAX };
            // SAFETY: the caller's promise.
            let at = unsafe { pass.at.add(i * VECTOR) };
            // SAFETY: only bytes under the mask are read, and the caller promises those.
            let bytes = unsafe { _mm512_maskz_loadu_epi8(mask, at.cast()) };
            let head = FIRST && i == 0;
            // The first lane's stream is the tag's, and its bytes stay as they are.
            let done = if head {
                pass.stream = _mm512_castsi512_si128(stream);
                _mm512_mask_xor_epi64(bytes, 0xfc, bytes, stream)
            } else {
                _mm512_xor_si512(bytes, stream)
            };
            let store = if head { mask & !0xffff } else { mask };
            // SAFETY: only bytes under the mask are written, and the caller promises those.
            unsafe { _mm512_mask_storeu_epi8(at.cast(), store, done) };
            let cipher = if SEAL { _mm512_maskz_mov_epi8(mask, done) } else { bytes };
            let reversed = if head {
                let reverse = _mm512_inserti32x4::<0>(_mm512_broadcast_i32x4(REVERSE), self.0.first);
                let reversed = _mm512_shuffle_epi8(cipher, reverse);
                _mm512_or_si512(reversed, _mm512_zextsi128_si512(pass.high))
            } else {
                _mm512_shuffle_epi8(cipher, _mm512_broadcast_i32x4(REVERSE))
            };
            // SAFETY: three entries follow every power in the table, and `powers_for` left one a block.
            pass.sum.add(reversed, unsafe { _mm512_loadu_si512(pass.powers.add(4 * i).cast()) });
        }
        pass.at = pass.at.wrapping_add(N * VECTOR);
        pass.powers = pass.powers.wrapping_add(4 * N);
        pass
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq,bmi2")]
    fn tag(&self, mut pass: Pass, bits: i64) -> __m128i {
        let (bits, by_h) = (_mm_cvtsi64_si128(bits), self.0.powers[CHUNK]);
        let low = _mm_clmulepi64_si128::<0x00>(bits, by_h);
        let middle = _mm_xor_si128(_mm_clmulepi64_si128::<0x10>(bits, by_h), self.0.associated[0]);
        pass.sum.low = _mm512_xor_si512(pass.sum.low, _mm512_zextsi128_si512(low));
        pass.sum.middle = _mm512_xor_si512(pass.sum.middle, _mm512_zextsi128_si512(middle));
        pass.sum.high = _mm512_xor_si512(pass.sum.high, _mm512_zextsi128_si512(self.0.associated[1]));
        _mm_xor_si128(_mm_shuffle_epi8(pass.sum.reduce(), REVERSE), pass.stream)
    }
}

/// Where one packet stands.
#[derive(Clone, Copy)]
struct Pass {
    at: *mut u8,
    powers: *const __m128i,
    /// Salt, IV and a counter of zero in each lane, the first round key added.
    nonce: __m512i,
    /// The same with the counter of the stride, a multiple of its blocks.
    counters: __m512i,
    strides: u32,
    /// High half of the sequence number where associated data has it; zero without ESN.
    high: __m128i,
    /// Key stream of the tag.
    stream: __m128i,
    sum: Sum,
}

impl Pass {
    /// Counter blocks of a stride. Its counters start one above a multiple of 16, so all but the 16th
    /// differ from that multiple in bits it has not.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq,bmi2")]
    fn counters<const N: usize>(&mut self, blocks: &mut [__m512i; N]) {
        let now = self.counters;
        for i in 0..N {
            blocks[i] = _mm512_xor_si512(now, COUNTS[i]);
        }
        if N == STRIDE {
            self.strides += 1;
            let next = _mm512_maskz_set1_epi32(0x8888, (self.strides * 16).swap_bytes() as i32);
            self.counters = _mm512_xor_si512(self.nonce, next);
            blocks[N - 1] = _mm512_mask_mov_epi64(blocks[N - 1], 0xc0, self.counters);
        }
    }
}

const fn block(bytes: u128) -> __m128i {
    // SAFETY: both are 16 bytes of which every pattern is a value.
    unsafe { std::mem::transmute(bytes) }
}

const fn counts() -> [__m512i; STRIDE] {
    let mut words = [0u32; STRIDE * VECTOR / 4];
    let mut lane = 0;
    while lane < STRIDE * VECTOR / BLOCK - 1 {
        words[4 * lane + 3] = (lane as u32 + 1).to_be();
        lane += 1;
    }
    // SAFETY: both are 256 bytes of which every pattern is a value.
    unsafe { std::mem::transmute(words) }
}
