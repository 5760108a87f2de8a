//! AES by vector instructions: VAES, VPCLMULQDQ and AVX-512, four blocks an instruction.
//!
//! Promises: what needs these instructions is reached only through [`Vaes`], and one exists only on a CPU
//! that has them; secrets decide neither a branch nor an address; keys are wiped when dropped. ESP's
//! packets are short, so all that depends on the key alone is prepared with the key, and the code of one
//! packet is straight enough for the CPU to work on its neighbours meanwhile.
//! Refuses: other machines ([`Vaes::new`] is `None`). ChaCha20-Poly1305 is aws-lc's.

mod cbc;
mod gcm;
pub(super) mod ghash;
pub(super) mod schedule;

use std::sync::Arc;

use weir_core::ipsec::{Cipher, Ciphers, Encryption, Job, KeyLength, Keys, Suite};

use super::aws_lc::{AwsLc, salted};
use super::separate;
use super::shape::Shape;
use cbc::Cbc;
use gcm::Gcm;

/// The name that [`Cipher::backend`] gives.
pub const NAME: &str = "vaes";

/// Proof that this CPU has every instruction of this module.
#[derive(Clone, Copy, Debug)]
pub struct Vaes(());

impl Vaes {
    pub fn new() -> Option<Vaes> {
        let have = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("vaes")
            && is_x86_feature_detected!("vpclmulqdq")
            && is_x86_feature_detected!("aes")
            && is_x86_feature_detected!("pclmulqdq")
            && is_x86_feature_detected!("bmi2");
        have.then_some(Vaes(()))
    }
}

impl Ciphers for Vaes {
    fn cipher(&self, suite: Suite, esn: bool, keys: &Keys) -> Result<Arc<dyn Cipher>, KeyLength> {
        keys.check(suite)?;
        let shape = Shape::new(suite, esn);
        Ok(match suite.encryption() {
            Encryption::AesGcm128 => Arc::new(AesGcm::<10>::new(*self, shape, keys)),
            Encryption::AesGcm192 => Arc::new(AesGcm::<12>::new(*self, shape, keys)),
            Encryption::AesGcm256 => Arc::new(AesGcm::<14>::new(*self, shape, keys)),
            Encryption::AesCbc128 => return self.cbc::<10>(shape, keys),
            Encryption::AesCbc192 => return self.cbc::<12>(shape, keys),
            Encryption::AesCbc256 => return self.cbc::<14>(shape, keys),
            Encryption::Null => return separate::null(shape, keys),
            Encryption::ChaCha20Poly1305 => return AwsLc.cipher(suite, esn, keys),
        })
    }

    fn random(&self) -> u64 {
        AwsLc.random()
    }

    fn digest(&self, parts: &[&[u8]]) -> [u8; 32] {
        AwsLc.digest(parts)
    }
}

impl Vaes {
    fn cbc<const ROUNDS: usize>(self, shape: Shape, keys: &Keys) -> Result<Arc<dyn Cipher>, KeyLength> {
        separate::cbc(shape, Cbc::<ROUNDS>::new(self, keys.encryption.bytes()), keys)
    }
}

/// AES-GCM with as many rounds as its key length asks for.
struct AesGcm<const ROUNDS: usize> {
    shape: Shape,
    key: Gcm<ROUNDS>,
}

impl<const ROUNDS: usize> AesGcm<ROUNDS> {
    fn new(cpu: Vaes, shape: Shape, keys: &Keys) -> AesGcm<ROUNDS> {
        let (key, salt) = salted(keys);
        AesGcm { shape, key: Gcm::new(cpu, key, salt, shape.esn) }
    }
}

impl<const ROUNDS: usize> std::fmt::Debug for AesGcm<ROUNDS> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AesGcm({})", self.shape.suite)
    }
}

impl<const ROUNDS: usize> Cipher for AesGcm<ROUNDS> {
    fn suite(&self) -> Suite {
        self.shape.suite
    }

    fn backend(&self) -> String {
        NAME.to_string()
    }

    fn seal(&self, jobs: &mut [Job<'_>]) {
        self.key.seal(jobs);
    }

    fn open(&self, jobs: &mut [Job<'_>]) {
        self.key.open(jobs);
    }
}
