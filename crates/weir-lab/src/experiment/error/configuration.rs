//! Configurations that mean nothing, and CPUs that are not there.

use std::borrow::Cow;
use std::fmt;

use crate::experiment::Axis;
use crate::model::Invalid;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigurationError {
    /// A name that no file can have.
    FileName {
        got: String,
    },
    /// Two of one name, which the axes that are lists would tell apart.
    SameName {
        name: String,
        listed: Vec<Axis>,
    },
    /// Keys that mean nothing together.
    Invalid(Invalid),
    NoHosts,
    /// What forwards needs a host that receives.
    NoReceiver,
    NoCommand,
    /// The method is to load at a fixed rate.
    NoRate,
    /// The method searches for rates itself.
    RateOfSearch,
    /// The method searches for a rate that loses nothing.
    StalledInSearch,
}

impl ConfigurationError {
    pub fn remedy(&self) -> Option<Cow<'static, str>> {
        Some(match self {
            ConfigurationError::FileName { .. } => "give it another".into(),
            ConfigurationError::SameName { listed, .. } if listed.is_empty() => {
                "give each a name of its own".into()
            }
            ConfigurationError::SameName { listed, .. } => {
                let listed: Vec<String> = listed.iter().map(|axis| format!("{{{}}}", axis.key())).collect();
                format!("put {} into `name`", listed.join(" and ")).into()
            }
            ConfigurationError::Invalid(error) => return Some(error.remedy().into()),
            ConfigurationError::NoReceiver => "name it, or give the configuration relay = {}".into(),
            ConfigurationError::NoHosts | ConfigurationError::NoCommand => return None,
            ConfigurationError::NoRate => "give it `rate = <packets a second>`".into(),
            ConfigurationError::RateOfSearch => "remove it or use method \"fixed\"".into(),
            ConfigurationError::StalledInSearch => {
                "remove `stalled`, or use method \"mrr\" or \"fixed\"".into()
            }
        })
    }
}

impl fmt::Display for ConfigurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ConfigurationError::FileName { got } => {
                return write!(f, "name \"{got}\" cannot be a file name");
            }
            ConfigurationError::SameName { name, .. } => return write!(f, "two are named \"{name}\""),
            ConfigurationError::Invalid(error) => return error.fmt(f),
            ConfigurationError::NoHosts => "topology \"ssh\" needs [hosts]; docs/ssh.md describes them",
            ConfigurationError::NoReceiver => {
                "forwarding needs [hosts.receiver], which only files of relays alone leave out"
            }
            ConfigurationError::NoCommand => {
                "SUT \"command\" needs [configuration.command] with at least `apply`"
            }
            ConfigurationError::NoRate => "has no rate to be fixed at",
            ConfigurationError::RateOfSearch => "has a `rate`, but a search chooses the rates",
            ConfigurationError::StalledInSearch => "has stalled receivers, whose losses no rate ends",
        })
    }
}

/// What a machine lacks of the CPUs that a word means; the configuration is skipped there, with this reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CpusError {
    Cores {
        word: String,
        needs: usize,
        has: usize,
    },
    NoSiblings,
    Offline {
        list: String,
        cpu: u32,
    },
    /// A word for CPUs of a host that is not this one.
    OtherHost {
        word: String,
    },
}

impl CpusError {
    pub fn remedy(&self) -> &'static str {
        match self {
            CpusError::Cores { .. } => "run it on a larger one",
            CpusError::NoSiblings => "run it on a machine with SMT switched on",
            CpusError::Offline { .. } => "name others",
            CpusError::OtherHost { .. } => "write a list such as 0-1,3",
        }
    }
}

impl fmt::Display for CpusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CpusError::Cores { word, needs, has } => {
                write!(f, "cpus {word}: needs {needs} cores, this machine has {has}")
            }
            CpusError::NoSiblings => {
                f.write_str("cpus sibling-pair: no core here has a second hardware thread online")
            }
            CpusError::Offline { list, cpu } => write!(f, "cpus {list}: cpu {cpu} is not online here"),
            CpusError::OtherHost { word } => write!(f, "cpus {word}: not known of other hosts"),
        }?;
        write!(f, ": {}", self.remedy())
    }
}

impl std::error::Error for CpusError {}
