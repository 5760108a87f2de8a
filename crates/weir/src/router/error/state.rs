//! State directories that cannot be used.

use std::fmt;
use std::io;
use std::path::PathBuf;

use weir_core::control::Damaged;

use crate::failure::Blame;

/// Why what SAs used is not known, or cannot be kept.
#[derive(Debug)]
pub enum StateError {
    Directory {
        folder: PathBuf,
        access: Access,
        error: io::Error,
    },
    /// Others than its owner may write to the directory.
    NotPrivate {
        folder: PathBuf,
        mode: u32,
    },
    InUse {
        folder: PathBuf,
    },
    Unreadable {
        file: PathBuf,
        error: io::Error,
    },
    Damaged {
        file: PathBuf,
        damaged: Damaged,
    },
    /// The counters of this life did not become those to go on from.
    CountersNotMoved {
        file: PathBuf,
        error: io::Error,
    },
    NoThread(io::Error),
}

/// What could not be done to a state directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Make,
    Read,
    Lock,
    Write,
}

impl StateError {
    pub fn blame(&self) -> Blame {
        match self {
            StateError::NotPrivate { .. } | StateError::InUse { .. } | StateError::Damaged { .. } => {
                Blame::Operator
            }
            _ => Blame::Machine,
        }
    }

    /// What to do, where it is more than to mend what the sentence names.
    pub fn remedy(&self) -> Option<String> {
        match self {
            StateError::NotPrivate { folder, .. } => Some(format!("`chmod 700 {}`", folder.display())),
            StateError::InUse { .. } => Some("stop that one, or name another with --state-dir".to_owned()),
            StateError::Damaged { .. } => Some(
                "what was used is not known, and is never taken for nothing: restore the file, or give every SA a new key and remove it"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StateError::Directory { folder, access, error } => {
                let access = match access {
                    Access::Make => "made",
                    Access::Read => "read",
                    Access::Lock => "locked",
                    Access::Write => "written",
                };
                write!(f, "state directory {}: cannot be {access} ({error})", folder.display())
            }
            StateError::NotPrivate { folder, mode } => write!(
                f,
                "state directory {}: has mode {mode:o}, so that others may write to it, expected 700",
                folder.display()
            ),
            StateError::InUse { folder } => {
                write!(f, "state directory {}: another weir uses it", folder.display())
            }
            StateError::Unreadable { file, error } => {
                write!(f, "{}: cannot be read ({error})", file.display())
            }
            StateError::Damaged { file, damaged } => write!(f, "{}: {damaged}", file.display()),
            StateError::CountersNotMoved { file, error } => {
                write!(f, "{}: cannot be put in its place ({error})", file.display())
            }
            StateError::NoThread(error) => write!(f, "a thread cannot be made ({error})"),
        }?;
        self.remedy().map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
    }
}

impl std::error::Error for StateError {}

/// SAs do not run, because what they used before is not known.
#[derive(Debug)]
pub struct Unreserved(pub StateError);

impl fmt::Display for Unreserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}; without what SAs used before, sequence numbers would begin again and recorded packets would be accepted: mend that, name another state directory with --state-dir, or run with --accept-replay-risk",
            self.0
        )
    }
}

impl std::error::Error for Unreserved {}
