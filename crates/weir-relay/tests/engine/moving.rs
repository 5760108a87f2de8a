//! Clients that come to the worker of those they talk to.

use rustls::version::TLS13;
use weir_core::relay::Frame;
use weir_relay::{Relay, RelayReport};

use crate::member::{Member, bytes, engine, wait_for};
use crate::wire::{framed, secured};

/// Packets each way in one round.
const ROUND: u32 = 100;
/// Rounds after which whoever is to move has moved, by far.
const ROUNDS: u32 = 400;

fn moved(report: &RelayReport) -> u64 {
    report.workers.iter().map(|w| w.moved).sum()
}

fn handed(report: &RelayReport) -> u64 {
    report.workers.iter().map(|w| w.packets_handed).sum()
}

/// Numbered packets, which come in order.
fn one_way(from: &mut Member, to: &mut Member, round: u32) {
    let numbers = round * ROUND..(round + 1) * ROUND;
    let packets = numbers.clone().flat_map(|n| bytes(&Frame::SendPacket(to.key, &n.to_be_bytes())));
    from.write(&packets.collect::<Vec<u8>>());
    for n in numbers {
        assert_eq!(to.packet(), (from.key, n.to_be_bytes().to_vec()));
    }
}

fn round(pairs: &mut [(Member, Member)], round: u32) {
    for (a, b) in pairs {
        one_way(a, b, round);
        one_way(b, a, round);
    }
}

/// Two pairs, sender and receiver of each at different workers; plain, by TLS and by WebSocket.
fn pairs(relay: &Relay) -> Vec<(Member, Member)> {
    let first = (Member::join(relay, 1), secured(relay, 2, &TLS13));
    vec![first, (framed(relay, 3), Member::join(relay, 4))]
}

#[test]
fn those_who_talk_to_each_other_come_to_one_worker_in_order_without_a_loss() {
    for epoll in [false, true] {
        let relay = engine(2, |engine| engine.epoll = epoll);
        let mut pairs = pairs(&relay);
        let mut rounds = 0;
        while moved(&relay.report()) < 2 {
            assert!(rounds < ROUNDS, "{:?}", relay.report());
            round(&mut pairs, rounds);
            rounds += 1;
        }
        let settled = wait_for(&relay, "the ledger", |report| report.balance() == 0);
        (rounds..rounds + 10).for_each(|n| round(&mut pairs, n));
        let report = wait_for(&relay, "the ledger", |report| report.balance() == 0);
        assert_eq!(handed(&report), handed(&settled), "nothing crosses any more");
        let connections: Vec<u64> = report.workers.iter().map(|w| w.connections).collect();
        assert_eq!((connections, moved(&report)), (vec![2, 2], 2));
        assert!(report.workers.iter().all(|w| w.drops.packets() == 0));
        // Their connections are whole: who hangs up is missed.
        let (a, mut b) = pairs.remove(0);
        let gone = a.key;
        drop(a);
        b.nothing_comes_but_gone(gone);
    }
}

#[test]
fn a_pair_that_is_all_there_is_stays_where_it_has_two_cores() {
    let relay = engine(2, |_| {});
    let mut one: Vec<_> = pairs(&relay).drain(..1).collect();
    (0..ROUNDS / 2).for_each(|n| round(&mut one, n));
    assert_eq!(moved(&relay.report()), 0);
}

#[test]
fn nobody_moves_where_that_is_not_wanted() {
    let relay = engine(2, |engine| engine.colocate = false);
    let mut pairs = pairs(&relay);
    (0..ROUNDS / 2).for_each(|n| round(&mut pairs, n));
    assert_eq!(moved(&relay.report()), 0);
}
