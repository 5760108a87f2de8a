//! What relays of one region say to each other, and who may.

use std::collections::BTreeSet;
use std::net::IpAddr;

use weir_core::relay::Key;
use weir_core::relay::frame::{Frame, Gone, HEADER, Kind, Presence, present};
use weir_core::relay::handshake::ClientInfo;

use crate::client::{Client, Seen, disco, info, key, secret, seen};
use crate::server::Sut;

behaviours! {
    frames_of_the_mesh_from_a_client_end_its_connection;
    a_wrong_mesh_key_is_that_of_a_client;
    a_watcher_hears_who_is_here_with_address_and_kind;
    a_watcher_hears_who_comes_and_goes;
    a_watcher_hears_once_of_a_key_with_two_connections_that_it_is_gone;
    a_forwarded_packet_arrives_with_its_first_senders_key;
    a_forwarded_packet_for_nobody_goes_nowhere;
    the_mesh_can_close_a_client;
    frames_of_the_mesh_of_a_wrong_length_end_the_connection;
}

fn frames_of_the_mesh_from_a_client_end_its_connection(subject: Sut) {
    let server = server!(subject);
    let mut victim = Client::join(&server, 2);
    for frame in
        [Frame::WatchConns, Frame::ClosePeer(key(2)), Frame::ForwardPacket(key(3), key(2), b"forged")]
    {
        let mut client = Client::join(&server, 1);
        client.send(frame);
        assert_eq!(client.next(), None, "{frame:?}");
    }
    assert_eq!(victim.before_pong(), []);
}

fn a_wrong_mesh_key_is_that_of_a_client(subject: Sut) {
    let server = server!(subject);
    let wrong = ClientInfo { mesh_key: "f".repeat(64), ..info() };
    let mut client = Client::join_as(&server, &secret(1), &wrong);
    assert_eq!(client.before_pong(), []);
    client.send(Frame::WatchConns);
    assert_eq!(client.next(), None);
}

fn presence(seen: &Seen) -> Option<(Key, Presence)> {
    match Frame::parse(seen.0[0], &seen.0[HEADER..]) {
        Ok(Frame::PeerPresent(key, Some(presence))) => Some((key, presence)),
        _ => None,
    }
}

/// The next that tells of a key that is here.
fn told_of(watcher: &mut Client) -> (Key, Presence) {
    let next = watcher.next().expect("a peer is present");
    presence(&next).unwrap_or_else(|| panic!("{next:?} instead of a peer that is present"))
}

fn a_watcher_hears_who_is_here_with_address_and_kind(subject: Sut) {
    let server = server!(subject);
    let alice = Client::join(&server, 1);
    let prober = Client::join_as(&server, &secret(2), &ClientInfo { is_prober: true, ..info() });
    let mut watcher = Client::join_mesh(&server, 8);
    watcher.send(Frame::WatchConns);
    let told: BTreeSet<(Key, IpAddr, u16, u8)> =
        (0..3).map(|_| told_of(&mut watcher)).map(|(key, at)| (key, at.address, at.port, at.flags)).collect();
    let expected =
        [(1, &alice, present::REGULAR), (2, &prober, present::PROBER), (8, &watcher, present::MESH)];
    let expected =
        expected.map(|(n, client, flags)| (key(n), client.local().ip(), client.local().port(), flags));
    assert_eq!(told, BTreeSet::from(expected));
    assert_eq!(watcher.before_pong(), []);
}

fn a_watcher_hears_who_comes_and_goes(subject: Sut) {
    let server = server!(subject);
    let mut watcher = Client::join_mesh(&server, 8);
    watcher.send(Frame::WatchConns);
    assert_eq!(told_of(&mut watcher).0, key(8));
    for n in 1..4 {
        let client = Client::join(&server, n);
        assert_eq!(told_of(&mut watcher).0, key(n));
        drop(client);
        assert_eq!(watcher.next(), Some(seen(Frame::PeerGone(key(n), Gone::Disconnected))));
    }
}

fn a_watcher_hears_once_of_a_key_with_two_connections_that_it_is_gone(subject: Sut) {
    let server = server!(subject);
    let mut watcher = Client::join_mesh(&server, 8);
    watcher.send(Frame::WatchConns);
    assert_eq!(told_of(&mut watcher).0, key(8));
    let first = Client::join(&server, 1);
    let second = Client::join(&server, 1);
    assert_eq!((told_of(&mut watcher).0, told_of(&mut watcher).0), (key(1), key(1)));
    drop(first);
    watcher.hears_nothing();
    drop(second);
    assert_eq!(watcher.next(), Some(seen(Frame::PeerGone(key(1), Gone::Disconnected))));
    watcher.hears_nothing();
}

fn a_forwarded_packet_arrives_with_its_first_senders_key(subject: Sut) {
    let server = server!(subject);
    let (mut relay, mut bob) = (Client::join_mesh(&server, 8), Client::join(&server, 2));
    relay.send(Frame::ForwardPacket(key(77), key(2), b"from afar"));
    assert_eq!(bob.next(), Some(seen(Frame::RecvPacket(key(77), b"from afar"))));
}

fn a_forwarded_packet_for_nobody_goes_nowhere(subject: Sut) {
    let server = server!(subject);
    let mut relay = Client::join_mesh(&server, 8);
    relay.send(Frame::ForwardPacket(key(77), key(2), b"from afar"));
    assert_eq!(relay.before_pong(), []);
    relay.hears_nothing();
    relay.send(Frame::ForwardPacket(key(77), key(2), &disco(1)));
    assert_eq!(relay.next(), Some(seen(Frame::PeerGone(key(2), Gone::NotHere))));
}

fn the_mesh_can_close_a_client(subject: Sut) {
    let server = server!(subject);
    let mut relay = Client::join_mesh(&server, 8);
    let (mut one, mut other) = (Client::join(&server, 1), Client::join(&server, 1));
    let mut bob = Client::join(&server, 2);
    relay.send(Frame::ClosePeer(key(1)));
    relay.send(Frame::ClosePeer(key(99)));
    one.is_closed();
    other.is_closed();
    assert_eq!(bob.before_pong(), []);
    assert_eq!(relay.before_pong(), []);
}

fn frames_of_the_mesh_of_a_wrong_length_end_the_connection(subject: Sut) {
    let server = server!(subject);
    for (kind, length) in
        [(Kind::WatchConns, 1), (Kind::ClosePeer, 31), (Kind::ClosePeer, 33), (Kind::ForwardPacket, 63)]
    {
        let mut relay = Client::join_mesh(&server, 8);
        let mut frame = vec![kind as u8, 0, 0, 0, length];
        frame.resize(5 + usize::from(length), 1);
        relay.write(&frame);
        relay.is_closed();
    }
}
