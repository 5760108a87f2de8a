//! Suites whose integrity stands beside their encryption: a batch is encrypted, then authenticated.
//!
//! Promises: nothing is decrypted before it is authentic; ICVs are compared in constant time.

use aws_lc_rs::constant_time;
use weir_core::ipsec::{Cipher, Integrity as Sha2, Job, Keys, Suite};

use super::cbc::Cbc;
use super::sha256::{DIGEST, HmacSha256, Message, Sha};
use crate::cipher::aws_lc::integrity;
use crate::cipher::hmac::Hmac;
use crate::cipher::shape::{HEADER, Shape, high};

/// Integrity of a batch: SHA-256 of packets two by two where the CPU has its instructions, else aws-lc's
/// one by one.
pub enum Integrity {
    Pairs(HmacSha256),
    Each(Box<Hmac>),
}

impl Integrity {
    /// `None` for a suite that has none.
    pub fn new(shape: &Shape, keys: &Keys) -> Option<Integrity> {
        match (shape.suite.integrity()?, Sha::new()) {
            (Sha2::HmacSha256_128, Some(sha)) => {
                Some(Integrity::Pairs(HmacSha256::new(sha, keys.integrity.bytes())))
            }
            _ => integrity(shape.suite, shape.esn, keys).map(|hmac| Integrity::Each(Box::new(hmac))),
        }
    }

    /// Writes the ICV of each packet that fits.
    fn write(&self, shape: &Shape, jobs: &mut [Job<'_>]) {
        match self {
            Integrity::Pairs(hmac) => two_by_two(hmac, shape, jobs, |job, tag| {
                if let Some((_, icv)) = shape.covered(job.packet) {
                    icv.iter_mut().zip(tag).for_each(|(icv, tag)| *icv = *tag);
                }
            }),
            Integrity::Each(hmac) => {
                for job in jobs {
                    if let Some((covered, icv)) = shape.covered(job.packet) {
                        hmac.write(covered, job.sequence, icv);
                    }
                }
            }
        }
    }

    /// Sets which packets are authentic.
    fn verify(&self, shape: &Shape, jobs: &mut [Job<'_>]) {
        for job in &mut *jobs {
            job.authentic = false;
        }
        match self {
            Integrity::Pairs(hmac) => two_by_two(hmac, shape, jobs, |job, tag| {
                let icv = shape.covered(job.packet).map(|(_, icv)| &*icv);
                let same = |icv: &[u8]| constant_time::verify_slices_are_equal(&tag[..icv.len()], icv);
                job.authentic = icv.is_some_and(|icv| same(icv).is_ok());
            }),
            Integrity::Each(hmac) => {
                for job in jobs {
                    let verified = shape
                        .covered(job.packet)
                        .and_then(|(covered, icv)| hmac.verify(covered, job.sequence, icv));
                    job.authentic = verified.is_some();
                }
            }
        }
    }
}

/// Hands the tag of each packet that fits to `then`.
fn two_by_two(
    hmac: &HmacSha256,
    shape: &Shape,
    jobs: &mut [Job<'_>],
    then: impl Fn(&mut Job<'_>, &[u8; DIGEST]),
) {
    let mut fitting = jobs.iter_mut().filter(|job| shape.fits(job.packet.len()));
    while let Some(a) = fitting.next() {
        match fitting.next() {
            Some(b) => {
                let high = [high(a.sequence), high(b.sequence)];
                let [first, second] =
                    hmac.tags([message(shape, a.packet, &high[0]), message(shape, b.packet, &high[1])]);
                then(a, &first);
                then(b, &second);
            }
            None => {
                let [tag] = hmac.tags([message(shape, a.packet, &high(a.sequence))]);
                then(a, &tag);
            }
        }
    }
}

/// What integrity covers of a packet that fits.
fn message<'a>(shape: &Shape, packet: &'a [u8], high: &'a [u8; 4]) -> Message<'a> {
    let bytes = &packet[..packet.len() - shape.suite.icv_len()];
    Message { bytes, more: if shape.esn { high } else { &[] } }
}

/// AES-CBC, or NULL where `key` is nothing, with integrity.
pub struct Separate<K> {
    pub shape: Shape,
    pub key: K,
    pub integrity: Integrity,
}

/// Encryption beside which integrity stands.
pub trait Blocks: Send + Sync {
    const NAME: &str;

    fn encrypt(&self, shape: &Shape, jobs: &mut [Job<'_>]);
    fn decrypt(&self, iv_and_body: &mut [u8]);
}

impl<const ROUNDS: usize> Blocks for Box<Cbc<ROUNDS>> {
    const NAME: &str = super::NAME;

    fn encrypt(&self, shape: &Shape, jobs: &mut [Job<'_>]) {
        Cbc::encrypt(self, shape, jobs);
    }

    fn decrypt(&self, iv_and_body: &mut [u8]) {
        if let Some((iv, body)) = iv_and_body.split_first_chunk_mut() {
            Cbc::decrypt(self, iv, body);
        }
    }
}

/// NULL encryption (RFC 2410).
pub struct Null;

impl Blocks for Null {
    const NAME: &str = "sha-ni";

    fn encrypt(&self, _: &Shape, _: &mut [Job<'_>]) {}
    fn decrypt(&self, _: &mut [u8]) {}
}

impl<K> std::fmt::Debug for Separate<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Separate({})", self.shape.suite)
    }
}

impl<K: Blocks> Cipher for Separate<K> {
    fn suite(&self) -> Suite {
        self.shape.suite
    }

    fn backend(&self) -> String {
        K::NAME.to_string()
    }

    fn seal(&self, jobs: &mut [Job<'_>]) {
        self.key.encrypt(&self.shape, jobs);
        self.integrity.write(&self.shape, jobs);
        let refused = jobs.iter_mut().filter(|job| !self.shape.fits(job.packet.len()));
        refused.for_each(|job| job.packet.fill(0));
    }

    fn open(&self, jobs: &mut [Job<'_>]) {
        self.integrity.verify(&self.shape, jobs);
        for job in jobs.iter_mut().filter(|job| job.authentic) {
            if let Some((covered, _)) = self.shape.covered(job.packet) {
                self.key.decrypt(&mut covered[HEADER..]);
            }
        }
    }
}
