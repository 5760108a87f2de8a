//! Two revisions of a git repository, checked out beside each other, prepared, and taken away again.

use std::path::{Path, PathBuf};
use std::process::{self, Stdio};
use std::sync::atomic::AtomicBool;

use super::command::Command;
use crate::model::LabError;

/// Where in the folder of a gate the trees stand while it runs.
pub const FOLDER: &str = "trees";

/// A tree of the repository at a commit, while this lives.
pub struct Tree {
    repository: PathBuf,
    path: PathBuf,
    commit: String,
}

impl Tree {
    /// Checks `revision` out into `dir/trees/name`, a worktree of `repository` without a branch.
    pub fn checkout(repository: &Path, revision: &str, dir: &Path, name: &str) -> Result<Tree, LabError> {
        let commit =
            git(repository, &["rev-parse", "--verify", "--quiet", &format!("{revision}^{{commit}}")])
                .map_err(|e| {
                    let remedy = "name a commit, branch or tag of the repository (--repository)";
                    LabError::new(format!(
                        "{revision}: not a revision of {}: {e}; {remedy}",
                        repository.display()
                    ))
                })?;
        let folder = dir.join(FOLDER);
        let failed =
            |e: std::io::Error| LabError::new(format!("{}: {e}; choose another --out", folder.display()));
        std::fs::create_dir_all(&folder).map_err(failed)?;
        let path = folder.canonicalize().map_err(failed)?.join(name);
        git(repository, &["worktree", "add", "--quiet", "--detach", &path.to_string_lossy(), &commit])
            .map_err(|e| LabError::new(format!("{revision}: {e}; free {}", path.display())))?;
        Ok(Tree { repository: repository.into(), path, commit })
    }

    /// The command as it runs in this tree.
    pub fn command(&self, argv: &[String]) -> Command {
        Command { argv: argv.into(), folder: Some(self.path.clone()), commit: Some(self.commit.clone()) }
    }

    /// Runs `script` by `sh -c` in the tree, as a build does.
    pub fn prepare(&self, script: &str, side: &str, stop: &AtomicBool) -> Result<bool, LabError> {
        let argv = ["sh", "-c", script].map(String::from);
        Ok(self.command(&argv).run(side, stop)?.is_some())
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let path = self.path.to_string_lossy();
        if let Err(e) = git(&self.repository, &["worktree", "remove", "--force", &path]) {
            eprintln!("weir-lab: {path}: {e}; remove it with `git worktree remove --force`");
        }
        // it stays while the other tree is there
        let _ = self.path.parent().map(std::fs::remove_dir);
    }
}

/// What git prints, or why it failed.
fn git(repository: &Path, arguments: &[&str]) -> Result<String, GitFailed> {
    let output =
        process::Command::new("git").arg("-C").arg(repository).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(GitFailed::NotStarted)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().into());
    }
    Err(GitFailed::Said(String::from_utf8_lossy(&output.stderr).trim().into()))
}

#[derive(Debug)]
enum GitFailed {
    NotStarted(std::io::Error),
    Said(String),
}

impl std::fmt::Display for GitFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            GitFailed::NotStarted(e) => write!(f, "git: {e}"),
            GitFailed::Said(said) if said.is_empty() => f.write_str("git knows none of that name"),
            GitFailed::Said(said) => f.write_str(said),
        }
    }
}
