//! Replays: the window against a model that remembers everything, and batches of real packets against it.

use std::collections::HashSet;

use crate::common::sas::*;
use proptest::prelude::*;
use weir_core::ipsec::replay::Replay;
use weir_core::ipsec::{Params, Sa};
use weir_core::verdict::Reason;

const SIZES: [u16; 8] = [32, 33, 64, 65, 128, 1000, 1024, 4096];

/// Remembers every number.
struct Model {
    size: u64,
    top: u64,
    seen: HashSet<u64>,
}

impl Model {
    fn accept(&mut self, sequence: u64) -> Result<(), Reason> {
        if sequence + self.size <= self.top {
            return Err(Reason::ReplayTooOld);
        }
        if sequence == 0 || !self.seen.insert(sequence) {
            return Err(Reason::Replayed);
        }
        self.top = self.top.max(sequence);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_window_judges_as_a_model_that_remembers_everything(
        size in prop::sample::select(&SIZES[..]),
        start in prop::sample::select(vec![0u64, 1, 63, 64, (1 << 32) - 100, (1 << 40) + 17]),
        steps in prop::collection::vec((0u64..5000, any::<bool>(), 0u8..8), 1..300),
    ) {
        let mut replay = Replay::new(size);
        let mut model = Model { size: u64::from(size), top: 0, seen: HashSet::new() };
        let mut at = start;
        for (step, back, kind) in steps {
            // Mostly near the top, now and then a leap.
            let step = match kind { 0 => step * 1000, 1..=3 => step % u64::from(2 * size), _ => step % 70 };
            at = if back { replay.top().saturating_sub(step) } else { replay.top().max(at) + step };
            let checked = replay.check(at);
            prop_assert_eq!(replay.clone().accept(at), checked, "what check says, accept does");
            prop_assert_eq!(replay.accept(at), model.accept(at), "number {}", at);
            prop_assert_eq!(replay.top(), model.top);
        }
    }

    #[test]
    fn thirty_two_bits_are_extended_to_the_number_that_was_sent(
        size in prop::sample::select(&SIZES[..]),
        high in 1u64..1 << 31, low in prop_oneof![any::<u32>(), 0u32..5000, (u32::MAX - 5000)..=u32::MAX],
        ahead in prop_oneof![any::<u32>(), 0u32..5000], behind in 0u64..4096,
    ) {
        let top = high << 32 | u64::from(low);
        let mut replay = Replay::new(size);
        prop_assert_eq!(replay.accept(top), Ok(()));
        let behind = behind % u64::from(size);
        let ahead = u64::from(ahead).min((1 << 32) - u64::from(size));
        for sent in [top - behind, top + ahead] {
            prop_assert_eq!(replay.extend(sent as u32), sent);
        }
    }
}

/// Packets `first`, `first + 1`… as `out` seals them.
fn sealed(out: &Sa, first: u64, count: usize) -> Vec<Vec<u8>> {
    out.state.sequence.store(first - 1, std::sync::atomic::Ordering::Relaxed);
    let packets = vec![packet4(64); count];
    seal_all(out, 0, &packets).into_iter().map(|packet| packet.expect("sealed")).collect()
}

fn verdicts(inbound: &Sa, packets: &[Vec<u8>]) -> Vec<Result<(), Reason>> {
    open_all(inbound, 0, packets).into_iter().map(|opened| opened.map(|_| ())).collect()
}

#[test]
fn duplicates_within_a_batch_are_caught() {
    let (out, inbound) = pair(gcm());
    let packets = sealed(&out, 1, 2);
    let batch = [packets[0].clone(), packets[1].clone(), packets[0].clone(), packets[1].clone()];
    let replayed = Err(Reason::Replayed);
    assert_eq!(verdicts(&inbound, &batch), [Ok(()), Ok(()), replayed, replayed]);
    assert_eq!(verdicts(&inbound, &packets), [replayed, replayed]);
    assert!(inbound.state.failures().any(|f| f == (Reason::Replayed, 4)));
}

#[test]
fn a_forged_number_far_ahead_costs_only_itself() {
    for esn in [false, true] {
        let (out, inbound) = pair(Params { esn, ..gcm() });
        let packets = sealed(&out, 1, 3);
        let mut forged = packets[1].clone();
        forged[24..28].copy_from_slice(&[0xff; 4]);
        let batch = [packets[0].clone(), forged, packets[1].clone()];
        assert_eq!(verdicts(&inbound, &batch), [Ok(()), Err(Reason::IntegrityFailed), Ok(())]);
        assert_eq!(inbound.state.replay.lock().expect("sound").top(), 2);
        assert_eq!(verdicts(&inbound, &packets[2..]), [Ok(())]);
    }
}

#[test]
fn late_packets_pass_within_the_window_and_not_left_of_it() {
    for window in [32, 64, 1024, 4096] {
        let (out, inbound) = pair(Params { replay_window: window, ..gcm() });
        let packets = sealed(&out, 1, usize::from(window) + 2);
        assert_eq!(verdicts(&inbound, &packets[usize::from(window) + 1..]), [Ok(())]);
        assert_eq!(verdicts(&inbound, &packets[2..3]), [Ok(())]);
        assert_eq!(verdicts(&inbound, &packets[1..2]), [Err(Reason::ReplayTooOld)]);
        assert_eq!(verdicts(&inbound, &packets[..1]), [Err(Reason::ReplayTooOld)]);
    }
}

#[test]
fn without_a_window_everything_authentic_passes() {
    let (out, inbound) = pair(Params { replay_window: 0, ..gcm() });
    let packets = sealed(&out, 1, 1);
    assert_eq!(verdicts(&inbound, &packets), [Ok(())]);
    assert_eq!(verdicts(&inbound, &packets), [Ok(())]);
}

#[test]
fn extended_numbers_go_on_across_two_to_the_32_in_any_order_within_the_window() {
    for window in [32, 64, 128, 4096] {
        for wrap in [1u64 << 32, 5 << 32] {
            let (out, inbound) = pair(Params { esn: true, replay_window: window, ..gcm() });
            inbound.state.replay.lock().expect("sound").accept(wrap - 31).expect("ahead");
            let mut packets = sealed(&out, wrap - 30, 60);
            // Neighbours change places, across the wrap too.
            packets.chunks_mut(6).for_each(<[_]>::reverse);
            assert!(verdicts(&inbound, &packets).iter().all(Result::is_ok));
            assert_eq!(verdicts(&inbound, &packets[..1]).len(), 1);
            assert!(verdicts(&inbound, &packets).iter().all(Result::is_err));
            assert_eq!(inbound.state.replay.lock().expect("sound").top(), wrap + 29);
        }
    }
}

#[test]
fn the_upper_half_is_authenticated() {
    let (out, inbound) = pair(Params { esn: true, ..gcm() });
    let packets = sealed(&out, 3 << 32 | 5, 1);
    // The receiver is in the first subspace and takes the number for 5.
    assert_eq!(verdicts(&inbound, &packets), [Err(Reason::IntegrityFailed)]);
}

#[test]
fn two_workers_do_not_both_accept_a_packet() {
    let (out, inbound) = pair(Params { replay_window: 4096, ..gcm() });
    let packets = sealed(&out, 1, 2048);
    let accepted: usize = std::thread::scope(|scope| {
        let open = || verdicts(&inbound, &packets).iter().filter(|verdict| verdict.is_ok()).count();
        let workers = [scope.spawn(open), scope.spawn(open)];
        workers.into_iter().map(|worker| worker.join().expect("no panic")).sum()
    });
    assert_eq!(accepted, packets.len());
}
