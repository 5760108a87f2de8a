//! A block a vector: AES-NI and PCLMULQDQ.

use std::arch::x86_64::*;

pub use super::interleaved::by128::{encrypt, encrypt_and_hash, hash};

pub type Vector = __m128i;
pub const LANES: usize = 1;

#[inline]
#[target_feature(enable = "avx2")]
pub fn broadcast(block: __m128i) -> Vector {
    block
}

/// `first` in the first lane, `others` in the rest.
#[inline]
#[target_feature(enable = "avx2")]
pub fn lanes(first: __m128i, _: __m128i) -> Vector {
    first
}

/// The sum of all lanes.
#[inline]
#[target_feature(enable = "avx2")]
pub fn fold(a: Vector) -> __m128i {
    a
}

#[inline]
#[target_feature(enable = "avx2")]
pub fn first(a: Vector) -> __m128i {
    a
}

#[inline]
#[target_feature(enable = "avx2")]
pub fn xor(a: Vector, b: Vector) -> Vector {
    _mm_xor_si128(a, b)
}

#[inline]
#[target_feature(enable = "avx2")]
pub fn and(a: Vector, b: Vector) -> Vector {
    _mm_and_si128(a, b)
}

#[inline]
#[target_feature(enable = "avx2")]
pub fn shuffle(a: Vector, by: Vector) -> Vector {
    _mm_shuffle_epi8(a, by)
}

#[inline]
#[target_feature(enable = "avx2")]
pub fn add(a: Vector, b: Vector) -> Vector {
    _mm_add_epi32(a, b)
}

#[inline]
#[target_feature(enable = "avx2,aes")]
pub fn round(a: Vector, key: Vector) -> Vector {
    _mm_aesenc_si128(a, key)
}

#[inline]
#[target_feature(enable = "avx2,aes")]
pub fn last_round(a: Vector, key: Vector) -> Vector {
    _mm_aesenclast_si128(a, key)
}

#[inline]
#[target_feature(enable = "avx2,aes")]
pub fn inverse_round(a: Vector, key: Vector) -> Vector {
    _mm_aesdec_si128(a, key)
}

#[inline]
#[target_feature(enable = "avx2,aes")]
pub fn last_inverse_round(a: Vector, key: Vector) -> Vector {
    _mm_aesdeclast_si128(a, key)
}

#[inline]
#[target_feature(enable = "avx2,pclmulqdq")]
pub fn product<const HALVES: i32>(a: Vector, b: Vector) -> Vector {
    _mm_clmulepi64_si128::<HALVES>(a, b)
}

/// # Safety
/// A vector lies at `at`.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn load(at: *const u8) -> Vector {
    // SAFETY: the caller's promise.
    unsafe { _mm_loadu_si128(at.cast()) }
}

/// # Safety
/// A vector's room lies at `at`.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn store(at: *mut u8, a: Vector) {
    // SAFETY: the caller's promise.
    unsafe { _mm_storeu_si128(at.cast(), a) }
}

/// The block that begins with so many words.
///
/// # Safety
/// A block lies at `at`.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn load_blocks(at: *const u8, _: usize) -> Vector {
    // SAFETY: the caller's promise.
    unsafe { load(at) }
}

/// Writes the block that begins with so many words.
///
/// # Safety
/// A block's room lies at `at`.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn store_blocks(at: *mut u8, _: usize, a: Vector) {
    // SAFETY: the caller's promise.
    unsafe { store(at, a) }
}

/// A block of each of some packets.
///
/// # Safety
/// A block lies at `offset` behind each of the pointers.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn gather(at: &[*mut u8; LANES], offset: usize) -> Vector {
    // SAFETY: the caller's promise.
    unsafe { _mm_loadu_si128(at[0].add(offset).cast()) }
}

/// [`gather`]'s way back.
///
/// # Safety
/// As for [`gather`].
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn scatter(at: &[*mut u8; LANES], offset: usize, a: Vector) {
    // SAFETY: the caller's promise.
    unsafe { _mm_storeu_si128(at[0].add(offset).cast(), a) }
}
