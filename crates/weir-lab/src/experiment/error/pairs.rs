//! Comparisons that a file asks for and cannot have.

use std::fmt;

use crate::experiment::Axis;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PairsError {
    NoConfiguration {
        /// `reference` or `pairs`.
        key: &'static str,
        got: String,
        expected: Vec<String>,
    },
    /// No two configurations differ in this key alone.
    NoDifference(Axis),
    /// A reference without others.
    NoOther,
    /// Several of `reference`, `compare` and `pairs`.
    Exclusive,
}

impl PairsError {
    pub fn key(&self) -> &'static str {
        match self {
            PairsError::NoConfiguration { key, .. } => key,
            PairsError::NoDifference(_) | PairsError::Exclusive => "compare",
            PairsError::NoOther => "pairs",
        }
    }

    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            PairsError::Exclusive => Some("keep one"),
            _ => None,
        }
    }
}

impl fmt::Display for PairsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PairsError::NoConfiguration { got, expected, .. } => {
                write!(f, "no configuration is named \"{got}\"; there are {}", expected.join(", "))
            }
            PairsError::NoDifference(axis) => {
                let key = axis.key();
                write!(f, "compare = \"{key}\": no two configurations differ in {key} alone; list several")
            }
            PairsError::NoOther => {
                f.write_str("expected a reference and one or more others to compare with it")
            }
            PairsError::Exclusive => f.write_str("`reference`, `compare` and `pairs` exclude each other"),
        }
    }
}
