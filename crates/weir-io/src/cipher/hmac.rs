//! HMAC over an ESP packet: SHA-1-96 (RFC 2404), SHA-2 truncated to half (RFC 4868).
//!
//! ```text
//! | SPI | sequence | IV | ciphertext |  then, with ESN, | high half of the sequence number |
//! ```
//!
//! Promises: ICVs are compared in constant time; the key lives in aws-lc alone, which wipes it.

use aws_lc_rs::{constant_time, hmac};
use weir_core::ipsec::{Integrity, Secret};

use super::shape::high;

/// An integrity algorithm with its key.
#[derive(Clone, Debug)]
pub struct Hmac {
    key: hmac::Key,
    esn: bool,
}

impl Hmac {
    pub fn new(integrity: Integrity, key: &Secret, esn: bool) -> Hmac {
        let algorithm = match integrity {
            Integrity::HmacSha1_96 => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
            Integrity::HmacSha256_128 => hmac::HMAC_SHA256,
            Integrity::HmacSha384_192 => hmac::HMAC_SHA384,
            Integrity::HmacSha512_256 => hmac::HMAC_SHA512,
        };
        Hmac { key: hmac::Key::new(algorithm, key.bytes()), esn }
    }

    fn tag(&self, covered: &[u8], sequence: u64) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(covered);
        if self.esn {
            context.update(&high(sequence));
        }
        context.sign()
    }

    /// Writes the ICV, as much of the tag as there is room for.
    pub fn write(&self, covered: &[u8], sequence: u64, icv: &mut [u8]) {
        let tag = self.tag(covered, sequence);
        for (to, from) in icv.iter_mut().zip(tag.as_ref()) {
            *to = *from;
        }
    }

    /// `None` when `icv` is not the beginning of the tag.
    pub fn verify(&self, covered: &[u8], sequence: u64, icv: &[u8]) -> Option<()> {
        let tag = self.tag(covered, sequence);
        constant_time::verify_slices_are_equal(tag.as_ref().get(..icv.len())?, icv).ok()
    }
}
