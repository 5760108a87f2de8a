//! Samples of what CPUs or threads are doing, by `perf_event_open`.
//!
//! ```text
//! event per CPU (and thread) ──interrupt──► ring ──every 10 ms──► records kept ──stop──► Recording
//! ```
//!
//! Promises: hardware cycles where the machine counts them, else the kernel's `cpu-clock`, and says which
//! and why; samples the kernel had no room for are counted; the thread that reads is told, so that it can
//! be left out. Times are `CLOCK_MONOTONIC` ([`crate::clock::now`]). Kernel and user stacks are call chains
//! by frame pointers; with [`Wish::stack_bytes`] a sample also carries what callers of code built without
//! frame pointers can be found from.
//!
//! Refuses: to sample less than asked without saying so ([`Recording::notes`]).
//!
//! Source: Linux `include/uapi/linux/perf_event.h`, perf_event_open(2).

mod attributes;
pub mod counter;
pub mod record;
mod ring;

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use attributes::{Attributes, open};
pub use record::{Record, Sample, UserState};
use ring::Ring;

/// What is sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Everything on these CPUs, kernel and idle time included. Needs CAP_PERFMON or root.
    Cpus(Vec<u32>),
    /// These threads (ids) and the threads they start from now on, wherever they run.
    Threads(Vec<u32>),
}

/// How it is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Samples a second and CPU (less when the kernel's limit is lower, and then it is said).
    pub frequency_hz: u32,
    /// Bytes of the user's stack copied with each sample: [`STACK_BYTES`], or 0 for call chains by frame pointers.
    pub stack_bytes: u32,
}

/// What a sample stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A sample every so many processor cycles.
    Cycles,
    /// A sample every so much time; code with interrupts off is seen where it switches them on again.
    CpuClock,
}

impl Event {
    pub fn name(self) -> &'static str {
        match self {
            Event::Cycles => "cycles",
            Event::CpuClock => "cpu-clock",
        }
    }
}

/// Why nothing can be sampled, with the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerfError(String);

impl fmt::Display for PerfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PerfError {}

/// How often the rings are emptied: at 2 kHz with stacks of 8 KiB 170 KB have come, of 4 MiB or 512 KiB.
const DRAIN: Duration = Duration::from_millis(10);
/// Records kept, in bytes: 16 s of one CPU at 2 kHz with stacks of 8 KiB. What comes then is counted as lost.
pub const KEPT: usize = 256 << 20;
/// Stack copied with a sample where callers are to be found without frame pointers; 0 where this module does
/// not know the registers.
pub const STACK_BYTES: u32 = if cfg!(target_arch = "x86_64") { 8192 } else { 0 };
const MAX_RATE: &str = "/proc/sys/kernel/perf_event_max_sample_rate";

/// Sampling under way; ends when it is stopped or dropped.
#[derive(Debug)]
pub struct Sampler {
    stop: mpsc::Sender<()>,
    thread: Option<JoinHandle<Recording>>,
}

/// What was sampled.
#[derive(Clone, Debug)]
pub struct Recording {
    pub event: Event,
    pub frequency_hz: u32,
    /// What could not be had: cycles, the kernel's share.
    pub notes: Vec<String>,
    /// Samples beyond what is kept here; those the kernel lost are in the records.
    pub beyond_memory: u64,
    /// The thread that read the rings.
    pub reader: u32,
    bytes: Vec<u8>,
}

impl Recording {
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        record::records(&self.bytes)
    }
}

impl Sampler {
    /// Samples from now on.
    pub fn start(target: &Target, wish: Wish) -> Result<Sampler, PerfError> {
        let (stop, stopped) = mpsc::channel();
        let (ready, opened) = mpsc::sync_channel(1);
        let target = target.clone();
        // opened on the reading thread: what the calling thread starts is sampled, this thread is not
        let thread = std::thread::Builder::new()
            .name("weir-sampler".into())
            .spawn(move || read(&target, wish, &ready, &stopped))
            .map_err(|e| PerfError(format!("sampler: no thread ({e}): raise the limit of processes")))?;
        let mut sampler = Sampler { stop, thread: Some(thread) };
        match opened.recv() {
            Ok(Ok(())) => Ok(sampler),
            Ok(Err(error)) => Err(error),
            Err(_) => match sampler.thread.take().map(JoinHandle::join) {
                Some(Err(panic)) => std::panic::resume_unwind(panic),
                _ => Err(PerfError("sampler: ended before it began".into())),
            },
        }
    }

    /// Ends and hands over everything sampled.
    pub fn stop(mut self) -> Recording {
        // a reader that is gone panicked; joining it says so
        let _ = self.stop.send(());
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(recording)) => recording,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => unreachable!("a sampler that was handed out has its thread until it is stopped"),
        }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        let _ = self.stop.send(());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

type Ready = mpsc::SyncSender<Result<(), PerfError>>;

/// The reading thread: opens, says so, and drains until it is told to stop.
fn read(target: &Target, wish: Wish, ready: &Ready, stop: &mpsc::Receiver<()>) -> Recording {
    let mut recording = Recording {
        event: Event::Cycles,
        frequency_hz: wish.frequency_hz,
        notes: Vec::new(),
        beyond_memory: 0,
        reader: own_thread(),
        bytes: Vec::new(),
    };
    let mut rings = match open_all(target, wish, &mut recording) {
        Ok(rings) => rings,
        Err(error) => {
            // the starter waits for exactly this
            let _ = ready.send(Err(error));
            return recording;
        }
    };
    let _ = ready.send(Ok(()));
    while stop.recv_timeout(DRAIN) == Err(mpsc::RecvTimeoutError::Timeout) {
        drain(&mut rings, &mut recording);
    }
    for opened in &rings {
        for event in &opened.events {
            // an event that cannot be disabled goes on until it is closed below; its samples are still good
            let _ = attributes::enable(event, false);
        }
    }
    drain(&mut rings, &mut recording);
    recording
}

fn drain(rings: &mut [Opened], recording: &mut Recording) {
    for opened in rings {
        let before = recording.bytes.len();
        opened.ring.drain(&mut recording.bytes);
        if before >= KEPT {
            let samples = record::records(&recording.bytes[before..]);
            recording.beyond_memory += samples.filter(|r| matches!(r, Record::Sample(_))).count() as u64;
            recording.bytes.truncate(before);
        }
    }
}

/// The events of one CPU and the ring they write to.
struct Opened {
    ring: Ring,
    events: Vec<OwnedFd>,
}

/// What is tried, the best first.
#[derive(Clone, Copy)]
struct Attempt {
    event: Event,
    kernel: bool,
}

/// Opens every event of the target in the best way the machine and our rights allow.
fn open_all(target: &Target, wish: Wish, recording: &mut Recording) -> Result<Vec<Opened>, PerfError> {
    let limit = fs::read_to_string(MAX_RATE).ok().and_then(|s| s.trim().parse::<u32>().ok());
    if let Some(limit) = limit.filter(|&l| l < recording.frequency_hz) {
        recording.notes.push(format!(
            "{limit} samples a second instead of {}: kernel.perf_event_max_sample_rate is {limit}",
            recording.frequency_hz
        ));
        recording.frequency_hz = limit.max(1);
    }
    let mut last = io::Error::from_raw_os_error(libc::ENOENT);
    for (event, kernel) in
        [(Event::Cycles, true), (Event::CpuClock, true), (Event::Cycles, false), (Event::CpuClock, false)]
    {
        let wish = Wish { frequency_hz: recording.frequency_hz, ..wish };
        match open_as(target, Attempt { event, kernel }, wish) {
            Ok(rings) => {
                recording.event = event;
                if event == Event::CpuClock {
                    recording.notes.push(
                        "this machine counts no cycles for us: the kernel's cpu-clock is sampled".into(),
                    );
                }
                if !kernel {
                    recording.notes.push(format!(
                        "the kernel's share is not seen ({}): run as root, or sysctl kernel.perf_event_paranoid=1",
                        paranoid()
                    ));
                }
                return Ok(rings);
            }
            Err(error) => last = error,
        }
    }
    Err(refused(target, &last))
}

fn open_as(target: &Target, attempt: Attempt, wish: Wish) -> io::Result<Vec<Opened>> {
    let (cpus, threads): (Vec<u32>, Vec<i32>) = match target {
        Target::Cpus(cpus) => (cpus.clone(), vec![-1]),
        Target::Threads(threads) => (online()?, threads.iter().map(|&t| t as i32).collect()),
    };
    let mut all = Vec::new();
    for cpu in cpus {
        let mut opened: Option<Opened> = None;
        for &thread in &threads {
            let attributes = Attributes::sampling(attempt, wish, thread >= 0);
            let event = match open(&attributes, thread, cpu as i32) {
                // a thread that ended since it was listed has nothing to sample
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) && threads.len() > 1 => continue,
                other => other?,
            };
            match &mut opened {
                None => opened = Some(Opened { ring: Ring::of(&event)?, events: vec![event] }),
                Some(first) => {
                    attributes::write_to(&event, &first.events[0])?;
                    first.events.push(event);
                }
            }
        }
        all.extend(opened);
    }
    if all.is_empty() {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    for event in all.iter().flat_map(|o| &o.events) {
        attributes::enable(event, true)?;
    }
    Ok(all)
}

fn online() -> io::Result<Vec<u32>> {
    let machine = crate::cpu::Topology::read(std::path::Path::new(crate::cpu::SYSFS));
    machine.map(|m| m.cpus.iter().map(|c| c.id).collect()).map_err(|e| io::Error::other(e.to_string()))
}

fn refused(target: &Target, error: &io::Error) -> PerfError {
    let what = match target {
        Target::Cpus(cpus) => format!("cpus {cpus:?}"),
        Target::Threads(threads) => format!("{} threads", threads.len()),
    };
    let remedy = match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            format!("{}: run as root, or sysctl kernel.perf_event_paranoid=-1", paranoid())
        }
        Some(libc::ENOSYS) => "this kernel has no perf events (CONFIG_PERF_EVENTS): use one that has".into(),
        Some(libc::ESRCH) => "no such thread: it ended before it could be sampled".into(),
        Some(libc::ENODEV) => "no such cpu online: see /sys/devices/system/cpu/online".into(),
        Some(libc::EMFILE) => "too many open files: raise `ulimit -n`".into(),
        _ => paranoid(),
    };
    PerfError(format!("perf_event_open: {what}: {error}; {remedy}"))
}

fn paranoid() -> String {
    match fs::read_to_string("/proc/sys/kernel/perf_event_paranoid") {
        Ok(level) => format!("kernel.perf_event_paranoid is {}", level.trim()),
        Err(_) => "kernel.perf_event_paranoid cannot be read".into(),
    }
}

/// Id of the calling thread.
pub fn own_thread() -> u32 {
    // SAFETY: gettid has no preconditions and touches no memory.
    unsafe { libc::gettid() as u32 }
}

#[cfg(test)]
mod tests;
