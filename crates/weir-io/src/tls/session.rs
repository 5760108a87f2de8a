//! A stream after its handshake: data in and out, and the messages of TLS that still come between.
//!
//! Promises: what one `open` returns is everything whole in the buffer, in order; key updates of the peer
//! are followed; tickets reach rustls' store. The peer's wish for new keys of ours is news, since our
//! answer has its place in what is being sent. Refuses: see [`super`].

#[cfg(feature = "testing")]
pub mod fuzz;

use std::fmt;
use std::ops::Range;

use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{ConnectionTrafficSecrets, ExtractedSecrets, ProtocolVersion};

use super::post_handshake::{KEY_UPDATE, Message, Messages};
use super::record::{Cursor, HEAD_MOST, Opener, PLAIN_LIMIT, Sealer, TAIL_MOST};
use super::{TlsError, alert, kind};

/// What makes the next keys and keeps tickets.
pub(super) enum Schedule {
    Server(KernelConnection<ServerConnectionData>),
    Client(KernelConnection<ClientConnectionData>),
}

impl Schedule {
    pub fn tls13(&self) -> bool {
        let version = match self {
            Schedule::Server(connection) => connection.protocol_version(),
            Schedule::Client(connection) => connection.protocol_version(),
        };
        version == ProtocolVersion::TLSv1_3
    }

    pub fn next_received(&mut self) -> Result<(u64, ConnectionTrafficSecrets), TlsError> {
        match self {
            Schedule::Server(connection) => connection.update_rx_secret(),
            Schedule::Client(connection) => connection.update_rx_secret(),
        }
        .map_err(keys)
    }

    pub fn next_sent(&mut self) -> Result<(u64, ConnectionTrafficSecrets), TlsError> {
        match self {
            Schedule::Server(connection) => connection.update_tx_secret(),
            Schedule::Client(connection) => connection.update_tx_secret(),
        }
        .map_err(keys)
    }

    /// A server gets none.
    pub fn ticket(&mut self, payload: &[u8]) -> Result<(), TlsError> {
        match self {
            Schedule::Server(_) => Err(TlsError::Unexpected { kind: kind::HANDSHAKE }),
            Schedule::Client(connection) => connection.handle_new_session_ticket(payload).map_err(keys),
        }
    }
}

fn keys(error: rustls::Error) -> TlsError {
    TlsError::Keys { why: error.to_string() }
}

/// A handshake that is over: the keys of both directions, shown to nobody.
pub struct Established {
    pub(super) secrets: ExtractedSecrets,
    pub(super) schedule: Schedule,
}

impl Established {
    /// Records are opened and sealed by us. The keys are overwritten where they were.
    pub fn session(self) -> Result<Session, TlsError> {
        let tls13 = self.schedule.tls13();
        let (sent, received) = (&self.secrets.tx, &self.secrets.rx);
        Ok(Session {
            opener: Opener::new(tls13, received.0, &received.1)?,
            sealer: Sealer::new(tls13, sent.0, &sent.1)?,
            messages: Messages::default(),
            schedule: Box::new(self.schedule),
        })
    }
}

/// What came beside data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// The peer will send nothing more, and says so.
    CloseNotify,
    /// The peer gives up, with this alert.
    Alert(u8),
    /// The peer wants new keys of ours: [`Session::update`] before the next record is sealed.
    UpdateWanted,
}

/// What [`Session::open`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Where the plaintext lies, contiguous; empty when there is none.
    pub plain: Range<usize>,
    /// Bytes of whole records used up; what follows is the beginning of a record.
    pub consumed: usize,
    /// What the peer told besides data. After [`News::CloseNotify`] and [`News::Alert`], nothing more is opened.
    pub news: Option<News>,
}

/// A TLS stream whose records are opened and sealed by us.
pub struct Session {
    opener: Opener,
    sealer: Sealer,
    messages: Messages,
    schedule: Box<Schedule>,
}

impl Session {
    /// Opens every whole record of `bytes` in place.
    ///
    /// The plaintext of the first data record stays where it is, that of others is moved up to its end.
    /// `bytes` before `consumed` is scrap afterwards, but for `plain`.
    pub fn open(&mut self, bytes: &mut [u8]) -> Result<Opened, TlsError> {
        let mut cursor = Cursor::default();
        let mut news = None;
        while let Some(control) = self.opener.open(bytes, &mut cursor)? {
            if std::mem::take(&mut cursor.fresh) {
                self.messages.data_came(std::mem::take(&mut cursor.fresh_bytes))?;
            }
            self.messages.take(self.opener.tls13(), control.kind, &bytes[control.at])?;
            while let Some(message) = self.messages.next()? {
                match message {
                    Message::CloseNotify => news = Some(News::CloseNotify),
                    Message::Alert(description) => news = Some(News::Alert(description)),
                    Message::Ticket(payload) => self.schedule.ticket(&payload)?,
                    Message::KeyUpdate { answer } => {
                        let (sequence, secrets) = self.schedule.next_received()?;
                        self.opener.change_key(sequence, &secrets)?;
                        if answer {
                            news = Some(News::UpdateWanted);
                        }
                    }
                }
            }
            if matches!(news, Some(News::CloseNotify | News::Alert(_))) {
                break;
            }
        }
        if cursor.fresh {
            self.messages.data_came(cursor.fresh_bytes)?;
        }
        Ok(Opened { plain: cursor.plain, consumed: cursor.read, news })
    }

    /// Where the body of a record to be sealed begins.
    pub fn head(&self) -> usize {
        self.sealer.head()
    }

    /// Bytes a record to be sealed needs after its body.
    pub fn tail(&self) -> usize {
        self.sealer.tail()
    }

    /// Bytes that sealing adds to a body.
    pub fn overhead(&self) -> usize {
        self.head() + self.tail()
    }

    /// Seals `record` = [`Session::head`] bytes, the body (≤ [`PLAIN_LIMIT`]) as cleartext,
    /// [`Session::tail`] bytes: a whole record afterwards.
    pub fn seal(&mut self, record: &mut [u8]) -> Result<(), TlsError> {
        self.sealer.seal(kind::DATA, record)
    }

    /// Seals `plain` (≤ [`PLAIN_LIMIT`]) from where it lies into `record` of exactly
    /// `plain.len() + overhead()` bytes.
    pub fn seal_from(&mut self, plain: &[u8], record: &mut [u8]) -> Result<(), TlsError> {
        self.sealer.seal_from(kind::DATA, plain, record)
    }

    /// Seals `plain` of any length, appending whole records to `out`: for what is small and rare.
    pub fn seal_into(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), TlsError> {
        plain.chunks(PLAIN_LIMIT).try_for_each(|plain| self.append(kind::DATA, plain, out))
    }

    /// Whether [`Session::update`] is due; in TLS 1.2, whether the stream should end.
    pub fn key_limit_reached(&self) -> bool {
        self.sealer.key_limit_reached()
    }

    /// Appends a key update to `out`; records sealed from now on are under the new key, and must follow it.
    pub fn update(&mut self, out: &mut Vec<u8>) -> Result<(), TlsError> {
        self.update_with(false, out)
    }

    /// Does what [`Session::update`] does; with `wanted`, the peer is asked to change its own keys as well.
    pub fn update_with(&mut self, wanted: bool, out: &mut Vec<u8>) -> Result<(), TlsError> {
        if !self.sealer.tls13() {
            return Err(TlsError::KeyExhausted);
        }
        let mut message = KEY_UPDATE;
        message[4] = u8::from(wanted);
        self.append(kind::HANDSHAKE, &message, out)?;
        let (sequence, secrets) = self.schedule.next_sent()?;
        self.sealer = Sealer::new(true, sequence, &secrets)?;
        Ok(())
    }

    /// Appends the record that says nothing more will come.
    pub fn close_notify(&mut self, out: &mut Vec<u8>) -> Result<(), TlsError> {
        self.append(kind::ALERT, &[alert::WARNING, alert::CLOSE_NOTIFY], out)
    }

    /// Appends the alert that tells the peer why this stream ends.
    pub fn alert(&mut self, error: &TlsError, out: &mut Vec<u8>) -> Result<(), TlsError> {
        match error.alert() {
            alert::CLOSE_NOTIFY => self.close_notify(out),
            description => self.append(kind::ALERT, &[alert::FATAL, description], out),
        }
    }

    fn append(&mut self, kind: u8, plain: &[u8], out: &mut Vec<u8>) -> Result<(), TlsError> {
        let at = out.len();
        out.resize(at + plain.len() + self.overhead(), 0);
        let sealed = self.sealer.seal_from(kind, plain, &mut out[at..]);
        if sealed.is_err() {
            out.truncate(at);
        }
        sealed
    }
}

impl fmt::Debug for Established {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Established").finish_non_exhaustive()
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

// Sessions move to their worker, and a hundred thousand of them should cost little.
const _: () = {
    const fn sendable<T: Send>() {}
    sendable::<Session>();
    assert!(size_of::<Session>() <= 512);
    assert!(HEAD_MOST + TAIL_MOST == 30);
};
