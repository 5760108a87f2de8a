//! What comes between data after the handshake: key updates, tickets, alerts, floods.

use rustls::version::{TLS12, TLS13};
use rustls::{CipherSuite, ClientConnection, Connection, ServerConnection};
use weir_io::tls::{Handshake, News, Session, TlsError, alert};

use crate::ends::{
    SUITES, client_config, feed, heard, name, pattern, said, sealed, server_config, sessions, shake_with,
};

const SUITE_12: CipherSuite = CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256;
const SUITE_13: CipherSuite = CipherSuite::TLS13_AES_128_GCM_SHA256;

/// rustls' client and our server, in TLS 1.3.
fn with_rustls() -> (Connection, Session) {
    let client = ClientConnection::new(client_config(&TLS13, SUITE_13), name()).expect("a client");
    let mut theirs = Connection::from(client);
    let mut ours = Handshake::server(server_config()).expect("a server");
    shake_with(&mut theirs, &mut ours);
    (theirs, ours.finish().expect("the keys").0)
}

#[test]
fn key_updates_of_rustls_are_followed_in_the_middle_of_a_buffer() {
    let (mut theirs, mut session) = with_rustls();
    let plain = pattern(30_000, 5);
    let mut bytes = said(&mut theirs, &plain[..10_000]);
    theirs.refresh_traffic_keys().expect("TLS 1.3 can");
    bytes.extend(said(&mut theirs, &plain[10_000..20_000]));
    theirs.refresh_traffic_keys().expect("TLS 1.3 can");
    bytes.extend(said(&mut theirs, &plain[20_000..]));
    let opened = session.open(&mut bytes).expect("opens");
    assert!(bytes[opened.plain] == plain);
    assert_eq!(opened.consumed, bytes.len());
}

#[test]
fn our_key_updates_are_followed_by_rustls() {
    let (mut theirs, mut session) = with_rustls();
    for round in 0..3 {
        let mut out = Vec::new();
        session.update(&mut out).expect("TLS 1.3 can");
        session.seal_into(&pattern(5_000, round), &mut out).expect("sealed");
        feed(&mut theirs, &out);
        assert!(heard(&mut theirs, 5_000) == pattern(5_000, round), "round {round}");
    }
}

#[test]
fn wish_for_our_new_keys_is_news_and_its_answer_is_understood() {
    let (mut client, mut server) = sessions(&TLS13, SUITE_13);
    // What a peer sends that wants an update in return: ours does not ask, so it is built of its parts.
    let mut wish = wish(&mut client);
    let opened = server.open(&mut wish).expect("opens");
    assert_eq!(opened.news, Some(News::UpdateWanted));
    let mut out = Vec::new();
    server.update(&mut out).expect("TLS 1.3 can");
    server.seal_into(b"under the new key", &mut out).expect("sealed");
    let opened = client.open(&mut out).expect("opens");
    assert_eq!((&out[opened.plain], opened.news), (&b"under the new key"[..], None));
}

/// A key update that asks for one, and the change of keys that follows it.
fn wish(client: &mut Session) -> Vec<u8> {
    let mut out = Vec::new();
    client.update_with(true, &mut out).expect("TLS 1.3 can");
    out
}

#[test]
fn key_updates_without_data_between_them_end_the_stream() {
    let (mut client, mut server) = sessions(&TLS13, SUITE_13);
    let flood = (0..40).try_for_each(|_| server.open(&mut wish(&mut client)).map(drop));
    assert_eq!(flood, Err(TlsError::Flood { what: "messages without data" }));
    let (mut client, mut server) = sessions(&TLS13, SUITE_13);
    for _ in 0..40 {
        let mut bytes = wish(&mut client);
        bytes.extend(sealed(&mut client, b"data"));
        server.open(&mut bytes).expect("honest peers update keys as often as they like");
    }
}

#[test]
fn empty_records_without_end_end_the_stream() {
    for (version, suite) in SUITES {
        let (mut client, mut server) = sessions(version, suite);
        let flood = (0..40).try_for_each(|_| server.open(&mut sealed(&mut client, b"")).map(drop));
        assert_eq!(flood, Err(TlsError::Flood { what: "empty records" }));
    }
}

#[test]
fn neither_a_new_key_nor_an_empty_record_makes_a_flood_begin_anew() {
    let (mut client, mut server) = sessions(&TLS13, SUITE_13);
    // A key update after each empty record: neither carries data.
    let flood = (0..40).try_for_each(|_| {
        let mut bytes = sealed(&mut client, b"");
        bytes.extend(wish(&mut client));
        server.open(&mut bytes).map(drop)
    });
    assert!(matches!(flood, Err(TlsError::Flood { .. })), "{flood:?}");
    let (mut client, mut server) = sessions(&TLS13, SUITE_13);
    // Thirty empty records under each of two keys.
    let flood = (0..2).try_for_each(|_| {
        let mut bytes: Vec<u8> = (0..30).flat_map(|_| sealed(&mut client, b"")).collect();
        bytes.extend(wish(&mut client));
        server.open(&mut bytes).map(drop)
    });
    assert_eq!(flood, Err(TlsError::Flood { what: "empty records" }));
}

#[test]
fn tickets_of_rustls_are_kept_and_are_no_data() {
    let mut config = Box::new(server_config().as_ref().clone());
    config.send_tls13_tickets = 4;
    config.session_storage = rustls::server::ServerSessionMemoryCache::new(8);
    let server = ServerConnection::new((*config).into()).expect("a server");
    let mut theirs = Connection::from(server);
    let mut ours = Handshake::client(client_config(&TLS13, SUITE_13), name()).expect("a client");
    // The tickets come after the client is ready: it takes its keys before it has read them.
    let (mut at_ours, mut out) = (Vec::new(), Vec::new());
    ours.advance(&mut at_ours, &mut out).expect("goes on");
    feed(&mut theirs, &std::mem::take(&mut out));
    theirs.write_tls(&mut at_ours).expect("memory takes everything");
    while theirs.wants_write() {
        theirs.write_tls(&mut at_ours).expect("memory takes everything");
    }
    ours.advance(&mut at_ours, &mut out).expect("goes on");
    let (mut session, _) = ours.finish().expect("the keys");
    feed(&mut theirs, &out);
    let mut bytes = said(&mut theirs, b"after the tickets");
    assert!(bytes.len() > 300, "tickets come first: {} bytes", bytes.len());
    let opened = session.open(&mut bytes).expect("opens");
    assert_eq!((&bytes[opened.plain], opened.news), (&b"after the tickets"[..], None));
}

#[test]
fn alerts_of_the_peer_are_news_and_nothing_after_them_is_opened() {
    for (version, suite) in SUITES {
        let (mut client, mut server) = sessions(version, suite);
        let mut bytes = sealed(&mut client, b"last words");
        client.alert(&TlsError::Forged, &mut bytes).expect("sealed");
        let end = bytes.len();
        bytes.extend(sealed(&mut client, b"nobody hears"));
        let opened = server.open(&mut bytes).expect("opens");
        assert_eq!(opened.news, Some(News::Alert(alert::BAD_RECORD_MAC)), "{suite:?}");
        assert_eq!((&bytes[opened.plain], opened.consumed), (&b"last words"[..], end));
    }
}

#[test]
fn close_notify_is_news_in_every_suite() {
    for (version, suite) in SUITES {
        let (mut client, mut server) = sessions(version, suite);
        let mut bytes = sealed(&mut client, b"good bye");
        client.close_notify(&mut bytes).expect("sealed");
        let opened = server.open(&mut bytes).expect("opens");
        assert_eq!((&bytes[opened.plain], opened.news), (&b"good bye"[..], Some(News::CloseNotify)));
    }
}

#[test]
fn bytes_that_are_no_records_are_refused_at_their_header() {
    for (version, suite) in SUITES {
        let limit = if version.version == TLS13.version { 16_384 + 256 } else { 16_384 + 2_048 };
        let long = (limit as u16 + 1).to_be_bytes();
        for (header, expected) in [
            (*b"GET /", TlsError::NotTls { kind: b'G', version: 0x4554 }),
            ([23, 2, 0, 0, 1], TlsError::NotTls { kind: 23, version: 0x0200 }),
            ([24, 3, 3, 0, 1], TlsError::NotTls { kind: 24, version: 0x0303 }),
            ([20, 3, 3, 0, 1], TlsError::Unexpected { kind: 20 }),
            ([23, 3, 3, long[0], long[1]], TlsError::TooLong { length: limit + 1, limit }),
            ([23, 3, 3, 0, 0], TlsError::Forged),
        ] {
            let (_, mut server) = sessions(version, suite);
            assert_eq!(server.open(&mut header.clone()), Err(expected), "{suite:?} {header:02x?}");
        }
    }
}

#[test]
fn records_longer_than_allowed_are_not_sealed() {
    let (mut client, _) = sessions(&TLS13, SUITE_13);
    let mut record = vec![0; 16_385 + client.overhead()];
    assert!(matches!(client.seal(&mut record), Err(TlsError::TooLong { length: 16_385, limit: 16_384 })));
    assert!(client.seal(&mut [0; 10]).is_err());
}

#[test]
fn tls_12_cannot_change_keys_and_says_so() {
    let (mut client, _) = sessions(&TLS12, SUITE_12);
    let mut out = Vec::new();
    assert_eq!(client.update(&mut out), Err(TlsError::KeyExhausted));
    assert!(out.is_empty());
}

#[test]
fn handshake_with_what_is_no_tls_ends_with_an_alert() {
    let mut server = Handshake::server(server_config()).expect("a server");
    let mut out = Vec::new();
    let mut received = b"GET / HTTP/1.1\r\n\r\n".to_vec();
    server.advance(&mut received, &mut out).expect_err("this is HTTP");
    assert_eq!(out.first(), Some(&21), "an alert: {out:02x?}");
    let mut client = Handshake::client(client_config(&TLS12, SUITE_12), name()).expect("a client");
    client.advance(&mut b"SSH-2.0-\r\n".to_vec(), &mut Vec::new()).expect_err("this is SSH");
}

#[test]
fn keys_cannot_be_taken_before_the_handshake_is_over() {
    let server = Handshake::server(server_config()).expect("a server");
    assert!(server.finish().is_err());
}

#[test]
fn secrets_are_in_no_debug_text() {
    let (client, server) = crate::ends::handshakes(&TLS13, SUITE_13, usize::MAX);
    let shown = format!("{client:?}");
    assert_eq!(shown, "Handshake { .. }");
    let (established, _) = server.establish().expect("the keys");
    assert_eq!(format!("{established:?}"), "Established { .. }");
    assert_eq!(format!("{:?}", established.session().expect("a session")), "Session { .. }");
}
