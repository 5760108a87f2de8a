//! Requests to change policies that are refused.

use std::fmt;

use weir_core::state::Error as StateProblem;

use crate::config::Refused;
use crate::failure::Blame;

/// Changes of one request: a thousand lists of policies are compared in it at the most.
pub const CHANGES_MAX: usize = 1000;

/// Why policies of an SPD are not changed. Nothing was changed.
#[derive(Debug)]
pub enum PolicyChangeError {
    NotARequest(serde_json::Error),
    Changes {
        got: usize,
    },
    NoSpd {
        name: String,
        nearest: Option<String>,
    },
    NoPolicy {
        spd: String,
        name: String,
        nearest: Option<String>,
    },
    /// `at` counts from 1 to one behind the last.
    NoNumber {
        spd: String,
        at: usize,
        most: usize,
    },
    SeveralPositions {
        spd: String,
    },
    Null {
        key: String,
    },
    /// A policy that would be refused in a file too.
    Refused(Refused),
    /// What SPDs would be then.
    Rejected(Vec<StateProblem>),
}

impl PolicyChangeError {
    /// Whoever asks has to ask otherwise.
    pub fn blame(&self) -> Blame {
        Blame::Operator
    }

    /// What to do, where the sentence does not end with it.
    pub fn remedy(&self) -> Option<String> {
        Some(match self {
            PolicyChangeError::NotARequest(_) => {
                "send {\"spd\": \"…\", \"changes\": [{\"remove\": {\"name\": \"…\"}}]}".to_owned()
            }
            PolicyChangeError::Changes { .. } => "split the request".to_owned(),
            PolicyChangeError::NoSpd { nearest, .. } | PolicyChangeError::NoPolicy { nearest, .. } => {
                match nearest {
                    Some(near) => format!("write `{near}`"),
                    None => "`weir show spd` lists what there is".to_owned(),
                }
            }
            PolicyChangeError::NoNumber { .. } => "`weir show spd` numbers its policies".to_owned(),
            PolicyChangeError::SeveralPositions { .. } => "write one of them".to_owned(),
            PolicyChangeError::Null { .. } => "leave it out".to_owned(),
            PolicyChangeError::Refused(_) | PolicyChangeError::Rejected(_) => return None,
        })
    }
}

impl fmt::Display for PolicyChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PolicyChangeError::NotARequest(error) => write!(f, "policy: the body is not a request ({error})"),
            PolicyChangeError::Changes { got } => {
                write!(f, "policy: got {got} changes, expected 1 to {CHANGES_MAX}")
            }
            PolicyChangeError::NoSpd { name, .. } => write!(f, "policy: there is no spd `{name}`"),
            PolicyChangeError::NoPolicy { spd, name, .. } => {
                write!(f, "spd {spd}: there is no policy `{name}`")
            }
            PolicyChangeError::NoNumber { spd, at, most } => {
                write!(f, "spd {spd}: at is {at}, expected 1 to {most}")
            }
            PolicyChangeError::SeveralPositions { spd } => {
                write!(f, "spd {spd}: got more than one of before, after and at")
            }
            PolicyChangeError::Null { key } => write!(f, "policy: {key}: got null, expected a value"),
            PolicyChangeError::Refused(refused) => refused.fmt(f),
            PolicyChangeError::Rejected(errors) => {
                let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
                f.write_str(&lines.join("\n"))
            }
        }?;
        self.remedy().map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
    }
}

impl std::error::Error for PolicyChangeError {}
