//! TLS of streams: rustls does the handshake, then records are opened and sealed here or by the kernel.
//!
//! ```text
//!  Handshake ── establish ──► Established ── session ──► Session   open / seal in our own buffers
//!  (rustls, no sockets)       (the keys)  └─ offload ──► Kernel    the socket carries plaintext (kTLS)
//! ```
//!
//! Promises: TLS 1.2 and 1.3 (RFC 5246, RFC 8446) with AES-128-GCM, AES-256-GCM and ChaCha20-Poly1305; no
//! allocation and no needless copy while data records are opened and sealed; key updates in both
//! directions; secrets are overwritten when they are done with and never printed.
//! Refuses: renegotiation, compression, early data, records longer than the RFC allows, and whatever
//! costs us work without carrying data (empty records, warnings, key updates without end).

pub mod config;
mod error;
mod handshake;
mod hello;
pub mod kernel;
mod post_handshake;
pub mod record;
mod session;

pub use config::{ClientOptions, Trust, client_config, server_config};
pub use error::TlsError;
pub use handshake::{Facts, Handshake, Progress};
pub use hello::{awaits, for_client};
pub use kernel::{Kernel, KernelTlsError, NotOffloaded};
#[cfg(feature = "testing")]
pub use session::fuzz;
pub use session::{Established, News, Opened, Session};

/// Content types of a record (RFC 8446 5.1).
pub mod kind {
    pub const CHANGE_CIPHER_SPEC: u8 = 20;
    pub const ALERT: u8 = 21;
    pub const HANDSHAKE: u8 = 22;
    pub const DATA: u8 = 23;
}

/// Alerts we send or tell apart (RFC 8446 6).
pub mod alert {
    pub const CLOSE_NOTIFY: u8 = 0;
    pub const UNEXPECTED_MESSAGE: u8 = 10;
    pub const BAD_RECORD_MAC: u8 = 20;
    pub const RECORD_OVERFLOW: u8 = 22;
    pub const DECODE_ERROR: u8 = 50;
    pub const INTERNAL_ERROR: u8 = 80;
    pub const USER_CANCELED: u8 = 90;
    pub const NO_RENEGOTIATION: u8 = 100;

    pub const WARNING: u8 = 1;
    pub const FATAL: u8 = 2;
}
