//! Names of algorithms, directions and actions, and how strongSwan, VPP and Linux spell them.
//!
//! Promises: another program's spelling is taken only where it means exactly what our word means. Letter case does not
//! count in names of algorithms, and `_` is `-`. Refuses: a name that leaves the length of a key open (`aes`,
//! `rfc4106(gcm(aes))`); a shorter check value than ours (`aes256gcm8`, and `hmac(sha256)`, which Linux cuts to 96 bits);
//! every other word for what protects less: `null` and `bypass` are written so, or not at all.

use toml::de::DeValue;
use weir_core::ipsec::sa::Direction;
use weir_core::ipsec::spd::Action;
use weir_core::ipsec::suite::{Encryption, Integrity};

use crate::config::read::{Value, alternatives};
use crate::config::source::{Complaints, write_instead};

/// VPP and Linux tools write these directions.
pub const DIRECTIONS: [(&str, Direction); 2] = [("inbound", Direction::In), ("outbound", Direction::Out)];
/// The same for a policy, which may also be for both.
pub const POLICY_DIRECTIONS: [(&str, Option<Direction>); 2] =
    [("inbound", Some(Direction::In)), ("outbound", Some(Direction::Out))];
/// strongSwan's `drop` tells nobody, as `discard` does. A `reject` or `deny` may answer with ICMP, and what an `allow`,
/// `accept`, `permit` or `pass` lets through, and whether in cleartext, differs from program to program.
pub const ACTIONS: [(&str, Action); 1] = [("drop", Action::Discard)];
/// Other spellings of an SPD's default, whose own word is `drop`.
pub const DEFAULTS: [(&str, Action); 1] = [("discard", Action::Discard)];

const ENCRYPTIONS: [(&str, Encryption); 15] = [
    ("aes128gcm16", Encryption::AesGcm128),
    ("aes192gcm16", Encryption::AesGcm192),
    ("aes256gcm16", Encryption::AesGcm256),
    ("aes128gcm128", Encryption::AesGcm128),
    ("aes192gcm128", Encryption::AesGcm192),
    ("aes256gcm128", Encryption::AesGcm256),
    ("aes-gcm-16-128", Encryption::AesGcm128),
    ("aes-gcm-16-192", Encryption::AesGcm192),
    ("aes-gcm-16-256", Encryption::AesGcm256),
    ("aes128", Encryption::AesCbc128),
    ("aes192", Encryption::AesCbc192),
    ("aes256", Encryption::AesCbc256),
    ("chacha20poly1305", Encryption::ChaCha20Poly1305),
    ("rfc7539esp(chacha20,poly1305)", Encryption::ChaCha20Poly1305),
    ("rfc7539esp(chacha20, poly1305)", Encryption::ChaCha20Poly1305),
];

const INTEGRITIES: [(&str, Integrity); 14] = [
    ("sha1", Integrity::HmacSha1_96),
    ("sha1-96", Integrity::HmacSha1_96),
    ("hmac(sha1)", Integrity::HmacSha1_96),
    ("sha256", Integrity::HmacSha256_128),
    ("sha2-256", Integrity::HmacSha256_128),
    ("sha-256-128", Integrity::HmacSha256_128),
    ("sha384", Integrity::HmacSha384_192),
    ("sha2-384", Integrity::HmacSha384_192),
    ("sha-384-192", Integrity::HmacSha384_192),
    ("hmac(sha384)", Integrity::HmacSha384_192),
    ("sha512", Integrity::HmacSha512_256),
    ("sha2-512", Integrity::HmacSha512_256),
    ("sha-512-256", Integrity::HmacSha512_256),
    ("hmac(sha512)", Integrity::HmacSha512_256),
];

/// Names of others that are no spelling of ours, and what to do about each.
const OPEN: [(&str, &str); 4] = [
    (
        "rfc4106(gcm(aes))",
        "the name leaves the length of the key open; write `\"aes-gcm-128\"`, `\"aes-gcm-192\"` or `\"aes-gcm-256\"` for a key of 20, 28 or 36 bytes with its salt",
    ),
    (
        "cbc(aes)",
        "the name leaves the length of the key open; write `\"aes-cbc-128\"`, `\"aes-cbc-192\"` or `\"aes-cbc-256\"` for a key of 16, 24 or 32 bytes",
    ),
    (
        "aes",
        "the name leaves mode and length of the key open; write for example `\"aes-gcm-256\"`, as the other end has it",
    ),
    (
        "hmac(sha256)",
        "Linux cuts this one to 96 bits unless told `auth-trunc … 128`; have it cut to 128 there and write `\"hmac-sha2-256-128\"`",
    ),
];

/// An encryption algorithm by its name or another spelling of it.
pub fn encryption(text: &str) -> Option<Encryption> {
    let text = normal(text);
    let own = Encryption::ALL.into_iter().find(|e| e.name() == text);
    own.or_else(|| ENCRYPTIONS.iter().find(|e| e.0 == text).map(|e| e.1))
}

/// An integrity algorithm by its name or another spelling of it.
pub fn integrity(text: &str) -> Option<Integrity> {
    let text = normal(text);
    let own = Integrity::ALL.into_iter().find(|i| i.name() == text);
    own.or_else(|| INTEGRITIES.iter().find(|i| i.0 == text).map(|i| i.1))
}

/// An encryption algorithm, or strongSwan's proposal of one with its integrity (`aes128-sha256`).
pub fn cipher(text: &str) -> Option<(Encryption, Option<Integrity>)> {
    if let Some(encryption) = encryption(text) {
        return Some((encryption, None));
    }
    text.match_indices(['-', '+', '/']).find_map(|(at, _)| {
        let (first, second) = (encryption(&text[..at])?, integrity(&text[at + 1..])?);
        Some((first, Some(second)))
    })
}

/// What to do about a name that was refused, given ours.
pub fn remedy(text: &str, known: &[&str]) -> String {
    let text = normal(text);
    match OPEN.iter().find(|o| o.0 == text) {
        Some((_, why)) => (*why).to_owned(),
        None => write_instead(&text, known),
    }
}

fn normal(text: &str) -> String {
    text.trim().to_ascii_lowercase().replace('_', "-")
}

/// The `cipher` of an SA.
pub fn read_cipher(
    value: &Value<'_>,
    complaints: &mut Complaints,
) -> Option<(Encryption, Option<Integrity>)> {
    named(value, &Encryption::ALL.map(Encryption::name), cipher, complaints)
}

/// The `integrity` of an SA.
pub fn read_integrity(value: &Value<'_>, complaints: &mut Complaints) -> Option<Integrity> {
    named(value, &Integrity::ALL.map(Integrity::name), integrity, complaints)
}

fn named<T>(
    value: &Value<'_>,
    known: &[&str],
    find: impl Fn(&str) -> Option<T>,
    complaints: &mut Complaints,
) -> Option<T> {
    let DeValue::String(text) = value.value else {
        value.refuse(alternatives(known), "write one of these, in quotes", complaints);
        return None;
    };
    let found = find(text);
    if found.is_none() {
        value.refuse(alternatives(known), remedy(text, known), complaints);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_write_is_taken_where_it_means_the_same() {
        for (text, expected) in [
            ("AES-GCM-256", Encryption::AesGcm256),
            ("aes256gcm16", Encryption::AesGcm256),
            ("AES_GCM_16-128", Encryption::AesGcm128),
            ("aes192gcm128", Encryption::AesGcm192),
            ("rfc7539esp(chacha20,poly1305)", Encryption::ChaCha20Poly1305),
            ("CHACHA20_POLY1305", Encryption::ChaCha20Poly1305),
            ("AES_CBC-128", Encryption::AesCbc128),
        ] {
            assert_eq!(cipher(text), Some((expected, None)), "{text}");
        }
        for (text, expected) in [
            ("HMAC_SHA2_256_128", Integrity::HmacSha256_128),
            ("sha-256-128", Integrity::HmacSha256_128),
            ("sha1-96", Integrity::HmacSha1_96),
            ("hmac(sha512)", Integrity::HmacSha512_256),
        ] {
            assert_eq!(integrity(text), Some(expected), "{text}");
        }
        let pair = Some((Encryption::AesCbc128, Some(Integrity::HmacSha256_128)));
        for text in ["aes128-sha256", "AES_CBC-128/HMAC_SHA2_256_128", "aes-cbc-128+hmac-sha2-256-128"] {
            assert_eq!(cipher(text), pair, "{text}");
        }
    }

    #[test]
    fn what_means_something_else_or_nothing_certain_is_not_taken() {
        for text in [
            "aes256gcm8",
            "aes256gcm12",
            "aes128ccm16",
            "aes",
            "aes-gcm",
            "rfc4106(gcm(aes))",
            "cbc(aes)",
            "none",
            "ecb(cipher_null)",
            "3des",
            "aes128-sha256-modp2048",
            "aes128-sha256_96",
            "",
        ] {
            assert_eq!(cipher(text), None, "{text}");
        }
        for text in ["hmac(sha256)", "sha256_96", "sha-256-96", "md5", "sha1_160", "none", ""] {
            assert_eq!(integrity(text), None, "{text}");
        }
    }

    #[test]
    fn no_remedy_names_what_protects_nothing_or_less() {
        let ciphers = Encryption::ALL.map(Encryption::name);
        for text in ["nul", "nulll", "none", "ecb(cipher_null)", "aes-gcm-512", "aes256gcm8", "x"] {
            assert_eq!(remedy(text, &ciphers), "write one of these", "{text}");
        }
        assert_eq!(remedy("aes-gcm-25", &ciphers), "write `\"aes-gcm-256\"`");
        let integrities = Integrity::ALL.map(Integrity::name);
        assert_eq!(remedy("hmac-sha2-96", &integrities), "write one of these");
        assert!(remedy("hmac(sha256)", &integrities).contains("96 bits"));
    }
}
