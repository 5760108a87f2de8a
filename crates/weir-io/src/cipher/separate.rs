//! Suites whose integrity stands beside their encryption: a batch is encrypted, then authenticated.
//!
//! Promises: nothing is decrypted before it is authentic; ICVs are compared in constant time.

use std::sync::Arc;

use aws_lc_rs::constant_time;
use weir_core::ipsec::{Cipher, Ciphers, Integrity as Algorithm, Job, KeyLength, Keys, Suite};

use super::aws_lc::{self, AwsLc};
use super::hmac::Hmac;
use super::multi_hmac::{Hash, Message, MultiHmac};
use super::sha_ni::{self, PAIR, Sha1, Sha256, ShaNi};
use super::sha512::{self, Avx2, FOUR, Sha384, Sha512};
use super::shape::{HEADER, Shape, high};

/// HMAC-SHA-1 and HMAC-SHA-256 of packets two by two.
pub type Pairs<H> = MultiHmac<H, { sha_ni::BLOCK }, PAIR>;

/// HMAC-SHA-384 and HMAC-SHA-512 of packets four by four.
pub type Fours<H> = MultiHmac<H, { sha512::BLOCK }, FOUR>;

/// Integrity of a batch.
trait Integrity: Send + Sync {
    fn name(&self) -> &'static str;

    /// Writes the ICV of each packet that fits.
    fn write(&self, shape: &Shape, jobs: &mut [Job<'_>]);

    /// Sets which packets are authentic.
    fn verify(&self, shape: &Shape, jobs: &mut [Job<'_>]);
}

/// The integrity of several packets at once where the CPU has the instructions; `None` elsewhere, and for a suite without integrity.
fn several(suite: Suite, keys: &Keys) -> Option<Box<dyn Integrity>> {
    let key = keys.integrity.bytes();
    Some(match suite.integrity()? {
        Algorithm::HmacSha1_96 => Box::new(Pairs::<Sha1>::new(ShaNi::new()?, key)),
        Algorithm::HmacSha256_128 => Box::new(Pairs::<Sha256>::new(ShaNi::new()?, key)),
        Algorithm::HmacSha384_192 => Box::new(Fours::<Sha384>::new(Avx2::new()?, key)),
        Algorithm::HmacSha512_256 => Box::new(Fours::<Sha512>::new(Avx2::new()?, key)),
    })
}

impl<H: Hash<BLOCK, LANES>, const BLOCK: usize, const LANES: usize> Integrity for MultiHmac<H, BLOCK, LANES> {
    fn name(&self) -> &'static str {
        H::NAME
    }

    fn write(&self, shape: &Shape, jobs: &mut [Job<'_>]) {
        let fitting = jobs.iter_mut().filter_map(|job| {
            let (covered, icv) = shape.covered(job.packet)?;
            Some((message(shape, covered, job.sequence), icv))
        });
        self.tags(fitting, |icv, tag| {
            let len = icv.len();
            icv.copy_from_slice(&tag[..len]);
        });
    }

    fn verify(&self, shape: &Shape, jobs: &mut [Job<'_>]) {
        let fitting = jobs.iter_mut().filter_map(|job| {
            job.authentic = false;
            let (covered, icv) = shape.covered(job.packet)?;
            Some((message(shape, covered, job.sequence), (icv, &mut job.authentic)))
        });
        self.tags(fitting, |(icv, authentic), tag| {
            *authentic = constant_time::verify_slices_are_equal(&tag[..icv.len()], icv).is_ok();
        });
    }
}

/// What integrity covers of a packet.
fn message<'a>(shape: &Shape, covered: &'a [u8], sequence: u64) -> Message<'a> {
    Message { bytes: covered, more: shape.esn.then(|| high(sequence)) }
}

/// aws-lc's, of one packet after the other.
impl Integrity for Hmac {
    fn name(&self) -> &'static str {
        aws_lc::NAME
    }

    fn write(&self, shape: &Shape, jobs: &mut [Job<'_>]) {
        for job in jobs {
            if let Some((covered, icv)) = shape.covered(job.packet) {
                Hmac::write(self, covered, job.sequence, icv);
            }
        }
    }

    fn verify(&self, shape: &Shape, jobs: &mut [Job<'_>]) {
        for job in jobs {
            let verified = shape
                .covered(job.packet)
                .and_then(|(covered, icv)| Hmac::verify(self, covered, job.sequence, icv));
            job.authentic = verified.is_some();
        }
    }
}

/// Encryption beside which integrity stands.
pub trait Blocks: Send + Sync {
    /// What [`Cipher::backend`] says of it; nothing where nothing is encrypted.
    const NAME: Option<&str>;

    /// Encrypts each packet that fits.
    fn encrypt(&self, shape: &Shape, jobs: &mut [Job<'_>]);

    /// Decrypts a packet in place.
    fn decrypt(&self, iv_and_body: &mut [u8]);
}

/// NULL encryption (RFC 2410).
struct Null;

impl Blocks for Null {
    const NAME: Option<&str> = None;

    fn encrypt(&self, _: &Shape, _: &mut [Job<'_>]) {}
    fn decrypt(&self, _: &mut [u8]) {}
}

/// AES-CBC by `key`, with integrity.
pub fn cbc(shape: Shape, key: impl Blocks + 'static, keys: &Keys) -> Result<Arc<dyn Cipher>, KeyLength> {
    let one_by_one =
        || aws_lc::integrity(shape.suite, shape.esn, keys).map(|hmac| Box::new(hmac) as Box<dyn Integrity>);
    match several(shape.suite, keys).or_else(one_by_one) {
        Some(integrity) => Ok(Arc::new(Separate { shape, key, integrity })),
        None => AwsLc.cipher(shape.suite, shape.esn, keys),
    }
}

/// NULL encryption, with integrity or without.
pub fn null(shape: Shape, keys: &Keys) -> Result<Arc<dyn Cipher>, KeyLength> {
    match several(shape.suite, keys) {
        Some(integrity) => Ok(Arc::new(Separate { shape, key: Null, integrity })),
        None => AwsLc.cipher(shape.suite, shape.esn, keys),
    }
}

/// Encryption and the integrity beside it.
struct Separate<K> {
    shape: Shape,
    key: K,
    integrity: Box<dyn Integrity>,
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
        let integrity = self.integrity.name();
        K::NAME.map_or_else(|| integrity.to_string(), |name| format!("{name}+{integrity}"))
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
