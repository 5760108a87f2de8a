//! A DERP client made of a plain socket: says anything, in any order, and shows what comes back.
//!
//! Promises: a wait for what must come is bounded and fails the test; keepalives are passed over.

use std::fmt;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::OnceLock;
use std::time::Duration;

use weir_core::relay::frame::{self, Frame, HEADER, Key, Kind};
use weir_core::relay::handshake::{ClientInfo, Secret, ServerInfo};

use crate::machine::PATIENCE;
use crate::server::{MESH_KEY, Server};

/// How long nothing may come until it is taken that nothing comes.
const QUIET: Duration = Duration::from_millis(300);
pub const NONCE: [u8; 24] = [7; 24];

/// A frame as it came, header and all.
#[derive(Clone, PartialEq, Eq)]
pub struct Seen(pub Vec<u8>);

/// Its kind, its length and how it begins: some are long.
impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let payload = &self.0[HEADER..];
        match Kind::from_code(self.0[0]) {
            Some(kind) => write!(f, "{kind:?}")?,
            None => write!(f, "type {:#x}", self.0[0])?,
        }
        write!(f, "({} bytes: ", payload.len())?;
        payload.iter().take(48).try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

pub fn bytes(frame: Frame<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.write(&mut bytes);
    bytes
}

/// Describes a frame as [`Client::next`] and [`Client::before_pong`] give it.
pub fn seen(frame: Frame<'_>) -> Seen {
    Seen(bytes(frame))
}

/// The same client every time.
pub fn secret(n: u8) -> Secret {
    Secret::new([n; 32])
}

/// Worked out once: without optimisation that takes milliseconds.
pub fn key(n: u8) -> Key {
    static KEYS: [OnceLock<Key>; 256] = [const { OnceLock::new() }; 256];
    *KEYS[usize::from(n)].get_or_init(|| secret(n).public())
}

/// Data that looks like path discovery.
pub fn disco(n: u8) -> Vec<u8> {
    let mut data = b"TS\xf0\x9f\x92\xac".to_vec();
    data.resize(80, n);
    data
}

pub struct Client {
    pub stream: TcpStream,
    pub server: Key,
    pings: u64,
}

impl Client {
    /// A connection and nothing said.
    pub fn dial(server: &Server) -> Client {
        let stream = TcpStream::connect(server.address).expect("the server takes connections");
        stream.set_nodelay(true).expect("a TCP socket");
        stream.set_read_timeout(Some(PATIENCE)).expect("a TCP socket");
        stream.set_write_timeout(Some(PATIENCE)).expect("a TCP socket");
        Client { stream, server: Key([0; 32]), pings: 0 }
    }

    /// Upgraded, and the server's key has come.
    pub fn upgraded(server: &Server) -> Client {
        let mut client = Client::dial(server);
        client.write(
            b"GET /derp HTTP/1.1\r\nHost: relay.example\r\nUpgrade: DERP\r\nConnection: Upgrade\r\n\r\n",
        );
        let head = client.http_head();
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        client.take_server_key();
        client
    }

    pub fn take_server_key(&mut self) {
        let Seen(frame) = self.next().expect("the server's key");
        match Frame::parse(frame[0], &frame[HEADER..]) {
            Ok(Frame::ServerKey(key)) => self.server = key,
            other => panic!("the first frame is the server's key, not {other:?}"),
        }
    }

    /// Client number `n`, through its handshake.
    pub fn join(server: &Server, n: u8) -> Client {
        Client::join_as(server, &secret(n), &info())
    }

    /// One with the mesh key.
    pub fn join_mesh(server: &Server, n: u8) -> Client {
        Client::join_as(server, &secret(n), &ClientInfo { mesh_key: MESH_KEY.into(), ..info() })
    }

    pub fn join_as(server: &Server, secret: &Secret, info: &ClientInfo) -> Client {
        let mut client = Client::upgraded(server);
        let mut sealed = Vec::new();
        info.seal(secret, &client.server, NONCE, &mut sealed);
        client.write(&sealed);
        client.take_server_info(secret);
        client
    }

    pub fn take_server_info(&mut self, secret: &Secret) -> ServerInfo {
        let Seen(frame) = self.next().expect("the server's info");
        let frame = Frame::parse(frame[0], &frame[HEADER..]).expect("well formed");
        let info = ServerInfo::open(secret, &self.server, &frame).expect("a box for this client");
        assert_eq!(info.version, 2);
        info
    }

    pub fn local(&self) -> SocketAddr {
        self.stream.local_addr().expect("a connected socket")
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    /// Writes as [`Client::write`] does, where the server may have closed already.
    pub fn try_write(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    pub fn send(&mut self, frame: Frame<'_>) {
        self.write(&bytes(frame));
    }

    /// Status line and headers, up to and with the empty line.
    pub fn http_head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).expect("a whole HTTP head");
            head.push(byte[0]);
        }
        String::from_utf8(head).expect("text")
    }

    /// The next frame; none when the server has closed.
    pub fn next(&mut self) -> Option<Seen> {
        loop {
            let mut frame = vec![0; HEADER];
            self.read(&mut frame)?;
            let (code, length) = frame::head(&frame).expect("a header was read");
            frame.resize(HEADER + length, 0);
            self.read(&mut frame[HEADER..])?;
            if code != Kind::KeepAlive as u8 {
                return Some(Seen(frame));
            }
        }
    }

    fn read(&mut self, into: &mut [u8]) -> Option<()> {
        match self.stream.read_exact(into) {
            Ok(()) => Some(()),
            Err(e) if matches!(e.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => None,
            Err(e) => panic!("waited in vain for {} bytes: {e}", into.len()),
        }
    }

    /// What comes before the answers to two pings, one after the other: all that was said before is done by then.
    /// (derper takes from its queues in no order: a packet that waits beside a pong may follow it, but not the next.)
    pub fn before_pong(&mut self) -> Vec<Seen> {
        let mut before = Vec::new();
        for _ in 0..2 {
            self.pings += 1;
            let ping = self.pings.to_be_bytes();
            self.send(Frame::Ping(&ping));
            let pong = seen(Frame::Pong(&ping));
            loop {
                match self.next() {
                    Some(frame) if frame == pong => break,
                    Some(frame) => before.push(frame),
                    None => panic!("closed before the pong, after {before:?}"),
                }
            }
        }
        before
    }

    /// Nothing comes, for a while.
    pub fn hears_nothing(&mut self) {
        self.stream.set_read_timeout(Some(QUIET)).expect("a TCP socket");
        let heard = self.stream.peek(&mut [0]);
        self.stream.set_read_timeout(Some(PATIENCE)).expect("a TCP socket");
        match heard {
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Ok(0) => panic!("the server closed"),
            Ok(_) => panic!("heard {:?}", self.next()),
            Err(e) => panic!("{e}"),
        }
    }

    /// The server closes, whatever it says before.
    pub fn is_closed(&mut self) {
        while self.next().is_some() {}
    }
}

/// What a client of today says of itself.
pub fn info() -> ClientInfo {
    ClientInfo { version: 2, can_ack_pings: true, ..ClientInfo::default() }
}
