//! Questions to git, by its own program.

use std::fmt;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

/// What git prints of a repository, or why it failed.
pub fn git(repository: &Path, arguments: &[&str]) -> Result<String, GitFailed> {
    let output = Command::new("git").arg("-C").arg(repository).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(GitFailed::NotStarted)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().into());
    }
    Err(GitFailed::Said(String::from_utf8_lossy(&output.stderr).trim().into()))
}

#[derive(Debug)]
pub enum GitFailed {
    NotStarted(io::Error),
    /// Empty where it only ended with a status.
    Said(String),
}

impl fmt::Display for GitFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GitFailed::NotStarted(e) => write!(f, "git: {e}"),
            GitFailed::Said(said) if said.is_empty() => f.write_str("git knows none of that name"),
            GitFailed::Said(said) => f.write_str(said),
        }
    }
}

impl std::error::Error for GitFailed {}
