//! One lab a host: an agent holds its host from before its first change until everything is changed back.
//!
//! ```text
//! /run/weir-lab/             lock: held while an agent looks who is there, and enters
//!   generator-4711           locked while process 4711 is the generator's agent; says whose it is
//!   generator-4711.bell      a socket the agent of a newer connection rings: its lab is elsewhere now
//! ```
//!
//! Promises: who takes over from the agent of a lost connection finds the host as that one found it, for it
//! waits until the other has ended. Locks end with their process; what a killed agent left here goes with the
//! next that looks, and the folder with the last that leaves. Refuses: a second lab on the host, and a
//! connection that was overtaken by a newer one of its lab.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use weir_io::lock::{self, Lock};

use super::{LOOK, SILENCE};
use crate::experiment::hosts::Role;
use crate::model::LabError;

/// Root's alone, and empty after a boot.
pub const FOLDER: &str = "/run/weir-lab";
const BELL: &str = "bell";
/// Time for the agents of a lab that has just ended to change back what they changed.
const LEAVES_WITHIN: Duration = Duration::from_secs(5);

/// The lab to which an agent belongs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseHolder {
    /// Unique among labs.
    pub lab: String,
    /// Where the lab runs, for errors: `process 812 on ws1`.
    pub whence: String,
    pub part: Role,
    /// Counts up with every connection the lab makes.
    pub connection: u32,
}

#[derive(Serialize, Deserialize)]
struct Record {
    holder: LeaseHolder,
    process: u32,
}

/// Held until dropped.
#[derive(Debug)]
pub struct Lease {
    folder: PathBuf,
    record: PathBuf,
    _lock: Lock,
}

/// Takes the host for `holder`, waiting `within` for the agent that it supersedes and no longer than the lab
/// does (`stop`). `rung` is called when the agent of a newer connection wants the host.
pub fn take(
    folder: &Path,
    holder: &LeaseHolder,
    within: Duration,
    stop: &AtomicBool,
    rung: impl Fn() + Send + 'static,
) -> Result<Lease, LabError> {
    let began = Instant::now();
    loop {
        let lock = FolderLock::take(folder, within.saturating_sub(began.elapsed()))?;
        if stop.load(Ordering::Acquire) {
            return Err(LabError::new("the lab went away".into()));
        }
        let there = whoever_is_there(folder).map_err(|e| failed(folder, &e))?;
        let Some(other) = there.iter().find(|other| other.bars(holder)) else {
            return enter(folder, holder, rung).map_err(|e| failed(folder, &e));
        };
        other.wait_or_refuse(holder, began.elapsed(), within)?;
        drop(lock);
        std::thread::sleep(LOOK);
    }
}

/// A live agent.
struct Other {
    /// None when it is of a weir-lab that writes other records.
    record: Option<Record>,
    bell: PathBuf,
}

impl Other {
    /// Parts of one lab may share a host.
    fn bars(&self, requester: &LeaseHolder) -> bool {
        let holder = self.record.as_ref().map(|record| &record.holder);
        holder.is_none_or(|holder| holder.lab != requester.lab || holder.part == requester.part)
    }

    /// Waits for one that [`Other::bars`] the requester: it is on its way out, or there is nothing to wait for.
    fn wait_or_refuse(
        &self,
        requester: &LeaseHolder,
        waited: Duration,
        within: Duration,
    ) -> Result<(), LabError> {
        let Some(Record { holder, process }) = &self.record else {
            return Err(LabError::new(
                "the host is in use by another version of weir-lab: wait for the end of its campaign".into(),
            ));
        };
        if holder.lab != requester.lab {
            if waited <= LEAVES_WITHIN.min(within) {
                return Ok(());
            }
            return Err(LabError::new(format!(
                "the host is in use by another lab, {}, as its {} (agent: process {process}): wait for its end or \
                 end it; an agent whose lab is gone ends by itself after {} s",
                holder.whence,
                holder.part,
                SILENCE.as_secs()
            )));
        }
        if holder.connection > requester.connection {
            return Err(LabError::new(format!(
                "connection {} was overtaken by connection {} of the same lab",
                requester.connection, holder.connection
            )));
        }
        if waited > within {
            return Err(LabError::new(format!(
                "the agent of the connection before, process {process}, has not ended in {within:?}: a slow teardown \
                 needs more in [hosts.timeouts]; one that hangs is to be ended on the host"
            )));
        }
        // One that does not hear it any more is ending, or has ended.
        let _ = UnixStream::connect(&self.bell);
        Ok(())
    }
}

/// Agents that live; what others left is removed. To be called with the folder locked.
fn whoever_is_there(folder: &Path) -> io::Result<Vec<Other>> {
    let mut there = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == BELL) {
            continue;
        }
        let bell = path.with_extension(BELL);
        match lock::take(&path) {
            Ok(Some(_dead)) => remove(&path),
            Ok(None) => match fs::read(&path) {
                Ok(bytes) => there.push(Other { record: serde_json::from_slice(&bytes).ok(), bell }),
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            },
            // It has left meanwhile.
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(there)
}

fn enter(folder: &Path, holder: &LeaseHolder, rung: impl Fn() + Send + 'static) -> io::Result<Lease> {
    let process = std::process::id();
    let record = folder.join(format!("{}-{process}", holder.part));
    let bell = record.with_extension(BELL);
    // Of a killed agent of this number.
    remove(&record);
    fs::write(&record, serde_json::to_vec(&Record { holder: holder.clone(), process })?)?;
    let taken = lock::take(&record)?;
    let lock = taken.ok_or_else(|| io::Error::other(format!("{}: held by another", record.display())))?;
    // From here on whatever fails is removed.
    let lease = Lease { folder: folder.to_path_buf(), record, _lock: lock };
    let listener = UnixListener::bind(bell)?;
    std::thread::spawn(move || listener.incoming().map_while(Result::ok).for_each(|_| rung()));
    Ok(lease)
}

/// A record with its bell.
fn remove(record: &Path) {
    // What cannot be removed is no lock: it bars nobody.
    let _ = fs::remove_file(record.with_extension(BELL));
    let _ = fs::remove_file(record);
}

impl Drop for Lease {
    fn drop(&mut self) {
        remove(&self.record);
        // Whoever holds the lock now removes the folder by himself.
        let _ = lock::take(&self.folder)
            .map(|lock| lock.map(|lock| FolderLock { folder: &self.folder, _lock: lock }));
    }
}

/// One agent at a time looks and enters.
struct FolderLock<'a> {
    folder: &'a Path,
    _lock: Lock,
}

impl FolderLock<'_> {
    fn take(folder: &Path, within: Duration) -> Result<FolderLock<'_>, LabError> {
        let until = Instant::now() + within;
        loop {
            match fs::DirBuilder::new().mode(0o700).create(folder) {
                Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(failed(folder, &e)),
                _ => {}
            }
            match lock::take_within(folder, until.saturating_duration_since(Instant::now())) {
                Ok(Some(lock)) => return Ok(FolderLock { folder, _lock: lock }),
                // The last who left took it along.
                Err(e) if e.kind() == ErrorKind::NotFound && Instant::now() < until => {}
                Err(e) => return Err(failed(folder, &e)),
                Ok(None) => {
                    return Err(LabError::new(format!(
                        "{}: locked for {within:?} by an agent that does not go on: end it on the host",
                        folder.display()
                    )));
                }
            }
        }
    }
}

impl Drop for FolderLock<'_> {
    fn drop(&mut self) {
        // Refused while an agent is there.
        let _ = fs::remove_dir(self.folder);
    }
}

fn failed(folder: &Path, error: &io::Error) -> LabError {
    LabError::new(format!("{}: {error}; log in as root", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use weir_testing::folder::Folder;

    const AT_ONCE: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(60);

    fn holder(lab: &str, part: Role, connection: u32) -> LeaseHolder {
        LeaseHolder { lab: lab.into(), whence: format!("process 7 on {lab}"), part, connection }
    }

    fn lease(folder: &Path, holder: &LeaseHolder, within: Duration) -> Result<Lease, LabError> {
        take(folder, holder, within, &AtomicBool::new(false), || ())
    }

    #[test]
    fn parts_of_one_lab_share_a_host_and_the_last_to_leave_takes_the_folder_along() {
        let place = Folder::absent("lease-parts");
        let folder = place.0.as_path();
        let parts = Role::ALL.map(|part| lease(folder, &holder("one", part, 1), AT_ONCE).expect("free"));
        for held in parts {
            assert!(folder.exists());
            drop(held);
        }
        assert!(!folder.exists());
    }

    #[test]
    fn another_lab_is_refused_whatever_part_it_wants_and_is_told_who_is_there() {
        let place = Folder::absent("lease-labs");
        let folder = place.0.as_path();
        let first = lease(folder, &holder("one", Role::Receiver, 1), AT_ONCE).expect("free");
        let refused = lease(folder, &holder("two", Role::Generator, 1), AT_ONCE).expect_err("in use");
        for part in ["another lab, process 7 on one, as its receiver", &std::process::id().to_string()] {
            assert!(refused.said.contains(part), "{refused}");
        }
        drop(first);
        assert!(!folder.exists());
        lease(folder, &holder("two", Role::Generator, 1), AT_ONCE).expect("free again");
    }

    #[test]
    fn the_older_connection_is_rung_and_waited_for_and_may_not_come_back() {
        let place = Folder::absent("lease-connections");
        let folder = place.0.as_path();
        let (bell, heard) = channel();
        let (never, one) = (AtomicBool::new(false), holder("one", Role::Generator, 1));
        let ring = move || bell.send(()).unwrap_or_default();
        let first = take(folder, &one, AT_ONCE, &never, ring).expect("free");
        let refused = lease(folder, &holder("one", Role::Generator, 2), AT_ONCE).expect_err("held");
        assert!(refused.said.contains("has not ended in 50ms"), "{refused}");
        heard.recv_timeout(LONG).expect("rung");
        std::thread::scope(|scope| {
            let second = scope.spawn(|| lease(folder, &holder("one", Role::Generator, 2), LONG));
            drop(first);
            let second = second.join().expect("no panic").expect("free");
            let refused = lease(folder, &one, LONG).expect_err("overtaken");
            assert!(refused.said.contains("connection 1 was overtaken by connection 2"), "{refused}");
            drop(second);
        });
    }

    #[test]
    fn what_a_killed_agent_left_bars_nobody() {
        let place = Folder::absent("lease-killed");
        let folder = place.0.as_path();
        let left = Record { holder: holder("one", Role::Generator, 1), process: 1 };
        place.write("generator-1", serde_json::to_vec(&left).expect("JSON"));
        drop(UnixListener::bind(folder.join("generator-1.bell")).expect("ours"));
        drop(lease(folder, &holder("two", Role::Generator, 1), AT_ONCE).expect("nobody is there"));
        assert!(!folder.exists());
    }

    #[test]
    fn a_lab_that_goes_away_is_not_waited_for() {
        let (place, gone) = (Folder::absent("lease-gone"), AtomicBool::new(true));
        let folder = place.0.as_path();
        let refused = take(folder, &holder("one", Role::Generator, 1), LONG, &gone, || ());
        assert_eq!(refused.expect_err("gone").said, "the lab went away");
        assert!(!folder.exists());
    }
}
