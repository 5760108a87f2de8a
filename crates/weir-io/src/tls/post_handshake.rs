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
    /// Data may not come between the parts of a message; any byte of it shows that the peer means something by it all.
    /// Records without one show nothing.
    pub fn data_came(&mut self, bytes: usize) -> Result<(), TlsError> {
        if bytes > 0 {
            self.without_data = 0;
        }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn drain(messages: &mut Messages) -> Result<Vec<Message>, TlsError> {
        let mut found = Vec::new();
        while let Some(message) = messages.next()? {
            found.push(message);
        }
        Ok(found)
    }

    /// A ticket of `length` bytes as a handshake message.
    fn ticket(length: usize) -> Vec<u8> {
        let mut bytes = vec![NEW_SESSION_TICKET_TYPE];
        bytes.extend_from_slice(&(length as u32).to_be_bytes()[1..]);
        bytes.resize(MESSAGE_HEADER + length, 7);
        bytes
    }

    #[test]
    fn messages_may_be_split_over_records_and_share_one() {
        let bytes = [ticket(10), ticket(0), ticket(300)].concat();
        for cut in 1..bytes.len() {
            let mut messages = Messages::default();
            messages.take(true, kind::HANDSHAKE, &bytes[..cut]).expect("a part");
            let mut found = drain(&mut messages).expect("well formed");
            messages.take(true, kind::HANDSHAKE, &bytes[cut..]).expect("the rest");
            found.extend(drain(&mut messages).expect("well formed"));
            let lengths = found.iter().map(|message| match message {
                Message::Ticket(payload) => payload.len(),
                other => panic!("{other:?}"),
            });
            assert_eq!(lengths.collect::<Vec<_>>(), [10, 0, 300], "cut at {cut}");
            assert_eq!(messages.handshake.capacity(), 0, "nothing is kept");
        }
    }

    #[test]
    fn data_between_the_parts_of_a_message_is_refused() {
        let mut messages = Messages::default();
        messages.take(true, kind::HANDSHAKE, &ticket(10)[..5]).expect("a part");
        assert_eq!(drain(&mut messages), Ok(vec![]));
        assert_eq!(messages.data_came(1), Err(TlsError::Unexpected { kind: kind::DATA }));
        assert_eq!(
            messages.take(true, kind::ALERT, &[1, 0]),
            Err(TlsError::Unexpected { kind: kind::ALERT })
        );
    }

    #[test]
    fn key_update_that_is_not_the_last_of_its_record_is_refused() {
        let mut messages = Messages::default();
        messages.take(true, kind::HANDSHAKE, &[&KEY_UPDATE[..], &ticket(3)].concat()).expect("bytes");
        assert_eq!(drain(&mut messages), Err(TlsError::Unexpected { kind: kind::HANDSHAKE }));
    }

    #[test]
    fn malformed_messages_are_refused_by_name() {
        for (kind, bytes, expected) in [
            (kind::ALERT, &[1][..], TlsError::Malformed { what: "alert" }),
            (kind::ALERT, &[1, 0, 0], TlsError::Malformed { what: "alert" }),
            (kind::HANDSHAKE, &[], TlsError::Unexpected { kind: kind::HANDSHAKE }),
            (kind::HANDSHAKE, &[24, 0, 0, 1, 2], TlsError::Malformed { what: "key update" }),
            (kind::HANDSHAKE, &[24, 0, 0, 2, 0, 0], TlsError::Malformed { what: "key update" }),
            (kind::HANDSHAKE, &[1, 0, 0, 0], TlsError::Unexpected { kind: kind::HANDSHAKE }),
            (kind::HANDSHAKE, &[4, 255, 0, 0], TlsError::TooLong { length: 0xff_0000, limit: MESSAGE_LIMIT }),
            (99, &[0], TlsError::Unexpected { kind: 99 }),
        ] {
            let mut messages = Messages::default();
            let result = messages.take(true, kind, bytes).and_then(|()| drain(&mut messages));
            assert_eq!(result, Err(expected), "{kind} {bytes:?}");
        }
        assert_eq!(Messages::default().take(false, kind::HANDSHAKE, &[0; 4]), Err(TlsError::Renegotiation));
    }

    #[test]
    fn warnings_of_tls_12_do_not_end_the_stream_and_those_of_tls_13_do() {
        let found = |tls13| {
            let mut messages = Messages::default();
            messages.take(tls13, kind::ALERT, &[alert::WARNING, alert::NO_RENEGOTIATION]).expect("an alert");
            drain(&mut messages).expect("well formed")
        };
        assert_eq!(found(false), []);
        assert_eq!(found(true), [Message::Alert(alert::NO_RENEGOTIATION)]);
    }

    proptest! {
        #[test]
        fn whatever_a_peer_with_keys_says_is_bounded(
            records in prop::collection::vec((20u8..25, prop::collection::vec(any::<u8>(), 0..40)), 0..60),
            tls13 in any::<bool>(),
        ) {
            let mut messages = Messages::default();
            for (kind, bytes) in records {
                if messages.take(tls13, kind, &bytes).is_err() || drain(&mut messages).is_err() {
                    break;
                }
                prop_assert!(messages.handshake.len() <= MESSAGE_LIMIT);
                prop_assert!(messages.without_data <= MESSAGES_LIMIT);
            }
        }
    }
}
