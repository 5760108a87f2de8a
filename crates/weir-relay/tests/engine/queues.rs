//! What waits for clients that do not keep up, and what becomes of it.

use std::time::Duration;

use weir_core::relay::{Class, Frame, Reason};
use weir_relay::{Rate, Rates};

use crate::member::{As, Member, bytes, disco, engine, wait_for};

fn flood(from: &mut Member, to: &Member, packets: usize) {
    let many = bytes(&Frame::SendPacket(to.key, &[5; 1400])).repeat(50);
    (0..packets / 50).for_each(|_| from.write(&many));
}

#[test]
fn a_reader_that_stalls_slows_nobody_else_and_is_let_go() {
    for epoll in [false, true] {
        let relay = engine(1, |engine| {
            engine.epoll = epoll;
            engine.write_timeout = Duration::from_millis(800);
        });
        let (mut a, stalled) = (Member::join(&relay, 1), Member::join(&relay, 2));
        let (mut c, mut d) = (Member::join(&relay, 3), Member::join(&relay, 4));
        flood(&mut a, &stalled, 20_000);
        for n in 0..100_u8 {
            c.send(d.key, &[n; 100]);
            assert_eq!(d.packet(), (c.key, vec![n; 100]));
        }
        let report =
            wait_for(&relay, "the end of the stalled one", |report| report.workers[0].connections == 3);
        let ended = report.workers[0].ended.iter().find(|(name, _)| *name == "write_timeout");
        assert_eq!(ended.map(|(_, times)| *times), Some(1));
        let report = wait_for(&relay, "the ledger", |report| report.workers[0].packets_in == 20_100);
        assert_eq!((report.balance(), report.workers[0].packets_held), (0, 0));
        a.nothing_comes();
    }
}

#[test]
fn of_a_full_queue_the_oldest_data_goes_and_disco_stays() {
    let relay = engine(1, |engine| {
        engine.queue_bytes = 100_000;
        engine.write_timeout = Duration::from_secs(60);
    });
    let (mut a, mut b) = (Member::join(&relay, 1), Member::join(&relay, 2));
    flood(&mut a, &b, 10_000);
    a.send(b.key, &disco(1));
    flood(&mut a, &b, 1000);
    a.send(b.key, b"newest");
    let report = wait_for(&relay, "all packets", |report| report.workers[0].packets_in == 11_002);
    let dropped: u64 = report.workers[0].drops.packets();
    assert!(dropped > 1000, "{dropped} dropped; the socket took nearly everything");
    let disco_dropped = report.workers[0].drops.iter().filter(|d| d.1 == Class::Disco).map(|d| d.2.packets);
    assert_eq!(disco_dropped.sum::<u64>(), 0);
    // The newest is never the oldest, so it comes.
    let (mut found, mut packets) = (false, 1);
    loop {
        let (_, data) = b.packet();
        if data == b"newest" {
            break;
        }
        found |= data == disco(1);
        packets += 1;
    }
    assert!(found);
    let report = wait_for(&relay, "the ledger", |report| report.workers[0].packets_held == 0);
    assert_eq!((report.balance(), report.workers[0].packets_forwarded), (0, packets));
}

#[test]
fn a_sender_beyond_its_rate_is_read_more_slowly_and_loses_nothing() {
    let relay = engine(1, |_| {});
    let rates = Rates { receive: Some(Rate { bytes_per_second: 400_000, burst: 10_000 }), send: None };
    let mut a = Member::join_as(&relay, 1, As { rates, ..As::default() });
    let mut b = Member::join(&relay, 2);
    flood(&mut a, &b, 200);
    for _ in 0..200 {
        assert_eq!(b.packet().1.len(), 1400);
    }
    let report = relay.report();
    assert!(report.workers[0].paused > 0);
    assert_eq!(report.workers[0].drops.packets(), 0);
}

#[test]
fn a_receiver_beyond_its_rate_gets_what_its_queue_holds() {
    let relay = engine(1, |engine| engine.queue_bytes = 50_000);
    let rates = Rates { receive: None, send: Some(Rate { bytes_per_second: 500_000, burst: 20_000 }) };
    let mut a = Member::join(&relay, 1);
    let mut b = Member::join_as(&relay, 2, As { rates, ..As::default() });
    // What one turn receives is sent whole, 2 MiB at most, and paid for later: so there is more than that.
    flood(&mut a, &b, 6000);
    wait_for(&relay, "all packets", |report| report.workers[0].packets_in == 6000);
    a.send(b.key, b"last");
    while b.packet().1 != b"last" {}
    let report = wait_for(&relay, "the ledger", |report| report.workers[0].packets_held == 0);
    assert!(report.workers[0].drops.packets() > 1000, "{:?}", report.workers[0].drops);
    assert_eq!(report.balance(), 0);
}

#[test]
fn what_waits_for_a_client_that_goes_is_counted_as_dropped() {
    for workers in [1, 2] {
        let relay = engine(workers, |engine| engine.write_timeout = Duration::from_secs(60));
        let (mut a, b) = (Member::join(&relay, 1), Member::join(&relay, 2));
        flood(&mut a, &b, 10_000);
        let total =
            |report: &weir_relay::RelayReport| report.workers.iter().map(|w| w.packets_in).sum::<u64>();
        wait_for(&relay, "all packets", |report| total(report) == 10_000);
        drop(b);
        let report = wait_for(&relay, "the ledger", |report| {
            let connections: u64 = report.workers.iter().map(|w| w.connections).sum();
            connections == 1 && report.balance() == 0 && report.workers.iter().all(|w| w.packets_held == 0)
        });
        let gone = report
            .workers
            .iter()
            .flat_map(|w| w.drops.iter())
            .filter(|d| matches!(d.0, Reason::GoneDisconnected | Reason::WriteError));
        assert!(gone.map(|d| d.2.packets).sum::<u64>() > 0);
    }
}
