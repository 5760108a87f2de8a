//! What every backend of ESP ciphers promises for every suite: what was sealed opens, what was changed
//! does not, what cannot be a packet is refused without a panic.

use std::sync::Arc;

use proptest::prelude::*;
use weir_core::ipsec::{Cipher, Ciphers, Job, Keys, Secret, Suite};
use weir_io::cipher;

use crate::suites::{keys, packet, suites};

fn backends() -> Vec<Arc<dyn Ciphers>> {
    cipher::BACKENDS.into_iter().filter_map(cipher::by_name).chain([cipher::best()]).collect()
}

fn seal(cipher: &dyn Cipher, packet: &mut [u8], sequence: u64) {
    cipher.seal(&mut [Job { packet, sequence, authentic: false }]);
}

fn open(cipher: &dyn Cipher, packet: &mut [u8], sequence: u64) -> bool {
    let mut jobs = [Job { packet, sequence, authentic: false }];
    cipher.open(&mut jobs);
    jobs[0].authentic
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_was_sealed_opens_and_nothing_else_does(
        pick in any::<prop::sample::Index>(),
        len in 0usize..2000,
        sequence in any::<u64>(),
        esn in any::<bool>(),
        seed in any::<u8>(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0u32..8), 1..8),
    ) {
        let suites = suites();
        let suite = *pick.get(&suites);
        for backend in backends() {
            let cipher = backend.cipher(suite, esn, &keys(suite, seed)).expect("keys of the right length");
            let plain = packet(suite, len, sequence, seed);
            let mut sealed = plain.clone();
            seal(&*cipher, &mut sealed, sequence);
            prop_assert_eq!(&sealed[..8], &plain[..8], "the header is not encrypted");
            let mut opened = sealed.clone();
            prop_assert!(open(&*cipher, &mut opened, sequence), "{suite}");
            let body = 8 + suite.iv_len()..plain.len() - suite.icv_len();
            prop_assert_eq!(&opened[body.clone()], &plain[body], "{}", suite);
            if suite.icv_len() == 0 {
                return Ok(());
            }
            for (at, bit) in &flips {
                let mut changed = sealed.clone();
                changed[at.index(sealed.len())] ^= 1 << bit;
                prop_assert!(!open(&*cipher, &mut changed, sequence), "{suite}");
            }
            if esn {
                let mut other = sealed.clone();
                prop_assert!(!open(&*cipher, &mut other, sequence ^ (1 << 40)), "{suite}: another high half");
            }
        }
    }
}

#[test]
fn a_packet_too_short_or_misaligned_is_not_authentic_and_is_never_sent_as_it_is() {
    for suite in suites() {
        for backend in backends() {
            let cipher = backend.cipher(suite, false, &keys(suite, 1)).expect("keys of the right length");
            let fixed = 8 + suite.iv_len() + suite.icv_len();
            for len in (0..=fixed).chain([fixed + 1, fixed + 3, fixed + 5, fixed + 63]) {
                let mut bytes = vec![0xa5; len];
                assert!(!open(&*cipher, &mut bytes, 1), "{suite}: {len} bytes");
                let mut bytes = vec![0xa5; len];
                seal(&*cipher, &mut bytes, 1);
                assert!(bytes.iter().all(|&b| b == 0), "{suite}: {len} bytes");
            }
        }
    }
}

#[test]
fn packets_of_all_lengths_share_a_batch() {
    for suite in suites() {
        for backend in backends() {
            let cipher = backend.cipher(suite, true, &keys(suite, 9)).expect("keys of the right length");
            let lens = [0, 1, 52, 1388, 16, 488, 31, 9000, 64, 2, 100, 250, 1500, 48, 333, 47, 1024];
            let sequence = |i: usize| (7u64 << 32) + i as u64;
            let plain: Vec<_> =
                lens.iter().enumerate().map(|(i, &len)| packet(suite, len, sequence(i), 3)).collect();
            let mut batch = plain.clone();
            let mut jobs: Vec<_> = (0..)
                .zip(batch.iter_mut())
                .map(|(i, packet)| Job { packet, sequence: sequence(i), authentic: false })
                .collect();
            cipher.seal(&mut jobs);
            for (i, plain) in plain.iter().enumerate() {
                let mut alone = plain.clone();
                seal(&*cipher, &mut alone, sequence(i));
                assert_eq!(*jobs[i].packet, alone, "{suite}: {} bytes", lens[i]);
            }
            if let Some(last) = jobs[3].packet.last_mut().filter(|_| suite.icv_len() > 0) {
                *last ^= 1;
            }
            cipher.open(&mut jobs);
            let forged: Vec<_> = (0..lens.len()).filter(|&i| !jobs[i].authentic).collect();
            assert_eq!(forged, if suite.icv_len() > 0 { vec![3] } else { vec![] }, "{suite}");
        }
    }
}

#[test]
fn no_two_numbers_make_the_same_iv() {
    for suite in Suite::all().into_iter().filter(|s| s.iv_len() > 0) {
        for backend in backends() {
            let cipher = backend.cipher(suite, true, &keys(suite, 5)).expect("keys of the right length");
            let mut seen = std::collections::HashSet::new();
            for sequence in (0..300).chain((1 << 32)..(1 << 32) + 300) {
                let mut bytes = packet(suite, 20, sequence, 5);
                seal(&*cipher, &mut bytes, sequence);
                assert!(seen.insert(bytes[8..8 + suite.iv_len()].to_vec()), "{suite}: {sequence}");
            }
        }
    }
}

#[test]
fn keys_of_another_length_are_refused() {
    let suite = Suite::AES_GCM_128;
    let keys = Keys { encryption: Secret::new(vec![0; 16]), integrity: Secret::new(Vec::new()) };
    for backend in backends() {
        assert!(backend.cipher(suite, false, &keys).is_err(), "16 bytes are a key without its salt");
    }
}
