//! Maps and programs in the kernel: the `bpf(2)` system call, as far as XDP needs it.
//!
//! Promises: every object is a file descriptor that dies with us; a refused program comes with the
//! verifier's own words. Refuses: pinning: a bpffs lives no longer than the mount namespace it is in, which under
//! `ip netns exec`, a service manager or a container is often no longer than the process.

use std::ffi::CString;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use super::asm::{AsmError, Program};

/// `bpf(2)` commands used here (`include/uapi/linux/bpf.h`).
#[derive(Clone, Copy)]
#[repr(i32)]
pub(super) enum Command {
    MapCreate = 0,
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    ProgLoad = 5,
    #[cfg(test)]
    ProgTestRun = 10,
    ProgFdById = 13,
    MapFdById = 14,
    ObjInfoByFd = 15,
    LinkCreate = 28,
    LinkFdById = 30,
    LinkNextId = 31,
    LinkDetach = 34,
}

/// The kernel's map types used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MapKind {
    Hash = 1,
    Array = 2,
    PerCpuArray = 6,
    LruHash = 9,
    Xsk = 17,
}

/// Why the kernel has no such object.
#[derive(Debug)]
pub enum BpfError {
    Map { name: &'static str, error: io::Error },
    Program { name: &'static str, error: io::Error, log: String },
    Assembly(AsmError),
}

impl fmt::Display for BpfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BpfError::Map { name, error } => write!(f, "bpf map {name}: {error}{}", remedy(error)),
            BpfError::Program { name, error, log } if log.is_empty() => {
                write!(f, "bpf program {name}: {error}{}", remedy(error))
            }
            BpfError::Program { name, error, log } => {
                write!(f, "bpf program {name}: {error}{}; the verifier said:\n{log}", remedy(error))
            }
            BpfError::Assembly(error) => write!(f, "bpf program: {error}"),
        }
    }
}

impl std::error::Error for BpfError {}

impl From<AsmError> for BpfError {
    fn from(error: AsmError) -> Self {
        BpfError::Assembly(error)
    }
}

fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM) => "; run as root or with CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW",
        Some(libc::ENOSYS) => "; this kernel is built without CONFIG_BPF_SYSCALL",
        _ => "",
    }
}

/// Calls `bpf(2)`.
///
/// # Safety
/// `A` is the prefix of `union bpf_attr` that belongs to `command`, and every pointer in it is valid
/// for what the command reads or writes there.
pub(super) unsafe fn bpf<A>(command: Command, attr: &mut A) -> io::Result<libc::c_long> {
    // SAFETY: the caller vouches for the pointers inside; `attr` is writable for its own size.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command as i32, attr as *mut A, size_of::<A>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// As [`bpf`], for commands that return a descriptor.
///
/// # Safety
/// As [`bpf`]; and `command` returns a new file descriptor.
pub(super) unsafe fn bpf_fd<A>(command: Command, attr: &mut A) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise, passed on.
    let fd = unsafe { bpf(command, attr) }?;
    // SAFETY: the command returned a fresh descriptor nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// A name as the kernel stores it: at most 15 bytes and a zero.
pub(super) fn object_name(name: &str) -> [u8; 16] {
    let mut out = [0; 16];
    for (to, from) in out[..15].iter_mut().zip(name.bytes()) {
        *to = from;
    }
    out
}

/// A map. Keys and values are plain bytes of fixed sizes.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    name: &'static str,
    key_size: usize,
    value_size: usize,
    kind: MapKind,
}

#[derive(Default)]
#[repr(C)]
struct MapCreateAttr {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    map_name: [u8; 16],
}

#[derive(Default)]
#[repr(C)]
struct MapElemAttr {
    map_fd: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl Map {
    pub fn new(
        name: &'static str,
        kind: MapKind,
        key_size: usize,
        value_size: usize,
        max_entries: u32,
    ) -> Result<Map, BpfError> {
        Self::with_flags(name, kind, key_size, value_size, max_entries, 0)
    }

    fn with_flags(
        name: &'static str,
        kind: MapKind,
        key_size: usize,
        value_size: usize,
        max_entries: u32,
        map_flags: u32,
    ) -> Result<Map, BpfError> {
        let mut attr = MapCreateAttr {
            map_type: kind as u32,
            key_size: key_size as u32,
            value_size: value_size as u32,
            max_entries,
            map_flags,
            map_name: object_name(name),
            ..MapCreateAttr::default()
        };
        // SAFETY: BPF_MAP_CREATE takes this prefix and no pointers, and returns a descriptor.
        let fd = unsafe { bpf_fd(Command::MapCreate, &mut attr) }
            .map_err(|error| BpfError::Map { name, error })?;
        Ok(Map { fd, name, key_size, value_size, kind })
    }

    /// An array of one value that both the program and this process read and write in place.
    pub fn shared(name: &'static str, value_size: usize) -> Result<(Map, SharedWords), BpfError> {
        const MMAPABLE: u32 = 1 << 10;
        let map = Self::with_flags(name, MapKind::Array, 4, value_size, 1, MMAPABLE)?;
        let words =
            SharedWords::of(map.fd.as_fd(), value_size).map_err(|error| BpfError::Map { name, error })?;
        Ok((map, words))
    }

    fn elem(&self, command: Command, key: &[u8], value: *mut u8) -> Result<(), BpfError> {
        let mut attr = MapElemAttr {
            map_fd: self.fd.as_raw_fd() as u32,
            key: key.as_ptr() as u64,
            value: value as u64,
            ..MapElemAttr::default()
        };
        // SAFETY: `key` has key_size bytes (checked by every caller) and `value` is null or has the
        // map's value size, times the number of CPUs where the kernel writes one value for each.
        unsafe { bpf(command, &mut attr) }.map(drop).map_err(|error| BpfError::Map { name: self.name, error })
    }

    fn check(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), BpfError> {
        let values = if self.kind == MapKind::PerCpuArray { possible_cpus()? } else { 1 };
        if key.len() != self.key_size || value.is_some_and(|v| v.len() != self.value_size * values) {
            let error = io::Error::from_raw_os_error(libc::EINVAL);
            return Err(BpfError::Map { name: self.name, error });
        }
        Ok(())
    }

    /// Inserts or replaces.
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<(), BpfError> {
        self.check(key, Some(value))?;
        self.elem(Command::MapUpdate, key, value.as_ptr().cast_mut())
    }

    /// Removes; `false` when there was nothing.
    pub fn delete(&self, key: &[u8]) -> Result<bool, BpfError> {
        self.check(key, None)?;
        match self.elem(Command::MapDelete, key, std::ptr::null_mut()) {
            Ok(()) => Ok(true),
            Err(BpfError::Map { error, .. }) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads one value into `value`.
    pub fn read(&self, key: &[u8], value: &mut [u8]) -> Result<(), BpfError> {
        self.check(key, Some(value))?;
        self.elem(Command::MapLookup, key, value.as_mut_ptr())
    }

    /// The sums over all CPUs of the `u64` words of one entry of a per-CPU array.
    pub fn sum(&self, key: u32) -> Result<Vec<u64>, BpfError> {
        let mut value = vec![0u8; self.value_size * possible_cpus()?];
        self.read(&key.to_ne_bytes(), &mut value)?;
        let mut sums = vec![0; self.value_size / 8];
        for cpu in value.chunks_exact(self.value_size) {
            for (sum, word) in sums.iter_mut().zip(cpu.as_chunks::<8>().0) {
                *sum += u64::from_ne_bytes(*word);
            }
        }
        Ok(sums)
    }
}

impl AsRawFd for Map {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// The value of a shared map, mapped: a row of words, each accessed atomically.
#[derive(Debug)]
pub struct SharedWords {
    start: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: the mapping is reached through atomic operations only, from any thread.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Maps the first `bytes` of an array made with `BPF_F_MMAPABLE`.
    pub(crate) fn of(map: BorrowedFd<'_>, bytes: usize) -> io::Result<SharedWords> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let fd = map.as_raw_fd();
        // SAFETY: a new mapping at an address the kernel chooses, of a descriptor we hold.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(SharedWords { start, count: bytes / 8 })
    }

    /// Word `at`; the last one where there is none.
    #[inline]
    pub fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: the index is below `count`, so the word lies in the mapping, which lives as long as
        // `self`; it is page-aligned and accessed atomically by everyone.
        unsafe { self.start.add(at.min(self.count - 1)).as_ref() }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `of`; no reference into it outlives `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.count * 8) };
    }
}

/// Number of CPUs the kernel keeps per-CPU values for: the end of the "possible" list, plus one.
fn possible_cpus() -> Result<usize, BpfError> {
    let failed = |error| BpfError::Map { name: "per-cpu", error };
    let list = std::fs::read_to_string("/sys/devices/system/cpu/possible").map_err(failed)?;
    let last = list.trim().rsplit(['-', ',']).next().and_then(|n| n.parse::<usize>().ok());
    last.map(|n| n + 1).ok_or_else(|| failed(io::Error::other("unreadable list of possible cpus")))
}

/// What a program is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProgramKind {
    /// At a classifier of traffic control.
    Classifier,
    Xdp,
}

/// A loaded program.
#[derive(Debug)]
pub struct LoadedProgram {
    fd: OwnedFd,
    name: &'static str,
}

#[derive(Default)]
#[repr(C)]
struct ProgLoadAttr {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

const PROG_TYPE_SCHED_CLS: u32 = 3;
const PROG_TYPE_XDP: u32 = 6;
pub(super) const ATTACH_XDP: u32 = 37;
/// Room for the verifier's words about a program of a few hundred instructions.
const LOG_BYTES: usize = 1 << 20;

impl LoadedProgram {
    /// Loads an XDP program; at a refusal loads once more to hear the verifier's reasons.
    pub fn load(name: &'static str, program: &Program) -> Result<LoadedProgram, BpfError> {
        Self::load_as(name, ProgramKind::Xdp, program)
    }

    /// Loads a classifier program; otherwise as [`LoadedProgram::load`].
    pub fn load_classifier(name: &'static str, program: &Program) -> Result<LoadedProgram, BpfError> {
        Self::load_as(name, ProgramKind::Classifier, program)
    }

    fn load_as(name: &'static str, kind: ProgramKind, program: &Program) -> Result<LoadedProgram, BpfError> {
        match try_load(name, kind, program, &mut []) {
            Ok(fd) => Ok(LoadedProgram { fd, name }),
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                Err(BpfError::Program { name, error, log: String::new() })
            }
            Err(_) => {
                let mut log = vec![0; LOG_BYTES];
                match try_load(name, kind, program, &mut log) {
                    Ok(fd) => Ok(LoadedProgram { fd, name }),
                    Err(error) => {
                        let end = log.iter().position(|&b| b == 0).unwrap_or(log.len());
                        let log = String::from_utf8_lossy(&log[..end]).into_owned();
                        Err(BpfError::Program { name, error, log })
                    }
                }
            }
        }
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Runs the program on one frame: what it returns, and the frame as it left it.
    #[cfg(test)]
    pub fn run(&self, frame: &[u8], repeat: u32) -> (u32, Vec<u8>) {
        #[derive(Default)]
        #[repr(C)]
        struct TestRun {
            prog_fd: u32,
            retval: u32,
            data_size_in: u32,
            data_size_out: u32,
            data_in: u64,
            data_out: u64,
            repeat: u32,
            rest: [u32; 11],
        }
        let mut out = vec![0u8; frame.len() + 256];
        let mut attr = TestRun {
            prog_fd: self.fd.as_raw_fd() as u32,
            data_size_in: frame.len() as u32,
            data_in: frame.as_ptr() as u64,
            data_size_out: out.len() as u32,
            data_out: out.as_mut_ptr() as u64,
            repeat,
            ..TestRun::default()
        };
        // SAFETY: `frame` is read and `out` written for the sizes beside them, during the call.
        unsafe { bpf(Command::ProgTestRun, &mut attr) }.expect("runs");
        out.truncate(attr.data_size_out as usize);
        (attr.retval, out)
    }

    /// The number the kernel knows it by, which no other program has while it is there.
    pub fn id(&self) -> io::Result<u32> {
        Ok(program_info(&self.fd)?.id)
    }
}

impl AsRawFd for LoadedProgram {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

fn try_load(name: &str, kind: ProgramKind, program: &Program, log: &mut [u8]) -> io::Result<OwnedFd> {
    // None of the helpers used is restricted to GPL programs.
    let license = CString::new("MIT OR Apache-2.0").map_err(io::Error::other)?;
    let (prog_type, expected_attach_type) = match kind {
        ProgramKind::Classifier => (PROG_TYPE_SCHED_CLS, 0),
        ProgramKind::Xdp => (PROG_TYPE_XDP, ATTACH_XDP),
    };
    let mut attr = ProgLoadAttr {
        prog_type,
        insn_cnt: program.insns().len() as u32,
        insns: program.insns().as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: u32::from(!log.is_empty()),
        log_size: log.len() as u32,
        log_buf: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
        prog_name: object_name(name),
        expected_attach_type,
        ..ProgLoadAttr::default()
    };
    // SAFETY: instructions and licence are read only and outlive the call; the log is null or
    // writable for log_size bytes; BPF_PROG_LOAD returns a descriptor.
    unsafe { bpf_fd(Command::ProgLoad, &mut attr) }
}

#[derive(Default)]
#[repr(C)]
struct IdAttr {
    id: u32,
    next_id: u32,
    open_flags: u32,
}

#[derive(Default)]
#[repr(C)]
struct InfoAttr {
    fd: u32,
    len: u32,
    info: u64,
}

/// The start of `struct bpf_prog_info`, up to the name.
#[derive(Default)]
#[repr(C)]
struct ProgInfo {
    kind: u32,
    id: u32,
    tag: [u8; 8],
    jited_len: u32,
    xlated_len: u32,
    jited: u64,
    xlated: u64,
    load_time: u64,
    created_by_uid: u32,
    map_count: u32,
    map_ids: u64,
    name: [u8; 16],
}

/// The name of the loaded program `id`.
pub(crate) fn program_name(id: u32) -> io::Result<String> {
    let info = program_info(&fd_of(Command::ProgFdById, id)?)?;
    Ok(text(&info.name))
}

/// A per-CPU array of `u64` values named `name` that program `id` refers to, if it has one.
pub(crate) fn counters_of(id: u32, name: &'static str) -> io::Result<Option<Map>> {
    /// Maps of one program looked at; ours have fewer than ten.
    const MAPS: usize = 32;
    let fd = fd_of(Command::ProgFdById, id)?;
    let mut ids = [0u32; MAPS];
    let mut info =
        ProgInfo { map_count: MAPS as u32, map_ids: ids.as_mut_ptr() as u64, ..ProgInfo::default() };
    object_info(&fd, &mut info)?;
    for &id in ids.iter().take(info.map_count as usize) {
        let fd = fd_of(Command::MapFdById, id)?;
        let mut info = MapInfo::default();
        object_info(&fd, &mut info)?;
        let shape = (info.kind, info.key_size, info.value_size);
        if text(&info.name) == name && shape == (MapKind::PerCpuArray as u32, 4, 8) {
            let kind = MapKind::PerCpuArray;
            return Ok(Some(Map { fd, name, key_size: 4, value_size: 8, kind }));
        }
    }
    Ok(None)
}

/// The start of `struct bpf_map_info`, up to the name.
#[derive(Default)]
#[repr(C)]
struct MapInfo {
    kind: u32,
    id: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    name: [u8; 16],
}

fn text(name: &[u8; 16]) -> String {
    let end = name.iter().position(|&b| b == 0).unwrap_or(16);
    String::from_utf8_lossy(&name[..end]).into_owned()
}

/// A descriptor of the object with this number.
pub(super) fn fd_of(command: Command, id: u32) -> io::Result<OwnedFd> {
    let mut attr = IdAttr { id, ..IdAttr::default() };
    // SAFETY: the commands called here (…_GET_FD_BY_ID) take this prefix, no pointers, and return a descriptor.
    unsafe { bpf_fd(command, &mut attr) }
}

/// The number of the next link after `id`.
pub(super) fn next_link(id: u32) -> io::Result<u32> {
    let mut attr = IdAttr { id, ..IdAttr::default() };
    // SAFETY: BPF_LINK_GET_NEXT_ID takes this prefix, no pointers, and writes `next_id`.
    unsafe { bpf(Command::LinkNextId, &mut attr) }?;
    Ok(attr.next_id)
}

fn program_info(fd: &OwnedFd) -> io::Result<ProgInfo> {
    let mut info = ProgInfo::default();
    object_info(fd, &mut info)?;
    Ok(info)
}

/// Fills the start of an info structure; `T` is made of integers only.
pub(super) fn object_info<T>(fd: &OwnedFd, info: &mut T) -> io::Result<()> {
    let mut attr =
        InfoAttr { fd: fd.as_raw_fd() as u32, len: size_of::<T>() as u32, info: info as *mut T as u64 };
    // SAFETY: `info` is writable for `len` bytes and made of integers, for which any bytes are valid; a
    // pointer inside it (`map_ids`) is null or of an array with the length that stands beside it.
    unsafe { bpf(Command::ObjInfoByFd, &mut attr) }.map(drop)
}
