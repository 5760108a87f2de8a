//! Why a file is no experiment, as data: where it says so, which key, what was got and expected, and what to do.
//!
//! Promises: `Display` writes the whole sentence, subject first; nobody needs to read it to decide anything.
//! Refuses: to hold a sentence of its own making; only what the TOML library said is kept as it came.

mod answer;
mod configuration;
mod hosts;
mod method;
mod pairs;
mod slices;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

pub use answer::AnswerError;
pub use configuration::{ConfigurationError, CpusError};
pub use hosts::{CommandError, HostError};
pub use method::MethodError;
pub use pairs::PairsError;
pub use slices::SlicesError;

use super::hosts::Role;
use super::text::{self, Position};
use crate::model::LabError;

/// Why an experiment is not taken.
#[derive(Clone, Debug, PartialEq)]
pub enum ExperimentError {
    /// What the TOML library says of a text that is no file of experiments.
    Toml(String),
    Answer(AnswerError),
    /// A key of `[hosts]`.
    Host {
        role: Role,
        key: &'static str,
        error: HostError,
    },
    Command(CommandError),
    Configuration {
        /// `None` before it has one, or where its name is what is wrong.
        name: Option<String>,
        error: ConfigurationError,
    },
    Method(MethodError),
    Slices(SlicesError),
    Pairs(PairsError),
}

impl ExperimentError {
    /// The key that is to be changed, as a reader of the file finds it; `None` where TOML itself is broken.
    pub fn key(&self) -> Option<Cow<'static, str>> {
        Some(match self {
            ExperimentError::Toml(_) => return None,
            ExperimentError::Answer(_) => "answer".into(),
            ExperimentError::Host { role, key, .. } => format!("hosts.{role}.{key}").into(),
            ExperimentError::Command(_) => "command".into(),
            ExperimentError::Configuration { name: None, .. } => "configuration".into(),
            ExperimentError::Configuration { name: Some(name), .. } => format!("configuration {name}").into(),
            ExperimentError::Method(error) => error.key().into(),
            ExperimentError::Slices(error) => error.key().into(),
            ExperimentError::Pairs(error) => error.key().into(),
        })
    }

    /// What to do; `None` where what was expected says it.
    pub fn remedy(&self) -> Option<Cow<'static, str>> {
        match self {
            ExperimentError::Toml(_) => Some("docs/experiments.md describes every key".into()),
            ExperimentError::Answer(error) => error.remedy().map(Cow::from),
            ExperimentError::Host { error, .. } => error.remedy().map(Cow::from),
            ExperimentError::Command(error) => error.remedy().map(Cow::from),
            ExperimentError::Configuration { error, .. } => error.remedy(),
            ExperimentError::Method(error) => error.remedy().map(Cow::from),
            ExperimentError::Slices(error) => Some(error.remedy().into()),
            ExperimentError::Pairs(error) => error.remedy().map(Cow::from),
        }
    }
}

impl fmt::Display for ExperimentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // these begin with the key themselves
        let key = match self {
            ExperimentError::Pairs(_) | ExperimentError::Slices(SlicesError::RoundsOfWholeRuns) => None,
            other => other.key(),
        };
        if let Some(key) = key {
            write!(f, "{key}: ")?;
        }
        match self {
            ExperimentError::Toml(said) => f.write_str(said),
            ExperimentError::Answer(error) => error.fmt(f),
            ExperimentError::Host { error, .. } => error.fmt(f),
            ExperimentError::Command(error) => error.fmt(f),
            ExperimentError::Configuration { error, .. } => error.fmt(f),
            ExperimentError::Method(error) => error.fmt(f),
            ExperimentError::Slices(error) => error.fmt(f),
            ExperimentError::Pairs(error) => error.fmt(f),
        }?;
        // those that end without a remedy end with what was expected
        let between = match self {
            ExperimentError::Toml(_) | ExperimentError::Host { .. } => ";",
            _ => ":",
        };
        match self.remedy() {
            Some(remedy) => write!(f, "{between} {remedy}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ExperimentError {}

/// Where a refused value stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The file's name in errors.
    pub file: String,
    pub position: Option<Position>,
    /// Characters of it, on its first line.
    pub width: usize,
}

impl Location {
    /// Where these bytes of `text` stand.
    pub fn of(file: &str, text: &str, span: Option<Range<usize>>) -> Location {
        let covered = span.clone().and_then(|span| text.get(span)).and_then(|text| text.lines().next());
        let width = covered.map_or(1, |line| line.chars().count());
        Location { file: file.into(), position: span.map(|span| text::position(text, span)), width }
    }
}

/// An experiment that is not taken, and where its file says so.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused {
    /// `None` for what only the whole file means.
    pub location: Option<Location>,
    pub error: Box<ExperimentError>,
}

impl From<ExperimentError> for Refused {
    fn from(error: ExperimentError) -> Refused {
        Refused { location: None, error: error.into() }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Location { file, position, .. }) = &self.location {
            write!(f, "{file}:")?;
            if let Some(position) = position {
                write!(f, "{position}:")?;
            }
            f.write_str(" ")?;
        }
        self.error.fmt(f)
    }
}

impl std::error::Error for Refused {}

impl From<Refused> for LabError {
    fn from(refused: Refused) -> LabError {
        LabError::new(refused.to_string())
    }
}

#[cfg(test)]
mod tests;
