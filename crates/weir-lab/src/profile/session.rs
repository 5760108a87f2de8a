//! Sampling from start to folded stacks.
//!
//! ```text
//! start: tasks as they are ─► Sampler ─► … ─► finish: records in the window ─► names ─► Profile
//! ```
//!
//! Promises: only samples inside the window count, so that neither warm-up nor setting up is in a profile;
//! what has no name is kept under its file's, and counted; the sampler's own work is left out.
//! Limits: user callers are found from a copy of the innermost 8 KiB of the stack, those beyond are `[cut]`;
//! kernel functions come without what was inlined into them.

use std::ops::Range;

use weir_io::perf_event::{KEPT, Record, STACK_BYTES, Sampler, Target, Wish, own_thread};

use super::Profile;
use super::folded::Header;
use super::naming::{Naming, nameless};
use super::tasks::Tasks;
use crate::model::{LabError, Scope};

/// Samples a second and CPU: about one a 500 µs, and a prime, so that nothing periodic keeps step with it.
pub const FREQUENCY_HZ: u32 = 1999;

/// What a scope means to the sampler. Own threads are those the calling thread starts from now on. A far host is not
/// sampled from here.
pub fn target(scope: &Scope) -> Option<Target> {
    match scope {
        Scope::OwnThreads => Some(Target::Threads(vec![own_thread()])),
        Scope::Cpus(cpus) => Some(Target::Cpus(cpus.clone())),
        Scope::FarHost => None,
    }
}

/// The work that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Focus {
    /// A process; no other is looked at.
    Process(u32),
    /// Everybody.
    All,
    /// This process, what it started, and the kernel. What others do is one frame, `[others]`; packet work
    /// that interrupts do in their time is shown under `softirq`, because it is the SUT's.
    Family,
}

/// Threads a process has now.
pub fn threads(pid: u32) -> Result<Vec<u32>, LabError> {
    let listed = std::fs::read_dir(format!("/proc/{pid}/task"))
        .map_err(|e| LabError::new(format!("process {pid}: {e}; name one that runs")))?;
    Ok(listed.flatten().filter_map(|t| t.file_name().to_str()?.parse().ok()).collect())
}

/// Sampling under way.
pub struct Session {
    sampler: Sampler,
    tasks: Tasks,
    focus: Focus,
    /// Why there are fewer samples than asked for.
    fewer: Option<String>,
}

impl Session {
    /// `seconds` is about how long it will take.
    pub fn start(
        target: &Target,
        focus: Focus,
        frequency_hz: u32,
        seconds: f64,
    ) -> Result<Session, LabError> {
        let tasks = match focus {
            Focus::Process(pid) => Tasks::of(pid),
            Focus::All | Focus::Family => Tasks::all(),
        };
        let fits = frequency_that_fits(target, seconds);
        let fewer = (fits < frequency_hz).then(|| {
            format!(
                "{fits} samples a second instead of {frequency_hz}, so that {seconds:.0} s fit into memory"
            )
        });
        let wish = Wish { frequency_hz: frequency_hz.min(fits), stack_bytes: STACK_BYTES };
        let sampler = Sampler::start(target, wish).map_err(|e| LabError::new(e.to_string()))?;
        Ok(Session { sampler, tasks, focus, fewer })
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
                    header.unnamed += u64::from(stack.last().is_some_and(|f| nameless(f)));
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
        header.notes.extend(self.fewer);
        header.notes.extend(naming.kernel.hidden());
        (header, profile)
    }
}

/// Samples a second and CPU for which the sampler's memory lasts.
fn frequency_that_fits(target: &Target, seconds: f64) -> u32 {
    /// A sample beside its stack: header, registers and a chain of forty frames.
    const REST: usize = 512;
    let cpus = match target {
        Target::Cpus(cpus) => cpus.len(),
        Target::Threads(_) => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let samples = KEPT / (STACK_BYTES as usize + REST);
    ((samples as f64 / (cpus.max(1) as f64 * seconds.max(0.1))) as u32).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sessions_sample_less_often_so_that_their_end_is_seen_too() {
        let of = |seconds| frequency_that_fits(&Target::Cpus(vec![0, 1]), seconds);
        assert!(of(1.0) > FREQUENCY_HZ && of(60.0) < FREQUENCY_HZ && of(1e9) == 1);
    }
}
