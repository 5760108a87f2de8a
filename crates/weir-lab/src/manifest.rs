//! What an experiment ran on, and everything that was chosen for it.
//!
//! Promises: a reader can tell whether two campaigns are comparable, and repeat one. Refuses: names of
//! hosts, users and addresses, other than the experiment's own; what the kernel does not tell is absent,
//! never guessed.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fmt, fs};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::build::Build;
use crate::experiment::Experiment;
use crate::machine::Machine;
use crate::model::LabError;

/// The format of `manifest.json`.
pub const FORMAT: u32 = 1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u32,
    pub experiment: Experiment,
    pub seed: u64,
    pub started_unix_ms: u64,
    pub argv: Vec<String>,
    /// Configurations by name, block by block, as they were to run.
    pub order: Vec<Vec<String>>,
    /// Configurations that could not run here, and why.
    pub skipped: BTreeMap<String, String>,
    pub machine: Machine,
    pub build: Build,
    /// The other machines that took part, by their part.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub machines: BTreeMap<String, Machine>,
    /// Each time the campaign was taken up again after an interrupt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resumed: Vec<Session>,
    /// The campaign whose experiment this one repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<Repeated>,
}

/// One time a campaign was taken up again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    pub started_unix_ms: u64,
    pub argv: Vec<String>,
    /// Runs on disk when it began.
    pub runs_before: usize,
    /// What had changed since the campaign began, accepted with --force.
    pub changes: Vec<String>,
    /// What an earlier session's crash left of a run, cut off.
    pub left_out: Vec<String>,
}

/// Which campaign was repeated; its folder may be anywhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repeated {
    pub seed: u64,
    pub started_unix_ms: u64,
}

impl Manifest {
    pub fn read(dir: &Path) -> Result<Manifest, LabError> {
        let path = dir.join("manifest.json");
        let shown = path.display();
        let bytes = fs::read(&path)
            .map_err(|e| LabError::new(format!("{shown}: {e}; name the folder a campaign was written to")))?;
        parse_versioned(&String::from_utf8_lossy(&bytes), FORMAT).map_err(|why| {
            LabError::new(format!(
                "{shown}: not a manifest ({why}); restore the file from a copy: raw runs are whole, but only the \
                 manifest says what they are"
            ))
        })
    }

    pub fn text(&self) -> Result<String, LabError> {
        let text = serde_json::to_string_pretty(self).map_err(|e| LabError::new(format!("manifest: {e}")))?;
        Ok(text + "\n")
    }
}

/// A JSON document that names its format: newer ones are refused before their fields are looked at.
pub fn parse_versioned<T: DeserializeOwned>(text: &str, newest: u32) -> Result<T, NotReadable> {
    #[derive(Deserialize)]
    struct Probe {
        format: u32,
    }
    let unreadable = |e| NotReadable::json(e, text);
    let format = serde_json::from_str::<Probe>(text).map_err(unreadable)?.format;
    if !(1..=newest).contains(&format) {
        return Err(NotReadable::Format { format, newest });
    }
    serde_json::from_str(text).map_err(unreadable)
}

/// Why a JSON document of ours cannot be read.
#[derive(Debug)]
pub enum NotReadable {
    /// A version that this one does not know.
    Format {
        format: u32,
        newest: u32,
    },
    /// A text that ends before its document does.
    CutShort {
        line: usize,
        column: usize,
    },
    Json(serde_json::Error),
    /// Bytes that are no UTF-8.
    NoText,
}

impl NotReadable {
    /// What the parser's error means for the text that it read. The parser calls a number cut after its point or its
    /// sign invalid, so an error at such a last character is an end too.
    pub fn json(error: serde_json::Error, text: &str) -> NotReadable {
        let (line, column) = (error.line(), error.column());
        let at_the_end =
            text.lines().count() == line && text.lines().last().is_some_and(|last| last.len() == column);
        if error.is_eof() || (at_the_end && text.ends_with(['-', '+', '.', 'e', 'E'])) {
            return NotReadable::CutShort { line, column };
        }
        NotReadable::Json(error)
    }
}

impl fmt::Display for NotReadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotReadable::Format { format, newest } => {
                write!(f, "format {format}, expected 1 to {newest}: read it with the version that wrote it")
            }
            NotReadable::CutShort { line, column } => write!(f, "cut short at line {line}, column {column}"),
            NotReadable::Json(e) => write!(f, "{e}"),
            NotReadable::NoText => f.write_str("bytes that are no text"),
        }
    }
}

impl std::error::Error for NotReadable {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_cut_anywhere_is_said_to_be_cut_short() {
        let whole = "{\"format\": 1,\n  \"values\": [-1.5e-3, true, \"a\"]\n}";
        assert!(parse_versioned::<serde_json::Value>(whole, 1).is_ok());
        for end in 0..whole.len() {
            let why = parse_versioned::<serde_json::Value>(&whole[..end], 1).expect_err("cut");
            assert!(matches!(why, NotReadable::CutShort { .. }), "after {end}: {why}");
        }
    }

    #[test]
    fn a_document_that_is_whole_and_wrong_is_not_cut_short() {
        for wrong in ["{\"format\": 1}}", "{\"format\": 1, \"values\": [-]}", "{\"format\": -}\n"] {
            let why = parse_versioned::<serde_json::Value>(wrong, 1).expect_err("wrong");
            assert!(matches!(why, NotReadable::Json(_)), "{wrong}: {why}");
        }
    }
}
