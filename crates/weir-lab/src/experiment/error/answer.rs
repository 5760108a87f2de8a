//! Answers that nothing can fill in.

use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerError {
    /// A brace that nothing closes.
    NoEnd {
        text: String,
    },
    Placeholder {
        got: String,
        expected: &'static str,
    },
    /// None of the forms, or several.
    Forms,
    /// A pair without a sentence for every verdict.
    NoVerdicts,
    /// Sentences by verdict without a pair.
    NoPair,
    /// Repeated rows without a table that has some.
    NoRows,
    RowWidth {
        got: usize,
        expected: usize,
    },
    NoConfiguration {
        got: String,
        expected: Vec<String>,
    },
    NotCompared {
        reference: String,
        other: String,
    },
}

impl AnswerError {
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            AnswerError::NoEnd { .. } => Some("write a }"),
            AnswerError::NotCompared { .. } => Some("put them into `pairs`, or ask for their `ratio`"),
            _ => None,
        }
    }
}

impl fmt::Display for AnswerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AnswerError::NoEnd { text } => write!(f, "\"{{{text}\" has no end"),
            AnswerError::Placeholder { got, expected } => {
                write!(f, "got {{{got}}}, expected in braces one of: {expected}")
            }
            AnswerError::Forms => f.write_str("expected exactly one of `text`, `pair`, `table` and `show`"),
            AnswerError::NoVerdicts => f.write_str(
                "`pair` needs `higher`, `lower`, `equivalent` and `underpowered`: a verdict is not known beforehand",
            ),
            AnswerError::NoPair => f.write_str("sentences by verdict need the `pair` it is about"),
            AnswerError::NoRows => {
                f.write_str("`each` repeats rows of a `table`, which follow its headings")
            }
            AnswerError::RowWidth { got, expected } => {
                write!(f, "a row of {got} cells under {expected} headings")
            }
            AnswerError::NoConfiguration { got, expected } => {
                write!(f, "no configuration {got}; there are {}", expected.join(", "))
            }
            AnswerError::NotCompared { reference, other } => {
                write!(f, "{reference} and {other} are not compared in this order")
            }
        }
    }
}
