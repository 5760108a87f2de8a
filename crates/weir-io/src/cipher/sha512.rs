//! SHA-384 and SHA-512 (FIPS 180-4) of four messages at once: AVX2 has a word of each of them in a vector.
//!
//! One source makes a message's compression by itself, too: four lanes cost more than one message that is alone.

#![allow(clippy::needless_range_loop)]

use std::arch::x86_64::*;

use super::multi_hmac::Hash;

/// Bytes of a block.
pub const BLOCK: usize = 128;
/// Messages at once.
pub const FOUR: usize = 4;

/// Proof that this CPU has AVX2.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

impl Avx2 {
    pub fn new() -> Option<Avx2> {
        is_x86_feature_detected!("avx2").then_some(Avx2(()))
    }
}

/// SHA-384.
pub struct Sha384;

/// SHA-512.
pub struct Sha512;

/// A to H.
type State = [u64; 8];

/// Makes a [`Hash`] of its parts.
macro_rules! hash {
    ($hash:ident, $digest:literal, $initial:expr) => {
        impl Hash<BLOCK, FOUR> for $hash {
            type Proof = Avx2;
            type State = State;
            const DIGEST: usize = $digest;
            const NAME: &str = "avx2";

            fn initial(_: Avx2) -> State {
                $initial
            }

            #[inline]
            fn compress(_: Avx2, states: &mut [State; FOUR], blocks: [&[u8; BLOCK]; FOUR]) {
                // SAFETY: the proof exists only where AVX2 does.
                unsafe { compress_four(states, blocks) }
            }

            #[inline]
            fn compress_alone(_: Avx2, state: &mut State, block: &[u8; BLOCK]) {
                compress_one(state, block);
            }

            #[inline]
            fn digest(_: Avx2, state: &State, block: &mut [u8; BLOCK]) {
                for (bytes, word) in block.chunks_exact_mut(8).zip(&state[..$digest / 8]) {
                    bytes.copy_from_slice(&word.to_be_bytes());
                }
            }
        }
    };
}

hash!(Sha384, 48, INITIAL_384);
hash!(Sha512, 64, INITIAL);

/// A word of one message.
mod word {
    pub type Word = u64;

    #[inline]
    pub fn each(a: u64) -> Word {
        a
    }

    #[inline]
    pub fn add(a: Word, b: Word) -> Word {
        a.wrapping_add(b)
    }

    #[inline]
    pub fn xor(a: Word, b: Word) -> Word {
        a ^ b
    }

    #[inline]
    pub fn and(a: Word, b: Word) -> Word {
        a & b
    }

    /// Turns right by `RIGHT`, which is left by `LEFT`.
    #[inline]
    pub fn turn<const RIGHT: i32, const LEFT: i32>(a: Word) -> Word {
        a.rotate_right(RIGHT as u32)
    }

    #[inline]
    pub fn shift<const RIGHT: i32>(a: Word) -> Word {
        a >> RIGHT
    }
}

/// A word of each of four messages.
mod words {
    use std::arch::x86_64::*;

    pub type Word = __m256i;

    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn each(a: u64) -> Word {
        _mm256_set1_epi64x(a as i64)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn add(a: Word, b: Word) -> Word {
        _mm256_add_epi64(a, b)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn xor(a: Word, b: Word) -> Word {
        _mm256_xor_si256(a, b)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn and(a: Word, b: Word) -> Word {
        _mm256_and_si256(a, b)
    }

    /// Turns right by `RIGHT`, which is left by `LEFT`.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn turn<const RIGHT: i32, const LEFT: i32>(a: Word) -> Word {
        _mm256_xor_si256(_mm256_srli_epi64::<RIGHT>(a), _mm256_slli_epi64::<LEFT>(a))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn shift<const RIGHT: i32>(a: Word) -> Word {
        _mm256_srli_epi64::<RIGHT>(a)
    }
}

/// Makes `compress` (FIPS 180-4 6.4.2) of the words in `$words`; `$t` are the numbers below sixteen.
macro_rules! rounds {
    ($words:ident, [$($t:literal)*] $(, #[$feature:meta])?) => {
        use super::$words::{self as v, Word};

        /// A message's rounds: A to H, B ^ C, and the words of sixteen rounds.
        struct Rounds {
            state: [Word; 8],
            bc: Word,
            words: [Word; 16],
        }

        /// Round `T` of sixteen, and its word sixteen rounds on where there is such.
        #[inline]
        $(#[$feature])?
        fn round<const T: usize, const MORE: bool>(rounds: &mut Rounds, constant: u64) {
            let at = |i: usize| (i + 16 - T) % 8;
            let (s, words) = (&mut rounds.state, &mut rounds.words);
            let (a, b, e, f, g) = (s[at(0)], s[at(1)], s[at(4)], s[at(5)], s[at(6)]);
            let now = words[T];
            let known = v::add(v::add(s[at(7)], v::add(now, v::each(constant))), v::xor(g, v::and(e, v::xor(f, g))));
            let first = v::add(known, v::xor(v::xor(v::turn::<14, 50>(e), v::turn::<18, 46>(e)), v::turn::<41, 23>(e)));
            let sum = v::xor(v::xor(v::turn::<28, 36>(a), v::turn::<34, 30>(a)), v::turn::<39, 25>(a));
            // What most of A, B and C say is B, but where A and C both differ from it.
            let ab = v::xor(a, b);
            let most = v::xor(b, v::and(ab, rounds.bc));
            rounds.bc = ab;
            s[at(3)] = v::add(s[at(3)], first);
            s[at(7)] = v::add(first, v::add(sum, most));
            if MORE {
                let (x, y) = (words[(T + 1) % 16], words[(T + 14) % 16]);
                let x = v::xor(v::xor(v::turn::<1, 63>(x), v::turn::<8, 56>(x)), v::shift::<7>(x));
                let y = v::xor(v::xor(v::turn::<19, 45>(y), v::turn::<61, 3>(y)), v::shift::<6>(y));
                words[T] = v::add(v::add(now, x), v::add(words[(T + 9) % 16], y));
            }
        }

        #[inline]
        $(#[$feature])?
        fn sixteen<const MORE: bool>(rounds: &mut Rounds, constants: &[u64; 16]) {
            $( round::<$t, MORE>(rounds, constants[$t]); )*
        }

        /// All rounds, and what was before them added.
        #[inline]
        $(#[$feature])?
        pub fn compress(state: [Word; 8], words: [Word; 16]) -> [Word; 8] {
            let mut rounds = Rounds { state, bc: v::xor(state[1], state[2]), words };
            let (constants, _) = super::CONSTANTS.as_chunks();
            for constants in &constants[..4] {
                sixteen::<true>(&mut rounds, constants);
            }
            sixteen::<false>(&mut rounds, &constants[4]);
            let mut after = state;
            for i in 0..8 {
                after[i] = v::add(state[i], rounds.state[i]);
            }
            after
        }
    };
}

mod one {
    rounds!(word, [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]);
}

mod four {
    rounds!(words, [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15], #[target_feature(enable = "avx2")]);
}

/// Compresses a block of one message.
fn compress_one(state: &mut State, block: &[u8; BLOCK]) {
    let (words, _) = block.as_chunks();
    let mut sixteen = [0; 16];
    for i in 0..16 {
        sixteen[i] = u64::from_be_bytes(words[i]);
    }
    *state = one::compress(*state, sixteen);
}

/// Compresses a block into each state.
#[target_feature(enable = "avx2")]
fn compress_four(states: &mut [State; FOUR], blocks: [&[u8; BLOCK]; FOUR]) {
    let swap =
        _mm256_broadcastsi128_si256(_mm_set_epi8(8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
    let mut words = [_mm256_setzero_si256(); 16];
    for quarter in 0..4 {
        // SAFETY: a block is four vectors.
        let rows = blocks.map(|block| unsafe { _mm256_loadu_si256(block.as_ptr().add(32 * quarter).cast()) });
        let columns = transposed(rows);
        for i in 0..4 {
            words[4 * quarter + i] = _mm256_shuffle_epi8(columns[i], swap);
        }
    }
    let mut state = [_mm256_setzero_si256(); 8];
    for half in 0..2 {
        // SAFETY: a state is two vectors.
        let rows =
            states.each_ref().map(|state| unsafe { _mm256_loadu_si256(state.as_ptr().add(4 * half).cast()) });
        state[4 * half..4 * half + 4].copy_from_slice(&transposed(rows));
    }
    let state = four::compress(state, words);
    for half in 0..2 {
        let rows =
            transposed([state[4 * half], state[4 * half + 1], state[4 * half + 2], state[4 * half + 3]]);
        for i in 0..FOUR {
            // SAFETY: a state is two vectors.
            unsafe { _mm256_storeu_si256(states[i].as_mut_ptr().add(4 * half).cast(), rows[i]) };
        }
    }
}

/// Four rows of four words as four columns.
#[inline]
#[target_feature(enable = "avx2")]
fn transposed([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    let (ab, ab2) = (_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    let (cd, cd2) = (_mm256_unpacklo_epi64(c, d), _mm256_unpackhi_epi64(c, d));
    [
        _mm256_permute2x128_si256::<0x20>(ab, cd),
        _mm256_permute2x128_si256::<0x20>(ab2, cd2),
        _mm256_permute2x128_si256::<0x31>(ab, cd),
        _mm256_permute2x128_si256::<0x31>(ab2, cd2),
    ]
}

/// FIPS 180-4 5.3.4.
#[rustfmt::skip]
const INITIAL_384: State = [
    0xcbbb9d5dc1059ed8, 0x629a292a367cd507, 0x9159015a3070dd17, 0x152fecd8f70e5939,
    0x67332667ffc00b31, 0x8eb44a8768581511, 0xdb0c2e0d64f98fa7, 0x47b5481dbefa4fa4,
];

/// SHA-512's start (FIPS 180-4 5.3.5).
#[rustfmt::skip]
pub const INITIAL: State = [
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
];

/// A constant a round (FIPS 180-4 4.2.3).
#[rustfmt::skip]
pub static CONSTANTS: [u64; 80] = [
    0x428a2f98d728ae22, 0x7137449123ef65cd, 0xb5c0fbcfec4d3b2f, 0xe9b5dba58189dbbc,
    0x3956c25bf348b538, 0x59f111f1b605d019, 0x923f82a4af194f9b, 0xab1c5ed5da6d8118,
    0xd807aa98a3030242, 0x12835b0145706fbe, 0x243185be4ee4b28c, 0x550c7dc3d5ffb4e2,
    0x72be5d74f27b896f, 0x80deb1fe3b1696b1, 0x9bdc06a725c71235, 0xc19bf174cf692694,
    0xe49b69c19ef14ad2, 0xefbe4786384f25e3, 0x0fc19dc68b8cd5b5, 0x240ca1cc77ac9c65,
    0x2de92c6f592b0275, 0x4a7484aa6ea6e483, 0x5cb0a9dcbd41fbd4, 0x76f988da831153b5,
    0x983e5152ee66dfab, 0xa831c66d2db43210, 0xb00327c898fb213f, 0xbf597fc7beef0ee4,
    0xc6e00bf33da88fc2, 0xd5a79147930aa725, 0x06ca6351e003826f, 0x142929670a0e6e70,
    0x27b70a8546d22ffc, 0x2e1b21385c26c926, 0x4d2c6dfc5ac42aed, 0x53380d139d95b3df,
    0x650a73548baf63de, 0x766a0abb3c77b2a8, 0x81c2c92e47edaee6, 0x92722c851482353b,
    0xa2bfe8a14cf10364, 0xa81a664bbc423001, 0xc24b8b70d0f89791, 0xc76c51a30654be30,
    0xd192e819d6ef5218, 0xd69906245565a910, 0xf40e35855771202a, 0x106aa07032bbd1b8,
    0x19a4c116b8d2d0c8, 0x1e376c085141ab53, 0x2748774cdf8eeb99, 0x34b0bcb5e19b48a8,
    0x391c0cb3c5c95a63, 0x4ed8aa4ae3418acb, 0x5b9cca4f7763e373, 0x682e6ff3d6b2b8a3,
    0x748f82ee5defb2fc, 0x78a5636f43172f60, 0x84c87814a1f0ab72, 0x8cc702081a6439ec,
    0x90befffa23631e28, 0xa4506cebde82bde9, 0xbef9a3f7b2c67915, 0xc67178f2e372532b,
    0xca273eceea26619c, 0xd186b8c721c0c207, 0xeada7dd6cde0eb1e, 0xf57d4f7fee6ed178,
    0x06f067aa72176fba, 0x0a637dc5a2c898a6, 0x113f9804bef90dae, 0x1b710b35131c471b,
    0x28db77f523047d84, 0x32caab7b40c72493, 0x3c9ebe0a15c9bebc, 0x431d67c49c100d4c,
    0x4cc5d4becb3e42b6, 0x597f299cfc657e2a, 0x5fcb6fab3ad6faec, 0x6c44198c4a475817,
];
