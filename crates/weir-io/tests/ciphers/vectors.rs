//! Published ESP packets (`testdata/esp/vectors.txt`) through every backend, as whole packets.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

use weir_core::ipsec::{Ciphers, Encryption, Integrity, Job, Keys, Secret, Suite};
use weir_io::cipher;

const VECTORS: &str = include_str!("../../../../testdata/esp/vectors.txt");

type Vector = BTreeMap<&'static str, Vec<u8>>;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| {
        let text = std::str::from_utf8(pair).expect("ASCII");
        u8::from_str_radix(text, 16).expect("hexadecimal digits")
    };
    digits.chunks(2).map(byte).collect()
}

/// (encryption, the vector's fields), from paragraphs of `name value` whose long values go on indented.
fn vectors() -> Vec<(Encryption, Vector)> {
    let paragraph = |text: &'static str| {
        let mut fields: Vec<(&str, String)> = Vec::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            match (line.strip_prefix("  "), fields.last_mut()) {
                (Some(more), Some((_, value))) => value.push_str(more),
                _ => fields.extend(line.split_once(' ').map(|(name, value)| (name, value.to_string()))),
            }
        }
        let suite = fields.first().filter(|(name, _)| *name == "suite")?.1.clone();
        let encryption = Encryption::ALL.into_iter().find(|e| e.name() == suite).expect("a known suite");
        Some((encryption, fields[1..].iter().map(|(name, value)| (*name, hex(value))).collect()))
    };
    VECTORS.split("\n\n").filter_map(paragraph).collect()
}

fn backends(test: &str) -> Vec<Arc<dyn Ciphers>> {
    let named = cipher::BACKENDS.iter().filter_map(|name| {
        let ciphers = cipher::by_name(name);
        if ciphers.is_none() {
            let _ = writeln!(std::io::stderr(), "SKIP {test}: the CPU has no instructions for {name}");
        }
        ciphers
    });
    named.collect()
}

fn packet(vector: &Vector, body: &str, icv: &[u8]) -> Vec<u8> {
    let associated = &vector["associated"];
    // With extended sequence numbers the middle four bytes are not sent.
    let header = [&associated[..4], &associated[associated.len() - 4..]].concat();
    [&header, &vector["iv"][..], &vector[body], icv].concat()
}

/// What was authenticated, and what is the IV: the tests choose sequence numbers that make it so.
fn sequence(vector: &Vector) -> (bool, u64) {
    let associated = &vector["associated"];
    let number = |bytes: &[u8]| bytes.iter().fold(0u64, |n, &b| n << 8 | u64::from(b));
    match associated.len() {
        12 => (true, number(&associated[4..])),
        _ => (false, number(&associated[4..])),
    }
}

#[test]
fn published_aead_packets_open() {
    let aeads: Vec<_> = vectors().into_iter().filter(|(encryption, _)| encryption.is_aead()).collect();
    assert_eq!(aeads.len(), 14 + 1);
    for ciphers in backends("published_aead_packets_open") {
        for (encryption, vector) in &aeads {
            let suite = Suite::new(*encryption, None, false).expect("an AEAD");
            let (esn, sequence) = sequence(vector);
            let keys =
                Keys { encryption: Secret::new(vector["key"].clone()), integrity: Secret::new(Vec::new()) };
            let cipher = ciphers.cipher(suite, esn, &keys).expect("a key of the suite's length");
            let mut bytes = packet(vector, "cipher", &vector["icv"]);
            let mut jobs = [Job { packet: &mut bytes, sequence, authentic: false }];
            cipher.open(&mut jobs);
            assert!(jobs[0].authentic, "{vector:02x?}");
            assert_eq!(bytes, packet(vector, "plain", &vector["icv"]));
        }
    }
}

#[test]
fn published_aead_packets_are_sealed_to_the_same_bytes() {
    let plain = |(_, vector): &(Encryption, Vector)| vector["associated"].len() == 8;
    let without_esn: Vec<_> = vectors().into_iter().filter(|(e, _)| e.is_aead()).filter(plain).collect();
    assert_eq!(without_esn.len(), 5 + 1);
    for ciphers in backends("published_aead_packets_are_sealed_to_the_same_bytes") {
        for (encryption, vector) in &without_esn {
            let suite = Suite::new(*encryption, None, false).expect("an AEAD");
            let keys =
                Keys { encryption: Secret::new(vector["key"].clone()), integrity: Secret::new(Vec::new()) };
            let cipher = ciphers.cipher(suite, false, &keys).expect("a key of the suite's length");
            // Without ESN only the header is authenticated, so the IV is free to be the vector's.
            let iv = vector["iv"].iter().fold(0u64, |n, &b| n << 8 | u64::from(b));
            let mut bytes = packet(vector, "plain", &[0; 16]);
            cipher.seal(&mut [Job { packet: &mut bytes, sequence: iv, authentic: false }]);
            assert_eq!(bytes, packet(vector, "cipher", &vector["icv"]));
        }
    }
}

#[test]
fn published_cbc_packets_open() {
    let cbc: Vec<_> = vectors().into_iter().filter(|(encryption, _)| !encryption.is_aead()).collect();
    assert_eq!(cbc.len(), 4);
    for ciphers in backends("published_cbc_packets_open") {
        for (encryption, vector) in &cbc {
            let integrity = Some(Integrity::HmacSha256_128);
            let suite = |encryption| Suite::new(encryption, integrity, false).expect("a suite");
            let keys = |encryption| Keys { encryption, integrity: Secret::new(vec![7; 32]) };
            // They came without an ICV: NULL encryption under the same integrity key gives them one.
            let null = ciphers.cipher(suite(Encryption::Null), false, &keys(Secret::new(Vec::new())));
            let mut bytes = packet(vector, "cipher", &[0; 16]);
            let mut jobs = [Job { packet: &mut bytes, sequence: 1, authentic: false }];
            null.expect("keys of NULL").seal(&mut jobs);
            let key = Secret::new(vector["key"].clone());
            let cipher = ciphers.cipher(suite(*encryption), false, &keys(key)).expect("keys of CBC");
            cipher.open(&mut jobs);
            assert!(jobs[0].authentic);
            let icv = bytes[bytes.len() - 16..].to_vec();
            assert_eq!(bytes, packet(vector, "plain", &icv));
        }
    }
}
