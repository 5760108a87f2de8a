//! Why an argument is not taken, for the parsers of all verbs.

use std::fmt;

/// What stands behind an option and cannot be it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArgumentError {
    Percentage(String),
    Margin,
    Within {
        low: i32,
        high: i32,
    },
    NegativeWidth,
    WidthAbove(usize),
    NoWidth,
    ColumnBelowOne,
    ColumnTooGreat,
    NoColumn,
    NoConfidence,
    UnknownConfidence,
    NoDelimiter,
    NoValueName,
    /// `-P`, which only the modern dialect has.
    Population {
        dialect: &'static str,
    },
}

impl fmt::Display for ArgumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use ArgumentError as E;
        match self {
            E::Percentage(got) => write!(f, "got {got}, takes a percentage above 0, as in 2.5"),
            E::Margin => f.write_str("expected a share of the reference above 0 and below 100, such as 2"),
            E::Within { low, high } => write!(f, "expected a number above {low} and below {high}"),
            E::NegativeWidth => f.write_str("unable to move beyond left margin: take 2 or more"),
            E::WidthAbove(widest) => write!(f, "at most {widest} columns"),
            E::NoWidth => f.write_str("invalid width, not a number: take 2 or more"),
            E::ColumnBelowOne => f.write_str("column number should be positive: the first is 1"),
            E::ColumnTooGreat => f.write_str("invalid column number"),
            E::NoColumn => f.write_str("invalid column number: the first is 1"),
            E::NoConfidence => f.write_str("not a floating point number: take 95 for 95 %"),
            E::UnknownConfidence => {
                f.write_str("no support for confidence level: choose 80, 90, 95, 98, 99 or 99.5")
            }
            E::NoDelimiter => {
                f.write_str("can't use empty delimiter string: name one character, such as ','")
            }
            E::NoValueName => f.write_str("expected the word before the number, such as mpps"),
            E::Population { dialect } => {
                write!(f, "unknown option -P: the {dialect} dialect has none, take --dialect modern")
            }
        }
    }
}

impl std::error::Error for ArgumentError {}
