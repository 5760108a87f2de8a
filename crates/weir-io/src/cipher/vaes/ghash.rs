//! GHASH (NIST SP 800-38D 6.4) with sums of products that are reduced once.
//!
//! Blocks are byte-reversed, which makes GCM's bit order that of carry-less multiplication but for one
//! bit: multipliers are kept shifted by it ([`shifted`]). The reduction is Montgomery's, twice 64 bits
//! (Gueron and Kounavis, "Intel Carry-Less Multiplication Instruction", and Gueron's later form of it).

use std::arch::x86_64::*;

/// x^127 + x^126 + x^121 as the upper half of GCM's polynomial, reversed.
pub const POLYNOMIAL: i64 = 0xc200_0000_0000_0000_u64 as i64;

/// Products of four lanes, not yet reduced: low, middle (two of them) and high halves.
#[derive(Clone, Copy)]
pub struct Sum {
    pub low: __m512i,
    pub middle: __m512i,
    pub high: __m512i,
}

#[inline]
#[target_feature(enable = "avx512f")]
pub fn xor3(a: __m512i, b: __m512i, c: __m512i) -> __m512i {
    _mm512_ternarylogic_epi64::<0x96>(a, b, c)
}

impl Sum {
    /// Adds each lane of `blocks` times the same lane of `powers`.
    #[inline]
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    pub fn add(&mut self, blocks: __m512i, powers: __m512i) {
        self.low = _mm512_xor_si512(self.low, _mm512_clmulepi64_epi128::<0x00>(blocks, powers));
        self.high = _mm512_xor_si512(self.high, _mm512_clmulepi64_epi128::<0x11>(blocks, powers));
        self.middle = xor3(
            self.middle,
            _mm512_clmulepi64_epi128::<0x01>(blocks, powers),
            _mm512_clmulepi64_epi128::<0x10>(blocks, powers),
        );
    }

    /// The sum of all lanes as one field element.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512vl,vpclmulqdq")]
    pub fn reduce(self) -> __m128i {
        let polynomial = _mm512_set1_epi64(POLYNOMIAL);
        let crossed = _mm512_shuffle_epi32::<0x4e>(self.low);
        let crossed = _mm512_mask_xor_epi64(crossed, 0x55, crossed, self.middle);
        let once = _mm512_xor_si512(crossed, _mm512_clmulepi64_epi128::<0x00>(self.low, polynomial));
        let above = _mm512_shuffle_epi32::<0x4e>(self.middle);
        let high = _mm512_mask_xor_epi64(self.high, 0x55, self.high, above);
        let twice = _mm512_clmulepi64_epi128::<0x00>(once, polynomial);
        let lanes = xor3(high, _mm512_shuffle_epi32::<0x4e>(once), twice);
        let pairs = _mm256_xor_si256(_mm512_castsi512_si256(lanes), _mm512_extracti64x4_epi64::<1>(lanes));
        _mm_xor_si128(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256::<1>(pairs))
    }
}

/// `a` times x: what multipliers are kept as.
#[target_feature(enable = "sse2")]
pub fn shifted(a: __m128i) -> __m128i {
    let carries = _mm_srli_epi64::<63>(a);
    let doubled = _mm_or_si128(_mm_slli_epi64::<1>(a), _mm_slli_si128::<8>(carries));
    // All ones when the uppermost bit left.
    let left = _mm_sub_epi64(_mm_setzero_si128(), _mm_unpackhi_epi64(carries, carries));
    _mm_xor_si128(doubled, _mm_and_si128(left, _mm_set_epi64x(POLYNOMIAL, 1)))
}
