//! An AES-GCM key of ESP packets as every vector width has it (RFC 4106, NIST SP 800-38D).
//!
//! Powers of H lie in memory in falling order, so that the powers of neighbouring blocks are one load. Promises: what a key
//! was made of is wiped when it goes. Needs AES and carry-less multiplication of one block; only setting a key calls this.

use std::arch::x86_64::*;

use zeroize::Zeroize;

use super::vaes::ghash::{POLYNOMIAL, shifted};
use super::vaes::schedule::{MOST, encrypt, expand};

/// Bytes of a block.
pub const BLOCK: usize = 16;
/// Blocks hashed before a reduction, the first 16 bytes counted: packets of 1500-byte links need one.
pub const CHUNK: usize = 96;
/// Entries of the table of powers: a chunk's and the first 16 bytes', zeros for a stride of any width.
pub const TABLE: usize = CHUNK + 1 + 19;

/// A key, and what can be known of packets before they come.
#[repr(C, align(64))]
pub struct GcmKey {
    /// H to the 97th down to H to the first, shifted; then zeros, for lanes that no block uses and the rest of a stride.
    pub powers: [__m128i; TABLE],
    pub rounds: [__m128i; MOST],
    /// The length of the associated data in bits, times H: middle and high part of the product.
    pub associated: [__m128i; 2],
    /// Reverses the first 16 bytes of a packet and makes associated data of them.
    pub first: __m128i,
    pub salt: u32,
    /// All ones with extended sequence numbers.
    pub esn: u32,
}

impl GcmKey {
    /// A key of the length that goes with `rounds`, made where it stays.
    #[target_feature(enable = "sse2,ssse3,aes,pclmulqdq")]
    pub fn new(key: &[u8], rounds: usize, salt: [u8; 4], esn: bool) -> Box<GcmKey> {
        assert_eq!(key.len() / 4 + 6, rounds, "rounds follow from the key's length");
        let zero = _mm_setzero_si128();
        let mut made = Box::new(GcmKey {
            powers: [zero; TABLE],
            rounds: expand(key),
            associated: [zero; 2],
            first: if esn {
                _mm_set_epi8(0, 1, 2, 3, -1, -1, -1, -1, 4, 5, 6, 7, -1, -1, -1, -1)
            } else {
                _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, -1, -1, -1, -1, -1, -1, -1, -1)
            },
            salt: u32::from_le_bytes(salt),
            esn: if esn { u32::MAX } else { 0 },
        });
        let h = _mm_shuffle_epi8(encrypt(&made.rounds, rounds, zero), reverse());
        let (by_h, bits) = (shifted(h), _mm_cvtsi64_si128(if esn { 96 } else { 64 }));
        made.associated =
            [_mm_clmulepi64_si128::<0x00>(bits, by_h), _mm_clmulepi64_si128::<0x10>(bits, by_h)];
        let mut power = h;
        for slot in made.powers[..=CHUNK].iter_mut().rev() {
            *slot = shifted(power);
            power = multiply(power, by_h);
        }
        made
    }

    /// The power of the first of the blocks in `left` bytes: their last one's is H squared, because the
    /// lengths follow, and a whole chunk's last one's is H.
    #[inline]
    pub fn powers_for(&self, left: usize) -> *const __m128i {
        let blocks = left.div_ceil(BLOCK);
        if blocks > CHUNK { &raw const self.powers[1] } else { &raw const self.powers[CHUNK - blocks] }
    }
}

impl Drop for GcmKey {
    fn drop(&mut self) {
        self.powers.zeroize();
        self.rounds.zeroize();
        self.associated.zeroize();
        self.salt.zeroize();
    }
}

/// Reverses the bytes of a block.
#[inline]
#[target_feature(enable = "sse2")]
pub fn reverse() -> __m128i {
    _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
}

/// Low, middle and high half of a product as one field element: Montgomery's reduction, twice 64 bits.
#[inline]
#[target_feature(enable = "sse2,pclmulqdq")]
pub fn reduce(low: __m128i, middle: __m128i, high: __m128i) -> __m128i {
    let polynomial = _mm_set1_epi64x(POLYNOMIAL);
    let crossed = _mm_xor_si128(_mm_shuffle_epi32::<0x4e>(low), _mm_move_epi64(middle));
    let once = _mm_xor_si128(crossed, _mm_clmulepi64_si128::<0x00>(low, polynomial));
    let above = _mm_move_epi64(_mm_shuffle_epi32::<0x4e>(middle));
    let twice = _mm_clmulepi64_si128::<0x00>(once, polynomial);
    _mm_xor_si128(_mm_xor_si128(high, above), _mm_xor_si128(_mm_shuffle_epi32::<0x4e>(once), twice))
}

/// `a` times `b`, of which `b` is [`shifted`].
#[target_feature(enable = "sse2,pclmulqdq")]
fn multiply(a: __m128i, b: __m128i) -> __m128i {
    let middle = _mm_xor_si128(_mm_clmulepi64_si128::<0x01>(a, b), _mm_clmulepi64_si128::<0x10>(a, b));
    reduce(_mm_clmulepi64_si128::<0x00>(a, b), middle, _mm_clmulepi64_si128::<0x11>(a, b))
}

/// Whether a packet has header, IV and ICV and between them whole units of 4 bytes, at least one.
#[inline]
pub fn fits(len: usize) -> bool {
    len > BLOCK + BLOCK && len.is_multiple_of(4)
}

/// Everything before the ICV, and the ICV.
#[inline]
pub fn parts(packet: &mut [u8]) -> Option<(&mut [u8], &mut [u8; BLOCK])> {
    if fits(packet.len()) { packet.split_last_chunk_mut() } else { None }
}
