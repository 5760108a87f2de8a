//! Handshakes and records in memory.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::{ClientConnection, Connection, HandshakeKind, NamedGroup, ServerConfig, ServerConnection};
use weir_io::tls::record::{PLAIN_LIMIT, missing};
use weir_io::tls::{Handshake, News, TlsError};

use crate::ends::{
    SUITES, client_config, feed, handshakes, heard, name, pattern, said, sealed, server_config, sessions,
    shake_with,
};

#[test]
fn data_passes_both_ways_in_every_suite() {
    for (version, suite) in SUITES {
        let (mut client, mut server) = sessions(version, suite);
        for (i, length) in [0, 1, 15, 16, 1400, PLAIN_LIMIT].into_iter().enumerate() {
            let plain = pattern(length, i);
            let mut record = sealed(&mut client, &plain);
            let opened = server.open(&mut record).expect("opens");
            assert_eq!(record[opened.plain.clone()], plain, "{suite:?} to the server, {length} bytes");
            assert_eq!((opened.consumed, opened.news), (record.len(), None));
            let mut record = sealed(&mut server, &plain);
            let opened = client.open(&mut record).expect("opens");
            assert_eq!(record[opened.plain], plain, "{suite:?} to the client, {length} bytes");
        }
    }
}

#[test]
fn handshake_ends_when_bytes_come_one_at_a_time() {
    for (version, suite) in SUITES {
        let (client, server) = handshakes(version, suite, 1);
        let facts = server.facts().expect("it is over");
        assert_eq!((facts.version, facts.suite), (version.version, suite));
        assert_eq!(client.facts(), Some(facts));
    }
}

#[test]
fn tls_13_agrees_on_a_key_with_ml_kem_and_nobody_is_asked_again() {
    let (version, suite) = SUITES[0];
    let (client, server) = handshakes(version, suite, usize::MAX);
    for facts in [client.facts(), server.facts()] {
        assert_eq!(facts.expect("it is over").group, NamedGroup::X25519MLKEM768);
    }
    // A server that has never heard of it finds the other share beside it.
    let certificates = server_config().cert_resolver.clone();
    let mut provider = aws_lc_rs::default_provider();
    provider.kx_groups = vec![aws_lc_rs::kx_group::X25519];
    let classic = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[version])
        .expect("it has this version")
        .with_no_client_auth()
        .with_cert_resolver(certificates);
    let mut theirs = Connection::from(ServerConnection::new(Arc::new(classic)).expect("a server"));
    let mut ours = Handshake::client(client_config(version, suite), name()).expect("a client");
    shake_with(&mut theirs, &mut ours);
    assert_eq!(ours.facts().expect("it is over").group, NamedGroup::X25519);
    assert_eq!(theirs.handshake_kind(), Some(HandshakeKind::Full));
}

#[test]
fn plaintext_of_neighbouring_records_is_contiguous() {
    for (version, suite) in SUITES {
        let (mut client, mut server) = sessions(version, suite);
        let plain = pattern(50_000, 3);
        let mut bytes = Vec::new();
        for part in plain.chunks(7_001) {
            bytes.extend(sealed(&mut client, part));
        }
        let whole = bytes.len();
        // The beginning of a record that is not all there.
        bytes.extend(&sealed(&mut client, b"later")[..9]);
        let opened = server.open(&mut bytes).expect("opens");
        assert!(bytes[opened.plain] == plain, "{suite:?}");
        assert_eq!(opened.consumed, whole);
    }
}

#[test]
fn records_that_arrive_byte_by_byte_open_when_they_are_whole() {
    for (version, suite) in SUITES {
        let (mut client, mut server) = sessions(version, suite);
        let mut received = Vec::new();
        for byte in sealed(&mut client, b"one packet") {
            assert!(server.open(&mut received).expect("nothing is wrong").plain.is_empty());
            assert!(received.is_empty() || missing(&received) > 0);
            received.push(byte);
        }
        assert_eq!(missing(&received), 0);
        let opened = server.open(&mut received).expect("opens");
        assert_eq!(&received[opened.plain], b"one packet");
    }
}

#[test]
fn sealing_from_elsewhere_and_in_place_are_understood_alike() {
    for (version, suite) in SUITES {
        let (mut client, mut server) = sessions(version, suite);
        let plain = pattern(16_000, 1);
        let mut bytes = sealed(&mut client, &plain);
        let mut record = vec![0; plain.len() + client.overhead()];
        client.seal_from(&plain, &mut record).expect("sealed");
        bytes.extend(record);
        client.seal_into(&plain, &mut bytes).expect("sealed");
        let opened = server.open(&mut bytes).expect("opens");
        assert!(bytes[opened.plain] == [&plain[..], &plain, &plain].concat(), "{suite:?}");
    }
}

#[test]
fn rustls_client_and_our_server_understand_each_other() {
    for (version, suite) in SUITES {
        let client = ClientConnection::new(client_config(version, suite), name()).expect("a client");
        let mut theirs = Connection::from(client);
        let mut ours = weir_io::tls::Handshake::server(server_config()).expect("a server");
        shake_with(&mut theirs, &mut ours);
        // A word each way under rustls on both sides, so that sequence numbers are not where they began.
        let (mut early, mut out) = (Vec::new(), Vec::new());
        ours.read(&mut said(&mut theirs, b"GET /derp"), &mut early, &mut out).expect("is read");
        assert_eq!(early, b"GET /derp");
        ours.write(b"101", &mut Vec::new(), &mut out).expect("is written");
        feed(&mut theirs, &out);
        assert_eq!(heard(&mut theirs, 3), b"101");
        let (mut session, rest) = ours.finish().expect("the keys");
        assert!(rest.is_empty());
        exchange(&mut theirs, &mut session);
    }
}

#[test]
fn our_client_and_rustls_server_understand_each_other() {
    for (version, suite) in SUITES {
        let mut theirs = Connection::from(ServerConnection::new(server_config()).expect("a server"));
        let mut ours =
            weir_io::tls::Handshake::client(client_config(version, suite), name()).expect("a client");
        shake_with(&mut theirs, &mut ours);
        let (mut session, rest) = ours.finish().expect("the keys");
        assert!(rest.is_empty());
        exchange(&mut theirs, &mut session);
    }
}

/// Bulk both ways between rustls' connection and a session, then a clean close of both.
fn exchange(theirs: &mut Connection, session: &mut weir_io::tls::Session) {
    let plain = pattern(100_000, 9);
    let mut bytes = said(theirs, &plain);
    let opened = session.open(&mut bytes).expect("opens");
    assert!(bytes[opened.plain] == plain);
    let mut bytes = Vec::new();
    session.seal_into(&plain[..15_000], &mut bytes).expect("sealed");
    session.close_notify(&mut bytes).expect("closed");
    feed(theirs, &bytes);
    assert!(heard(theirs, 15_000) == plain[..15_000]);
    theirs.send_close_notify();
    let opened = session.open(&mut said(theirs, b"")).expect("opens");
    let mut close = Vec::new();
    theirs.write_tls(&mut close).expect("memory takes everything");
    let closed = session.open(&mut close).expect("opens");
    assert_eq!((opened.news, closed.news), (None, Some(News::CloseNotify)));
}

#[test]
fn damaged_records_do_not_open() {
    for (version, suite) in SUITES {
        let (mut client, _) = sessions(version, suite);
        let record = sealed(&mut client, b"a packet of some length");
        for at in 5..record.len() {
            let (mut client, mut server) = sessions(version, suite);
            let mut record = sealed(&mut client, b"a packet of some length");
            record[at] ^= 1;
            assert_eq!(server.open(&mut record), Err(TlsError::Forged), "{suite:?}, byte {at}");
            if at > 8 {
                break; // handshakes are slow: a byte of the explicit nonce or of the body is enough
            }
        }
    }
}

#[test]
fn a_first_message_that_is_said_to_be_endless_is_refused_and_nothing_more_is_asked_of_rustls() {
    // A ClientHello of 591,871 bytes, of which a record has the first 131: rustls refuses it, and keeps where it was.
    let mut received = vec![22, 3, 1, 0, 0x87, 1, 9, 7, 0xff];
    received.resize(5 + 0x87, 7);
    let mut out = Vec::new();
    let mut server = Handshake::server(server_config()).expect("a server");
    let refused = server.advance(&mut received, &mut out).expect_err("too long");
    received.clear();
    assert_eq!(server.advance(&mut received, &mut out), Err(refused.clone()));
    assert_eq!(server.close_notify(&mut received, &mut out), Err(refused));
}
