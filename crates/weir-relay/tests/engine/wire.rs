//! TLS that the worker does itself, and WebSocket.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use weir_core::relay::Frame;
use weir_io::tls::{ClientOptions, Handshake, Progress, Session, Trust, client_config, server_config};
use weir_relay::{Relay, TlsMode};

use crate::member::{As, Member, Wire, bytes, engine, pair, wait_for};

/// Both ends of a TLS stream before its handshake: the client's, and the server's.
fn handshakes(version: &'static rustls::SupportedProtocolVersion) -> (Handshake, Handshake) {
    let made = rcgen::generate_simple_self_signed(vec!["relay.test".to_owned()]).expect("a certificate");
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let certified =
        CertifiedKey::from_der(vec![made.cert.der().clone()], key, &aws_lc_rs::default_provider());
    let resolver = Arc::new(SingleCertAndKey::from(certified.expect("a pair of keys")));
    let server = server_config(resolver).expect("a configuration");
    let options = ClientOptions { versions: vec![version], ..ClientOptions::default() };
    let client = client_config(Trust::Anyone, &options).expect("a configuration");
    let name = ServerName::try_from("relay.test").expect("a name");
    let client = Handshake::client(Arc::new(client), name).expect("a client");
    (client, Handshake::server(Arc::new(server)).expect("a server"))
}

fn shake(client: &mut Handshake, server: &mut Handshake) {
    let (mut up, mut down) = (Vec::new(), Vec::new());
    loop {
        let a = client.advance(&mut down, &mut up).expect("the client goes on");
        let b = server.advance(&mut up, &mut down).expect("the server goes on");
        if a == Progress::Ready && b == Progress::Ready && up.is_empty() && down.is_empty() {
            break;
        }
    }
}

/// Both sides' sessions after the handshake.
fn sessions(version: &'static rustls::SupportedProtocolVersion) -> (Session, Session) {
    let (mut client, mut server) = handshakes(version);
    shake(&mut client, &mut server);
    (client.finish().expect("keys").0, server.finish().expect("keys").0)
}

pub fn secured(relay: &Relay, number: u8, version: &'static rustls::SupportedProtocolVersion) -> Member {
    let (client, server) = sessions(version);
    let wire = Wire::Tls(Box::new(client), Vec::new());
    Member::over(relay, number, As::default(), pair(), (wire, TlsMode::User(server))).greeted()
}

pub fn framed(relay: &Relay, number: u8) -> Member {
    let wire = Wire::WebSocket(Vec::new());
    Member::over(relay, number, As::default(), pair(), (wire, TlsMode::Plain)).greeted()
}

fn both_ways(a: &mut Member, b: &mut Member) {
    one_way(a, b);
    one_way(b, a);
}

/// 400 packets of all lengths, in all kinds of pieces.
fn one_way(from: &mut Member, to: &mut Member) {
    let data = |n: usize| -> Vec<u8> { (0..n * 11).map(|i| (i * 3 + n) as u8).collect() };
    let (source, key) = (from.key, to.key);
    let stream: Vec<u8> = (0..400).flat_map(|n| bytes(&Frame::SendPacket(key, &data(n)))).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut rest, mut piece) = (&stream[..], 1);
            while !rest.is_empty() {
                let (now, later) = rest.split_at(piece.min(rest.len()));
                from.write(now);
                rest = later;
                piece = piece * 3 % 50_021 + 1;
            }
        });
        for n in 0..400 {
            assert!(to.packet() == (source, data(n)), "packet {n} is not what was sent");
        }
    });
}

#[test]
fn records_are_opened_and_sealed_however_they_are_cut() {
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        for epoll in [false, true] {
            let relay = engine(1, |engine| engine.epoll = epoll);
            let mut a = secured(&relay, 1, version);
            let mut b = secured(&relay, 2, version);
            both_ways(&mut a, &mut b);
            let report = wait_for(&relay, "the ledger", |report| report.workers[0].packets_forwarded == 800);
            assert_eq!(report.balance(), 0);
        }
    }
}

#[test]
fn clients_with_and_without_tls_and_websocket_reach_each_other() {
    let relay = engine(2, |_| {});
    let mut sealed = secured(&relay, 1, &rustls::version::TLS13);
    let mut plain = Member::join(&relay, 2);
    let mut messages = framed(&relay, 3);
    both_ways(&mut sealed, &mut plain);
    both_ways(&mut plain, &mut messages);
    both_ways(&mut messages, &mut sealed);
    let names: Vec<_> = relay.connections().iter().map(|c| (c.tls, c.websocket)).collect();
    for wanted in [("user", false), ("off", false), ("off", true)] {
        assert!(names.contains(&wanted), "{names:?}");
    }
}

#[test]
fn a_record_that_was_tampered_with_ends_the_connection() {
    use std::io::Write;
    let relay = engine(1, |_| {});
    let mut a = secured(&relay, 1, &rustls::version::TLS13);
    let b = secured(&relay, 2, &rustls::version::TLS13);
    a.socket.write_all(&[23, 3, 3, 0, 30]).expect("the engine reads");
    a.socket.write_all(&[7; 30]).expect("the engine reads");
    wait_for(&relay, "the end", |report| report.workers[0].connections == 1);
    drop(b);
}

#[test]
fn who_says_goodbye_hears_one_and_who_just_hangs_up_does_not() {
    use std::io::{Read, Write};
    for epoll in [false, true] {
        let relay = engine(1, |engine| engine.epoll = epoll);
        for says_goodbye in [true, false] {
            let mut member = secured(&relay, 1, &rustls::version::TLS13);
            if says_goodbye && let Wire::Tls(session, _) = &mut member.wire {
                let mut words = Vec::new();
                session.close_notify(&mut words).expect("sealed");
                member.socket.write_all(&words).expect("the engine reads");
            }
            member.socket.shutdown(std::net::Shutdown::Write).expect("open");
            let mut last = Vec::new();
            member.socket.read_to_end(&mut last).expect("closed in order");
            assert_eq!(!last.is_empty(), says_goodbye);
        }
    }
}

#[test]
fn a_full_socket_never_breaks_the_stream_of_records() {
    let relay = engine(1, |engine| engine.queue_bytes = 256 << 10);
    let mut a = Member::join(&relay, 1);
    let mut b = secured(&relay, 2, &rustls::version::TLS13);
    let one = bytes(&Frame::SendPacket(b.key, &[5; 1400]));
    let many = one.repeat(64);
    for _ in 0..200 {
        a.write(&many);
    }
    let report = wait_for(&relay, "all packets", |report| report.workers[0].packets_in == 64 * 200);
    assert!(report.workers[0].drops.packets() > 0, "the socket took everything; the test needs more packets");
    // What was kept arrives whole, and new packets after it.
    a.send(b.key, b"the last");
    loop {
        let (from, data) = b.packet();
        assert_eq!(from, a.key);
        if data == b"the last" {
            break;
        }
        assert!(data == [5; 1400]);
    }
    wait_for(&relay, "the ledger", |report| report.balance() == 0 && report.workers[0].packets_held == 0);
}

#[test]
fn records_by_the_kernel_are_as_good_as_ours() {
    use std::io::Write;
    use std::os::fd::AsFd;
    let relay = engine(1, |_| {});
    let (mut client, mut server) = handshakes(&rustls::version::TLS13);
    shake(&mut client, &mut server);
    let (ours, theirs) = pair();
    let established = server.establish().expect("keys").0;
    let kernel = match established.offload(theirs.as_fd()) {
        Ok(kernel) => kernel,
        Err(refused) => {
            let test = "records_by_the_kernel_are_as_good_as_ours";
            let _ = writeln!(std::io::stderr(), "SKIP {test}: {}", refused.why);
            return;
        }
    };
    let wire = Wire::Tls(Box::new(client.finish().expect("keys").0), Vec::new());
    let mut a =
        Member::over(&relay, 1, As::default(), (ours, theirs), (wire, TlsMode::Kernel(kernel))).greeted();
    let mut b = Member::join(&relay, 2);
    both_ways(&mut a, &mut b);
    assert!(relay.connections().iter().any(|connection| connection.tls == "kernel"));
    drop(a);
    wait_for(&relay, "the end", |report| report.workers[0].connections == 1);
}

#[test]
fn few_buffers_are_enough() {
    for (epoll, buffers) in [(false, 1), (false, 2), (true, 1), (true, 2)] {
        let relay = engine(1, |engine| (engine.epoll, engine.buffers) = (epoll, buffers));
        let mut sealed = secured(&relay, 1, &rustls::version::TLS13);
        let mut plain = Member::join(&relay, 2);
        both_ways(&mut sealed, &mut plain);
    }
}
