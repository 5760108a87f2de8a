//! What a lab leaves on the machine while it runs, and how the next one removes what a killed one left.
//!
//! Namespaces and veth pairs need no removing: nothing names them, so the kernel ends them with the lab's
//! last thread and the SUT, which is killed with the thread that started it. What remains is a folder
//! with the SUT's configuration and control socket, named after the lab's process; a SUT that
//! escaped is written in it.
//!
//! ```text
//! <temp>/weir-lab-<process>-<its start, clock ticks>-<n>/    SUT.pid  weir.toml  weir.sock …
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use weir_io::process;

use crate::model::LabError;

const PREFIX: &str = "weir-lab-";

static FOLDERS: AtomicU32 = AtomicU32::new(0);
static TAGS: AtomicU32 = AtomicU32::new(0);

/// A word unique among running labs, short enough for device names: `<process, hex>-<n, hex>`.
pub fn tag() -> String {
    format!("{:x}-{:x}", std::process::id(), TAGS.fetch_add(1, Ordering::Relaxed) & 0xff)
}

/// A folder that is removed with this value, or by the next lab.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Result<Folder, LabError> {
        let own = std::process::id();
        let n = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("{PREFIX}{own}-{}-{n}", started(own).unwrap_or(0)));
        fs::create_dir(&path)
            .map_err(|e| LabError::new(format!("{}: cannot be made: {e}", path.display())))?;
        Ok(Folder(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes down the SUT's process, for the lab that may have to end it.
    pub fn record_sut(&self, id: u32) -> Result<(), LabError> {
        let path = self.0.join("sut.pid");
        fs::write(&path, format!("{id} {}", started(id).unwrap_or(0)))
            .map_err(|e| LabError::new(format!("{}: cannot be written: {e}", path.display())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed now is found by the next sweep.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Removes what killed labs left before the first of a testbed's configurations is deployed, and only then.
#[derive(Debug, Default)]
pub struct Sweep {
    done: bool,
}

impl Sweep {
    /// What `deploy` builds, unless the machine lacks something; it is given what was swept, for its notes.
    pub fn deploy<D>(
        &mut self,
        missing: Option<String>,
        deploy: impl FnOnce(Vec<String>) -> Result<D, LabError>,
    ) -> Result<D, LabError> {
        if let Some(missing) = missing {
            return Err(LabError::new(missing));
        }
        let swept = if self.done { Vec::new() } else { sweep() };
        self.done = true;
        deploy(swept)
    }
}

/// Ends SUTs and removes folders of labs that are gone; says what it did.
pub fn sweep() -> Vec<String> {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else { return Vec::new() };
    entries.flatten().filter_map(|entry| sweep_one(&entry.path())).collect()
}

fn sweep_one(path: &Path) -> Option<String> {
    let mut words = path.file_name()?.to_str()?.strip_prefix(PREFIX)?.split('-');
    let owner: u32 = words.next()?.parse().ok()?;
    let since: u64 = words.next()?.parse().ok()?;
    if started(owner) == Some(since) {
        return None;
    }
    let mut done = format!("removed what lab {owner} left in {}", path.display());
    if let Some((sut, since)) = sut(path)
        && started(sut) == Some(since)
        && process::kill(sut).is_ok()
    {
        done += &format!(", and ended its SUT {sut}");
    }
    match end_those_of(path) {
        0 => {}
        n => done += &format!(", and ended {n} processes that its commands had left"),
    }
    fs::remove_dir_all(path).ok().map(|()| done)
}

/// Ends what commands started that ran in `folder`, wherever it went: how many.
fn end_those_of(folder: &Path) -> usize {
    let variable = format!("WEIR_DIR={}/", folder.display());
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let of_it = |process: &u32| {
        let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|word| word.starts_with(variable.as_bytes()))
    };
    processes.filter(of_it).filter(|&process| process::kill(process).is_ok()).count()
}

fn sut(folder: &Path) -> Option<(u32, u64)> {
    let text = fs::read_to_string(folder.join("sut.pid")).ok()?;
    let (id, since) = text.split_once(' ')?;
    Some((id.parse().ok()?, since.parse().ok()?))
}

/// When a process started, in clock ticks since boot: with its id it is unique. Zombies have ended.
fn started(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    if process::stat_field(&stat, 3) == Some("Z") {
        return None;
    }
    process::stat_field(&stat, 22)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::process::Command;

    /// A folder of a lab, where no sweep of another test looks.
    struct Aside(PathBuf);

    impl Aside {
        fn of(lab: &str) -> Aside {
            let name = format!("{PREFIX}{lab}");
            Aside(std::env::temp_dir().join(format!("swept-{}-{name}", std::process::id())).join(name))
        }
    }

    impl Drop for Aside {
        fn drop(&mut self) {
            let _ = self.0.parent().map(fs::remove_dir_all);
        }
    }

    #[test]
    fn what_a_killed_lab_left_is_removed_and_its_sut_ended() {
        let mut lab = Command::new("sleep").arg("600").spawn().expect("sleep starts");
        let mut sut = Command::new("sleep").arg("600").spawn().expect("sleep starts");
        let since = started(lab.id()).expect("it runs");
        let Aside(path) = &Aside::of(&format!("{}-{since}-0", lab.id()));
        fs::create_dir_all(path).expect("a fresh name");
        let line = format!("{} {}", sut.id(), started(sut.id()).expect("it runs"));
        fs::write(path.join("sut.pid"), line).expect("the folder is ours");

        assert_eq!(sweep_one(path), None, "a running lab keeps its folder");
        lab.kill().and_then(|()| lab.wait()).expect("our child");
        let said = sweep_one(path).expect("something was left");
        assert!(said.contains("ended its SUT"), "{said}");
        assert!(!sut.wait().expect("our child").success());
        assert!(!path.exists());
    }

    #[test]
    fn what_commands_of_a_killed_lab_left_running_is_ended() {
        let Aside(path) = &Aside::of(&format!("{}-1-78", u32::MAX));
        fs::create_dir_all(path.join("sut-1-0")).expect("a fresh name");
        let sleep = |folder: &str| {
            let mut command = Command::new("sleep");
            command.arg("600").env("WEIR_DIR", path.join(folder)).spawn().expect("sleep starts")
        };
        let (mut left, mut other) = (sleep("sut-1-0"), sleep("../elsewhere"));
        other.kill().and_then(|()| other.wait()).expect("our child");
        // A program has no environment yet for a moment after it was started.
        while fs::read(format!("/proc/{}/environ", left.id())).expect("it runs").is_empty() {}
        let said = sweep_one(path).expect("its owner does not run");
        assert!(said.contains("ended 1 processes that its commands had left"), "{said}");
        assert!(!left.wait().expect("our child").success());
        assert!(!path.exists());
    }

    #[test]
    fn a_process_that_took_over_the_number_is_left_alone() {
        let own = std::process::id();
        let Aside(path) = &Aside::of(&format!("{}-1-77", u32::MAX));
        fs::create_dir_all(path).expect("a fresh name");
        fs::write(path.join("sut.pid"), format!("{own} 1")).expect("the folder is ours");
        let said = sweep_one(path).expect("its owner does not run");
        assert!(!said.contains("ended"), "{said}");
    }

    #[test]
    fn a_testbed_sweeps_before_its_first_configuration_and_not_where_something_is_missing() {
        let mut sweep = Sweep::default();
        let refused = sweep.deploy(Some("no root".into()), |_| Ok(())).expect_err("it lacks something");
        assert_eq!((refused.said.as_str(), sweep.done), ("no root", false));
        sweep.deploy(None, |_| Ok(())).expect("nothing is missing");
        assert!(sweep.done);
        assert_eq!(sweep.deploy(None, |swept| Ok(swept.len())), Ok(0), "swept once");
    }

    #[test]
    fn a_folder_goes_with_its_value() {
        let folder = Folder::new().expect("temp dir is writable");
        let path = folder.path().to_path_buf();
        assert!(path.is_dir());
        drop(folder);
        assert!(!path.exists());
    }
}
