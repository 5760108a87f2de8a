//! Two revisions of a git repository, checked out beside each other, prepared, and taken away again.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use super::command::Command;
use crate::git::git;
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
