//! The programs against what they are said to do: a Rust decision beside each, over tables of frames and random
//! ones. Every branch is reached, and how often is printed.

use std::io::Write;
use std::net::IpAddr;

use weir_core::random::SplitMix64;
use weir_core::tables::Owner;
use weir_core::wire::build;

use super::{LocalAddresses, SteerError};

mod enforce;
mod frames;
mod model;
mod steer;
mod tracked;

const OURS: [u8; 6] = [2, 0, 0, 0, 0, 0x0a];
const FAR: [u8; 6] = [2, 0, 0, 0, 0, 0x0b];

/// Each address with its owner.
const ADDRESSES: [(&str, Owner); 5] = [
    ("192.0.2.1", Owner::Kernel),
    ("2001:db8::1", Owner::Kernel),
    ("192.0.2.3", Owner::Kernel),
    ("192.0.2.9", Owner::Weir),
    ("fe80::9", Owner::Weir),
];
/// Prefixes the kernel keeps, and one inside that it does not.
const KEPT: [(&str, bool); 3] =
    [("203.0.113.0/24", true), ("203.0.113.64/26", false), ("2001:db8:f::/48", true)];
/// Where SAs end, and the ports of ESP in UDP.
const ENDS: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
const ESP_PORTS: [u16; 2] = [4500, 4501];
/// SPIs only the kernel opens: of frames of the corpus.
const KEPT_SPIS: [u32; 2] = [0x1111_1111, 0x2020_2020];

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn owner(address: IpAddr) -> Option<Owner> {
    ADDRESSES.iter().find(|(a, _)| ip(a) == address).map(|(_, owner)| *owner)
}

/// `None`, after saying so, where programs cannot be loaded.
fn local(test: &str) -> Option<LocalAddresses> {
    let mut local = match LocalAddresses::new() {
        Ok(local) => local,
        Err(SteerError::Load(error)) if error.is_permission() => {
            let _ = writeln!(std::io::stderr(), "SKIP {test}: bpf programs need root ({error})");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    local.set(ADDRESSES.map(|(a, owner)| (ip(a), owner))).expect("room");
    local.set_kept(&KEPT.map(|(prefix, kernel)| (prefix.parse().expect("a prefix"), kernel))).expect("room");
    local.set_esp(ENDS.map(ip).into(), ESP_PORTS.into()).expect("room");
    local.set_kept_spis(KEPT_SPIS.into()).expect("room");
    Some(local)
}

/// The complement of the sum over a header without its checksum (RFC 1071), and 0xffff over one with.
fn checksum(header: &[u8]) -> u16 {
    let mut sum: u32 = header.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn with_checksum(mut frame: Vec<u8>) -> Vec<u8> {
    if frame.len() >= 34 && frame[12..15] == [8, 0, 0x45] {
        frame[24..26].fill(0);
        let sum = !checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    frame
}

/// A frame of the corpus with some bytes changed, cut, or as it is.
fn mutated(corpus: &[Vec<u8>], random: &mut SplitMix64) -> Vec<u8> {
    let mut frame = corpus[random.below(corpus.len() as u64) as usize].clone();
    for _ in 0..random.below(3) {
        let at = random.below(frame.len().min(80) as u64) as usize;
        frame[at] = random.next_u64() as u8;
    }
    if random.below(8) == 0 {
        frame.truncate(14 + random.below(frame.len() as u64 - 13) as usize);
    }
    if random.below(2) == 0 { with_checksum(frame) } else { frame }
}

fn frame(from: &str, to: &str) -> build::Frame {
    build::Frame::ip(ip(from), ip(to)).expect("one family").macs(OURS, FAR)
}

fn tagged(frame: &[u8], kind: u16) -> Vec<u8> {
    [&frame[..12], &kind.to_be_bytes(), &[0, 7], &frame[12..]].concat()
}
