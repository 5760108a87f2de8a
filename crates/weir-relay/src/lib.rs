//! A DERP relay as a library: the engine that carries frames, the acceptor that lets clients in, and what both go by.
//!
//! ```text
//! accept, TLS, HTTP, NaCl (own threads) ──► AuthenticatedConn ──► registrar (one thread: who is connected)
//!                                                                    │ routes to all workers, the connection to one
//!                                                                    ▼
//!      worker (one a core), its session: bytes in ─► frames ─► whose? ─► queue of the receiver ─► bytes out
//! ```
//!
//! Promises: once an [`AuthenticatedConn`] is admitted, its socket is the worker's alone; frames in = forwarded + dropped
//! by reason + held, over all workers; one slow receiver costs nobody else anything. Refuses: connections that
//! have not proved their key: that is the acceptor's work. It knows no configuration file, no control socket and no router:
//! [`Settings`] come in, a [`RelayReport`] and the text of [`metrics`] go out.

#![forbid(unsafe_code)]

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use weir_core::relay::Key;
use weir_core::relay::handshake::ClientInfo;
use weir_io::tls::{self, Kernel};

pub mod acceptor;
mod backlog;
pub mod certificates;
pub mod counters;
mod cross_worker;
mod engine;
pub mod error;
#[cfg(feature = "testing")]
pub mod fuzz;
mod inbox;
pub mod inherited;
pub mod keyfile;
mod messages;
pub mod metrics;
pub mod reconfigure;
pub mod registrar;
pub mod report;
pub mod session;
pub mod settings;
mod sync;
pub mod warning;
pub mod websocket;
mod worker;

pub use engine::Relay;
pub use error::{Error, StartError};
pub use report::{Connection, RelayReport, WorkerReport};
pub use settings::{Engine, Rate, Rates, Settings};
use websocket::Unframer;

/// A connection that has said and proved who it is, ready for a worker.
#[derive(Debug)]
pub struct AuthenticatedConn {
    pub socket: OwnedFd,
    /// The client's key; of a connection that we dialled, the other relay's.
    pub key: Key,
    pub info: ClientInfo,
    pub role: Role,
    pub address: SocketAddr,
    pub tls_mode: TlsMode,
    /// Frames travel in binary WebSocket messages; where in them what comes next begins.
    pub websocket: Option<Box<Unframer>>,
    /// Frames to be sent before all others: `ServerInfo` to a client; nothing to a relay that we dialled (its
    /// worker asks for the list of its peers).
    pub greeting: Vec<u8>,
    /// Plaintext that came after the handshake (in WebSocket messages, if there are any).
    pub early: Vec<u8>,
    /// Ciphertext that nobody has opened yet.
    pub unread: Vec<u8>,
    /// The client says this is the best relay for it.
    pub ideal: bool,
    pub rates: Rates,
    pub guard: ConnGuard,
}

/// What is given back, or told, when a connection ends.
#[derive(Debug)]
pub enum ConnGuard {
    Nothing,
    /// A client's place among those the acceptor lets in.
    Share(acceptor::limits::Share),
    /// Who dialled it waits to hear of its end.
    Line(acceptor::mesh::Line),
}

/// What a connection may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Client,
    /// It showed the mesh key: it may watch, forward and close.
    Mesh,
    /// Another relay that we dialled with the mesh key: its peers are reached through it.
    Dialled,
}

/// Who opens and seals the bytes of a connection.
pub enum TlsMode {
    /// Nobody: no TLS.
    Plain,
    /// The worker.
    User(tls::Session),
    /// The kernel.
    Kernel(Kernel),
}

impl fmt::Debug for TlsMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TlsMode::Plain => "Plain",
            TlsMode::User(_) => "User(…)",
            TlsMode::Kernel(_) => "Kernel(…)",
        })
    }
}
