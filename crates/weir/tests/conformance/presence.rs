//! Who hears that a peer is gone.

use weir_core::relay::frame::{Frame, Gone};

use crate::client::{Client, key, seen};
use crate::server::Sut;

behaviours! {
    those_who_received_from_a_client_hear_that_it_is_gone;
    those_who_only_sent_to_it_do_not;
    who_leaves_without_a_word_to_anybody_is_nobodys_business;
}

ours_alone! {
    // derper tells a listener of the first time only.
    it_is_told_each_time_that_a_peer_is_gone;
}

fn those_who_received_from_a_client_hear_that_it_is_gone(subject: Sut) {
    let server = server!(subject);
    let mut alice = Client::join(&server, 1);
    let mut listeners: Vec<Client> = (2..5).map(|n| Client::join(&server, n)).collect();
    for n in 2..5 {
        alice.send(Frame::SendPacket(key(n), b"hello"));
    }
    for listener in &mut listeners {
        assert_eq!(listener.next(), Some(seen(Frame::RecvPacket(key(1), b"hello"))));
    }
    drop(alice);
    for listener in &mut listeners {
        assert_eq!(listener.next(), Some(seen(Frame::PeerGone(key(1), Gone::Disconnected))));
    }
}

fn those_who_only_sent_to_it_do_not(subject: Sut) {
    let server = server!(subject);
    let (mut alice, mut bob) = (Client::join(&server, 1), Client::join(&server, 2));
    bob.send(Frame::SendPacket(key(1), b"hello"));
    assert_eq!(alice.next(), Some(seen(Frame::RecvPacket(key(2), b"hello"))));
    drop(alice);
    bob.hears_nothing();
}

fn it_is_told_each_time_that_a_peer_is_gone(subject: Sut) {
    let server = server!(subject);
    let mut bob = Client::join(&server, 2);
    for _ in 0..3 {
        let mut alice = Client::join(&server, 1);
        alice.send(Frame::SendPacket(key(2), b"hello"));
        assert_eq!(bob.next(), Some(seen(Frame::RecvPacket(key(1), b"hello"))));
        drop(alice);
        assert_eq!(bob.next(), Some(seen(Frame::PeerGone(key(1), Gone::Disconnected))));
    }
}

fn who_leaves_without_a_word_to_anybody_is_nobodys_business(subject: Sut) {
    let server = server!(subject);
    let mut bob = Client::join(&server, 2);
    drop(Client::join(&server, 1));
    bob.hears_nothing();
}
