//! A client of the engine under test: one end of a TCP connection whose other end the engine was given.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use weir_core::relay::frame::{HEADER, KEY, head};
use weir_core::relay::handshake::{ClientInfo, Secret, ServerInfo};
use weir_core::relay::{Frame, Key, Kind};
use weir_io::tls::Session;
use weir_relay::{AuthenticatedConn, ConnGuard, Engine, Rates, Relay, RelayReport, Role, TlsMode};

/// Longer than anything here takes; a test that waits so long has failed.
pub const LONG: Duration = Duration::from_secs(60);

pub fn server() -> Secret {
    Secret::new([77; 32])
}

/// An engine by epoll or io_uring, with `more` said.
pub fn engine(workers: usize, more: impl FnOnce(&mut Engine)) -> Relay {
    let mut engine = Engine { own: server().public(), workers, buffers: 64, ..Engine::default() };
    more(&mut engine);
    Relay::start(&engine).expect("the engine starts")
}

pub struct Member {
    pub key: Key,
    secret: Secret,
    pub socket: TcpStream,
    pub wire: Wire,
    received: Vec<u8>,
}

/// How frames travel.
pub enum Wire {
    Clear,
    /// The client's end, and ciphertext that is no whole record yet.
    Tls(Box<Session>, Vec<u8>),
    /// Messages that are not whole yet.
    WebSocket(Vec<u8>),
}

/// How a member is admitted.
pub struct As {
    pub role: Role,
    pub rates: Rates,
    pub early: Vec<u8>,
}

impl Default for As {
    fn default() -> As {
        As { role: Role::Client, rates: Rates::default(), early: Vec::new() }
    }
}

/// Two ends of a connection.
pub fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let ours = TcpStream::connect(listener.local_addr().expect("its address")).expect("connected");
    let (theirs, _) = listener.accept().expect("accepted");
    ours.set_nodelay(true).expect("a socket option");
    ours.set_read_timeout(Some(LONG)).expect("a socket option");
    (ours, theirs)
}

impl Member {
    /// Admitted, and its `ServerInfo` read: everybody knows it by now.
    pub fn join(relay: &Relay, number: u8) -> Member {
        Member::join_as(relay, number, As::default())
    }

    pub fn join_as(relay: &Relay, number: u8, how: As) -> Member {
        Member::admit(relay, number, how).greeted()
    }

    /// `ServerInfo` is the first frame.
    pub fn greeted(mut self) -> Member {
        let member = &mut self;
        let (code, payload) = member.frame();
        let info = Frame::parse(code, &payload).expect("well formed");
        ServerInfo::open(&member.secret, &server().public(), &info).expect("the first frame is ServerInfo");
        self
    }

    /// Admitted; nothing has been read.
    pub fn admit(relay: &Relay, number: u8, how: As) -> Member {
        let (ours, theirs) = pair();
        Member::over(relay, number, how, (ours, theirs), (Wire::Clear, TlsMode::Plain))
    }

    pub fn over(
        relay: &Relay,
        number: u8,
        how: As,
        (ours, theirs): (TcpStream, TcpStream),
        (wire, tls_mode): (Wire, TlsMode),
    ) -> Member {
        let secret = Secret::new([number; 32]);
        let key = secret.public();
        let mut greeting = Vec::new();
        if how.role != Role::Dialled {
            ServerInfo::new().seal(
                &server().shared_key(&key).expect("keys of full order"),
                [number; 24],
                &mut greeting,
            );
        }
        relay.admit(AuthenticatedConn {
            address: theirs.peer_addr().expect("connected"),
            socket: theirs.into(),
            key,
            info: ClientInfo { version: 2, can_ack_pings: true, ..ClientInfo::default() },
            role: how.role,
            tls_mode,
            websocket: matches!(wire, Wire::WebSocket(_)).then(Box::default),
            greeting,
            early: how.early,
            unread: Vec::new(),
            ideal: true,
            rates: how.rates,
            guard: ConnGuard::Nothing,
        });
        Member { key, secret, socket: ours, wire, received: Vec::new() }
    }

    pub fn say(&mut self, frame: &Frame<'_>) {
        self.write(&bytes(frame));
    }

    /// Bytes of frames, in a message or records.
    pub fn write(&mut self, frames: &[u8]) {
        let mut out = Vec::new();
        match &mut self.wire {
            Wire::Clear => out.extend_from_slice(frames),
            Wire::Tls(session, _) => session.seal_into(frames, &mut out).expect("it is sealed"),
            Wire::WebSocket(_) => masked(frames, &mut out),
        }
        self.socket.write_all(&out).expect("the engine reads");
    }

    pub fn send(&mut self, to: Key, data: &[u8]) {
        self.say(&Frame::SendPacket(to, data));
    }

    /// The next frame, keepalives too.
    pub fn frame(&mut self) -> (u8, Vec<u8>) {
        self.frame_or_end().expect("a frame, not the end")
    }

    /// The next frame, or `None` when the engine has closed the connection.
    pub fn frame_or_end(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            if let Some((code, length)) = head(&self.received)
                && self.received.len() >= HEADER + length
            {
                let payload = self.received[HEADER..HEADER + length].to_vec();
                self.received.drain(..HEADER + length);
                return Some((code, payload));
            }
            let mut piece = [0; 65_536];
            match self.socket.read(&mut piece) {
                Ok(0) => return None,
                Ok(n) => self.unwrap(&piece[..n]),
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return None,
                Err(e) => panic!("nothing came: {e}"),
            }
        }
    }

    fn unwrap(&mut self, piece: &[u8]) {
        match &mut self.wire {
            Wire::Clear => self.received.extend_from_slice(piece),
            Wire::Tls(session, held) => {
                held.extend_from_slice(piece);
                let opened = session.open(held).expect("whole records open");
                self.received.extend_from_slice(&held[opened.plain]);
                held.drain(..opened.consumed);
            }
            Wire::WebSocket(held) => {
                held.extend_from_slice(piece);
                while let Some((start, length)) = message(held)
                    && held.len() >= start + length
                {
                    self.received.extend_from_slice(&held[start..start + length]);
                    held.drain(..start + length);
                }
            }
        }
    }

    /// The next packet: whose, and its data.
    pub fn packet(&mut self) -> (Key, Vec<u8>) {
        let (code, payload) = self.frame();
        assert_eq!(code, Kind::RecvPacket as u8, "a packet");
        (Key::from_slice(&payload[..KEY]).expect("a key"), payload[KEY..].to_vec())
    }

    /// Asserts that nothing but this comes before the answer to a ping.
    pub fn nothing_comes(&mut self) {
        self.say(&Frame::Ping(b"anything"));
        let (code, payload) = self.frame();
        assert_eq!((code, &payload[..]), (Kind::Pong as u8, &b"anything"[..]));
    }
}

/// Where the payload of a server's binary message starts, and how long it is.
fn message(bytes: &[u8]) -> Option<(usize, usize)> {
    assert!(bytes.first().is_none_or(|&first| first == 0x82), "a binary message in one frame");
    match *bytes.get(1)? {
        126 => Some((4, usize::from(u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?)))),
        127 => Some((10, usize::try_from(u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?)).ok()?)),
        short => Some((2, usize::from(short))),
    }
}

/// A client's message of two frames.
fn masked(payload: &[u8], out: &mut Vec<u8>) {
    let mask = [9, 8, 7, 6];
    let (a, b) = payload.split_at(payload.len() / 3);
    for (first, payload) in [(2, a), (0x80, b)] {
        out.extend_from_slice(&[first, 0x80 | 127]);
        out.extend_from_slice(&(payload.len() as u64).to_be_bytes());
        out.extend_from_slice(&mask);
        out.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    }
}

pub fn bytes(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.write(&mut bytes);
    bytes
}

/// Data of path discovery.
pub fn disco(n: u8) -> Vec<u8> {
    let mut data = vec![0x54, 0x53, 0xf0, 0x9f, 0x92, 0xac];
    data.resize(80, n);
    data
}

/// Asks for reports until one is as wanted.
pub fn wait_for(relay: &Relay, what: &str, wanted: impl Fn(&RelayReport) -> bool) -> RelayReport {
    let end = Instant::now() + LONG;
    loop {
        let report = relay.report();
        if wanted(&report) {
            return report;
        }
        assert!(Instant::now() < end, "{what} does not come: {report:#?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl Member {
    /// The next frame says that this peer has disconnected.
    pub fn nothing_comes_but_gone(&mut self, key: Key) {
        let (code, payload) = self.frame();
        assert_eq!((code, payload), (Kind::PeerGone as u8, [&key.0[..], &[0]].concat()));
    }
}
