//! A DERP client by rustls over a plain socket, which can also misbehave below TLS.
//!
//! Promises: a wait for what must come is bounded and fails the test.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConnection, Error, SupportedProtocolVersion};
use weir_core::relay::frame::{self, Frame, HEADER, Key, Kind};
use weir_core::relay::handshake::{ClientInfo, Secret, ServerInfo};
use weir_io::tls::{ClientOptions, Trust, client_config};

use super::ADDRESS;
use crate::machine::PATIENCE;

fn secret(number: u8) -> Secret {
    Secret::new([number; 32])
}

pub fn key(number: u8) -> Key {
    secret(number).public()
}

pub fn bytes(frame: Frame<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.write(&mut bytes);
    bytes
}

/// What became of waiting for more.
enum More {
    Came,
    /// The relay will say no more; whether it said so in TLS.
    Ended {
        cleanly: bool,
    },
    Broken(Error),
}

pub struct Client {
    pub number: u8,
    socket: TcpStream,
    tls: ClientConnection,
    plain: Vec<u8>,
    server: Key,
}

impl Client {
    /// Connects and reads up to the relay's key.
    pub fn upgraded(number: u8, version: &'static SupportedProtocolVersion) -> Client {
        let options = ClientOptions { suites: Vec::new(), versions: vec![version] };
        let config = client_config(Trust::Anyone, &options).expect("a configuration");
        let name = ServerName::try_from("localhost").expect("a name");
        let tls = ClientConnection::new(Arc::new(config), name).expect("a client");
        let socket = TcpStream::connect(ADDRESS).expect("the relay takes connections");
        socket.set_nodelay(true).expect("a TCP socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("a TCP socket");
        socket.set_write_timeout(Some(PATIENCE)).expect("a TCP socket");
        let mut client = Client { number, socket, tls, plain: Vec::new(), server: Key([0; 32]) };
        client.say(b"GET /derp HTTP/1.1\r\nHost: localhost\r\nUpgrade: DERP\r\nConnection: Upgrade\r\n\r\n");
        let head = loop {
            if let Some(end) = client.plain.windows(4).position(|four| four == b"\r\n\r\n") {
                break client.plain.drain(..end + 4).collect::<Vec<u8>>();
            }
            assert!(matches!(client.more(), More::Came), "ended during the upgrade");
        };
        assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
        let hello = client.next().expect("the relay's key");
        match Frame::parse(hello[0], &hello[HEADER..]) {
            Ok(Frame::ServerKey(key)) => client.server = key,
            other => panic!("the first frame is the relay's key, not {other:?}"),
        }
        client
    }

    /// Connects and does the whole handshake.
    pub fn join(number: u8, version: &'static SupportedProtocolVersion) -> Client {
        let mut client = Client::upgraded(number, version);
        let info = client.info();
        client.write(&info);
        client.take_server_info();
        client
    }

    /// What it says of itself, sealed.
    pub fn info(&mut self) -> Vec<u8> {
        let info = ClientInfo { version: 2, can_ack_pings: true, ..ClientInfo::default() };
        let mut frame = Vec::new();
        info.seal(&secret(self.number), &self.server, [7; 24], &mut frame);
        self.seal(&frame)
    }

    pub fn take_server_info(&mut self) {
        let frame = self.next().expect("the relay's info");
        let frame = Frame::parse(frame[0], &frame[HEADER..]).expect("well formed");
        ServerInfo::open(&secret(self.number), &self.server, &frame).expect("a box for this client");
    }

    /// Records of these bytes, and whatever rustls has to say before them.
    pub fn seal(&mut self, plain: &[u8]) -> Vec<u8> {
        let mut records = Vec::new();
        let mut writer = self.tls.writer();
        // Its own buffer is 64 KiB; less at a time never fills it.
        for part in plain.chunks(16 << 10) {
            writer.write_all(part).expect("room");
            while self.tls.wants_write() {
                self.tls.write_tls(&mut records).expect("into memory");
            }
            writer = self.tls.writer();
        }
        records
    }

    /// Bytes as they are.
    pub fn write(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).expect("the relay reads");
    }

    pub fn send(&mut self, frame: Frame<'_>) {
        self.say(&bytes(frame));
    }

    /// Sealed once the handshake is over, which rustls sees to.
    fn say(&mut self, plain: &[u8]) {
        while self.tls.is_handshaking() {
            self.flush();
            assert!(!self.tls.is_handshaking() || !self.tls.wants_read() || self.came(), "ended early");
        }
        let records = self.seal(plain);
        self.write(&records);
    }

    fn flush(&mut self) {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.socket).expect("the relay reads");
        }
    }

    fn came(&mut self) -> bool {
        matches!(self.more(), More::Came)
    }

    /// Whatever comes next; what rustls answers is sent.
    fn more(&mut self) -> More {
        match self.tls.read_tls(&mut self.socket) {
            Ok(0) => return self.ended(),
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::ConnectionReset => return self.ended(),
            Err(e) => panic!("waited in vain: {e}"),
        }
        let state = match self.tls.process_new_packets() {
            Ok(state) => state,
            Err(error) => return More::Broken(error),
        };
        // Where the relay has hung up already, nobody minds.
        while self.tls.wants_write() && self.tls.write_tls(&mut self.socket).is_ok() {}
        let at = self.plain.len();
        self.plain.resize(at + state.plaintext_bytes_to_read(), 0);
        self.tls.reader().read_exact(&mut self.plain[at..]).expect("it said so");
        match state.peer_has_closed() && self.plain.len() == at {
            true => More::Ended { cleanly: true },
            false => More::Came,
        }
    }

    /// A goodbye may have come before, along with data.
    fn ended(&mut self) -> More {
        More::Ended { cleanly: self.tls.process_new_packets().is_ok_and(|state| state.peer_has_closed()) }
    }

    /// The next frame, keepalives aside; none when the relay has ended it.
    pub fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            match frame::head(&self.plain) {
                Some((code, length)) if self.plain.len() >= HEADER + length => {
                    let frame: Vec<u8> = self.plain.drain(..HEADER + length).collect();
                    if code != Kind::KeepAlive as u8 {
                        return Some(frame);
                    }
                }
                _ => match self.more() {
                    More::Came => {}
                    More::Ended { .. } => return None,
                    More::Broken(error) => panic!("TLS: {error}"),
                },
            }
        }
    }

    /// Says that nothing more will come.
    pub fn close(&mut self) {
        self.tls.send_close_notify();
        self.flush();
    }

    /// The relay ends it, and says so in TLS.
    pub fn ends_cleanly(&mut self) -> bool {
        loop {
            match self.more() {
                More::Came => {}
                More::Ended { cleanly } => return cleanly,
                More::Broken(error) => panic!("TLS: {error}"),
            }
        }
    }

    /// The relay ends it, however.
    pub fn is_ended(&mut self) {
        while self.came() {}
    }

    /// Takes new keys and wants new ones of the relay.
    pub fn change_keys(&mut self) {
        self.tls.refresh_traffic_keys().expect("TLS 1.3 can");
        self.flush();
    }

    /// The alert with which the relay gives up.
    pub fn alert(&mut self) -> Option<AlertDescription> {
        loop {
            match self.more() {
                More::Came => {}
                More::Broken(Error::AlertReceived(alert)) => return Some(alert),
                More::Broken(error) => panic!("TLS: {error}"),
                More::Ended { .. } => return None,
            }
        }
    }

    /// Acts as if what came had been damaged on its way: rustls gives up with an alert.
    pub fn takes_fright(&mut self) {
        let damaged = [&[23, 3, 3, 0, 40][..], &[0; 40]].concat();
        self.tls.read_tls(&mut &damaged[..]).expect("from memory");
        assert_eq!(self.tls.process_new_packets().err(), Some(Error::DecryptError));
        assert!(self.tls.wants_write(), "an alert");
        self.flush();
    }
}
