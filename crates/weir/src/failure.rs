//! Why a daemon did not start or ended badly, or a command did: what the operator is told.

use std::fmt;

/// Who has to act for an error to go away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// A file, a request, a name or a permission is not what it should be.
    Operator,
    /// The machine or its kernel lacks something: a program type, memory, a disk that can be written.
    Machine,
}

impl Blame {
    pub fn name(self) -> &'static str {
        match self {
            Blame::Operator => "operator",
            Blame::Machine => "machine",
        }
    }
}

/// One or more sentences for the operator: lower case, subject first, then the remedy. The last stop of an error: it is
/// printed, and nothing is decided by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(pub String);

impl Failure {
    /// An error's own words.
    pub fn of(error: impl fmt::Display) -> Failure {
        Failure(error.to_string())
    }
}
