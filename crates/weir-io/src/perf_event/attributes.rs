//! What an event is asked to be: `struct perf_event_attr`, and the calls that take it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::record::REGISTERS;
use super::{Attempt, Event, Wish};

const TYPE_HARDWARE: u32 = 0;
const TYPE_SOFTWARE: u32 = 1;
/// `PERF_COUNT_HW_CPU_CYCLES` and `PERF_COUNT_SW_CPU_CLOCK` are both 0 of their type.
const CONFIG: u64 = 0;

/// `sample_type`: what a sample holds, in the order [`super::record`] reads it.
const SAMPLE_IP: u64 = 1;
const SAMPLE_TID: u64 = 1 << 1;
const SAMPLE_TIME: u64 = 1 << 2;
const SAMPLE_CALLCHAIN: u64 = 1 << 5;
const SAMPLE_CPU: u64 = 1 << 7;
const SAMPLE_REGS_USER: u64 = 1 << 12;
const SAMPLE_STACK_USER: u64 = 1 << 13;

/// Bits of the flag word.
const DISABLED: u64 = 1;
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
const MMAP: u64 = 1 << 8;
const COMM: u64 = 1 << 9;
const FREQUENCY: u64 = 1 << 10;
const TASK: u64 = 1 << 13;
const EXCLUDE_GUEST: u64 = 1 << 20;
const EXCLUDE_CALLCHAIN_KERNEL: u64 = 1 << 21;
const MMAP2: u64 = 1 << 23;
const COMM_EXEC: u64 = 1 << 24;
const USE_CLOCKID: u64 = 1 << 25;
/// Threads are inherited, processes are not (Linux 5.13).
const INHERIT_THREAD: u64 = 1 << 35;

/// `_IO('$', n)`.
const IOC_ENABLE: libc::c_ulong = 0x2400;
const IOC_DISABLE: libc::c_ulong = 0x2401;
const IOC_SET_OUTPUT: libc::c_ulong = 0x2405;

/// `struct perf_event_attr` as of version 5 (112 bytes), which every kernel since 4.1 takes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    frequency: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clockid: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved: u16,
}

const _: () = assert!(size_of::<Attributes>() == 112);

/// What a read returns behind the count: times enabled and running.
const READ_TIMES: u64 = 3;

impl Attributes {
    /// A count that begins at once, of a thread whatever CPU it runs on.
    pub fn counting(kind: u32, config: u64, kernel: bool) -> Attributes {
        let mut flags = EXCLUDE_HYPERVISOR | EXCLUDE_GUEST;
        if !kernel {
            flags |= EXCLUDE_KERNEL;
        }
        Attributes {
            kind,
            size: size_of::<Attributes>() as u32,
            config,
            read_format: READ_TIMES,
            flags,
            ..Attributes::default()
        }
    }

    pub fn sampling(attempt: Attempt, wish: Wish, inherit: bool) -> Attributes {
        let mut flags = DISABLED
            | FREQUENCY
            | EXCLUDE_HYPERVISOR
            | EXCLUDE_GUEST
            | MMAP
            | MMAP2
            | COMM
            | COMM_EXEC
            | TASK
            | USE_CLOCKID;
        if !attempt.kernel {
            flags |= EXCLUDE_KERNEL | EXCLUDE_CALLCHAIN_KERNEL;
        }
        if inherit {
            flags |= INHERIT | INHERIT_THREAD;
        }
        let mut sample_type = SAMPLE_IP | SAMPLE_TID | SAMPLE_TIME | SAMPLE_CALLCHAIN | SAMPLE_CPU;
        if wish.stack_bytes > 0 {
            sample_type |= SAMPLE_REGS_USER | SAMPLE_STACK_USER;
        }
        Attributes {
            kind: if attempt.event == Event::Cycles { TYPE_HARDWARE } else { TYPE_SOFTWARE },
            size: size_of::<Attributes>() as u32,
            config: CONFIG,
            frequency: u64::from(wish.frequency_hz),
            sample_type,
            sample_regs_user: if wish.stack_bytes > 0 { REGISTERS } else { 0 },
            sample_stack_user: wish.stack_bytes,
            flags,
            clockid: libc::CLOCK_MONOTONIC,
            ..Attributes::default()
        }
    }
}

/// Opens an event of a thread (-1: of every thread) on a CPU, not counting yet.
pub fn open(attributes: &Attributes, thread: i32, cpu: i32) -> io::Result<OwnedFd> {
    match call(attributes, thread, cpu) {
        // older kernels inherit processes too, or not at all
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) && attributes.flags & INHERIT_THREAD != 0 => {
            call(&Attributes { flags: attributes.flags & !INHERIT_THREAD, ..*attributes }, thread, cpu)
        }
        other => other,
    }
}

fn call(attributes: &Attributes, thread: i32, cpu: i32) -> io::Result<OwnedFd> {
    const NO_GROUP: libc::c_int = -1;
    const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;
    // SAFETY: `attributes` is a valid perf_event_attr whose `size` field is its size; the kernel reads it
    // during the call only.
    let fd =
        unsafe { libc::syscall(libc::SYS_perf_event_open, attributes, thread, cpu, NO_GROUP, CLOSE_ON_EXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call returned a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

pub fn enable(event: &OwnedFd, on: bool) -> io::Result<()> {
    control(event, if on { IOC_ENABLE } else { IOC_DISABLE }, 0)
}

/// Lets `event` write to the ring of `first`, which is on the same CPU.
pub fn write_to(event: &OwnedFd, first: &OwnedFd) -> io::Result<()> {
    control(event, IOC_SET_OUTPUT, first.as_raw_fd())
}

fn control(event: &OwnedFd, request: libc::c_ulong, argument: libc::c_int) -> io::Result<()> {
    // SAFETY: these requests take an integer and touch no memory of ours.
    let done = unsafe { libc::ioctl(event.as_raw_fd(), request as _, argument) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
