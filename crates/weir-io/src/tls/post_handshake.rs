//! Messages of TLS that come after the handshake: alerts, key updates, tickets.
//!
//! Promises: handshake messages may be split over records, and several may share one (RFC 8446 5.1); what
//! is kept of an unfinished one is bounded. Refuses: data between the parts of a message, a key update
//! that is not the last of its record (RFC 8446 5.1), messages that have no place here, and floods.

use super::{TlsError, alert, kind};

/// Handshake message: key update that asks for none in return (RFC 8446 4.6.3).
pub(super) const KEY_UPDATE: [u8; 5] = [KEY_UPDATE_TYPE, 0, 0, 1, 0];

const NEW_SESSION_TICKET_TYPE: u8 = 4;
const KEY_UPDATE_TYPE: u8 = 24;
const MESSAGE_HEADER: usize = 4;
/// A ticket has at most 2^16 bytes and less than 2^16 of extensions; honest ones stay far below this.
const MESSAGE_LIMIT: usize = 65_536;
/// Messages without data between them: rustls takes 32 key updates, servers send a few tickets.
const MESSAGES_LIMIT: u8 = 32;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message {
    CloseNotify,
    Alert(u8),
    /// Payload of a new session ticket.
    Ticket(Vec<u8>),
    KeyUpdate {
        answer: bool,
    },
}

/// Puts messages together.
#[derive(Default)]
pub(super) struct Messages {
    alert: Option<Message>,
    /// Bytes of handshake messages, the first of which begins here; empty nearly always.
    handshake: Vec<u8>,
    /// Messages since data came.
    without_data: u8,
}

impl Messages {
    /// Data may not come between the parts of a message; it shows that the peer means something by it all.
    pub fn data_came(&mut self) -> Result<(), TlsError> {
        self.without_data = 0;
        if self.handshake.is_empty() { Ok(()) } else { Err(TlsError::Unexpected { kind: kind::DATA }) }
    }

    /// Takes the plaintext of a record that is no data.
    pub fn take(&mut self, tls13: bool, kind: u8, plain: &[u8]) -> Result<(), TlsError> {
        self.without_data += 1;
        if self.without_data > MESSAGES_LIMIT {
            return Err(TlsError::Flood { what: "messages without data" });
        }
        match kind {
            kind::ALERT => self.take_alert(tls13, plain),
            kind::HANDSHAKE if !tls13 => Err(TlsError::Renegotiation),
            kind::HANDSHAKE if plain.is_empty() => Err(TlsError::Unexpected { kind }),
            kind::HANDSHAKE if self.handshake.len() + plain.len() > MESSAGE_LIMIT => {
                let length = self.handshake.len() + plain.len();
                Err(TlsError::TooLong { length, limit: MESSAGE_LIMIT })
            }
            kind::HANDSHAKE => {
                self.handshake.extend_from_slice(plain);
                Ok(())
            }
            kind => Err(TlsError::Unexpected { kind }),
        }
    }

    fn take_alert(&mut self, tls13: bool, plain: &[u8]) -> Result<(), TlsError> {
        let &[level, description] = plain else { return Err(TlsError::Malformed { what: "alert" }) };
        if !self.handshake.is_empty() {
            return Err(TlsError::Unexpected { kind: kind::ALERT });
        }
        self.alert = match description {
            alert::CLOSE_NOTIFY => Some(Message::CloseNotify),
            // A close_notify follows (RFC 8446 6.1).
            alert::USER_CANCELED => None,
            // TLS 1.3 has no warnings but those two (RFC 8446 6).
            _ if !tls13 && level == alert::WARNING => None,
            description => Some(Message::Alert(description)),
        };
        Ok(())
    }

    /// The next whole message.
    pub fn next(&mut self) -> Result<Option<Message>, TlsError> {
        if let Some(alert) = self.alert.take() {
            return Ok(Some(alert));
        }
        let [kind, a, b, c, rest @ ..] = self.handshake.as_slice() else { return Ok(None) };
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        if length > MESSAGE_LIMIT {
            return Err(TlsError::TooLong { length, limit: MESSAGE_LIMIT });
        }
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        let message = match (*kind, payload) {
            (NEW_SESSION_TICKET_TYPE, payload) => Message::Ticket(payload.to_vec()),
            // What follows is under another key, and so in another record.
            (KEY_UPDATE_TYPE, _) if rest.len() > length => {
                return Err(TlsError::Unexpected { kind: kind::HANDSHAKE });
            }
            (KEY_UPDATE_TYPE, [0]) => Message::KeyUpdate { answer: false },
            (KEY_UPDATE_TYPE, [1]) => Message::KeyUpdate { answer: true },
            (KEY_UPDATE_TYPE, _) => return Err(TlsError::Malformed { what: "key update" }),
            _ => return Err(TlsError::Unexpected { kind: kind::HANDSHAKE }),
        };
        self.handshake.drain(..MESSAGE_HEADER + length);
        if self.handshake.is_empty() {
            // An idle stream keeps no buffer.
            self.handshake = Vec::new();
        }
        Ok(Some(message))
    }
}
