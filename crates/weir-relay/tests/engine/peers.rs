//! Connections: who hears of whom, who receives for a key, how a connection is kept and ended.

use std::time::Duration;

use weir_core::relay::{Frame, Kind};

use crate::member::{Member, engine, wait_for};

#[test]
fn pings_are_answered_with_their_first_eight_bytes() {
    let relay = engine(1, |_| {});
    let mut a = Member::join(&relay, 1);
    for length in [8, 9, 1000] {
        a.say(&Frame::Ping(&vec![3; length]));
        assert_eq!(a.frame(), (Kind::Pong as u8, vec![3; 8]));
    }
    a.say(&Frame::Unknown(0x77));
    a.nothing_comes();
    for wrong in [7, 1001] {
        let mut a = Member::join(&relay, 1);
        a.say(&Frame::Ping(&vec![1; wrong]));
        assert_eq!(a.frame_or_end(), None);
    }
}

#[test]
fn keepalives_come_by_themselves() {
    let relay = engine(1, |engine| engine.keepalive = Duration::from_millis(20));
    let mut a = Member::join(&relay, 1);
    for _ in 0..3 {
        assert_eq!(a.frame(), (Kind::KeepAlive as u8, Vec::new()));
    }
}

#[test]
fn those_who_received_from_a_peer_hear_that_it_is_gone() {
    for workers in [1, 2] {
        let relay = engine(workers, |_| {});
        let mut members: Vec<Member> = (1..=4).map(|n| Member::join(&relay, n)).collect();
        let mut a = members.remove(0);
        let mut bystander = members.remove(2);
        for member in &mut members {
            a.send(member.key, b"hi");
            assert_eq!(member.packet().1, b"hi");
        }
        let key = a.key;
        drop(a);
        members.iter_mut().for_each(|member| member.nothing_comes_but_gone(key));
        bystander.nothing_comes();
    }
}

#[test]
fn of_two_connections_with_one_key_the_last_active_receives() {
    let relay = engine(2, |_| {});
    let mut first = Member::join(&relay, 1);
    let mut second = Member::join(&relay, 1);
    let mut b = Member::join(&relay, 2);
    b.send(first.key, b"to the second");
    assert_eq!(second.packet().1, b"to the second");
    first.send(b.key, b"I am here");
    assert_eq!(b.packet().1, b"I am here");
    // What makes it the active one goes by the registrar; nothing tells a client when it is done.
    let mut tries = 0;
    loop {
        b.send(first.key, b"to the first?");
        wait_for(&relay, "the packet", |report| {
            report.workers.iter().all(|w| w.packets_held == 0) && report.balance() == 0
        });
        first.socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a socket option");
        let mut byte = [0];
        if first.socket.peek(&mut byte).is_ok() {
            break;
        }
        tries += 1;
        assert!(tries < 100, "the first never receives");
    }
    first.socket.set_read_timeout(Some(crate::member::LONG)).expect("a socket option");
    assert_eq!(first.packet().1, b"to the first?");
}

#[test]
fn frames_of_the_mesh_from_a_client_end_its_connection() {
    let relay = engine(1, |_| {});
    let b = Member::join(&relay, 2);
    let frames = [Frame::WatchConns, Frame::ClosePeer(b.key), Frame::ForwardPacket(b.key, b.key, b"x")];
    for frame in frames {
        let mut a = Member::join(&relay, 1);
        a.say(&frame);
        assert_eq!(a.frame_or_end(), None);
    }
    wait_for(&relay, "the others", |report| report.workers[0].connections == 1);
}

#[test]
fn draining_tells_everybody_and_closes() {
    let relay = engine(2, |_| {});
    let mut members: Vec<Member> = (1..=6).map(|n| Member::join(&relay, n)).collect();
    relay.drain(Duration::from_millis(1500), Duration::from_millis(9000), Duration::from_secs(5));
    for member in &mut members {
        let (code, payload) = member.frame();
        assert_eq!(Frame::parse(code, &payload), Ok(Frame::Restarting(1500, 9000)));
        assert_eq!(member.frame_or_end(), None);
    }
    // Nobody is taken any more.
    let mut late = Member::admit(&relay, 9, crate::member::As::default());
    while late.frame_or_end().is_some() {}
    assert!(relay.report().workers.iter().all(|worker| worker.connections == 0));
}

#[test]
fn connections_and_their_memory_are_told() {
    let relay = engine(2, |_| {});
    let mut members: Vec<Member> = (1..=5).map(|n| Member::join(&relay, n)).collect();
    members[0].say(&Frame::NotePreferred(true));
    members[0].nothing_comes();
    let told = relay.connections();
    assert_eq!(told.len(), 5);
    assert_eq!(told.iter().filter(|c| c.home).map(|c| c.key).collect::<Vec<_>>(), [members[0].key]);
    assert!(told.iter().all(|c| c.memory < 8 << 10), "{told:?}");
    assert!(relay.is_well());
}

#[test]
fn times_are_changed_while_it_runs() {
    let relay = engine(1, |_| {});
    let mut early = Member::join(&relay, 1);
    relay.reload(&weir_relay::Engine { keepalive: Duration::from_millis(20), ..Default::default() });
    // Its first keepalive was set before.
    early.nothing_comes();
    let mut late = Member::join(&relay, 2);
    assert_eq!(late.frame(), (Kind::KeepAlive as u8, Vec::new()));
}
