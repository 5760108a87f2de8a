//! Two blocks a vector: VAES and VPCLMULQDQ on 256 bits.

use std::arch::x86_64::*;

pub use super::interleaved::by256::{encrypt, encrypt_and_hash, hash};

pub type Vector = __m256i;
pub const LANES: usize = 2;

#[inline]
#[target_feature(enable = "avx2")]
pub fn broadcast(block: __m128i) -> Vector {
    _mm256_broadcastsi128_si256(block)
}

/// `first` in the first lane, `others` in the rest.
#[inline]
#[target_feature(enable = "avx2")]
pub fn lanes(first: __m128i, others: __m128i) -> Vector {
    _mm256_set_m128i(others, first)
}

/// The sum of all lanes.
#[inline]
#[target_feature(enable = "avx2")]
pub fn fold(a: Vector) -> __m128i {
    _mm_xor_si128(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a))
}

#[inline]
#[target_feature(enable = "avx2")]
pub fn first(a: Vector) -> __m128i {
    _mm256_castsi256_si128(a)
}

#[inline]
#[target_feature(enable = "avx2")]
pub fn xor(a: Vector, b: Vector) -> Vector {
    _mm256_xor_si256(a, b)
}

#[inline]
#[target_feature(enable = "avx2")]
pub fn and(a: Vector, b: Vector) -> Vector {
    _mm256_and_si256(a, b)
}

#[inline]
#[target_feature(enable = "avx2")]
pub fn shuffle(a: Vector, by: Vector) -> Vector {
    _mm256_shuffle_epi8(a, by)
}

#[inline]
#[target_feature(enable = "avx2")]
pub fn add(a: Vector, b: Vector) -> Vector {
    _mm256_add_epi32(a, b)
}

#[inline]
#[target_feature(enable = "avx2,vaes")]
pub fn round(a: Vector, key: Vector) -> Vector {
    _mm256_aesenc_epi128(a, key)
}

#[inline]
#[target_feature(enable = "avx2,vaes")]
pub fn last_round(a: Vector, key: Vector) -> Vector {
    _mm256_aesenclast_epi128(a, key)
}

#[inline]
#[target_feature(enable = "avx2,vaes")]
pub fn inverse_round(a: Vector, key: Vector) -> Vector {
    _mm256_aesdec_epi128(a, key)
}

#[inline]
#[target_feature(enable = "avx2,vaes")]
pub fn last_inverse_round(a: Vector, key: Vector) -> Vector {
    _mm256_aesdeclast_epi128(a, key)
}

#[inline]
#[target_feature(enable = "avx2,vpclmulqdq")]
pub fn product<const HALVES: i32>(a: Vector, b: Vector) -> Vector {
    _mm256_clmulepi64_epi128::<HALVES>(a, b)
}

/// # Safety
/// A vector lies at `at`.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn load(at: *const u8) -> Vector {
    // SAFETY: the caller's promise.
    unsafe { _mm256_loadu_si256(at.cast()) }
}

/// # Safety
/// A vector's room lies at `at`.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn store(at: *mut u8, a: Vector) {
    // SAFETY: the caller's promise.
    unsafe { _mm256_storeu_si256(at.cast(), a) }
}

/// The blocks that begin with `words` words; zeros behind them.
///
/// # Safety
/// So many blocks lie at `at`.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn load_blocks(at: *const u8, words: usize) -> Vector {
    // SAFETY: the caller's promise.
    unsafe {
        match words > 4 {
            true => load(at),
            false => _mm256_zextsi128_si256(_mm_loadu_si128(at.cast())),
        }
    }
}

/// Writes the blocks that begin with `words` words.
///
/// # Safety
/// Room for them lies at `at`.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn store_blocks(at: *mut u8, words: usize, a: Vector) {
    // SAFETY: the caller's promise.
    unsafe {
        match words > 4 {
            true => store(at, a),
            false => _mm_storeu_si128(at.cast(), first(a)),
        }
    }
}

/// A block of each of some packets.
///
/// # Safety
/// A block lies at `offset` behind each of the pointers.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn gather(at: &[*mut u8; LANES], offset: usize) -> Vector {
    // SAFETY: the caller's promise.
    unsafe {
        _mm256_set_m128i(_mm_loadu_si128(at[1].add(offset).cast()), _mm_loadu_si128(at[0].add(offset).cast()))
    }
}

/// [`gather`]'s way back.
///
/// # Safety
/// As for [`gather`].
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn scatter(at: &[*mut u8; LANES], offset: usize, a: Vector) {
    // SAFETY: the caller's promise.
    unsafe {
        _mm_storeu_si128(at[0].add(offset).cast(), _mm256_castsi256_si128(a));
        _mm_storeu_si128(at[1].add(offset).cast(), _mm256_extracti128_si256::<1>(a));
    }
}
