//! Files with a key in them, and who may have read one.
//!
//! Promises: one rule and one sentence for every file with a key, whoever reads it: its owner may read it, group and
//! others have no permission. What was opened is asked, or what a path leads to; links are followed.

use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Others than its owner may read or write the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotPrivate {
    pub path: PathBuf,
    /// The nine bits of permission.
    pub mode: u32,
}

impl fmt::Display for NotPrivate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shown, mode) = (self.path.display(), self.mode);
        write!(
            f,
            "{shown}: has mode {mode:03o}, expected no permission for group and others; run `chmod 600 {shown}`, and make a new key if others could read it"
        )
    }
}

impl std::error::Error for NotPrivate {}

/// Judges the file at `path` by what is known of it.
pub fn check(path: &Path, metadata: &Metadata) -> Result<(), NotPrivate> {
    let mode = metadata.mode() & 0o777;
    match mode & 0o077 {
        0 => Ok(()),
        _ => Err(NotPrivate { path: path.to_owned(), mode }),
    }
}

/// Judges the file at `path` if there is one that can be looked at: what is not there gives nothing away.
pub fn check_if_there(path: &Path) -> Result<(), NotPrivate> {
    std::fs::metadata(path).map_or(Ok(()), |metadata| check(path, &metadata))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn only_a_file_of_its_owner_alone_is_private() {
        let path = std::env::temp_dir().join(format!("weir-private-{}", std::process::id()));
        assert_eq!(check_if_there(&path), Ok(()), "there is none");
        fs::write(&path, "").expect("a file");
        for (mode, private) in
            [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o602, false), (0o644, false)]
        {
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("our file");
            let judged = check_if_there(&path);
            assert_eq!(judged.is_ok(), private, "{mode:o}");
            if let Err(why) = judged {
                let said = why.to_string();
                assert!(said.contains(&format!("has mode {mode:03o}")) && said.contains("; run `chmod 600 "));
            }
        }
        fs::remove_file(&path).expect("removed");
    }
}
