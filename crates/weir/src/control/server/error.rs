//! Why a control socket or `/metrics` is not served.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

#[derive(Debug)]
pub enum ServerError {
    Socket {
        socket: PathBuf,
        failed: Step,
        error: io::Error,
    },
    /// Somebody answers on it.
    InUse {
        socket: PathBuf,
    },
    /// The predecessor's name was not to be had.
    NotTakenOver {
        socket: PathBuf,
        error: io::Error,
    },
    Metrics {
        address: SocketAddr,
        error: io::Error,
    },
    /// Descriptors of the runtime.
    NotServed(io::Error),
    NoThread(io::Error),
}

/// What is done to a socket's file, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    MakeFolder,
    RemoveDead,
    Bind,
    Look,
    NonBlocking,
}

impl Step {
    fn sentence(self) -> &'static str {
        match self {
            Step::MakeFolder => "its folder cannot be made",
            Step::RemoveDead => "the one left behind cannot be removed",
            Step::Bind => "cannot be made",
            Step::Look => "cannot be looked at",
            Step::NonBlocking => "cannot be made non-blocking",
        }
    }
}

impl ServerError {
    /// What to do, where there is more to say than the cause.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            ServerError::Socket { error, .. } if error.kind() == io::ErrorKind::PermissionDenied => {
                Some("run as root or choose another path with --socket")
            }
            ServerError::Socket { .. } => Some("choose another path with --socket or [control] socket"),
            ServerError::InUse { .. } => Some(
                "stop that one, or give this one another name or --socket; --take-over takes over from it",
            ),
            ServerError::NotTakenOver { .. } => None,
            ServerError::Metrics { .. } => Some("choose a free address in [control] metrics"),
            ServerError::NotServed(_) => Some("raise the limit of open files"),
            ServerError::NoThread(_) => Some("raise the limit of tasks"),
        }
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerError::Socket { socket, failed, error } => {
                write!(f, "control socket {}: {} ({error})", socket.display(), failed.sentence())
            }
            ServerError::InUse { socket } => {
                write!(f, "control socket {}: another weir answers on it", socket.display())
            }
            ServerError::NotTakenOver { socket, error } => {
                write!(f, "control socket {}: cannot be taken over ({error})", socket.display())
            }
            ServerError::Metrics { address, error } => {
                write!(f, "metrics {address}: cannot listen ({error})")
            }
            ServerError::NotServed(error) => write!(f, "control socket: cannot be served ({error})"),
            ServerError::NoThread(error) => write!(f, "control socket: no thread ({error})"),
        }?;
        self.remedy().map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
    }
}

impl std::error::Error for ServerError {}
