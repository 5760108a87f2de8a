//! Who a client is, and what becomes of those who are not who they say.

use weir_core::relay::frame::{Frame, HEADER, INFO_MAX, Kind};
use weir_core::relay::handshake::ClientInfo;

use crate::client::{Client, NONCE, bytes, info, key, secret, seen};
use crate::server::Sut;

behaviours! {
    a_client_is_told_the_version_and_can_be_reached;
    a_box_that_does_not_open_ends_the_connection;
    info_for_another_server_ends_the_connection;
    info_of_another_key_than_it_says_ends_the_connection;
    a_box_without_json_ends_the_connection;
    fields_that_nobody_knows_are_passed_over;
    a_first_frame_that_is_not_info_ends_the_connection;
    info_of_no_possible_length_ends_the_connection_before_it_has_come;
    info_may_come_a_byte_at_a_time;
    info_said_twice_makes_a_second_connection_of_the_same_key;
    a_client_that_leaves_half_way_leaves_nothing;
    a_handshake_that_goes_nowhere_is_ended;
}

/// What a client says of itself, sealed for that server.
fn sealed(client: &Client, n: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    info().seal(&secret(n), &client.server, NONCE, &mut bytes);
    bytes
}

fn a_client_is_told_the_version_and_can_be_reached(subject: Sut) {
    let server = server!(subject);
    let mut client = Client::join(&server, 1);
    client.send(Frame::SendPacket(key(1), b"to itself"));
    assert_eq!(client.next(), Some(seen(Frame::RecvPacket(key(1), b"to itself"))));
}

fn a_box_that_does_not_open_ends_the_connection(subject: Sut) {
    let server = server!(subject);
    // The nonce, the tag and the text.
    for at in [HEADER + 32, HEADER + 56, HEADER + 72] {
        let mut client = Client::upgraded(&server);
        let mut said = sealed(&client, 1);
        said[at] ^= 1;
        client.write(&said);
        assert_eq!(client.next(), None);
    }
}

fn info_for_another_server_ends_the_connection(subject: Sut) {
    let server = server!(subject);
    let mut client = Client::upgraded(&server);
    let mut said = Vec::new();
    info().seal(&secret(1), &key(99), NONCE, &mut said);
    client.write(&said);
    assert_eq!(client.next(), None);
}

fn info_of_another_key_than_it_says_ends_the_connection(subject: Sut) {
    let server = server!(subject);
    let mut client = Client::upgraded(&server);
    let mut said = sealed(&client, 1);
    said[HEADER..HEADER + 32].copy_from_slice(&key(2).0);
    client.write(&said);
    assert_eq!(client.next(), None);
}

fn a_box_without_json_ends_the_connection(subject: Sut) {
    use crypto_box::aead::Aead as _;
    let server = server!(subject);
    for text in ["", "{", "[]", "{\"version\": \"two\"}", "{\"meshKey\": \"short\"}"] {
        let mut client = Client::upgraded(&server);
        let with = crypto_box::SalsaBox::new(&client.server.0.into(), &crypto_box::SecretKey::from([1; 32]));
        let sealed = with.encrypt(&NONCE.into(), text.as_bytes()).expect("a short text");
        client.send(Frame::ClientInfo(key(1), NONCE, &sealed));
        assert_eq!(client.next(), None, "{text}");
    }
}

fn fields_that_nobody_knows_are_passed_over(subject: Sut) {
    use crypto_box::aead::Aead as _;
    let server = server!(subject);
    let mut client = Client::upgraded(&server);
    let with = crypto_box::SalsaBox::new(&client.server.0.into(), &crypto_box::SecretKey::from([1; 32]));
    let text = br#"{"version": 2, "Tomorrow": {"a": [1, 2]}, "CanAckPings": true}"#;
    let sealed = with.encrypt(&NONCE.into(), &text[..]).expect("a short text");
    client.send(Frame::ClientInfo(key(1), NONCE, &sealed));
    client.take_server_info(&secret(1));
}

fn a_first_frame_that_is_not_info_ends_the_connection(subject: Sut) {
    let server = server!(subject);
    let ping = bytes(Frame::Ping(b"12345678"));
    let packet = bytes(Frame::SendPacket(key(1), b"data"));
    for said in [&ping[..], &packet, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"] {
        let mut client = Client::upgraded(&server);
        client.write(said);
        assert_eq!(client.next(), None);
    }
}

fn info_of_no_possible_length_ends_the_connection_before_it_has_come(subject: Sut) {
    let server = server!(subject);
    for length in [0, 32, 55, INFO_MAX as u32 + 1, u32::MAX] {
        let mut client = Client::upgraded(&server);
        let [a, b, c, d] = length.to_be_bytes();
        client.write(&[Kind::ClientInfo as u8, a, b, c, d]);
        assert_eq!(client.next(), None, "{length} bytes");
    }
}

fn info_may_come_a_byte_at_a_time(subject: Sut) {
    let server = server!(subject);
    let mut client = Client::upgraded(&server);
    sealed(&client, 1).iter().for_each(|&byte| client.write(&[byte]));
    client.take_server_info(&secret(1));
}

/// Nothing of the server's is in what a client says, so the protocol cannot tell. TLS does.
fn info_said_twice_makes_a_second_connection_of_the_same_key(subject: Sut) {
    let server = server!(subject);
    let mut first = Client::upgraded(&server);
    let said = sealed(&first, 1);
    first.write(&said);
    first.take_server_info(&secret(1));
    let mut second = Client::upgraded(&server);
    second.write(&said);
    second.take_server_info(&secret(1));
    assert_eq!(first.before_pong(), []);
}

fn a_client_that_leaves_half_way_leaves_nothing(subject: Sut) {
    let server = server!(subject);
    let mut client = Client::upgraded(&server);
    let said = sealed(&client, 1);
    client.write(&said[..said.len() - 1]);
    drop(client);
    let mut other = Client::join_mesh(&server, 2);
    other.send(Frame::WatchConns);
    let here = other.before_pong();
    assert!(here.iter().all(|seen| !matches!(peer(seen), Some(who) if who == key(1))), "{here:?}");
}

fn peer(seen: &crate::client::Seen) -> Option<weir_core::relay::Key> {
    match Frame::parse(seen.0[0], &seen.0[HEADER..]) {
        Ok(Frame::PeerPresent(key, _)) => Some(key),
        _ => None,
    }
}

fn a_handshake_that_goes_nowhere_is_ended(subject: Sut) {
    let server = server!(subject);
    let mut silent = Client::upgraded(&server);
    let mut half = Client::upgraded(&server);
    let said = sealed(&half, 2);
    half.write(&said[..40]);
    assert_eq!((silent.next(), half.next()), (None, None));
    // Nobody else was held up, and a mesh key of another length is no reason to.
    Client::join_as(&server, &secret(1), &ClientInfo { app_name: "x".into(), ..info() });
}
