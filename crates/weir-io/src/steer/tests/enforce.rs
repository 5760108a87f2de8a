//! `weir_enforce` against what it is said to do.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::net::IpAddr;

use weir_core::random::SplitMix64;
use weir_core::tables::Owner;
use weir_xdp::layout::{ENFORCE_OPAQUE, ENFORCE_TRANSIT};
use weir_xdp::{Counters, LoadError};

use super::frames::corpus;
use super::{local, mutated, owner, tagged};
use crate::steer::enforce::load;

/// A test run comes in on the loopback interface, whose MAC address is zero.
const LOOPBACK: [u8; 6] = [0; 6];

/// `TC_ACT_UNSPEC`: other filters have their say; `TC_ACT_SHOT`.
const PASS: u32 = u32::MAX;
const DROP: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Decision {
    NotForUs,
    NotIp,
    Group,
    Kernels,
    Transit,
    CutShort,
    Opaque,
}

/// What the enforcement point is said to do with a frame.
fn decide(frame: &[u8]) -> Decision {
    if frame[..6] != LOOPBACK {
        return Decision::NotForUs;
    }
    let to = match u16::from_be_bytes([frame[12], frame[13]]) {
        0x0800 => frame[14..].get(16..20).and_then(|a| a.first_chunk::<4>()).map(|a| IpAddr::from(*a)),
        0x86dd => frame[14..].get(24..40).and_then(|a| a.first_chunk::<16>()).map(|a| IpAddr::from(*a)),
        0x8100 | 0x88a8 | 0x8847 | 0x8848 => return Decision::Opaque,
        _ => return Decision::NotIp,
    };
    let Some(to) = to else { return Decision::CutShort };
    let group = match to {
        IpAddr::V4(to) => to.is_multicast() || to.is_broadcast(),
        IpAddr::V6(to) => to.is_multicast(),
    };
    match owner(to) {
        _ if group => Decision::Group,
        Some(Owner::Kernel) => Decision::Kernels,
        _ => Decision::Transit,
    }
}

fn is_cut_short(frame: &[u8]) -> bool {
    match frame[12..14] {
        [0x08, 0x00] => frame.len() < 14 + 20,
        [0x86, 0xdd] => frame.len() < 14 + 40,
        _ => false,
    }
}

#[test]
fn transit_is_dropped_and_counted_and_what_is_local_is_not() {
    const FRAMES: usize = 30_000;
    let Some(local) = local("transit_is_dropped_and_counted_and_what_is_local_is_not") else { return };
    let mut program = load(&local).expect("loaded");
    let counters: Counters<1> = program.maps.counters("weir_enforced").expect("there");
    let mut corpus: Vec<Vec<u8>> = corpus().into_iter().filter(|frame| frame.len() <= 200).collect();
    for kind in [0x88a8, 0x8847, 0x8848] {
        corpus.push(tagged(&corpus[0], kind));
    }
    for frame in corpus.iter_mut().skip(1) {
        frame[..6].copy_from_slice(&LOOPBACK);
    }
    let mut random = SplitMix64::new(31);
    let mut refused = 0;
    let mut reached: BTreeMap<Decision, u64> = BTreeMap::new();
    for n in 0..FRAMES {
        let frame = corpus.get(n).cloned().unwrap_or_else(|| mutated(&corpus, &mut random));
        let decision = decide(&frame);
        let dropped = matches!(decision, Decision::Transit | Decision::CutShort | Decision::Opaque);
        let run = match program.run(&frame, 1).map_err(LoadError::into_io) {
            Ok(run) => run,
            // Linux 6.18 makes no socket buffer of it for a test run.
            Err(error) if is_cut_short(&frame) && error.kind() == ErrorKind::InvalidInput => {
                refused += 1;
                continue;
            }
            Err(error) => panic!("{error}: {frame:02x?}"),
        };
        let expected = if dropped { DROP } else { PASS };
        assert_eq!((run.verdict, run.frame), (expected, frame.clone()), "{decision:?}: {frame:02x?}");
        *reached.entry(decision).or_default() += 1;
    }
    let of = |decision| reached.get(&decision).copied().unwrap_or(0);
    let transit = of(Decision::Transit) + of(Decision::CutShort);
    assert_eq!(counters.sum(ENFORCE_TRANSIT).expect("readable"), [transit]);
    assert_eq!(counters.sum(ENFORCE_OPAQUE).expect("readable"), [of(Decision::Opaque)]);
    let (instructions, stack) = program.size().expect("known");
    let _ = writeln!(
        std::io::stderr(),
        "weir_enforce: {instructions} instructions, {stack} bytes of stack; {FRAMES} frames, {refused} cut \
         short and not run by this kernel (tests/ports/enforcement.rs sends one), the others as described: {reached:?}"
    );
    assert_eq!(reached.len(), if refused > 0 { 6 } else { 7 }, "{reached:?}");
    assert!(instructions < 200 && stack <= 64);
}
