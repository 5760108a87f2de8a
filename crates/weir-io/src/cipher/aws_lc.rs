//! Every suite by aws-lc: the ciphers of machines without vector AES, and the oracle of ours.
//!
//! Promises: nonces and IVs are made of the sequence number alone, so that no packet waits for random
//! bytes and none repeats while sequence numbers do not. AEADs send it as their IV. CBC needs an
//! unpredictable one: the sequence number encrypted under the same key (NIST SP 800-38A appendix C).
//! Keys live in aws-lc, which wipes them.

use std::sync::Arc;

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::cipher::{
    DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext, UnboundCipherKey,
};
use aws_lc_rs::{cipher as block, digest, iv::FixedLength};
use weir_core::ipsec::{Cipher, Ciphers, Encryption, Job, KeyLength, Keys, Suite};

use super::hmac::Hmac;
use super::shape::{Associated, HEADER, Shape, nonce};

/// The name that [`Cipher::backend`] gives.
pub const NAME: &str = "aws-lc";

const BLOCK: usize = 16;

/// aws-lc's implementations.
#[derive(Clone, Copy, Debug)]
pub struct AwsLc;

impl Ciphers for AwsLc {
    fn cipher(&self, suite: Suite, esn: bool, keys: &Keys) -> Result<Arc<dyn Cipher>, KeyLength> {
        keys.check(suite)?;
        let shape = Shape::new(suite, esn);
        Ok(match suite.encryption() {
            Encryption::Null => Arc::new(Each { shape, cipher: Null(integrity(suite, esn, keys)) }),
            Encryption::AesCbc128 | Encryption::AesCbc192 | Encryption::AesCbc256 => {
                let cipher =
                    Cbc { key: CbcKey::new(keys.encryption.bytes()), hmac: integrity(suite, esn, keys) };
                Arc::new(Each { shape, cipher })
            }
            encryption => {
                let (key, salt) = salted(keys);
                let cipher = Aead { key: AeadKey::new(encryption, key), salt };
                Arc::new(Each { shape, cipher })
            }
        })
    }

    fn random(&self) -> u64 {
        let mut bytes = [0; 8];
        // The operating system's generator fails only where nothing secret could be made at all.
        aws_lc_rs::rand::fill(&mut bytes).expect("the system gives random numbers");
        u64::from_be_bytes(bytes)
    }

    fn digest(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut context = digest::Context::new(&digest::SHA256);
        parts.iter().for_each(|part| context.update(part));
        let mut digest = [0; 32];
        digest.copy_from_slice(context.finish().as_ref());
        digest
    }
}

/// The integrity algorithm of `suite`, if it has one.
pub fn integrity(suite: Suite, esn: bool, keys: &Keys) -> Option<Hmac> {
    suite.integrity().map(|integrity| Hmac::new(integrity, &keys.integrity, esn))
}

/// An AEAD's key and the salt behind it.
pub fn salted(keys: &Keys) -> (&[u8], [u8; 4]) {
    let (key, salt) = keys.encryption.bytes().split_last_chunk().expect("the length of keys was checked");
    (key, *salt)
}

/// An AEAD with 12 bytes of nonce and 16 of tag.
#[derive(Debug)]
pub struct AeadKey(LessSafeKey);

impl AeadKey {
    pub fn new(encryption: Encryption, key: &[u8]) -> AeadKey {
        let algorithm = match encryption {
            Encryption::AesGcm128 => &aead::AES_128_GCM,
            Encryption::AesGcm192 => &aead::AES_192_GCM,
            Encryption::AesGcm256 => &aead::AES_256_GCM,
            _ => &aead::CHACHA20_POLY1305,
        };
        AeadKey(LessSafeKey::new(UnboundKey::new(algorithm, key).expect("the length of keys was checked")))
    }

    /// Encrypts in place; the tag. `None` when aws-lc refuses, and then nothing of `body` is to be used.
    pub fn seal(&self, nonce: [u8; 12], associated: &[u8], body: &mut [u8]) -> Option<[u8; 16]> {
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self.0.seal_in_place_separate_tag(nonce, Aad::from(associated), body).ok()?;
        tag.as_ref().try_into().ok()
    }

    /// Decrypts in place; `None` when it is not authentic.
    pub fn open(&self, nonce: [u8; 12], associated: &[u8], body: &mut [u8], tag: &[u8]) -> Option<()> {
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.0.open_in_place_separate_tag(nonce, Aad::from(associated), tag, body).ok().map(|_| ())
    }
}

/// One packet at a time.
trait One: Send + Sync + std::fmt::Debug {
    /// `None` when it cannot be sealed.
    fn seal(&self, shape: &Shape, job: &mut Job<'_>) -> Option<()>;

    /// `None` when it cannot be authentic.
    fn open(&self, shape: &Shape, job: &mut Job<'_>) -> Option<()>;
}

#[derive(Debug)]
struct Each<C> {
    shape: Shape,
    cipher: C,
}

impl<C: One> Cipher for Each<C> {
    fn suite(&self) -> Suite {
        self.shape.suite
    }

    fn backend(&self) -> String {
        NAME.to_string()
    }

    fn seal(&self, jobs: &mut [Job<'_>]) {
        for job in jobs {
            if self.cipher.seal(&self.shape, job).is_none() {
                job.packet.fill(0);
            }
        }
    }

    fn open(&self, jobs: &mut [Job<'_>]) {
        for job in jobs {
            job.authentic = self.cipher.open(&self.shape, job).is_some();
        }
    }
}

#[derive(Debug)]
struct Aead {
    key: AeadKey,
    salt: [u8; 4],
}

impl One for Aead {
    fn seal(&self, shape: &Shape, job: &mut Job<'_>) -> Option<()> {
        let parts = shape.parts(job.packet)?;
        let associated = Associated::new(parts.header, job.sequence, shape.esn);
        let tag = self.key.seal(nonce(&self.salt, parts.iv)?, associated.bytes(), parts.body)?;
        parts.icv.copy_from_slice(&tag);
        Some(())
    }

    fn open(&self, shape: &Shape, job: &mut Job<'_>) -> Option<()> {
        let parts = shape.parts(job.packet)?;
        let associated = Associated::new(parts.header, job.sequence, shape.esn);
        self.key.open(nonce(&self.salt, parts.iv)?, associated.bytes(), parts.body, parts.icv)
    }
}

/// AES-CBC without padding of its own: ESP has padded (RFC 3602 2.4).
#[derive(Debug)]
pub struct CbcKey {
    encrypt: EncryptingKey,
    decrypt: DecryptingKey,
}

impl CbcKey {
    pub fn new(key: &[u8]) -> CbcKey {
        let algorithm = match key.len() {
            block::AES_128_KEY_LEN => &block::AES_128,
            block::AES_192_KEY_LEN => &block::AES_192,
            _ => &block::AES_256,
        };
        let unbound = || UnboundCipherKey::new(algorithm, key).expect("the length of keys was checked");
        CbcKey {
            encrypt: EncryptingKey::cbc(unbound()).expect("AES has CBC"),
            decrypt: DecryptingKey::cbc(unbound()).expect("AES has CBC"),
        }
    }

    pub fn encrypt(&self, iv: [u8; BLOCK], blocks: &mut [u8]) -> Option<()> {
        let iv = EncryptionContext::Iv128(FixedLength::from(iv));
        self.encrypt.less_safe_encrypt(blocks, iv).ok().map(|_| ())
    }

    pub fn decrypt(&self, iv: [u8; BLOCK], blocks: &mut [u8]) -> Option<()> {
        self.decrypt.decrypt(blocks, DecryptionContext::Iv128(FixedLength::from(iv))).ok().map(|_| ())
    }
}

#[derive(Debug)]
struct Cbc {
    key: CbcKey,
    hmac: Option<Hmac>,
}

impl One for Cbc {
    fn seal(&self, shape: &Shape, job: &mut Job<'_>) -> Option<()> {
        let hmac = self.hmac.as_ref()?;
        let (covered, icv) = shape.covered(job.packet)?;
        let blocks = &mut covered[HEADER..];
        *blocks.first_chunk_mut()? = [0; 8];
        // The IV's number is the first block and no IV precedes it: its ciphertext is the IV.
        self.key.encrypt([0; BLOCK], blocks)?;
        hmac.write(covered, job.sequence, icv);
        Some(())
    }

    fn open(&self, shape: &Shape, job: &mut Job<'_>) -> Option<()> {
        let (covered, icv) = shape.covered(job.packet)?;
        self.hmac.as_ref()?.verify(covered, job.sequence, icv)?;
        let (iv, body) = covered[HEADER..].split_first_chunk_mut::<BLOCK>()?;
        self.key.decrypt(*iv, body)
    }
}

/// NULL encryption (RFC 2410): integrity alone, or nothing at all.
#[derive(Debug)]
struct Null(Option<Hmac>);

impl One for Null {
    fn seal(&self, shape: &Shape, job: &mut Job<'_>) -> Option<()> {
        let (covered, icv) = shape.covered(job.packet)?;
        if let Some(hmac) = &self.0 {
            hmac.write(covered, job.sequence, icv);
        }
        Some(())
    }

    fn open(&self, shape: &Shape, job: &mut Job<'_>) -> Option<()> {
        let (covered, icv) = shape.covered(job.packet)?;
        self.0.as_ref().map_or(Some(()), |hmac| hmac.verify(covered, job.sequence, icv))
    }
}
