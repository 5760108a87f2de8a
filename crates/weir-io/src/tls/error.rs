//! Why a TLS stream ends: each reason with its sentence and the alert that tells the peer.

use std::fmt;

use super::alert;

/// What ends a stream. The peer caused all of them but [`TlsError::KeyExhausted`] and [`TlsError::Keys`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsError {
    /// A record does not authenticate: damaged, forged, or under another key.
    Forged,
    /// A record, or what is in it, is longer than the RFC allows.
    TooLong { length: usize, limit: usize },
    /// The bytes are no TLS record: first byte and version as received.
    NotTls { kind: u8, version: u16 },
    /// A record of this content type may not come now.
    Unexpected { kind: u8 },
    /// An alert or handshake message that does not follow its own format.
    Malformed { what: &'static str },
    /// A TLS 1.2 peer wants to negotiate again.
    Renegotiation,
    /// More of what costs work and carries no data than any honest peer sends in a row.
    Flood { what: &'static str },
    /// The key has encrypted as much as AES-GCM allows and TLS 1.2 cannot change it.
    KeyExhausted,
    /// The kernel holds the keys and cannot change them.
    KernelKeys { why: String },
    /// rustls could not make or keep keys.
    Keys { why: String },
}

impl TlsError {
    /// The alert to send before closing.
    pub fn alert(&self) -> u8 {
        match self {
            TlsError::Forged => alert::BAD_RECORD_MAC,
            TlsError::TooLong { .. } => alert::RECORD_OVERFLOW,
            TlsError::NotTls { .. } | TlsError::Unexpected { .. } | TlsError::Flood { .. } => {
                alert::UNEXPECTED_MESSAGE
            }
            TlsError::Malformed { .. } => alert::DECODE_ERROR,
            TlsError::Renegotiation => alert::NO_RENEGOTIATION,
            TlsError::KeyExhausted => alert::CLOSE_NOTIFY,
            TlsError::KernelKeys { .. } | TlsError::Keys { .. } => alert::INTERNAL_ERROR,
        }
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TlsError::Forged => write!(f, "TLS record does not authenticate"),
            TlsError::TooLong { length, limit } => {
                write!(f, "TLS record of {length} bytes, at most {limit} are allowed")
            }
            TlsError::NotTls { kind, version } => {
                write!(f, "no TLS record: content type {kind}, version {version:#06x}")
            }
            TlsError::Unexpected { kind } => write!(f, "TLS record of type {kind} may not come now"),
            TlsError::Malformed { what } => write!(f, "TLS {what} is malformed"),
            TlsError::Renegotiation => write!(f, "peer asks for renegotiation, which is not served"),
            TlsError::Flood { what } => write!(f, "peer sends {what} without end"),
            TlsError::KeyExhausted => {
                write!(f, "TLS 1.2 key is used up and cannot change: reconnect, or use TLS 1.3")
            }
            TlsError::KernelKeys { why } => {
                write!(f, "kernel TLS cannot change keys: {why}; Linux 6.14 can, or use TLS in user space")
            }
            TlsError::Keys { why } => write!(f, "TLS keys: {why}"),
        }
    }
}

impl std::error::Error for TlsError {}
