//! Why a running router does not do what it was told, as data: what it is, who has to act, and what to do.
//!
//! Promises: `Display` writes the whole sentence, subject first, the remedy last; nobody needs to read it to decide
//! anything. Refuses: to hold a key.

mod enforcement;
mod policy;
mod state;

use std::fmt;

use weir_io::port_error::PortError;

use super::memory::CachesTooLarge;
use crate::config::source::Excerpt;
use crate::config::{Kind, Refused};
use crate::failure::Blame;
use crate::view::NoHex;
pub use enforcement::EnforcementError;
pub use policy::{CHANGES_MAX, PolicyChangeError};
pub use state::{Access, StateError, Unreserved};

/// Why a configuration is not applied. Nothing was changed.
#[derive(Debug)]
pub enum ApplyError {
    /// The file itself, with every complaint about it.
    Refused(Refused),
    /// The router was started without a file.
    NoFile,
    /// What the file asks for, each at the place that asks.
    Rejected(Vec<(Excerpt, weir_core::state::Error)>),
    /// A setting that is read at the start only.
    Fixed {
        file: String,
        setting: &'static str,
    },
    /// A device that runs as another kind.
    KindChanged {
        at: Box<Excerpt>,
        port: String,
        device: String,
        runs_as: Kind,
    },
    CachesTooLarge(CachesTooLarge),
    Enforcement {
        at: Box<Excerpt>,
        port: String,
        error: EnforcementError,
    },
    Device {
        at: Box<Excerpt>,
        port: String,
        error: AttachError,
    },
    /// What earlier lives of SAs used is not known.
    NoState(Unreserved),
    /// What SAs may use from now on cannot be written.
    NotReserved(StateError),
}

impl ApplyError {
    pub fn blame(&self) -> Blame {
        match self {
            ApplyError::Refused(_)
            | ApplyError::NoFile
            | ApplyError::Rejected(_)
            | ApplyError::Fixed { .. }
            | ApplyError::KindChanged { .. } => Blame::Operator,
            ApplyError::CachesTooLarge(_) => Blame::Machine,
            ApplyError::Enforcement { error, .. } => error.blame(),
            ApplyError::Device { error, .. } => error.blame(),
            ApplyError::NoState(Unreserved(error)) | ApplyError::NotReserved(error) => error.blame(),
        }
    }
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ApplyError::Refused(refused) => refused.fmt(f),
            ApplyError::NoFile => f.write_str(
                "accelerate: there is no file to read again; the kernel is followed as it changes",
            ),
            ApplyError::Rejected(errors) => {
                errors.iter().try_for_each(|(at, error)| f.write_str(&at.render(error)))
            }
            ApplyError::Fixed { file, setting } => write!(
                f,
                "{file}: {setting} differs from what runs and is read at the start only; restart weir, or put it back"
            ),
            ApplyError::KindChanged { at, port, device, runs_as } => f.write_str(&at.render(format_args!(
                "port {port}: kind of {device} is {} now; a device changes its kind at the start only; restart weir, or put it back",
                runs_as.name()
            ))),
            ApplyError::CachesTooLarge(error) => error.fmt(f),
            ApplyError::Enforcement { at, port, error } => {
                f.write_str(&at.render(format_args!("port {port}: {error}")))
            }
            ApplyError::Device { at, port, error } => {
                f.write_str(&at.render(format_args!("port {port}: {error}; nothing was changed")))
            }
            ApplyError::NoState(error) => error.fmt(f),
            ApplyError::NotReserved(error) => write!(f, "{error}; nothing was changed"),
        }
    }
}

impl std::error::Error for ApplyError {}

impl From<Refused> for ApplyError {
    fn from(refused: Refused) -> ApplyError {
        ApplyError::Refused(refused)
    }
}

impl From<CachesTooLarge> for ApplyError {
    fn from(error: CachesTooLarge) -> ApplyError {
        ApplyError::CachesTooLarge(error)
    }
}

/// Why a device of a running router does not open.
#[derive(Debug)]
pub enum AttachError {
    Enforcement(EnforcementError),
    Open(PortError),
    TooFewQueues { device: String, queues: usize, workers: usize },
    NoDeviceId,
}

impl AttachError {
    pub fn blame(&self) -> Blame {
        match self {
            AttachError::Enforcement(error) => error.blame(),
            AttachError::TooFewQueues { .. } => Blame::Operator,
            AttachError::Open(_) | AttachError::NoDeviceId => Blame::Machine,
        }
    }
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttachError::Enforcement(error) => error.fmt(f),
            AttachError::Open(error) => error.fmt(f),
            AttachError::TooFewQueues { device, queues, workers } => write!(
                f,
                "{device} has {queues} receive queues, expected one for each of {workers} workers; restart weir or give it more queues"
            ),
            AttachError::NoDeviceId => f.write_str("no device id is left; restart weir"),
        }
    }
}

impl std::error::Error for AttachError {}

/// Why a frame is not traced.
#[derive(Debug)]
pub enum TraceError {
    NotARequest(serde_json::Error),
    NoHex(NoHex),
    NoPort { name: String, ports: Vec<String> },
}

impl TraceError {
    /// Whoever asks has to ask otherwise.
    pub fn blame(&self) -> Blame {
        Blame::Operator
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceError::NotARequest(error) => write!(
                f,
                "trace: the body is not a request ({error}); send {{\"port\": \"lan\", \"frame\": \"<hex>\"}}"
            ),
            TraceError::NoHex(error) => error.fmt(f),
            TraceError::NoPort { name, ports } => {
                write!(f, "trace: there is no port `{name}`; ports are {}", ports.join(", "))
            }
        }
    }
}

impl std::error::Error for TraceError {}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_disk_is_the_machines_and_a_mode_the_operators() {
        let error = io::Error::from(io::ErrorKind::StorageFull);
        let full = StateError::Directory { folder: "/s".into(), access: Access::Write, error };
        assert_eq!(full.to_string(), "state directory /s: cannot be written (no storage space)");
        let refused = ApplyError::NotReserved(full);
        assert_eq!(refused.blame(), Blame::Machine);
        assert!(refused.to_string().ends_with("; nothing was changed"), "{refused}");
        let open =
            ApplyError::NoState(Unreserved(StateError::NotPrivate { folder: "/s".into(), mode: 0o777 }));
        assert_eq!(open.blame(), Blame::Operator);
        assert!(open.to_string().contains("expected 700; `chmod 700 /s`; without what"), "{open}");
    }
}
