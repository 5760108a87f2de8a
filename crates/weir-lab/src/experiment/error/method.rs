//! Methods that no trial could follow.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MethodError {
    /// The smoke values name another kind than the file.
    QuickKind,
    /// A key of another kind.
    Stray {
        key: &'static str,
    },
    NoKind,
    NoRates,
    /// The initial duration is out of range, in seconds.
    Initial {
        got: f64,
        window: f64,
    },
    Sum {
        got: f64,
        window: f64,
    },
    /// A width or a loss of 0.
    NoShare,
    /// Bounds in the wrong order.
    Bounds,
}

impl MethodError {
    pub fn key(&self) -> &'static str {
        match self {
            MethodError::QuickKind => "quick method",
            _ => "method",
        }
    }

    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            MethodError::QuickKind => Some("leave it out"),
            MethodError::Stray { .. } => Some("remove it or change `kind`"),
            MethodError::NoKind => Some("name it"),
            MethodError::NoRates => Some("name one"),
            MethodError::Initial { .. } => Some("shorten it"),
            MethodError::Sum { .. } => Some("lengthen it"),
            MethodError::NoShare => None,
            MethodError::Bounds => Some("lower it"),
        }
    }
}

impl fmt::Display for MethodError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MethodError::QuickKind => f.write_str("its `kind` is another than the file's"),
            MethodError::Stray { key } => write!(f, "`{key}` is no key of this kind"),
            MethodError::NoKind => f.write_str("`kind` is missing, expected one such as \"ndr-pdr\""),
            MethodError::NoRates => f.write_str("`rates` is empty, expected at least one"),
            MethodError::Initial { got, window } => {
                write!(f, "`initial` is {got} s, expected more than 0 and at most the window, {window} s")
            }
            MethodError::Sum { got, window } => {
                write!(f, "`sum` is {got} s, less than the window, {window} s")
            }
            MethodError::NoShare => {
                f.write_str("`width_percent` and `loss_percent` are above 0 (a loss of 0 is the NDR's)")
            }
            MethodError::Bounds => f.write_str("`min_pps` is not below `max_pps`"),
        }
    }
}
