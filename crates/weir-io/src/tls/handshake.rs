//! The handshake, and what little is said before the stream goes to its worker.
//!
//! No sockets: the caller brings what was received and sends what is to be sent. Promises: what is received
//! and not yet used stays in the caller's buffer, and is shown to rustls with every call: it counts on what it has seen of it (a
//! message that is not whole), and panics when that is missing; an error leaves the alert for the peer in `to_send`.
//! Refuses: nothing of its own; rustls judges.

use std::fmt;
use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{CipherSuite, ClientConfig, CommonState, Error, NamedGroup, ProtocolVersion, ServerConfig};

use super::session::{Established, Schedule, Session};

/// Where a handshake stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More must be received, after what is to be sent was sent.
    NeedMore,
    /// Data can be read and written, or the keys be taken.
    Ready,
    /// The peer closed with a close_notify.
    Closed,
}

/// What was agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    pub version: ProtocolVersion,
    pub suite: CipherSuite,
    /// The group of the key exchange.
    pub group: NamedGroup,
}

/// One side of a handshake.
pub struct Handshake {
    side: Side,
    /// Data that came with the last messages of the handshake or after it, and was not read yet.
    plain: Vec<u8>,
    progress: Progress,
    /// Why it is over: rustls must not be asked again.
    broken: Option<Error>,
}

enum Side {
    Server(Box<UnbufferedServerConnection>),
    Client(Box<UnbufferedClientConnection>),
}

impl Handshake {
    /// The handshake of a server; see [`super::server_config`].
    pub fn server(config: Arc<ServerConfig>) -> Result<Handshake, Error> {
        Ok(Handshake::new(Side::Server(Box::new(UnbufferedServerConnection::new(config)?))))
    }

    /// The handshake of a client; see [`super::client_config`].
    pub fn client(config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<Handshake, Error> {
        Ok(Handshake::new(Side::Client(Box::new(UnbufferedClientConnection::new(config, name)?))))
    }

    fn new(side: Side) -> Handshake {
        Handshake { side, plain: Vec::new(), progress: Progress::NeedMore, broken: None }
    }

    /// Uses up `received` from its front as far as it goes and appends answers to `to_send`.
    pub fn advance(&mut self, received: &mut Vec<u8>, to_send: &mut Vec<u8>) -> Result<Progress, Error> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let mut used = 0;
        let result = loop {
            match self.step(&mut received[used..], to_send) {
                (discard, Ok(None)) => used += discard,
                (discard, Ok(Some(progress))) => {
                    used += discard;
                    break Ok(progress);
                }
                (discard, Err(error)) => {
                    used += discard;
                    break Err(error);
                }
            }
        };
        received.drain(..used);
        match result {
            Ok(progress) => {
                // A close comes once and stays.
                if self.progress != Progress::Closed {
                    self.progress = progress;
                }
                Ok(self.progress)
            }
            Err(error) => {
                // The alert waits where messages to be sent do: each step fetches one.
                while self.state().wants_write() {
                    let (discard, _) = self.step(received, to_send);
                    received.drain(..discard);
                }
                self.broken = Some(error.clone());
                Err(error)
            }
        }
    }

    /// Does what [`Handshake::advance`] does, and appends data to `plain`.
    pub fn read(
        &mut self,
        received: &mut Vec<u8>,
        plain: &mut Vec<u8>,
        to_send: &mut Vec<u8>,
    ) -> Result<Progress, Error> {
        let progress = self.advance(received, to_send);
        plain.append(&mut self.plain);
        progress
    }

    /// Appends `plain` to `to_send`, sealed. `received` is what [`Handshake::advance`] left.
    pub fn write(
        &mut self,
        plain: &[u8],
        received: &mut Vec<u8>,
        to_send: &mut Vec<u8>,
    ) -> Result<(), Error> {
        self.say(Say::Data(plain), received, to_send)
    }

    /// Appends a close_notify to `to_send`. `received` is what [`Handshake::advance`] left.
    pub fn close_notify(&mut self, received: &mut Vec<u8>, to_send: &mut Vec<u8>) -> Result<(), Error> {
        self.say(Say::CloseNotify, received, to_send)
    }

    /// What was agreed, once it was.
    pub fn facts(&self) -> Option<Facts> {
        let state = self.state();
        Some(Facts {
            version: state.protocol_version()?,
            suite: state.negotiated_cipher_suite()?.suite(),
            group: state.negotiated_key_exchange_group()?.name(),
        })
    }

    /// The application protocol that was agreed (ALPN).
    pub fn protocol(&self) -> Option<&[u8]> {
        self.state().alpn_protocol()
    }

    /// What the other side has shown, its own certificate first; nothing before it has.
    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        self.state().peer_certificates().unwrap_or_default()
    }

    /// Takes the keys. Data that was read and not fetched yet would be lost: it is returned.
    pub fn establish(self) -> Result<(Established, Vec<u8>), Error> {
        let (secrets, schedule) = match self.side {
            Side::Server(connection) => {
                let (secrets, schedule) = connection.dangerous_into_kernel_connection()?;
                (secrets, Schedule::Server(schedule))
            }
            Side::Client(connection) => {
                let (secrets, schedule) = connection.dangerous_into_kernel_connection()?;
                (secrets, Schedule::Client(schedule))
            }
        };
        Ok((Established { secrets, schedule }, self.plain))
    }

    /// Takes the keys for records in user space; as [`Handshake::establish`].
    pub fn finish(self) -> Result<(Session, Vec<u8>), Error> {
        let (established, plain) = self.establish()?;
        let session = established.session().map_err(|error| Error::General(error.to_string()))?;
        Ok((session, plain))
    }

    fn state(&self) -> &CommonState {
        match &self.side {
            Side::Server(connection) => connection,
            Side::Client(connection) => connection,
        }
    }

    fn say(&mut self, what: Say<'_>, received: &mut Vec<u8>, to_send: &mut Vec<u8>) -> Result<(), Error> {
        // What rustls still has to send goes first.
        self.advance(received, to_send)?;
        let (discard, said) = match &mut self.side {
            Side::Server(connection) => say(connection.process_tls_records(received), what, to_send),
            Side::Client(connection) => say(connection.process_tls_records(received), what, to_send),
        };
        received.drain(..discard);
        said
    }

    /// One state of rustls: bytes used up, and where it stands if nothing goes on without the caller.
    fn step(
        &mut self,
        received: &mut [u8],
        to_send: &mut Vec<u8>,
    ) -> (usize, Result<Option<Progress>, Error>) {
        match &mut self.side {
            Side::Server(connection) => {
                process_state(connection.process_tls_records(received), to_send, &mut self.plain)
            }
            Side::Client(connection) => {
                process_state(connection.process_tls_records(received), to_send, &mut self.plain)
            }
        }
    }
}

/// Handles one state; `None` when there may be another at once.
fn process_state<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    to_send: &mut Vec<u8>,
    plain: &mut Vec<u8>,
) -> (usize, Result<Option<Progress>, Error>) {
    let UnbufferedStatus { discard, state } = status;
    let progress = match state {
        Err(error) => Err(error),
        Ok(ConnectionState::ReadTraffic(mut traffic)) => {
            let mut result = Ok(None);
            while let Some(record) = traffic.next_record() {
                match record {
                    Ok(record) => plain.extend_from_slice(record.payload),
                    Err(error) => result = Err(error),
                }
            }
            result
        }
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            append(to_send, |place| data.encode(place).map_err(|error| encoding(&error)));
            Ok(None)
        }
        Ok(ConnectionState::TransmitTlsData(data)) => {
            data.done();
            Ok(None)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(Some(Progress::NeedMore)),
        Ok(ConnectionState::WriteTraffic(_)) => Ok(Some(Progress::Ready)),
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(Some(Progress::Closed)),
        Ok(_) => Err(Error::General("handshake reached a state that is not known here".into())),
    };
    (discard, progress)
}

/// What is said under the keys of the handshake.
enum Say<'a> {
    Data(&'a [u8]),
    CloseNotify,
}

/// Bytes used up, and whether it was said.
fn say<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    what: Say<'_>,
    to_send: &mut Vec<u8>,
) -> (usize, Result<(), Error>) {
    let UnbufferedStatus { discard, state } = status;
    let mut traffic = match state {
        Ok(ConnectionState::WriteTraffic(traffic)) => traffic,
        Ok(_) => return (discard, Err(Error::HandshakeNotComplete)),
        Err(error) => return (discard, Err(error)),
    };
    let said = append(to_send, |place| {
        match what {
            Say::Data(plain) => traffic.encrypt(plain, place),
            Say::CloseNotify => traffic.queue_close_notify(place),
        }
        .map_err(|error| match error {
            EncryptError::InsufficientSize(size) => Some(size.required_size),
            EncryptError::EncryptExhausted => None,
        })
    });
    (discard, said.then_some(()).ok_or(Error::EncryptError))
}

fn encoding(error: &EncodeError) -> Option<usize> {
    match error {
        EncodeError::InsufficientSize(size) => Some(size.required_size),
        EncodeError::AlreadyEncoded => None,
    }
}

/// Appends what `write` writes, asking it first how much place it needs: an error names the size.
fn append(out: &mut Vec<u8>, mut write: impl FnMut(&mut [u8]) -> Result<usize, Option<usize>>) -> bool {
    let at = out.len();
    let mut written = write(&mut []);
    if let Err(Some(size)) = written {
        out.resize(at + size, 0);
        written = write(&mut out[at..]);
    }
    out.truncate(at + written.unwrap_or(0));
    written.is_ok()
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshake").finish_non_exhaustive()
    }
}
