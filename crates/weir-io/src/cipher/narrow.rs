//! AES by vector instructions of CPUs without AVX-512: VAES and VPCLMULQDQ on 256 bits, or AES-NI and PCLMULQDQ.
//!
//! Promises: those of [`super::vaes`]: what needs instructions is reached only through [`Vaes256`] and [`AesNi`], which exist
//! only on a CPU that has them; secrets decide neither a branch nor an address; keys are wiped when dropped.
//! Refuses: other machines. ChaCha20-Poly1305 is aws-lc's.

mod cbc;
mod gcm;
mod interleaved;
mod lanes128;
mod lanes256;

use std::sync::Arc;

use weir_core::ipsec::{Cipher, Ciphers, Encryption, Job, KeyLength, Keys, Suite};

use super::aws_lc::{AwsLc, salted};
use super::separate;
use super::shape::Shape;

/// The names that [`Cipher::backend`] gives.
pub const VAES256: &str = "vaes-256";
pub const AES_NI: &str = "aes-ni";

mod two {
    super::gcm::gcm!("avx2,vaes,vpclmulqdq,aes,pclmulqdq", super::lanes256, [1 2 3]);
}

mod one {
    super::gcm::gcm!("avx2,aes,pclmulqdq", super::lanes128, [1 2 3 4 5 6 7]);
}

mod two_chains {
    super::cbc::cbc!("avx2,vaes,aes", super::lanes256, super::Vaes256, super::VAES256);
}

mod one_chain {
    super::cbc::cbc!("avx2,aes", super::lanes128, super::AesNi, super::AES_NI);
}

/// Proof that this CPU has VAES and VPCLMULQDQ on 256 bits.
#[derive(Clone, Copy, Debug)]
pub struct Vaes256(());

/// Proof that this CPU has AES-NI and PCLMULQDQ.
#[derive(Clone, Copy, Debug)]
pub struct AesNi(());

impl Vaes256 {
    pub fn new() -> Option<Vaes256> {
        let have = AesNi::new().is_some()
            && is_x86_feature_detected!("vaes")
            && is_x86_feature_detected!("vpclmulqdq");
        have.then_some(Vaes256(()))
    }
}

impl AesNi {
    pub fn new() -> Option<AesNi> {
        let have = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("aes")
            && is_x86_feature_detected!("pclmulqdq");
        have.then_some(AesNi(()))
    }
}

/// Makes a proof's ciphers of the `Gcm` in `$module` and the `Cbc` in `$chains`.
macro_rules! ciphers {
    ($proof:ident, $cipher:ident, $module:ident, $chains:ident, $name:expr) => {
        impl Ciphers for $proof {
            fn cipher(&self, suite: Suite, esn: bool, keys: &Keys) -> Result<Arc<dyn Cipher>, KeyLength> {
                keys.check(suite)?;
                Ok(match suite.encryption() {
                    Encryption::AesGcm128 => Arc::new($cipher::<10>::new(*self, suite, esn, keys)),
                    Encryption::AesGcm192 => Arc::new($cipher::<12>::new(*self, suite, esn, keys)),
                    Encryption::AesGcm256 => Arc::new($cipher::<14>::new(*self, suite, esn, keys)),
                    Encryption::AesCbc128 => return self.cbc::<10>(suite, esn, keys),
                    Encryption::AesCbc192 => return self.cbc::<12>(suite, esn, keys),
                    Encryption::AesCbc256 => return self.cbc::<14>(suite, esn, keys),
                    Encryption::Null => return separate::null(Shape::new(suite, esn), keys),
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

        impl $proof {
            fn cbc<const ROUNDS: usize>(
                self,
                suite: Suite,
                esn: bool,
                keys: &Keys,
            ) -> Result<Arc<dyn Cipher>, KeyLength> {
                let key = $chains::Cbc::<ROUNDS>::new(self, keys.encryption.bytes());
                separate::cbc(Shape::new(suite, esn), key, keys)
            }
        }

        struct $cipher<const ROUNDS: usize> {
            suite: Suite,
            key: $module::Gcm<ROUNDS>,
        }

        impl<const ROUNDS: usize> $cipher<ROUNDS> {
            fn new(_: $proof, suite: Suite, esn: bool, keys: &Keys) -> Self {
                let (key, salt) = salted(keys);
                // SAFETY: the proof exists only where these instructions do.
                let key = unsafe { $module::Gcm::prepare(key, salt, esn) };
                $cipher { suite, key }
            }
        }

        impl<const ROUNDS: usize> std::fmt::Debug for $cipher<ROUNDS> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({})", $name, self.suite)
            }
        }

        impl<const ROUNDS: usize> Cipher for $cipher<ROUNDS> {
            fn suite(&self) -> Suite {
                self.suite
            }

            fn backend(&self) -> String {
                $name.to_string()
            }

            fn seal(&self, jobs: &mut [Job<'_>]) {
                // SAFETY: it is made only by a proof, which exists only where these instructions do.
                unsafe { self.key.seal(jobs) }
            }

            fn open(&self, jobs: &mut [Job<'_>]) {
                // SAFETY: it is made only by a proof, which exists only where these instructions do.
                unsafe { self.key.open(jobs) }
            }
        }
    };
}

ciphers!(Vaes256, Two, two, two_chains, VAES256);
ciphers!(AesNi, One, one, one_chain, AES_NI);
