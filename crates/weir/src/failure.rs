//! Why a daemon did not start or ended badly, or a command did: what the operator is told.

use std::fmt;

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
