//! A folder or file held by one process at a time: an advisory lock (flock(2)) on it.
//!
//! Promises: the lock ends with the process, however it ends, and leaves no file behind. Refuses: to wait
//! without a limit.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// flock cannot wait with a limit: it is tried this often.
const AGAIN: Duration = Duration::from_millis(10);

/// Held until dropped.
#[derive(Debug)]
pub struct Lock {
    held: File,
}

/// `None` when another process holds it.
pub fn take(path: &Path) -> io::Result<Option<Lock>> {
    let held = File::open(path)?;
    match held.try_lock() {
        Ok(()) => Ok(Some(Lock { held })),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Waits for it; `None` when it was not free in time. What is held then is what `path` names: its holders
/// may remove it.
pub fn take_within(path: &Path, limit: Duration) -> io::Result<Option<Lock>> {
    let until = Instant::now() + limit;
    loop {
        if let Some(lock) = take(path)?
            && lock.is_at(path)?
        {
            return Ok(Some(lock));
        }
        if Instant::now() > until {
            return Ok(None);
        }
        std::thread::sleep(AGAIN);
    }
}

impl Drop for Lock {
    /// Closing alone would leave it to a program that was being started meanwhile, until it closes what it does not inherit.
    fn drop(&mut self) {
        // A lock that cannot be given up ends when the file is closed.
        let _ = self.held.unlock();
    }
}

impl Lock {
    fn is_at(&self, path: &Path) -> io::Result<bool> {
        let (held, there) = (self.held.metadata()?, fs::metadata(path)?);
        Ok((held.dev(), held.ino()) == (there.dev(), there.ino()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of this name, removed at the end.
    fn with_folder(name: &str, test: impl FnOnce(&Path)) {
        let dir = std::env::temp_dir().join(format!("weir-io-lock-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).expect("a folder");
        test(&dir);
        let _ = fs::remove_dir_all(&dir);
    }

    #[test]
    fn a_folder_is_held_once_and_free_again_after_drop() {
        with_folder("once", |dir| {
            let held = take(dir).expect("openable");
            assert!(held.is_some() && take(dir).expect("openable").is_none());
            drop(held);
            assert!(take(dir).expect("openable").is_some());
        });
    }

    #[test]
    fn a_lock_ends_when_it_is_dropped_though_another_has_the_open_file() {
        with_folder("shared", |dir| {
            let held = take(dir).expect("openable").expect("free");
            let _child = held.held.try_clone().expect("a descriptor");
            drop(held);
            assert!(take(dir).expect("openable").is_some());
        });
    }

    #[test]
    fn who_waits_gets_it_when_it_is_free_or_nothing_at_the_limit() {
        with_folder("waits", |dir| {
            let held = take(dir).expect("openable");
            assert!(take_within(dir, Duration::from_millis(30)).expect("openable").is_none());
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| take_within(dir, Duration::from_secs(60)));
                drop(held);
                assert!(waits.join().expect("no panic").expect("openable").is_some());
            });
        });
    }

    #[test]
    fn a_folder_removed_by_its_holder_is_not_taken_for_the_one_made_anew() {
        with_folder("anew", |dir| {
            let held = take(dir).expect("openable").expect("free");
            fs::remove_dir(dir).and_then(|()| fs::create_dir(dir)).expect("ours");
            assert!(!held.is_at(dir).expect("there"));
            assert!(take_within(dir, Duration::from_secs(60)).expect("openable").is_some());
            fs::remove_dir(dir).expect("ours");
            let gone = take_within(dir, Duration::from_secs(60)).expect_err("nothing there");
            assert_eq!(gone.kind(), io::ErrorKind::NotFound);
        });
    }
}
