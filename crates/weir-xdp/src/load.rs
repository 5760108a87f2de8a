//! Loading a compiled program over its maps, attaching it, running it on frames: by aya.
//!
//! Promises: constants are set before the verifier sees the program, which then leaves out what they rule out;
//! everything goes with the descriptors when [`Loaded`] is dropped. Refuses: BTF of the kernel: no program
//! here reads a structure of it.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use aya::maps::Map;
use aya::programs::xdp::{XdpLinkId, XdpMode};
use aya::programs::{Program, ProgramError, TestRun, TestRunAttrs, TestRunOptions, TestRunResult, Xdp};
use aya::{Ebpf, EbpfLoader, VerifierLogLevel};

use crate::error::{LoadError, explain, missing};
use crate::map::{Maps, Shared};

/// A compiled program.
#[derive(Clone, Copy)]
pub struct Source {
    /// Name of the function in C and of the program in the kernel.
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

/// Where a program runs on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The program runs in the driver, before a socket buffer exists.
    Native,
    /// The program runs after the kernel made a socket buffer: on any device, slower.
    Generic,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Native => "native XDP",
            Mode::Generic => "generic XDP",
        })
    }
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
    /// What the program returned.
    pub verdict: u32,
    /// The verdict as an XDP program means it.
    pub action: Action,
    /// The frame as the program left it.
    pub frame: Vec<u8>,
    /// The mean of all rounds, in whole nanoseconds.
    pub duration: Duration,
}

/// What a program is loaded with, besides what is in its object.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings<'a> {
    /// Rodata variables by name.
    pub constants: &'a [(&'static str, &'a [u8])],
    /// Sizes of maps that are decided only now.
    pub entries: &'a [(&'static str, u32)],
    /// Maps it uses instead of its own ones of these names.
    pub shared: &'a [Shared],
}

/// The one loader of the process: making one reads the kernel's type information, some 80 ms.
///
/// It remembers what it was told. So constants are kept as long as it is (some 30 bytes for each program loaded), no
/// two programs have one of the same name, and sizes of maps that are not always the same are told each time.
static LOADER: Mutex<Option<EbpfLoader<'static>>> = Mutex::new(None);

impl Source {
    /// Makes the maps of the object without its program. `entries` says how many entries each has that is also
    /// [shared](Settings::shared) somewhere: those that will not be taken need one.
    pub fn maps(self, entries: &[(&'static str, u32)]) -> Result<Maps, LoadError> {
        let ebpf = self.open(&Settings { entries, ..Settings::default() })?;
        Ok(Maps { ebpf, name: self.name })
    }

    /// Loads the program.
    pub fn load(self, settings: Settings<'_>) -> Result<Loaded, LoadError> {
        let mut maps = Maps { ebpf: self.open(&settings)?, name: self.name };
        for shared in settings.shared {
            maps.substitute(shared.name, shared.as_fd())?;
        }
        maps.join_variables()?;
        let name = self.name;
        let loaded = match maps.ebpf.program_mut(name).ok_or_else(|| missing(name, "the program"))? {
            Program::Xdp(program) => program.load(),
            Program::SchedClassifier(program) => program.load(),
            _ => return Err(missing(name, "a program of a known kind")),
        };
        loaded.map_err(|e| explain(name, e))?;
        Ok(Loaded { maps, name, stack: self.stack, link: None })
    }

    fn open(self, settings: &Settings<'_>) -> Result<Ebpf, LoadError> {
        let mut loader = LOADER.lock().unwrap_or_else(PoisonError::into_inner);
        let loader = loader.get_or_insert_with(|| {
            let mut loader = EbpfLoader::new();
            loader.btf(None).verifier_log_level(VerifierLogLevel::DEBUG);
            loader
        });
        let kept: Vec<(&'static str, &'static [u8])> =
            settings.constants.iter().map(|(name, value)| (*name, &*value.to_vec().leak())).collect();
        for &(constant, value) in &kept {
            loader.override_global(constant, value, true);
        }
        for shared in settings.shared {
            // Its place is taken before anything uses it.
            loader.map_max_entries(shared.name, 1);
        }
        for &(map, count) in settings.entries {
            loader.map_max_entries(map, count);
        }
        let opened = loader.load(self.object).map_err(|e| explain(self.name, e));
        for (constant, value) in kept {
            // The next program need not have it.
            loader.override_global(constant, value, false);
        }
        opened
    }
}

impl Maps {
    /// A section `.bss.X` beside a map `X` is that map: its variables are the map's one value.
    ///
    /// So a program reads and writes them without a lookup, and the map still has flags that aya gives no
    /// section, and can be shared.
    fn join_variables(&mut self) -> Result<(), LoadError> {
        let sections: Vec<String> = self
            .ebpf
            .maps()
            .filter_map(|(name, _)| name.strip_prefix(".bss."))
            .filter(|map| self.ebpf.map(map).is_some())
            .map(str::to_owned)
            .collect();
        for map in sections {
            let fd = match self.ebpf.map(&map) {
                Some(Map::Array(array)) => array.fd().as_fd().try_clone_to_owned(),
                _ => return Err(missing(self.name, &map)),
            };
            let fd = fd.map_err(|e| explain(self.name, e))?;
            self.substitute(&format!(".bss.{map}"), fd.as_fd())?;
        }
        Ok(())
    }
}

/// A program in the kernel, with its maps. Taken off its device, and gone, when dropped.
#[derive(Debug)]
pub struct Loaded {
    pub maps: Maps,
    name: &'static str,
    stack: u32,
    link: Option<XdpLinkId>,
}

impl Loaded {
    pub fn name(&self) -> &'static str {
        self.name
    }

    fn program(&self) -> Result<&Program, LoadError> {
        self.maps.ebpf.program(self.name).ok_or_else(|| missing(self.name, "the program"))
    }

    fn xdp(&mut self) -> Result<&mut Xdp, LoadError> {
        let name = self.name;
        let program = self.maps.ebpf.program_mut(name).ok_or_else(|| missing(name, "the program"))?;
        program.try_into().map_err(|e: ProgramError| explain(name, e))
    }

    /// Attaches an XDP program to a device until it is detached or dropped, by a BPF link where the kernel has
    /// them, else by netlink.
    pub fn attach(&mut self, ifindex: u32, mode: Mode) -> Result<(), LoadError> {
        let name = self.name;
        let mode = match mode {
            Mode::Native => XdpMode::Driver,
            Mode::Generic => XdpMode::Skb,
        };
        self.link = Some(self.xdp()?.attach_to_if_index(ifindex, mode).map_err(|e| explain(name, e))?);
        Ok(())
    }

    /// Takes the program off its device, if it is on one.
    pub fn detach(&mut self) -> Result<(), LoadError> {
        let name = self.name;
        match self.link.take() {
            Some(link) => self.xdp()?.detach(link).map_err(|e| explain(name, e)),
            None => Ok(()),
        }
    }

    /// Loads another program of the same object and has a tracepoint of the kernel run it, as long as this is loaded.
    pub fn trace(&mut self, program: &'static str, tracepoint: &str) -> Result<(), LoadError> {
        let traced = self.maps.ebpf.program_mut(program).ok_or_else(|| missing(program, "the program"))?;
        let Program::RawTracePoint(traced) = traced else {
            return Err(missing(program, "a program of a tracepoint"));
        };
        traced.load().and_then(|()| traced.attach(tracepoint)).map_err(|e| explain(program, e))?;
        Ok(())
    }

    /// The number the kernel knows it by, which no other program has while it is there.
    pub fn id(&self) -> Result<u32, LoadError> {
        Ok(self.program()?.info().map_err(|e| explain(self.name, e))?.id())
    }

    /// The program's descriptor, for places aya attaches nothing to as it is wanted there.
    pub fn fd(&self) -> Result<BorrowedFd<'_>, LoadError> {
        Ok(self.program()?.fd().map_err(|e| explain(self.name, e))?.as_fd())
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
        let result = self.test_run(options)?;
        out.truncate(result.data_size_out as usize);
        let (verdict, duration) = (result.return_value, result.duration);
        Ok(Run { verdict, action: verdict.into(), frame: out, duration })
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
        Ok(self.test_run(options)?.duration)
    }

    fn test_run(&self, options: TestRunOptions<'_>) -> Result<TestRunResult, LoadError> {
        let result = match self.program()? {
            Program::Xdp(program) => program.test_run(options),
            Program::SchedClassifier(program) => program.test_run(options),
            _ => return Err(missing(self.name, "a program of a known kind")),
        };
        result.map_err(|e| explain(self.name, e))
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
