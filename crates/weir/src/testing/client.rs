//! A DERP client as small as one can be: a socket, a key, and frames.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use weir_core::relay::frame::{Frame, HEADER, Key, head};
use weir_core::relay::handshake::{ClientInfo, Secret, ServerInfo};

use super::machine::PATIENCE;

/// A frame, as it came.
pub type Taken = (u8, Vec<u8>);

pub struct Client {
    pub key: Key,
    pub server: Key,
    pub socket: TcpStream,
    received: Vec<u8>,
}

fn other(why: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why.into())
}

/// Makes the secret of clients with this number.
pub fn secret(number: u64) -> Secret {
    let mut bytes = [0x5a; 32];
    // Not in the first bytes: X25519 does not look at every bit there.
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    Secret::new(bytes)
}

impl Client {
    /// Connects and is let in: its route is there when this returns.
    pub fn connect(at: SocketAddr, number: u64) -> io::Result<Client> {
        let socket = TcpStream::connect_timeout(&at, PATIENCE)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let secret = secret(number);
        let mut client = Client { key: secret.public(), server: Key([0; 32]), socket, received: Vec::new() };
        client.socket.write_all(
            b"GET /derp HTTP/1.1\r\nHost: relay\r\nUpgrade: DERP\r\nConnection: Upgrade\r\n\r\n",
        )?;
        let head_len = loop {
            if let Some(at) = client.received.windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            client.read_more()?;
        };
        let head: Vec<u8> = client.received.drain(..head_len).collect();
        if !head.starts_with(b"HTTP/1.1 101 ") {
            return Err(other(String::from_utf8_lossy(&head)));
        }
        let (code, payload) = client.frame()?;
        let Ok(Frame::ServerKey(server)) = Frame::parse(code, &payload) else {
            return Err(other("no ServerKey"));
        };
        client.server = server;
        let info = ClientInfo { version: 2, can_ack_pings: true, ..ClientInfo::default() };
        let mut out = Vec::new();
        // One box a connection, so one nonce does.
        info.seal(&secret, &server, [7; 24], &mut out);
        client.socket.write_all(&out)?;
        let (code, payload) = client.frame()?;
        let info = Frame::parse(code, &payload).map_err(|e| other(format!("{e:?}")))?;
        ServerInfo::open(&secret, &server, &info).map_err(|e| other(e.to_string()))?;
        Ok(client)
    }

    /// Waits for frames as long as a fault may take to be noticed.
    pub fn listen_long(&self) {
        self.socket.set_read_timeout(Some(PATIENCE * 3)).expect("a timeout");
    }

    fn read_more(&mut self) -> io::Result<()> {
        let mut piece = [0; 16 << 10];
        match self.socket.read(&mut piece) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                self.received.extend_from_slice(&piece[..n]);
                Ok(())
            }
            // A process that was stopped and goes on is interrupted.
            Err(e) if e.kind() == ErrorKind::Interrupted => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// The next frame, whatever it is.
    pub fn frame(&mut self) -> io::Result<Taken> {
        loop {
            if let Some((code, length)) = head(&self.received)
                && self.received.len() >= HEADER + length
            {
                let payload = self.received[HEADER..HEADER + length].to_vec();
                self.received.drain(..HEADER + length);
                return Ok((code, payload));
            }
            self.read_more()?;
        }
    }

    /// The next packet: whose, and what it holds. Other frames are passed over.
    pub fn packet(&mut self) -> io::Result<(Key, Vec<u8>)> {
        loop {
            let (code, payload) = self.frame()?;
            if let Ok(Frame::RecvPacket(from, data)) = Frame::parse(code, &payload) {
                return Ok((from, data.to_vec()));
            }
        }
    }

    pub fn send(&mut self, to: Key, data: &[u8]) -> io::Result<()> {
        let mut out = Vec::with_capacity(HEADER + 32 + data.len());
        Frame::SendPacket(to, data).write(&mut out);
        self.socket.write_all(&out)
    }

    /// A packet to the other, which arrives next there.
    pub fn reaches(&mut self, other: &mut Client, data: &[u8]) {
        self.send(other.key, data).expect("the relay reads");
        assert_eq!(other.packet().expect("a packet"), (self.key, data.to_vec()));
    }
}
