//! Files with a key in them that cannot be used.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::PathBuf;

use weir_io::private::NotPrivate;

use super::Blame;

#[derive(Debug)]
pub enum KeyError {
    Unreadable {
        path: PathBuf,
        error: io::Error,
    },
    /// No regular file, or too long for a key.
    NoKeyFile {
        path: PathBuf,
        most: u64,
    },
    NotPrivate(NotPrivate),
    /// Something else than a relay's key is in it.
    NoKey {
        path: PathBuf,
    },
    /// Somebody removed it while it was made.
    Vanished {
        path: PathBuf,
    },
    CannotMake {
        path: PathBuf,
        error: io::Error,
    },
    /// The file with the mesh key does not exist.
    NoMeshKeyFile {
        path: PathBuf,
    },
    NoMeshKey {
        path: PathBuf,
        found: NoMeshKey,
    },
    NoRandomness(io::Error),
}

/// A text that is no mesh key, by its length alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMeshKey {
    pub characters: usize,
}

impl fmt::Display for NoMeshKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the mesh key has {} characters, expected 64 hex digits; make one with `openssl rand -hex 32`",
            self.characters
        )
    }
}

impl std::error::Error for NoMeshKey {}

impl KeyError {
    pub fn blame(&self) -> Blame {
        match self {
            KeyError::NoRandomness(_) => Blame::Machine,
            _ => Blame::Operator,
        }
    }

    /// What to do; nothing where the sentence ends with it.
    pub fn remedy(&self) -> Cow<'static, str> {
        match self {
            KeyError::Unreadable { .. } => "run as the user who owns it".into(),
            KeyError::NoKeyFile { .. } => "name the file with the key".into(),
            KeyError::NotPrivate(found) => format!("run `chmod 600 {}`", found.path.display()).into(),
            KeyError::NoKey { .. } => "remove it to have one made".into(),
            KeyError::Vanished { .. } => "keep others out of its folder".into(),
            KeyError::CannotMake { .. } => "name a file in a folder of yours".into(),
            KeyError::NoMeshKeyFile { path } => {
                format!("make it with `umask 077; openssl rand -hex 32 > {}`", path.display()).into()
            }
            KeyError::NoMeshKey { .. } => "make one with `openssl rand -hex 32`".into(),
            KeyError::NoRandomness(_) => "a kernel with getrandom(2) is needed".into(),
        }
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // These two end with the remedy themselves.
            KeyError::NotPrivate(found) => return found.fmt(f),
            KeyError::NoMeshKey { path, found } => return write!(f, "{}: {found}", path.display()),
            KeyError::Unreadable { path, error } => write!(f, "{}: cannot read it ({error})", path.display()),
            KeyError::NoKeyFile { path, most } => {
                write!(f, "{}: is no regular file of at most {most} bytes", path.display())
            }
            KeyError::NoKey { path } => write!(
                f,
                "{}: holds no relay's key, expected `{{\"PrivateKey\": \"privkey:…\"}}` with 64 hex digits",
                path.display()
            ),
            KeyError::Vanished { path } => write!(f, "{}: vanished while it was made", path.display()),
            KeyError::CannotMake { path, error } => write!(f, "{}: cannot make it ({error})", path.display()),
            KeyError::NoMeshKeyFile { path } => write!(f, "{}: there is no such file", path.display()),
            KeyError::NoRandomness(error) => write!(f, "random bytes: {error}"),
        }?;
        write!(f, "; {}", self.remedy())
    }
}

impl std::error::Error for KeyError {}

impl From<NotPrivate> for KeyError {
    fn from(found: NotPrivate) -> KeyError {
        KeyError::NotPrivate(found)
    }
}
