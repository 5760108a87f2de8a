//! Key stream of one stride beside the hash of another, instruction by instruction: AES and carry-less multiplication have
//! units of their own, and a compiler that orders by dependence alone keeps one of them waiting.
//!
//! A stride is eight vectors: as many AES rounds in flight as hide the latency of one. Products are Karatsuba's, three a
//! vector instead of four; what the third multiplies is in a table of its own ([`folded`]), two vectors an entry.
//! Registers: 0 to 7 key stream, 8 to 10 sums, 11 to 13 blocks and products, 14 round key, 15 the mask that reverses bytes.

use std::arch::x86_64::*;

use zeroize::Zeroize;

use super::super::gcm_key::TABLE;
use super::gcm::{BLOCK, CHUNK};

/// Vectors of a stride.
pub const VECTORS: usize = 8;
/// Blocks of the longest packet whose counters are in the table: 10 KB.
pub const MOST: usize = 640;

/// Counters as they lie in a block, from 0.
pub static COUNTERS: [[u32; 4]; MOST + 18] = counters();

const fn counters() -> [[u32; 4]; MOST + 18] {
    let mut table = [[0; 4]; MOST + 18];
    let mut at = 0;
    while at < table.len() {
        table[at][3] = (at as u32).to_be();
        at += 1;
    }
    table
}

/// The halves of each power added up, beside those of the power `lanes` blocks on.
pub struct Folded(pub [__m128i; TABLE]);

impl Folded {
    #[target_feature(enable = "sse2")]
    pub fn new(powers: &[__m128i; TABLE], lanes: usize) -> Folded {
        let mut folded = [_mm_setzero_si128(); TABLE];
        for at in 0..TABLE - lanes {
            folded[at] = _mm_unpacklo_epi64(halves(powers[at]), halves(powers[at + lanes]));
        }
        Folded(folded)
    }
}

impl Drop for Folded {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// Both halves added up, in either half.
#[target_feature(enable = "sse2")]
fn halves(power: __m128i) -> __m128i {
    _mm_xor_si128(power, _mm_shuffle_epi32::<0x4e>(power))
}

/// Which powers the blocks hashed next have: those of a chunk of at most [`CHUNK`] blocks.
pub struct Chunk {
    /// Where in the table the chunk's first block finds its power.
    pub power: usize,
    /// Blocks from the chunk's first to the packet's last.
    left: usize,
    /// Strides of the chunk that are to be hashed.
    strides: usize,
    /// Blocks of a stride.
    wide: usize,
}

impl Chunk {
    /// The chunk that begins with the first 16 of `bytes`.
    pub fn first(bytes: usize, wide: usize) -> Chunk {
        Chunk::new(bytes.div_ceil(BLOCK), 1, wide)
    }

    /// A chunk of `before` blocks and whole strides, or of all that is left.
    fn new(left: usize, before: usize, wide: usize) -> Chunk {
        if left <= CHUNK {
            return Chunk { power: CHUNK - left, left, strides: usize::MAX, wide };
        }
        let strides = (CHUNK - before) / wide;
        let blocks = before + strides * wide;
        // The last of its blocks has H itself: what follows multiplies it on.
        Chunk { power: CHUNK + 1 - blocks, left: left - blocks, strides, wide }
    }

    /// Whether all its strides are counted and something follows them.
    pub fn is_over(&self) -> bool {
        self.strides == 0
    }

    /// Counts a stride that is to be hashed; whether it begins a chunk other than the first.
    pub fn begins(&mut self) -> bool {
        if self.strides > 0 {
            self.strides -= 1;
            return false;
        }
        *self = Chunk::new(self.left, 0, self.wide);
        self.strides -= 1;
        true
    }
}

/// One stride to encrypt and one to hash.
#[derive(Clone, Copy)]
pub struct Stride<V> {
    /// What is encrypted in place.
    pub at: *mut u8,
    /// What is hashed: the ciphertext before it when sealing, its own when opening.
    pub hashed: *const u8,
    pub powers: *const __m128i,
    pub folded: *const __m128i,
    pub counters: *const [u32; 4],
    /// The nonce in each lane, without counter, and the first round key upon it.
    pub nonce: V,
    pub rounds: *const __m128i,
}

/// An instruction of three registers.
macro_rules! three {
    ($op:literal, $r:literal, $to:literal, $a:literal, $b:literal) => {
        concat!($op, " ", $r, $to, ", ", $r, $a, ", ", $r, $b, "\n")
    };
}

/// A round of the key stream's eight registers.
macro_rules! round {
    ($r:literal, $key:literal, $n:literal) => {
        round!(@of $r, concat!($key, " ", $r, "14, xmmword ptr [{rounds} + 16*", $n, "]\n"), 0 1 2 3 4 5 6 7)
    };
    (@of $r:literal, $key:expr, $($i:literal)*) => {
        concat!($key, $(three!("vaesenc", $r, $i, $i, 14),)*)
    };
}

/// The key stream's block of vector `$i`: nonce, counter and first round key.
macro_rules! begin {
    ($r:literal, $p:literal, $w:literal, $($i:literal)*) => {
        concat!($("vpxor ", $r, $i, ", ", $r, "14, ", $p, " ptr [{counters} + ", $w, "*", $i, "]\n",)*)
    };
}

/// The last round, whose key has the bytes to encrypt upon it.
macro_rules! finish {
    ($r:literal, $p:literal, $w:literal, $key:literal, $n:literal, $($i:literal)*) => {
        concat!(
            $key, " ", $r, "14, xmmword ptr [{rounds} + 16*", $n, "]\n",
            $("vpxor ", $r, "13, ", $r, "14, ", $p, " ptr [{at} + ", $w, "*", $i, "]\n",
              "vaesenclast ", $r, $i, ", ", $r, $i, ", ", $r, "13\n",
              "vmovdqu ", $p, " ptr [{at} + ", $w, "*", $i, "], ", $r, $i, "\n",)*
        )
    };
}

/// Vector `$i` of what is hashed, its blocks turned around, in register `$to`.
macro_rules! load {
    ($r:literal, $p:literal, $w:literal, $to:literal, $i:literal) => {
        concat!(
            concat!("vmovdqu ", $r, $to, ", ", $p, " ptr [{hashed} + ", $w, "*", $i, "]\n"),
            three!("vpshufb", $r, $to, $to, 15),
        )
    };
}

/// Adds the product of register `$of` and vector `$i` of a table to the sum in register `$sum`.
macro_rules! product {
    ($r:literal, $p:literal, $w:literal, $sum:literal, $of:literal, $table:literal, $i:literal, $halves:literal) => {
        concat!(
            concat!(
                "vpclmulqdq ",
                $r,
                "13, ",
                $r,
                $of,
                ", ",
                $p,
                " ptr [{",
                $table,
                "} + ",
                $w,
                "*",
                $i,
                "], ",
                $halves,
                "\n"
            ),
            three!("vpxor", $r, $sum, $sum, 13),
        )
    };
}

/// The first half of hashing vectors `$i` and `$j`: they are loaded, and low and high products of the first.
macro_rules! hash {
    ($r:literal, $p:literal, $w:literal, $i:literal, $j:literal) => {
        concat!(
            load!($r, $p, $w, 11, $i),
            load!($r, $p, $w, 12, $j),
            product!($r, $p, $w, 8, 11, "powers", $i, "0x00"),
            product!($r, $p, $w, 10, 11, "powers", $i, "0x11"),
        )
    };
}

/// The second half: those of the second, and the middle ones of both.
macro_rules! hash_on {
    ($r:literal, $p:literal, $w:literal, $i:literal, $j:literal) => {
        concat!(
            product!($r, $p, $w, 8, 12, "powers", $j, "0x00"),
            product!($r, $p, $w, 10, 12, "powers", $j, "0x11"),
            three!("vpunpcklqdq", $r, 13, 11, 12),
            three!("vpunpckhqdq", $r, 11, 11, 12),
            three!("vpxor", $r, 11, 11, 13),
            product!($r, $p, $w, 9, 11, "folded", $i, "0x00"),
            product!($r, $p, $w, 9, 11, "folded", $i, "0x11"),
        )
    };
}

/// Makes the strides of a vector's width. `$r` names its registers, `$p` and `$w` its size, `$key` loads a round key into each lane.
macro_rules! strides {
    ($features:literal, $v:ty, $r:literal, $p:literal, $w:literal, $key:literal, $sums:tt, $nonce:tt, $mask:tt) => {
        /// Encrypts one stride and hashes another: low, middle and high sums, the middle ones Karatsuba's.
        ///
        /// # Safety
        /// A stride's bytes lie at `at` and at `hashed`, its powers and counters where the pointers say, `ROUNDS` + 1 round
        /// keys at `rounds`.
        #[inline]
        #[target_feature(enable = $features)]
        pub unsafe fn encrypt_and_hash<const ROUNDS: usize>(s: &Stride<$v>, sums: &mut [$v; 3], mask: $v) {
            macro_rules! both {
                ($last:literal, $more:expr) => {
                    strides!(@asm $sums, $nonce, $mask, s, sums, mask,
                        begin!($r, $p, $w, 0 1 2 3 4 5 6 7),
                        round!($r, $key, 1), hash!($r, $p, $w, 0, 1), round!($r, $key, 2), hash_on!($r, $p, $w, 0, 1),
                        round!($r, $key, 3), hash!($r, $p, $w, 2, 3), round!($r, $key, 4), hash_on!($r, $p, $w, 2, 3),
                        round!($r, $key, 5), hash!($r, $p, $w, 4, 5), round!($r, $key, 6), hash_on!($r, $p, $w, 4, 5),
                        round!($r, $key, 7), hash!($r, $p, $w, 6, 7), round!($r, $key, 8), hash_on!($r, $p, $w, 6, 7),
                        round!($r, $key, 9), $more,
                        finish!($r, $p, $w, $key, $last, 0 1 2 3 4 5 6 7))
                };
            }
            strides!(@rounds ROUNDS, both, $r, $key)
        }

        /// Encrypts one stride.
        ///
        /// # Safety
        /// As of [`encrypt_and_hash`], but for what is hashed.
        #[inline]
        #[target_feature(enable = $features)]
        pub unsafe fn encrypt<const ROUNDS: usize>(s: &Stride<$v>, sums: &mut [$v; 3], mask: $v) {
            macro_rules! alone {
                ($last:literal, $more:expr) => {
                    strides!(@asm $sums, $nonce, $mask, s, sums, mask,
                        begin!($r, $p, $w, 0 1 2 3 4 5 6 7),
                        round!($r, $key, 1), round!($r, $key, 2), round!($r, $key, 3), round!($r, $key, 4), round!($r, $key, 5),
                        round!($r, $key, 6), round!($r, $key, 7), round!($r, $key, 8), round!($r, $key, 9), $more,
                        finish!($r, $p, $w, $key, $last, 0 1 2 3 4 5 6 7),
                        "/* {hashed} {powers} {folded} */")
                };
            }
            strides!(@rounds ROUNDS, alone, $r, $key)
        }

        /// Hashes one stride.
        ///
        /// # Safety
        /// As of [`encrypt_and_hash`], but for what is encrypted.
        #[inline]
        #[target_feature(enable = $features)]
        pub unsafe fn hash(s: &Stride<$v>, sums: &mut [$v; 3], mask: $v) {
            strides!(@asm $sums, $nonce, $mask, s, sums, mask,
                hash!($r, $p, $w, 0, 1), hash_on!($r, $p, $w, 0, 1), hash!($r, $p, $w, 2, 3), hash_on!($r, $p, $w, 2, 3),
                hash!($r, $p, $w, 4, 5), hash_on!($r, $p, $w, 4, 5), hash!($r, $p, $w, 6, 7), hash_on!($r, $p, $w, 6, 7),
                "/* {at} {counters} {rounds} */")
        }
    };
    (@rounds $rounds:ident, $asm:ident, $r:literal, $key:literal) => {
        match $rounds {
            10 => $asm!(10, ""),
            12 => $asm!(12, concat!(round!($r, $key, 10), round!($r, $key, 11))),
            _ => $asm!(14, concat!(round!($r, $key, 10), round!($r, $key, 11), round!($r, $key, 12), round!($r, $key, 13))),
        }
    };
    (@asm [$low:tt $middle:tt $high:tt], $nonce:tt, $mask_register:tt, $s:ident, $sums:ident, $mask:ident, $($text:expr),+ $(,)?) => {
        // SAFETY: what is read and written is what the caller promises; the registers are named, flags and stack untouched.
        unsafe {
            std::arch::asm!(
                $($text,)+
                at = in(reg) $s.at,
                hashed = in(reg) $s.hashed,
                powers = in(reg) $s.powers,
                folded = in(reg) $s.folded,
                counters = in(reg) $s.counters,
                rounds = in(reg) $s.rounds,
                inout($low) $sums[0],
                inout($middle) $sums[1],
                inout($high) $sums[2],
                inout($nonce) $s.nonce => _,
                in($mask_register) $mask,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
                out("xmm6") _, out("xmm7") _, out("xmm11") _, out("xmm12") _, out("xmm13") _,
                options(nostack, preserves_flags),
            )
        }
    };
}

/// Strides of 16 blocks: VAES and VPCLMULQDQ on 256 bits.
pub mod by256 {
    use std::arch::x86_64::*;

    use super::Stride;

    strides!(
        "avx2,vaes,vpclmulqdq",
        __m256i,
        "ymm",
        "ymmword",
        32,
        "vbroadcasti128",
        ["ymm8" "ymm9" "ymm10"],
        "ymm14",
        "ymm15"
    );
}

/// Strides of eight blocks: AES-NI and PCLMULQDQ.
pub mod by128 {
    use std::arch::x86_64::*;

    use super::Stride;

    strides!(
        "avx2,aes,pclmulqdq",
        __m128i,
        "xmm",
        "xmmword",
        16,
        "vmovdqa",
        ["xmm8" "xmm9" "xmm10"],
        "xmm14",
        "xmm15"
    );
}
