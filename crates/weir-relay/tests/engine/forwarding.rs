//! Packets from client to client, on one worker and over several.

use weir_core::relay::{Frame, Kind, Reason};

use crate::member::{Member, bytes, disco, engine, wait_for};

#[test]
fn packets_reach_their_receiver_and_say_whose_they_are() {
    let relay = engine(1, |_| {});
    let (mut a, mut b) = (Member::join(&relay, 1), Member::join(&relay, 2));
    a.send(b.key, b"hello");
    assert_eq!(b.packet(), (a.key, b"hello".to_vec()));
    b.send(a.key, b"and back");
    assert_eq!(a.packet(), (b.key, b"and back".to_vec()));
}

#[test]
fn packets_keep_their_order_and_their_bytes_however_they_are_cut() {
    for workers in [1, 2] {
        let relay = engine(workers, |_| {});
        let (mut a, mut b) = (Member::join(&relay, 1), Member::join(&relay, 2));
        let mut stream = Vec::new();
        for n in 0..300_usize {
            let data: Vec<u8> = (0..n * 7).map(|i| (i + n) as u8).collect();
            stream.extend(bytes(&Frame::SendPacket(b.key, &data)));
        }
        stream.chunks(977).for_each(|piece| a.write(piece));
        for n in 0..300_usize {
            let expected: Vec<u8> = (0..n * 7).map(|i| (i + n) as u8).collect();
            assert_eq!(b.packet(), (a.key, expected));
        }
    }
}

#[test]
fn the_largest_packet_passes_and_a_larger_one_ends_the_connection() {
    let relay = engine(1, |_| {});
    let (mut a, mut b) = (Member::join(&relay, 1), Member::join(&relay, 2));
    let largest = vec![7; 64 << 10];
    a.send(b.key, &largest);
    assert_eq!(b.packet(), (a.key, largest));
    a.write(&[Kind::SendPacket as u8, 0, 1, 0, 33]);
    assert_eq!(a.frame_or_end(), None);
    b.nothing_comes_but_gone(a.key);
}

#[test]
fn what_came_with_the_handshake_is_forwarded_too() {
    let relay = engine(1, |_| {});
    let mut b = Member::join(&relay, 2);
    let early = [bytes(&Frame::SendPacket(b.key, b"early")), vec![4, 0, 0]].concat();
    let how = crate::member::As { early, ..Default::default() };
    let mut a = Member::join_as(&relay, 1, how);
    assert_eq!(b.packet(), (a.key, b"early".to_vec()));
    let rest = bytes(&Frame::SendPacket(b.key, b"rest"));
    a.write(&rest[3..]);
    assert_eq!(b.packet(), (a.key, b"rest".to_vec()));
}

#[test]
fn only_disco_to_nobody_is_answered_and_not_for_ever() {
    let relay = engine(1, |_| {});
    let mut a = Member::join(&relay, 1);
    let nobody = weir_core::relay::Key([9; 32]);
    a.send(nobody, b"data");
    a.nothing_comes();
    (0..10).for_each(|n| a.send(nobody, &disco(n)));
    a.say(&Frame::Ping(b"12345678"));
    let answers = std::iter::from_fn(|| Some(a.frame()).filter(|f| f.0 != Kind::Pong as u8));
    let answers: Vec<_> = answers.collect();
    let mut gone = nobody.0.to_vec();
    gone.push(1);
    assert!((3..=4).contains(&answers.len()), "{} answers", answers.len());
    assert!(answers.iter().all(|answer| *answer == (Kind::PeerGone as u8, gone.clone())));
    let report = wait_for(&relay, "the ledger", |report| report.balance() == 0);
    let dropped: u64 =
        report.workers[0].drops.iter().filter(|d| d.0 == Reason::UnknownDest).map(|d| d.2.packets).sum();
    assert_eq!((report.workers[0].packets_in, dropped), (11, 11));
}

#[test]
fn every_packet_between_many_clients_of_several_workers_is_accounted_for() {
    let relay = engine(3, |_| {});
    let mut members: Vec<Member> = (1..=9).map(|n| Member::join(&relay, n)).collect();
    let keys: Vec<_> = members.iter().map(|member| member.key).collect();
    for member in &mut members {
        let all: Vec<u8> =
            keys.iter().flat_map(|key| bytes(&Frame::SendPacket(*key, &member.key.0))).collect();
        member.write(&all);
    }
    for member in &mut members {
        let mut from: Vec<_> =
            (0..9).map(|_| member.packet()).map(|(key, data)| (key, data == key.0)).collect();
        from.sort();
        let mut expected: Vec<_> = keys.iter().map(|key| (*key, true)).collect();
        expected.sort();
        assert_eq!(from, expected);
    }
    let forwarded =
        |report: &weir_relay::RelayReport| report.workers.iter().map(|w| w.packets_forwarded).sum::<u64>();
    let report = wait_for(&relay, "the ledger", |report| forwarded(report) == 81);
    assert_eq!(report.balance(), 0);
    assert!(report.workers.iter().all(|worker| worker.connections == 3 && worker.packets_handed > 0));
}
