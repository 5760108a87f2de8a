//! HMAC-SHA-256 (RFC 2104, FIPS 180-4) of two packets at once by the CPU's SHA instructions.
//!
//! A round waits for the one before it, so one message leaves the unit idle half of the time: two
//! messages of a batch take turns. What HMAC hashes of its key is hashed with the key.

#![allow(clippy::needless_range_loop)]

use std::arch::x86_64::*;

use zeroize::Zeroize;

const BLOCK: usize = 64;
/// Length of the digest in bytes.
pub const DIGEST: usize = 32;

/// Proof that this CPU has the SHA instructions.
#[derive(Clone, Copy, Debug)]
pub struct Sha(());

impl Sha {
    pub fn new() -> Option<Sha> {
        let have = is_x86_feature_detected!("sha")
            && is_x86_feature_detected!("sse4.1")
            && is_x86_feature_detected!("ssse3");
        have.then_some(Sha(()))
    }
}

/// A and B, E and F, then C and D, G and H, as the instructions want them.
type State = [__m128i; 2];

/// A key: the states behind its inner and its outer block.
pub struct HmacSha256 {
    inner: State,
    outer: State,
}

/// A message: bytes, and at most [`MORE`] bytes behind them.
pub struct Message<'a> {
    pub bytes: &'a [u8],
    pub more: &'a [u8],
}

/// Bytes a message may have beside its slice: the high half of a sequence number.
pub const MORE: usize = 4;

impl HmacSha256 {
    /// `key` is no longer than a block.
    pub fn new(_: Sha, key: &[u8]) -> HmacSha256 {
        assert!(key.len() <= BLOCK, "a longer key would have to be hashed first");
        let block = |pad: u8| {
            let mut block = [pad; BLOCK];
            block.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
            block
        };
        let (mut inner, mut outer) = (block(0x36), block(0x5c));
        let mut states = [initial(); 2];
        // SAFETY: `Sha` exists only where the instructions do; both are whole blocks.
        unsafe { compress(&mut states, [inner.as_ptr(), outer.as_ptr()]) };
        inner.zeroize();
        outer.zeroize();
        HmacSha256 { inner: states[0], outer: states[1] }
    }

    /// The tags of `N` messages.
    pub fn tags<const N: usize>(&self, messages: [Message<'_>; N]) -> [[u8; DIGEST]; N] {
        let mut streams = messages.map(Stream::new);
        let mut states = [self.inner; N];
        let together = streams.iter().map(|stream| stream.blocks).min().unwrap_or(0);
        for at in 0..together {
            // SAFETY: a key is made only where `Sha` exists; each pointer is to a whole block.
            unsafe { compress(&mut states, std::array::from_fn(|i| streams[i].block(at))) };
        }
        for (stream, state) in streams.iter().zip(&mut states) {
            for at in together..stream.blocks {
                // SAFETY: as above.
                unsafe { compress(std::array::from_mut(state), [stream.block(at)]) };
            }
        }
        // The digest, one bit, and the length of a block and a digest.
        for (stream, state) in streams.iter_mut().zip(&states) {
            stream.tail[..DIGEST].copy_from_slice(&digest(state));
            stream.tail[DIGEST..BLOCK].fill(0);
            stream.tail[DIGEST] = 0x80;
            stream.tail[BLOCK - 8..BLOCK].copy_from_slice(&(8 * (BLOCK + DIGEST) as u64).to_be_bytes());
        }
        let mut states = [self.outer; N];
        // SAFETY: as above.
        unsafe { compress(&mut states, std::array::from_fn(|i| streams[i].tail.as_ptr())) };
        states.map(|state| digest(&state))
    }
}

impl Drop for HmacSha256 {
    fn drop(&mut self) {
        self.inner.zeroize();
        self.outer.zeroize();
    }
}

/// A message's blocks: whole ones where they are, the rest with its padding in `tail`.
struct Stream<'a> {
    whole: &'a [u8],
    tail: [u8; 2 * BLOCK],
    blocks: usize,
}

impl<'a> Stream<'a> {
    fn new(message: Message<'a>) -> Stream<'a> {
        let (whole, rest) = message.bytes.split_at(message.bytes.len() / BLOCK * BLOCK);
        let more = &message.more[..message.more.len().min(MORE)];
        let mut tail = [0; 2 * BLOCK];
        tail[..rest.len()].copy_from_slice(rest);
        tail[rest.len()..rest.len() + more.len()].copy_from_slice(more);
        let used = rest.len() + more.len();
        tail[used] = 0x80;
        let end = if used + 1 + 8 <= BLOCK { BLOCK } else { 2 * BLOCK };
        // The key's block comes first.
        let bits = 8 * (BLOCK + whole.len() + used) as u64;
        tail[end - 8..end].copy_from_slice(&bits.to_be_bytes());
        Stream { whole, tail, blocks: (whole.len() + end) / BLOCK }
    }

    /// Block `at` of `self.blocks`.
    fn block(&self, at: usize) -> *const u8 {
        match self.whole.get(at * BLOCK..(at + 1) * BLOCK) {
            Some(block) => block.as_ptr(),
            None => self.tail[at * BLOCK - self.whole.len()..][..BLOCK].as_ptr(),
        }
    }
}

/// Compresses one block into each state.
///
/// # Safety
/// The CPU has the instructions; each pointer is good for a block.
#[target_feature(enable = "sha,sse4.1,ssse3,sse2")]
unsafe fn compress<const N: usize>(states: &mut [State; N], blocks: [*const u8; N]) {
    let swap = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
    let before = *states;
    let mut words = [[_mm_setzero_si128(); 4]; N];
    for i in 0..N {
        for quad in 0..4 {
            // SAFETY: the caller's promise.
            let bytes = unsafe { _mm_loadu_si128(blocks[i].add(16 * quad).cast()) };
            words[i][quad] = _mm_shuffle_epi8(bytes, swap);
        }
    }
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
    words: &mut [[__m128i; 4]; N],
    from: usize,
) {
    let constants = CONSTANTS[from + Q];
    let constants =
        _mm_set_epi32(constants[3] as i32, constants[2] as i32, constants[1] as i32, constants[0] as i32);
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

fn state(h: [u32; 8]) -> State {
    let quad = |words: [u32; 4]| {
        let value = words.iter().rev().fold(0u128, |value, &word| value << 32 | u128::from(word));
        // SAFETY: both are 16 bytes of which every pattern is a value.
        unsafe { std::mem::transmute::<u128, __m128i>(value) }
    };
    [quad([h[5], h[4], h[1], h[0]]), quad([h[7], h[6], h[3], h[2]])]
}

fn digest(state: &State) -> [u8; DIGEST] {
    // SAFETY: both are 32 bytes of which every pattern is a value.
    let [f, e, b, a, h, g, d, c]: [u32; 8] = unsafe { std::mem::transmute(*state) };
    let mut digest = [0; DIGEST];
    for (bytes, word) in digest.chunks_exact_mut(4).zip([a, b, c, d, e, f, g, h]) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    digest
}

/// FIPS 180-4 5.3.3.
fn initial() -> State {
    state([0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19])
}

/// FIPS 180-4 4.2.2, four rounds an entry.
#[rustfmt::skip]
const CONSTANTS: [[u32; 4]; 16] = [
    [0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5], [0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5],
    [0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3], [0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174],
    [0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc], [0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da],
    [0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7], [0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967],
    [0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13], [0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85],
    [0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3], [0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070],
    [0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5], [0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3],
    [0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208], [0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2],
];
