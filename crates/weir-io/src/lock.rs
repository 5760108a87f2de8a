//! A folder held by one process at a time: an advisory lock (flock(2)) on the folder itself.
//!
//! Promises: the lock ends with the process, however it ends, and leaves no file behind. Refuses: to wait.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Held until dropped.
#[derive(Debug)]
pub struct FolderLock {
    _folder: File,
}

/// `None` when another process holds it.
pub fn folder(path: &Path) -> io::Result<Option<FolderLock>> {
    let folder = File::open(path)?;
    // SAFETY: flock takes a descriptor and flags, no memory; the descriptor is open, for `folder` owns it.
    let taken = unsafe { libc::flock(folder.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
    match taken {
        0 => Ok(Some(FolderLock { _folder: folder })),
        _ => match io::Error::last_os_error() {
            e if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            e => Err(e),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_held_once_and_free_again_after_drop() {
        let dir = std::env::temp_dir().join(format!("weir-io-lock-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a folder");
        let held = folder(&dir).expect("openable");
        assert!(held.is_some() && folder(&dir).expect("openable").is_none());
        drop(held);
        assert!(folder(&dir).expect("openable").is_some());
        std::fs::remove_dir_all(&dir).expect("ours");
    }
}
