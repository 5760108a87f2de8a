//! Who runs: names of threads and the files mapped into processes, from /proc and from what happened since.
//!
//! Promises: a thread that came and went while it was sampled keeps its name. Numbers at the end of a name
//! (`ksoftirqd/1`, `napi/eth0-8193`) tell threads of one kind apart and would tell runs apart: they are cut.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use weir_io::perf_event::Record;

#[derive(Debug, Default)]
pub struct Tasks {
    /// Tasks by thread id.
    names: HashMap<u32, String>,
    /// Executable memory by process id, the newest last.
    maps: HashMap<u32, Vec<Mapping>>,
    /// Who started a process.
    parents: HashMap<u32, u32>,
}

/// Executable memory of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    /// Where its first byte lies in the file.
    pub offset: u64,
    /// The file as the process names it, or `[vdso]` and the like.
    pub path: String,
}

impl Mapping {
    /// The last part of its path, in brackets.
    pub fn shown(&self) -> String {
        let path = self.path.trim_end_matches(" (deleted)");
        let name = path.rsplit('/').next().unwrap_or(path).trim_matches(['[', ']']);
        if name.is_empty() { super::UNKNOWN.into() } else { format!("[{name}]") }
    }

    /// Where the file may be read; a process can live in a file system of its own.
    pub fn files(&self, pid: u32) -> [PathBuf; 2] {
        [PathBuf::from(format!("/proc/{pid}/root{}", self.path)), PathBuf::from(&self.path)]
    }
}

impl Tasks {
    /// Every process there is.
    pub fn all() -> Tasks {
        let mut tasks = Tasks::default();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            if let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) {
                tasks.look_at(pid);
            }
        }
        tasks
    }

    pub fn of(pid: u32) -> Tasks {
        let mut tasks = Tasks::default();
        tasks.look_at(pid);
        tasks
    }

    /// Reads what /proc says of a process; one that is gone says nothing.
    fn look_at(&mut self, pid: u32) {
        let proc = PathBuf::from(format!("/proc/{pid}"));
        let mapped = fs::read_to_string(proc.join("maps")).unwrap_or_default();
        self.maps.insert(pid, mapped.lines().filter_map(mapping).collect());
        if let Some(parent) = fs::read_to_string(proc.join("stat")).ok().and_then(|s| parent(&s)) {
            self.parents.insert(pid, parent);
        }
        for entry in fs::read_dir(proc.join("task")).into_iter().flatten().flatten() {
            let Some(tid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else { continue };
            if let Some(name) = comm(&entry.path()) {
                self.names.insert(tid, name);
            }
        }
    }

    /// Learns from what happened while sampling.
    pub fn apply(&mut self, record: &Record<'_>) {
        match *record {
            Record::Mapped { pid, start, len, offset, path } => {
                let path = String::from_utf8_lossy(path).into_owned();
                let mapping = Mapping { start, end: start.saturating_add(len), offset, path };
                self.maps.entry(pid).or_default().push(mapping);
            }
            Record::Named { pid, tid, executed, name } => {
                if executed {
                    self.maps.remove(&pid);
                }
                self.names.insert(tid, String::from_utf8_lossy(name).into_owned());
            }
            Record::Forked { pid, tid, parent, parent_tid } => {
                if let Some(name) = self.names.get(&parent_tid).cloned() {
                    self.names.insert(tid, name);
                }
                if pid != parent {
                    self.parents.insert(pid, parent);
                    let inherited = self.maps.get(&parent).cloned().unwrap_or_default();
                    self.maps.insert(pid, inherited);
                }
            }
            Record::Sample(_) | Record::Lost(_) | Record::Throttled => {}
        }
    }

    /// The name of a thread without its number.
    pub fn name(&mut self, pid: u32, tid: u32) -> String {
        if pid == 0 {
            return "swapper".into();
        }
        if !self.names.contains_key(&tid) {
            self.look_at(pid);
        }
        let name = self.names.get(&tid).or_else(|| self.names.get(&pid));
        name.map_or_else(|| "[gone]".into(), |name| kind(name).to_string())
    }

    /// Whether a process is `ancestor` or was started by it or its children.
    pub fn descends(&self, pid: u32, ancestor: u32) -> bool {
        let mut at = pid;
        // a chain longer than there are processes is a loop of reused ids
        for _ in 0..=self.parents.len() {
            match self.parents.get(&at) {
                _ if at == ancestor => return true,
                Some(&parent) => at = parent,
                None => return false,
            }
        }
        false
    }

    /// Memory of a process that holds `address`.
    pub fn mapping(&mut self, pid: u32, address: u64) -> Option<Mapping> {
        if !self.maps.contains_key(&pid) {
            self.look_at(pid);
        }
        let maps = self.maps.get(&pid)?;
        maps.iter().rfind(|m| (m.start..m.end).contains(&address)).cloned()
    }
}

/// The name of a task, by its folder in /proc.
pub(crate) fn comm(task: &Path) -> Option<String> {
    fs::read_to_string(task.join("comm")).ok().map(|name| name.trim_end().to_string())
}

/// Reads the parent from /proc/PID/stat: `pid (name) state parent …`, where a name may hold anything.
fn parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// A line of /proc/PID/maps that can be executed.
fn mapping(line: &str) -> Option<Mapping> {
    let mut words = line.splitn(6, ' ');
    let (range, rights, offset) = (words.next()?, words.next()?, words.next()?);
    let (start, end) = range.split_once('-')?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let path = words.nth(2).unwrap_or_default().trim().to_string();
    rights.contains('x').then_some(())?;
    Some(Mapping { start: number(start)?, end: number(end)?, offset: number(offset)?, path })
}

/// `napi/eth0-8193` is `napi/eth0`, `kworker/1:2-events` is `kworker`.
fn kind(name: &str) -> &str {
    if name.starts_with("kworker/") {
        return "kworker";
    }
    if name.starts_with("napi/") {
        return name.split('-').next().unwrap_or(name);
    }
    let cut = name.trim_end_matches(|c: char| c.is_ascii_digit());
    if cut.len() == name.len() { name } else { cut.strip_suffix(['/', '-', ':', '.']).unwrap_or(name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_tell_threads_of_a_kind_apart_are_cut() {
        let names = [
            "ksoftirqd/1",
            "napi/din-8193",
            "kworker/1:2-events",
            "napi/din-2c-4a",
            "weir-worker-0",
            "weir",
            "l3fwd6",
        ];
        assert_eq!(
            names.map(kind),
            ["ksoftirqd", "napi/din", "kworker", "napi/din", "weir-worker", "weir", "l3fwd6"]
        );
    }

    #[test]
    fn executable_memory_is_read_with_its_file() {
        let line = "55d0c0a00000-55d0c0b00000 r-xp 0001f000 fe:00 1234       /usr/bin/a program";
        let found = mapping(line).expect("executable");
        assert_eq!((found.start, found.offset), (0x55d0_c0a0_0000, 0x1f000));
        assert_eq!((found.path.as_str(), found.shown()), ("/usr/bin/a program", "[a program]".into()));
        assert_eq!(mapping("7f00-7f10 rw-p 0 fe:00 1 /usr/bin/a"), None);
        let unnamed = mapping("7f00-7f10 r-xp 00000000 00:00 0").expect("executable");
        assert_eq!(unnamed.shown(), "[unknown]");
        let vdso = mapping("7f00-7f10 r-xp 00000000 00:00 0          [vdso]").expect("executable");
        assert_eq!(vdso.shown(), "[vdso]");
    }

    #[test]
    fn families_are_known() {
        assert_eq!(parent("12 (a) b) S 7 12 0"), Some(7));
        let mut tasks = Tasks::default();
        for (pid, parent) in [(7, 1), (12, 7), (20, 21), (21, 20)] {
            tasks.apply(&Record::Forked { pid, tid: pid, parent, parent_tid: parent });
        }
        assert!(tasks.descends(12, 7) && tasks.descends(7, 7) && tasks.descends(12, 1));
        assert!(!tasks.descends(7, 12) && !tasks.descends(20, 7), "a loop ends");
    }

    #[test]
    fn threads_inherit_names_and_another_program_means_other_memory() {
        let mut tasks = Tasks::default();
        let mapped = |pid, start| Record::Mapped { pid, start, len: 16, offset: 0, path: b"/bin/a" };
        for record in [
            Record::Named { pid: 1, tid: 1, executed: false, name: b"worker-3" },
            mapped(1, 0x100),
            Record::Forked { pid: 1, tid: 2, parent: 1, parent_tid: 1 },
            Record::Forked { pid: 3, tid: 3, parent: 1, parent_tid: 1 },
        ] {
            tasks.apply(&record);
        }
        assert_eq!((tasks.name(1, 2), tasks.name(3, 3)), ("worker".into(), "worker".into()));
        assert!(tasks.mapping(3, 0x108).is_some() && tasks.mapping(3, 0x110).is_none());
        tasks.apply(&Record::Named { pid: 3, tid: 3, executed: true, name: b"b" });
        tasks.apply(&mapped(3, 0x200));
        assert!(tasks.mapping(3, 0x108).is_none() && tasks.mapping(3, 0x208).is_some());
    }
}
