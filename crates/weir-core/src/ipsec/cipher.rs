//! What a cipher does for ESP: seal and open a batch of packets in place.
//!
//! ```text
//! | SPI 4 | sequence 4 | IV | payload, padding, pad length, next header | ICV |
//! └──────── associated ────┘└──────────────── encrypted ───────────────┘
//! ```
//!
//! Promises: one virtual call a batch; no allocation; keys are zeroised and never printed. Every
//! implementation ([`Ciphers`]) is held against every other and against published vectors.

use std::fmt;
use std::sync::Arc;

use zeroize::Zeroizing;

use super::suite::Suite;

/// Key material: shown as its length only, zeroised when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    pub fn new(bytes: Vec<u8>) -> Secret {
        Secret(Zeroizing::new(bytes))
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.0.len())
    }
}

/// The keys of one SA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Encryption key, and behind it the salt where the algorithm has one.
    pub encryption: Secret,
    /// Empty where the suite has no separate integrity.
    pub integrity: Secret,
}

/// A key whose length is not the algorithm's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyLength {
    Encryption { got: usize, expected: usize },
    Integrity { got: usize, expected: usize },
}

impl Keys {
    /// Whether the lengths are those of `suite`.
    pub fn check(&self, suite: Suite) -> Result<(), KeyLength> {
        let expected = suite.encryption().key_len() + suite.encryption().salt_len();
        let got = self.encryption.bytes().len();
        if got != expected {
            return Err(KeyLength::Encryption { got, expected });
        }
        let expected = suite.integrity().map_or(0, |i| i.key_len());
        let got = self.integrity.bytes().len();
        if got != expected {
            return Err(KeyLength::Integrity { got, expected });
        }
        Ok(())
    }
}

/// One ESP packet, from its SPI to the end of its ICV.
#[derive(Debug, Default)]
pub struct Job<'a> {
    /// Sealing: SPI, low half of the sequence number and the plain payload with its trailer are in place;
    /// the last eight bytes of the IV hold a number this key has never had there; its other bytes and the
    /// ICV are room. Opening: as it came.
    pub packet: &'a mut [u8],
    /// The whole sequence number: with ESN its high half is authenticated and not sent (RFC 4303 2.2.1).
    pub sequence: u64,
    /// Opening: set when the packet is what the peer sealed; otherwise its bytes are worth nothing.
    pub authentic: bool,
}

/// The cipher of one SA with its keys.
pub trait Cipher: Send + Sync + fmt::Debug {
    fn suite(&self) -> Suite;

    /// Which implementation it is, for `weir show sa` and reports: `aws-lc`, `vaes`, …
    fn backend(&self) -> String;

    /// Makes each packet's IV of the number in it (as it is for an AEAD; encrypted, so that nobody can
    /// foretell it, for CBC), encrypts, writes the ICV. `packet.len()` is at least header, IV, trailer and ICV, and aligned.
    fn seal(&self, jobs: &mut [Job<'_>]);

    /// Checks each packet's ICV and decrypts it in place; sets [`Job::authentic`]. A packet too short or
    /// not aligned is not authentic.
    fn open(&self, jobs: &mut [Job<'_>]);
}

/// An implementation of ciphers.
pub trait Ciphers: Send + Sync + fmt::Debug {
    /// The cipher of an SA; `keys` were checked against `suite`.
    fn cipher(&self, suite: Suite, esn: bool, keys: &Keys) -> Result<Arc<dyn Cipher>, KeyLength>;

    /// A random number: where the IVs of an SA begin ([`super::SaState::first_iv`]).
    fn random(&self) -> u64;

    /// A hash nobody can turn around (SHA-256): what SAs are recognised by after a restart.
    fn digest(&self, parts: &[&[u8]]) -> [u8; 32];
}
