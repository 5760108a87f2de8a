//! What can go wrong with a relay outside its connections, as data: what it is, who has to act, and what to do.
//!
//! Promises: `Display` writes the whole sentence, subject first, the remedy last; nobody needs to read it to decide
//! anything. Refuses: to hold a key: causes name files, lengths and what libraries said.

mod certificate;
mod key;
mod start;

use std::fmt;
use std::io;
use std::net::SocketAddr;

pub use certificate::{AcmeError, CertificateError};
pub use key::{KeyError, NoMeshKey};
pub use start::{StartError, WORKERS_MAX};

/// Who has to act for it to go away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// A file, a name or a permission is not what it should be.
    Operator,
    /// The machine lacks something: descriptors, tasks, a system call.
    Machine,
    /// An authority, a verifier, another relay.
    Peer,
    /// A defect of weir.
    Us,
}

/// Why a relay did not start, or did not change.
#[derive(Debug)]
pub enum Error {
    Key(KeyError),
    Certificate(CertificateError),
    Listen(ListenError),
    Engine(StartError),
    /// What threads of the acceptor or the mesh need.
    Resource {
        of: &'static str,
        what: Resource,
        error: io::Error,
    },
}

/// What a machine has only so many of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    Descriptors,
    Tasks,
}

impl Error {
    pub fn blame(&self) -> Blame {
        match self {
            Error::Key(error) => error.blame(),
            Error::Certificate(error) => error.blame(),
            Error::Listen(_) => Blame::Operator,
            Error::Engine(StartError::Workers(_)) => Blame::Operator,
            Error::Engine(_) | Error::Resource { .. } => Blame::Machine,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Key(error) => error.fmt(f),
            Error::Certificate(error) => error.fmt(f),
            Error::Listen(error) => error.fmt(f),
            Error::Engine(error) => error.fmt(f),
            Error::Resource { of, what: Resource::Descriptors, error } => {
                write!(f, "{of}: {error}; raise the limit of open files")
            }
            Error::Resource { of, what: Resource::Tasks, error } => {
                write!(f, "{of}: no thread ({error}); raise the limit of tasks")
            }
        }
    }
}

impl std::error::Error for Error {}

impl From<KeyError> for Error {
    fn from(error: KeyError) -> Error {
        Error::Key(error)
    }
}

impl From<CertificateError> for Error {
    fn from(error: CertificateError) -> Error {
        Error::Certificate(error)
    }
}

impl From<ListenError> for Error {
    fn from(error: ListenError) -> Error {
        Error::Listen(error)
    }
}

impl From<StartError> for Error {
    fn from(error: StartError) -> Error {
        Error::Engine(error)
    }
}

/// An address that cannot be listened on.
#[derive(Debug)]
pub struct ListenError {
    /// `listen` or `stun`.
    pub service: &'static str,
    pub address: SocketAddr,
    pub error: io::Error,
}

impl ListenError {
    pub fn remedy(&self) -> &'static str {
        match self.error.kind() {
            io::ErrorKind::AddrInUse => "another program has it: stop that one, or choose another port",
            io::ErrorKind::PermissionDenied => {
                "ports below 1024 need root or CAP_NET_BIND_SERVICE; run with it, or choose a higher port"
            }
            io::ErrorKind::AddrNotAvailable => "this host has no such address; name one it has, or `:PORT`",
            _ => "choose another address",
        }
    }
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ListenError { service, address, error } = self;
        write!(f, "{service} {address}: cannot listen ({error}); {}", self.remedy())
    }
}

impl std::error::Error for ListenError {}
