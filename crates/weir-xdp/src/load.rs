//! Loading a compiled program and getting at its maps, by aya.
//!
//! Promises: constants are set before the verifier sees the program, which then leaves out what they rule out;
//! everything goes with the descriptors when [`Loaded`] is dropped. Refuses: BTF of the kernel: no program
//! here reads a structure of it.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, XskMap};
use aya::programs::xdp::XdpMode;
use aya::programs::{ProgramError, TestRun, TestRunAttrs, TestRunOptions, Xdp};
use aya::{Ebpf, EbpfLoader, VerifierLogLevel};

/// Lines of the verifier's log that are shown: the reason is in the last ones.
const LOG_LINES: usize = 12;

/// A compiled program.
#[derive(Clone, Copy)]
pub struct Source {
    /// Of the function in C, and of the program in the kernel.
    pub name: &'static str,
    /// Bytes of stack it uses.
    pub(crate) stack: u32,
    pub(crate) object: &'static [u8],
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({}, {} bytes)", self.name, self.object.len())
    }
}

/// Why a program is not in the kernel, or not on a device.
#[derive(Debug)]
pub enum LoadError {
    /// The verifier refused, for the reason in the last lines of its log.
    Refused { name: &'static str, error: io::Error, log: String },
    /// The kernel did not do what it was asked.
    Call { name: &'static str, call: String, error: io::Error },
    /// What the kernel was not even asked for.
    Object { name: &'static str, text: String },
}

impl LoadError {
    /// The kernel's answer alone.
    pub fn into_io(self) -> io::Error {
        match self {
            LoadError::Refused { error, .. } | LoadError::Call { error, .. } => error,
            LoadError::Object { text, .. } => io::Error::other(text),
        }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Refused { name, error, log } if log.is_empty() => {
                write!(f, "bpf program {name}: {error}{}", remedy(error))
            }
            LoadError::Refused { name, error, log } => {
                // Without CAP_PERFMON a program may not look where a frame ends.
                let remedy = if log.contains("prohibited") { remedy(error) } else { "" };
                write!(f, "bpf program {name}: {error}{remedy}; the verifier's last words:\n{log}")
            }
            LoadError::Call { name, call, error } => {
                write!(f, "bpf program {name}: {call}: {error}{}", remedy(error))
            }
            LoadError::Object { name, text } => write!(f, "bpf program {name}: {text}"),
        }
    }
}

impl std::error::Error for LoadError {}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; run as root or with CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN and CAP_NET_RAW"
        }
        io::ErrorKind::Unsupported => "; this kernel is built without CONFIG_BPF_SYSCALL",
        _ => "",
    }
}

/// Finds the kernel's answer in what aya wraps around it.
fn explain(name: &'static str, error: impl std::error::Error + 'static) -> LoadError {
    let call = error.to_string();
    let mut inner: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(this) = inner {
        if let Some(ProgramError::LoadError { io_error, verifier_log }) = this.downcast_ref() {
            let log = last_lines(&verifier_log.to_string());
            return LoadError::Refused { name, error: copy(io_error), log };
        }
        if let Some(error) = this.downcast_ref::<io::Error>() {
            return LoadError::Call { name, call, error: copy(error) };
        }
        inner = this.source();
    }
    LoadError::Object { name, text: call }
}

fn copy(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| io::Error::other(error.to_string()), io::Error::from_raw_os_error)
}

/// The end of the log without the verifier's statistics.
fn last_lines(log: &str) -> String {
    let statistics = ["verification time", "stack depth", "processed "];
    let said: Vec<&str> = log
        .lines()
        .filter(|line| !statistics.iter().any(|s| line.starts_with(s)) && !line.is_empty())
        .collect();
    said[said.len().saturating_sub(LOG_LINES)..].join("\n")
}

/// Where a program runs on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver, before a socket buffer exists.
    Native,
    /// After the kernel made a socket buffer: any device, slower.
    Generic,
}

/// What a program said should happen to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Aborted,
    Drop,
    Pass,
    Tx,
    Redirect,
    Other(u32),
}

impl From<u32> for Action {
    fn from(number: u32) -> Self {
        match number {
            0 => Action::Aborted,
            1 => Action::Drop,
            2 => Action::Pass,
            3 => Action::Tx,
            4 => Action::Redirect,
            other => Action::Other(other),
        }
    }
}

/// What a test run showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub action: Action,
    /// The frame as the program left it.
    pub frame: Vec<u8>,
    /// The mean of all rounds, in whole nanoseconds.
    pub duration: Duration,
}

impl Source {
    /// Loads the program. `constants` are rodata variables by name; `entries` the sizes of maps that are
    /// decided only now.
    pub fn load(self, constants: &[(&str, &[u8])], entries: &[(&str, u32)]) -> Result<Loaded, LoadError> {
        let name = self.name;
        let mut loader = EbpfLoader::new();
        loader.verifier_log_level(VerifierLogLevel::DEBUG);
        for &(constant, value) in constants {
            loader.override_global(constant, value, true);
        }
        for &(map, count) in entries {
            loader.map_max_entries(map, count);
        }
        let ebpf = loader.load(self.object).map_err(|e| explain(name, e))?;
        let mut loaded = Loaded { ebpf, name, stack: self.stack };
        loaded.program_mut()?.load().map_err(|e| explain(name, e))?;
        Ok(loaded)
    }
}

fn missing(name: &'static str, what: &str) -> LoadError {
    LoadError::Object { name, text: format!("{what}: not in the object; weir was built from other sources") }
}

/// A program in the kernel, with its maps. Taken off its device, and gone, when dropped.
#[derive(Debug)]
pub struct Loaded {
    ebpf: Ebpf,
    name: &'static str,
    stack: u32,
}

impl Loaded {
    pub fn name(&self) -> &'static str {
        self.name
    }

    fn program(&self) -> Result<&Xdp, LoadError> {
        let program = self.ebpf.program(self.name).ok_or_else(|| missing(self.name, "the program"))?;
        program.try_into().map_err(|e: ProgramError| explain(self.name, e))
    }

    fn program_mut(&mut self) -> Result<&mut Xdp, LoadError> {
        let name = self.name;
        let program = self.ebpf.program_mut(name).ok_or_else(|| missing(name, "the program"))?;
        program.try_into().map_err(|e: ProgramError| explain(name, e))
    }

    /// Attaches to a device until dropped, by a BPF link where the kernel has them, else by netlink.
    pub fn attach(&mut self, ifindex: u32, mode: Mode) -> Result<(), LoadError> {
        let name = self.name;
        let mode = match mode {
            Mode::Native => XdpMode::Driver,
            Mode::Generic => XdpMode::Skb,
        };
        self.program_mut()?.attach_to_if_index(ifindex, mode).map(drop).map_err(|e| explain(name, e))
    }

    /// Takes the memory under this name out, to use it beside the program.
    pub fn take_array<const N: usize>(&mut self, map: &str) -> Result<Memory<N>, LoadError> {
        let name = self.name;
        let found = self.ebpf.take_map(map).ok_or_else(|| missing(name, map))?;
        let array = found.try_into().map_err(|e: MapError| explain(name, e))?;
        Ok(Memory { array, name })
    }

    /// Inserts or replaces in a hash map.
    pub fn insert<const K: usize, const V: usize>(
        &mut self,
        map: &str,
        key: [u8; K],
        value: [u8; V],
    ) -> Result<(), LoadError> {
        let name = self.name;
        let found = self.ebpf.map_mut(map).ok_or_else(|| missing(name, map))?;
        let mut hash: HashMap<_, [u8; K], [u8; V]> =
            found.try_into().map_err(|e: MapError| explain(name, e))?;
        hash.insert(key, value, 0).map_err(|e| explain(name, e))
    }

    /// The sums over all CPUs of the words of one entry of a per-CPU array.
    pub fn sum<const N: usize>(&self, map: &str, key: u32) -> Result<[u64; N], LoadError> {
        let name = self.name;
        let found = self.ebpf.map(map).ok_or_else(|| missing(name, map))?;
        let array: PerCpuArray<_, [u64; N]> = found.try_into().map_err(|e: MapError| explain(name, e))?;
        let mut sums = [0; N];
        for cpu in array.get(&key, 0).map_err(|e| explain(name, e))?.iter() {
            sums.iter_mut().zip(cpu).for_each(|(sum, word)| *sum += word);
        }
        Ok(sums)
    }

    /// Gives a queue its socket.
    pub fn set_socket(&mut self, map: &str, queue: u32, socket: BorrowedFd<'_>) -> Result<(), LoadError> {
        let name = self.name;
        let found = self.ebpf.map_mut(map).ok_or_else(|| missing(name, map))?;
        let mut sockets: XskMap<_> = found.try_into().map_err(|e: MapError| explain(name, e))?;
        sockets.set(queue, socket, 0).map_err(|e| explain(name, e))
    }

    /// Runs the program on one frame `repeat` times, on no device. What the program writes stays for the
    /// next round.
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<Run, LoadError> {
        let mut out = vec![0; frame.len() + ROOM];
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            repeat,
            ..TestRunOptions::default()
        };
        let result = self.program()?.test_run(options).map_err(|e| explain(self.name, e))?;
        out.truncate(result.data_size_out as usize);
        Ok(Run { action: result.return_value.into(), frame: out, duration: result.duration })
    }

    /// Runs the program on `repeat` live frames that start as `frame`, and carries out what it returns: a
    /// redirect sends, in the calling thread's network namespace. Frames come from a page pool and keep what
    /// the last run wrote; no socket buffer is made. A signal ends it early with `ErrorKind::Interrupted`.
    /// Returns the mean time of a run.
    pub fn run_live(&self, frame: &[u8], repeat: u32, batch: u32) -> Result<Duration, LoadError> {
        let options = TestRunOptions {
            data_in: Some(frame),
            repeat,
            attrs: TestRunAttrs::new().xdp_live_frames(batch),
            ..TestRunOptions::default()
        };
        Ok(self.program()?.test_run(options).map_err(|e| explain(self.name, e))?.duration)
    }

    /// A descriptor of a map of its own, to map it into memory.
    pub fn map_fd(&self, map: &str) -> Result<OwnedFd, LoadError> {
        let name = self.name;
        let array = match self.ebpf.map(map) {
            Some(Map::Array(array)) => array,
            _ => return Err(missing(name, map)),
        };
        array.fd().as_fd().try_clone_to_owned().map_err(|e| explain(name, e))
    }

    /// Instructions after the verifier took out what cannot be reached, and bytes of stack, of which the
    /// kernel allows 512.
    pub fn size(&self) -> Result<(u32, u32), LoadError> {
        let info = self.program()?.info().map_err(|e| explain(self.name, e))?;
        Ok((info.size_translated().unwrap_or(0) / 8, self.stack))
    }
}

/// What a frame may grow by in a test run: the kernel refuses a smaller buffer than it fills.
const ROOM: usize = 256;

/// The value of an array of one: `N` bytes of a program's memory.
pub struct Memory<const N: usize> {
    array: Array<MapData, [u8; N]>,
    name: &'static str,
}

impl<const N: usize> fmt::Debug for Memory<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({}, {N} bytes)", self.name)
    }
}

impl<const N: usize> Memory<N> {
    /// Not atomically: a program that runs meanwhile may write between two words.
    pub fn read(&self) -> Result<[u8; N], LoadError> {
        self.array.get(&0, 0).map_err(|e| explain(self.name, e))
    }

    pub fn write(&mut self, value: &[u8; N]) -> Result<(), LoadError> {
        self.array.set(0, value, 0).map_err(|e| explain(self.name, e))
    }

    /// Writes zeros.
    pub fn clear(&mut self) -> Result<(), LoadError> {
        // On the heap: it may be longer than a thread's stack.
        let zeros: Box<[u8; N]> = vec![0; N].try_into().unwrap_or_else(|_| Box::new([0; N]));
        self.write(&zeros)
    }
}
