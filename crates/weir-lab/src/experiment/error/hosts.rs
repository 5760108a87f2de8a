//! `[hosts]` and `command` that cannot be.

use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostError {
    Destination {
        got: String,
    },
    Option {
        got: String,
    },
    /// An option of ssh that the lab sets itself.
    OwnOption(&'static str),
    Interface {
        got: String,
    },
    /// An interface that this role does not have.
    Meaningless,
    /// An interface that this role needs.
    Missing,
}

impl HostError {
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            HostError::OwnOption(_) | HostError::Meaningless => Some("remove it"),
            HostError::Missing => Some("name a test interface, as `ip link` does"),
            HostError::Destination { .. } | HostError::Option { .. } | HostError::Interface { .. } => None,
        }
    }
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostError::Destination { got } => {
                write!(f, "got \"{got}\", expected user@host or an alias of ssh_config")
            }
            HostError::Option { got } => {
                write!(f, "got \"{got}\", expected an option of ssh_config as \"Name=value\"")
            }
            HostError::OwnOption(name) => {
                write!(f, "{name} is the lab's own (it asks nobody and trusts known host keys only)")
            }
            HostError::Interface { got } => {
                write!(f, "got \"{got}\", expected the name of an interface, as `ip link` does")
            }
            HostError::Meaningless => f.write_str("has no meaning here"),
            HostError::Missing => f.write_str("is missing"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandError {
    FileName {
        got: String,
    },
    /// A name is in `files` and in `upload`.
    Twice {
        file: String,
    },
    NoApply,
}

impl CommandError {
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            CommandError::FileName { .. } => Some("give it another"),
            CommandError::Twice { .. } => Some("keep one"),
            CommandError::NoApply => None,
        }
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CommandError::FileName { got } => {
                write!(f, "\"{got}\" cannot be the name of a file in $WEIR_DIR")
            }
            CommandError::Twice { file } => write!(f, "{file} is in `files` and in `upload`"),
            CommandError::NoApply => f.write_str("`apply` is empty, expected what makes the device forward"),
        }
    }
}
