//! Attacks on memory: what strangers and clients cost a relay stays below what is said of it, and others are served meanwhile.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::net::sockopt;
use rustls::pki_types::ServerName;
use rustls::version::TLS13;
use weir_core::relay::frame::{Frame, HEADER, Key, head};
use weir_core::relay::handshake::ClientInfo;
use weir_io::tls::{self, ClientOptions, Handshake, Progress, Trust};
use weir_io::{netns, process};
use weir_relay::session::memory_most;

use super::testbed::{RunningRelay, Testbed};
use crate::client::{Client, secret};
use crate::machine::{PATIENCE, until, until_within};

/// What a process may take besides: tables and allocator's arenas that grow once, code that was not run before.
const BESIDES: usize = 24 << 20;
/// What a connection may have in buffers before it is a client (docs/relay.md), and its tasks and socket beside them.
const STRANGER_MOST: usize = 20 << 10;
const TASK_MOST: usize = 32 << 10;

fn connect(testbed: &Testbed) -> TcpStream {
    let at = Testbed::at("127.0.0.1");
    let stream = netns::inside(&testbed.relay, || TcpStream::connect_timeout(&at, PATIENCE));
    let stream = stream.expect("the namespace is there").expect("the kernel takes it");
    stream.set_read_timeout(Some(PATIENCE * 3)).expect("a timeout");
    stream
}

/// Two clients that must be served whatever goes on.
struct Pair(Client, Client);

impl Pair {
    fn served(&mut self) {
        for n in 0..20u8 {
            self.0.reaches(&mut self.1, &[n; 1200]);
            self.1.reaches(&mut self.0, &[n; 40]);
        }
    }
}

/// The relay has grown by no more than this, and its books balance.
fn assert_bounded(relay: &RunningRelay, before: usize, bound: usize) {
    let grown = relay.resident().saturating_sub(before);
    assert!(grown <= bound + BESIDES, "{grown} bytes more, at most {bound} + {BESIDES} are said");
    relay.assert_conserved();
}

#[test]
fn a_flood_of_half_requests_costs_what_those_on_their_way_may_and_keeps_no_client_out() {
    let test = "a_flood_of_half_requests_costs_what_those_on_their_way_may_and_keeps_no_client_out";
    let Some(testbed) = Testbed::new(test) else { return };
    const ON_THEIR_WAY: usize = 200;
    const FLOOD: usize = 2000;
    process::raise_descriptors(2 * FLOOD as u64 + 500).expect("root may");
    let relay = testbed.start(&format!("[relay.limits]\nhandshakes = {ON_THEIR_WAY}\n"), &[]);
    let mut pair = Pair(testbed.client(1), testbed.client(2));
    pair.served();
    let before = relay.resident();
    let half = [b"GET /derp HTTP/1.1\r\nX: ".as_slice(), &[b'x'; 15 << 10]].concat();
    let mut flood = Vec::new();
    for n in 0..FLOOD {
        let mut stream = connect(&testbed);
        // One that was let go in the middle has cost what it may.
        let _ = stream.write_all(&half);
        flood.push(stream);
        if n % 500 == 499 {
            pair.served();
        }
    }
    until("most have been let go", || {
        let ended = relay.metric("weir_relay_ended_total", "\"handshake_limit");
        (ended >= (FLOOD - ON_THEIR_WAY - 8) as i64).then_some(())
    });
    assert_bounded(&relay, before, ON_THEIR_WAY * (STRANGER_MOST + TASK_MOST));
    let mut third = testbed.client(3);
    third.reaches(&mut pair.0, b"let in among them");
    drop(flood);
}

#[test]
fn bodies_are_refused_unread_however_long_they_are() {
    let Some(testbed) = Testbed::new("bodies_are_refused_unread_however_long_they_are") else { return };
    let relay = testbed.start("", &[]);
    let mut pair = Pair(testbed.client(1), testbed.client(2));
    pair.served();
    let before = relay.resident();
    for how in ["Content-Length: 4000000000", "Transfer-Encoding: chunked"] {
        for path in ["/derp", "/derp/probe", "/metrics"] {
            let mut stream = connect(&testbed);
            let head = format!("POST {path} HTTP/1.1\r\nHost: h\r\n{how}\r\n\r\n");
            stream.write_all(head.as_bytes()).expect("the head is read");
            let sent = (0..1024).take_while(|_| stream.write_all(&[b'0'; 64 << 10]).is_ok()).count();
            assert!(sent < 1024, "{path}: 64 MiB were read");
            let mut answer = Vec::new();
            // A reset may have overtaken the answer.
            match stream.read_to_end(&mut answer) {
                Ok(_) => {
                    assert!(answer.starts_with(b"HTTP/1.1 413 "), "{}", String::from_utf8_lossy(&answer))
                }
                Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionReset, "{e}"),
            }
        }
    }
    pair.served();
    assert_bounded(&relay, before, STRANGER_MOST + TASK_MOST);
}

/// `WEIR_SLOW_READERS` makes it a campaign, which takes as much longer as there are more.
#[test]
fn slow_readers_hold_their_queues_and_no_more() {
    let Some(testbed) = Testbed::new("slow_readers_hold_their_queues_and_no_more") else { return };
    const QUEUE: usize = 131_072;
    let told = std::env::var("WEIR_SLOW_READERS").ok().and_then(|n| n.parse::<u64>().ok());
    let readers = told.unwrap_or(100);
    let patience = PATIENCE * (1 + readers as u32 / 500);
    process::raise_descriptors(2 * readers + 500).expect("root may");
    let relay = testbed.start(&format!("[relay.limits]\nqueue_bytes = {QUEUE}\n"), &[]);
    let mut pair = Pair(testbed.client(1), testbed.client(2));
    pair.served();
    let before = relay.resident();
    let slow: Vec<Client> = (100..100 + readers).map(|n| testbed.client(n)).collect();
    for client in &slow {
        sockopt::set_socket_recv_buffer_size(&client.socket, 4096).expect("a small buffer");
        client.socket.set_nonblocking(true).expect("set");
    }
    let keys: Vec<Key> = slow.iter().map(|client| client.key).collect();
    let mut flood = testbed.client(99);
    let over = AtomicBool::new(false);
    let grown = thread::scope(|scope| {
        let over = &over;
        scope.spawn(move || {
            let mut all = slow;
            while !over.load(Ordering::Relaxed) {
                // So little that none is let go, and none keeps up.
                all.iter_mut().for_each(|client| drop(client.socket.read(&mut [0; 512])));
                thread::sleep(std::time::Duration::from_millis(50));
            }
        });
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                for &key in &keys {
                    (0..16).for_each(|_| {
                        flood.send(key, &[0; 1400]).expect("the relay reads whatever becomes of it")
                    });
                }
            }
        });
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until_within(patience, "every queue is full", || {
                let dropped = relay.metric("weir_relay_packets_dropped_total", "");
                pair.served();
                (dropped > 400 * readers as i64).then_some(())
            });
            let held = relay.metric("weir_relay_memory_connections_bytes", "");
            let grown = relay.resident().saturating_sub(before);
            let most = readers as usize * memory_most(QUEUE);
            assert!(held as usize <= most, "{held} bytes are said to be held, at most {most} may be");
            assert!(grown <= most + BESIDES, "{grown} bytes more, at most {most} are said");
            grown
        }));
        over.store(true, Ordering::Relaxed);
        checked.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    if told.is_some() {
        println!(
            "{readers} slow readers: the relay grew by {grown} bytes, {} each",
            grown / readers as usize
        );
    }
    drop(pair);
    relay.until_metric("weir_relay_connections", "", 0);
    relay.assert_conserved();
}

/// A client over TLS 1.3 whose records are its own.
struct Secured {
    stream: TcpStream,
    session: tls::Session,
    received: Vec<u8>,
    plain: Vec<u8>,
}

impl Secured {
    fn connect(testbed: &Testbed, number: u64) -> Secured {
        let options = ClientOptions { versions: vec![&TLS13], ..ClientOptions::default() };
        let config = Arc::new(tls::client_config(Trust::Unverified, &options).expect("a configuration"));
        let name = ServerName::try_from("relay.test").expect("a name");
        let mut handshake = Handshake::client(config, name).expect("a client");
        let mut stream = connect(testbed);
        let (mut received, mut out) = (Vec::new(), Vec::new());
        while handshake.advance(&mut received, &mut out).expect("it goes on") != Progress::Ready {
            stream.write_all(&out).expect("the relay reads");
            out.clear();
            read(&mut stream, &mut received);
        }
        stream.write_all(&out).expect("the relay reads");
        let (session, plain) = handshake.finish().expect("keys");
        let mut client = Secured { stream, session, received, plain };
        client.say(b"GET /derp HTTP/1.1\r\nHost: h\r\nUpgrade: DERP\r\nConnection: Upgrade\r\n\r\n");
        let end = client.until(|plain| plain.windows(4).position(|w| w == b"\r\n\r\n").map(|at| at + 4));
        client.plain.drain(..end);
        let (code, payload) = client.frame();
        let Ok(Frame::ServerKey(server)) = Frame::parse(code, &payload) else { panic!("no ServerKey") };
        let mut info = Vec::new();
        let says = ClientInfo { version: 2, ..ClientInfo::default() };
        says.seal(&secret(number), &server, [7; 24], &mut info);
        client.say(&info);
        client.frame();
        client
    }

    fn say(&mut self, plain: &[u8]) {
        let mut out = Vec::new();
        self.session.seal_into(plain, &mut out).expect("sealed");
        self.stream.write_all(&out).expect("the relay reads");
    }

    fn until<T>(&mut self, found: impl Fn(&[u8]) -> Option<T>) -> T {
        loop {
            if let Some(found) = found(&self.plain) {
                return found;
            }
            read(&mut self.stream, &mut self.received);
            let opened = self.session.open(&mut self.received).expect("the relay is honest");
            self.plain.extend_from_slice(&self.received[opened.plain]);
            self.received.drain(..opened.consumed);
        }
    }

    fn frame(&mut self) -> (u8, Vec<u8>) {
        let (code, length) = self.until(|plain| head(plain).filter(|(_, len)| plain.len() >= HEADER + len));
        let payload = self.plain[HEADER..HEADER + length].to_vec();
        self.plain.drain(..HEADER + length);
        (code, payload)
    }
}

fn read(stream: &mut TcpStream, into: &mut Vec<u8>) {
    let mut piece = [0; 16 << 10];
    let length = loop {
        match stream.read(&mut piece) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            read => break read.expect("the relay speaks"),
        }
    };
    assert!(length > 0, "the relay closed");
    into.extend_from_slice(&piece[..length]);
}

#[test]
fn key_updates_without_end_cost_no_memory_and_without_data_the_connection() {
    let test = "key_updates_without_end_cost_no_memory_and_without_data_the_connection";
    let Some(testbed) = Testbed::new(test) else { return };
    let relay = testbed.start_secured("");
    let (mut one, mut two) = (Secured::connect(&testbed, 1), Secured::connect(&testbed, 2));
    let mut served = |n: u64| {
        let mut packet = Vec::new();
        Frame::SendPacket(secret(2).public(), &n.to_le_bytes()).write(&mut packet);
        one.say(&packet);
        let (code, payload) = two.frame();
        assert!(
            matches!(Frame::parse(code, &payload), Ok(Frame::RecvPacket(_, data)) if data == n.to_le_bytes())
        );
    };
    served(0);
    let mut attacker = Secured::connect(&testbed, 3);
    let before = relay.resident();
    // Each asks for new keys of the relay's, and shows that it means something by it. Nobody reads the answers.
    let mut harmless = Vec::new();
    Frame::NotePreferred(true).write(&mut harmless);
    for n in 1..=40 {
        let mut flood = Vec::new();
        for _ in 0..100 {
            attacker.session.update_with(true, &mut flood).expect("TLS 1.3 can");
            attacker.session.seal_into(&harmless, &mut flood).expect("sealed");
        }
        attacker.stream.write_all(&flood).expect("the relay reads");
        served(n);
    }
    assert_bounded(&relay, before, memory_most(1 << 20));
    // And without data between them, there is an end.
    let mut flood = Vec::new();
    for _ in 0..100 {
        attacker.session.update_with(true, &mut flood).expect("TLS 1.3 can");
    }
    let _ = attacker.stream.write_all(&flood);
    let mut rest = Vec::new();
    if let Err(e) = attacker.stream.read_to_end(&mut rest) {
        assert_eq!(e.kind(), ErrorKind::ConnectionReset, "{e}");
    }
    relay.until_metric("weir_relay_connections", "", 2);
    served(41);
}
