//! From a sample's addresses to the names of a stack.
//!
//! Promises: each address is looked up once; a stranger's code is never opened; what has no name is kept
//! under its file's.

use std::collections::HashMap;

use weir_io::perf_event::record::Side;
use weir_io::perf_event::{Recording, Sample};

use super::binary::Binary;
use super::folded::frame;
use super::kernel::{KTHREADD, Kernel};
use super::session::Focus;
use super::tasks::{Mapping, Tasks};
use super::unwind::{self, End};
use super::{CUT, IDLE, OTHERS, UNKNOWN, function};

/// Below it the standard library starts a thread or `main`.
const RUST_BEGINS: &str = "std::sys::backtrace::__rust_begin_short_backtrace";

pub struct Naming {
    tasks: Tasks,
    focus: Focus,
    pub kernel: Kernel,
    binaries: HashMap<String, Option<Binary>>,
    /// Frames of an address, outermost first.
    known: HashMap<(u32, u64), Vec<String>>,
    roots: HashMap<u32, String>,
}

impl Naming {
    pub fn new(mut tasks: Tasks, focus: Focus, recording: &Recording) -> Naming {
        for record in recording.records() {
            tasks.apply(&record);
        }
        let (binaries, known, roots) = (HashMap::new(), HashMap::new(), HashMap::new());
        Naming { tasks, focus, kernel: Kernel::read(), binaries, known, roots }
    }

    /// Thread name, then functions, root first.
    pub fn stack(&mut self, sample: &Sample<'_>) -> Vec<String> {
        let stranger = self.focus == Focus::Family && self.stranger(sample.pid);
        let mut frames = Vec::new();
        let mut last = None;
        let (chain, end) = if stranger { (sample.chain().collect(), End::Root) } else { self.chain(sample) };
        for (side, address) in chain {
            // where it was is exact; where a call returns to is behind the call
            let probe = if last == Some(side) { address.wrapping_sub(1) } else { address };
            last = Some(side);
            match side {
                Side::Kernel => frames.push(self.kernel.function(probe)),
                Side::User if stranger => break,
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
        if stranger {
            return others(frames);
        }
        if sample.pid == 0 && frames.first().is_some_and(|f| Kernel::is_idle(f)) {
            return vec![IDLE.into()];
        }
        if frames.is_empty() {
            frames.push(UNKNOWN.into());
        }
        if end == End::Cut {
            frames.push(CUT.into());
        }
        // how the runtime starts a thread says nothing of the program; Rust's own backtraces end here too
        if let Some(begin) = frames.iter().rposition(|f| function(f).ends_with(RUST_BEGINS)) {
            frames.truncate(begin.max(1));
            frames.pop_if(|f| begin > 1 && function(f).ends_with("call_once"));
        }
        // several nameless places of one file in a row say no more than one
        frames.dedup_by(|a, b| a == b && a.starts_with('['));
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

    /// Addresses innermost first; the user's by its stack, or by frame pointers where that shows more.
    fn chain(&mut self, sample: &Sample<'_>) -> (Vec<(Side, u64)>, End) {
        let mut chain: Vec<(Side, u64)> = sample.chain().collect();
        let Some(user) = sample.user else { return (chain, End::Root) };
        let (found, end) = unwind::chain(&user, |address, state| {
            let (binary, offset) = self.code(sample.pid, address).ok_or(End::Root)?;
            let address = binary.address(offset).ok_or(End::Root)?;
            binary.rules.as_mut().ok_or(End::Root)?.step(address, state)
        });
        let by_pointers = chain.iter().filter(|c| c.0 == Side::User).count();
        if found.len() == 1 && by_pointers > 1 {
            return (chain, End::Root);
        }
        chain.retain(|c| c.0 == Side::Kernel);
        chain.extend(found.into_iter().map(|address| (Side::User, address)));
        (chain, end)
    }

    /// The program at an address of a process, and where in its file.
    fn code(&mut self, pid: u32, address: u64) -> Option<(&mut Binary, u64)> {
        let mapping = self.tasks.mapping(pid, address)?;
        let offset = address - mapping.start + mapping.offset;
        self.binary(pid, &mapping).map(|binary| (binary, offset))
    }

    fn user(&mut self, pid: u32, address: u64) -> Vec<String> {
        if let Some(known) = self.known.get(&(pid, address)) {
            return known.clone();
        }
        let functions =
            self.code(pid, address).map_or(Vec::new(), |(binary, offset)| binary.functions(offset));
        let frames = match self.tasks.mapping(pid, address) {
            Some(mapping) if functions.is_empty() => vec![mapping.shown()],
            Some(_) => functions.iter().map(|f| frame(f)).collect(),
            None => vec![UNKNOWN.into()],
        };
        self.known.insert((pid, address), frames.clone());
        frames
    }

    fn binary(&mut self, pid: u32, mapping: &Mapping) -> Option<&mut Binary> {
        if !self.binaries.contains_key(&mapping.path) {
            let files = mapping.path.starts_with('/').then(|| mapping.files(pid));
            let read = files.iter().flatten().find_map(|file| Binary::read(file));
            self.binaries.insert(mapping.path.clone(), read);
        }
        self.binaries.get_mut(&mapping.path)?.as_mut()
    }
}

/// Whether a frame is code without a name.
pub fn nameless(name: &str) -> bool {
    ![IDLE, OTHERS].contains(&name) && function(name).starts_with('[')
}

/// What an interrupt did while a stranger ran, or the stranger as one frame. `frames` are innermost first.
fn others(mut frames: Vec<String>) -> Vec<String> {
    let Some(entry) = frames.iter().rposition(|f| Kernel::is_softirq(f)) else { return vec![OTHERS.into()] };
    frames.truncate(entry + 1);
    frames.push("softirq".into());
    frames.reverse();
    frames
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
            [IDLE, OTHERS, UNKNOWN, "[libc.so.6]", "[kernel]_[k]", "main"].map(nameless),
            [false, false, true, true, true, false]
        );
    }
}
