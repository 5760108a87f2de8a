//! Our vector code of each width against aws-lc: the same bytes sealed, the same packets opened, the same refused.
//!
//! Packets lie between guard bytes, because vector code that reads or writes a tail wrongly harms its
//! neighbours first.

use std::io::Write;
use std::sync::Arc;

use weir_core::ipsec::{Cipher, Encryption, Integrity, Job, Suite};
use weir_io::cipher;

use crate::suites::{keys, packet, suites};

pub const GUARD: usize = 64;

/// Every `step`th length to 2048, and a sample beyond, around what a chunk and a jumbo frame hold.
fn lengths(step: usize) -> impl Iterator<Item = usize> {
    let sample = [3000, 3055, 3056, 3057, 3072, 4095, 4096, 4591, 4592, 4608, 6128, 8952, 8999, 9000];
    (0..=2048).step_by(step).chain(sample)
}

/// One SA under both backends.
pub struct Pair {
    pub name: String,
    pub suite: Suite,
    pub ours: Arc<dyn Cipher>,
    pub theirs: Arc<dyn Cipher>,
}

pub fn pairs(test: &str, wanted: impl Fn(Encryption) -> bool) -> Vec<Pair> {
    let Some(theirs) = cipher::by_name("aws-lc") else { return Vec::new() };
    let mut pairs = Vec::new();
    for name in &cipher::BACKENDS[1..] {
        let Some(ours) = cipher::by_name(name) else {
            let _ = writeln!(std::io::stderr(), "SKIP {test}: the CPU has no instructions for {name}");
            continue;
        };
        for suite in suites().into_iter().filter(|suite| wanted(suite.encryption())) {
            for esn in [false, true] {
                let keys = keys(suite, 77);
                let pair = Pair {
                    name: format!("{name}: {suite}, esn {esn}"),
                    suite,
                    ours: ours.cipher(suite, esn, &keys).expect("keys of the right length"),
                    theirs: theirs.cipher(suite, esn, &keys).expect("keys of the right length"),
                };
                // What a narrower backend has from aws-lc says nothing.
                if pair.ours.backend() != pair.theirs.backend() || *name == "vaes" {
                    pairs.push(pair);
                }
            }
        }
    }
    pairs
}

fn gcm(encryption: Encryption) -> bool {
    use Encryption::*;
    matches!(encryption, AesGcm128 | AesGcm192 | AesGcm256)
}

fn cbc(encryption: Encryption) -> bool {
    use Encryption::*;
    matches!(encryption, AesCbc128 | AesCbc192 | AesCbc256)
}

/// Runs `work` on a copy of `packet` between guards; the packet afterwards and whether it is authentic.
fn guarded(packet: &[u8], sequence: u64, work: impl Fn(&mut [Job<'_>])) -> (Vec<u8>, bool) {
    let mut memory = vec![0xee; GUARD + packet.len() + GUARD];
    memory[GUARD..GUARD + packet.len()].copy_from_slice(packet);
    let mut jobs = [Job { packet: &mut memory[GUARD..GUARD + packet.len()], sequence, authentic: false }];
    work(&mut jobs);
    let authentic = jobs[0].authentic;
    let guards = memory[..GUARD].iter().chain(&memory[GUARD + packet.len()..]);
    assert!(guards.into_iter().all(|&b| b == 0xee), "bytes beside a packet of {} changed", packet.len());
    (memory[GUARD..GUARD + packet.len()].to_vec(), authentic)
}

/// Both seal a packet of this length to the same bytes, and ours opens what the other sealed.
fn same_for(pair: &Pair, len: usize) {
    let sequence = 0x0102_0304_0000_0000 + len as u64;
    let plain = packet(pair.suite, len, sequence, len as u8);
    let (ours, _) = guarded(&plain, sequence, |jobs| pair.ours.seal(jobs));
    let (theirs, _) = guarded(&plain, sequence, |jobs| pair.theirs.seal(jobs));
    assert!(ours == theirs, "{}: sealed {len} bytes differ", pair.name);
    let (opened, authentic) = guarded(&theirs, sequence, |jobs| pair.ours.open(jobs));
    let body = 8 + pair.suite.iv_len()..plain.len() - pair.suite.icv_len();
    assert!(authentic, "{}: {len} bytes", pair.name);
    assert!(opened[body.clone()] == plain[body], "{}: opened {len} bytes differ", pair.name);
}

fn same_for_every_length(pair: &Pair) {
    // Integrity does not see which key length encrypted: SHA-256 has every length beside each, the others beside one.
    let repeated = matches!(pair.suite.encryption(), Encryption::AesCbc192 | Encryption::AesCbc256)
        && pair.suite.integrity() != Some(Integrity::HmacSha256_128);
    let step = if repeated { 61 } else { 1 };
    for len in lengths(step) {
        same_for(pair, len);
    }
}

/// Flips a bit of every byte that ends a region, and of some in the middle.
fn same_refused(pair: &Pair) {
    for len in [0, 1, 40, 52, 63, 64, 200, 488, 1000, 1388, 1500, 3000] {
        let sequence = 0x0102_0304_0000_0000 + len as u64;
        let mut sealed = packet(pair.suite, len, sequence, 3);
        pair.theirs.seal(&mut [Job { packet: &mut sealed, sequence, authentic: false }]);
        let (iv, icv) = (8 + pair.suite.iv_len(), sealed.len() - pair.suite.icv_len());
        let ends = [0, 3, 4, 7, iv - 1, iv, icv - 1, icv, sealed.len() - 1];
        for at in ends.into_iter().chain((iv..icv).step_by(97)) {
            let mut changed = sealed.clone();
            changed[at] ^= 1 << (at % 8);
            for cipher in [&pair.ours, &pair.theirs] {
                let (_, authentic) = guarded(&changed, sequence, |jobs| cipher.open(jobs));
                assert!(!authentic, "{}: {len} bytes, byte {at}, {}", pair.name, cipher.backend());
            }
        }
    }
}

#[test]
fn aes_gcm_is_the_same_for_every_length() {
    pairs("aes_gcm_is_the_same_for_every_length", gcm).iter().for_each(same_for_every_length);
}

/// Jumbo frames to the longest IP packet, every few bytes around multiples of a chunk, and some from all over.
#[test]
fn aes_gcm_is_the_same_for_long_packets() {
    const LONGEST: usize = 65_535 - 8 - 8 - 16 - 2;
    for pair in pairs("aes_gcm_is_the_same_for_long_packets", gcm) {
        let around = (1..42).flat_map(|n| (0..5).map(move |more| n * 96 * 16 - 34 + 8 * more));
        for len in around.chain((2049..LONGEST).step_by(1777)).chain([LONGEST]) {
            same_for(&pair, len);
        }
    }
}

#[test]
fn aes_gcm_refuses_what_aws_lc_refuses() {
    pairs("aes_gcm_refuses_what_aws_lc_refuses", gcm).iter().for_each(same_refused);
}

#[test]
fn aes_cbc_is_the_same_for_every_length() {
    pairs("aes_cbc_is_the_same_for_every_length", cbc).iter().for_each(same_for_every_length);
}

#[test]
fn aes_cbc_refuses_what_aws_lc_refuses() {
    pairs("aes_cbc_refuses_what_aws_lc_refuses", cbc).iter().for_each(same_refused);
}

#[test]
fn hmac_alone_is_the_same_for_every_length() {
    let null = |e| e == Encryption::Null;
    pairs("hmac_alone_is_the_same_for_every_length", null).iter().for_each(same_for_every_length);
}

#[test]
fn hmac_alone_refuses_what_aws_lc_refuses() {
    // NULL without integrity refuses nothing.
    let null = |e| e == Encryption::Null;
    let pairs = pairs("hmac_alone_refuses_what_aws_lc_refuses", null);
    pairs.iter().filter(|pair| pair.suite.icv_len() > 0).for_each(same_refused);
}

#[test]
fn a_batch_of_any_lengths_is_the_same() {
    for pair in pairs("a_batch_of_any_lengths_is_the_same", |_| true) {
        for jobs in 1..=64 {
            let len = |i: usize| (i * 7919 + jobs * 131) % 1600;
            let plain: Vec<_> = (0..jobs).map(|i| packet(pair.suite, len(i), i as u64, i as u8)).collect();
            let (mut ours, mut theirs) = (plain.clone(), plain.clone());
            pair.ours.seal(&mut batch(&mut ours));
            pair.theirs.seal(&mut batch(&mut theirs));
            assert!(ours == theirs, "{}: {jobs} jobs", pair.name);
            let mut opened = batch(&mut theirs);
            pair.ours.open(&mut opened);
            assert!(opened.iter().all(|job| job.authentic), "{}: {jobs} jobs", pair.name);
        }
    }
}

/// A batch of few packets and of one length, as hashes of several packets at once take them: each number of packets, each
/// length that ends a block, a neighbour a block longer, high halves of sequence numbers. Of what was sealed one packet
/// is changed and one is cut: they are refused alone.
#[test]
fn a_batch_of_one_length_is_the_same_and_what_was_changed_is_refused_alone() {
    let separate = |e| cbc(e) || e == Encryption::Null;
    let test = "a_batch_of_one_length_is_the_same_and_what_was_changed_is_refused_alone";
    let integrity =
        |pair: &&Pair| pair.suite.icv_len() > 0 && pair.suite.encryption() != Encryption::AesCbc192;
    for pair in pairs(test, separate).iter().filter(integrity) {
        for (len, count) in (0..280).chain((280..1500).step_by(83)).zip((1..=9).cycle()) {
            let len_of = |i: usize| if i % 5 == 3 { len + 128 } else { len };
            let sequence = |i: usize| ((i as u64) << 33) + len as u64;
            let plain: Vec<_> =
                (0..count).map(|i| packet(pair.suite, len_of(i), sequence(i), i as u8)).collect();
            let run = |packets: &mut Vec<Vec<u8>>, work: &dyn Fn(&mut [Job<'_>])| -> Vec<bool> {
                let numbered = packets.iter_mut().enumerate();
                let mut jobs: Vec<_> = numbered
                    .map(|(i, packet)| Job { packet, sequence: sequence(i), authentic: true })
                    .collect();
                work(&mut jobs);
                jobs.iter().map(|job| job.authentic).collect()
            };
            let (mut ours, mut theirs) = (plain.clone(), plain.clone());
            run(&mut ours, &|jobs| pair.ours.seal(jobs));
            run(&mut theirs, &|jobs| pair.theirs.seal(jobs));
            assert!(ours == theirs, "{}: {count} packets of {len} bytes", pair.name);
            let (changed, cut) = (len % count, (len + 1) % count);
            let last = |packet: &[u8]| packet.len() - 1;
            let at = if len % 2 == 0 { last(&theirs[changed]) } else { 5 };
            theirs[changed][at] ^= 4;
            let shorter = if len % 3 == 0 { 0 } else { last(&theirs[cut]) };
            theirs[cut].truncate(shorter);
            let authentic = run(&mut theirs, &|jobs| pair.ours.open(jobs));
            let expected: Vec<_> = (0..count).map(|i| i != changed && i != cut).collect();
            assert_eq!(authentic, expected, "{}: {count} packets of {len} bytes", pair.name);
            let body = 8 + pair.suite.iv_len();
            for i in (0..count).filter(|&i| authentic[i]) {
                let end = plain[i].len() - pair.suite.icv_len();
                assert!(theirs[i][body..end] == plain[i][body..end], "{}: packet {i} of {count}", pair.name);
            }
        }
    }
}

/// Packets that cannot be sealed stand among others: they leave as zeros, and the others as if they were not there.
#[test]
fn refused_packets_of_a_batch_change_nothing_for_the_others() {
    for pair in pairs("refused_packets_of_a_batch_change_nothing_for_the_others", |_| true) {
        for count in 1..=40 {
            let refused = |i: usize| (i * 7 + count).is_multiple_of(3);
            let make = |i: usize| {
                let mut packet = packet(pair.suite, (i * 53 + count) % 300, i as u64, i as u8);
                let len = packet.len();
                packet.truncate(if refused(i) { (i * 11 + count) % (8 + pair.suite.iv_len()) } else { len });
                packet
            };
            let plain: Vec<_> = (0..count).map(make).collect();
            let (mut ours, mut theirs) = (plain.clone(), plain);
            pair.ours.seal(&mut batch(&mut ours));
            pair.theirs.seal(&mut batch(&mut theirs));
            assert!(ours == theirs, "{}: {count} packets", pair.name);
            let mut opened = batch(&mut ours);
            pair.ours.open(&mut opened);
            for (i, job) in opened.iter().enumerate() {
                assert_eq!(job.authentic, !refused(i), "{}: packet {i} of {count}", pair.name);
                assert!(!refused(i) || job.packet.iter().all(|&b| b == 0), "{}: packet {i}", pair.name);
            }
        }
    }
}

/// Packets of a batch lie beside each other in one memory, and what lies between them stays as it is.
#[test]
fn packets_of_a_batch_leave_their_neighbours_alone() {
    const ROOM: usize = 256;
    for pair in pairs("packets_of_a_batch_leave_their_neighbours_alone", |_| true) {
        for count in 1..=64 {
            let packets: Vec<_> =
                (0..count).map(|i| packet(pair.suite, (i * 37 + count) % 180, i as u64, i as u8)).collect();
            let run = |cipher: &dyn Cipher| {
                let mut memory = vec![0xee; count * ROOM];
                let mut jobs = Vec::new();
                for ((i, plain), room) in packets.iter().enumerate().zip(memory.chunks_exact_mut(ROOM)) {
                    let place = &mut room[i % 4..][..plain.len()];
                    place.copy_from_slice(plain);
                    jobs.push(Job { packet: place, sequence: i as u64, authentic: false });
                }
                cipher.seal(&mut jobs);
                cipher.open(&mut jobs);
                let all_authentic = jobs.iter().all(|job| job.authentic);
                cipher.seal(&mut jobs);
                (memory, all_authentic)
            };
            let (ours, theirs) = (run(&*pair.ours), run(&*pair.theirs));
            assert!(ours.1 && theirs.1 && ours.0 == theirs.0, "{}: {count} packets", pair.name);
        }
    }
}

fn batch(packets: &mut [Vec<u8>]) -> Vec<Job<'_>> {
    let sequences = 0..;
    sequences.zip(packets).map(|(sequence, packet)| Job { packet, sequence, authentic: false }).collect()
}
