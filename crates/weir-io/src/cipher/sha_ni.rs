//! SHA-1 and SHA-256 (FIPS 180-4) of two messages at once by the CPU's SHA instructions.
//!
//! A round waits for the one before it, so one message leaves the unit idle half of the time: two
//! messages take turns.

#![allow(clippy::needless_range_loop)]

use std::arch::x86_64::*;

use super::multi_hmac::Hash;
use super::sha512;

/// Bytes of a block.
pub const BLOCK: usize = 64;
/// Messages at once.
pub const PAIR: usize = 2;

/// Proof that this CPU has the SHA instructions.
#[derive(Clone, Copy, Debug)]
pub struct ShaNi(());

impl ShaNi {
    pub fn new() -> Option<ShaNi> {
        let have = is_x86_feature_detected!("sha")
            && is_x86_feature_detected!("sse4.1")
            && is_x86_feature_detected!("ssse3");
        have.then_some(ShaNi(()))
    }
}

/// SHA-1.
pub struct Sha1;

/// SHA-256.
pub struct Sha256;

/// A message's state as the instructions want it. SHA-1: A to D, then E. SHA-256: A, B, E, F, then C, D, G, H.
type State = [__m128i; 2];
type Words = [__m128i; 4];

/// Makes a [`Hash`] of its parts.
macro_rules! hash {
    ($hash:ident, $digest:literal, $initial:ident, $compress:ident, $write:ident) => {
        impl Hash<BLOCK, PAIR> for $hash {
            type Proof = ShaNi;
            type State = State;
            const DIGEST: usize = $digest;
            const NAME: &str = "sha-ni";

            fn initial(_: ShaNi) -> State {
                $initial()
            }

            #[inline]
            fn compress(_: ShaNi, states: &mut [State; PAIR], blocks: [&[u8; BLOCK]; PAIR]) {
                // SAFETY: the proof exists only where the instructions do.
                unsafe { $compress(states, blocks) }
            }

            #[inline]
            fn compress_alone(_: ShaNi, state: &mut State, block: &[u8; BLOCK]) {
                // SAFETY: the proof exists only where the instructions do.
                unsafe { $compress(std::array::from_mut(state), [block]) }
            }

            #[inline]
            fn digest(_: ShaNi, state: &State, block: &mut [u8; BLOCK]) {
                // SAFETY: the proof exists only where the instructions do.
                unsafe { $write(state, block) }
            }
        }
    };
}

hash!(Sha1, 20, initial_sha1, compress_sha1, write_sha1);
hash!(Sha256, 32, initial_sha256, compress_sha256, write_sha256);

/// The words of each block, four a vector.
#[inline]
#[target_feature(enable = "sha,sse4.1,ssse3,sse2")]
fn words<const N: usize>(blocks: [&[u8; BLOCK]; N], swap: __m128i) -> [Words; N] {
    let mut words = [[_mm_setzero_si128(); 4]; N];
    for i in 0..N {
        for quad in 0..4 {
            // SAFETY: a block is four times as long.
            let bytes = unsafe { _mm_loadu_si128(blocks[i].as_ptr().add(16 * quad).cast()) };
            words[i][quad] = _mm_shuffle_epi8(bytes, swap);
        }
    }
    words
}

/// Turns the bytes of each word around.
#[inline]
#[target_feature(enable = "sse2")]
fn swap_words() -> __m128i {
    _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3)
}

/// Turns all bytes around: SHA-1's instructions have the first word uppermost.
#[inline]
#[target_feature(enable = "sse2")]
fn swap_all() -> __m128i {
    _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
}

/// Compresses one block into each state.
#[target_feature(enable = "sha,sse4.1,ssse3,sse2")]
fn compress_sha256<const N: usize>(states: &mut [State; N], blocks: [&[u8; BLOCK]; N]) {
    let before = *states;
    let mut words = words(blocks, swap_words());
    for turn in 0..3 {
        quad::<N, 0, true>(states, &mut words, 4 * turn);
        quad::<N, 1, true>(states, &mut words, 4 * turn);
        quad::<N, 2, true>(states, &mut words, 4 * turn);
        quad::<N, 3, true>(states, &mut words, 4 * turn);
    }
    quad::<N, 0, false>(states, &mut words, 12);
    quad::<N, 1, false>(states, &mut words, 12);
    quad::<N, 2, false>(states, &mut words, 12);
    quad::<N, 3, false>(states, &mut words, 12);
    for i in 0..N {
        states[i][0] = _mm_add_epi32(states[i][0], before[i][0]);
        states[i][1] = _mm_add_epi32(states[i][1], before[i][1]);
    }
}

/// Four rounds of each message, and its words sixteen rounds on where there are such.
#[inline]
#[target_feature(enable = "sha,sse4.1,ssse3,sse2")]
fn quad<const N: usize, const Q: usize, const MORE: bool>(
    states: &mut [State; N],
    words: &mut [Words; N],
    from: usize,
) {
    // SAFETY: an entry is as long as a vector.
    let constants = unsafe { _mm_loadu_si128(CONSTANTS[from + Q].as_ptr().cast()) };
    for i in 0..N {
        let now = words[i][Q];
        let sum = _mm_add_epi32(now, constants);
        states[i][1] = _mm_sha256rnds2_epu32(states[i][1], states[i][0], sum);
        let sum = _mm_shuffle_epi32::<0x0e>(sum);
        states[i][0] = _mm_sha256rnds2_epu32(states[i][0], states[i][1], sum);
        if MORE {
            let (two, three) = (words[i][(Q + 2) % 4], words[i][(Q + 3) % 4]);
            let next = _mm_sha256msg1_epu32(now, words[i][(Q + 1) % 4]);
            let next = _mm_add_epi32(next, _mm_alignr_epi8::<4>(three, two));
            words[i][Q] = _mm_sha256msg2_epu32(next, three);
        }
    }
}

/// FIPS 180-4 5.3.3.
fn initial_sha256() -> State {
    let h = sha512::INITIAL.map(|word| (word >> 32) as u32);
    [vector([h[5], h[4], h[1], h[0]]), vector([h[7], h[6], h[3], h[2]])]
}

/// Writes A to H.
#[target_feature(enable = "sha,sse4.1,ssse3,sse2")]
fn write_sha256(state: &State, block: &mut [u8; BLOCK]) {
    // From the lowest word up the state is F, E, B, A and H, G, D, C.
    let a_to_d = _mm_unpackhi_epi64(state[0], state[1]);
    let e_to_h = _mm_unpacklo_epi64(state[0], state[1]);
    let swap = _mm_set_epi8(8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    // SAFETY: a block has room for both.
    unsafe {
        _mm_storeu_si128(block.as_mut_ptr().cast(), _mm_shuffle_epi8(a_to_d, swap));
        _mm_storeu_si128(block.as_mut_ptr().add(16).cast(), _mm_shuffle_epi8(e_to_h, swap));
    }
}

/// FIPS 180-4 4.2.2, four rounds an entry: the upper halves of SHA-512's.
static CONSTANTS: [[u32; 4]; 16] = {
    let mut constants = [[0; 4]; 16];
    let mut i = 0;
    while i < 64 {
        constants[i / 4][i % 4] = (sha512::CONSTANTS[i] >> 32) as u32;
        i += 1;
    }
    constants
};

/// Compresses one block into each state.
#[target_feature(enable = "sha,sse4.1,ssse3,sse2")]
fn compress_sha1<const N: usize>(states: &mut [State; N], blocks: [&[u8; BLOCK]; N]) {
    /// Four rounds an entry.
    macro_rules! fours {
        ($rounds:expr, $($four:literal)*) => { $( four::<N, $four>($rounds); )* };
    }
    let before = *states;
    let mut rounds = Rounds { states: *states, words: words(blocks, swap_all()) };
    fours!(&mut rounds, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19);
    for i in 0..N {
        let [abcd, previous] = rounds.states[i];
        states[i] = [_mm_add_epi32(abcd, before[i][0]), _mm_sha1nexte_epu32(previous, before[i][1])];
    }
}

/// Messages between two rounds of SHA-1. Where E was stands what A to D were four rounds ago: E is made of that A.
struct Rounds<const N: usize> {
    states: [State; N],
    words: [Words; N],
}

/// Four rounds of each message, and its words sixteen rounds on where there are such.
#[inline]
#[target_feature(enable = "sha,sse4.1,ssse3,sse2")]
fn four<const N: usize, const FOUR: usize>(rounds: &mut Rounds<N>) {
    for i in 0..N {
        let (words, [abcd, previous]) = (&mut rounds.words[i], rounds.states[i]);
        let now = words[FOUR % 4];
        // The first four rounds have E itself.
        let e = if FOUR == 0 { _mm_add_epi32(previous, now) } else { _mm_sha1nexte_epu32(previous, now) };
        let next = match FOUR / 5 {
            0 => _mm_sha1rnds4_epu32::<0>(abcd, e),
            1 => _mm_sha1rnds4_epu32::<1>(abcd, e),
            2 => _mm_sha1rnds4_epu32::<2>(abcd, e),
            _ => _mm_sha1rnds4_epu32::<3>(abcd, e),
        };
        rounds.states[i] = [next, abcd];
        if FOUR < 16 {
            let (two, three) = (words[(FOUR + 2) % 4], words[(FOUR + 3) % 4]);
            let sum = _mm_xor_si128(_mm_sha1msg1_epu32(now, words[(FOUR + 1) % 4]), two);
            words[FOUR % 4] = _mm_sha1msg2_epu32(sum, three);
        }
    }
}

/// FIPS 180-4 5.3.1.
fn initial_sha1() -> State {
    [vector([0x10325476, 0x98badcfe, 0xefcdab89, 0x67452301]), vector([0, 0, 0, 0xc3d2e1f0])]
}

/// Writes A to E.
#[target_feature(enable = "sha,sse4.1,ssse3,sse2")]
fn write_sha1(state: &State, block: &mut [u8; BLOCK]) {
    // SAFETY: a block has room for as much.
    unsafe { _mm_storeu_si128(block.as_mut_ptr().cast(), _mm_shuffle_epi8(state[0], swap_all())) };
    block[16..20].copy_from_slice(&(_mm_extract_epi32::<3>(state[1]) as u32).to_be_bytes());
}

/// A vector of words, the lowest first.
fn vector(words: [u32; 4]) -> __m128i {
    // SAFETY: both are 16 bytes of which every pattern is a value.
    unsafe { std::mem::transmute::<[u32; 4], __m128i>(words) }
}
