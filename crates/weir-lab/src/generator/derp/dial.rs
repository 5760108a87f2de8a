//! From a socket to a client the relay knows, without ever waiting.
//!
//! ```text
//! connect ─► GET /derp, 101 ─► ServerKey ─► ClientInfo ─► ServerInfo ─► Wire
//! connect ─► TLS 1.3, the server's key in its certificates ─► GET /derp, ClientInfo ─► ServerInfo ─► Wire
//! ```
//!
//! The second is how Tailscale's clients start where they can (`Derp-Fast-Start`), so that is how relays are loaded.
//! Promises: [`Dial::step`] does what the socket allows and returns. Refuses: anything but this order, each step
//! with what came instead.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use rustls::pki_types::CertificateDer;
use weir_core::relay::frame::{Frame, HEADER, Key, VERSION, head};
use weir_core::relay::handshake::{ClientInfo, Secret};

use weir_io::tls::{Handshake, Progress as Shaken};

use super::tls::{self, Trusting};
use super::wire::{HEADROOM, Wire};

/// How the certificate that names a relay's key begins its name.
const META_NAME: &[u8] = b"derpkey";
/// A response longer than this is no 101.
const RESPONSE_MAX: usize = 8 << 10;

/// Who a client is. What it says to a server is sealed once.
pub struct Identity {
    secret: Secret,
    pub key: Key,
    sealed: Option<(Key, Vec<u8>)>,
}

impl Identity {
    /// The `n`th of a seed.
    pub fn numbered(seed: u64, n: u64) -> Identity {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[8..16].copy_from_slice(&n.to_le_bytes());
        bytes[16..24].copy_from_slice(b"weir-lab");
        let secret = Secret::new(bytes);
        Identity { key: secret.public(), secret, sealed: None }
    }

    /// The server it proved its key to.
    pub fn met(&self) -> Option<Key> {
        self.sealed.as_ref().map(|(server, _)| *server)
    }

    /// Seals for `server` what will be said to it.
    pub fn introduce(&mut self, server: &Key) {
        self.client_info(server);
    }

    /// The `ClientInfo` frame for `server`, sealed now if it was not.
    fn client_info(&mut self, server: &Key) -> &[u8] {
        if self.sealed.as_ref().is_none_or(|(known, _)| known != server) {
            let info = ClientInfo { version: VERSION, can_ack_pings: true, ..ClientInfo::default() };
            let mut nonce = [0; 24];
            nonce.copy_from_slice(&self.key.0[..24]);
            let mut frame = Vec::new();
            info.seal(&self.secret, server, nonce, &mut frame);
            self.sealed = Some((*server, frame));
        }
        self.sealed.as_ref().map_or(&[], |(_, frame)| frame)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Upgrade,
    ServerKey,
    ServerInfo(Key),
}

/// A client on its way.
pub struct Dial {
    address: SocketAddr,
    socket: TcpStream,
    identity: Identity,
    stage: Stage,
    /// The request is in `output`, or was.
    has_asked: bool,
    /// Plaintext to send, plaintext received.
    output: Vec<u8>,
    input: Vec<u8>,
    tls: Option<Tls>,
}

struct Tls {
    handshake: Handshake,
    is_ready: bool,
    output: Vec<u8>,
    input: Vec<u8>,
}

impl Tls {
    /// Goes on with what there is.
    fn advance(&mut self, input: &mut Vec<u8>) -> io::Result<()> {
        let shaken = self.handshake.read(&mut self.input, input, &mut self.output).map_err(tls::odd)?;
        self.is_ready |= shaken == Shaken::Ready;
        Ok(())
    }

    /// Seals `output` once it can.
    fn seal(&mut self, output: &mut Vec<u8>) -> io::Result<()> {
        if self.is_ready && !output.is_empty() {
            self.handshake.write(output, &mut self.input, &mut self.output).map_err(tls::odd)?;
            output.clear();
        }
        Ok(())
    }
}

/// How far it is.
pub enum Progress {
    /// The socket must become readable or writable.
    Waits(Box<Dial>),
    Done(Box<(Wire, Identity)>),
}

impl AsFd for Dial {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Dial {
    /// Begins to connect.
    pub fn begin(address: SocketAddr, trusting: Option<&Trusting>, identity: Identity) -> io::Result<Dial> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        match connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(e) => return Err(e.into()),
        }
        let socket = TcpStream::from(socket);
        socket.set_nodelay(true)?;
        let tls = trusting.map(|trusting| {
            let handshake = trusting.handshake(address.ip())?;
            Ok::<_, io::Error>(Tls { handshake, is_ready: false, output: Vec::new(), input: Vec::new() })
        });
        let (output, input) = (Vec::new(), Vec::new());
        let (stage, tls) = (Stage::Upgrade, tls.transpose()?);
        Ok(Dial { address, socket, identity, stage, has_asked: false, output, input, tls })
    }

    /// Writes the request; who knows the server's key by now says at once who it is, and awaits no 101.
    fn ask(&mut self) {
        self.has_asked = true;
        let known = self.tls.as_ref().and_then(|tls| tls.handshake.certificates().iter().find_map(key_in));
        let fast = if known.is_some() { "Derp-Fast-Start: 1\r\n" } else { "" };
        let address = self.address;
        let request = format!(
            "GET /derp HTTP/1.1\r\nHost: {address}\r\nUpgrade: DERP\r\nConnection: Upgrade\r\n{fast}\r\n"
        );
        self.output.extend_from_slice(request.as_bytes());
        if let Some(server) = known {
            self.output.extend_from_slice(self.identity.client_info(&server));
            self.stage = Stage::ServerInfo(server);
        }
    }

    /// What it waits for.
    pub fn stage(&self) -> &'static str {
        match self.stage {
            Stage::Upgrade => "no answer to its upgrade",
            Stage::ServerKey => "no key of the server",
            Stage::ServerInfo(_) => "no ServerInfo",
        }
    }

    /// Goes on as far as the socket allows.
    pub fn step(mut self: Box<Dial>) -> io::Result<Progress> {
        loop {
            self.flush()?;
            let came = self.receive()?;
            while let Some(next) = self.advance()? {
                match next {
                    Next::Stage(stage) => self.stage = stage,
                    Next::Done => return self.done(),
                }
            }
            if !came {
                self.flush()?;
                return Ok(Progress::Waits(self));
            }
        }
    }

    fn done(self) -> io::Result<Progress> {
        let Dial { socket, identity, mut input, tls, .. } = self;
        let Some(tls) = tls else {
            return Ok(Progress::Done(Box::new((Wire::new(socket, input), identity))));
        };
        let (session, mut plain) = tls.handshake.finish().map_err(tls::odd)?;
        input.append(&mut plain);
        let wire = Wire::new(socket, input).with_tls(session, tls.input);
        Ok(Progress::Done(Box::new((wire, identity))))
    }

    fn flush(&mut self) -> io::Result<()> {
        use std::io::Write;
        if let Some(tls) = &mut self.tls {
            tls.advance(&mut self.input)?;
        }
        if !self.has_asked && self.tls.as_ref().is_none_or(|tls| tls.is_ready) {
            self.ask();
        }
        if let Some(tls) = &mut self.tls {
            tls.seal(&mut self.output)?;
        }
        let output = self.tls.as_mut().map_or(&mut self.output, |tls| &mut tls.output);
        while !output.is_empty() {
            match self.socket.write(output) {
                Ok(n) => drop(output.drain(..n)),
                Err(e) if waits(&e) => break,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Whether anything came.
    fn receive(&mut self) -> io::Result<bool> {
        use std::io::Read;
        let mut bytes = [0; 4096];
        let n = match self.socket.read(&mut bytes) {
            Ok(n) => n,
            Err(e) if waits(&e) => return Ok(false),
            Err(e) => return Err(e),
        };
        if n == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("the relay closed the connection in its handshake: {}", self.stage()),
            ));
        }
        match &mut self.tls {
            None => self.input.extend_from_slice(&bytes[..n]),
            Some(tls) => {
                tls.input.extend_from_slice(&bytes[..n]);
                tls.advance(&mut self.input)?;
            }
        }
        Ok(true)
    }

    /// Takes one step of the handshake from the input, if it is there.
    fn advance(&mut self) -> io::Result<Option<Next>> {
        if self.stage == Stage::Upgrade {
            return self.upgraded();
        }
        let Some((code, length)) = head(&self.input) else { return Ok(None) };
        if HEADER + length > HEADROOM {
            return Err(odd(format!("a frame of type {code:#04x} and {length} bytes in the handshake")));
        }
        let end = HEADER + length;
        let Some(payload) = self.input.get(HEADER..end) else { return Ok(None) };
        let frame = Frame::parse(code, payload).map_err(|e| odd(e.to_string()))?;
        let next = match (self.stage, &frame) {
            (Stage::ServerKey, Frame::ServerKey(key)) => {
                self.output.extend_from_slice(self.identity.client_info(key));
                Next::Stage(Stage::ServerInfo(*key))
            }
            (Stage::ServerInfo(_), Frame::ServerInfo(..)) => Next::Done,
            // Health, keys of peers, or the server's own after a fast start: nothing new
            (Stage::ServerInfo(server), _) => Next::Stage(Stage::ServerInfo(server)),
            _ => return Err(odd(format!("a frame of type {code:#04x}, expected the server's key"))),
        };
        self.input.drain(..end);
        Ok(Some(next))
    }

    fn upgraded(&mut self) -> io::Result<Option<Next>> {
        let Some(end) = self.input.windows(4).position(|w| w == b"\r\n\r\n") else {
            return if self.input.len() > RESPONSE_MAX {
                Err(odd("no end of a response".into()))
            } else {
                Ok(None)
            };
        };
        if !self.input.starts_with(b"HTTP/1.1 101") {
            let line = String::from_utf8_lossy(&self.input[..end]);
            return Err(odd(format!("\"{}\", expected 101", line.lines().next().unwrap_or_default())));
        }
        self.input.drain(..end + 4);
        Ok(Some(Next::Stage(Stage::ServerKey)))
    }
}

enum Next {
    Stage(Stage),
    Done,
}

/// The server's key, when this is the certificate that names it (`CN=derpkey` and 64 hex digits).
fn key_in(certificate: &CertificateDer<'_>) -> Option<Key> {
    let at = certificate.windows(META_NAME.len()).position(|w| w == META_NAME)? + META_NAME.len();
    std::str::from_utf8(certificate.get(at..at + 64)?).ok()?.parse().ok()
}

fn waits(e: &io::Error) -> bool {
    // A socket that is still connecting is not connected.
    [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted, io::ErrorKind::NotConnected].contains(&e.kind())
}

fn odd(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_servers_key_is_found_in_the_certificate_that_names_it_and_in_no_other() {
        let named = |name: &str| {
            let mut params = rcgen::CertificateParams::default();
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            let key = rcgen::KeyPair::generate().expect("a key");
            params.self_signed(&key).expect("a certificate").der().clone()
        };
        let digits: String = (0..32).map(|n| format!("{n:02x}")).collect();
        assert_eq!(key_in(&named(&format!("derpkey{digits}"))), Some(Key(std::array::from_fn(|n| n as u8))));
        for other in ["localhost", "derpkey", "derpkeyzz"] {
            assert_eq!(key_in(&named(other)), None, "{other}");
        }
        assert_eq!(key_in(&CertificateDer::from(b"derpkey0011".to_vec())), None);
    }
}
