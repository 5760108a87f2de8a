//! A DERP relay as a library: the engine that carries frames, the front that lets clients in, and what both go by.
//!
//! ```text
//! accept, TLS, HTTP, NaCl (own threads) ──► Newcomer ──► registrar (one thread: who is connected)
//!                                                           │ routes to all workers, the connection to one
//!                                                           ▼
//!      worker (one a core): bytes in ─► frames ─► whose? ─► queue of the receiver ─► bytes out
//! ```
//!
//! Promises: once a [`Newcomer`] is admitted, its socket is the worker's alone; frames in = forwarded + dropped
//! by reason + held, over all workers; one slow receiver costs nobody else anything. Refuses: connections that
//! have not proved their key: that is the front's work. It knows no configuration file, no control socket and no router:
//! [`Settings`] come in, a [`Report`] and the text of [`metrics`] go out.

#![forbid(unsafe_code)]

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use weir_core::relay::Key;
use weir_core::relay::handshake::ClientInfo;
use weir_io::tls::{Kernel, Session};

mod backlog;
pub mod certificates;
mod counters;
mod engine;
pub mod error;
pub mod front;
mod inbox;
pub mod inherited;
pub mod keyfile;
mod messages;
pub mod metrics;
mod parcel;
pub mod reconfigure;
mod registrar;
mod report;
pub mod settings;
pub mod warning;
pub mod websocket;
mod worker;

pub use engine::Relay;
pub use error::{Error, StartError};
pub use report::{Connection, Report, WorkerReport};
pub use settings::{Engine, Rate, Rates, Settings};
use websocket::Unframer;

/// A connection that has said and proved who it is, ready for a worker.
#[derive(Debug)]
pub struct Newcomer {
    pub socket: OwnedFd,
    /// The client's key; of a connection that we dialled, the other relay's.
    pub key: Key,
    pub info: ClientInfo,
    pub role: Role,
    pub address: SocketAddr,
    pub crypt: Crypt,
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
    pub held: Held,
}

/// What is given back, or told, when a connection ends.
#[derive(Debug)]
pub enum Held {
    Nothing,
    /// A client's place among those the front lets in.
    Place(front::limits::Place),
    /// Who dialled it waits to hear of its end.
    Line(front::mesh::Line),
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
pub enum Crypt {
    /// Nobody: no TLS.
    Plain,
    /// The worker.
    User(Session),
    /// The kernel.
    Kernel(Kernel),
}

impl fmt::Debug for Crypt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Crypt::Plain => "Plain",
            Crypt::User(_) => "User(…)",
            Crypt::Kernel(_) => "Kernel(…)",
        })
    }
}
