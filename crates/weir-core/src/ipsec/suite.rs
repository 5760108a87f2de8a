//! Algorithms: what an SA encrypts and authenticates with, by the names operators write.
//!
//! Promises: every length ESP needs (key, salt, IV, block, ICV) is a property of the suite, from one
//! table. Refuses: encryption without integrity; NULL with NULL.

use std::fmt;

/// Encryption, RFC 2410, 3602, 4106 and 7634.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Encryption {
    Null,
    AesGcm128,
    AesGcm192,
    AesGcm256,
    AesCbc128,
    AesCbc192,
    AesCbc256,
    ChaCha20Poly1305,
}

/// Integrity where the encryption brings none: RFC 2404 and 4868.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Integrity {
    HmacSha1_96,
    HmacSha256_128,
    HmacSha384_192,
    HmacSha512_256,
}

impl Encryption {
    pub const ALL: [Encryption; 8] = [
        Encryption::Null,
        Encryption::AesGcm128,
        Encryption::AesGcm192,
        Encryption::AesGcm256,
        Encryption::AesCbc128,
        Encryption::AesCbc192,
        Encryption::AesCbc256,
        Encryption::ChaCha20Poly1305,
    ];

    /// The name in configurations and reports.
    pub fn name(self) -> &'static str {
        match self {
            Encryption::Null => "null",
            Encryption::AesGcm128 => "aes-gcm-128",
            Encryption::AesGcm192 => "aes-gcm-192",
            Encryption::AesGcm256 => "aes-gcm-256",
            Encryption::AesCbc128 => "aes-cbc-128",
            Encryption::AesCbc192 => "aes-cbc-192",
            Encryption::AesCbc256 => "aes-cbc-256",
            Encryption::ChaCha20Poly1305 => "chacha20-poly1305",
        }
    }

    /// Bytes of key without the salt.
    pub fn key_len(self) -> usize {
        match self {
            Encryption::Null => 0,
            Encryption::AesGcm128 | Encryption::AesCbc128 => 16,
            Encryption::AesGcm192 | Encryption::AesCbc192 => 24,
            Encryption::AesGcm256 | Encryption::AesCbc256 | Encryption::ChaCha20Poly1305 => 32,
        }
    }

    /// Bytes of salt that follow the key (RFC 4106 8.1, RFC 7634 2).
    pub fn salt_len(self) -> usize {
        if self.is_aead() { 4 } else { 0 }
    }

    /// Bytes of IV in each packet.
    pub fn iv_len(self) -> usize {
        match self {
            Encryption::Null => 0,
            _ if self.is_aead() => 8,
            _ => 16,
        }
    }

    /// What the encrypted part is a multiple of: a cipher block, and 4 where there is none (RFC 4303 2.4).
    pub fn alignment(self) -> usize {
        match self {
            Encryption::AesCbc128 | Encryption::AesCbc192 | Encryption::AesCbc256 => 16,
            _ => 4,
        }
    }

    /// Encrypts and authenticates at once.
    pub fn is_aead(self) -> bool {
        matches!(
            self,
            Encryption::AesGcm128
                | Encryption::AesGcm192
                | Encryption::AesGcm256
                | Encryption::ChaCha20Poly1305
        )
    }
}

impl Integrity {
    pub const ALL: [Integrity; 4] = [
        Integrity::HmacSha1_96,
        Integrity::HmacSha256_128,
        Integrity::HmacSha384_192,
        Integrity::HmacSha512_256,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Integrity::HmacSha1_96 => "hmac-sha1-96",
            Integrity::HmacSha256_128 => "hmac-sha2-256-128",
            Integrity::HmacSha384_192 => "hmac-sha2-384-192",
            Integrity::HmacSha512_256 => "hmac-sha2-512-256",
        }
    }

    /// Bytes of key: the hash's output (RFC 2404 3, RFC 4868 2.1.1).
    pub fn key_len(self) -> usize {
        match self {
            Integrity::HmacSha1_96 => 20,
            Integrity::HmacSha256_128 => 32,
            Integrity::HmacSha384_192 => 48,
            Integrity::HmacSha512_256 => 64,
        }
    }

    pub fn icv_len(self) -> usize {
        match self {
            Integrity::HmacSha1_96 => 12,
            Integrity::HmacSha256_128 => 16,
            Integrity::HmacSha384_192 => 24,
            Integrity::HmacSha512_256 => 32,
        }
    }
}

/// A combination an SA can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Suite {
    encryption: Encryption,
    integrity: Option<Integrity>,
}

/// Why two algorithms are no suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSuite {
    /// An AEAD brings its own integrity.
    IntegrityTwice(Encryption),
    /// Encryption alone lets anyone change what is encrypted (RFC 8221 4).
    NoIntegrity(Encryption),
}

impl Suite {
    pub const AES_GCM_128: Suite = Suite { encryption: Encryption::AesGcm128, integrity: None };

    /// `unauthenticated_null` allows NULL without integrity, for benchmarks only.
    pub fn new(
        encryption: Encryption,
        integrity: Option<Integrity>,
        unauthenticated_null: bool,
    ) -> Result<Suite, NoSuite> {
        match (encryption, integrity) {
            (e, Some(_)) if e.is_aead() => Err(NoSuite::IntegrityTwice(e)),
            (Encryption::Null, None) if unauthenticated_null => Ok(Suite { encryption, integrity }),
            (e, None) if !e.is_aead() => Err(NoSuite::NoIntegrity(e)),
            _ => Ok(Suite { encryption, integrity }),
        }
    }

    /// Every suite that protects something: the AEADs, and NULL and CBC with each integrity.
    pub fn all() -> Vec<Suite> {
        let pairs = Encryption::ALL.into_iter().flat_map(|e| {
            let integrities = [None].into_iter().chain(Integrity::ALL.map(Some));
            integrities.filter_map(move |i| Suite::new(e, i, false).ok())
        });
        pairs.collect()
    }

    pub fn encryption(self) -> Encryption {
        self.encryption
    }

    pub fn integrity(self) -> Option<Integrity> {
        self.integrity
    }

    pub fn iv_len(self) -> usize {
        self.encryption.iv_len()
    }

    pub fn alignment(self) -> usize {
        self.encryption.alignment()
    }

    pub fn icv_len(self) -> usize {
        match self.integrity {
            Some(integrity) => integrity.icv_len(),
            None if self.encryption.is_aead() => 16,
            None => 0,
        }
    }

    /// Bytes ESP adds to a payload of `len`: header, IV, padding, trailer, ICV.
    pub fn overhead(self, len: usize) -> usize {
        let padded = (len + 2).next_multiple_of(self.alignment());
        8 + self.iv_len() + (padded - len) + self.icv_len()
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.encryption.name())?;
        match self.integrity {
            Some(integrity) => write!(f, "+{}", integrity.name()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_suite_is_without_integrity_unless_asked_out_loud() {
        assert_eq!(Suite::all().len(), 4 + 4 * 4);
        assert!(Suite::all().iter().all(|s| s.icv_len() >= 12));
        assert!(Suite::new(Encryption::AesCbc128, None, true).is_err());
        assert!(Suite::new(Encryption::Null, None, true).is_ok());
    }

    #[test]
    fn overhead_is_what_rfc_4303_lays_out() {
        // 49 B: payload + 2 is 51, one below a multiple of 4.
        assert_eq!(Suite::AES_GCM_128.overhead(49), 8 + 8 + (52 - 49) + 16);
        let cbc = Suite::new(Encryption::AesCbc128, Some(Integrity::HmacSha256_128), false);
        assert_eq!(cbc.map(|s| s.overhead(14)), Ok(8 + 16 + 2 + 16));
    }
}
