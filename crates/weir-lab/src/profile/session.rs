//! Sampling from start to folded stacks.
//!
//! ```text
//! start: tasks as they are ─► Sampler ─► … ─► finish: records in the window ─► names ─► Profile
//! ```
//!
//! Promises: only samples inside the window count, so that neither warm-up nor setting up is in a profile;
//! what has no name is kept under its file's, and counted; the sampler's own work is left out.
//! Limits: callers are found by frame pointers, so code built without them (C libraries, mostly) shows its
//! innermost function under its thread; kernel functions come without what was inlined into them.

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;

use weir_io::perf_event::record::Side;
use weir_io::perf_event::{Record, Recording, Sample, Sampler, Target, own_thread};

use super::binary::Binary;
use super::folded::{Header, frame};
use super::kernel::{KTHREADD, Kernel};
use super::tasks::{Mapping, Tasks};
use super::{IDLE, OTHERS, Profile, UNKNOWN};
use crate::model::{LabError, Scope};

/// Samples a second and CPU: about one a 500 µs, and a prime, so that nothing periodic keeps step with it.
pub const FREQUENCY_HZ: u32 = 1999;

/// What a scope means to the sampler. Own threads are those the calling thread starts from now on.
pub fn target(scope: &Scope) -> Target {
    match scope {
        Scope::OwnThreads => Target::Threads(vec![own_thread()]),
        Scope::Cpus(cpus) => Target::Cpus(cpus.clone()),
    }
}

/// Whose work is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Focus {
    /// A process; no other is looked at.
    Process(u32),
    /// Everybody.
    All,
    /// This process, what it started, and the kernel. What others do is one frame, `[others]`; packet work
    /// that interrupts do in their time is shown under `softirq`, because it is the subject's.
    Family,
}

/// Threads a process has now.
pub fn threads(pid: u32) -> Result<Vec<u32>, LabError> {
    let listed = std::fs::read_dir(format!("/proc/{pid}/task"))
        .map_err(|e| LabError(format!("process {pid}: {e}; name one that runs")))?;
    Ok(listed.flatten().filter_map(|t| t.file_name().to_str()?.parse().ok()).collect())
}

/// Sampling under way.
pub struct Session {
    sampler: Sampler,
    tasks: Tasks,
    focus: Focus,
}

impl Session {
    pub fn start(target: &Target, focus: Focus, frequency_hz: u32) -> Result<Session, LabError> {
        let tasks = match focus {
            Focus::Process(pid) => Tasks::of(pid),
            Focus::All | Focus::Family => Tasks::all(),
        };
        let sampler = Sampler::start(target, frequency_hz).map_err(|e| LabError(e.to_string()))?;
        Ok(Session { sampler, tasks, focus })
    }

    /// Ends sampling and names what was seen between two moments of CLOCK_MONOTONIC.
    pub fn finish(self, window: Range<u64>) -> (Header, Profile) {
        let recording = self.sampler.stop();
        let mut naming = Naming::new(self.tasks, self.focus, &recording);
        let mut profile = Profile { event: recording.event.name().into(), ..Profile::default() };
        let mut header = Header {
            event: profile.event.clone(),
            notes: recording.notes.clone(),
            frequency_hz: recording.frequency_hz.into(),
            lost: recording.beyond_memory,
            ..Header::default()
        };
        let mut throttled = 0u64;
        for record in recording.records() {
            match record {
                Record::Sample(sample) if window.contains(&sample.time) && sample.tid != recording.reader => {
                    let stack = naming.stack(&sample);
                    header.samples += 1;
                    header.unnamed += u64::from(stack.last().is_some_and(|f| unnamed(f)));
                    profile.add(stack, 1);
                }
                Record::Lost(n) => header.lost += n,
                Record::Throttled => throttled += 1,
                _ => {}
            }
        }
        if throttled > 0 {
            header.notes.push(format!("the kernel held sampling back {throttled} times: shares still hold"));
        }
        header.notes.extend(naming.kernel.hidden());
        (header, profile)
    }
}

fn unnamed(name: &str) -> bool {
    ![IDLE, OTHERS].contains(&name) && super::function(name).starts_with('[')
}

/// What an interrupt did while a stranger ran, or the stranger as one frame. `frames` are innermost first.
fn others(mut frames: Vec<String>) -> Vec<String> {
    let Some(entry) = frames.iter().rposition(|f| Kernel::is_softirq(f)) else { return vec![OTHERS.into()] };
    frames.truncate(entry + 1);
    frames.push("softirq".into());
    frames.reverse();
    frames
}

/// From addresses to names, each looked up once.
struct Naming {
    tasks: Tasks,
    focus: Focus,
    kernel: Kernel,
    binaries: HashMap<String, Option<Binary>>,
    /// Frames of an address, outermost first.
    known: HashMap<(u32, u64), Vec<String>>,
    roots: HashMap<u32, String>,
}

impl Naming {
    fn new(mut tasks: Tasks, focus: Focus, recording: &Recording) -> Naming {
        for record in recording.records() {
            tasks.apply(&record);
        }
        let (binaries, known, roots) = (HashMap::new(), HashMap::new(), HashMap::new());
        Naming { tasks, focus, kernel: Kernel::read(), binaries, known, roots }
    }

    /// Thread name, then functions, root first.
    fn stack(&mut self, sample: &Sample<'_>) -> Vec<String> {
        let mut frames = Vec::new();
        let mut last = None;
        for (side, address) in sample.chain() {
            // where it was is exact; where a call returns to is behind the call
            let probe = if last == Some(side) { address.wrapping_sub(1) } else { address };
            last = Some(side);
            match side {
                Side::Kernel => frames.push(self.kernel.function(probe)),
                Side::User => {
                    let named = self.user(sample.pid, probe);
                    // memory that is not code is no caller: the code before kept no frame pointer
                    if named[..] == [UNKNOWN] && !frames.is_empty() {
                        break;
                    }
                    frames.extend(named.into_iter().rev());
                }
            }
        }
        // several nameless places of one file in a row say no more than one
        frames.dedup_by(|a, b| a == b && a.starts_with('['));
        if sample.pid == 0 && frames.first().is_some_and(|f| Kernel::is_idle(f)) {
            return vec![IDLE.into()];
        }
        if self.focus == Focus::Family && self.stranger(sample.pid) {
            return others(frames);
        }
        if frames.is_empty() {
            frames.push(UNKNOWN.into());
        }
        let tasks = &mut self.tasks;
        let root = self.roots.entry(sample.tid).or_insert_with(|| frame(&tasks.name(sample.pid, sample.tid)));
        frames.push(root.clone());
        frames.reverse();
        frames
    }

    fn stranger(&self, pid: u32) -> bool {
        let known = |ancestor| self.tasks.descends(pid, ancestor);
        pid != 0 && !known(KTHREADD) && !known(std::process::id())
    }

    fn user(&mut self, pid: u32, address: u64) -> Vec<String> {
        if let Some(known) = self.known.get(&(pid, address)) {
            return known.clone();
        }
        let frames = match self.tasks.mapping(pid, address) {
            None => vec![UNKNOWN.into()],
            Some(mapping) => {
                let offset = address - mapping.start + mapping.offset;
                let functions = self.binary(pid, &mapping).map_or(Vec::new(), |b| b.functions(offset));
                let named = functions.iter().map(|f| frame(f)).collect::<Vec<_>>();
                if named.is_empty() { vec![mapping.shown()] } else { named }
            }
        };
        self.known.insert((pid, address), frames.clone());
        frames
    }

    fn binary(&mut self, pid: u32, mapping: &Mapping) -> Option<&Binary> {
        let read = || mapping.files(pid).iter().find_map(|f: &PathBuf| Binary::read(f));
        let wanted = mapping.path.starts_with('/');
        self.binaries
            .entry(mapping.path.clone())
            .or_insert_with(|| if wanted { read() } else { None })
            .as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_work_in_a_strangers_time_is_kept_and_the_stranger_is_not() {
        let of = |frames: &[&str]| others(frames.iter().map(|f| f.to_string()).collect());
        assert_eq!(
            of(&["veth_poll_[k]", "handle_softirqs_[k]", "irq_exit_rcu_[k]", "read_[k]", "main"]),
            ["softirq", "handle_softirqs_[k]", "veth_poll_[k]"]
        );
        assert_eq!(of(&["read_[k]", "main"]), [OTHERS]);
    }

    #[test]
    fn idle_and_others_are_names_and_a_file_is_none() {
        assert_eq!(
            [IDLE, OTHERS, UNKNOWN, "[libc.so.6]", "[kernel]_[k]", "main"].map(unnamed),
            [false, false, true, true, true, false]
        );
    }
}
