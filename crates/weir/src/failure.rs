//! Why a daemon did not start or ended badly, or a command did: what the operator is told.

/// One or more sentences for the operator: lower case, subject first, then the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(pub String);
