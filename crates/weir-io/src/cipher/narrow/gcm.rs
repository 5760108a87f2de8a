//! AES-GCM of ESP packets by vectors of one or two blocks: one source, made for each width.
//!
//! The layout is that of [`super::super::vaes`]: a packet's first 16 bytes, which are not encrypted, share their lane with the
//! block of key stream for the tag and with the associated data.
//!
//! ```text
//! packet      | SPI, sequence, IV | body 0 | body 1 | body 2 | body 3 …      | ICV |
//! counter     | 1 (for the tag)   | 2      | 3      | 4      | 5 …
//! hashed      | SPI, sequence, 0  | cipher 0, 1, 2, …                         lengths
//! times H to  | n + 2             | n + 1, n, n - 1, …                   2  | 1
//! ```
//!
//! Powers of H lie in memory in falling order, so that neighbours are one load. Strides are of eight blocks, which fill the
//! latency of an AES round; packets of more than one [interleaved](super::interleaved) stride go by those. Lengths are
//! multiples of 4 bytes, so the last vector is masked by words; what is read and written back beyond them is the ICV.
//!
//! Loops count rather than iterate: an adaptor the compiler leaves as a call has no vector registers, and
//! everything around it goes through memory.

#![allow(clippy::needless_range_loop)]

use std::arch::x86_64::*;

pub use super::super::gcm_key::{BLOCK, CHUNK, GcmKey, fits, reduce, reverse};
pub use super::super::vaes::schedule::encrypt;

/// Blocks of a stride.
pub const STRIDE: usize = 8;
pub const CHUNK_STRIDES: u32 = (CHUNK / STRIDE) as u32;
/// As many words of ones as a mask shall have, in front of as many of zeros.
pub static MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

/// Turns the counter, the last word of a block, to network order.
#[inline]
#[target_feature(enable = "sse2")]
pub fn turn() -> __m128i {
    _mm_set_epi8(12, 13, 14, 15, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
}

/// Makes `Gcm` of `$lanes`, whose instructions are `$features`; `$count` are the numbers of vectors below a stride.
macro_rules! gcm {
    ($features:literal, $lanes:path, [$($count:literal)*]) => {
        use std::arch::x86_64::*;
        use std::hint::black_box;

        use weir_core::ipsec::Job;

        use super::gcm::*;
        use super::interleaved::{self, COUNTERS, Chunk, Folded, MOST, Stride};
        use crate::cipher::shape::HEADER;
        use $lanes as v;

        const VECTOR: usize = BLOCK * v::LANES;
        const VECTORS: usize = STRIDE / v::LANES;

        /// Blocks of an interleaved stride, and its bytes.
        const WIDE: usize = interleaved::VECTORS * v::LANES;
        const WIDE_BYTES: usize = WIDE * BLOCK;

        pub struct Gcm<const ROUNDS: usize> {
            key: Box<GcmKey>,
            folded: Box<Folded>,
        }

        /// Where one packet stands.
        #[derive(Clone, Copy)]
        struct Pass {
            at: *mut u8,
            powers: *const __m128i,
            /// Counter blocks of the next vector, counters in the machine's order.
            counters: v::Vector,
            strides: u32,
            /// High half of the sequence number where associated data has it; zero without ESN.
            high: __m128i,
            /// Key stream of the tag.
            stream: __m128i,
            /// Low, middle and high halves of products, not yet reduced.
            sum: [v::Vector; 3],
        }

        impl Pass {
            #[inline]
            #[target_feature(enable = $features)]
            fn add(&mut self, blocks: v::Vector, powers: v::Vector) {
                let [low, middle, high] = self.sum;
                let crossed = v::xor(v::product::<0x01>(blocks, powers), v::product::<0x10>(blocks, powers));
                self.sum = [
                    v::xor(low, v::product::<0x00>(blocks, powers)),
                    v::xor(middle, crossed),
                    v::xor(high, v::product::<0x11>(blocks, powers)),
                ];
            }
        }

        /// Where a packet of interleaved strides stands.
        struct Wide {
            pass: Pass,
            /// Sums of the strides, of this chunk.
            sums: [v::Vector; 3],
            chunk: Chunk,
            /// Strides that are encrypted.
            strides: usize,
            /// The nonce in each lane, without counter, and the first round key upon it.
            nonce: v::Vector,
        }

        impl Wide {
            /// The stride before the next; null when there is none.
            #[inline]
            fn before(&self) -> *const u8 {
                if self.strides == 0 { std::ptr::null() } else { self.pass.at.wrapping_sub(WIDE_BYTES) }
            }
        }

        impl Pass {
            /// Takes the sums of interleaved strides, whose middle has the other two in it.
            #[inline]
            #[target_feature(enable = $features)]
            fn take(&mut self, sums: [v::Vector; 3]) {
                let middle = v::xor(sums[1], v::xor(sums[0], sums[2]));
                for (sum, part) in self.sum.iter_mut().zip([sums[0], middle, sums[2]]) {
                    *sum = v::xor(*sum, part);
                }
            }
        }

        impl<const ROUNDS: usize> Gcm<ROUNDS> {
            /// A key of the length that goes with `ROUNDS`.
            #[target_feature(enable = $features)]
            pub fn prepare(key: &[u8], salt: [u8; 4], esn: bool) -> Gcm<ROUNDS> {
                let key = GcmKey::new(key, ROUNDS, salt, esn);
                let folded = Box::new(Folded::new(&key.powers, v::LANES));
                Gcm { key, folded }
            }

            /// Seals packets; one that cannot be is zeroed.
            #[target_feature(enable = $features)]
            pub fn seal(&self, jobs: &mut [Job<'_>]) {
                for job in jobs {
                    if !fits(job.packet.len()) {
                        job.packet.fill(0);
                        continue;
                    }
                    let tag = self.packet::<true>(job.packet, job.sequence);
                    if let Some(icv) = job.packet.last_chunk_mut::<BLOCK>() {
                        // SAFETY: the ICV is an array of 16 bytes.
                        unsafe { _mm_storeu_si128(icv.as_mut_ptr().cast(), tag) };
                    }
                }
            }

            /// Opens packets; one too short or misaligned is not authentic.
            #[target_feature(enable = $features)]
            pub fn open(&self, jobs: &mut [Job<'_>]) {
                for job in jobs {
                    job.authentic = false;
                    if !fits(job.packet.len()) {
                        continue;
                    }
                    let tag = self.packet::<false>(job.packet, job.sequence);
                    let Some(icv) = job.packet.last_chunk::<BLOCK>() else { continue };
                    // SAFETY: the ICV is an array of 16 bytes.
                    let came = unsafe { _mm_loadu_si128(icv.as_ptr().cast()) };
                    let difference = _mm_xor_si128(tag, came);
                    job.authentic = _mm_testz_si128(difference, difference) == 1;
                }
            }

            /// Encrypts or decrypts what lies between the first 16 bytes and the ICV of a packet that [`fits`]; the tag. The ICV
            /// stays as it is.
            #[inline]
            #[target_feature(enable = $features)]
            fn packet<const SEAL: bool>(&self, packet: &mut [u8], sequence: u64) -> __m128i {
                let mut left = packet.len() - BLOCK;
                let bits = 8 * (left - BLOCK) as i64;
                let mut pass = self.begin(packet, (sequence >> 32) as u32);
                // SAFETY: each stride is called with as many vectors as `left` has bytes for, the last with a mask
                // of those bytes; `left` counts down what lies behind `pass.at` and before the ICV.
                unsafe {
                    if left <= STRIDE * BLOCK {
                        pass = self.last::<SEAL, true>(pass, left);
                    } else if (WIDE_BYTES + 1..=MOST * BLOCK).contains(&left) {
                        pass = self.wide::<SEAL>(pass, left);
                    } else {
                        pass = self.stride::<SEAL, VECTORS, true, false>(pass, left);
                        left -= STRIDE * BLOCK;
                        while left > STRIDE * BLOCK {
                            pass = self.stride::<SEAL, VECTORS, false, false>(pass, left);
                            left -= STRIDE * BLOCK;
                            if pass.strides.is_multiple_of(CHUNK_STRIDES) {
                                self.fold(&mut pass, self.key.powers_for(left));
                            }
                        }
                        pass = self.last::<SEAL, false>(pass, left);
                    }
                }
                self.tag(pass, bits)
            }

            #[inline]
            #[target_feature(enable = $features)]
            fn begin(&self, packet: &mut [u8], high: u32) -> Pass {
                let zero = v::broadcast(_mm_setzero_si128());
                // SAFETY: the packet has more than the header and the IV behind it.
                let iv = unsafe { packet.as_ptr().add(HEADER).cast::<u64>().read_unaligned() };
                let nonce = _mm_set_epi64x((iv >> 32) as i64, (u64::from(self.key.salt) | iv << 32) as i64);
                let counts = v::lanes(_mm_set_epi32(1, 0, 0, 0), _mm_set_epi32(2, 0, 0, 0));
                Pass {
                    at: packet.as_mut_ptr(),
                    powers: self.key.powers_for(packet.len() - BLOCK),
                    counters: v::add(v::broadcast(nonce), counts),
                    strides: 0,
                    high: _mm_set_epi32(0, (high & self.key.esn) as i32, 0, 0),
                    stream: _mm_setzero_si128(),
                    sum: [zero; 3],
                }
            }

            /// Joins chunks: the hash so far stands in front of the next one, times the power of its first block.
            #[inline]
            #[target_feature(enable = $features)]
            fn fold(&self, pass: &mut Pass, powers: *const __m128i) {
                let zero = _mm_setzero_si128();
                let hash = hash(&pass.sum);
                pass.sum = [v::broadcast(zero); 3];
                pass.powers = powers;
                // SAFETY: three entries follow every power in the table.
                pass.add(v::lanes(hash, zero), unsafe { v::load(pass.powers.cast()) });
            }

            /// The first 16 bytes, the interleaved strides behind them, and the rest of `left` bytes.
            ///
            /// # Safety
            /// `left` bytes lie behind `pass.at`, more than the first 16 and no more than [`MOST`] blocks, and then an ICV.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn wide<const SEAL: bool>(&self, pass: Pass, left: usize) -> Pass {
                let nonce = _mm_blend_epi32::<0x8>(v::first(pass.counters), _mm_setzero_si128());
                let mut wide = Wide {
                    pass,
                    sums: [v::broadcast(_mm_setzero_si128()); 3],
                    chunk: Chunk::first(left, WIDE),
                    strides: 0,
                    nonce: v::broadcast(_mm_xor_si128(nonce, self.key.rounds[0])),
                };
                wide.pass.powers = self.key.powers.as_ptr().wrapping_add(wide.chunk.power);
                let (strides, rest) = ((left - BLOCK) / WIDE_BYTES, (left - BLOCK) % WIDE_BYTES);
                // SAFETY: the caller promises the first 16 bytes, these strides and this rest.
                unsafe {
                    self.first(&mut wide.pass, nonce);
                    for _ in 0..strides {
                        let at = wide.pass.at;
                        let hashed = if SEAL { wide.before() } else { at.cast_const() };
                        self.turn(&mut wide, at, hashed);
                        wide.pass.at = at.wrapping_add(WIDE_BYTES);
                    }
                    if rest > 0 {
                        self.rest::<SEAL>(&mut wide, rest);
                    } else if SEAL {
                        self.join(&mut wide);
                        v::hash(&self.operands(&wide, wide.pass.at, wide.before()), &mut wide.sums, v::broadcast(reverse()));
                    }
                }
                wide.pass.take(wide.sums);
                wide.pass
            }

            /// Encrypts the next stride in place at `at`, and hashes the one at `hashed` unless that is null.
            ///
            /// # Safety
            /// A stride lies at either.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn turn(&self, wide: &mut Wide, at: *mut u8, hashed: *const u8) {
                let mask = v::broadcast(reverse());
                // SAFETY: the caller's promise; powers reach as far as a chunk's strides, counters as far as a packet.
                unsafe {
                    if hashed.is_null() {
                        v::encrypt::<ROUNDS>(&self.operands(wide, at, hashed), &mut wide.sums, mask);
                    } else {
                        self.join(wide);
                        v::encrypt_and_hash::<ROUNDS>(&self.operands(wide, at, hashed), &mut wide.sums, mask);
                        wide.pass.powers = wide.pass.powers.wrapping_add(WIDE);
                    }
                }
                wide.strides += 1;
            }

            #[inline]
            fn operands(&self, wide: &Wide, at: *mut u8, hashed: *const u8) -> Stride<v::Vector> {
                // SAFETY: both are of the table of powers.
                let power = unsafe { wide.pass.powers.offset_from(self.key.powers.as_ptr()) };
                Stride {
                    at,
                    hashed,
                    powers: wide.pass.powers,
                    folded: self.folded.0.as_ptr().wrapping_offset(power),
                    counters: COUNTERS.as_ptr().wrapping_add(2 + wide.strides * WIDE),
                    nonce: wide.nonce,
                    rounds: self.key.rounds.as_ptr(),
                }
            }

            /// The last bytes, fewer than a stride: their key stream beside the hash of what precedes them, or of themselves.
            ///
            /// # Safety
            /// `left` bytes lie behind `pass.at`, a multiple of 4, and an ICV behind them.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn rest<const SEAL: bool>(&self, wide: &mut Wide, left: usize) {
                let zero = v::broadcast(_mm_setzero_si128());
                let (mut stream, mut bytes) = ([zero; interleaved::VECTORS], [zero; interleaved::VECTORS]);
                let (vectors, at) = (left.div_ceil(VECTOR), wide.pass.at);
                let words = (left - (vectors - 1) * VECTOR) / 4;
                let end = at.wrapping_add((vectors - 1) * VECTOR);
                // SAFETY: the caller's promise; `stream` and `bytes` are a stride each.
                unsafe {
                    for i in 0..vectors - 1 {
                        bytes[i] = v::load(at.wrapping_add(i * VECTOR));
                    }
                    let mask = v::load(MASKS.as_ptr().add(8 - words).cast());
                    let last = v::load_blocks(end, words);
                    bytes[vectors - 1] = v::and(last, mask);
                    let hashed = if SEAL { wide.before() } else { bytes.as_ptr().cast() };
                    self.turn(wide, stream.as_mut_ptr().cast(), hashed);
                    if SEAL && wide.chunk.is_over() {
                        self.join(wide);
                    }
                    stream[vectors - 1] = v::and(stream[vectors - 1], mask);
                    for i in 0..vectors {
                        let done = v::xor(bytes[i], stream[i]);
                        if SEAL {
                            let powers = v::load(wide.pass.powers.add(v::LANES * i).cast());
                            wide.pass.add(v::shuffle(done, v::broadcast(reverse())), powers);
                        }
                        if i < vectors - 1 {
                            v::store(at.wrapping_add(i * VECTOR), done);
                        }
                    }
                    v::store_blocks(end, words, v::xor(last, stream[vectors - 1]));
                }
            }

            /// The first 16 bytes, which are hashed alone, and the key stream of the tag.
            ///
            /// # Safety
            /// 16 bytes lie at `pass.at`.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn first(&self, pass: &mut Pass, nonce: __m128i) {
                let zero = _mm_setzero_si128();
                pass.stream = encrypt(&self.key.rounds, ROUNDS, _mm_insert_epi32::<3>(nonce, 1i32.to_be()));
                // SAFETY: the caller's promise; three entries follow every power in the table.
                unsafe {
                    let bytes = _mm_loadu_si128(pass.at.cast());
                    let reversed = _mm_xor_si128(_mm_shuffle_epi8(bytes, self.key.first), pass.high);
                    pass.add(v::lanes(reversed, zero), v::load(pass.powers.cast()));
                }
                pass.at = pass.at.wrapping_add(BLOCK);
                pass.powers = pass.powers.wrapping_add(1);
            }

            /// Where what is hashed next begins a chunk, joins it to the one before.
            #[inline]
            #[target_feature(enable = $features)]
            fn join(&self, wide: &mut Wide) {
                if !wide.chunk.begins() {
                    return;
                }
                wide.pass.take(wide.sums);
                wide.sums = [v::broadcast(_mm_setzero_si128()); 3];
                self.fold(&mut wide.pass, self.key.powers.as_ptr().wrapping_add(wide.chunk.power));
            }

            /// The last vectors: `left` bytes.
            ///
            /// # Safety
            /// `left` bytes lie behind `pass.at`, at least four and at most a stride, and an ICV behind them.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn last<const SEAL: bool, const FIRST: bool>(&self, pass: Pass, left: usize) -> Pass {
                // SAFETY: the caller's promise.
                unsafe {
                    match left.div_ceil(VECTOR) {
                        $($count => self.stride::<SEAL, $count, FIRST, true>(pass, left),)*
                        _ => self.stride::<SEAL, VECTORS, FIRST, true>(pass, left),
                    }
                }
            }

            /// `N` vectors, which `left` bytes begin with; when they are the packet's last, all there is.
            ///
            /// # Safety
            /// `left` bytes lie behind `pass.at`: `N` vectors, or when they are the last, a multiple of 4 bytes more than
            /// one vector less, and an ICV behind them.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn stride<const SEAL: bool, const N: usize, const FIRST: bool, const LAST: bool>(
                &self,
                mut pass: Pass,
                left: usize,
            ) -> Pass {
                let zero = _mm_setzero_si128();
                let mut blocks = [v::broadcast(zero); N];
                let (turn, step) = (v::broadcast(turn()), v::broadcast(_mm_set_epi32(v::LANES as i32, 0, 0, 0)));
                let key = v::broadcast(self.key.rounds[0]);
                for i in 0..N {
                    blocks[i] = v::xor(v::shuffle(pass.counters, turn), key);
                    pass.counters = v::add(pass.counters, step);
                }
                for round in 1..ROUNDS {
                    let key = v::broadcast(self.key.rounds[round]);
                    for i in 0..N {
                        blocks[i] = v::round(blocks[i], key);
                    }
                }
                let key = v::broadcast(self.key.rounds[ROUNDS]);
                for i in 0..N {
                    blocks[i] = v::last_round(blocks[i], key);
                }
                // By way of memory: else the compiler, short of registers, puts a vector's rounds behind those of another,
                // and the CPU waits for each.
                let blocks = black_box(blocks);
                for i in 0..N {
                    let mut stream = blocks[i];
                    if FIRST && i == 0 {
                        // The first lane's stream is the tag's, and its bytes stay as they are.
                        pass.stream = v::first(stream);
                        stream = v::and(stream, v::lanes(zero, _mm_set1_epi32(-1)));
                    }
                    let at = pass.at.wrapping_add(i * VECTOR);
                    let (bytes, done);
                    if LAST && i == N - 1 {
                        let words = (left - i * VECTOR) / 4;
                        // SAFETY: at most eight words are left, so the mask lies in its table; blocks that are read and written
                        // back beyond them are the ICV's, which the caller promises.
                        unsafe {
                            let mask = v::load(MASKS.as_ptr().add(8 - words.min(8)).cast());
                            let all = v::load_blocks(at, words);
                            let whole = v::xor(all, v::and(stream, mask));
                            v::store_blocks(at, words, whole);
                            bytes = v::and(all, mask);
                            done = v::and(whole, mask);
                        }
                    } else {
                        // SAFETY: the caller promises whole vectors up to here.
                        unsafe {
                            bytes = v::load(at);
                            done = v::xor(bytes, stream);
                            v::store(at, done);
                        }
                    }
                    let cipher = if SEAL { done } else { bytes };
                    let reversed = if FIRST && i == 0 {
                        v::xor(v::shuffle(cipher, v::lanes(self.key.first, reverse())), v::lanes(pass.high, zero))
                    } else {
                        v::shuffle(cipher, v::broadcast(reverse()))
                    };
                    // SAFETY: three entries follow every power in the table, and `powers_for` left one a block.
                    pass.add(reversed, unsafe { v::load(pass.powers.add(v::LANES * i).cast()) });
                }
                pass.at = pass.at.wrapping_add(N * VECTOR);
                pass.powers = pass.powers.wrapping_add(v::LANES * N);
                pass.strides += 1;
                pass
            }

            #[inline]
            #[target_feature(enable = $features)]
            fn tag(&self, mut pass: Pass, bits: i64) -> __m128i {
                let zero = _mm_setzero_si128();
                let (bits, by_h) = (_mm_cvtsi64_si128(bits), self.key.powers[CHUNK]);
                let low = _mm_clmulepi64_si128::<0x00>(bits, by_h);
                let middle = _mm_xor_si128(_mm_clmulepi64_si128::<0x10>(bits, by_h), self.key.associated[0]);
                for (sum, part) in pass.sum.iter_mut().zip([low, middle, self.key.associated[1]]) {
                    *sum = v::xor(*sum, v::lanes(part, zero));
                }
                _mm_xor_si128(_mm_shuffle_epi8(hash(&pass.sum), reverse()), pass.stream)
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn hash([low, middle, high]: &[v::Vector; 3]) -> __m128i {
            reduce(v::fold(*low), v::fold(*middle), v::fold(*high))
        }

    };
}
pub(super) use gcm;
