//! Suites, keys and packets for the tests of ciphers: repeatable, never random.

use weir_core::ipsec::{Encryption, Keys, Secret, Suite};

/// Every suite there is, NULL alone included.
pub fn suites() -> Vec<Suite> {
    let null = Suite::new(Encryption::Null, None, true).expect("allowed out loud");
    Suite::all().into_iter().chain([null]).collect()
}

/// Bytes that look random and are not.
pub fn noise(len: usize, seed: u8) -> Vec<u8> {
    let mut state = u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(next).collect()
}

pub fn keys(suite: Suite, seed: u8) -> Keys {
    let encryption = suite.encryption().key_len() + suite.encryption().salt_len();
    let integrity = suite.integrity().map_or(0, |i| i.key_len());
    Keys {
        encryption: Secret::new(noise(encryption, seed)),
        integrity: Secret::new(noise(integrity, seed ^ 0x55)),
    }
}

/// An ESP packet before sealing: `len` bytes of payload, padded, with a number for the IV; the
/// ICV is room.
pub fn packet(suite: Suite, len: usize, sequence: u64, seed: u8) -> Vec<u8> {
    let mut packet = noise(len + suite.overhead(len), seed);
    packet[..4].copy_from_slice(&0x0102_0304u32.to_be_bytes());
    packet[4..8].copy_from_slice(&(sequence as u32).to_be_bytes());
    if suite.iv_len() > 0 {
        packet[suite.iv_len()..8 + suite.iv_len()].copy_from_slice(&sequence.to_be_bytes());
    }
    packet
}
