//! AES-CBC of ESP packets by vectors of one or two blocks: one source, made for each width ([`super::super::cbc`]).
//!
//! Eight vectors are encrypted at once, which fill the latency of an AES round: eight packets or sixteen. A packet is decrypted
//! from its end to its beginning, so that the ciphertext before a block is still there when the block needs it.

/// Makes `Cbc` of `$lanes`, whose instructions are `$features` and are there where a `$proof` is.
macro_rules! cbc {
    ($features:literal, $lanes:path, $proof:path, $name:expr) => {
        use std::arch::x86_64::*;

        use weir_core::ipsec::Job;

        use crate::cipher::cbc::{BLOCK, Lanes, Schedules, side_by_side};
        use crate::cipher::separate::Blocks;
        use crate::cipher::shape::Shape;
        use $lanes as v;

        const VECTOR: usize = BLOCK * v::LANES;
        /// Vectors encrypted at once.
        const VECTORS: usize = 8;
        const LANES: usize = v::LANES * VECTORS;
        /// Blocks decrypted at once.
        const STRIDE: usize = 8;

        /// A key.
        pub struct Cbc<const ROUNDS: usize>(Box<Schedules>);

        impl<const ROUNDS: usize> Blocks for Cbc<ROUNDS> {
            const NAME: Option<&str> = Some($name);

            fn encrypt(&self, shape: &Shape, jobs: &mut [Job<'_>]) {
                side_by_side(shape, jobs, |lanes, run| {
                    // SAFETY: a key is made only by a proof, which exists only where these instructions do; of lanes
                    // `side_by_side` promises what `run` asks for.
                    unsafe { self.run(lanes, run) }
                });
            }

            fn decrypt(&self, iv_and_body: &mut [u8]) {
                // SAFETY: a key is made only by a proof, which exists only where these instructions do.
                unsafe { self.decrypt_blocks(iv_and_body) }
            }
        }

        impl<const ROUNDS: usize> Cbc<ROUNDS> {
            /// `key` has the length that goes with `ROUNDS`.
            pub fn new(_: $proof, key: &[u8]) -> Cbc<ROUNDS> {
                // SAFETY: the proof exists only where AES does.
                Cbc(unsafe { Schedules::new(key, ROUNDS) })
            }

            /// Encrypts `run` blocks of every lane.
            ///
            /// # Safety
            /// Every lane's pointer is good for `run` blocks; two lanes share blocks only if they share a chain.
            #[target_feature(enable = $features)]
            unsafe fn run(&self, lanes: &mut Lanes<LANES>, run: usize) {
                let keys = &self.0.encrypt;
                let mut states = [v::broadcast(_mm_setzero_si128()); VECTORS];
                let (at, _) = lanes.at.as_chunks::<{ v::LANES }>();
                for i in 0..VECTORS {
                    // SAFETY: as many chains are a vector.
                    states[i] = unsafe { v::load(lanes.chains.as_ptr().add(v::LANES * i).cast()) };
                }
                let whitening = v::broadcast(keys[0]);
                for block in 0..run {
                    for i in 0..VECTORS {
                        // SAFETY: the caller's promise.
                        let plain = unsafe { v::gather(&at[i], block * BLOCK) };
                        states[i] = v::xor(states[i], v::xor(plain, whitening));
                    }
                    for round in 1..ROUNDS {
                        let key = v::broadcast(keys[round]);
                        for i in 0..VECTORS {
                            states[i] = v::round(states[i], key);
                        }
                    }
                    let key = v::broadcast(keys[ROUNDS]);
                    for i in 0..VECTORS {
                        states[i] = v::last_round(states[i], key);
                        // SAFETY: the caller's promise.
                        unsafe { v::scatter(&at[i], block * BLOCK, states[i]) };
                    }
                }
                for i in 0..VECTORS {
                    // SAFETY: as many chains are a vector.
                    unsafe { v::store(lanes.chains.as_mut_ptr().add(v::LANES * i).cast(), states[i]) };
                }
                for at in &mut lanes.at {
                    *at = at.wrapping_add(run * BLOCK);
                }
            }

            /// Decrypts what follows the first block.
            #[target_feature(enable = $features)]
            fn decrypt_blocks(&self, iv_and_body: &mut [u8]) {
                let mut left = (iv_and_body.len() / BLOCK).saturating_sub(1);
                let start = iv_and_body.as_mut_ptr();
                // SAFETY: `left` blocks of the body are still to be decrypted, and the IV lies before them.
                unsafe {
                    while left >= STRIDE {
                        left -= STRIDE;
                        self.stride::<{ STRIDE / v::LANES }>(start.add(left * BLOCK));
                    }
                    while left >= v::LANES {
                        left -= v::LANES;
                        self.stride::<1>(start.add(left * BLOCK));
                    }
                    if left > 0 {
                        self.block(start);
                    }
                }
            }

            /// Decrypts the `N` vectors behind the block at `chain`.
            ///
            /// # Safety
            /// As much lies there.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn stride<const N: usize>(&self, chain: *mut u8) {
                let keys = &self.0.decrypt;
                let mut states = [v::broadcast(_mm_setzero_si128()); N];
                let whitening = v::broadcast(keys[0]);
                for i in 0..N {
                    // SAFETY: the caller's promise.
                    states[i] = v::xor(unsafe { v::load(chain.add(BLOCK + i * VECTOR)) }, whitening);
                }
                for round in 1..ROUNDS {
                    let key = v::broadcast(keys[round]);
                    for i in 0..N {
                        states[i] = v::inverse_round(states[i], key);
                    }
                }
                let key = v::broadcast(keys[ROUNDS]);
                for i in 0..N {
                    // SAFETY: the caller's promise.
                    let chain = unsafe { v::load(chain.add(i * VECTOR)) };
                    states[i] = v::last_inverse_round(states[i], v::xor(key, chain));
                }
                for i in 0..N {
                    // SAFETY: the caller's promise.
                    unsafe { v::store(chain.add(BLOCK + i * VECTOR), states[i]) };
                }
            }

            /// Decrypts the block behind the one at `chain`.
            ///
            /// # Safety
            /// Both lie there.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn block(&self, chain: *mut u8) {
                let keys = &self.0.decrypt;
                // SAFETY: the caller's promise.
                unsafe {
                    let (iv, at) = (_mm_loadu_si128(chain.cast()), chain.add(BLOCK).cast());
                    let mut state = _mm_xor_si128(_mm_loadu_si128(at), keys[0]);
                    for round in 1..ROUNDS {
                        state = _mm_aesdec_si128(state, keys[round]);
                    }
                    _mm_storeu_si128(at, _mm_aesdeclast_si128(state, _mm_xor_si128(keys[ROUNDS], iv)));
                }
            }
        }
    };
}
pub(super) use cbc;
