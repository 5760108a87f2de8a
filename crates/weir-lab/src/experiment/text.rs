//! Where in a file something stands, and which names a pattern means.

use std::fmt;
use std::ops::Range;

use serde::de::DeserializeOwned;

use crate::model::LabError;

/// Line and column, both from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// The start of a span.
pub fn position(text: &str, span: Range<usize>) -> Position {
    let before = text.get(..span.start).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |l| l.chars().count()) + 1;
    Position { line, column }
}

/// Reads a TOML text; an error says where in the file `shown` it is.
pub fn from_toml<T: DeserializeOwned>(shown: &str, text: &str) -> Result<T, LabError> {
    toml::from_str(text).map_err(|e| {
        let at = e.span().map(|s| format!(":{}", position(text, s))).unwrap_or_default();
        LabError::new(format!("{shown}{at}: {}", e.message()))
    })
}

/// Whether `name` is meant by `pattern`, in which `*` stands for anything.
pub fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, rest)) => name.strip_prefix(head).is_some_and(|tail| {
            tail.char_indices().map(|(i, _)| &tail[i..]).chain([""]).any(|t| matches(rest, t))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_from_one() {
        assert_eq!(position("abc\nde", 0..1).to_string(), "1:1");
        assert_eq!(position("ä\nxyz", 5..6).to_string(), "2:3");
        assert_eq!(position("a", 9..9).to_string(), "1:2");
    }

    #[test]
    fn a_star_stands_for_anything() {
        assert!(matches("inet", "inet") && !matches("inet", "inet6"));
        assert!(matches("inet*", "inet6-64") && matches("*-64", "inet6-64") && matches("*", ""));
        assert!(matches("i*6*4", "inet6-64") && !matches("i*7*", "inet6-64"));
    }
}
