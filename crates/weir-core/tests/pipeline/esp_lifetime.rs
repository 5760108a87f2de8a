//! How long an SA is used: sequence numbers, packets, bytes, time; and what it counts.

use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;

use crate::common::sas::*;
use weir_core::ipsec::sa::Lifetime;
use weir_core::ipsec::{Params, Sa};
use weir_core::time::SECOND;
use weir_core::verdict::Reason;

const LAST: u64 = u32::MAX as u64;

fn sealed(out: &Sa, now: u64, count: usize) -> Vec<Result<(), Reason>> {
    seal_all(out, now, &vec![packet4(100); count]).into_iter().map(|sealed| sealed.map(|_| ())).collect()
}

fn failures(sa: &Sa, reason: Reason) -> u64 {
    sa.state.failures().find(|(counted, _)| *counted == reason).map_or(0, |(_, count)| count)
}

#[test]
fn the_last_number_is_used_and_none_again() {
    let (out, _) = pair(gcm());
    out.state.sequence.store(LAST - 2, Relaxed);
    let exhausted = Err(Reason::SequenceExhausted);
    assert_eq!(sealed(&out, 0, 4), [Ok(()), Ok(()), exhausted, exhausted]);
    for _ in 0..100 {
        assert_eq!(sealed(&out, 0, 2), [exhausted, exhausted]);
    }
    assert!(out.state.sequence.load(Relaxed) < LAST + 64, "the counter stays near its end");
    assert_eq!(failures(&out, Reason::SequenceExhausted), 202);
}

#[test]
fn extended_numbers_do_not_end_there_and_never_wrap() {
    let (out, _) = pair(Params { esn: true, ..gcm() });
    out.state.sequence.store(LAST - 2, Relaxed);
    assert_eq!(sealed(&out, 0, 4), [Ok(()); 4]);
    out.state.sequence.store(u64::MAX - 1, Relaxed);
    assert_eq!(sealed(&out, 0, 4), [Err(Reason::SequenceExhausted); 4]);
    assert_eq!(out.state.sequence.load(Relaxed), u64::MAX - 1);
}

#[test]
fn workers_that_share_an_sa_never_share_a_number() {
    let (out, _) = pair(gcm());
    let numbers: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let seal = || {
            let batches = (0..50).flat_map(|_| seal_all(&out, 0, &vec![packet4(40); 40]));
            batches.map(|sealed| sealed.expect("sealed")[24..28].to_vec()).collect::<Vec<_>>()
        };
        let workers = [scope.spawn(seal), scope.spawn(seal)];
        workers.into_iter().flat_map(|worker| worker.join().expect("no panic")).collect()
    });
    assert_eq!(numbers.iter().collect::<HashSet<_>>().len(), 2 * 50 * 40);
}

#[test]
fn at_the_hard_limit_of_packets_nothing_more_passes() {
    let hard = Lifetime { packets: Some(3), ..Lifetime::default() };
    let (out, inbound) = pair(Params { hard, ..gcm() });
    let sealed_packets: Vec<_> = seal_all(&out, 0, &vec![packet4(100); 3]);
    let packets: Vec<_> = sealed_packets.into_iter().map(|p| p.expect("sealed")).collect();
    assert_eq!(sealed(&out, 0, 2), [Err(Reason::SaExpired); 2]);
    assert!(out.is_hard_expired(0));
    assert!(open_all(&inbound, 0, &packets).iter().all(Result::is_ok));
    let more = seal(&pair(Params { hard: Lifetime::default(), ..gcm() }).0, &packet4(100)).expect("sealed");
    // Replayed is found out first; a fresh number is refused by the lifetime.
    assert_eq!(open(&inbound, &more), Err(Reason::Replayed));
    let fresh = forge(&inbound, 9, &padded(inbound.params.suite, &packet4(60), 4));
    assert_eq!(open(&inbound, &fresh), Err(Reason::SaExpired));
    assert_eq!(failures(&inbound, Reason::SaExpired), 1);
}

#[test]
fn the_packet_that_reaches_the_limit_of_bytes_passes_and_none_after_it() {
    let hard = Lifetime { bytes: Some(250), ..Lifetime::default() };
    let (out, _) = pair(Params { hard, ..gcm() });
    let expired = Err(Reason::SaExpired);
    assert_eq!(sealed(&out, 0, 5), [Ok(()), Ok(()), Ok(()), expired, expired]);
    assert_eq!(sealed(&out, 0, 1), [expired]);
    assert_eq!(out.state.bytes.load(Relaxed), 300);
}

#[test]
fn time_runs_from_when_the_sa_was_installed() {
    let hard = Lifetime { seconds: Some(10), ..Lifetime::default() };
    let soft = Lifetime { seconds: Some(8), ..Lifetime::default() };
    let (out, _) = pair(Params { hard, soft, ..gcm() });
    out.state.installed.store(100 * SECOND, Relaxed);
    assert_eq!(sealed(&out, 107 * SECOND, 1), [Ok(())]);
    assert!(!out.is_soft_expired(107 * SECOND) && out.is_soft_expired(108 * SECOND));
    assert_eq!(sealed(&out, 110 * SECOND - 1, 1), [Ok(())]);
    assert_eq!(sealed(&out, 110 * SECOND, 1), [Err(Reason::SaExpired)]);
    assert!(out.is_hard_expired(110 * SECOND) && !out.is_hard_expired(109 * SECOND));
}

#[test]
fn at_the_soft_limit_packets_still_pass() {
    let soft = Lifetime { packets: Some(1), bytes: Some(1), seconds: Some(1) };
    let (out, _) = pair(Params { soft, ..gcm() });
    assert_eq!(sealed(&out, 5 * SECOND, 3), [Ok(()); 3]);
    assert!(out.is_soft_expired(0) && !out.is_hard_expired(5 * SECOND));
}

#[test]
fn packets_bytes_and_losses_are_counted() {
    let (out, inbound) = pair(gcm());
    let mut packets: Vec<_> =
        seal_all(&out, 7, &[packet4(100), packet6(80)]).into_iter().map(|p| p.expect("sealed")).collect();
    packets.push(packets[0].clone());
    packets[2][40] ^= 1;
    packets[2][27] = 9;
    open_all(&inbound, 8, &packets);
    for (sa, used) in [(&out, 7), (&inbound, 8)] {
        let state = &sa.state;
        assert_eq!((state.packets.load(Relaxed), state.bytes.load(Relaxed)), (2, 180));
        assert_eq!(state.used.load(Relaxed), used);
    }
    assert_eq!(failures(&inbound, Reason::IntegrityFailed), 1);
    assert_eq!(inbound.state.failures().map(|(_, count)| count).sum::<u64>(), 1);
}
