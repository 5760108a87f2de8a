//! How long a key of a counter-mode cipher is used where the file does not say (docs/ipsec.md has the arithmetic).
//!
//! Promises: an AEAD's SA always has a hard limit of packets and of bytes, and a soft one before it. Leaves
//! alone what the file says, more or less than this.

use weir_core::ipsec::Suite;
use weir_core::ipsec::sa::Lifetime;

/// 2^36: two keys' lives whose numbers were lost draw IVs that meet with a probability of 2^-27; four hours at 5 Mpps.
pub const PACKETS: u64 = 1 << 36;
/// 2^44 are at most 2^40.2 blocks with what surrounds them: an advantage below 2^-48 over a random permutation.
pub const BYTES: u64 = 1 << 44;

/// The soft and hard lifetimes of an SA of this suite.
pub fn with_defaults(suite: Suite, mut soft: Lifetime, mut hard: Lifetime) -> (Lifetime, Lifetime) {
    if suite.encryption().is_aead() {
        fill(&mut soft.packets, &mut hard.packets, PACKETS);
        fill(&mut soft.bytes, &mut hard.bytes, BYTES);
    }
    (soft, hard)
}

/// An eighth of the default is left when the soft one is reached: half an hour of those four.
fn fill(soft: &mut Option<u64>, hard: &mut Option<u64>, usual: u64) {
    if hard.is_none() {
        *hard = Some(usual);
        soft.get_or_insert(usual / 8 * 7);
    }
}
