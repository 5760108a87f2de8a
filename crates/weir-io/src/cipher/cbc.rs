//! AES-CBC of ESP packets (RFC 3602), without its ICV: what every vector width has of it.
//!
//! Encryption is serial in a packet, each block waiting for the one before, and a batch has many packets: they go side by
//! side, and a lane that is done takes the next packet. A lane for which there is none doubles another: it reads and writes
//! what that one does. Decryption is parallel in a packet: a block needs only the ciphertext before it.
//!
//! ```text
//! encrypted   | sequence number | body 0 | body 1 …    under an IV of zero
//! sent        | IV              | cipher 0, 1 …        which makes the IV unpredictable
//! ```

#![allow(clippy::needless_range_loop)]

use std::arch::x86_64::*;

use weir_core::ipsec::Job;
use zeroize::Zeroize;

use super::shape::{HEADER, Shape};
use super::vaes::schedule::{MOST, expand};

/// Bytes of a block.
pub const BLOCK: usize = 16;

/// Round keys of both directions, wiped when they go.
#[repr(C, align(64))]
pub struct Schedules {
    pub encrypt: [__m128i; MOST],
    pub decrypt: [__m128i; MOST],
}

impl Schedules {
    /// A key of the length that goes with `rounds`, made where it stays.
    #[target_feature(enable = "aes,sse2")]
    pub fn new(key: &[u8], rounds: usize) -> Box<Schedules> {
        assert_eq!(key.len() / 4 + 6, rounds, "rounds follow from the key's length");
        let zero = [_mm_setzero_si128(); MOST];
        let mut schedules = Box::new(Schedules { encrypt: zero, decrypt: zero });
        schedules.encrypt = expand(key);
        for round in 0..=rounds {
            let key = schedules.encrypt[rounds - round];
            // The first and the last key of decryption are those of encryption as they are.
            let inner = round > 0 && round < rounds;
            schedules.decrypt[round] = if inner { _mm_aesimc_si128(key) } else { key };
        }
        schedules
    }
}

impl Drop for Schedules {
    fn drop(&mut self) {
        self.encrypt.zeroize();
        self.decrypt.zeroize();
    }
}

/// Packets being encrypted: where the next block of each is, how many are left, the last ciphertext.
#[repr(C, align(64))]
pub struct Lanes<const LANES: usize> {
    pub chains: [__m128i; LANES],
    pub at: [*mut u8; LANES],
    left: [usize; LANES],
}

/// Writes the IV of each packet that fits `shape` and encrypts its body: `encrypt` does so many blocks of every lane, moves
/// the lanes' pointers behind them and keeps the last ciphertexts. Every lane's pointer is good for as many blocks; two lanes
/// share blocks only if they share a chain.
pub fn side_by_side<const LANES: usize>(
    shape: &Shape,
    jobs: &mut [Job<'_>],
    encrypt: impl Fn(&mut Lanes<LANES>, usize),
) {
    // SAFETY: every CPU of this architecture has SSE2.
    let zero = unsafe { _mm_setzero_si128() };
    let mut waiting = jobs.iter_mut().filter_map(|job| blocks(shape, job));
    let mut lanes = Lanes { chains: [zero; LANES], at: [std::ptr::null_mut(); LANES], left: [0; LANES] };
    loop {
        for lane in 0..LANES {
            if lanes.left[lane] == 0
                && let Some(blocks) = waiting.next()
            {
                lanes.at[lane] = blocks.as_mut_ptr();
                lanes.left[lane] = blocks.len() / BLOCK;
                lanes.chains[lane] = zero;
            }
        }
        let busy = (0..LANES).filter(|&lane| lanes.left[lane] > 0);
        let Some(active) = busy.min_by_key(|&lane| lanes.left[lane]) else { break };
        let run = lanes.left[active];
        for lane in 0..LANES {
            if lanes.left[lane] == 0 {
                lanes.at[lane] = lanes.at[active];
                lanes.chains[lane] = lanes.chains[active];
            }
        }
        // Each lane has `run` blocks: those with work no less, as `run` is the least of them, and the idle ones are
        // where `active` is, in the same state.
        encrypt(&mut lanes, run);
        for left in &mut lanes.left {
            *left = left.saturating_sub(run);
        }
    }
}

/// IV and body, the IV's number alone in its place; `None` when the packet does not fit.
fn blocks<'a>(shape: &Shape, job: &'a mut Job<'_>) -> Option<&'a mut [u8]> {
    let (covered, _) = shape.covered(job.packet)?;
    let blocks = covered.get_mut(HEADER..)?;
    *blocks.first_chunk_mut()? = [0; 8];
    Some(blocks)
}
