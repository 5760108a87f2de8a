//! One key, more than one connection: devices that were cloned, and clients that come back before the server has noticed
//! that they went.

use weir_core::relay::frame::{Frame, Gone, Kind};

use crate::client::{Client, Seen, key, seen};
use crate::machine::until;
use crate::server::{Server, Sut};

behaviours! {
    the_newest_connection_of_a_key_receives;
    the_one_that_sent_last_receives_and_the_others_stay_open;
    the_older_one_receives_when_the_newer_leaves;
    nobody_hears_of_a_key_gone_while_one_connection_is_left;
    after_a_storm_of_reconnects_the_last_connection_receives;
}

/// Whether data for key 1 arrives at this connection; servers that say how ill duplicates are may.
fn arrives(sender: &mut Client, receiver: &mut Client, data: &[u8]) -> bool {
    sender.send(Frame::SendPacket(key(1), data));
    sender.before_pong();
    let got = receiver.before_pong();
    got.contains(&seen(Frame::RecvPacket(key(9), data)))
}

/// The first frame that is about packets or peers.
fn next(client: &mut Client) -> Option<Seen> {
    loop {
        match client.next() {
            Some(Seen(frame)) if frame[0] == Kind::Health as u8 => {}
            other => return other,
        }
    }
}

fn setup(server: &Server) -> (Client, Client, Client) {
    let sender = Client::join(server, 9);
    let old = Client::join(server, 1);
    let new = Client::join(server, 1);
    (sender, old, new)
}

fn the_newest_connection_of_a_key_receives(subject: Sut) {
    let server = server!(subject);
    let (mut sender, mut old, mut new) = setup(&server);
    sender.send(Frame::SendPacket(key(1), b"which?"));
    assert_eq!(next(&mut new), Some(seen(Frame::RecvPacket(key(9), b"which?"))));
    old.hears_nothing();
}

fn the_one_that_sent_last_receives_and_the_others_stay_open(subject: Sut) {
    let server = server!(subject);
    let (mut sender, mut old, mut new) = setup(&server);
    old.send(Frame::NotePreferred(true));
    until("the old connection to receive", || arrives(&mut sender, &mut old, b"old").then_some(()));
    new.send(Frame::NotePreferred(true));
    until("the new connection to receive", || arrives(&mut sender, &mut new, b"new").then_some(()));
    old.before_pong();
}

fn the_older_one_receives_when_the_newer_leaves(subject: Sut) {
    let server = server!(subject);
    let (mut sender, mut old, new) = setup(&server);
    drop(new);
    // Until the server has noticed, packets go to the one that left.
    until("the old connection to receive", || arrives(&mut sender, &mut old, b"back").then_some(()));
}

fn nobody_hears_of_a_key_gone_while_one_connection_is_left(subject: Sut) {
    let server = server!(subject);
    let (mut listener, mut old, mut new) = setup(&server);
    for client in [&mut old, &mut new] {
        client.send(Frame::SendPacket(key(9), b"hello"));
        assert_eq!(listener.next(), Some(seen(Frame::RecvPacket(key(1), b"hello"))));
    }
    drop(new);
    listener.hears_nothing();
    drop(old);
    assert_eq!(listener.next(), Some(seen(Frame::PeerGone(key(1), Gone::Disconnected))));
}

fn after_a_storm_of_reconnects_the_last_connection_receives(subject: Sut) {
    let server = server!(subject);
    let mut sender = Client::join(&server, 9);
    let mut kept = Vec::new();
    for n in 0..100 {
        let client = Client::join(&server, 1);
        // Some leave, some are left hanging.
        if n % 3 == 0 {
            kept.push(client);
        }
    }
    let mut last = Client::join(&server, 1);
    assert!(arrives(&mut sender, &mut last, b"to the last"));
    assert!(kept.iter_mut().all(|client| client.stream.take_error().is_ok_and(|e| e.is_none())));
}
